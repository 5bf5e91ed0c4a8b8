// SPDX-License-Identifier: GPL-2.0
/*
 * The virtio driver: finds queues, SRAM and doorbells, and hands them to the
 * Rust part.
 *
 * Order in probe: configuration, queues, SRAM, event buffers, device ready, Hello.
 * A reset between "ready" and the answer to Hello, which means that the SRAM is there,
 * would kill the device process and the emulator with it. So everything that can fail
 * comes before "ready", and qnic_rs_start() begins by waiting for the answer.
 */
#include <linux/idr.h>
#include <linux/io.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/reboot.h>
#include <linux/slab.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_pci.h>

#include "ffi.h"
#include "shim.h"

static DEFINE_IDA(qnic_ids);

static void dev_release(struct kref *references)
{
	struct qnic_dev *dev = container_of(references, struct qnic_dev, references);

	if (dev->sram)
		iounmap(dev->sram);
	destroy_workqueue(dev->workqueue);
	kfree(dev->events);
	kfree(dev);
}

void qnic_dev_put(struct qnic_dev *dev)
{
	kref_put(&dev->references, dev_release);
}

u32 qnic_doorbell_offset(struct qnic_dev *dev, u16 queue)
{
	return offset_in_page(dev->notify_address + (u64)queue * dev->notify_step);
}

/* Finds the notify registers, which virtio_pci keeps to itself. */
static int find_notify(struct qnic_dev *dev)
{
	struct device *parent = dev->vdev->dev.parent;
	struct pci_dev *pdev;
	u32 offset, step;
	u8 type, bar;
	int pos;

	if (!dev_is_pci(parent))
		return -ENODEV;
	pdev = to_pci_dev(parent);
	for (pos = pci_find_capability(pdev, PCI_CAP_ID_VNDR); pos;
	     pos = pci_find_next_capability(pdev, pos, PCI_CAP_ID_VNDR)) {
		pci_read_config_byte(pdev, pos + offsetof(struct virtio_pci_cap, cfg_type), &type);
		if (type != VIRTIO_PCI_CAP_NOTIFY_CFG)
			continue;
		pci_read_config_byte(pdev, pos + offsetof(struct virtio_pci_cap, bar), &bar);
		if (bar >= PCI_STD_NUM_BARS)
			return -ENODEV;
		pci_read_config_dword(pdev, pos + offsetof(struct virtio_pci_cap, offset), &offset);
		pci_read_config_dword(pdev, pos + sizeof(struct virtio_pci_cap), &step);
		dev->notify_address = pci_resource_start(pdev, bar) + offset;
		dev->notify_step = step;
		return 0;
	}
	return -ENODEV;
}

static int map_sram(struct qnic_dev *dev)
{
	struct virtio_shm_region region;

	if (!virtio_get_shm_region(dev->vdev, &region, QNIC_SRAM_REGION))
		return dev_err_probe(&dev->vdev->dev, -ENODEV, "the device has no SRAM region\n");
	if (!request_mem_region(region.addr, region.len, "qnic-sram"))
		return dev_err_probe(&dev->vdev->dev, -EBUSY, "the SRAM is in use\n");
	dev->sram_address = region.addr;
	dev->sram_bytes = region.len;
	dev->sram = ioremap(region.addr, region.len);
	return dev->sram ? 0 : -ENOMEM;
}

/* The mapping stays for as long as dev: only its owner uses it. */
static void release_sram(struct qnic_dev *dev)
{
	if (dev->sram_bytes)
		release_mem_region(dev->sram_address, dev->sram_bytes);
}

static int find_queues(struct qnic_dev *dev, int doorbells)
{
	struct virtqueue_info *info;
	int ret, i, count = QNIC_FIRST_DOORBELL + doorbells;

	if (count > QNIC_QUEUES_MAX)
		return -EINVAL;
	info = kcalloc(count, sizeof(*info), GFP_KERNEL);
	if (!info)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		info[i].name = "doorbell";
	info[QNIC_CONTROL] = (struct virtqueue_info){ "control", qnic_control_callback };
	info[QNIC_EVENT] = (struct virtqueue_info){ "event", qnic_event_callback };
	ret = virtio_find_vqs(dev->vdev, count, dev->queues, info, NULL);
	kfree(info);
	return ret;
}

static int post_events(struct qnic_dev *dev)
{
	unsigned int room = virtqueue_get_vring_size(dev->queues[QNIC_EVENT]);
	unsigned int i, count = min_t(unsigned int, room, QNIC_EVENTS);
	int ret;

	dev->events = kcalloc(count, sizeof(*dev->events), GFP_KERNEL);
	if (!dev->events)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		ret = qnic_event_post(dev, &dev->events[i]);
		if (ret)
			return ret;
	}
	return 0;
}

/* QEMU does not report that the device process has died: the driver has to ask. */
static void watchdog_run(struct work_struct *work)
{
	struct qnic_dev *dev = container_of(to_delayed_work(work), struct qnic_dev, watchdog);

	qnic_rs_check_device(dev->driver);
	queue_delayed_work(dev->workqueue, &dev->watchdog, QNIC_WATCHDOG_SECONDS * HZ);
}

/* A reboot resets the device beneath the driver. */
static int reboot_run(struct notifier_block *notifier, unsigned long action, void *unused)
{
	struct qnic_dev *dev = container_of(notifier, struct qnic_dev, reboot);

	qnic_rs_announce_reset(dev->driver);
	return NOTIFY_DONE;
}

static struct qnic_dev *dev_new(struct virtio_device *vdev, struct qnic_node *node)
{
	struct qnic_dev *dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	int i;

	if (!dev)
		return NULL;
	/*
	 * It sleeps with the guest: a fault that waits for a disk which sleeps already would never end. Kernels
	 * from 6.9 on run nothing any more on such a queue once work was cancelled that came while it was
	 * frozen, so a device that was reset gets another one.
	 */
	dev->workqueue = alloc_workqueue("qnic%d", WQ_UNBOUND | WQ_FREEZABLE, 0, node->id);
	if (!dev->workqueue) {
		kfree(dev);
		return NULL;
	}
	kref_init(&dev->references);
	dev->vdev = vdev;
	dev->node = node;
	dev->id = node->id;
	spin_lock_init(&dev->control_lock);
	init_waitqueue_head(&dev->control_room);
	mutex_init(&dev->stop_lock);
	spin_lock_init(&dev->event_lock);
	mutex_init(&dev->files_lock);
	INIT_LIST_HEAD(&dev->files);
	mutex_init(&dev->map_lock);
	INIT_DELAYED_WORK(&dev->watchdog, watchdog_run);
	qnic_datagrams_new(dev);
	qnic_memory_new(dev);
	qnic_verbs_new(dev);
	dev->reboot.notifier_call = reboot_run;
	for (i = 0; i < QNIC_WORKERS; i++) {
		dev->workers[i].dev = dev;
		INIT_WORK(&dev->workers[i].work, qnic_worker_run);
	}
	return dev;
}

/* From now on processes can open the device; or, if dev is NULL, none can. */
static void node_point_to(struct qnic_node *node, struct qnic_dev *dev)
{
	mutex_lock(&node->lock);
	node->dev = dev;
	mutex_unlock(&node->lock);
}

static struct qnic_node *node_new(struct virtio_device *vdev)
{
	struct qnic_node *node = kzalloc(sizeof(*node), GFP_KERNEL);
	int id;

	if (!node)
		return NULL;
	id = ida_alloc(&qnic_ids, GFP_KERNEL);
	if (id < 0) {
		kfree(node);
		return NULL;
	}
	node->id = id;
	mutex_init(&node->lock);
	snprintf(node->name, sizeof(node->name), "qnic%d", id);
	node->misc.minor = MISC_DYNAMIC_MINOR;
	node->misc.name = node->name;
	node->misc.fops = &qnic_fops;
	node->misc.parent = &vdev->dev;
	node->misc.mode = 0660;
	return node;
}

static void node_free(struct qnic_node *node)
{
	ida_free(&qnic_ids, node->id);
	kfree(node);
}

/* Undoes dev_start(); no process can open the device any more. */
static void dev_stop(struct qnic_dev *dev)
{
	int i;

	qnic_rs_begin_removal(dev->driver);
	qnic_stop(dev);
	qnic_rs_detach(dev->driver);
	qnic_revoke_mappings(dev);
	cancel_delayed_work_sync(&dev->watchdog);
	for (i = 0; i < QNIC_WORKERS; i++)
		cancel_work_sync(&dev->workers[i].work);
	/* A worker may have taken events before it saw that the device is stopped. */
	qnic_datagrams_stop(dev);
	qnic_verbs_end(dev);
}

/* Continues dev_up() from "ready" on; the queues are there. */
static int dev_start(struct qnic_dev *dev, const u8 *config)
{
	unsigned long flags;
	void *driver;
	int ret;

	virtio_device_ready(dev->vdev);
	virtqueue_kick(dev->queues[QNIC_EVENT]);
	kref_get(&dev->references);
	ret = qnic_rs_start(dev, config, (u8 __force *)dev->sram, dev->sram_bytes, &driver);
	if (ret) {
		qnic_stop(dev);
		return ret;
	}
	spin_lock_irqsave(&dev->event_lock, flags);
	dev->driver = driver;
	spin_unlock_irqrestore(&dev->event_lock, flags);
	qnic_event_callback(dev->queues[QNIC_EVENT]);
	queue_delayed_work(dev->workqueue, &dev->watchdog, QNIC_WATCHDOG_SECONDS * HZ);
	return 0;
}

/* Brings up a device that was reset. If that fails, dev has no driver, and is of no more use. */
static int dev_up(struct qnic_dev *dev)
{
	u8 config[QNIC_CONFIG_BYTES] __aligned(8);
	struct virtio_device *vdev = dev->vdev;
	int ret, doorbells;

	vdev->priv = dev;
	virtio_cread_bytes(vdev, 0, config, sizeof(config));
	doorbells = qnic_rs_check_config(config);
	if (doorbells < 0)
		return doorbells;
	ret = find_notify(dev);
	if (ret)
		return ret;
	ret = map_sram(dev);
	if (ret)
		goto err_sram;
	ret = find_queues(dev, doorbells);
	if (ret)
		goto err_sram;
	ret = post_events(dev);
	if (!ret)
		ret = dev_start(dev, config);
	if (!ret)
		return 0;
	vdev->config->del_vqs(vdev);
err_sram:
	release_sram(dev);
	return ret;
}

/* Lets processes and modules use the NIC. */
static void dev_open(struct qnic_dev *dev)
{
	node_point_to(dev->node, dev);
	register_reboot_notifier(&dev->reboot);
	qnic_datagrams_start(dev);
	qnic_verbs_start(dev);
}

/* Undoes dev_up() and dev_open(): processes, ports, peers and volumes learn that the NIC is gone. */
static void dev_down(struct qnic_dev *dev)
{
	node_point_to(dev->node, NULL);
	qnic_verbs_stop(dev);
	qnic_datagrams_refuse(dev);
	qnic_memory_stop(dev);
	unregister_reboot_notifier(&dev->reboot);
	qnic_rs_announce_reset(dev->driver);
	dev_stop(dev);
	dev->vdev->config->del_vqs(dev->vdev);
	release_sram(dev);
	qnic_rs_put(dev->driver);
}

static int qnic_probe(struct virtio_device *vdev)
{
	struct qnic_node *node = node_new(vdev);
	struct qnic_dev *dev;
	int ret = -ENOMEM;

	if (!node)
		return ret;
	dev = dev_new(vdev, node);
	if (!dev)
		goto err_node;
	ret = dev_up(dev);
	if (ret)
		goto err_dev;
	dev_open(dev);
	ret = misc_register(&node->misc);
	if (!ret)
		return 0;
	dev_down(dev);
err_dev:
	qnic_dev_put(dev);
err_node:
	node_free(node);
	return ret;
}

static void qnic_remove(struct virtio_device *vdev)
{
	struct qnic_dev *dev = vdev->priv;
	struct qnic_node *node = dev->node;

	misc_deregister(&node->misc);
	if (dev->driver)
		dev_down(dev);
	qnic_dev_put(dev);
	node_free(node);
}

#ifdef CONFIG_PM_SLEEP
/*
 * The guest is about to sleep: no process and no kernel thread runs, and QEMU may reset the device. So
 * this is a removal, but that the device file stays: what was open fails with ENODEV, what opens
 * it after qnic_restore() works. Pages of others, here or there, must not be lost by that.
 */
static int qnic_freeze(struct virtio_device *vdev)
{
	struct qnic_dev *fresh, *dev = vdev->priv;

	if (qnic_memory_is_used(dev)) {
		dev_err(&vdev->dev, "the guest cannot sleep: it has volumes of remote memory, or serves memory; see qnic-rmem detach and leave\n");
		return -EBUSY;
	}
	fresh = dev_new(vdev, dev->node);
	if (!fresh)
		return -ENOMEM;
	if (dev->driver)
		dev_down(dev);
	qnic_dev_put(dev);
	vdev->priv = fresh;
	return 0;
}

static int qnic_restore(struct virtio_device *vdev)
{
	struct qnic_dev *dev = vdev->priv;
	int ret = dev_up(dev);

	if (!ret)
		dev_open(dev);
	return ret;
}
#endif

static const struct virtio_device_id qnic_id_table[] = {
	{ QNIC_VIRTIO_ID, VIRTIO_DEV_ANY_ID },
	{ 0 },
};
MODULE_DEVICE_TABLE(virtio, qnic_id_table);

static struct virtio_driver qnic_driver = {
	.driver.name = "qnic",
	.id_table = qnic_id_table,
	.probe = qnic_probe,
	.remove = qnic_remove,
#ifdef CONFIG_PM_SLEEP
	.freeze = qnic_freeze,
	.restore = qnic_restore,
#endif
};

static int __init qnic_init(void)
{
	return register_virtio_driver(&qnic_driver);
}
module_init(qnic_init);

static void __exit qnic_exit(void)
{
	unregister_virtio_driver(&qnic_driver);
	mmu_notifier_synchronize();
}
module_exit(qnic_exit);

MODULE_DESCRIPTION("qnic: a programmable system-area NIC");
MODULE_AUTHOR("The qnic authors");
MODULE_LICENSE("GPL");
