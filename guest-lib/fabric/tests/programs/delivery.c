/*
 * When a Send with FI_DELIVERY_COMPLETE has ended, the memory of a receive that was posted for it has its bytes, whether
 * or not the receiver has read the completion.
 */
#include "common.h"

static const size_t lengths[] = { 1, 5000, 200000 };
static unsigned char bytes[200000];

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
	hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;
}

static void test_a(struct side *side)
{
	context_t context;
	for (unsigned at = 0; at < 3; at++) {
		fill(bytes, lengths[at], at);
		both_here(side);
		send_tagged(side, bytes, lengths[at], 1, &context);
		expect(side, &context);
		both_here(side);
	}
}

static void test_b(struct side *side)
{
	context_t context;
	for (unsigned at = 0; at < 3; at++) {
		memset(bytes, 0xee, sizeof bytes);
		receive_tagged(side, bytes, sizeof bytes, 1, 0, &context);
		both_here(side);
		/* Until the Send has ended. */
		both_here(side);
		CHECK(holds(bytes, lengths[at], at));
		CHECK(expect(side, &context).entry.len == lengths[at]);
	}
}
