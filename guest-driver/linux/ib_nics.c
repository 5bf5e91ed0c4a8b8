// SPDX-License-Identifier: GPL-2.0
/*
 * The NICs of a guest, and the device of libibverbs of each.
 *
 * The devices have the number of rdma_rxe's driver. So when that module goes, the core unregisters them
 * with its own ones, and says so by dealloc_driver. They come again when it has gone. All else that
 * rdma_rxe does to a device begins with the network device that it belongs to: that must not be set by
 * ib_device_set_netdev(), as rdma_rxe would find the device by it and take it for one of its own.
 *
 * The core calls dealloc_driver from rmmod of rdma_rxe, which holds no reference to this module. So every
 * device is ended here by ib_unregister_device(), one that the core has unregistered too: it waits for
 * the lock of unregistrations, which the core holds until dealloc_driver has returned. A reference keeps
 * the device's memory until then.
 *
 *   rmmod rdma_rxe:   lock, close contexts, dealloc_driver, unlock
 *   here:                                                   lock, already done, unlock, put_device
 */
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "qnic_ib.h"

/* Guards the list, and the making of devices of NICs in it. Taken within the lock of verbs.c. */
static DEFINE_MUTEX(nics_lock);
static LIST_HEAD(nics);
/* Guards nic->device against those that read it without the first lock. The last lock. */
static DEFINE_SPINLOCK(made_lock);

void qnic_ib_made(struct qnic_ib_nic *nic, struct qnic_ib_device *device)
{
	get_device(&device->ib.dev);
	spin_lock(&made_lock);
	nic->device = device;
	spin_unlock(&made_lock);
}

void qnic_ib_gone(struct ib_device *ib)
{
	WRITE_ONCE(to_device(ib)->gone, true);
}

/* The device with a reference to its memory, or NULL. */
static struct qnic_ib_device *get(struct qnic_ib_nic *nic)
{
	struct qnic_ib_device *device;

	spin_lock(&made_lock);
	device = nic->device;
	if (device)
		get_device(&device->ib.dev);
	spin_unlock(&made_lock);
	return device;
}

static void put(struct qnic_ib_device *device)
{
	put_device(&device->ib.dev);
}

void qnic_ib_forget(struct qnic_ib_nic *nic)
{
	struct qnic_ib_device *device = nic->device;

	spin_lock(&made_lock);
	nic->device = NULL;
	spin_unlock(&made_lock);
	qnic_ib_stats_free(device->names, device->counters);
	put(device);
}

/* Ends the device, if there is one. The core calls nothing of it any more. */
static void end(struct qnic_ib_nic *nic)
{
	if (!nic->device)
		return;
	ib_unregister_device(&nic->device->ib);
	qnic_ib_forget(nic);
}

static void tell(struct qnic_ib_nic *nic, void (*tells)(struct qnic_ib_device *))
{
	struct qnic_ib_device *device = get(nic);

	if (!device)
		return;
	if (ib_device_try_get(&device->ib)) {
		tells(device);
		ib_device_put(&device->ib);
	}
	put(device);
}

/* An Ethernet port has come or gone, or is up or down. */
static int netdev_changes(struct notifier_block *block, unsigned long what, void *data)
{
	tell(container_of(block, struct qnic_ib_nic, netdevs), qnic_ib_tell_roce_port);
	return NOTIFY_DONE;
}

void *qnic_ib_add(void *driver, int id, struct device *parent)
{
	struct qnic_ib_nic *nic = kzalloc(sizeof(*nic), GFP_KERNEL);

	if (!nic)
		return NULL;
	nic->driver = driver;
	nic->id = id;
	nic->parent = parent;
	nic->netdevs.notifier_call = netdev_changes;
	spin_lock_init(&nic->roce_lock);
	mutex_lock(&nics_lock);
	list_add_tail(&nic->link, &nics);
	qnic_ib_make(nic);
	mutex_unlock(&nics_lock);
	if (register_netdevice_notifier(&nic->netdevs))
		dev_warn(parent, "programs of libibverbs do not hear when the Ethernet port goes down: no memory. Unload and load qnic_ib.\n");
	return nic;
}

void qnic_ib_remove(void *added)
{
	struct qnic_ib_nic *nic = added;

	unregister_netdevice_notifier(&nic->netdevs);
	mutex_lock(&nics_lock);
	list_del(&nic->link);
	mutex_unlock(&nics_lock);
	end(nic);
	kfree(nic);
}

void qnic_ib_port_is(void *added, bool up)
{
	struct qnic_ib_nic *nic = added;

	if (nic->port_down != up)
		return;
	WRITE_ONCE(nic->port_down, !up);
	tell(nic, qnic_ib_port);
}

/* rdma_rxe has gone, or has failed to come: what it has taken is made again. */
static int module_changes(struct notifier_block *block, unsigned long state, void *data)
{
	struct module *module = data;
	struct qnic_ib_nic *nic;

	if (state != MODULE_STATE_GOING || strcmp(module->name, "rdma_rxe"))
		return NOTIFY_DONE;
	mutex_lock(&nics_lock);
	list_for_each_entry(nic, &nics, link) {
		if (nic->device && !READ_ONCE(nic->device->gone))
			continue;
		end(nic);
		qnic_ib_make(nic);
	}
	mutex_unlock(&nics_lock);
	return NOTIFY_OK;
}

static struct notifier_block modules = {
	.notifier_call = module_changes,
};

int qnic_ib_nics_init(void)
{
	return register_module_notifier(&modules);
}

void qnic_ib_nics_exit(void)
{
	unregister_module_notifier(&modules);
}
