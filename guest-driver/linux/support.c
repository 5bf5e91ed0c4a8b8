// SPDX-License-Identifier: GPL-2.0
/*
 * Allocation, locks, waiting, time and the log, as functions that Rust can call.
 */
#include <linux/bottom_half.h>
#include <linux/bug.h>
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/printk.h>
#include <linux/random.h>
#include <linux/ratelimit.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "ffi.h"
#include "shim.h"

void *qnic_alloc(u64 bytes)
{
	if (bytes <= PAGE_SIZE)
		return kmalloc(roundup_pow_of_two(bytes), GFP_KERNEL | __GFP_NOFAIL);
	return kvmalloc(bytes, GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
}

void qnic_free(void *memory)
{
	kvfree(memory);
}

void qnic_log(u32 level, const u8 *text, u64 bytes)
{
	int length = min_t(u64, bytes, INT_MAX);

	if (level == 0)
		pr_err("qnic: %.*s\n", length, (const char *)text);
	else if (level == 1)
		pr_warn_ratelimited("qnic: %.*s\n", length, (const char *)text);
	else
		pr_info("qnic: %.*s\n", length, (const char *)text);
}

void qnic_bug(void)
{
	BUG();
}

void *qnic_mutex_new(void)
{
	struct mutex *lock = kmalloc(sizeof(*lock), GFP_KERNEL_ACCOUNT);

	if (lock)
		mutex_init(lock);
	return lock;
}

void qnic_mutex_free(void *lock)
{
	mutex_destroy(lock);
	kfree(lock);
}

void qnic_mutex_lock(void *lock)
{
	mutex_lock(lock);
}

bool qnic_mutex_trylock(void *lock)
{
	return mutex_trylock(lock);
}

void qnic_mutex_unlock(void *lock)
{
	mutex_unlock(lock);
}

void *qnic_spin_new(void)
{
	spinlock_t *lock = kmalloc(sizeof(*lock), GFP_KERNEL_ACCOUNT);

	if (lock)
		spin_lock_init(lock);
	return lock;
}

void qnic_spin_free(void *lock)
{
	kfree(lock);
}

u64 qnic_spin_lock(void *lock)
{
	unsigned long flags;

	spin_lock_irqsave((spinlock_t *)lock, flags);
	return flags;
}

void qnic_spin_unlock(void *lock, u64 flags)
{
	spin_unlock_irqrestore((spinlock_t *)lock, flags);
}

void *qnic_waiters_new(void)
{
	wait_queue_head_t *head = kmalloc(sizeof(*head), GFP_KERNEL_ACCOUNT);

	if (head)
		init_waitqueue_head(head);
	return head;
}

void qnic_waiters_free(void *waiters)
{
	kfree(waiters);
}

void qnic_waiters_wake(void *waiters)
{
	wake_up_all((wait_queue_head_t *)waiters);
}

void qnic_poll_wait(struct file *file, void *waiters, poll_table *table)
{
	poll_wait(file, (wait_queue_head_t *)waiters, table);
}

s32 qnic_wait(void *waiters, bool (*ready)(const void *), const void *context, s64 timeout_ns)
{
	wait_queue_head_t *head = waiters;
	ktime_t timeout = timeout_ns < 0 ? KTIME_MAX : ns_to_ktime(timeout_ns);
	int ret;

	ret = wait_event_interruptible_hrtimeout(*head, ready(context), timeout);
	return ret == -ERESTARTSYS ? -EINTR : ret;
}

u64 qnic_now_ns(void)
{
	return ktime_get_ns();
}

/* Sleeps, as the kernel does between polls of a register: the host can run the device. */
void qnic_yield(void)
{
	usleep_range(25, 50);
}

/* Softirq work that was raised meanwhile runs here at the end, and not in a thread of its own. */
void qnic_undisturbed(void)
{
	local_bh_disable();
}

void qnic_disturbed(void)
{
	local_bh_enable();
}

/* The condition of the kernel's own polling: for the network, or in a halted guest. */
bool qnic_may_look(void)
{
	if (need_resched() || local_softirq_pending() || signal_pending(current) ||
	    !single_task_running())
		return false;
	cpu_relax();
	return true;
}

/* In softirq context: what the processor would do next instead. */
s32 qnic_spare(void)
{
	if (need_resched() || local_softirq_pending())
		return QNIC_SPARE_WORK;
	if (!is_idle_task(current))
		return single_task_running() ? QNIC_SPARE_THREAD : QNIC_SPARE_WORK;
	cpu_relax();
	return QNIC_SPARE_HALT;
}

u64 qnic_random(void)
{
	return get_random_u64();
}
