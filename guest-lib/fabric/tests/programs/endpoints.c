/* A process has many endpoints, and messages go to the one that they name. */
#include "common.h"

enum { ENDPOINTS = 12 };

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
}

static void open_all(struct side *side, struct side *all)
{
	for (int at = 0; at < ENDPOINTS; at++) {
		all[at] = *side;
		/* Each has a source address of its own. */
		all[at].info = find_info();
		open_endpoint(&all[at]);
	}
}

static void close_all(struct side *side, struct side *all)
{
	both_here(side);
	for (int at = 0; at < ENDPOINTS; at++) {
		close_endpoint(&all[at]);
		fi_freeinfo(all[at].info);
	}
}

static void test_a(struct side *side)
{
	struct side all[ENDPOINTS];
	context_t context;
	open_all(side, all);
	for (int at = 0; at < ENDPOINTS; at++) {
		send_tagged(&all[at], &at, sizeof at, 1, &context);
		expect(&all[at], &context);
	}
	close_all(side, all);
}

static void test_b(struct side *side)
{
	struct side all[ENDPOINTS];
	context_t context;
	int number;
	open_all(side, all);
	for (int at = 0; at < ENDPOINTS; at++) {
		receive_tagged(&all[at], &number, sizeof number, 1, 0, &context);
		expect(&all[at], &context);
		IS(number, at);
	}
	close_all(side, all);
}
