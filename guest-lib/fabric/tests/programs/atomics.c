/* Words of the other process are changed, fetched and compared, in the order of the calls. */
#include "common.h"
#include "remote.h"

enum { EACH = 200 };

static uint64_t words[] = { 1, 5, 1 };

static void wants(struct fi_info *hints)
{
	hints->caps = FI_MSG | FI_ATOMIC;
	hints->tx_attr->msg_order = FI_ORDER_RAW;
}

static uint64_t fetch(struct side *side, const struct region *region, uint64_t operand, enum fi_op op)
{
	uint64_t was = 99;
	context_t context;
	AGAIN(side, fi_fetch_atomic(side->ep, &operand, 1, NULL, &was, NULL, side->peer, region->address + 8,
				    region->key, FI_UINT64, op, &context));
	expect(side, &context);
	return was;
}

static uint64_t compare(struct side *side, const struct region *region, uint64_t operand, uint64_t compared,
			enum fi_op op)
{
	uint64_t was = 99;
	context_t context;
	AGAIN(side, fi_compare_atomic(side->ep, &operand, 1, NULL, &compared, NULL, &was, NULL, side->peer,
				      region->address + 8, region->key, FI_UINT64, op, &context));
	expect(side, &context);
	return was;
}

static bool has(struct side *side, enum fi_op op)
{
	size_t count;
	return fi_compare_atomicvalid(side->ep, FI_UINT64, op, &count) == 0 && count >= 1;
}

static void test_a(struct side *side)
{
	struct region region = get_region(side);
	uint64_t ten = 10, one = 1;
	context_t context;
	AGAIN(side, fi_atomic(side->ep, &ten, 1, NULL, side->peer, region.address + 8, region.key, FI_UINT64, FI_SUM,
			      &context));
	CHECK(expect(side, &context).entry.flags & FI_ATOMIC);
	IS(fetch(side, &region, 7, FI_SUM), 15);
	IS(fetch(side, &region, 0, FI_ATOMIC_READ), 22);
	IS(fetch(side, &region, 6, FI_ATOMIC_WRITE), 22);
	IS(fetch(side, &region, 9, FI_MAX), 6);
	IS(fetch(side, &region, 0xc, FI_BAND), 9);
	IS(fetch(side, &region, 9, FI_ATOMIC_WRITE), 8);
	IS(compare(side, &region, 1, 8, FI_CSWAP), 9);
	IS(compare(side, &region, 1, 9, FI_CSWAP), 9);
	IS(fetch(side, &region, 5, FI_ATOMIC_WRITE), 1);
	if (has(side, FI_CSWAP_LT)) {
		IS(compare(side, &region, 9, 5, FI_CSWAP_LT), 5);
		IS(compare(side, &region, 5, 4, FI_CSWAP_LT), 5);
		IS(compare(side, &region, 5, 6, FI_CSWAP_GE), 5);
	}
	if (has(side, FI_MSWAP)) {
		IS(fetch(side, &region, 1, FI_ATOMIC_WRITE), 5);
		IS(compare(side, &region, 0xff, 0x0e, FI_MSWAP), 1);
		IS(fetch(side, &region, 5, FI_ATOMIC_WRITE), 0x0f);
	}
	IS(fetch(side, &region, 0, FI_ATOMIC_READ), 5);
	for (int at = 0; at < EACH; at++)
		AGAIN(side, fi_inject_atomic(side->ep, &one, 1, side->peer, region.address, region.key, FI_UINT64,
					     FI_SUM));
	/* One that is told of says that those before it are done, as the order of atomic operations is kept. */
	IS(fetch(side, &region, 0, FI_ATOMIC_READ), 5);
	both_here(side);
	both_here(side);
}

static void test_b(struct side *side)
{
	struct fid_mr *mr = give_region(side, words, sizeof words, FI_REMOTE_READ | FI_REMOTE_WRITE);
	both_here(side);
	IS(words[0], 1 + EACH);
	IS(words[1], 5);
	IS(words[2], 1);
	both_here(side);
	IS(fi_close(&mr->fid), 0);
}
