/* Data of a write are told at its target, when the bytes are there. */
#include "common.h"
#include "remote.h"

enum { BYTES = 200000 };

static unsigned char memory[BYTES];

static void wants(struct fi_info *hints)
{
	hints->caps = FI_MSG | FI_RMA;
	hints->domain_attr->cq_data_size = 4;
}

static const size_t LENGTHS[] = { 1, 5000, BYTES };

static void test_a(struct side *side)
{
	struct region region = get_region(side);
	context_t context;
	for (unsigned at = 0; at < 3; at++) {
		fill(memory, LENGTHS[at], at);
		AGAIN(side, fi_writedata(side->ep, memory, LENGTHS[at], NULL, at, side->peer, region.address,
					 region.key, &context));
		expect(side, &context);
		both_here(side);
	}
}

static void test_b(struct side *side)
{
	struct fid_mr *mr = give_region(side, memory, BYTES, FI_REMOTE_WRITE);
	for (unsigned at = 0; at < 3; at++) {
		struct end end = next_end(side);
		IS(end.error, 0);
		IS(end.entry.data, at);
		CHECK(end.entry.flags & FI_REMOTE_CQ_DATA);
		CHECK(holds(memory, LENGTHS[at], at));
		both_here(side);
	}
	IS(fi_close(&mr->fid), 0);
}
