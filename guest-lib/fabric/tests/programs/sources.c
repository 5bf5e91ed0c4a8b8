/* A completion names its sender, if that is in the address vector. */
#include "common.h"

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED | FI_SOURCE;
}

static void test_a(struct side *side)
{
	context_t context;
	send_tagged(side, "word", 4, 1, &context);
	expect(side, &context);
}

static void test_b(struct side *side)
{
	context_t context;
	char room[4];
	receive_tagged(side, room, 4, 1, 0, &context);
	CHECK(expect(side, &context).source == side->peer);
}
