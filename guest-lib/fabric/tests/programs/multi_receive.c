/*
 * Many messages go into one buffer, none of them truncated, until less is left than the option says; then the buffer
 * is released, and the next one takes what follows.
 */
#include "common.h"

enum { BUFFER = 40000, LEAST = 10000, MESSAGES = 100 };
static unsigned char bytes[LEAST], buffers[2][BUFFER];

/* A message begins with its number. */
static size_t length_of(unsigned number)
{
	return sizeof number + number * 2654435761u % (LEAST + 1 - sizeof number);
}

static void make(unsigned number)
{
	fill(bytes, length_of(number), number);
	memcpy(bytes, &number, sizeof number);
}

static void wants(struct fi_info *hints)
{
	hints->caps = FI_MSG | FI_MULTI_RECV;
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAS;
	kept_bytes = LEAST;
}

static void test_a(struct side *side)
{
	context_t context;
	both_here(side);
	for (unsigned number = 0; number < MESSAGES; number++) {
		make(number);
		AGAIN(side, fi_send(side->ep, bytes, length_of(number), NULL, side->peer, &context));
		expect(side, &context);
	}
}

static void post(struct side *side, unsigned which, context_t *context)
{
	struct iovec piece = { buffers[which], BUFFER };
	struct fi_msg message = {
		.msg_iov = &piece,
		.iov_count = 1,
		.addr = FI_ADDR_UNSPEC,
		.context = context,
	};
	memset(buffers[which], 0, BUFFER);
	AGAIN(side, fi_recvmsg(side->ep, &message, FI_MULTI_RECV));
}

static void test_b(struct side *side)
{
	context_t contexts[2];
	size_t taken[2] = { 0 };
	post(side, 0, &contexts[0]);
	post(side, 1, &contexts[1]);
	both_here(side);
	/* They stand in the buffers in their order, and may end in another. */
	for (unsigned received = 0; received < MESSAGES;) {
		struct end end = next_end(side);
		unsigned which = end.entry.op_context == &contexts[1];
		IS(end.error, 0);
		CHECK(end.entry.op_context == &contexts[which]);
		if (end.entry.flags & FI_RECV) {
			unsigned number;
			CHECK(end.entry.len >= sizeof number);
			memcpy(&number, end.entry.buf, sizeof number);
			CHECK(number < MESSAGES && end.entry.len == length_of(number));
			make(number);
			CHECK(memcmp(end.entry.buf, bytes, end.entry.len) == 0);
			taken[which] += end.entry.len;
			CHECK(taken[which] <= BUFFER);
			received++;
		}
		if (end.entry.flags & FI_MULTI_RECV) {
			CHECK(BUFFER - taken[which] < LEAST);
			taken[which] = 0;
			post(side, which, &contexts[which]);
		}
	}
}
