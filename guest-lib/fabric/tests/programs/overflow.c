/* A queue of few entries that nothing reads loses no completion, and none is told twice. */
#include "common.h"

enum { MESSAGES = 500 };
static uint64_t rooms[MESSAGES];
static context_t contexts[MESSAGES];

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
	queue_size = 16;
}

static void test_a(struct side *side)
{
	unsigned sent = 0, ended = 0;
	uint64_t number;
	struct end end;
	while (ended < MESSAGES) {
		number = sent;
		/* It reads only if it has to. */
		if (sent < MESSAGES &&
		    fi_tsend(side->ep, &rooms[sent], 8, NULL, side->peer, number, &contexts[sent]) == 0)
			sent++;
		else if (poll_end(side, &end)) {
			IS(end.error, 0);
			ended++;
		}
	}
	CHECK(!poll_end(side, &end));
	both_here(side);
}

static void test_b(struct side *side)
{
	static bool seen[MESSAGES];
	unsigned posted = 0, ended = 0;
	struct end end;
	while (ended < MESSAGES) {
		if (posted < MESSAGES && fi_trecv(side->ep, &rooms[posted], 8, NULL, FI_ADDR_UNSPEC,
						  posted, 0, &contexts[posted]) == 0)
			posted++;
		else if (poll_end(side, &end)) {
			IS(end.error, 0);
			CHECK(end.entry.tag < MESSAGES && !seen[end.entry.tag]);
			seen[end.entry.tag] = true;
			ended++;
		}
	}
	CHECK(!poll_end(side, &end));
	both_here(side);
}
