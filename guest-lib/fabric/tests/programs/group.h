/* Groups of the two processes: a has rank 0, b rank 1. */
#ifndef GROUP_H
#define GROUP_H

#include <rdma/fi_collective.h>

/* Numbers of the own address, and of those of a and b. */
static fi_addr_t own_address, address_a, address_b;

/* An endpoint's membership in a group. */
struct group {
	struct fid_mc *mc;
	fi_addr_t address;
};

static inline void insert_own(struct side *side, bool is_a)
{
	char name[512];
	size_t length = sizeof name;
	IS(fi_getname(&side->ep->fid, name, &length), 0);
	IS(fi_av_insert(side->av, name, 1, &own_address, 0, NULL), 1);
	address_a = is_a ? own_address : side->peer;
	address_b = is_a ? side->peer : own_address;
}

static inline struct fid_av_set *open_set(struct side *side)
{
	struct fi_av_set_attr attr = { .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL };
	struct fid_av_set *set;
	IS(fi_av_set(side->av, &attr, &set, NULL), 0);
	return set;
}

/* A set of both. */
static inline struct fid_av_set *both_of(struct side *side)
{
	struct fid_av_set *set = open_set(side);
	IS(fi_av_set_insert(set, address_a), 0);
	IS(fi_av_set_insert(set, address_b), 0);
	return set;
}

static inline void begin_join(struct side *side, struct fid_av_set *set, struct group *group)
{
	fi_addr_t address;
	IS(fi_av_set_addr(set, &address), 0);
	IS(fi_join_collective(side->ep, address, set, 0, &group->mc, group), 0);
}

/* The next group that has formed. */
static inline struct group *joined(struct side *side)
{
	struct fi_eq_entry entry;
	struct group *group;
	uint32_t event;
	ssize_t read;
	while ((read = fi_eq_read(side->eq, &event, &entry, sizeof entry, 0)) == -FI_EAGAIN)
		fi_cq_read(side->cq, NULL, 0);
	IS(read, sizeof entry);
	IS(event, FI_JOIN_COMPLETE);
	group = entry.context;
	CHECK(entry.fid == &group->mc->fid);
	group->address = fi_mc_addr(group->mc);
	return group;
}

static inline void join(struct side *side, struct fid_av_set *set, struct group *group)
{
	begin_join(side, set, group);
	CHECK(joined(side) == group);
}

/* Waits until all members have come. */
static inline void barrier(struct side *side, struct group *group)
{
	context_t context;
	AGAIN(side, fi_barrier(side->ep, group->address, &context));
	CHECK(expect(side, &context).entry.flags & FI_COLLECTIVE);
}

#endif
