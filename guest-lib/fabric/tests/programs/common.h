/*
 * Two processes, a and b, each with an endpoint of the provider that FABRIC_PROVIDER names.
 *
 *   main ── fork ─┬─ a ── open ──┬── test_a ── close
 *                 │   socketpair │
 *                 └─ b ── open ──┴── test_b ── close
 *
 * With FABRIC_LISTEN, a port, there is a alone, and with FABRIC_CONNECT, "host:port", b: they run on two machines, and
 * their link is a TCP connection.
 *
 * A program tests one thing: it defines `wants` (what it asks of the provider), `test_a` and `test_b`. It ends with
 * status 0 if all holds, with 77 if the provider does not offer what it wants. What hangs ends by a signal.
 */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <glob.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

/* Seconds after which a process has hung. */
#define LIMIT 300
/* The status of a program whose provider lacks what it wants. */
#define SKIPPED 77

#define CHECK(holds)                                                                              \
	do {                                                                                      \
		if (!(holds)) {                                                                   \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #holds);       \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

#define IS(call, expected)                                                                        \
	do {                                                                                      \
		long is_ = (long)(call), expected_ = (long)(expected);                            \
		if (is_ != expected_) {                                                           \
			fprintf(stderr, "%s:%d: %s is %ld (%s), not %ld\n", __FILE__, __LINE__,   \
				#call, is_, is_ < 0 ? fi_strerror((int)-is_) : "", expected_);    \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

/* An endpoint with a completion queue for both directions. */
struct side {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	/* Events, if the program asks for collectives. */
	struct fid_eq *eq;
	struct fid_ep *ep;
	/* The other side's. */
	fi_addr_t peer;
	/* To the other process. */
	int link;
};

/* A completion, or why an operation failed. */
struct end {
	struct fi_cq_tagged_entry entry;
	fi_addr_t source;
	/* 0, or an error of libfabric; and the bytes that did not fit. */
	int error;
	size_t beyond;
};

/* Entries of the queues that are opened; 0: as many as the provider likes. */
static size_t queue_size;
/* Flags of the binding of the queue, beside those of the directions. */
static uint64_t queue_flags;

/* Bytes that a receive of many messages keeps for each; 0: as many as the provider likes. */
static size_t kept_bytes;

/* What a program asks of the provider. */
static void wants(struct fi_info *hints);
/* What the two processes do. */
static void test_a(struct side *side);
static void test_b(struct side *side);

static inline void link_write(int link, const void *bytes, size_t length)
{
	IS(write(link, bytes, length), length);
}

static inline void link_read(int link, void *bytes, size_t length)
{
	IS(recv(link, bytes, length, MSG_WAITALL), length);
}

/* Waits until the other process has come here, too, and lets a provider go on that does so only when it is called. */
static inline void both_here(struct side *side)
{
	ssize_t come;
	char byte = 0;
	link_write(side->link, &byte, 1);
	while ((come = recv(side->link, &byte, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
		fi_cq_read(side->cq, NULL, 0);
	IS(come, 1);
}

/* Puts the address of an endpoint of the other process into the address vector, and gives it that of one's own. */
static inline fi_addr_t swap_names(int link, struct fid_ep *ep, struct fid_av *av)
{
	char name[512];
	size_t length = sizeof name;
	fi_addr_t peer = FI_ADDR_NOTAVAIL;
	IS(fi_getname(&ep->fid, name, &length), 0);
	link_write(link, &length, sizeof length);
	link_write(link, name, length);
	link_read(link, &length, sizeof length);
	CHECK(length <= sizeof name);
	link_read(link, name, length);
	IS(fi_av_insert(av, name, 1, &peer, 0, NULL), 1);
	return peer;
}

/* Opens an endpoint on a domain, with queue and address vector. */
static inline void open_endpoint(struct side *side)
{
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .size = queue_size };
	struct fi_av_attr av = { .type = side->info->domain_attr->av_type };
	IS(fi_cq_open(side->domain, &cq, &side->cq, NULL), 0);
	IS(fi_av_open(side->domain, &av, &side->av, NULL), 0);
	IS(fi_endpoint(side->domain, side->info, &side->ep, NULL), 0);
	IS(fi_ep_bind(side->ep, &side->av->fid, 0), 0);
	IS(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV | queue_flags), 0);
	if (kept_bytes)
		IS(fi_setopt(&side->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &kept_bytes,
			     sizeof kept_bytes),
		   0);
	if (side->info->caps & FI_COLLECTIVE) {
		struct fi_eq_attr eq = { .wait_obj = FI_WAIT_UNSPEC };
		IS(fi_eq_open(side->fabric, &eq, &side->eq, NULL), 0);
		IS(fi_ep_bind(side->ep, &side->eq->fid, 0), 0);
	}
	IS(fi_enable(side->ep), 0);
	side->peer = swap_names(side->link, side->ep, side->av);
}

static inline void close_endpoint(struct side *side)
{
	IS(fi_close(&side->ep->fid), 0);
	if (side->eq)
		IS(fi_close(&side->eq->fid), 0);
	side->eq = NULL;
	IS(fi_close(&side->cq->fid), 0);
	IS(fi_close(&side->av->fid), 0);
}

/* What the provider offers. */
static inline struct fi_info *find_info(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	int found;
	CHECK(hints);
	hints->fabric_attr->prov_name = strdup(getenv("FABRIC_PROVIDER"));
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->av_type = FI_AV_TABLE;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	wants(hints);
	found = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info);
	fi_freeinfo(hints);
	if (found == -FI_ENODATA)
		exit(SKIPPED);
	IS(found, 0);
	return info;
}

static inline void open_side(struct side *side)
{
	side->info = find_info();
	IS(fi_fabric(side->info->fabric_attr, &side->fabric, NULL), 0);
	IS(fi_domain(side->fabric, side->info, &side->domain, NULL), 0);
	/* rxm_domain_open of libfabric 2.1 returns 0 without a domain if the provider of its collectives is not loaded. */
	if (!side->domain)
		exit(SKIPPED);
	open_endpoint(side);
}

static inline void close_side(struct side *side)
{
	close_endpoint(side);
	IS(fi_close(&side->domain->fid), 0);
	IS(fi_close(&side->fabric->fid), 0);
	fi_freeinfo(side->info);
}

/* Reads a completion or an error, if there is one. */
static inline bool poll_end(struct side *side, struct end *end)
{
	struct fi_cq_err_entry failed;
	ssize_t read;
	memset(end, 0, sizeof *end);
	read = fi_cq_readfrom(side->cq, &end->entry, 1, &end->source);
	if (read == -FI_EAGAIN)
		return false;
	if (read == 1)
		return true;
	IS(read, -FI_EAVAIL);
	memset(&failed, 0, sizeof failed);
	IS(fi_cq_readerr(side->cq, &failed, 0), 1);
	end->entry.op_context = failed.op_context;
	end->entry.flags = failed.flags;
	end->entry.len = failed.len;
	end->entry.buf = failed.buf;
	end->error = failed.err;
	end->beyond = failed.olen;
	return true;
}

/* The next completion or error. */
static inline struct end next_end(struct side *side)
{
	struct end end;
	while (!poll_end(side, &end))
		;
	return end;
}

/* The next completion, of the operation with this context. */
static inline struct end expect(struct side *side, void *context)
{
	struct end end = next_end(side);
	if (end.error)
		fprintf(stderr, "failed: %s\n", fi_strerror(end.error));
	IS(end.error, 0);
	CHECK(end.entry.op_context == context);
	return end;
}

/* Completions that nothing reads are read while a call is tried again: it may wait for just that. */
#define AGAIN(side, call)                                                                         \
	do {                                                                                      \
		ssize_t posted_;                                                                  \
		while ((posted_ = (call)) == -FI_EAGAIN)                                          \
			fi_cq_read((side)->cq, NULL, 0);                                          \
		IS(posted_, 0);                                                                   \
	} while (0)

/* Space for the context of an operation: some providers keep things there. */
typedef struct fi_context2 context_t;

static inline void send_tagged(struct side *side, const void *bytes, size_t length, uint64_t tag,
			       context_t *context)
{
	AGAIN(side, fi_tsend(side->ep, bytes, length, NULL, side->peer, tag, context));
}

static inline void receive_tagged(struct side *side, void *room, size_t length, uint64_t tag,
				  uint64_t ignore, context_t *context)
{
	AGAIN(side, fi_trecv(side->ep, room, length, NULL, FI_ADDR_UNSPEC, tag, ignore, context));
}

/* Fills memory with bytes that tell their place and their message. */
static inline void fill(unsigned char *bytes, size_t length, unsigned seed)
{
	size_t at;
	for (at = 0; at < length; at++)
		bytes[at] = (unsigned char)(at * 31 + at / 251 + seed);
}

static inline bool holds(const unsigned char *bytes, size_t length, unsigned seed)
{
	size_t at;
	for (at = 0; at < length; at++)
		if (bytes[at] != (unsigned char)(at * 31 + at / 251 + seed))
			return false;
	return true;
}

/*
 * The provider shm leaves its regions behind, named by the number of their process: a later process with that number
 * could not open its own.
 */
static inline void remove_regions(void)
{
	char pattern[64];
	glob_t found;
	size_t at;
	snprintf(pattern, sizeof pattern, "/dev/shm/%d:*", (int)getpid());
	if (glob(pattern, 0, NULL, &found) != 0)
		return;
	for (at = 0; at < found.gl_pathc; at++)
		unlink(found.gl_pathv[at]);
	globfree(&found);
}

/* The addresses of a host and a port; no host: the own one. */
static inline struct addrinfo *resolve(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found;
	hints.ai_flags = host ? 0 : AI_PASSIVE;
	IS(getaddrinfo(host, port, &hints, &found), 0);
	return found;
}

/* The next connection to a port. */
static inline int accept_at(const char *port)
{
	struct addrinfo *own = resolve(NULL, port);
	int on = 1, listening = socket(AF_INET, SOCK_STREAM, 0), accepted;
	IS(setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
	IS(bind(listening, own->ai_addr, own->ai_addrlen), 0);
	IS(listen(listening, 1), 0);
	accepted = accept(listening, NULL, NULL);
	CHECK(accepted >= 0);
	close(listening);
	freeaddrinfo(own);
	return accepted;
}

/* A connection to "host:port", as soon as something listens there. */
static inline int connect_to(const char *place)
{
	char *host = strdup(place), *port = strchr(host, ':');
	struct addrinfo *other;
	int link = -1;
	CHECK(port);
	*port++ = 0;
	other = resolve(host, port);
	for (;;) {
		link = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(link >= 0);
		if (connect(link, other->ai_addr, other->ai_addrlen) == 0)
			break;
		close(link);
		usleep(10000);
	}
	freeaddrinfo(other);
	free(host);
	return link;
}

/* One of the processes, whose other one is elsewhere. */
static inline int run_alone(struct side *side, const char *port, const char *place)
{
	alarm(LIMIT);
	side->link = port ? accept_at(port) : connect_to(place);
	open_side(side);
	if (port)
		test_a(side);
	else
		test_b(side);
	both_here(side);
	close_side(side);
	return 0;
}

int main(void)
{
	struct side side = { 0 };
	int pair[2], status;
	pid_t child;
	if (getenv("FABRIC_LISTEN") || getenv("FABRIC_CONNECT"))
		return run_alone(&side, getenv("FABRIC_LISTEN"), getenv("FABRIC_CONNECT"));
	IS(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	fflush(NULL);
	child = fork();
	CHECK(child >= 0);
	alarm(LIMIT);
	remove_regions();
	atexit(remove_regions);
	if (child == 0) {
		/* The other node of qnic. */
		const char *socket = getenv("SECOND_QNIC_HOST_SOCKET");
		if (socket)
			setenv("QNIC_HOST_SOCKET", socket, 1);
		close(pair[0]);
		side.link = pair[1];
		open_side(&side);
		test_b(&side);
		both_here(&side);
		close_side(&side);
		return 0;
	}
	close(pair[1]);
	side.link = pair[0];
	open_side(&side);
	test_a(&side);
	both_here(&side);
	close_side(&side);
	IS(waitpid(child, &status, 0), child);
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	fprintf(stderr, "the other process ended by signal %d\n", WTERMSIG(status));
	return 1;
}

#endif
