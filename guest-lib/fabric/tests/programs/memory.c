/* Memory of the other process is written and read: any length, in pieces, copied, in the order of the calls. */
#include "common.h"
#include "remote.h"

enum { BYTES = 3 << 20, ROUNDS = 20 };

static const size_t LENGTHS[] = { 1, 7, 64, 4096, 4097, 65536, 65537, 1 << 20, BYTES - 100 };
#define COUNT (sizeof LENGTHS / sizeof *LENGTHS)

static unsigned char memory[BYTES], copy[BYTES];

static void wants(struct fi_info *hints)
{
	hints->caps = FI_MSG | FI_RMA;
	hints->tx_attr->msg_order = FI_ORDER_RAW | FI_ORDER_WAW;
}

static void test_a(struct side *side)
{
	struct region region = get_region(side);
	static context_t contexts[2 * ROUNDS];
	static unsigned char rounds[ROUNDS], seen[ROUNDS];
	context_t context;
	for (size_t at = 0; at < COUNT; at++) {
		uint64_t from = region.address + 50;
		fill(memory, LENGTHS[at], at);
		AGAIN(side, fi_write(side->ep, memory, LENGTHS[at], NULL, side->peer, from, region.key, &context));
		CHECK(expect(side, &context).entry.flags & FI_WRITE);
		memset(copy, 0, LENGTHS[at]);
		AGAIN(side, fi_read(side->ep, copy, LENGTHS[at], NULL, side->peer, from, region.key, &context));
		CHECK(expect(side, &context).entry.flags & FI_READ);
		CHECK(holds(copy, LENGTHS[at], at));
		both_here(side);
		both_here(side);
	}
	/* Two pieces here are one there. */
	struct iovec pieces[] = { { memory + 10, 3 }, { memory, 5 } };
	memcpy(memory + 10, "abc", 3);
	memcpy(memory, "defgh", 5);
	if (side->info->tx_attr->iov_limit >= 2) {
		AGAIN(side, fi_writev(side->ep, pieces, NULL, 2, side->peer, region.address, region.key, &context));
		expect(side, &context);
	} else {
		AGAIN(side, fi_write(side->ep, "abcdefgh", 8, NULL, side->peer, region.address, region.key, &context));
		expect(side, &context);
	}
	/* Its bytes may change at once, and its end is not told. */
	char word[] = "inject";
	AGAIN(side, fi_inject_write(side->ep, word, 6, side->peer, region.address + 8, region.key));
	memset(word, 0, 6);
	AGAIN(side, fi_read(side->ep, copy, 14, NULL, side->peer, region.address, region.key, &context));
	expect(side, &context);
	CHECK(memcmp(copy, "abcdefghinject", 14) == 0);
	/* None waits for the one before it. */
	for (int round = 0; round < ROUNDS; round++) {
		rounds[round] = round + 1;
		AGAIN(side, fi_write(side->ep, &rounds[round], 1, NULL, side->peer, region.address, region.key,
				     &contexts[2 * round]));
		AGAIN(side, fi_read(side->ep, &seen[round], 1, NULL, side->peer, region.address, region.key,
				    &contexts[2 * round + 1]));
	}
	for (int end = 0; end < 2 * ROUNDS; end++)
		IS(next_end(side).error, 0);
	CHECK(memcmp(rounds, seen, ROUNDS) == 0);
	both_here(side);
}

static void test_b(struct side *side)
{
	struct fid_mr *mr = give_region(side, memory, BYTES, FI_REMOTE_READ | FI_REMOTE_WRITE);
	for (size_t at = 0; at < COUNT; at++) {
		both_here(side);
		CHECK(holds(memory + 50, LENGTHS[at], at));
		both_here(side);
	}
	both_here(side);
	IS(fi_close(&mr->fid), 0);
}
