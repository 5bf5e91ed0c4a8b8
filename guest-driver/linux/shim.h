/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The declarations that the C files of the module share. The interface to the Rust
 * part is ffi.h.
 *
 *   device.c   virtio probe, removal and sleep, module
 *   queues.c   control and event queue, fault workers
 *   file.c     character device, mmap
 *   memory.c   interval notifiers, page lookup, host areas
 *   pools.c    mmap and poll of shared pools
 *   datagram.c datagrams: their pages, the schedule of service, the interface for other modules
 *   volume.c   volumes of remote memory as block devices
 *   remote_memory.c  the list of volumes, and the memory that this node offers
 *   verbs.c    the list of NICs for the device of libibverbs
 *   support.c  allocation, locks, waiting, log
 */
#ifndef QNIC_SHIM_H
#define QNIC_SHIM_H

#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

/* Numbers of the device's ABI; rust/src/lib.rs asserts that they are right. */
#include "abi.h"

/* Faults that are served at the same time. */
#define QNIC_WORKERS 16

/* Buffers on the event queue. */
#define QNIC_EVENTS 64

/* Time between two checks that the device answers. */
#define QNIC_WATCHDOG_SECONDS 2

struct virtio_device;
struct virtqueue;
struct qnic_volume;

struct qnic_event {
	u8 bytes[QNIC_EVENT_BYTES];
};

struct qnic_worker {
	struct work_struct work;
	struct qnic_dev *dev;
};

/*
 * The device file, from probe to remove. It has a new qnic_dev each time that the guest has slept.
 */
struct qnic_node {
	struct miscdevice misc;
	char name[16];
	int id;
	struct mutex lock;
	struct qnic_dev *dev;		/* under lock; NULL: no process can open it */
};

/*
 * One device, from one reset to the next. The virtio driver holds a reference from probe to remove or
 * sleep, the Rust driver one until its last file is closed.
 */
struct qnic_dev {
	struct kref references;
	struct virtio_device *vdev;	/* valid until remove */
	void *driver;			/* Rust; set under event_lock, NULL until it is up */
	struct qnic_node *node;		/* valid until remove */
	int id;				/* that of node */

	phys_addr_t sram_address;
	u64 sram_bytes;
	void __iomem *sram;
	phys_addr_t notify_address;	/* notify register of virtqueue 0 */
	u32 notify_step;		/* bytes from one virtqueue's to the next */

	struct workqueue_struct *workqueue;	/* faults, the watchdog, ends of address spaces */
	struct virtqueue *queues[QNIC_QUEUES_MAX];
	spinlock_t control_lock;	/* control queue */
	wait_queue_head_t control_room;
	int control_waits;		/* threads that need its interrupts */
	struct mutex stop_lock;
	bool stopped;			/* under control_lock: reset, for good */

	spinlock_t event_lock;		/* event queue */
	bool stalled;			/* events wait for a worker to take them */
	struct qnic_event *events;
	unsigned long busy_workers;
	struct qnic_worker workers[QNIC_WORKERS];

	struct mutex volumes_lock;	/* remote_memory.c says what each guards */
	struct mutex serve_lock;
	struct mutex memory_lock;
	struct qnic_volume *volumes[QNIC_VOLUMES];
	void *served;			/* Rust: the memory that this node gives */
	bool memory_ended;		/* under both outer locks */

	struct list_head link;		/* in the list of datagram.c */
	struct delayed_work datagrams;	/* serves datagram ports */
	struct hrtimer datagrams_soon;	/* has that done within a tick */

	struct list_head verbs_link;	/* in the list of verbs.c */
	void *verbs;			/* under its lock: what the client has made of it */
	bool port_down;			/* said by the NIC */
	struct work_struct port;	/* tells the client */

	struct delayed_work watchdog;	/* detects that the device process has died */
	struct notifier_block reboot;

	struct mutex files_lock;
	struct list_head files;
	struct mutex map_lock;
	bool revoked;			/* under map_lock: no mapping of the device any more */
};

/* queues.c */
void qnic_control_callback(struct virtqueue *queue);
void qnic_event_callback(struct virtqueue *queue);
int qnic_event_post(struct qnic_dev *dev, struct qnic_event *event);
void qnic_worker_run(struct work_struct *work);

/* file.c */
extern const struct file_operations qnic_fops;
void qnic_revoke_mappings(struct qnic_dev *dev);

/* pools.c */
int qnic_pools_mmap(void *pools, struct vm_area_struct *vma);
__poll_t qnic_pools_poll(void *pools, struct file *file, poll_table *table);

/* memory.c */
struct page *qnic_host_area_page(struct qnic_host_area *area, unsigned long index);

/* datagram.c */
void qnic_datagrams_new(struct qnic_dev *dev);
void qnic_datagrams_start(struct qnic_dev *dev);
void qnic_datagrams_refuse(struct qnic_dev *dev);
void qnic_datagrams_stop(struct qnic_dev *dev);

/*
 * volume.c: one volume. new: *made stays NULL if that was refused; claim: succeeds if no process has it
 * open, and none can open it any more; remove frees it, gone: its NIC is about to go.
 */
int qnic_volume_new(struct qnic_dev *dev, int slot, u8 *argument, struct qnic_volume **made);
bool qnic_volume_claim(struct qnic_volume *volume);
void qnic_volume_remove(struct qnic_volume *volume, bool gone);
int qnic_volume_call(struct qnic_volume *volume, u32 command, u8 *argument);

/* remote_memory.c */
void qnic_memory_new(struct qnic_dev *dev);
int qnic_memory_call(struct qnic_dev *dev, u32 command, u8 *argument);
void qnic_memory_stop(struct qnic_dev *dev);
bool qnic_memory_is_used(struct qnic_dev *dev);

/* verbs.c */
void qnic_verbs_new(struct qnic_dev *dev);
void qnic_verbs_end(struct qnic_dev *dev);
void qnic_verbs_start(struct qnic_dev *dev);
void qnic_verbs_stop(struct qnic_dev *dev);

/* support.c */
void qnic_poll_wait(struct file *file, void *waiters, poll_table *table);

#endif
