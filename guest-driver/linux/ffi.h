/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The functions by which the C shim and the Rust part of the module call each other.
 *
 * The build script of the Rust part makes its declarations from this file. Types are
 * restricted to those that it understands: integers of fixed width, bool, and
 * pointers to them, to void, to functions of one argument and to the structs that are
 * declared here. A prototype is one line.
 *
 * "Atomic" functions are called with a spin lock held or from an interrupt.
 */
#ifndef QNIC_FFI_H
#define QNIC_FFI_H

#include <linux/types.h>

struct qnic_dev;
struct qnic_notifier;
struct qnic_host_area;
struct qnic_pin;
struct mm_struct;

/* Kinds of mappings: results of qnic_rs_mapping(). */
#define QNIC_MAP_WINDOW		0	/* value: offset in SRAM */
#define QNIC_MAP_DOORBELL	1	/* value: virtqueue */
#define QNIC_MAP_HOST_AREA	2	/* value: not used */
#define QNIC_MAP_POOL		3	/* value: not used */

/* Bits that qnic_rs_poll() returns. */
#define QNIC_POLL_READABLE	1
#define QNIC_POLL_GONE		2

/* Memory that cannot be exported: results above zero of qnic_memory_check() and lookups. */
#define QNIC_MEMORY_DEVICE	1
#define QNIC_MEMORY_SECRET	2
#define QNIC_MEMORY_DAX		3
#define QNIC_MEMORY_UNREADABLE	4
#define QNIC_MEMORY_USERFAULT	5

/* How qnic_notifier_lookup() faults pages in. */
#define QNIC_FAULT_NONE		0
#define QNIC_FAULT_READ		1
#define QNIC_FAULT_WRITE	2

/* ---- implemented in Rust, called by the shim ---- */

/* Checks the configuration space; result: number of doorbells or -errno. */
s32 qnic_rs_check_config(const u8 *config);
/* Brings the NIC up. Takes over one reference of dev, also when it fails. */
s32 qnic_rs_start(struct qnic_dev *dev, const u8 *config, u8 *sram, u64 sram_bytes, void **driver);
/* One reference more; the result is the same driver. */
void *qnic_rs_get(void *driver);
/* One reference less; the last one gives dev back. */
void qnic_rs_put(void *driver);
/* Tells the NIC that a reset is about to come. */
void qnic_rs_announce_reset(void *driver);
/* Fails all calls and wakes all waiters. */
void qnic_rs_begin_removal(void *driver);
/* Nothing accesses the SRAM after it. */
void qnic_rs_detach(void *driver);
/* Atomic: room for one more event? */
bool qnic_rs_event_room(void *driver);
/* Atomic: handles an event; true: a fault waits for qnic_rs_serve_fault(). */
bool qnic_rs_event(void *driver, const u8 *event);
/* Serves one fault; false: there was none. */
bool qnic_rs_serve_fault(void *driver);
/* Checks that the device answers; called every few seconds. */
void qnic_rs_check_device(void *driver);
/* Registers the calling process on mm; *process stays NULL if it was refused. */
s32 qnic_rs_register(void *driver, struct mm_struct *mm, u32 pid, u8 *argument, void **process);
/* What driver and NIC are; a page of what they count. */
s32 qnic_rs_info(void *driver, u8 *argument);
s32 qnic_rs_counters(void *driver, u8 *argument);
/* Every other call of a registered process. */
s32 qnic_rs_call(void *process, u32 command, u8 *argument);
/* Size of the argument of a call; -errno if there is no such call. */
s32 qnic_rs_argument_bytes(u32 command);
/* The kind of mapping at an offset of the device file: QNIC_MAP_* or -errno. */
s32 qnic_rs_mapping(void *process, u64 offset, u64 length, bool writable, u64 *value);
/* The host area of a process. */
struct qnic_host_area *qnic_rs_host_area(void *process);
/* The wait queue of a process. */
void *qnic_rs_waiters(void *process);
/* QNIC_POLL_* bits. */
s32 qnic_rs_poll(void *process);
/* Ends a process; may be called again. */
void qnic_rs_close(void *process);
/* Frees it, closed or not. */
void qnic_rs_release(void *process);
/* The kernel changes or frees pages of a region; returns false: try again. */
bool qnic_rs_is_young(void *region, u64 start, u64 end, bool forget);
bool qnic_rs_invalidate(void *region, struct qnic_notifier *notifier, u64 start, u64 end, bool may_sleep, u64 sequence);

/* Opens shared pools; *pools stays NULL if they were refused. */
s32 qnic_rs_pools_open(void *driver, u8 *argument, void **pools);
void qnic_rs_pools_close(void *pools);
/* Every call of pools. */
s32 qnic_rs_pools_call(void *pools, u32 command, u8 *argument);
/* Checks a mapping: 0 or -errno. */
s32 qnic_rs_pools_mapping(void *pools, u64 offset, u64 length);
/* Physical address of a page of the range; 0 if there is no such page. */
u64 qnic_rs_pools_page(void *pools, u64 index);
/* The wait queue of pools, and QNIC_POLL_* bits. */
void *qnic_rs_pools_waiters(void *pools);
s32 qnic_rs_pools_poll(void *pools);

/*
 * Datagrams. Pages are named by physical address: a buffer is some bytes within one page, and a
 * reference on it; address 0 is no buffer. bind: `upper` is passed to qnic_upper_...() until close()
 * has returned.
 */
s32 qnic_rs_datagram_bind(void *driver, u16 number, u16 receives, u16 steered, u16 messages, void *upper, void **port);
void qnic_rs_datagram_close(void *port);
/* Allocates the missing receive pages of the port, and waits until the NIC has them; may sleep. */
s32 qnic_rs_datagram_fill(void *port);
/*
 * Atomic, as are all that follow. Takes over the references on both buffers if it returns 0;
 * each destination is node << 16 | port.
 */
s32 qnic_rs_datagram_send(void *port, const u32 *to, u32 count, const u8 *header, u32 header_bytes, u64 first, u32 first_bytes, u64 second, u32 second_bytes, u64 target, u64 token);
/* Takes over the references on both buffers if it returns 0. */
s32 qnic_rs_datagram_expect(void *port, u64 first, u32 first_bytes, u64 second, u32 second_bytes, u64 *handle);
void qnic_rs_datagram_withdraw(void *port, u64 handle);
/* Takes over the reference. If it returns false, the port has enough buffers, and this one is freed. */
bool qnic_rs_datagram_give(void *port, u64 address, u32 bytes);
/* Zero means no deadline. */
void qnic_rs_datagram_deadline(void *port, u64 at_ns);
u16 qnic_rs_datagram_node(void *port);
/* Serves the ports of a driver. */
void qnic_rs_datagram_serve(void *driver);

/*
 * Remote memory. attach, serve: the result stays NULL if that was refused. transfer is atomic and
 * takes over the reference on the page; if it returns true, qnic_volume_done() follows, perhaps
 * from within. memory_info: NULL if this node offers no memory.
 */
s32 qnic_rs_volume_attach(void *driver, u16 slot, u8 *argument, void **volume);
void qnic_rs_volume_detach(void *volume);
u64 qnic_rs_volume_blocks(void *volume);
bool qnic_rs_volume_transfer(void *volume, bool writes, u64 block, u64 page, u64 token);
/* The task is about to wait for its last request. */
void qnic_rs_volume_look_on(void *volume);
s32 qnic_rs_volume_call(void *volume, u32 command, u8 *argument);
s32 qnic_rs_memory_serve(void *driver, u8 *argument, void **memory);
s32 qnic_rs_memory_leave(void *memory, u8 *argument);
void qnic_rs_memory_end(void *memory);
/* Ends the waits of tasks that leave. */
void qnic_rs_memory_abandon(void *memory);
s32 qnic_rs_memory_info(void *memory, u8 *argument);

/*
 * Verbs. qnic_ib.ko calls them, and sees each object as what create() has returned. `owner` is passed to
 * qnic_verbs_event() until destroy() has returned. Sizes and capacities are in and out: what was asked
 * for, and what there is.
 */

/* Attributes of a queue pair that is created. */
#define QNIC_QP_TRANSPORT	0
#define QNIC_QP_SIGNAL_ALL	1
#define QNIC_QP_DOMAIN		2
#define QNIC_QP_SENDS		3
#define QNIC_QP_SEND_SGES	4
#define QNIC_QP_INLINE		5
#define QNIC_QP_RECEIVES	6
#define QNIC_QP_RECEIVE_SGES	7
#define QNIC_QP_OPTIONS		8	/* how many these are */

/* Attributes of a queue pair that is modified. */
#define QNIC_QP_STATE		0
#define QNIC_QP_ACCESS		1
#define QNIC_QP_TIMEOUT		2
#define QNIC_QP_RETRIES		3
#define QNIC_QP_LID		4
#define QNIC_QP_SERVICE_LEVEL	5
#define QNIC_QP_PEER		6
#define QNIC_QP_SEND_PSN	7
#define QNIC_QP_RECEIVE_PSN	8
#define QNIC_QP_QKEY		9
#define QNIC_QP_MTU		10
#define QNIC_QP_RNR_TIMER	11
#define QNIC_QP_RNR_RETRIES	12
#define QNIC_QP_READS		13
#define QNIC_QP_PEER_READS	14
#define QNIC_QP_DRAIN_EVENT	15
#define QNIC_QP_ATTRIBUTES	16	/* how many these are */

/* What a queue pair is asked for. */
#define QNIC_QP_NOW_STATE	0
#define QNIC_QP_NOW_DRAINING	1
#define QNIC_QP_NOW_SEND_PSN	2
#define QNIC_QP_NOW_RECEIVE_PSN	3
#define QNIC_QP_NOW		4	/* how many these are */

s32 qnic_rs_verbs_open(void *driver, struct mm_struct *mm, u32 pid, void **context);
void qnic_rs_verbs_close(void *context);
u16 qnic_rs_verbs_node(void *driver);
/* A number for a protection domain. */
u32 qnic_rs_verbs_number(void *context);
s32 qnic_rs_verbs_create_cq(void *context, u64 owner, u32 *entries, void **cq);
void qnic_rs_verbs_destroy_cq(void *context, void *cq);
s32 qnic_rs_verbs_create_srq(void *context, u64 owner, u32 domain, u32 *receives, u32 *sges, u32 limit, void **srq);
s32 qnic_rs_verbs_modify_srq(void *context, void *srq, u32 limit);
void qnic_rs_verbs_destroy_srq(void *context, void *srq);
u32 qnic_rs_verbs_srq_number(void *srq);
/* srq: NULL, or where its receives are. */
s32 qnic_rs_verbs_create_qp(void *context, u64 owner, void *send_cq, void *receive_cq, void *srq, u32 *options, void **qp);
s32 qnic_rs_verbs_modify_qp(void *context, void *qp, const u32 *attributes);
s32 qnic_rs_verbs_query_qp(void *context, void *qp, u32 *now);
void qnic_rs_verbs_destroy_qp(void *context, void *qp);
u32 qnic_rs_verbs_qp_number(void *qp);
/* The number of an address handle; 0: no node has the LID. */
u32 qnic_rs_verbs_path(u32 lid, u32 service_level, bool route_header);
s32 qnic_rs_verbs_register(void *context, u32 domain, u64 address, u64 bytes, u64 named, u32 rights, u32 *key);
s32 qnic_rs_verbs_deregister(void *context, u32 key);
/* -EAGAIN: the NIC reads no commands. */
s32 qnic_rs_verbs_send(void *context, void *qp);
s32 qnic_rs_verbs_arm(void *context, void *cq, bool solicited);
/* Messages of connection management: the header of one, and the route header, of QNIC_HEADER_BYTES each. */
void qnic_rs_verbs_management_header(const u8 *from, const u8 *to, u8 *header);
/* The version of IP of the route of one that has come; 0: it is to be dropped. */
u32 qnic_rs_verbs_management_route(u32 from_port, const u8 *header, u32 header_bytes, const u8 *message, u32 bytes, u8 *route);
/* Whether one more message of a node is taken now; due is the node's own, and 0 at first. */
bool qnic_rs_verbs_management_admit(u64 *due, u64 now_ns);
/* It has made this node ask for an address, and counts for more. */
void qnic_rs_verbs_management_asked(u64 *due);
/*
 * A ring of an object, which keeps its pages until put(); its bytes; the physical address of a page, 0: there is none.
 * qp_ring: that of the send queue, or of the receive queue; NULL: it uses a shared one.
 */
void *qnic_rs_verbs_cq_ring(void *cq);
void *qnic_rs_verbs_srq_ring(void *srq);
void *qnic_rs_verbs_qp_ring(void *qp, bool sends);
u64 qnic_rs_verbs_ring_bytes(void *ring);
u64 qnic_rs_verbs_ring_page(void *ring, u64 index);
void qnic_rs_verbs_ring_put(void *ring);

/* ---- implemented in the shim, called by Rust ---- */

/*
 * Memory, aligned to its size rounded up to a power of two, at most to a page. An
 * allocation of up to a page never fails; a larger one may, and is charged to the caller's control group.
 */
void *qnic_alloc(u64 bytes);
void qnic_free(void *memory);

/* A line of the kernel's log; level 0: error, 1: warning, 2: information. Atomic. */
void qnic_log(u32 level, const u8 *text, u64 bytes);
/* A bug of the driver: oops. */
void qnic_bug(void) __noreturn;

/* Locks; NULL: no memory. */
void *qnic_mutex_new(void);
void qnic_mutex_free(void *lock);
void qnic_mutex_lock(void *lock);
bool qnic_mutex_trylock(void *lock);
void qnic_mutex_unlock(void *lock);
void *qnic_spin_new(void);
void qnic_spin_free(void *lock);
u64 qnic_spin_lock(void *lock);
void qnic_spin_unlock(void *lock, u64 flags);

/* Wait queues. qnic_wait: 0, -ETIME or -EINTR; a negative time is no limit. */
void *qnic_waiters_new(void);
void qnic_waiters_free(void *waiters);
void qnic_waiters_wake(void *waiters);
s32 qnic_wait(void *waiters, bool (*ready)(const void *), const void *context, s64 timeout_ns);

/*
 * Time, random numbers, memory size. qnic_yield() yields the processor between two
 * polls of a word that the device changes; it may sleep.
 */
u64 qnic_now_ns(void);
void qnic_yield(void);

/*
 * Between qnic_undisturbed() and qnic_disturbed() no other thread runs on this processor. Code that polls
 * the NIC in between keeps asking qnic_may_look() or qnic_spare() whether it may go on.
 */
void qnic_undisturbed(void);
void qnic_disturbed(void);
bool qnic_may_look(void);

/* What the processor would do next instead of serving. */
#define QNIC_SPARE_WORK		0
#define QNIC_SPARE_THREAD	1
#define QNIC_SPARE_HALT		2
s32 qnic_spare(void);
u64 qnic_random(void);
u64 qnic_frames(void);

/*
 * The device. qnic_request: 0, -EINTR, -ETIME, -ENODEV, or -EBUSY if too many
 * interruptible requests were in flight all the time.
 */
s32 qnic_request(struct qnic_dev *dev, const u8 *request, u8 *response, u32 timeout_ms, bool interruptible);
/* Does not wait for the response, only for room: 0, -ETIME or -ENODEV. */
s32 qnic_post(struct qnic_dev *dev, const u8 *request, u32 timeout_ms);
void qnic_stop(struct qnic_dev *dev);
u32 qnic_doorbell_offset(struct qnic_dev *dev, u16 queue);
void qnic_dev_put(struct qnic_dev *dev);

/* Host areas. */
struct qnic_host_area *qnic_host_area_new(void);
void qnic_host_area_free(struct qnic_host_area *area);
u64 qnic_host_area_address(struct qnic_host_area *area, u32 page);
u8 *qnic_host_area_memory(struct qnic_host_area *area, u32 page);

/*
 * Pages for datagrams, and blocks of 1 << order contiguous ones, by physical address; 0: no memory.
 * All but new() are atomic; new() charges the caller's control group, or none. A reference on any page
 * of a block keeps the block; the last one frees it.
 */
u64 qnic_block_new(u32 order, bool charged);
void qnic_page_get(u64 address);
void qnic_page_put(u64 address);
/* The mapping of an address of a page. */
u8 *qnic_page_memory(u64 address);
void qnic_copy(u8 *to, const u8 *from, u64 bytes);

/* Atomic; only while the device is there. */
void qnic_ring_doorbell(struct qnic_dev *dev, u16 queue);
/* Atomic: has qnic_rs_datagram_serve() called in so many nanoseconds; replaces the last such request. */
void qnic_schedule_datagrams(struct qnic_dev *dev, u64 delay_ns);

/*
 * Calls of an upper module for its datagram port: as in qnic_datagram.h. Atomic. References
 * on buffers are given away.
 */
void qnic_upper_received(void *upper, u32 from, const u8 *header, u32 header_bytes, u64 first, u64 second, u32 data_bytes, u64 steered);
void qnic_upper_sent(void *upper, u64 token, u32 failed, u32 status, u64 first, u64 second);
void qnic_upper_withdrawn(void *upper, u64 handle, u64 address);
void qnic_upper_deadline(void *upper, u64 now_ns);
void qnic_upper_gone(void *upper);

/* Address spaces: a reference keeps the handle alive, not the memory. */
void qnic_space_get(struct mm_struct *mm);
void qnic_space_put(struct mm_struct *mm);

/* May the process of mm access all of a range: 0, -EACCES (not for writing), -errno or QNIC_MEMORY_*. */
s32 qnic_memory_check(struct mm_struct *mm, u64 start, u64 bytes, bool write);

/*
 * Interval notifiers. region is passed to qnic_rs_invalidate() until
 * qnic_notifier_free() has returned. Results: 0 or -errno.
 */
s32 qnic_notifier_new(struct mm_struct *mm, u64 start, u64 bytes, void *region, struct qnic_notifier **notifier);
void qnic_notifier_free(struct qnic_notifier *notifier);
/* The invalidation in progress has this sequence number; the region's lock is held. */
void qnic_notifier_set_seq(struct qnic_notifier *notifier, u64 sequence);
/* Has the range been invalidated since? The region's lock is held. */
bool qnic_notifier_retry(struct qnic_notifier *notifier, u64 sequence);
/*
 * Looks up count pages from start on, up to the end of the mapping that the first is in;
 * fault is QNIC_FAULT_*. frames[i]: 0 if the page is not there, else twice frame + 1, and 1
 * more if the process may write to it without a fault. Results as of qnic_memory_check().
 */
s32 qnic_notifier_lookup(struct qnic_notifier *notifier, u64 start, u32 count, s32 fault, u64 *frames, u64 *sequence);
/* Atomic. */
void qnic_mark_dirty(u64 frame);

/*
 * Physical addresses (N25). Pins memory of the calling process; -EINVAL if its
 * frames are not contiguous.
 */
bool qnic_may_use_physical(void);
s32 qnic_pin_new(u64 address, u64 bytes, struct qnic_pin **pin, u64 *physical);
void qnic_pin_free(struct qnic_pin *pin);

/* An event of an object of verbs: one of QNIC_VERBS_*. Atomic; calls nothing of this file. */
void qnic_verbs_event(u64 owner, u32 event);
/* The port is up or down now. Atomic. */
void qnic_verbs_port(struct qnic_dev *dev, bool up);

/* Remote memory. A page of a request of the block layer was read or written; atomic. */
void qnic_volume_done(u64 token, s32 error);
/* Returns true if so many pages are free without taking them from other users. */
bool qnic_may_take_pages(u64 pages);

#endif
