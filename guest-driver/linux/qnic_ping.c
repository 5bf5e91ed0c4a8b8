// SPDX-License-Identifier: GPL-2.0
/*
 * Example of a module that uses datagrams: it answers requests of other nodes, and requests pages
 * from another node, one after the other.
 *
 *   insmod qnic_ping.ko               answers
 *   insmod qnic_ping.ko peer=1        requests `count` pages from node 1, one at a time
 *   insmod qnic_ping.ko peer=1 size=2 the same with pages of 8 KiB: two of the kernel's each
 *
 * A request names the buffer that waits for the answer, so the page lands in its place. A request
 * without an answer is repeated after a second. The result is a line of the log. Two kernel pages of a page
 * of 8 KiB need not be neighbours.
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

static unsigned int size = 1;
module_param(size, uint, 0444);
MODULE_PARM_DESC(size, "kernel pages of a page: 1, or 2 for 8 KiB");

/* The port of this service on every node. */
#define PING_PORT	7
#define RETRY_NS	NSEC_PER_SEC

enum { ASK = 1, ANSWER = 2 };

/* A header. */
struct ping_header {
	__le32 kind;
	__le32 number;
	__le64 handle;	/* of the buffer that waits for the answer */
	__le32 size;	/* kernel pages that are asked for, or come */
	__le32 reserved;
};

static struct qnic_datagram_port *ping_port;

/* The present request, and the results. */
static DECLARE_WAIT_QUEUE_HEAD(ended);
static unsigned int asked, answered, wrong, lost;
static u64 waiting;
/* The first page of two that have come back without a message. */
static struct page *back;
static bool closing;
static u64 started_ns, ended_ns;

/* Words of a kernel page. */
#define WORDS		(PAGE_SIZE / sizeof(__le32))

/* The pages of a buffer; those that are not there are NULL. */
static void release(struct page *const pages[2])
{
	int i;

	for (i = 0; i < 2; i++) {
		if (pages[i])
			put_page(pages[i]);
	}
}

static bool allocate(struct page *pages[2], u32 pages_wanted, gfp_t flags)
{
	u32 i;

	for (i = 0; i < pages_wanted; i++) {
		pages[i] = alloc_page(flags);
		if (!pages[i]) {
			release(pages);
			return false;
		}
	}
	return true;
}

static void to_buffers(struct qnic_datagram_buffer buffers[2], struct page *const pages[2])
{
	int i;

	for (i = 0; i < 2; i++) {
		buffers[i] = (struct qnic_datagram_buffer){
			.page = pages[i],
			.bytes = pages[i] ? PAGE_SIZE : 0,
		};
	}
}

/* The bytes of a page. */
static void fill(struct page *const pages[2], u32 number)
{
	unsigned int i, word;

	for (i = 0; i < 2 && pages[i]; i++) {
		__le32 *words = page_address(pages[i]);

		for (word = 0; word < WORDS; word++)
			words[word] = cpu_to_le32(number * 2654435761u + i * WORDS + word);
	}
}

static bool is_filled(struct page *const pages[2], u32 number)
{
	unsigned int i, word;

	for (i = 0; i < size; i++) {
		const __le32 *words = pages[i] ? page_address(pages[i]) : NULL;

		for (word = 0; word < WORDS; word++) {
			if (!words || words[word] !=
			    cpu_to_le32(number * 2654435761u + (u32)(i * WORDS + word)))
				return false;
		}
	}
	return true;
}

static int send(struct qnic_datagram_port *port, struct qnic_datagram_address to, u32 kind,
		u32 number, u64 handle, u32 wanted, struct page *const pages[2], u64 target)
{
	struct qnic_datagram_buffer buffers[2];
	struct ping_header header = {
		.kind = cpu_to_le32(kind),
		.number = cpu_to_le32(number),
		.handle = cpu_to_le64(handle),
		.size = cpu_to_le32(wanted),
	};

	to_buffers(buffers, pages);
	return qnic_datagram_send(port, &to, 1, (const u8 *)&header, sizeof(header), buffers,
				  target, number);
}

/* Requests the next page, which is to land in these. */
static void ask(struct qnic_datagram_port *port, struct page *const pages[2])
{
	struct qnic_datagram_address to = { .node = peer, .port = PING_PORT };
	struct page *const none[2] = { NULL, NULL };
	struct qnic_datagram_buffer buffers[2];
	u64 handle;

	to_buffers(buffers, pages);
	if (qnic_datagram_expect(port, buffers, &handle)) {
		release(pages);
		return;
	}
	WRITE_ONCE(waiting, handle);
	qnic_datagram_deadline(port, ktime_get_ns() + RETRY_NS);
	send(port, to, ASK, ++asked, handle, size, none, 0);
}

static void answer(struct qnic_datagram_port *port, const struct qnic_datagram_message *message,
		   const struct ping_header *header)
{
	struct page *pages[2] = { NULL, NULL };
	u32 number = le32_to_cpu(header->number);
	u32 wanted = clamp(le32_to_cpu(header->size), 1u, 2u);

	if (!allocate(pages, wanted, GFP_ATOMIC | __GFP_NOWARN))
		return;
	fill(pages, number);
	if (send(port, message->from, ANSWER, number, 0, wanted, pages,
		 le64_to_cpu(header->handle)))
		release(pages);
}

static void take_answer(struct qnic_datagram_port *port,
			const struct qnic_datagram_message *message,
			const struct ping_header *header)
{
	struct page *const pages[2] = { message->pages[0], message->pages[1] };

	if (message->bytes != size * PAGE_SIZE || le32_to_cpu(header->number) != asked ||
	    !is_filled(pages, asked))
		wrong++;
	if (++answered < count && !READ_ONCE(closing)) {
		ask(port, pages);
		return;
	}
	release(pages);
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
	release(pages);
}

/* The request or its answer was lost: requests the page once more when all of its buffer is back. */
static void withdrawn(struct qnic_datagram_port *port, void *context, u64 handle,
		      struct page *page)
{
	struct page *const pages[2] = { page, back };

	if (READ_ONCE(closing)) {
		put_page(page);
		return;
	}
	if (size == 2 && !back) {
		back = page;
		return;
	}
	back = NULL;
	lost++;
	ask(port, pages);
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
	struct page *pages[2] = { NULL, NULL };

	if (size < 1 || size > 2)
		return -EINVAL;
	ping_port = qnic_datagram_bind(nic, PING_PORT, &limits, &ops, NULL);
	if (IS_ERR(ping_port))
		return PTR_ERR(ping_port);
	if (peer < 0)
		return 0;
	if (!allocate(pages, size, GFP_KERNEL)) {
		qnic_datagram_close(ping_port);
		return -ENOMEM;
	}
	started_ns = ktime_get_ns();
	ask(ping_port, pages);
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
	if (back)
		put_page(back);
}
module_exit(ping_exit);

MODULE_DESCRIPTION("Example of a module that uses the datagrams of qnic");
MODULE_AUTHOR("The qnic authors");
MODULE_LICENSE("GPL");
