/* A message that is longer than its receive is truncated, and that is told; the next one is not harmed. */
#include "common.h"

static unsigned char bytes[3000];

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAS;
}

static void test_a(struct side *side)
{
	const size_t lengths[] = { 10, 3000, 3 };
	context_t context;
	both_here(side);
	for (unsigned at = 0; at < 3; at++) {
		fill(bytes, lengths[at], at);
		send_tagged(side, bytes, lengths[at], at, &context);
		/* Whether the sender learns of it is not said. */
		CHECK(next_end(side).entry.op_context == &context);
	}
}

static void test_b(struct side *side)
{
	unsigned char room[3][4];
	context_t context[3];
	for (unsigned at = 0; at < 3; at++)
		receive_tagged(side, room[at], 4, at, 0, &context[at]);
	both_here(side);
	for (unsigned at = 0; at < 2; at++) {
		struct end end = next_end(side);
		IS(end.error, FI_ETRUNC);
		CHECK(end.entry.op_context == &context[at]);
	}
	CHECK(expect(side, &context[2]).entry.len == 3);
	CHECK(holds(room[2], 3, 2));
}
