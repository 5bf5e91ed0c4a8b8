/* With selective completion only what asks for it is told. */
#include "common.h"

static void wants(struct fi_info *hints)
{
	hints->caps = FI_MSG;
	queue_flags = FI_SELECTIVE_COMPLETION;
}

static void send_one(struct side *side, uint64_t flags, context_t *context)
{
	static char word[4] = "word";
	struct iovec piece = { word, 4 };
	struct fi_msg message = {
		.msg_iov = &piece,
		.iov_count = 1,
		.addr = side->peer,
		.context = context,
	};
	AGAIN(side, fi_sendmsg(side->ep, &message, flags));
}

static void test_a(struct side *side)
{
	context_t silent, told;
	struct end end;
	send_one(side, 0, &silent);
	send_one(side, FI_COMPLETION, &told);
	expect(side, &told);
	both_here(side);
	CHECK(!poll_end(side, &end));
}

static void test_b(struct side *side)
{
	context_t contexts[2];
	char rooms[2][4];
	struct end end;
	for (int at = 0; at < 2; at++) {
		struct iovec piece = { rooms[at], 4 };
		struct fi_msg message = {
			.msg_iov = &piece,
			.iov_count = 1,
			.addr = FI_ADDR_UNSPEC,
			.context = &contexts[at],
		};
		AGAIN(side, fi_recvmsg(side->ep, &message, at ? FI_COMPLETION : 0));
	}
	expect(side, &contexts[1]);
	CHECK(memcmp(rooms, "wordword", 8) == 0);
	both_here(side);
	CHECK(!poll_end(side, &end));
}
