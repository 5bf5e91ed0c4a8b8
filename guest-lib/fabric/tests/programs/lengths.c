/* Messages of all lengths, of both spaces, in both directions, arrive as they were sent. */
#include "common.h"

static const size_t lengths[] = { 0, 1, 95, 97, 4095, 4096, 4097, 65536, 1000000, 5000000 };
enum { LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 5000000 };
static unsigned char bytes[LONGEST];

static void wants(struct fi_info *hints)
{
	hints->caps = FI_MSG | FI_TAGGED;
}

static void send_all(struct side *side)
{
	context_t context;
	for (unsigned at = 0; at < LENGTHS; at++) {
		fill(bytes, lengths[at], at);
		send_tagged(side, bytes, lengths[at], 1ULL << 63 | at, &context);
		expect(side, &context);
		fill(bytes, lengths[at], at + 100);
		AGAIN(side, fi_send(side->ep, bytes, lengths[at], NULL, side->peer, &context));
		expect(side, &context);
	}
}

static void receive_all(struct side *side)
{
	context_t context;
	struct end end;
	for (unsigned at = 0; at < LENGTHS; at++) {
		memset(bytes, 0xee, lengths[at]);
		receive_tagged(side, bytes, LONGEST, 1ULL << 63 | at, 0, &context);
		end = expect(side, &context);
		CHECK(end.entry.tag == (1ULL << 63 | at));
		CHECK(end.entry.len == lengths[at]);
		CHECK((end.entry.flags & (FI_RECV | FI_TAGGED)) == (FI_RECV | FI_TAGGED));
		CHECK(holds(bytes, lengths[at], at));
		AGAIN(side, fi_recv(side->ep, bytes, LONGEST, NULL, FI_ADDR_UNSPEC, &context));
		end = expect(side, &context);
		CHECK(end.entry.len == lengths[at]);
		CHECK(holds(bytes, lengths[at], at + 100));
	}
}

static void test_a(struct side *side)
{
	send_all(side);
	receive_all(side);
}

static void test_b(struct side *side)
{
	receive_all(side);
	send_all(side);
}
