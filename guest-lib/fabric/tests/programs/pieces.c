/* A message is gathered from pieces of memory, and scattered into others. */
#include "common.h"

static unsigned char bytes[3000];

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
	hints->tx_attr->iov_limit = 3;
	hints->rx_attr->iov_limit = 3;
}

static void test_a(struct side *side)
{
	context_t context;
	struct iovec pieces[] = { { bytes, 1 }, { bytes + 1, 0 }, { bytes + 1, 2999 } };
	fill(bytes, sizeof bytes, 7);
	AGAIN(side, fi_tsendv(side->ep, pieces, NULL, 3, side->peer, 5, &context));
	expect(side, &context);
}

static void test_b(struct side *side)
{
	context_t context;
	struct iovec pieces[] = { { bytes, 2000 }, { bytes + 2000, 500 }, { bytes + 2500, 500 } };
	AGAIN(side, fi_trecvv(side->ep, pieces, NULL, 3, FI_ADDR_UNSPEC, 5, 0, &context));
	CHECK(expect(side, &context).entry.len == sizeof bytes);
	CHECK(holds(bytes, sizeof bytes, 7));
}
