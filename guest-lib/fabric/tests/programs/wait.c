/* A thread sleeps at a queue until there is a completion, or for the time that it says. */
#include "common.h"

enum { ROUNDS = 100 };

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
}

/* The same endpoint with a queue that can be waited for. */
static void open_waiting(struct side *side, struct side *waiting)
{
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	*waiting = *side;
	IS(fi_cq_open(side->domain, &cq, &waiting->cq, NULL), 0);
	IS(fi_av_open(side->domain, &av, &waiting->av, NULL), 0);
	IS(fi_endpoint(side->domain, side->info, &waiting->ep, NULL), 0);
	IS(fi_ep_bind(waiting->ep, &waiting->av->fid, 0), 0);
	IS(fi_ep_bind(waiting->ep, &waiting->cq->fid, FI_TRANSMIT | FI_RECV), 0);
	IS(fi_enable(waiting->ep), 0);
	waiting->peer = swap_names(side->link, waiting->ep, waiting->av);
}

static void wait_for(struct side *side, uint64_t flag)
{
	struct fi_cq_tagged_entry entry;
	ssize_t read;
	/* It may wake up without reason. */
	while ((read = fi_cq_sread(side->cq, &entry, 1, NULL, -1)) == -FI_EAGAIN)
		;
	IS(read, 1);
	CHECK(entry.flags & flag);
}

static void test_a(struct side *side)
{
	struct fi_cq_tagged_entry entry;
	struct side waiting;
	context_t sent, context;
	char word;
	open_waiting(side, &waiting);
	IS(fi_cq_sread(waiting.cq, &entry, 1, NULL, 20), -FI_EAGAIN);
	both_here(side);
	for (int round = 0; round < ROUNDS; round++) {
		send_tagged(&waiting, "a", 1, 1, &sent);
		wait_for(&waiting, FI_SEND);
		receive_tagged(&waiting, &word, 1, 1, 0, &context);
		wait_for(&waiting, FI_RECV);
		CHECK(word == 'b');
	}
	both_here(side);
	close_endpoint(&waiting);
}

static void test_b(struct side *side)
{
	struct side waiting;
	context_t sent, context;
	char word;
	open_waiting(side, &waiting);
	both_here(side);
	for (int round = 0; round < ROUNDS; round++) {
		receive_tagged(&waiting, &word, 1, 1, 0, &context);
		wait_for(&waiting, FI_RECV);
		CHECK(word == 'a');
		send_tagged(&waiting, "b", 1, 1, &sent);
		wait_for(&waiting, FI_SEND);
	}
	both_here(side);
	close_endpoint(&waiting);
}
