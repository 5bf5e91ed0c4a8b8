// SPDX-License-Identifier: GPL-2.0
/*
 * What the kernel's connection manager (rdma_cm) needs of the second port: a queue pair of its own for messages of
 * management (GSI), and a completion queue without a ring. Neither is an object of the NIC. A message goes as a
 * datagram (qnic_datagram.h) to the same module of another node, with the addresses of the two ports in its header:
 *
 *   core ── post_send ──► datagram ── NIC ── frame ── NIC ──► received() ── a posted receive ──► core
 *
 * So a message may be lost, and the manager sends it again. The NIC says which node and port a datagram comes
 * from; all else in it is the other guest's. The core looks for the way back to the sender's address, in a worker
 * that all connections share, and waits a second if there is none. So a message from an address that is not known
 * to be at its node is dropped here, and so is a flood.
 */
#include <linux/gfp.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <rdma/ib_mad.h>

#include "qnic_datagram.h"
#include "qnic_ib.h"

/* The datagram port of this service on every node: management.rs of the crate qnic-driver has it, too. */
#define MAD_PORT	65
/* The queue pair of management messages has this number on every port. */
#define GSI_NUMBER	1
/* Pieces of memory of a message, and of a receive. */
#define MAD_SGES	2
/* Nodes whose messages are bounded each by itself: those with the same remainder have one bound. */
#define METERS		1024

/* A receive has the route in front of the message. */
static_assert(sizeof(union rdma_network_hdr) == QNIC_HEADER_BYTES);

/* A receive that was posted. */
struct receive {
	struct ib_cqe *entry;
	u8 *at;
};

struct qnic_ib_gsi {
	struct qnic_datagram_port *port;	/* NULL: no message leaves, as of the first port */
	struct qnic_ib_pair *pair;
	u64 due[METERS];		/* of received(), for each node */
	spinlock_t lock;		/* guards what follows */
	u32 room, first, posted;
	struct receive receives[] __counted_by(room);
};

struct qnic_ib_completions {
	spinlock_t lock;		/* guards what follows */
	bool armed;
	u32 room, first, count;
	struct ib_wc entries[] __counted_by(room);
};

/* ---- the completion queue of the kernel ---- */

int qnic_ib_create_kernel_cq(struct qnic_ib_queue *queue, u32 entries)
{
	struct qnic_ib_completions *all;

	if (!entries)
		return -EINVAL;
	if (entries > QNIC_VERBS_RING_BYTES / QNIC_VERBS_COMPLETION_BYTES)
		return -EOPNOTSUPP;
	all = kvzalloc(struct_size(all, entries, entries), GFP_KERNEL);
	if (!all)
		return -ENOMEM;
	spin_lock_init(&all->lock);
	all->room = entries;
	queue->completions = all;
	queue->ib.cqe = entries;
	return 0;
}

void qnic_ib_destroy_kernel_cq(struct qnic_ib_queue *queue)
{
	kvfree(queue->completions);
}

int qnic_ib_arm_kernel_cq(struct qnic_ib_queue *queue, enum ib_cq_notify_flags flags)
{
	struct qnic_ib_completions *all = queue->completions;
	unsigned long saved;
	int missed;

	spin_lock_irqsave(&all->lock, saved);
	all->armed = true;
	missed = flags & IB_CQ_REPORT_MISSED_EVENTS && all->count;
	spin_unlock_irqrestore(&all->lock, saved);
	return missed;
}

int qnic_ib_poll_cq(struct ib_cq *ib, int wanted, struct ib_wc *to)
{
	struct qnic_ib_completions *all = to_queue(ib)->completions;
	unsigned long saved;
	int taken;

	if (!all)
		return -EOPNOTSUPP;
	spin_lock_irqsave(&all->lock, saved);
	for (taken = 0; taken < wanted && all->count; taken++) {
		to[taken] = all->entries[all->first];
		all->first = (all->first + 1) % all->room;
		all->count--;
	}
	spin_unlock_irqrestore(&all->lock, saved);
	return taken;
}

/* Adds a completion; false: there is no room, which its owner has miscounted. Atomic. */
static bool complete_one(struct ib_cq *ib, const struct ib_wc *completion)
{
	struct qnic_ib_completions *all = to_queue(ib)->completions;
	bool fits, tells = false;
	unsigned long saved;

	spin_lock_irqsave(&all->lock, saved);
	fits = all->count < all->room;
	if (fits) {
		all->entries[(all->first + all->count++) % all->room] = *completion;
		tells = all->armed;
		all->armed = false;
	}
	spin_unlock_irqrestore(&all->lock, saved);
	if (tells)
		ib->comp_handler(ib, ib->cq_context);
	WARN_ON_ONCE(!fits);
	return fits;
}

/* No completion of the queue pair is in the queue, or under way to its owner, any more. It posts nothing. */
static void forget(struct ib_cq *ib, const struct ib_qp *qp)
{
	struct qnic_ib_completions *all = to_queue(ib)->completions;
	bool by_work = ib->poll_ctx == IB_POLL_WORKQUEUE ||
		       ib->poll_ctx == IB_POLL_UNBOUND_WORKQUEUE;
	unsigned long saved;
	u32 i, kept = 0;

	/* One that saw the queue pair work may post until it has ended. */
	if (by_work)
		flush_work(&ib->work);
	spin_lock_irqsave(&all->lock, saved);
	for (i = 0; i < all->count; i++) {
		const struct ib_wc *wc = &all->entries[(all->first + i) % all->room];

		if (wc->qp != qp)
			all->entries[(all->first + kept++) % all->room] = *wc;
	}
	all->count = kept;
	spin_unlock_irqrestore(&all->lock, saved);
	/* One may have taken some before. */
	if (by_work)
		flush_work(&ib->work);
}

/* ---- what comes ---- */

static bool take_receive(struct qnic_ib_gsi *gsi, struct receive *taken)
{
	unsigned long saved;
	bool found;

	spin_lock_irqsave(&gsi->lock, saved);
	found = gsi->posted;
	if (found) {
		*taken = gsi->receives[gsi->first];
		gsi->first = (gsi->first + 1) % gsi->room;
		gsi->posted--;
	}
	spin_unlock_irqrestore(&gsi->lock, saved);
	return found;
}

static bool receives(const struct qnic_ib_gsi *gsi)
{
	enum ib_qp_state state = READ_ONCE(gsi->pair->attr.qp_state);

	return state == IB_QPS_RTR || state == IB_QPS_RTS;
}

/* The version of IP of a message that the core may read; 0: it is dropped. */
static u32 check(struct qnic_ib_gsi *gsi, const struct qnic_datagram_message *message,
		 const u8 mad[IB_MGMT_MAD_SIZE], union rdma_network_hdr *route)
{
	u64 *due = &gsi->due[message->from.node % METERS];
	enum rdma_network_type type;
	union ib_gid from, to;
	u32 version;

	if (!qnic_rs_verbs_management_admit(due, ktime_get_ns()))
		return 0;
	version = qnic_rs_verbs_management_route(message->from.port, message->header,
						 message->header_bytes, mad, IB_MGMT_MAD_SIZE,
						 (u8 *)route);
	type = version == 4 ? RDMA_NETWORK_IPV4 : RDMA_NETWORK_IPV6;
	if (!version || ib_get_gids_from_rdma_hdr(route, type, &from, &to))
		return 0;
	if (qnic_ib_is_from(gsi->pair->ib.device, message->from.node, &from, &to))
		return version;
	qnic_rs_verbs_management_asked(due);
	return 0;
}

static void receive(struct qnic_ib_gsi *gsi, const struct qnic_datagram_message *message)
{
	struct ib_qp *qp = &gsi->pair->ib;
	union rdma_network_hdr route;
	u8 mad[IB_MGMT_MAD_SIZE];
	struct receive taken;
	u32 version;
	struct ib_wc wc = {
		.status = IB_WC_SUCCESS,
		.opcode = IB_WC_RECV,
		.byte_len = sizeof(route) + IB_MGMT_MAD_SIZE,
		.qp = qp,
		.src_qp = GSI_NUMBER,
		.wc_flags = IB_WC_GRH | IB_WC_WITH_NETWORK_HDR_TYPE,
		.port_num = QNIC_IB_ROCE_PORT,
	};

	if (!receives(gsi) || !message->pages[0] || message->bytes != sizeof(mad))
		return;
	/* What is looked at is what is delivered: the NIC can write to the page. */
	memcpy(mad, page_address(message->pages[0]), sizeof(mad));
	version = check(gsi, message, mad, &route);
	if (!version || !take_receive(gsi, &taken))
		return;
	wc.wr_cqe = taken.entry;
	wc.network_hdr_type = version == 4 ? RDMA_NETWORK_IPV4 : RDMA_NETWORK_IPV6;
	memcpy(taken.at, &route, sizeof(route));
	memcpy(taken.at + sizeof(route), mad, sizeof(mad));
	complete_one(qp->recv_cq, &wc);
}

static void received(struct qnic_datagram_port *port, void *context,
		     const struct qnic_datagram_message *message)
{
	int i;

	receive(context, message);
	for (i = 0; i < 2; i++) {
		if (message->pages[i])
			qnic_datagram_give(port, message->pages[i]);
	}
}

static void sent(struct qnic_datagram_port *port, void *context, u64 token, u32 failed,
		 struct page *pages[2])
{
	put_page(pages[0]);
}

/* No buffer is steered. */
static void withdrawn(struct qnic_datagram_port *port, void *context, u64 handle,
		      struct page *page)
{
	put_page(page);
}

static const struct qnic_datagram_ops datagram_ops = {
	.received = received,
	.sent = sent,
	.withdrawn = withdrawn,
};

/* ---- the queue pair ---- */

int qnic_ib_create_gsi(struct qnic_ib_pair *pair, struct ib_qp_init_attr *init)
{
	static const struct qnic_datagram_limits limits = {
		.receives = 32,
		.messages = 64,
	};
	struct ib_qp_cap *cap = &init->cap;
	struct qnic_ib_gsi *gsi;

	if (init->qp_type != IB_QPT_GSI || init->srq)
		return -EOPNOTSUPP;
	if (cap->max_send_sge > MAD_SGES || cap->max_recv_sge > 1 || !cap->max_recv_wr ||
	    cap->max_recv_wr > QNIC_VERBS_RING_BYTES / QNIC_VERBS_COMPLETION_BYTES)
		return -EINVAL;
	gsi = kvzalloc(struct_size(gsi, receives, cap->max_recv_wr), GFP_KERNEL);
	if (!gsi)
		return -ENOMEM;
	spin_lock_init(&gsi->lock);
	gsi->room = cap->max_recv_wr;
	gsi->pair = pair;
	pair->gsi = gsi;
	pair->ib.qp_num = GSI_NUMBER;
	if (init->port_num != QNIC_IB_ROCE_PORT)
		return 0;
	/* Nothing was posted, so what comes from here on is dropped. */
	gsi->port = qnic_datagram_bind(to_device(pair->ib.device)->nic->id, MAD_PORT, &limits,
				       &datagram_ops, gsi);
	if (IS_ERR(gsi->port)) {
		ibdev_warn(pair->ib.device,
			   "no connections by rdma_cm: error %ld of datagram port %u. Other programs are not affected. Unload and load qnic_ib when memory, windows of the NIC or the port are free.\n",
			   PTR_ERR(gsi->port), MAD_PORT);
		gsi->port = NULL;
	}
	return 0;
}

/* The core frees what was posted, and then the completion queues. */
void qnic_ib_destroy_gsi(struct qnic_ib_pair *pair)
{
	/* Nothing is posted from here on. */
	WRITE_ONCE(pair->attr.qp_state, IB_QPS_RESET);
	if (pair->gsi->port)
		qnic_datagram_close(pair->gsi->port);
	forget(pair->ib.send_cq, &pair->ib);
	forget(pair->ib.recv_cq, &pair->ib);
	kvfree(pair->gsi);
}

static void complete_flushed(struct qnic_ib_gsi *gsi)
{
	struct ib_wc wc = {
		.status = IB_WC_WR_FLUSH_ERR,
		.opcode = IB_WC_RECV,
		.qp = &gsi->pair->ib,
	};
	struct receive taken;

	while (take_receive(gsi, &taken)) {
		wc.wr_cqe = taken.entry;
		complete_one(gsi->pair->ib.recv_cq, &wc);
	}
}

void qnic_ib_gsi_changed(struct qnic_ib_pair *pair)
{
	struct qnic_ib_gsi *gsi = pair->gsi;
	unsigned long saved;

	if (pair->attr.qp_state == IB_QPS_ERR)
		complete_flushed(gsi);
	if (pair->attr.qp_state != IB_QPS_RESET)
		return;
	spin_lock_irqsave(&gsi->lock, saved);
	gsi->posted = 0;
	spin_unlock_irqrestore(&gsi->lock, saved);
}

int qnic_ib_post_recv(struct ib_qp *ib, const struct ib_recv_wr *requests,
		      const struct ib_recv_wr **bad)
{
	struct qnic_ib_gsi *gsi = to_pair(ib)->gsi;
	unsigned long saved;
	int ret = 0;

	if (!gsi) {
		*bad = requests;
		return -EOPNOTSUPP;
	}
	spin_lock_irqsave(&gsi->lock, saved);
	for (; requests && !ret; requests = requests->next) {
		const struct ib_sge *sge = requests->sg_list;

		*bad = requests;
		if (READ_ONCE(to_pair(ib)->attr.qp_state) == IB_QPS_RESET ||
		    requests->num_sge != 1 ||
		    sge->length < sizeof(struct ib_grh) + IB_MGMT_MAD_SIZE)
			ret = -EINVAL;
		else if (gsi->posted == gsi->room)
			ret = -ENOMEM;
		else
			gsi->receives[(gsi->first + gsi->posted++) % gsi->room] =
				(struct receive){ requests->wr_cqe, (u8 *)(uintptr_t)sge->addr };
	}
	spin_unlock_irqrestore(&gsi->lock, saved);
	if (READ_ONCE(to_pair(ib)->attr.qp_state) == IB_QPS_ERR)
		complete_flushed(gsi);
	return ret;
}

/* The message of a work request, in a page; NULL: no memory is left. */
static struct page *page_with(const struct ib_send_wr *request)
{
	struct page *page = alloc_page(GFP_ATOMIC | __GFP_NOWARN);
	u8 *to = page ? page_address(page) : NULL;
	int i;

	for (i = 0; page && i < request->num_sge; i++) {
		const struct ib_sge *sge = &request->sg_list[i];

		memcpy(to, (void *)(uintptr_t)sge->addr, sge->length);
		to += sge->length;
	}
	return page;
}

static bool is_message(const struct ib_send_wr *request)
{
	u32 bytes = 0;
	int i;

	if (request->opcode != IB_WR_SEND || request->num_sge > MAD_SGES)
		return false;
	for (i = 0; i < request->num_sge; i++) {
		if (request->sg_list[i].length > IB_MGMT_MAD_SIZE - bytes)
			return false;
		bytes += request->sg_list[i].length;
	}
	return bytes == IB_MGMT_MAD_SIZE;
}

/*
 * Completes a request, and then sends it: its memory and its address handle are the owner's again. What cannot be sent
 * is lost: the manager sends it again, and gives up at last.
 */
static int send(struct qnic_ib_gsi *gsi, const struct ib_send_wr *request)
{
	struct qnic_ib_ah *ah = to_ah(ud_wr(request)->ah);
	struct qnic_datagram_address to = { .node = ah->node, .port = MAD_PORT };
	struct qnic_datagram_buffer buffers[2] = {
		{ .page = page_with(request), .bytes = IB_MGMT_MAD_SIZE },
	};
	struct ib_qp *qp = &gsi->pair->ib;
	struct ib_wc wc = {
		.wr_cqe = request->wr_cqe,
		.status = IB_WC_SUCCESS,
		.opcode = IB_WC_SEND,
		.qp = qp,
	};
	u8 header[QNIC_HEADER_BYTES];
	int ret = 0;

	qnic_rs_verbs_management_header(ah->ib.sgid_attr->gid.raw, ah->to.raw, header);
	if (!complete_one(qp->send_cq, &wc))
		ret = -ENOMEM;
	if (buffers[0].page &&
	    (ret || qnic_datagram_send(gsi->port, &to, 1, header, sizeof(header), buffers, 0, 0)))
		put_page(buffers[0].page);
	return ret;
}

int qnic_ib_gsi_send(struct qnic_ib_pair *pair, const struct ib_send_wr *requests,
		     const struct ib_send_wr **bad)
{
	int ret = 0;

	for (; requests && !ret; requests = requests->next) {
		*bad = requests;
		if (READ_ONCE(pair->attr.qp_state) != IB_QPS_RTS || !pair->gsi->port ||
		    !is_message(requests) || !ud_wr(requests)->ah->sgid_attr)
			return -EINVAL;
		ret = send(pair->gsi, requests);
	}
	return ret;
}
