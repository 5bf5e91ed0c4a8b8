// SPDX-License-Identifier: GPL-2.0
/*
 * Example of a module that uses datagrams: it answers requests of other nodes, and requests pages
 * from another node, one after the other.
 *
 *   insmod qnic_ping.ko               answers
 *   insmod qnic_ping.ko peer=1        requests `count` pages from node 1, one at a time
 *
 * A request names the buffer that waits for the answer, so the page lands in its place. A request
 * without an answer is repeated after a second. The result is a line of the log.
 */
#include <linux/gfp.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/string.h>
#include <linux/wait.h>

#include "qnic_datagram.h"

static int nic;
module_param(nic, int, 0444);
MODULE_PARM_DESC(nic, "number of the NIC: N of /dev/qnicN");

static int peer = -1;
module_param(peer, int, 0444);
MODULE_PARM_DESC(peer, "node to ask; none: answer only");

static unsigned int count = 1000;
module_param(count, uint, 0444);
MODULE_PARM_DESC(count, "how often it asks");

/* The port of this service on every node. */
#define PING_PORT	7
#define RETRY_NS	NSEC_PER_SEC

enum { ASK = 1, ANSWER = 2 };

/* A header. */
struct ping_header {
	__le32 kind;
	__le32 number;
	__le64 handle;	/* of the buffer that waits for the answer */
};

static struct qnic_datagram_port *ping_port;

/* The present request, and the results. */
static DECLARE_WAIT_QUEUE_HEAD(ended);
static unsigned int asked, answered, wrong, lost;
static u64 waiting;
static bool closing;
static u64 started_ns, ended_ns;

/* The bytes of a page. */
static void fill(struct page *page, u32 number)
{
	__le32 *words = page_address(page);
	unsigned int i;

	for (i = 0; i < PAGE_SIZE / sizeof(*words); i++)
		words[i] = cpu_to_le32(number * 2654435761u + i);
}

static bool is_filled(struct page *page, u32 number)
{
	const __le32 *words = page_address(page);
	unsigned int i;

	for (i = 0; i < PAGE_SIZE / sizeof(*words); i++) {
		if (words[i] != cpu_to_le32(number * 2654435761u + i))
			return false;
	}
	return true;
}

static int send(struct qnic_datagram_port *port, struct qnic_datagram_address to, u32 kind,
		u32 number, u64 handle, struct page *page, u64 target)
{
	struct qnic_datagram_buffer buffers[2] = { { .page = page, .bytes = page ? PAGE_SIZE : 0 } };
	struct ping_header header = {
		.kind = cpu_to_le32(kind),
		.number = cpu_to_le32(number),
		.handle = cpu_to_le64(handle),
	};

	return qnic_datagram_send(port, &to, 1, (const u8 *)&header, sizeof(header), buffers,
				  target, number);
}

/* Requests the next page, which is to land in this one. */
static void ask(struct qnic_datagram_port *port, struct page *page)
{
	struct qnic_datagram_address to = { .node = peer, .port = PING_PORT };
	struct qnic_datagram_buffer buffers[2] = { { .page = page, .bytes = PAGE_SIZE } };
	u64 handle;

	if (qnic_datagram_expect(port, buffers, &handle)) {
		put_page(page);
		return;
	}
	WRITE_ONCE(waiting, handle);
	qnic_datagram_deadline(port, ktime_get_ns() + RETRY_NS);
	send(port, to, ASK, ++asked, handle, NULL, 0);
}

static void answer(struct qnic_datagram_port *port, const struct qnic_datagram_message *message,
		   const struct ping_header *header)
{
	struct page *page = alloc_page(GFP_ATOMIC | __GFP_NOWARN);
	u32 number = le32_to_cpu(header->number);

	if (!page)
		return;
	fill(page, number);
	if (send(port, message->from, ANSWER, number, 0, page, le64_to_cpu(header->handle)))
		put_page(page);
}

static void take_answer(struct qnic_datagram_port *port,
			const struct qnic_datagram_message *message,
			const struct ping_header *header)
{
	struct page *page = message->pages[0];

	if (message->bytes != PAGE_SIZE || le32_to_cpu(header->number) != asked ||
	    !is_filled(page, asked))
		wrong++;
	if (++answered < count && !READ_ONCE(closing)) {
		ask(port, page);
		return;
	}
	put_page(page);
	qnic_datagram_deadline(port, 0);
	WRITE_ONCE(ended_ns, ktime_get_ns());
	wake_up(&ended);
}

static void received(struct qnic_datagram_port *port, void *context,
		     const struct qnic_datagram_message *message)
{
	struct ping_header header;
	int i;

	if (message->header_bytes == sizeof(header)) {
		memcpy(&header, message->header, sizeof(header));
		if (message->steered) {
			take_answer(port, message, &header);
			return;
		}
		if (header.kind == cpu_to_le32(ASK))
			answer(port, message, &header);
	}
	for (i = 0; i < 2; i++) {
		if (!message->pages[i])
			continue;
		if (message->steered)
			put_page(message->pages[i]);
		else
			qnic_datagram_give(port, message->pages[i]);
	}
}

static void sent(struct qnic_datagram_port *port, void *context, u64 token, u32 failed,
		 struct page *pages[2])
{
	if (pages[0])
		put_page(pages[0]);
}

/* The request or its answer was lost: requests the page once more. */
static void withdrawn(struct qnic_datagram_port *port, void *context, u64 handle,
		      struct page *page)
{
	if (READ_ONCE(closing)) {
		put_page(page);
		return;
	}
	lost++;
	ask(port, page);
}

static void deadline(struct qnic_datagram_port *port, void *context, u64 now_ns)
{
	qnic_datagram_withdraw(port, READ_ONCE(waiting));
}

static void gone(struct qnic_datagram_port *port, void *context)
{
	WRITE_ONCE(closing, true);
	wake_up(&ended);
}

static const struct qnic_datagram_ops ops = {
	.received = received,
	.sent = sent,
	.withdrawn = withdrawn,
	.deadline = deadline,
	.gone = gone,
};

static int __init ping_init(void)
{
	static const struct qnic_datagram_limits limits = {
		.receives = 32,
		.steered = 1,
		.messages = 32,
	};
	struct page *page;

	ping_port = qnic_datagram_bind(nic, PING_PORT, &limits, &ops, NULL);
	if (IS_ERR(ping_port))
		return PTR_ERR(ping_port);
	if (peer < 0)
		return 0;
	page = alloc_page(GFP_KERNEL);
	if (!page) {
		qnic_datagram_close(ping_port);
		return -ENOMEM;
	}
	started_ns = ktime_get_ns();
	ask(ping_port, page);
	wait_event_interruptible(ended, READ_ONCE(ended_ns) || READ_ONCE(closing));
	pr_info("qnic_ping: node %u asked node %d: %u of %u pages, %u wrong, %u lost, %llu us\n",
		qnic_datagram_node(ping_port), peer, answered, count, wrong, lost,
		ended_ns ? (ended_ns - started_ns) / NSEC_PER_USEC : 0);
	return 0;
}
module_init(ping_init);

static void __exit ping_exit(void)
{
	WRITE_ONCE(closing, true);
	qnic_datagram_close(ping_port);
}
module_exit(ping_exit);

MODULE_DESCRIPTION("Example of a module that uses the datagrams of qnic");
MODULE_AUTHOR("The qnic authors");
MODULE_LICENSE("GPL");
