/* Counters count the ends of Sends and of receives, and a thread waits for a number. */
#include "common.h"

enum { MESSAGES = 50 };

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
}

/* An endpoint with a counter in the place of a queue, beside that of the side. */
static struct fid_cntr *open_counted(struct side *side, struct side *counted, uint64_t direction)
{
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	struct fid_cntr *counter;
	*counted = *side;
	IS(fi_cntr_open(side->domain, &attr, &counter, NULL), 0);
	IS(fi_cq_open(side->domain, &cq, &counted->cq, NULL), 0);
	IS(fi_av_open(side->domain, &av, &counted->av, NULL), 0);
	IS(fi_endpoint(side->domain, side->info, &counted->ep, NULL), 0);
	IS(fi_ep_bind(counted->ep, &counted->av->fid, 0), 0);
	IS(fi_ep_bind(counted->ep, &counted->cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION), 0);
	IS(fi_ep_bind(counted->ep, &counter->fid, direction), 0);
	IS(fi_enable(counted->ep), 0);
	counted->peer = swap_names(side->link, counted->ep, counted->av);
	return counter;
}

static void test_a(struct side *side)
{
	static context_t contexts[MESSAGES];
	struct side counted;
	struct fid_cntr *counter = open_counted(side, &counted, FI_SEND);
	both_here(side);
	for (int at = 0; at < MESSAGES; at++)
		send_tagged(&counted, "word", 4, 1, &contexts[at]);
	IS(fi_cntr_wait(counter, MESSAGES, -1), 0);
	IS(fi_cntr_read(counter), MESSAGES);
	IS(fi_cntr_readerr(counter), 0);
	both_here(side);
	close_endpoint(&counted);
	IS(fi_close(&counter->fid), 0);
}

static void test_b(struct side *side)
{
	static context_t contexts[MESSAGES];
	static char rooms[MESSAGES][4];
	struct side counted;
	struct fid_cntr *counter = open_counted(side, &counted, FI_RECV);
	for (int at = 0; at < MESSAGES; at++)
		receive_tagged(&counted, rooms[at], 4, 1, 0, &contexts[at]);
	IS(fi_cntr_read(counter), 0);
	both_here(side);
	IS(fi_cntr_wait(counter, MESSAGES, -1), 0);
	for (int at = 0; at < MESSAGES; at++)
		CHECK(memcmp(rooms[at], "word", 4) == 0);
	both_here(side);
	close_endpoint(&counted);
	IS(fi_close(&counter->fid), 0);
}
