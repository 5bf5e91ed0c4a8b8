/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How the module of the device of libibverbs (qnic_ib.ko) learns of NICs. It calls the functions
 * qnic_rs_verbs_...() of ffi.h, which this module exports.
 */
#ifndef QNIC_VERBS_H
#define QNIC_VERBS_H

#include <linux/types.h>

struct device;

struct qnic_verbs_client {
	/*
	 * A NIC has come up: `driver` is valid until remove() has returned, `id` is its number. Returns what
	 * remove() is called with; NULL: nothing.
	 */
	void *(*add)(void *driver, int id, struct device *parent);
	/* It is about to go: when this returns, all contexts are closed. */
	void (*remove)(void *device);
	/* Its port is up or down now; up at first. May say what is known already. */
	void (*port)(void *device, bool up);
	/* Atomic: an event of an object, QNIC_VERBS_* of abi.h; calls nothing of this module. */
	void (*event)(void *owner, u32 event);
};

/* There is one client at a time: -EBUSY. All calls of remove() are over when unregister has returned. */
int qnic_verbs_client_register(const struct qnic_verbs_client *client);
void qnic_verbs_client_unregister(const struct qnic_verbs_client *client);

#endif
