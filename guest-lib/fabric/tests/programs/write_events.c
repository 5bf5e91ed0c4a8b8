/* A counter of a region counts the writes of the other process: when it is through, their bytes are there. */
#include "common.h"
#include "remote.h"

enum { WRITES = 50, EACH = 1000 };

static unsigned char memory[WRITES * EACH];

static void wants(struct fi_info *hints)
{
	hints->caps = FI_MSG | FI_RMA | FI_RMA_EVENT;
}

/* Ends the program where no counter can be bound to a region. */
static struct fid_cntr *open_counter(struct side *side)
{
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
	struct fid_cntr *counter;
	struct fid_mr *mr;
	int bound;
	IS(fi_cntr_open(side->domain, &attr, &counter, NULL), 0);
	IS(fi_mr_reg(side->domain, memory, 1, FI_REMOTE_WRITE, 0, 18, FI_RMA_EVENT, &mr, NULL), 0);
	bound = fi_mr_bind(mr, &counter->fid, FI_REMOTE_WRITE);
	if (bound == -FI_ENOSYS)
		exit(SKIPPED);
	IS(bound, 0);
	IS(fi_close(&mr->fid), 0);
	return counter;
}

static void test_a(struct side *side)
{
	struct fid_cntr *counter = open_counter(side);
	static context_t contexts[WRITES];
	struct region region = get_region(side);
	fill(memory, sizeof memory, 3);
	for (int at = 0; at < WRITES; at++)
		AGAIN(side, fi_write(side->ep, memory + at * EACH, EACH, NULL, side->peer, region.address + at * EACH,
				     region.key, &contexts[at]));
	for (int at = 0; at < WRITES; at++)
		IS(next_end(side).error, 0);
	both_here(side);
	IS(fi_close(&counter->fid), 0);
}

static void test_b(struct side *side)
{
	struct fid_cntr *counter = open_counter(side);
	struct fid_mr *mr = give_counted_region(side, memory, sizeof memory, FI_REMOTE_WRITE, counter);
	IS(fi_cntr_wait(counter, WRITES, -1), 0);
	CHECK(holds(memory, sizeof memory, 3));
	IS(fi_cntr_readerr(counter), 0);
	both_here(side);
	IS(fi_close(&mr->fid), 0);
	IS(fi_close(&counter->fid), 0);
}
