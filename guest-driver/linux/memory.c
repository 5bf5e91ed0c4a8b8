// SPDX-License-Identifier: GPL-2.0
/*
 * Address spaces: interval notifiers, lookup and faulting in of pages. Host areas.
 * Nothing is pinned: frames are looked up, and the notifier unmaps them from the NIC
 * before the kernel changes or frees a page. Only a process that may access all
 * memory anyway can ask for pinned memory, to compare (N25).
 */
#include <linux/capability.h>
#include <linux/gfp.h>
#include <linux/hmm.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/pfn.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "ffi.h"
#include "shim.h"

struct qnic_notifier {
	struct mmu_interval_notifier interval;
	void *region;
};

u64 qnic_frames(void)
{
	return PFN_UP(__pa(high_memory - 1) + 1);
}

void qnic_mark_dirty(u64 frame)
{
	set_page_dirty(pfn_to_page(frame));
}

void qnic_space_get(struct mm_struct *mm)
{
	mmgrab(mm);
}

void qnic_space_put(struct mm_struct *mm)
{
	mmdrop(mm);
}

/*
 * Only private anonymous memory that the process can write is exported: such a
 * page belongs to this process alone, so the device can harm no other process. The
 * mmap lock is held. Result: 0, -errno, or QNIC_MEMORY_* for the first mapping that
 * is of another kind.
 */
static int check_range(struct mm_struct *mm, unsigned long start, unsigned long end)
{
	VMA_ITERATOR(iterator, mm, start);
	struct vm_area_struct *vma;
	unsigned long checked = start;

	for_each_vma_range(iterator, vma, end) {
		if (vma->vm_start > checked)
			return -EFAULT;
		if (vma->vm_flags & (VM_IO | VM_PFNMAP | VM_MIXEDMAP))
			return QNIC_MEMORY_DEVICE;
		if (vma->vm_flags & VM_HUGETLB)
			return QNIC_MEMORY_HUGETLB;
		if (vma->vm_flags & VM_SHARED)
			return QNIC_MEMORY_SHARED;
		if (!vma_is_anonymous(vma))
			return QNIC_MEMORY_FILE;
		if (!(vma->vm_flags & VM_WRITE))
			return -EACCES;
		checked = vma->vm_end;
	}
	return checked < end ? -EFAULT : 0;
}

static bool notifier_invalidate(struct mmu_interval_notifier *interval,
				const struct mmu_notifier_range *range, unsigned long sequence)
{
	struct qnic_notifier *notifier = container_of(interval, struct qnic_notifier, interval);

	return qnic_rs_invalidate(notifier->region, notifier, range->start, range->end,
				  mmu_notifier_range_blockable(range), sequence);
}

static const struct mmu_interval_notifier_ops notifier_ops = { .invalidate = notifier_invalidate };

s32 qnic_notifier_new(struct mm_struct *mm, u64 start, u64 bytes, void *region,
		   struct qnic_notifier **result)
{
	struct qnic_notifier *notifier;
	int ret;

	if (!mmget_not_zero(mm))
		return -ESRCH;
	notifier = kzalloc(sizeof(*notifier), GFP_KERNEL_ACCOUNT);
	if (!notifier) {
		mmput(mm);
		return -ENOMEM;
	}
	notifier->region = region;
	mmap_read_lock(mm);
	ret = check_range(mm, start, start + bytes);
	mmap_read_unlock(mm);
	if (!ret)
		ret = mmu_interval_notifier_insert(&notifier->interval, mm, start, bytes, &notifier_ops);
	mmput(mm);
	if (ret)
		kfree(notifier);
	else
		*result = notifier;
	return ret;
}

void qnic_notifier_free(struct qnic_notifier *notifier)
{
	mmu_interval_notifier_remove(&notifier->interval);
	kfree(notifier);
}

void qnic_notifier_set_seq(struct qnic_notifier *notifier, u64 sequence)
{
	mmu_interval_set_seq(&notifier->interval, sequence);
}

bool qnic_notifier_retry(struct qnic_notifier *notifier, u64 sequence)
{
	return mmu_interval_read_retry(&notifier->interval, sequence);
}

s32 qnic_notifier_lookup(struct qnic_notifier *notifier, u64 start, u32 count, bool fault, u64 *frames,
		      u64 *sequence)
{
	struct mm_struct *mm = notifier->interval.mm;
	unsigned long pfns[QNIC_FAULT_PAGES];
	struct hmm_range range = {
		.notifier = &notifier->interval,
		.start = start,
		.end = start + ((u64)count << PAGE_SHIFT),
		.hmm_pfns = pfns,
		.default_flags = fault ? HMM_PFN_REQ_FAULT | HMM_PFN_REQ_WRITE : 0,
	};
	u32 i;
	int ret;

	if (WARN_ON_ONCE(count > ARRAY_SIZE(pfns)))
		return -EINVAL;
	if (!mmget_not_zero(mm))
		return -ESRCH;
	range.notifier_seq = mmu_interval_read_begin(&notifier->interval);
	*sequence = range.notifier_seq;
	mmap_read_lock(mm);
	ret = check_range(mm, start, range.end);
	if (!ret)
		ret = hmm_range_fault(&range);
	mmap_read_unlock(mm);
	mmput_async(mm);
	for (i = 0; !ret && i < count; i++) {
		const unsigned long want = HMM_PFN_VALID | HMM_PFN_WRITE;

		if ((pfns[i] & (want | HMM_PFN_ERROR)) == want)
			frames[i] = page_to_pfn(hmm_pfn_to_page(pfns[i])) + 1;
		else
			frames[i] = 0;
	}
	return ret;
}

/* ---- physical addresses (N25) ---- */

struct qnic_pin {
	unsigned long count;
	struct page *pages[];
};

bool qnic_may_use_physical(void)
{
	return capable(CAP_SYS_RAWIO);
}

s32 qnic_pin_new(u64 address, u64 bytes, struct qnic_pin **result, u64 *physical)
{
	unsigned long start = address & PAGE_MASK;
	unsigned long count = (PAGE_ALIGN(address + bytes) - start) >> PAGE_SHIFT;
	struct qnic_pin *pin;
	unsigned long i;

	if (!count || count > INT_MAX)
		return -EINVAL;
	pin = kvzalloc(struct_size(pin, pages, count), GFP_KERNEL_ACCOUNT);
	if (!pin)
		return -ENOMEM;
	while (pin->count < count) {
		int pinned = pin_user_pages_fast(start + (pin->count << PAGE_SHIFT),
						 count - pin->count, FOLL_WRITE | FOLL_LONGTERM,
						 pin->pages + pin->count);

		if (pinned <= 0) {
			qnic_pin_free(pin);
			return pinned ? pinned : -EFAULT;
		}
		pin->count += pinned;
	}
	for (i = 1; i < count; i++) {
		if (page_to_pfn(pin->pages[i]) != page_to_pfn(pin->pages[0]) + i) {
			qnic_pin_free(pin);
			return -EINVAL;
		}
	}
	*physical = PFN_PHYS(page_to_pfn(pin->pages[0])) + offset_in_page(address);
	*result = pin;
	return 0;
}

void qnic_pin_free(struct qnic_pin *pin)
{
	unpin_user_pages_dirty_lock(pin->pages, pin->count, true);
	kvfree(pin);
}

/* ---- host areas ---- */

struct qnic_host_area {
	struct page *pages[QNIC_HOST_PAGES];
};

struct qnic_host_area *qnic_host_area_new(void)
{
	struct qnic_host_area *area = kzalloc(sizeof(*area), GFP_KERNEL_ACCOUNT);
	int i;

	if (!area)
		return NULL;
	for (i = 0; i < QNIC_HOST_PAGES; i++) {
		area->pages[i] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!area->pages[i]) {
			qnic_host_area_free(area);
			return NULL;
		}
	}
	return area;
}

/* Pages that a process still has mapped stay until it unmaps them. */
void qnic_host_area_free(struct qnic_host_area *area)
{
	int i;

	for (i = 0; i < QNIC_HOST_PAGES; i++) {
		if (area->pages[i])
			put_page(area->pages[i]);
	}
	kfree(area);
}

u64 qnic_host_area_address(struct qnic_host_area *area, u32 page)
{
	return page < QNIC_HOST_PAGES ? PFN_PHYS(page_to_pfn(area->pages[page])) : 0;
}

void qnic_host_area_store(struct qnic_host_area *area, u32 offset, u64 value)
{
	if (WARN_ON_ONCE(offset > PAGE_SIZE - sizeof(u64)))
		return;
	smp_store_release((u64 *)(page_address(area->pages[0]) + offset), value);
}

struct page *qnic_host_area_page(struct qnic_host_area *area, unsigned long index)
{
	return index < QNIC_HOST_PAGES ? area->pages[index] : NULL;
}
