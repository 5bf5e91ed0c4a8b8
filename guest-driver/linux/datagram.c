// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams: their pages, the schedule of service, and the interface for other modules
 * (qnic_datagram.h), which turns pages into physical addresses and back.
 */
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/version.h>
#include <linux/virtio.h>

#include "ffi.h"
#include "qnic_datagram.h"
#include "shim.h"

/* Devices that ports can be bound on. */
static LIST_HEAD(devices);
static DEFINE_MUTEX(devices_lock);

/* ---- serving ---- */

/* A shorter delay gets a timer of its own; other delays are ticks. */
#define SOON_NS (NSEC_PER_MSEC / 2)

/*
 * In softirq context: right after the interrupt, with interrupts enabled. The system's workqueue
 * is good enough.
 */
static void serve_run(struct work_struct *work)
{
	struct qnic_dev *dev = container_of(to_delayed_work(work), struct qnic_dev, datagrams);

	qnic_rs_datagram_serve(dev->driver);
}

static enum hrtimer_restart serve_soon(struct hrtimer *timer)
{
	struct qnic_dev *dev = container_of(timer, struct qnic_dev, datagrams_soon);

	if (!READ_ONCE(dev->stopped))
		mod_delayed_work(system_bh_highpri_wq, &dev->datagrams, 0);
	return HRTIMER_NORESTART;
}

void qnic_datagrams_new(struct qnic_dev *dev)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
	hrtimer_init(&dev->datagrams_soon, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	dev->datagrams_soon.function = serve_soon;
#else
	hrtimer_setup(&dev->datagrams_soon, serve_soon, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
#endif
	INIT_DELAYED_WORK(&dev->datagrams, serve_run);
	INIT_LIST_HEAD(&dev->link);
}

/* From now on ports can be bound. */
void qnic_datagrams_start(struct qnic_dev *dev)
{
	mutex_lock(&devices_lock);
	list_add_tail(&dev->link, &devices);
	mutex_unlock(&devices_lock);
}

/* No port can be bound any more. */
void qnic_datagrams_refuse(struct qnic_dev *dev)
{
	mutex_lock(&devices_lock);
	list_del_init(&dev->link);
	mutex_unlock(&devices_lock);
}

/*
 * The device was reset, and the ports know. A later request for service finds that
 * the device is stopped.
 */
void qnic_datagrams_stop(struct qnic_dev *dev)
{
	hrtimer_cancel(&dev->datagrams_soon);
	cancel_delayed_work_sync(&dev->datagrams);
	/* The work may have restarted it before it saw that the device is stopped. */
	hrtimer_cancel(&dev->datagrams_soon);
}

/* A tick is too long for a process that waits for a shorter time. */
void qnic_schedule_datagrams(struct qnic_dev *dev, u64 delay_ns)
{
	unsigned long delay = delay_ns ? nsecs_to_jiffies(delay_ns) + 1 : 0;

	if (READ_ONCE(dev->stopped))
		return;
	if (delay_ns && delay_ns < SOON_NS)
		hrtimer_start(&dev->datagrams_soon, ns_to_ktime(delay_ns), HRTIMER_MODE_REL);
	else
		mod_delayed_work(system_bh_highpri_wq, &dev->datagrams, delay);
}

void qnic_ring_doorbell(struct qnic_dev *dev, u16 queue)
{
	if (queue < QNIC_QUEUES_MAX && dev->queues[queue])
		virtqueue_notify(dev->queues[queue]);
}

/* ---- pages ---- */

static struct page *page_of(u64 address)
{
	return pfn_to_page(PHYS_PFN(address));
}

/*
 * A block is a compound page: it has one reference count, which also covers pages of it that a process
 * has mapped.
 */
u64 qnic_block_new(u32 order, bool charged)
{
	gfp_t flags = charged ? GFP_KERNEL_ACCOUNT : GFP_KERNEL;
	struct page *page = alloc_pages(flags | __GFP_ZERO | __GFP_COMP | __GFP_NOWARN, order);

	return page ? page_to_phys(page) : 0;
}

/*
 * Pages of block requests may be from allocations whose pages have no reference counts. Their counts stay
 * zero, and they exist as long as their request.
 */
static bool is_counted(struct page *page)
{
	return page_count(page) > 0;
}

void qnic_page_get(u64 address)
{
	if (is_counted(page_of(address)))
		get_page(page_of(address));
}

void qnic_page_put(u64 address)
{
	if (is_counted(page_of(address)))
		put_page(page_of(address));
}

u8 *qnic_page_memory(u64 address)
{
	return page_address(page_of(address)) + offset_in_page(address);
}

void qnic_copy(u8 *to, const u8 *from, u64 bytes)
{
	memcpy(to, from, bytes);
}

/* ---- other modules ---- */

static_assert(QNIC_DATAGRAM_HEADER == QNIC_HEADER_BYTES);

struct qnic_datagram_port {
	const struct qnic_datagram_ops *ops;
	void *context;
	void *driver;		/* a reference */
	void *port;
};

static struct page *page_at(u64 address)
{
	return address ? page_of(address) : NULL;
}

static u64 address_of(const struct qnic_datagram_buffer *buffer)
{
	return buffer->page ? page_to_phys(buffer->page) + buffer->offset : 0;
}

static bool is_within_page(const struct qnic_datagram_buffer *buffer)
{
	return !buffer->page || (buffer->bytes && buffer->offset < PAGE_SIZE &&
				 buffer->bytes <= PAGE_SIZE - buffer->offset);
}

static bool are_buffers(const struct qnic_datagram_buffer buffers[2])
{
	return is_within_page(&buffers[0]) && is_within_page(&buffers[1]) &&
	       (buffers[0].page || !buffers[1].page);
}

static void *driver_of(int nic)
{
	struct qnic_dev *dev;
	void *driver = NULL;

	mutex_lock(&devices_lock);
	list_for_each_entry(dev, &devices, link) {
		if (dev->id == nic)
			driver = qnic_rs_get(dev->driver);
	}
	mutex_unlock(&devices_lock);
	return driver;
}

struct qnic_datagram_port *qnic_datagram_bind(int nic, u16 number,
					      const struct qnic_datagram_limits *limits,
					      const struct qnic_datagram_ops *ops, void *context)
{
	struct qnic_datagram_port *port = kzalloc(sizeof(*port), GFP_KERNEL);
	int ret = -ENODEV;

	if (!port)
		return ERR_PTR(-ENOMEM);
	port->ops = ops;
	port->context = context;
	port->driver = driver_of(nic);
	if (!port->driver)
		goto err_free;
	ret = qnic_rs_datagram_bind(port->driver, number, limits->receives, limits->steered,
				    limits->messages, port, &port->port);
	if (ret)
		goto err_put;
	ret = qnic_rs_datagram_fill(port->port);
	if (ret)
		goto err_close;
	return port;
err_close:
	qnic_rs_datagram_close(port->port);
err_put:
	qnic_rs_put(port->driver);
err_free:
	kfree(port);
	return ERR_PTR(ret);
}
EXPORT_SYMBOL_GPL(qnic_datagram_bind);

void qnic_datagram_close(struct qnic_datagram_port *port)
{
	qnic_rs_datagram_close(port->port);
	qnic_rs_put(port->driver);
	kfree(port);
}
EXPORT_SYMBOL_GPL(qnic_datagram_close);

u16 qnic_datagram_node(struct qnic_datagram_port *port)
{
	return qnic_rs_datagram_node(port->port);
}
EXPORT_SYMBOL_GPL(qnic_datagram_node);

int qnic_datagram_send(struct qnic_datagram_port *port, const struct qnic_datagram_address *to,
		       u32 count, const u8 *header, u32 header_bytes,
		       const struct qnic_datagram_buffer buffers[2], u64 target, u64 token)
{
	u32 packed[QNIC_DATAGRAM_DESTINATIONS];
	u32 i;

	if (count > QNIC_DATAGRAM_DESTINATIONS || header_bytes > QNIC_DATAGRAM_HEADER ||
	    !are_buffers(buffers))
		return -EINVAL;
	for (i = 0; i < count; i++)
		packed[i] = (u32)to[i].node << 16 | to[i].port;
	return qnic_rs_datagram_send(port->port, packed, count, header, header_bytes,
				     address_of(&buffers[0]), buffers[0].bytes,
				     address_of(&buffers[1]), buffers[1].bytes, target, token);
}
EXPORT_SYMBOL_GPL(qnic_datagram_send);

int qnic_datagram_expect(struct qnic_datagram_port *port,
			 const struct qnic_datagram_buffer buffers[2], u64 *handle)
{
	if (!are_buffers(buffers) || !buffers[0].page)
		return -EINVAL;
	return qnic_rs_datagram_expect(port->port, address_of(&buffers[0]), buffers[0].bytes,
				       address_of(&buffers[1]), buffers[1].bytes, handle);
}
EXPORT_SYMBOL_GPL(qnic_datagram_expect);

void qnic_datagram_withdraw(struct qnic_datagram_port *port, u64 handle)
{
	qnic_rs_datagram_withdraw(port->port, handle);
}
EXPORT_SYMBOL_GPL(qnic_datagram_withdraw);

void qnic_datagram_give(struct qnic_datagram_port *port, struct page *page)
{
	qnic_rs_datagram_give(port->port, page_to_phys(page), PAGE_SIZE);
}
EXPORT_SYMBOL_GPL(qnic_datagram_give);

void qnic_datagram_deadline(struct qnic_datagram_port *port, u64 at_ns)
{
	qnic_rs_datagram_deadline(port->port, at_ns);
}
EXPORT_SYMBOL_GPL(qnic_datagram_deadline);

void qnic_upper_received(void *upper, u32 from, const u8 *header, u32 header_bytes, u64 first,
			 u64 second, u32 data_bytes, u64 steered)
{
	struct qnic_datagram_port *port = upper;
	struct qnic_datagram_message message = {
		.from = { .node = from >> 16, .port = from & 0xffff },
		.header = header,
		.header_bytes = header_bytes,
		.bytes = data_bytes,
		.pages = { page_at(first), page_at(second) },
		.steered = steered,
	};

	port->ops->received(port, port->context, &message);
}

void qnic_upper_sent(void *upper, u64 token, u32 failed, u32 status, u64 first, u64 second)
{
	struct qnic_datagram_port *port = upper;
	struct page *pages[2] = { page_at(first), page_at(second) };

	port->ops->sent(port, port->context, token, failed, pages);
}

void qnic_upper_withdrawn(void *upper, u64 handle, u64 address)
{
	struct qnic_datagram_port *port = upper;

	port->ops->withdrawn(port, port->context, handle, page_at(address));
}

void qnic_upper_deadline(void *upper, u64 now_ns)
{
	struct qnic_datagram_port *port = upper;

	if (port->ops->deadline)
		port->ops->deadline(port, port->context, now_ns);
}

void qnic_upper_gone(void *upper)
{
	struct qnic_datagram_port *port = upper;

	if (port->ops->gone)
		port->ops->gone(port, port->context);
}
