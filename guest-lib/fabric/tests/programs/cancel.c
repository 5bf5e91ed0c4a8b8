/* A receive that is cancelled ends so, and takes no message. */
#include "common.h"

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
}

static void test_a(struct side *side)
{
	context_t context;
	both_here(side);
	send_tagged(side, "word", 4, 1, &context);
	expect(side, &context);
}

static void test_b(struct side *side)
{
	char room[2][4] = { { 0 } };
	context_t context[2];
	struct end end;
	receive_tagged(side, room[0], 4, 1, 0, &context[0]);
	receive_tagged(side, room[1], 4, 1, 0, &context[1]);
	IS(fi_cancel(&side->ep->fid, &context[0]), 0);
	end = next_end(side);
	IS(end.error, FI_ECANCELED);
	CHECK(end.entry.op_context == &context[0]);
	both_here(side);
	expect(side, &context[1]);
	CHECK(memcmp(room[1], "word", 4) == 0 && room[0][0] == 0);
}
