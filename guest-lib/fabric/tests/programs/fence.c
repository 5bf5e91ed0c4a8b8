/* A message with FI_FENCE begins when the write before it has ended, and so does what is sent behind it. */
#include "common.h"
#include "remote.h"

#define LENGTH (300 * 1024)
#define ROUNDS 10

static unsigned char memory[LENGTH], sent[LENGTH];

static void wants(struct fi_info *hints)
{
	hints->caps = FI_RMA | FI_TAGGED | FI_FENCE;
}

static void test_a(struct side *side)
{
	struct region region = get_region(side);
	context_t contexts[3];
	int round;
	for (round = 0; round < ROUNDS; round++) {
		char text = (char)round;
		struct iovec piece = { &text, 1 };
		struct fi_msg_tagged message = { .msg_iov = &piece,
						 .iov_count = 1,
						 .addr = side->peer,
						 .tag = 1,
						 .context = &contexts[1] };
		int left;
		fill(sent, LENGTH, round);
		AGAIN(side, fi_write(side->ep, sent, LENGTH, NULL, side->peer, region.address, region.key,
				     &contexts[0]));
		AGAIN(side, fi_tsendmsg(side->ep, &message, FI_FENCE | FI_COMPLETION));
		send_tagged(side, &text, 1, 2, &contexts[2]);
		for (left = 3; left > 0; left--)
			IS(next_end(side).error, 0);
		both_here(side);
	}
}

static void test_b(struct side *side)
{
	struct fid_mr *mr = give_region(side, memory, LENGTH, FI_REMOTE_WRITE);
	context_t context;
	int round;
	for (round = 0; round < ROUNDS; round++) {
		/* The message behind the fence is looked at first in every other round. */
		uint64_t tag;
		for (tag = 1; tag <= 2; tag++) {
			char text = -1;
			receive_tagged(side, &text, 1, round % 2 ? 3 - tag : tag, 0, &context);
			expect(side, &context);
			CHECK(text == round && holds(memory, LENGTH, round));
		}
		both_here(side);
	}
	IS(fi_close(&mr->fid), 0);
}
