/* Data come with a completion, also if they are 0, and FI_REMOTE_CQ_DATA says whether there are any. */
#include "common.h"

static void wants(struct fi_info *hints)
{
	hints->caps = FI_MSG | FI_TAGGED;
	hints->domain_attr->cq_data_size = 4;
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAS;
}

static void test_a(struct side *side)
{
	context_t context;
	both_here(side);
	AGAIN(side, fi_tsenddata(side->ep, "word", 4, NULL, 0x12345678, side->peer, 1, &context));
	expect(side, &context);
	AGAIN(side, fi_tsenddata(side->ep, "word", 4, NULL, 0, side->peer, 2, &context));
	expect(side, &context);
	send_tagged(side, "word", 4, 3, &context);
	expect(side, &context);
	AGAIN(side, fi_injectdata(side->ep, "word", 4, 0, side->peer));
}

static void test_b(struct side *side)
{
	context_t context[4];
	char room[4][4];
	struct end end;
	for (unsigned at = 0; at < 3; at++)
		receive_tagged(side, room[at], 4, at + 1, 0, &context[at]);
	AGAIN(side, fi_recv(side->ep, room[3], 4, NULL, FI_ADDR_UNSPEC, &context[3]));
	both_here(side);
	end = expect(side, &context[0]);
	CHECK(end.entry.flags & FI_REMOTE_CQ_DATA && end.entry.data == 0x12345678);
	end = expect(side, &context[1]);
	CHECK(end.entry.flags & FI_REMOTE_CQ_DATA && end.entry.data == 0);
	end = expect(side, &context[2]);
	CHECK(!(end.entry.flags & FI_REMOTE_CQ_DATA));
	end = expect(side, &context[3]);
	CHECK(end.entry.flags & FI_REMOTE_CQ_DATA && end.entry.data == 0);
}
