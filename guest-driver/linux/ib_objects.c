// SPDX-License-Identifier: GPL-2.0
/*
 * The objects of the device of libibverbs.
 */
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/stddef.h>
#include <uapi/rdma/rdma_user_rxe.h>

#include "qnic_ib.h"

static_assert(offsetof(struct rxe_queue_buf, producer_index) == QNIC_VERBS_PRODUCER);
static_assert(offsetof(struct rxe_queue_buf, consumer_index) == QNIC_VERBS_CONSUMER);
static_assert(offsetof(struct rxe_queue_buf, data) == QNIC_VERBS_HEADER_BYTES);
static_assert(offsetof(struct rxe_send_wqe, dma.sge) == QNIC_VERBS_SEND_ENTRY_BYTES);
static_assert(offsetof(struct rxe_recv_wqe, dma.sge) == QNIC_VERBS_RECEIVE_ENTRY_BYTES);
static_assert(sizeof(struct ib_uverbs_wc) <= QNIC_VERBS_COMPLETION_BYTES);

/* ---- rings ---- */

int qnic_ib_ring_new(struct qnic_ib_context *context, void *raw, struct qnic_ib_ring **made,
		     struct mminfo *info)
{
	struct qnic_ib_ring *ring = kzalloc(sizeof(*ring), GFP_KERNEL_ACCOUNT);
	u64 bytes = qnic_rs_verbs_ring_bytes(raw);
	int ret = -ENOMEM;

	if (!ring)
		goto err_put;
	ring->ring = raw;
	ret = rdma_user_mmap_entry_insert(&context->ib, &ring->entry, bytes);
	if (ret)
		goto err_free;
	info->offset = rdma_user_mmap_get_offset(&ring->entry);
	info->size = bytes;
	*made = ring;
	return 0;
err_free:
	kfree(ring);
err_put:
	qnic_rs_verbs_ring_put(raw);
	return ret;
}

void qnic_ib_ring_remove(struct qnic_ib_ring *ring)
{
	if (ring)
		rdma_user_mmap_entry_remove(&ring->entry);
}

void qnic_ib_mmap_free(struct rdma_user_mmap_entry *entry)
{
	struct qnic_ib_ring *ring = container_of(entry, struct qnic_ib_ring, entry);

	qnic_rs_verbs_ring_put(ring->ring);
	kfree(ring);
}

/* The pages have references of their own from here on. A child does not inherit them. */
int qnic_ib_mmap(struct ib_ucontext *ib, struct vm_area_struct *vma)
{
	struct rdma_user_mmap_entry *entry = rdma_user_mmap_entry_get(ib, vma);
	struct qnic_ib_ring *ring;
	unsigned long address = vma->vm_start;
	int ret = 0;
	u64 page;

	if (!entry)
		return -EINVAL;
	ring = container_of(entry, struct qnic_ib_ring, entry);
	vm_flags_mod(vma, VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY, VM_MAYEXEC);
	for (; !ret && address < vma->vm_end; address += PAGE_SIZE) {
		page = qnic_rs_verbs_ring_page(ring->ring, (address - vma->vm_start) >> PAGE_SHIFT);
		ret = page ? vm_insert_page(vma, address, pfn_to_page(PHYS_PFN(page))) : -EINVAL;
	}
	rdma_user_mmap_entry_put(entry);
	return ret;
}

/* ---- completion queues ---- */

int qnic_ib_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
		      struct uverbs_attr_bundle *attrs)
{
	struct ib_udata *udata = attrs ? &attrs->driver_udata : NULL;
	struct qnic_ib_context *context = context_of(udata);
	struct qnic_ib_queue *queue = to_queue(ib);
	struct rxe_create_cq_resp response = {};
	u32 entries = attr->cqe;
	int ret;

	if (attr->flags)
		return -EOPNOTSUPP;
	if (!udata)
		return qnic_ib_create_kernel_cq(queue, entries);
	if (!context || udata->outlen < sizeof(response))
		return -EINVAL;
	ret = qnic_rs_verbs_create_cq(context->context, owner_of(queue), &entries, &queue->queue);
	if (ret)
		return ret;
	queue->context = context;
	ret = qnic_ib_ring_new(context, qnic_rs_verbs_cq_ring(queue->queue), &queue->ring,
			       &response.mi);
	if (ret)
		goto err_destroy;
	ret = ib_copy_to_udata(udata, &response, sizeof(response));
	if (ret)
		goto err_ring;
	ib->cqe = entries;
	return 0;
err_ring:
	qnic_ib_ring_remove(queue->ring);
err_destroy:
	qnic_rs_verbs_destroy_cq(context->context, queue->queue);
	return ret;
}

int qnic_ib_destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	struct qnic_ib_queue *queue = to_queue(ib);

	if (queue->completions) {
		qnic_ib_destroy_kernel_cq(queue);
		return 0;
	}
	qnic_rs_verbs_destroy_cq(queue->context->context, queue->queue);
	qnic_ib_ring_remove(queue->ring);
	return 0;
}

int qnic_ib_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags)
{
	struct qnic_ib_queue *queue = to_queue(ib);
	bool solicited = (flags & IB_CQ_SOLICITED_MASK) == IB_CQ_SOLICITED;

	if (queue->completions)
		return qnic_ib_arm_kernel_cq(queue, flags);
	return qnic_rs_verbs_arm(queue->context->context, queue->queue, solicited);
}

/* ---- queue pairs ---- */

/* Makes the rings of a queue pair known to its process; what is made is the caller's also on an error. */
static int pair_rings(struct qnic_ib_pair *pair, struct ib_udata *udata)
{
	struct rxe_create_qp_resp response = {};
	void *raw = qnic_rs_verbs_qp_ring(pair->pair, true);
	int ret = qnic_ib_ring_new(pair->context, raw, &pair->sends, &response.sq_mi);

	if (ret)
		return ret;
	raw = qnic_rs_verbs_qp_ring(pair->pair, false);
	if (raw)
		ret = qnic_ib_ring_new(pair->context, raw, &pair->receives, &response.rq_mi);
	if (ret)
		return ret;
	return ib_copy_to_udata(udata, &response, sizeof(response));
}

static void pair_free(struct qnic_ib_pair *pair)
{
	if (pair->gsi) {
		qnic_ib_destroy_gsi(pair);
		return;
	}
	qnic_rs_verbs_destroy_qp(pair->context->context, pair->pair);
	qnic_ib_ring_remove(pair->sends);
	qnic_ib_ring_remove(pair->receives);
}

/* A queue pair of a program. */
static int create_pair(struct qnic_ib_pair *pair, struct ib_qp_init_attr *init,
		       struct ib_udata *udata)
{
	struct qnic_ib_context *context = context_of(udata);
	struct ib_qp_cap *cap = &init->cap;
	u32 options[QNIC_QP_OPTIONS] = {
		[QNIC_QP_TRANSPORT] = init->qp_type,
		[QNIC_QP_SIGNAL_ALL] = init->sq_sig_type == IB_SIGNAL_ALL_WR,
		[QNIC_QP_SENDS] = cap->max_send_wr,
		[QNIC_QP_SEND_SGES] = cap->max_send_sge,
		[QNIC_QP_INLINE] = cap->max_inline_data,
		[QNIC_QP_RECEIVES] = cap->max_recv_wr,
		[QNIC_QP_RECEIVE_SGES] = cap->max_recv_sge,
	};
	int ret;

	if (init->qp_type < IB_QPT_RC || init->qp_type > IB_QPT_UD || init->create_flags)
		return -EOPNOTSUPP;
	if (!context || !pair->ib.pd || !init->send_cq || !init->recv_cq ||
	    udata->outlen < sizeof(struct rxe_create_qp_resp))
		return -EINVAL;
	options[QNIC_QP_DOMAIN] = to_domain(pair->ib.pd)->number;
	ret = qnic_rs_verbs_create_qp(context->context, owner_of(pair),
				      to_queue(init->send_cq)->queue,
				      to_queue(init->recv_cq)->queue,
				      init->srq ? to_srq(init->srq)->srq : NULL, options,
				      &pair->pair);
	if (ret)
		return ret;
	pair->context = context;
	ret = pair_rings(pair, udata);
	if (ret) {
		pair_free(pair);
		return ret;
	}
	cap->max_send_wr = options[QNIC_QP_SENDS];
	cap->max_send_sge = options[QNIC_QP_SEND_SGES];
	cap->max_inline_data = options[QNIC_QP_INLINE];
	cap->max_recv_wr = options[QNIC_QP_RECEIVES];
	cap->max_recv_sge = options[QNIC_QP_RECEIVE_SGES];
	pair->ib.qp_num = qnic_rs_verbs_qp_number(pair->pair);
	return 0;
}

int qnic_ib_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *init, struct ib_udata *udata)
{
	struct qnic_ib_pair *pair = to_pair(ib);
	int ret = udata ? create_pair(pair, init, udata) : qnic_ib_create_gsi(pair, init);

	if (ret)
		return ret;
	mutex_init(&pair->lock);
	pair->attr.qp_state = IB_QPS_RESET;
	pair->attr.cap = init->cap;
	pair->init = *init;
	return 0;
}

int qnic_ib_destroy_qp(struct ib_qp *ib, struct ib_udata *udata)
{
	pair_free(to_pair(ib));
	return 0;
}

/* Adds what a call sets to what earlier ones have set. */
static void merge(struct ib_qp_attr *to, const struct ib_qp_attr *from, int mask)
{
	if (mask & IB_QP_ACCESS_FLAGS)
		to->qp_access_flags = from->qp_access_flags;
	if (mask & IB_QP_PKEY_INDEX)
		to->pkey_index = from->pkey_index;
	if (mask & IB_QP_PORT)
		to->port_num = from->port_num;
	if (mask & IB_QP_QKEY)
		to->qkey = from->qkey;
	if (mask & IB_QP_AV) {
		to->ah_attr = from->ah_attr;
		/* A reference of the caller. */
		to->ah_attr.grh.sgid_attr = NULL;
	}
	if (mask & IB_QP_PATH_MTU)
		to->path_mtu = from->path_mtu;
	if (mask & IB_QP_TIMEOUT)
		to->timeout = from->timeout;
	if (mask & IB_QP_RETRY_CNT)
		to->retry_cnt = from->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		to->rnr_retry = from->rnr_retry;
	if (mask & IB_QP_RQ_PSN)
		to->rq_psn = from->rq_psn;
	if (mask & IB_QP_SQ_PSN)
		to->sq_psn = from->sq_psn;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		to->max_rd_atomic = from->max_rd_atomic;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		to->max_dest_rd_atomic = from->max_dest_rd_atomic;
	if (mask & IB_QP_MIN_RNR_TIMER)
		to->min_rnr_timer = from->min_rnr_timer;
	if (mask & IB_QP_DEST_QPN)
		to->dest_qp_num = from->dest_qp_num;
	if (mask & IB_QP_EN_SQD_ASYNC_NOTIFY)
		to->en_sqd_async_notify = from->en_sqd_async_notify;
	if (mask & IB_QP_STATE)
		to->qp_state = from->qp_state;
}

/* What the NIC is told; what is out of range fails there. */
static int tell_nic(struct qnic_ib_pair *pair, const struct ib_qp_attr *attr)
{
	bool connected = attr->qp_state >= IB_QPS_RTR && attr->qp_state != IB_QPS_ERR;
	bool datagrams = pair->ib.qp_type == IB_QPT_UD;
	u32 attributes[QNIC_QP_ATTRIBUTES] = {
		[QNIC_QP_STATE] = attr->qp_state,
		[QNIC_QP_ACCESS] = attr->qp_access_flags &
			(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
			 IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC),
		[QNIC_QP_TIMEOUT] = attr->timeout,
		[QNIC_QP_RETRIES] = attr->retry_cnt,
		[QNIC_QP_LID] = connected ? qnic_ib_lid_of(&attr->ah_attr) : 0,
		[QNIC_QP_SERVICE_LEVEL] = rdma_ah_get_sl(&attr->ah_attr),
		[QNIC_QP_PEER] = attr->dest_qp_num,
		[QNIC_QP_SEND_PSN] = attr->sq_psn & 0xffffff,
		[QNIC_QP_RECEIVE_PSN] = attr->rq_psn & 0xffffff,
		[QNIC_QP_QKEY] = attr->qkey,
		[QNIC_QP_MTU] = datagrams ? IB_MTU_4096 : attr->path_mtu,
		[QNIC_QP_RNR_TIMER] = attr->min_rnr_timer,
		[QNIC_QP_RNR_RETRIES] = attr->rnr_retry,
		[QNIC_QP_READS] = attr->max_rd_atomic,
		[QNIC_QP_PEER_READS] = attr->max_dest_rd_atomic,
		[QNIC_QP_DRAIN_EVENT] = attr->en_sqd_async_notify,
	};

	return qnic_rs_verbs_modify_qp(pair->context->context, pair->pair, attributes);
}

/* A queue pair that works may have failed by itself. Its lock is held. */
static void refresh(struct qnic_ib_pair *pair)
{
	u32 now[QNIC_QP_NOW];

	if (pair->gsi || pair->attr.qp_state < IB_QPS_RTR ||
	    qnic_rs_verbs_query_qp(pair->context->context, pair->pair, now))
		return;
	pair->attr.qp_state = now[QNIC_QP_NOW_STATE];
	pair->attr.sq_draining = now[QNIC_QP_NOW_DRAINING];
	pair->attr.sq_psn = now[QNIC_QP_NOW_SEND_PSN];
	pair->attr.rq_psn = now[QNIC_QP_NOW_RECEIVE_PSN];
}

static int modify_locked(struct qnic_ib_pair *pair, const struct ib_qp_attr *attr, int mask)
{
	enum ib_qp_state now, next;
	struct ib_qp_attr merged;
	int ret;

	refresh(pair);
	now = mask & IB_QP_CUR_STATE ? attr->cur_qp_state : pair->attr.qp_state;
	next = mask & IB_QP_STATE ? attr->qp_state : now;
	if (!ib_modify_qp_is_ok(now, next, pair->ib.qp_type, mask))
		return -EINVAL;
	merged = pair->attr;
	if (next == IB_QPS_RESET)
		merged = (struct ib_qp_attr){ .cap = pair->attr.cap };
	merge(&merged, attr, mask);
	ret = pair->gsi ? 0 : tell_nic(pair, &merged);
	if (ret)
		return ret;
	pair->attr = merged;
	if (pair->gsi)
		qnic_ib_gsi_changed(pair);
	return 0;
}

int qnic_ib_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct qnic_ib_pair *pair = to_pair(ib);
	int ret;

	if (mask & ~IB_QP_ATTR_STANDARD_BITS)
		return -EOPNOTSUPP;
	mutex_lock(&pair->lock);
	ret = modify_locked(pair, attr, mask);
	mutex_unlock(&pair->lock);
	return ret;
}

int qnic_ib_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
		     struct ib_qp_init_attr *init)
{
	struct qnic_ib_pair *pair = to_pair(ib);

	mutex_lock(&pair->lock);
	refresh(pair);
	*attr = pair->attr;
	mutex_unlock(&pair->lock);
	attr->cur_qp_state = attr->qp_state;
	*init = pair->init;
	return 0;
}

/* librxe has put work requests into the ring, and passes none here; the kernel does. */
int qnic_ib_post_send(struct ib_qp *ib, const struct ib_send_wr *requests,
		      const struct ib_send_wr **bad)
{
	struct qnic_ib_pair *pair = to_pair(ib);

	if (pair->gsi)
		return qnic_ib_gsi_send(pair, requests, bad);
	if (READ_ONCE(pair->attr.qp_state) < IB_QPS_RTS || requests) {
		*bad = requests;
		return -EINVAL;
	}
	return qnic_rs_verbs_send(pair->context->context, pair->pair);
}

/* ---- memory ---- */

struct ib_mr *qnic_ib_register(struct ib_pd *pd, u64 start, u64 bytes, u64 named, int access,
			       struct ib_udata *udata)
{
	const int rights = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
			   IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC;
	struct qnic_ib_context *context = context_of(udata);
	struct qnic_ib_memory *memory;
	u32 key;
	int ret;

	if (access & ~(rights | IB_ACCESS_OPTIONAL))
		return ERR_PTR(-EOPNOTSUPP);
	if (!context || context->mm != current->mm)
		return ERR_PTR(-EPERM);
	memory = kzalloc(sizeof(*memory), GFP_KERNEL);
	if (!memory)
		return ERR_PTR(-ENOMEM);
	ret = qnic_rs_verbs_register(context->context, to_domain(pd)->number, start, bytes, named,
				     access & rights, &key);
	if (ret) {
		kfree(memory);
		return ERR_PTR(ret);
	}
	memory->context = context;
	memory->ib.lkey = key;
	memory->ib.rkey = key;
	return &memory->ib;
}

int qnic_ib_deregister(struct ib_mr *ib, struct ib_udata *udata)
{
	struct qnic_ib_memory *memory = to_memory(ib);

	/* An error means that the NIC is gone. */
	qnic_rs_verbs_deregister(memory->context->context, ib->lkey);
	kfree(memory);
	return 0;
}
