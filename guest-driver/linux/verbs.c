// SPDX-License-Identifier: GPL-2.0
/*
 * Verbs: the list of NICs for the module that makes devices of libibverbs of them (qnic_verbs.h).
 */
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/virtio.h>

#include "ffi.h"
#include "qnic_verbs.h"
#include "shim.h"

/* Guards the list, the client, and what it has made of each device. */
static DEFINE_MUTEX(client_lock);
static LIST_HEAD(devices);
static const struct qnic_verbs_client *client;

static void tell_of(struct qnic_dev *dev)
{
	if (!client)
		return;
	dev->verbs = client->add(dev->driver, dev->id, &dev->vdev->dev);
	if (dev->verbs)
		client->port(dev->verbs, !READ_ONCE(dev->port_down));
}

static void port_run(struct work_struct *work)
{
	struct qnic_dev *dev = container_of(work, struct qnic_dev, port);

	mutex_lock(&client_lock);
	if (dev->verbs)
		client->port(dev->verbs, !READ_ONCE(dev->port_down));
	mutex_unlock(&client_lock);
}

void qnic_verbs_new(struct qnic_dev *dev)
{
	INIT_WORK(&dev->port, port_run);
}

/* The device is reset, and the workers have ended: no event comes. */
void qnic_verbs_end(struct qnic_dev *dev)
{
	cancel_work_sync(&dev->port);
}

void qnic_verbs_port(struct qnic_dev *dev, bool up)
{
	WRITE_ONCE(dev->port_down, !up);
	schedule_work(&dev->port);
}

static void take_back(struct qnic_dev *dev)
{
	if (dev->verbs)
		client->remove(dev->verbs);
	dev->verbs = NULL;
}

void qnic_verbs_start(struct qnic_dev *dev)
{
	mutex_lock(&client_lock);
	list_add_tail(&dev->verbs_link, &devices);
	tell_of(dev);
	mutex_unlock(&client_lock);
}

/* The NIC is still there: objects are destroyed as always. */
void qnic_verbs_stop(struct qnic_dev *dev)
{
	mutex_lock(&client_lock);
	take_back(dev);
	list_del(&dev->verbs_link);
	mutex_unlock(&client_lock);
}

int qnic_verbs_client_register(const struct qnic_verbs_client *registers)
{
	struct qnic_dev *dev;
	int ret = -EBUSY;

	mutex_lock(&client_lock);
	if (!client) {
		/* Release; partner: the acquire load of qnic_verbs_event(). */
		smp_store_release(&client, registers);
		list_for_each_entry(dev, &devices, verbs_link)
			tell_of(dev);
		ret = 0;
	}
	mutex_unlock(&client_lock);
	return ret;
}
EXPORT_SYMBOL_GPL(qnic_verbs_client_register);

void qnic_verbs_client_unregister(const struct qnic_verbs_client *unregisters)
{
	struct qnic_dev *dev;

	mutex_lock(&client_lock);
	list_for_each_entry(dev, &devices, verbs_link)
		take_back(dev);
	/* No object is left, so no event comes. */
	WRITE_ONCE(client, NULL);
	mutex_unlock(&client_lock);
}
EXPORT_SYMBOL_GPL(qnic_verbs_client_unregister);

void qnic_verbs_event(u64 owner, u32 event)
{
	smp_load_acquire(&client)->event((void *)(unsigned long)owner, event);
}

EXPORT_SYMBOL_GPL(qnic_rs_counters);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_open);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_close);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_node);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_number);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_create_cq);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_destroy_cq);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_create_srq);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_modify_srq);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_destroy_srq);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_srq_number);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_create_qp);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_modify_qp);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_query_qp);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_destroy_qp);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_qp_number);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_path);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_management_header);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_management_route);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_management_admit);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_management_asked);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_register);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_deregister);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_send);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_arm);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_cq_ring);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_srq_ring);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_qp_ring);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_ring_bytes);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_ring_page);
EXPORT_SYMBOL_GPL(qnic_rs_verbs_ring_put);
