/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Unreliable datagrams for other modules of the kernel (GPL).
 *
 *   bind    a port of a NIC; several modules have ports at the same time
 *   send    a message, to one node or to several    ──► sent()
 *           a message has come                      ──► received()
 *   expect  the answer that names this buffer       ──► received(), or withdrawn()
 *   close   waits until nothing is called any more
 *
 * A message is a header of up to 40 bytes, and data: nothing, up to a page, or up to two pages. It
 * may be lost, come twice, or come before an earlier one; one that comes is whole.
 *
 * A buffer is some bytes of one page, and a reference on the page. It has one owner: a module that gets a
 * buffer gets the reference. Data lands at the start of a buffer, so a page lands in its
 * place without a copy.
 *
 * The functions of a module are called from bind on, even before bind has returned; therefore they get
 * the port. They are called in softirq context, one at a time for each NIC:
 * they neither sleep nor allocate with GFP_KERNEL. They may call all functions here except bind and
 * close. Sending allocates nothing, so it works when no memory is left.
 */
#ifndef QNIC_DATAGRAM_H
#define QNIC_DATAGRAM_H

#include <linux/mm_types.h>
#include <linux/types.h>

/* Most bytes of a header. */
#define QNIC_DATAGRAM_HEADER	40
/* Most destinations of a message. */
#define QNIC_DATAGRAM_DESTINATIONS	16

struct qnic_datagram_port;

/* A port of a node. Ports from 1 to 1023 are those of modules. */
struct qnic_datagram_address {
	u16 node;
	u16 port;
};

/* Bytes within one page; without a page it is no buffer. */
struct qnic_datagram_buffer {
	struct page *page;
	u32 offset;
	u32 bytes;
};

/* A received message. Its buffers belong to the module; bytes is their used length in all. */
struct qnic_datagram_message {
	struct qnic_datagram_address from;
	const u8 *header;
	u32 header_bytes;
	u32 bytes;
	struct page *pages[2];
	/* The handle of the steered buffer that it came in, or 0. */
	u64 steered;
};

struct qnic_datagram_ops {
	void (*received)(struct qnic_datagram_port *port, void *context,
			 const struct qnic_datagram_message *message);
	/*
	 * A message was sent, which does not mean that it was received; or it could not be sent to
	 * `failed` destinations. The pages belong to the module again.
	 */
	void (*sent)(struct qnic_datagram_port *port, void *context, u64 token, u32 failed,
		     struct page *pages[2]);
	/* A page of a steered buffer without a message; it belongs to the module again. */
	void (*withdrawn)(struct qnic_datagram_port *port, void *context, u64 handle,
			  struct page *page);
	/* The deadline that was set has passed. May be NULL. */
	void (*deadline)(struct qnic_datagram_port *port, void *context, u64 now_ns);
	/* The NIC is gone; nothing is sent or received any more. May be NULL. */
	void (*gone)(struct qnic_datagram_port *port, void *context);
};

/* What a port may hold; it is allocated at once. */
struct qnic_datagram_limits {
	u16 receives;	/* pages that are kept posted to receive in */
	u16 steered;	/* steered buffers at the same time */
	u16 messages;	/* messages that wait or are under way */
};

/*
 * Binds a port of /dev/qnicN. Sleeps until the NIC has its pages to receive in, for ten seconds at
 * most. ERR_PTR: -ENODEV, -EBUSY (another module has it), -EINVAL, -ENOSPC, -ENOMEM.
 */
struct qnic_datagram_port *qnic_datagram_bind(int nic, u16 number,
					      const struct qnic_datagram_limits *limits,
					      const struct qnic_datagram_ops *ops, void *context);

/* Closes a port. Sleeps until the NIC has given everything back, and nothing is called any more. */
void qnic_datagram_close(struct qnic_datagram_port *port);

/* Number of the node that the port is on. */
u16 qnic_datagram_node(struct qnic_datagram_port *port);

/*
 * Sends a message to `count` destinations. If there are two buffers, the first is a whole page. 0: the
 * buffers belong to the port until sent(). -EAGAIN: all message slots are in use; -ENODEV; -EINVAL: the
 * buffers still belong to the module.
 */
int qnic_datagram_send(struct qnic_datagram_port *port, const struct qnic_datagram_address *to,
		       u32 count, const u8 *header, u32 header_bytes,
		       const struct qnic_datagram_buffer buffers[2], u64 target, u64 token);

/*
 * Posts a steered buffer of one or two pages: the message with this target lands in it. 0: the
 * buffers belong to the port. -EAGAIN: all steered slots are in use, or the port is closed.
 */
int qnic_datagram_expect(struct qnic_datagram_port *port,
			 const struct qnic_datagram_buffer buffers[2], u64 *handle);

/* Takes a steered buffer back: withdrawn() returns the pages without a message. */
void qnic_datagram_withdraw(struct qnic_datagram_port *port, u64 handle);

/*
 * Gives a page to receive in: the one that a message came in, or another one in its place. Without this a
 * port has fewer pages after each message. Consumes the reference.
 */
void qnic_datagram_give(struct qnic_datagram_port *port, struct page *page);

/* Calls deadline() at that time of ktime_get_ns(), or never (0); to the tick. */
void qnic_datagram_deadline(struct qnic_datagram_port *port, u64 at_ns);

#endif
