// SPDX-License-Identifier: GPL-2.0
/*
 * The device of libibverbs: device, contexts, events, registration.
 */
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/version.h>

#include "qnic_ib.h"
#include "qnic_verbs.h"

/* What librxe takes its own version for. */
#define RXE_ABI		2
/* The vendor of a device that has none. */
#define RXE_VENDOR	0xffffff

/* ---- device ---- */

/* The kernel asks without udata when it registers the device. */
static int query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *udata)
{
	if (udata && (udata->inlen || udata->outlen))
		return -EINVAL;
	*attr = (struct ib_device_attr){
		.sys_image_guid = ib->node_guid,
		.vendor_id = RXE_VENDOR,
		/* Addresses of kernel consumers are virtual, and need no registration. */
		.kernel_cap_flags = IBK_LOCAL_DMA_LKEY,
		.max_mr_size = U64_MAX,
		.page_size_cap = PAGE_SIZE,
		.max_qp = QNIC_VERBS_QUEUE_PAIRS,
		.max_qp_wr = QNIC_VERBS_RING_BYTES / 256 - 1,
		.max_send_sge = QNIC_VERBS_SGES,
		.max_recv_sge = QNIC_VERBS_SGES,
		.max_sge_rd = QNIC_VERBS_SGES,
		.max_cq = QNIC_VERBS_CQS,
		.max_cqe = QNIC_VERBS_RING_BYTES / QNIC_VERBS_COMPLETION_BYTES - 1,
		.max_mr = QNIC_VERBS_SEGMENTS,
		.max_pd = INT_MAX,
		.max_ah = INT_MAX,
		.max_srq = QNIC_VERBS_SRQS,
		.max_srq_wr = QNIC_VERBS_RING_BYTES / 512 - 1,
		.max_srq_sge = QNIC_VERBS_SGES,
		.max_qp_rd_atom = QNIC_VERBS_READS,
		.max_res_rd_atom = QNIC_VERBS_QUEUE_PAIRS * QNIC_VERBS_READS,
		.max_qp_init_rd_atom = QNIC_VERBS_READS,
		.atomic_cap = IB_ATOMIC_HCA,
		.max_pkeys = 1,
	};
	return 0;
}

/* ---- contexts and domains ---- */

static int alloc_ucontext(struct ib_ucontext *ib, struct ib_udata *udata)
{
	struct qnic_ib_context *context = to_context(ib);

	context->mm = current->mm;
	return qnic_rs_verbs_open(to_device(ib->device)->driver, current->mm,
				  task_tgid_vnr(current), &context->context);
}

static void dealloc_ucontext(struct ib_ucontext *ib)
{
	qnic_rs_verbs_close(to_context(ib)->context);
}

/* Objects are gone by now, and mappings of rings keep their pages. */
static void disassociate_ucontext(struct ib_ucontext *ib)
{
}

static int alloc_pd(struct ib_pd *ib, struct ib_udata *udata)
{
	struct qnic_ib_context *context = context_of(udata);

	/* The kernel's own queue pair needs no number: it is none of the NIC. */
	if (context)
		to_domain(ib)->number = qnic_rs_verbs_number(context->context);
	return 0;
}

static int dealloc_pd(struct ib_pd *ib, struct ib_udata *udata)
{
	return 0;
}

/* ---- events ---- */

static void tell_queue(struct qnic_ib_queue *queue, u32 said)
{
	struct ib_event event = {
		.device = queue->ib.device,
		.element.cq = &queue->ib,
		.event = IB_EVENT_CQ_ERR,
	};

	if (said == QNIC_VERBS_COMPLETION)
		queue->ib.comp_handler(&queue->ib, queue->ib.cq_context);
	else if (queue->ib.event_handler)
		queue->ib.event_handler(&event, queue->ib.cq_context);
}

static void tell_pair(struct qnic_ib_pair *pair, enum ib_event_type said)
{
	struct ib_event event = {
		.device = pair->ib.device,
		.element.qp = &pair->ib,
		.event = said,
	};

	if (pair->ib.event_handler)
		pair->ib.event_handler(&event, pair->ib.qp_context);
}

/* The NIC has forgotten the limit. */
static void tell_srq(struct qnic_ib_srq *srq)
{
	struct ib_event event = {
		.device = srq->ib.device,
		.element.srq = &srq->ib,
		.event = IB_EVENT_SRQ_LIMIT_REACHED,
	};

	WRITE_ONCE(srq->attr.srq_limit, 0);
	if (srq->ib.event_handler)
		srq->ib.event_handler(&event, srq->ib.srq_context);
}

static void tell(void *owner, u32 said)
{
	static const enum ib_event_type of_pairs[] = {
		[QNIC_VERBS_FATAL] = IB_EVENT_QP_FATAL,
		[QNIC_VERBS_ACCESS_ERROR] = IB_EVENT_QP_ACCESS_ERR,
		[QNIC_VERBS_REQUEST_ERROR] = IB_EVENT_QP_REQ_ERR,
		[QNIC_VERBS_ESTABLISHED] = IB_EVENT_COMM_EST,
		[QNIC_VERBS_DRAINED] = IB_EVENT_SQ_DRAINED,
		[QNIC_VERBS_LAST_RECEIVE] = IB_EVENT_QP_LAST_WQE_REACHED,
	};

	if (said <= QNIC_VERBS_CQ_ERROR)
		tell_queue(owner, said);
	else if (said == QNIC_VERBS_LIMIT_REACHED)
		tell_srq(owner);
	else if (said < ARRAY_SIZE(of_pairs))
		tell_pair(owner, of_pairs[said]);
}

/* ---- registration ---- */

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0)
static struct ib_mr *register_memory(struct ib_pd *pd, u64 start, u64 bytes, u64 named, int access,
				     struct ib_dmah *hints, struct ib_udata *udata)
{
	if (hints)
		return ERR_PTR(-EOPNOTSUPP);
	return qnic_ib_register(pd, start, bytes, named, access, udata);
}
#endif

/* Without it the core takes this for a device without consumers in the kernel, and it has no use (local_dma_lkey). */
static struct ib_mr *get_dma_mr(struct ib_pd *pd, int access)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static const struct ib_device_ops device_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_RXE,
	.uverbs_abi_ver = RXE_ABI,
	.query_device = query_device,
	.query_port = qnic_ib_query_port,
	.modify_port = qnic_ib_modify_port,
	.get_port_immutable = qnic_ib_get_port_immutable,
	.get_link_layer = qnic_ib_get_link_layer,
	.get_netdev = qnic_ib_get_netdev,
	.query_pkey = qnic_ib_query_pkey,
	.query_gid = qnic_ib_query_gid,
	.add_gid = qnic_ib_gid_changed,
	.del_gid = qnic_ib_gid_changed,
	.alloc_ucontext = alloc_ucontext,
	.dealloc_ucontext = dealloc_ucontext,
	.dealloc_driver = qnic_ib_gone,
	.disassociate_ucontext = disassociate_ucontext,
	.mmap = qnic_ib_mmap,
	.mmap_free = qnic_ib_mmap_free,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.create_cq = qnic_ib_create_cq,
	.destroy_cq = qnic_ib_destroy_cq,
	.req_notify_cq = qnic_ib_req_notify_cq,
	.poll_cq = qnic_ib_poll_cq,
	.create_srq = qnic_ib_create_srq,
	.modify_srq = qnic_ib_modify_srq,
	.query_srq = qnic_ib_query_srq,
	.destroy_srq = qnic_ib_destroy_srq,
	.create_ah = qnic_ib_create_ah,
	.create_user_ah = qnic_ib_create_ah,
	.destroy_ah = qnic_ib_destroy_ah,
	.create_qp = qnic_ib_create_qp,
	.modify_qp = qnic_ib_modify_qp,
	.query_qp = qnic_ib_query_qp,
	.destroy_qp = qnic_ib_destroy_qp,
	.post_send = qnic_ib_post_send,
	.post_recv = qnic_ib_post_recv,
	.get_dma_mr = get_dma_mr,
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
	.reg_user_mr = qnic_ib_register,
#else
	.reg_user_mr = register_memory,
#endif
	.dereg_mr = qnic_ib_deregister,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, qnic_ib_context, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, qnic_ib_domain, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, qnic_ib_queue, ib),
	INIT_RDMA_OBJ_SIZE(ib_srq, qnic_ib_srq, ib),
	INIT_RDMA_OBJ_SIZE(ib_ah, qnic_ib_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, qnic_ib_pair, ib),
};

static const struct ib_device_ops stats_ops = {
	.alloc_hw_port_stats = qnic_ib_alloc_stats,
	.get_hw_stats = qnic_ib_get_stats,
};

/* A locally administered address of the node. */
static __be64 guid_of(u16 node)
{
	return cpu_to_be64(0x0200510000000000ull | node);
}

int qnic_ib_make(struct qnic_ib_nic *nic)
{
	struct qnic_ib_device *device = ib_alloc_device(qnic_ib_device, ib);
	struct ib_device *ib = &device->ib;
	char name[IB_DEVICE_NAME_MAX];
	int ret;

	if (!device)
		return -ENOMEM;
	device->driver = nic->driver;
	device->nic = nic;
	ib->node_type = RDMA_NODE_IB_CA;
	ib->phys_port_cnt = QNIC_IB_PORTS;
	ib->num_comp_vectors = 1;
	ib->dev.parent = nic->parent;
	ib->node_guid = guid_of(qnic_rs_verbs_node(nic->driver));
	ib->uverbs_cmd_mask |= BIT_ULL(IB_USER_VERBS_CMD_POST_SEND) |
			       BIT_ULL(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ);
	strscpy(ib->node_desc, "qnic", sizeof(ib->node_desc));
	ib_set_device_ops(ib, &device_ops);
	if (!qnic_ib_stats_new(device))
		ib_set_device_ops(ib, &stats_ops);
	snprintf(name, sizeof(name), "qnic%d", nic->id);
	qnic_ib_made(nic, device);
	ret = ib_register_device(ib, name, NULL);
	if (!ret)
		return 0;
	dev_err(nic->parent, "no device of libibverbs is made: error %d. Programs of libibverbs do not find the NIC; its own library does. When the reason is gone (no memory, or another device has the name %s), unload and load qnic_ib.\n",
		ret, name);
	ib_dealloc_device(ib);
	qnic_ib_forget(nic);
	return ret;
}

/* Programs hear of a change; the state itself is for qnic_ib_query_port(). */
void qnic_ib_port(struct qnic_ib_device *device)
{
	struct ib_event event = {
		.device = &device->ib,
		.element.port_num = 1,
		.event = device->nic->port_down ? IB_EVENT_PORT_ERR : IB_EVENT_PORT_ACTIVE,
	};

	ib_dispatch_event(&event);
	qnic_ib_tell_roce_port(device);
}

static const struct qnic_verbs_client client = {
	.add = qnic_ib_add,
	.remove = qnic_ib_remove,
	.port = qnic_ib_port_is,
	.event = tell,
};

static int __init qnic_ib_init(void)
{
	int ret = qnic_ib_nics_init();

	if (ret)
		return ret;
	ret = qnic_verbs_client_register(&client);
	if (ret)
		qnic_ib_nics_exit();
	return ret;
}
module_init(qnic_ib_init);

static void __exit qnic_ib_exit(void)
{
	qnic_ib_nics_exit();
	qnic_verbs_client_unregister(&client);
}
module_exit(qnic_ib_exit);

MODULE_DESCRIPTION("qnic as a device of libibverbs");
MODULE_AUTHOR("The qnic authors");
MODULE_LICENSE("GPL");
