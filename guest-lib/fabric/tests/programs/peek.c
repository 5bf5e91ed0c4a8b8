/* A peek tells of a message and leaves it; without one, the error queue says so. */
#include "common.h"

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
}

static void test_a(struct side *side)
{
	context_t context;
	both_here(side);
	send_tagged(side, "letter", 6, 5, &context);
	expect(side, &context);
}

static struct end peek(struct side *side, uint64_t tag, context_t *context)
{
	struct fi_msg_tagged message = { .addr = FI_ADDR_UNSPEC, .tag = tag, .context = context };
	struct end end;
	AGAIN(side, fi_trecvmsg(side->ep, &message, FI_PEEK));
	end = next_end(side);
	CHECK(end.entry.op_context == context);
	return end;
}

static void test_b(struct side *side)
{
	context_t context;
	struct end end = peek(side, 5, &context);
	char room[6];
	IS(end.error, FI_ENOMSG);
	both_here(side);
	while ((end = peek(side, 5, &context)).error)
		IS(end.error, FI_ENOMSG);
	CHECK(end.entry.len == 6 && end.entry.tag == 5);
	IS(peek(side, 6, &context).error, FI_ENOMSG);
	receive_tagged(side, room, 6, 5, 0, &context);
	CHECK(expect(side, &context).entry.len == 6);
	CHECK(memcmp(room, "letter", 6) == 0);
	IS(peek(side, 5, &context).error, FI_ENOMSG);
}
