/* The memory of an inject may change at once, up to the length that the provider names; no completion is told. */
#include "common.h"

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
	hints->tx_attr->inject_size = 64;
}

static void test_a(struct side *side)
{
	size_t most = side->info->tx_attr->inject_size, lengths[3] = { 0, 64, most };
	unsigned char *bytes = malloc(most);
	struct end end;
	CHECK(bytes && most >= 64);
	link_write(side->link, lengths, sizeof lengths);
	for (unsigned at = 0; at < 3; at++) {
		fill(bytes, lengths[at], at);
		AGAIN(side, fi_tinject(side->ep, bytes, lengths[at], side->peer, at));
		memset(bytes, 0xff, lengths[at]);
	}
	both_here(side);
	CHECK(!poll_end(side, &end));
	free(bytes);
}

static void test_b(struct side *side)
{
	size_t lengths[3];
	context_t context;
	link_read(side->link, lengths, sizeof lengths);
	for (unsigned at = 0; at < 3; at++) {
		unsigned char *room = malloc(lengths[at] + 1);
		CHECK(room);
		receive_tagged(side, room, lengths[at], at, 0, &context);
		CHECK(expect(side, &context).entry.len == lengths[at]);
		CHECK(holds(room, lengths[at], at));
		free(room);
	}
	both_here(side);
}
