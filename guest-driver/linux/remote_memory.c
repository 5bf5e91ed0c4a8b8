// SPDX-License-Identifier: GPL-2.0
/*
 * The calls of remote memory on the character device: the volumes of a NIC, and the memory that it
 * offers (H9; abi/src/volume.rs).
 *
 * Locks, outermost first:
 *   volumes_lock   one task attaches or detaches at a time; may take as long as servers do
 *   serve_lock     one task serves or leaves at a time; may take as long as clients do
 *   memory_lock    the present volumes and memory: held for a look, or a change
 */
#include <linux/capability.h>
#include <linux/mm.h>
#include <linux/sizes.h>
#include <linux/unaligned.h>

#include "ffi.h"
#include "shim.h"

void qnic_memory_new(struct qnic_dev *dev)
{
	mutex_init(&dev->volumes_lock);
	mutex_init(&dev->serve_lock);
	mutex_init(&dev->memory_lock);
}

static void set_status(u8 *argument, u32 status)
{
	put_unaligned_le32(status, argument);
}

static u32 number_of(const u8 *argument)
{
	return get_unaligned_le32(argument + QNIC_VOLUME_OFFSET);
}

/* The place of the volume that a call names; -1: this NIC has no such volume. */
static int slot_of(struct qnic_dev *dev, const u8 *argument)
{
	u32 number = number_of(argument), first = dev->id * QNIC_VOLUMES;

	return number >= first && number - first < QNIC_VOLUMES ? (int)(number - first) : -1;
}

/* Puts a volume into its place, or takes it out. */
static struct qnic_volume *exchange(struct qnic_dev *dev, int slot, struct qnic_volume *volume)
{
	struct qnic_volume *before;

	mutex_lock(&dev->memory_lock);
	before = dev->volumes[slot];
	dev->volumes[slot] = volume;
	mutex_unlock(&dev->memory_lock);
	return before;
}

/* volumes_lock is held. */
static int attach(struct qnic_dev *dev, u8 *argument)
{
	struct qnic_volume *volume = NULL;
	int slot, ret;

	if (dev->memory_ended)
		return -ENODEV;
	for (slot = 0; slot < QNIC_VOLUMES && dev->volumes[slot]; slot++)
		;
	if (slot == QNIC_VOLUMES) {
		set_status(argument, QNIC_STATUS_EXHAUSTED);
		return 0;
	}
	ret = qnic_volume_new(dev, slot, argument, &volume);
	if (ret || !volume)
		return ret;
	exchange(dev, slot, volume);
	put_unaligned_le32(dev->id * QNIC_VOLUMES + slot, argument + QNIC_VOLUME_OFFSET);
	return 0;
}

/* volumes_lock is held. */
static int detach(struct qnic_dev *dev, u8 *argument)
{
	int slot = slot_of(dev, argument);

	if (slot < 0 || !dev->volumes[slot]) {
		set_status(argument, QNIC_STATUS_NO_SUCH_VOLUME);
	} else if (!qnic_volume_claim(dev->volumes[slot])) {
		set_status(argument, QNIC_STATUS_VOLUME_IN_USE);
	} else {
		qnic_volume_remove(exchange(dev, slot, NULL), false);
		set_status(argument, 0);
	}
	return 0;
}

static int ask_volume(struct qnic_dev *dev, u32 command, u8 *argument)
{
	int slot = slot_of(dev, argument), ret = 0;

	mutex_lock(&dev->memory_lock);
	if (slot < 0 || !dev->volumes[slot])
		set_status(argument, QNIC_STATUS_NO_SUCH_VOLUME);
	else
		ret = qnic_volume_call(dev->volumes[slot], command, argument);
	mutex_unlock(&dev->memory_lock);
	return ret;
}

static void set_served(struct qnic_dev *dev, void *memory)
{
	mutex_lock(&dev->memory_lock);
	dev->served = memory;
	mutex_unlock(&dev->memory_lock);
}

/* serve_lock is held. */
static int serve(struct qnic_dev *dev, u8 *argument)
{
	void *memory = NULL;
	int ret;

	if (dev->memory_ended)
		return -ENODEV;
	if (dev->served) {
		set_status(argument, QNIC_STATUS_PORT_IN_USE);
		return 0;
	}
	ret = qnic_rs_memory_serve(dev->driver, argument, &memory);
	if (!ret && memory)
		set_served(dev, memory);
	return ret;
}

/* serve_lock is held. */
static int leave(struct qnic_dev *dev, u8 *argument)
{
	void *memory = dev->served;
	int ret;

	if (!memory) {
		set_status(argument, QNIC_STATUS_NOT_SERVING);
		return 0;
	}
	ret = qnic_rs_memory_leave(memory, argument);
	if (!ret && !get_unaligned_le32(argument)) {
		set_served(dev, NULL);
		qnic_rs_memory_end(memory);
	}
	return ret;
}

static int ask_memory(struct qnic_dev *dev, u8 *argument)
{
	int ret;

	mutex_lock(&dev->memory_lock);
	ret = qnic_rs_memory_info(dev->served, argument);
	mutex_unlock(&dev->memory_lock);
	return ret;
}

/* A sixteenth of the memory, at least 16 MiB, stays: programs of this guest need more from time to time. */
bool qnic_may_take_pages(u64 pages)
{
	long available = si_mem_available();
	u64 spare = max_t(u64, totalram_pages() / 16, SZ_16M >> PAGE_SHIFT);

	return available > 0 && pages <= (u64)available && (u64)available - pages >= spare;
}

int qnic_memory_call(struct qnic_dev *dev, u32 command, u8 *argument)
{
	bool changes = command == QNIC_IOCTL_ATTACH_VOLUME || command == QNIC_IOCTL_DETACH_VOLUME;
	struct mutex *lock = changes ? &dev->volumes_lock : &dev->serve_lock;
	int ret;

	if (command == QNIC_IOCTL_MEMORY_INFO)
		return ask_memory(dev, argument);
	if (!changes && command != QNIC_IOCTL_SERVE_MEMORY && command != QNIC_IOCTL_LEAVE_MEMORY)
		return ask_volume(dev, command, argument);
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (mutex_lock_interruptible(lock))
		return -EINTR;
	if (command == QNIC_IOCTL_ATTACH_VOLUME)
		ret = attach(dev, argument);
	else if (command == QNIC_IOCTL_DETACH_VOLUME)
		ret = detach(dev, argument);
	else if (command == QNIC_IOCTL_SERVE_MEMORY)
		ret = serve(dev, argument);
	else
		ret = leave(dev, argument);
	mutex_unlock(lock);
	return ret;
}

/* The NIC goes away: so do its volumes, used or not, and the pages of others here. */
void qnic_memory_stop(struct qnic_dev *dev)
{
	struct qnic_volume *volume;
	void *memory;
	int slot;

	mutex_lock(&dev->volumes_lock);
	/* A task that leaves holds serve_lock for as long as it may wait for clients. */
	mutex_lock(&dev->memory_lock);
	if (dev->served)
		qnic_rs_memory_abandon(dev->served);
	mutex_unlock(&dev->memory_lock);
	mutex_lock(&dev->serve_lock);
	dev->memory_ended = true;
	for (slot = 0; slot < QNIC_VOLUMES; slot++) {
		volume = exchange(dev, slot, NULL);
		if (volume)
			qnic_volume_remove(volume, true);
	}
	memory = dev->served;
	set_served(dev, NULL);
	if (memory)
		qnic_rs_memory_end(memory);
	mutex_unlock(&dev->serve_lock);
	mutex_unlock(&dev->volumes_lock);
}

/* Returns true if the NIC has volumes, or has served memory: pages would be lost with it. */
bool qnic_memory_is_used(struct qnic_dev *dev)
{
	bool is_used;
	int slot;

	mutex_lock(&dev->memory_lock);
	is_used = dev->served;
	for (slot = 0; slot < QNIC_VOLUMES; slot++)
		is_used |= dev->volumes[slot] != NULL;
	mutex_unlock(&dev->memory_lock);
	return is_used;
}
