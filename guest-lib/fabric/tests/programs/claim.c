/* A message that a peek claims goes only to the receive that names the claim; one that is discarded to none. */
#include "common.h"

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAS;
}

static void test_a(struct side *side)
{
	const char *const words[] = { "first", "other", "third" };
	context_t context;
	for (int at = 0; at < 3; at++) {
		send_tagged(side, words[at], 5, 5, &context);
		expect(side, &context);
	}
}

static void receive(struct side *side, char *room, uint64_t flags, context_t *context)
{
	struct iovec piece = { room, 5 };
	struct fi_msg_tagged message = {
		.msg_iov = &piece,
		.iov_count = flags & FI_PEEK ? 0 : 1,
		.addr = FI_ADDR_UNSPEC,
		.tag = 5,
		.context = context,
	};
	AGAIN(side, fi_trecvmsg(side->ep, &message, flags));
}

static void find(struct side *side, uint64_t flags, context_t *context)
{
	struct end end;
	do {
		receive(side, NULL, FI_PEEK | flags, context);
		end = next_end(side);
		CHECK(end.entry.op_context == context);
	} while (end.error == FI_ENOMSG);
	IS(end.error, 0);
	IS(end.entry.len, 5);
}

static void test_b(struct side *side)
{
	context_t claim, context;
	char room[5];
	find(side, FI_CLAIM, &claim);
	find(side, FI_DISCARD, &context);
	receive(side, room, 0, &context);
	expect(side, &context);
	CHECK(memcmp(room, "third", 5) == 0);
	receive(side, room, FI_CLAIM, &claim);
	expect(side, &claim);
	CHECK(memcmp(room, "first", 5) == 0);
}
