/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The declarations that the C files of qnic_ib.ko share: the device of libibverbs, one for each NIC. It says
 * that it is Soft-RoCE, whose library is in every distribution, and serves the rings of that library
 * (rdma_user_rxe.h) by the NIC. Nothing of rdma_rxe is used. What an object is stands in the Rust part of qnic.ko;
 * here is how the kernel's core of verbs names it.
 *
 *   ib_nics.c     NICs, and the device of each
 *   ib_device.c   device, contexts, events, registration
 *   ib_port.c     ports, and their addresses
 *   ib_objects.c  rings, completion queues, queue pairs, memory
 *   ib_srq.c      shared receive queues, address handles
 *   ib_cm.c       the kernel's own queues, for connections by rdma_cm
 *   ib_stats.c    what the NIC counts
 *
 * The core destroys an object when no call of it is under way.
 */
#ifndef QNIC_IB_H
#define QNIC_IB_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/spinlock.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

#include "abi.h"
#include "ffi.h"

/* The second port is named by IP addresses. */
#define QNIC_IB_PORTS		2
#define QNIC_IB_ROCE_PORT	2

struct mminfo;
struct qnic_ib_completions;
struct qnic_ib_gsi;

/* A NIC. Its device goes before it: with it, or when rdma_rxe goes (ib_nics.c). */
struct qnic_ib_nic {
	struct list_head link;
	void *driver;			/* Rust; valid until the NIC is removed */
	struct device *parent;
	int id;
	bool port_down;			/* written with a lock of verbs.c held */
	struct qnic_ib_device *device;	/* NULL: there is none */
	struct notifier_block netdevs;	/* hears of changes of Ethernet ports */
	spinlock_t roce_lock;		/* guards what follows */
	bool roce_up;			/* what programs were told of the second port */
};

struct qnic_ib_device {
	struct ib_device ib;
	struct qnic_ib_nic *nic;	/* outlives ib */
	void *driver;			/* Rust; valid until ib is unregistered */
	struct rdma_stat_desc *names;	/* of the counters of the NIC */
	u32 counters;
	bool gone;			/* the core has unregistered it */
};

struct qnic_ib_context {
	struct ib_ucontext ib;
	void *context;			/* Rust */
	struct mm_struct *mm;		/* of the process that has opened it; to compare with */
};

struct qnic_ib_domain {
	struct ib_pd ib;
	u32 number;
};

/* A ring that a process can map; it ends with its last mapping. */
struct qnic_ib_ring {
	struct rdma_user_mmap_entry entry;
	void *ring;			/* Rust: a reference */
};

struct qnic_ib_queue {
	struct ib_cq ib;
	struct qnic_ib_completions *completions;	/* of one of the kernel, which has nothing below */
	void *queue;			/* Rust */
	struct qnic_ib_context *context;
	struct qnic_ib_ring *ring;
};

struct qnic_ib_ah {
	struct ib_ah ib;
	union ib_gid to;
	u16 node;
};

struct qnic_ib_srq {
	struct ib_srq ib;
	void *srq;			/* Rust */
	struct qnic_ib_context *context;
	struct qnic_ib_ring *ring;
	struct ib_srq_attr attr;	/* the limit is 0 again after its event */
};

struct qnic_ib_pair {
	struct ib_qp ib;
	struct qnic_ib_gsi *gsi;	/* of the one of the kernel: the NIC has none, and no rings */
	void *pair;			/* Rust */
	struct qnic_ib_context *context;
	struct qnic_ib_ring *sends, *receives;	/* no receives: an SRQ has them */
	struct mutex lock;
	struct ib_qp_attr attr;		/* under lock: all that was ever set */
	struct ib_qp_init_attr init;
};

struct qnic_ib_memory {
	struct ib_mr ib;
	struct qnic_ib_context *context;
};

static inline struct qnic_ib_device *to_device(struct ib_device *ib)
{
	return container_of(ib, struct qnic_ib_device, ib);
}

static inline struct qnic_ib_context *to_context(struct ib_ucontext *ib)
{
	return container_of(ib, struct qnic_ib_context, ib);
}

static inline struct qnic_ib_context *context_of(struct ib_udata *udata)
{
	return rdma_udata_to_drv_context(udata, struct qnic_ib_context, ib);
}

static inline struct qnic_ib_domain *to_domain(struct ib_pd *ib)
{
	return container_of(ib, struct qnic_ib_domain, ib);
}

static inline struct qnic_ib_queue *to_queue(struct ib_cq *ib)
{
	return container_of(ib, struct qnic_ib_queue, ib);
}

static inline struct qnic_ib_ah *to_ah(struct ib_ah *ib)
{
	return container_of(ib, struct qnic_ib_ah, ib);
}

static inline struct qnic_ib_srq *to_srq(struct ib_srq *ib)
{
	return container_of(ib, struct qnic_ib_srq, ib);
}

static inline struct qnic_ib_pair *to_pair(struct ib_qp *ib)
{
	return container_of(ib, struct qnic_ib_pair, ib);
}

static inline struct qnic_ib_memory *to_memory(struct ib_mr *ib)
{
	return container_of(ib, struct qnic_ib_memory, ib);
}

static inline u64 owner_of(void *object)
{
	return (unsigned long)object;
}

/* ib_nics.c */
int qnic_ib_nics_init(void);
/* No device is made again. */
void qnic_ib_nics_exit(void);
void *qnic_ib_add(void *driver, int id, struct device *parent);
void qnic_ib_remove(void *added);
void qnic_ib_port_is(void *added, bool up);
/* The device is about to be registered: a reference to it is taken. */
void qnic_ib_made(struct qnic_ib_nic *nic, struct qnic_ib_device *device);
/* The device, which is not registered any more, is no longer that of the NIC: the reference is given back. */
void qnic_ib_forget(struct qnic_ib_nic *nic);
/* The core says that a device was unregistered. */
void qnic_ib_gone(struct ib_device *ib);

/* ib_device.c */
/* Makes and registers the device of a NIC. */
int qnic_ib_make(struct qnic_ib_nic *nic);
/* Tells programs of the state of the port. */
void qnic_ib_port(struct qnic_ib_device *device);

/* ib_port.c */
/* The node whose Ethernet port has this address; -EHOSTUNREACH: it is none of the addresses that nodes are given. */
int qnic_ib_node_of(const u8 *mac);
/* The LID of the node that an address means; 0: it means none. */
u32 qnic_ib_lid_of(const struct rdma_ah_attr *attr);
/* For a change that programs were not told of yet. */
void qnic_ib_tell_roce_port(struct qnic_ib_device *device);
/*
 * Whether the first address is known to be at a node, and the second one is of this node: the core then finds the way
 * back without waiting. Atomic.
 */
bool qnic_ib_is_from(struct ib_device *ib, u16 node, const union ib_gid *from,
		     const union ib_gid *to);
struct net_device *qnic_ib_get_netdev(struct ib_device *ib, u32 port);
int qnic_ib_query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr);
int qnic_ib_get_port_immutable(struct ib_device *ib, u32 port,
			       struct ib_port_immutable *immutable);
int qnic_ib_modify_port(struct ib_device *ib, u32 port, int mask, struct ib_port_modify *modify);
enum rdma_link_layer qnic_ib_get_link_layer(struct ib_device *ib, u32 port);
int qnic_ib_query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey);
int qnic_ib_query_gid(struct ib_device *ib, u32 port, int index, union ib_gid *gid);
int qnic_ib_gid_changed(const struct ib_gid_attr *attr, void **context);

/* ib_cm.c */
int qnic_ib_create_kernel_cq(struct qnic_ib_queue *queue, u32 entries);
void qnic_ib_destroy_kernel_cq(struct qnic_ib_queue *queue);
/* Returns as ib_req_notify_cq() does. */
int qnic_ib_arm_kernel_cq(struct qnic_ib_queue *queue, enum ib_cq_notify_flags flags);
int qnic_ib_poll_cq(struct ib_cq *ib, int wanted, struct ib_wc *to);
/* The queue pair of management messages of a port; -EOPNOTSUPP: another one is asked for. */
int qnic_ib_create_gsi(struct qnic_ib_pair *pair, struct ib_qp_init_attr *init);
void qnic_ib_destroy_gsi(struct qnic_ib_pair *pair);
/* Its state has changed: what is posted is forgotten (RESET), or completes as flushed (ERR). */
void qnic_ib_gsi_changed(struct qnic_ib_pair *pair);
int qnic_ib_post_recv(struct ib_qp *ib, const struct ib_recv_wr *requests,
		      const struct ib_recv_wr **bad);
/* Atomic. */
int qnic_ib_gsi_send(struct qnic_ib_pair *pair, const struct ib_send_wr *requests,
		     const struct ib_send_wr **bad);

/* ib_objects.c */
/* Lets the process map a ring, whose reference is given away, and says how. */
int qnic_ib_ring_new(struct qnic_ib_context *context, void *raw, struct qnic_ib_ring **made,
		     struct mminfo *info);
/* No process can map it any more; NULL: there is none. */
void qnic_ib_ring_remove(struct qnic_ib_ring *ring);
int qnic_ib_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
		      struct uverbs_attr_bundle *attrs);
int qnic_ib_destroy_cq(struct ib_cq *ib, struct ib_udata *udata);
int qnic_ib_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags);
int qnic_ib_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *init, struct ib_udata *udata);
int qnic_ib_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int qnic_ib_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
		     struct ib_qp_init_attr *init);
int qnic_ib_destroy_qp(struct ib_qp *ib, struct ib_udata *udata);
int qnic_ib_post_send(struct ib_qp *ib, const struct ib_send_wr *requests,
		      const struct ib_send_wr **bad);
struct ib_mr *qnic_ib_register(struct ib_pd *pd, u64 start, u64 bytes, u64 named, int access,
			       struct ib_udata *udata);
int qnic_ib_deregister(struct ib_mr *ib, struct ib_udata *udata);
int qnic_ib_mmap(struct ib_ucontext *ib, struct vm_area_struct *vma);
void qnic_ib_mmap_free(struct rdma_user_mmap_entry *entry);

/* ib_srq.c */
int qnic_ib_create_srq(struct ib_srq *ib, struct ib_srq_init_attr *init, struct ib_udata *udata);
int qnic_ib_modify_srq(struct ib_srq *ib, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		       struct ib_udata *udata);
int qnic_ib_query_srq(struct ib_srq *ib, struct ib_srq_attr *attr);
int qnic_ib_destroy_srq(struct ib_srq *ib, struct ib_udata *udata);
int qnic_ib_create_ah(struct ib_ah *ib, struct rdma_ah_init_attr *init, struct ib_udata *udata);
int qnic_ib_destroy_ah(struct ib_ah *ib, u32 flags);

/* ib_stats.c */
/* Asks the NIC which counters it has. Nothing is left to be freed if this fails. */
int qnic_ib_stats_new(struct qnic_ib_device *device);
void qnic_ib_stats_free(struct rdma_stat_desc *names, u32 counters);
struct rdma_hw_stats *qnic_ib_alloc_stats(struct ib_device *ib, u32 port);
int qnic_ib_get_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index);

#endif
