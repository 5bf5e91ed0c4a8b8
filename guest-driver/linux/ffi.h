/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The functions that the C shim and the Rust part of the module call of each other.
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

/* What a process may map: results of qnic_rs_mapping(). */
#define QNIC_MAP_WINDOW		0	/* value: offset in SRAM */
#define QNIC_MAP_DOORBELL	1	/* value: virtqueue */
#define QNIC_MAP_HOST_AREA	2	/* value: not used */
#define QNIC_MAP_POOL		3	/* value: not used */

/* Bits that qnic_rs_poll() returns. */
#define QNIC_POLL_READABLE	1
#define QNIC_POLL_GONE		2

/* Memory that is not exported; results above zero of qnic_memory_check() and lookups. */
#define QNIC_MEMORY_DEVICE	1
#define QNIC_MEMORY_SECRET	2
#define QNIC_MEMORY_DAX		3
#define QNIC_MEMORY_UNREADABLE	4

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
/* Fills in statistics. */
s32 qnic_rs_info(void *driver, u8 *argument);
/* Every other call of a registered process. */
s32 qnic_rs_call(void *process, u32 command, u8 *argument);
/* Size of the argument of a call; -errno if there is no such call. */
s32 qnic_rs_argument_bytes(u32 command);
/* What is at an offset of the device file: QNIC_MAP_* or -errno. */
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
/* The kernel changes or frees pages of a region; false: try again. */
bool qnic_rs_invalidate(void *region, struct qnic_notifier *notifier, u64 start, u64 end, bool may_sleep, u64 sequence);

/* ---- implemented in the shim, called by Rust ---- */

/*
 * Memory, aligned to its size rounded up to a power of two, at most a page. Up
 * to a page never fails; more may, and is charged to the caller's control group.
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
void qnic_host_area_store(struct qnic_host_area *area, u32 offset, u64 value);

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

#endif
