/* A message of 80 MB, and a short one that is sent behind it and stays behind it. */
#include "common.h"

enum { LENGTH = 80000000 };

static void wants(struct fi_info *hints)
{
	hints->caps = FI_TAGGED;
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAS;
	hints->ep_attr->max_msg_size = LENGTH;
}

static void test_a(struct side *side)
{
	unsigned char *bytes = malloc(LENGTH);
	context_t contexts[2];
	CHECK(bytes && side->info->ep_attr->max_msg_size >= LENGTH);
	fill(bytes, LENGTH, 1);
	send_tagged(side, bytes, LENGTH, 1, &contexts[0]);
	send_tagged(side, "word", 4, 1, &contexts[1]);
	IS(next_end(side).error, 0);
	IS(next_end(side).error, 0);
	free(bytes);
}

static void test_b(struct side *side)
{
	unsigned char *room = malloc(LENGTH);
	context_t contexts[2];
	char word[4];
	CHECK(room);
	receive_tagged(side, room, LENGTH, 1, 0, &contexts[0]);
	receive_tagged(side, word, 4, 1, 0, &contexts[1]);
	for (int at = 0; at < 2; at++) {
		struct end end = next_end(side);
		IS(end.error, 0);
		IS(end.entry.len, end.entry.op_context == &contexts[0] ? LENGTH : 4);
	}
	CHECK(holds(room, LENGTH, 1));
	CHECK(memcmp(word, "word", 4) == 0);
	free(room);
}
