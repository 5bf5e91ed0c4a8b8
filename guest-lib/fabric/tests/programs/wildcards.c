/* A receive takes what its tag, its ignored bits and its sender say; of several, the first that was posted. */
#include "common.h"

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED | FI_DIRECTED_RECV;
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAS;
}

static void test_a(struct side *side)
{
	const uint64_t tags[] = { 0x1f, 0x20, 7, 0x10 };
	context_t context;
	both_here(side);
	for (int at = 0; at < 4; at++) {
		send_tagged(side, &tags[at], sizeof tags[at], tags[at], &context);
		expect(side, &context);
	}
}

static void test_b(struct side *side)
{
	/* 0x10 to 0x1f, exactly 7 of the peer, any of the peer, any */
	uint64_t room[4] = { 0 };
	context_t context[4];
	bool seen[4] = { false };
	receive_tagged(side, &room[0], 8, 0x10, 0xf, &context[0]);
	AGAIN(side, fi_trecv(side->ep, &room[1], 8, NULL, side->peer, 7, 0, &context[1]));
	AGAIN(side, fi_trecv(side->ep, &room[2], 8, NULL, side->peer, 0, ~0ULL, &context[2]));
	receive_tagged(side, &room[3], 8, 0, ~0ULL, &context[3]);
	both_here(side);
	for (int at = 0; at < 4; at++) {
		struct end end = next_end(side);
		size_t which = (size_t)((context_t *)end.entry.op_context - context);
		IS(end.error, 0);
		CHECK(which < 4 && !seen[which]);
		seen[which] = true;
		CHECK(end.entry.tag == room[which]);
	}
	CHECK(room[0] == 0x1f && room[1] == 7 && room[2] == 0x20 && room[3] == 0x10);
}
