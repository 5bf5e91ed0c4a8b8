// SPDX-License-Identifier: GPL-2.0
/*
 * Address spaces: interval notifiers, lookup and faulting in of pages. Host areas.
 * Nothing is pinned: frames are looked up, and the notifier unmaps them from the NIC
 * before the kernel changes or frees a page, or takes away write access. Only
 * a process that may access all memory anyway can ask for pinned memory, for comparison (N25).
 *
 * The NIC may do what the process may do, no more: a frame is looked up as a load or a store
 * of the process would, and given to the NIC for writing only while the process's own page
 * table entry is writable. So a store has ended copy on write before, and the file system has been
 * told that the page changes (page_mkwrite). Write-back takes the entry's write permission
 * away, and thereby the NIC's: the notifier runs before the page is saved, so the NIC's writes are in
 * the page, and the page is marked dirty, before it is written back (N7).
 */
#include <linux/capability.h>
#include <linux/dax.h>
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/hmm.h>
#include <linux/magic.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/moduleparam.h>
#include <linux/pfn.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/userfaultfd_k.h>

#include "ffi.h"
#include "shim.h"

struct qnic_notifier {
	struct mmu_interval_notifier interval;
	struct list_head link;		/* in space->regions */
	struct qnic_space *space;
	void *region;
};

u64 qnic_frames(void)
{
	return PFN_UP(__pa(high_memory - 1) + 1);
}

/*
 * The page is mapped writable while this runs: the region's invalidation, or the lock of the
 * NIC's page table that it needs, keeps it from being unmapped. set_page_dirty() requires
 * that, as in zap_pte_range(); truncation comes later. The lock of the NIC's page table
 * is never taken in an interrupt.
 */
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

/* Memory of memfd_secret(), which only its own process may access. */
static bool is_secret(struct vm_area_struct *vma)
{
	return vma->vm_file && file_inode(vma->vm_file)->i_sb->s_magic == SECRETMEM_MAGIC;
}

/*
 * Checks that this is ordinary memory that the process may access in this way. If others share a
 * page of it, it changes only as the process itself could change it. The mmap lock is held.
 * Result: 0, -EACCES if it is not writable, or QNIC_MEMORY_*.
 */
static int check_mapping(struct vm_area_struct *vma, bool write)
{
	if (vma->vm_flags & (VM_IO | VM_PFNMAP | VM_MIXEDMAP))
		return QNIC_MEMORY_DEVICE;
	if (is_secret(vma))
		return QNIC_MEMORY_SECRET;
	if (vma_is_dax(vma))
		return QNIC_MEMORY_DAX;
	/* A worker would wait for a program. */
	if (userfaultfd_armed(vma))
		return QNIC_MEMORY_USERFAULT;
	if (!(vma->vm_flags & VM_READ))
		return QNIC_MEMORY_UNREADABLE;
	return write && !(vma->vm_flags & VM_WRITE) ? -EACCES : 0;
}

/*
 * Checks all mappings of a range. The mmap lock is held. Result: 0, -EFAULT if there is a
 * hole, or that of check_mapping() for the first mapping that it refuses.
 */
static int check_range(struct mm_struct *mm, unsigned long start, unsigned long end, bool write)
{
	VMA_ITERATOR(iterator, mm, start);
	struct vm_area_struct *vma;
	unsigned long checked = start;
	int ret;

	for_each_vma_range(iterator, vma, end) {
		if (vma->vm_start > checked)
			return -EFAULT;
		ret = check_mapping(vma, write);
		if (ret)
			return ret;
		checked = vma->vm_end;
	}
	return checked < end ? -EFAULT : 0;
}

s32 qnic_memory_check(struct mm_struct *mm, u64 start, u64 bytes, bool write)
{
	int ret;

	if (!mmget_not_zero(mm))
		return -ESRCH;
	mmap_read_lock(mm);
	ret = check_range(mm, start, start + bytes, write);
	mmap_read_unlock(mm);
	mmput(mm);
	return ret;
}

static bool notifier_invalidate(struct mmu_interval_notifier *interval,
				const struct mmu_notifier_range *range, unsigned long sequence)
{
	struct qnic_notifier *notifier = container_of(interval, struct qnic_notifier, interval);

	return qnic_rs_invalidate(notifier->region, notifier, range->start, range->end,
				  mmu_notifier_range_blockable(range), sequence);
}

/*
 * The regions of an address space, for the kernel's questions whether a page is in use. It asks
 * with the lock of a page table held, so nothing here sleeps.
 */
static bool young = true;
module_param(young, bool, 0644);
MODULE_PARM_DESC(young, "Pages that the NIC uses count as used when the kernel reclaims memory");

struct qnic_space {
	struct mmu_notifier notifier;
	spinlock_t lock;
	struct list_head regions;	/* of struct qnic_notifier */
};

/* int or, in later kernels, bool */
typedef typeof(((struct mmu_notifier_ops *)NULL)->test_young(NULL, NULL, 0)) young_t;

static bool space_young(struct mmu_notifier *mn, unsigned long start, unsigned long end, bool forget)
{
	struct qnic_space *space = container_of(mn, struct qnic_space, notifier);
	struct qnic_notifier *notifier;
	bool used = false;

	if (!READ_ONCE(young))
		return false;
	spin_lock(&space->lock);
	list_for_each_entry(notifier, &space->regions, link)
		if (start <= notifier->interval.interval_tree.last &&
		    notifier->interval.interval_tree.start < end)
			used |= qnic_rs_is_young(notifier->region, start, end, forget);
	spin_unlock(&space->lock);
	return used;
}

static young_t space_clear_flush_young(struct mmu_notifier *mn, struct mm_struct *mm,
				       unsigned long start, unsigned long end)
{
	return space_young(mn, start, end, true);
}

static young_t space_clear_young(struct mmu_notifier *mn, struct mm_struct *mm, unsigned long start,
				 unsigned long end)
{
	return space_young(mn, start, end, true);
}

static young_t space_test_young(struct mmu_notifier *mn, struct mm_struct *mm,
				unsigned long address)
{
	return space_young(mn, address, address + 1, false);
}

static struct mmu_notifier *space_alloc(struct mm_struct *mm)
{
	struct qnic_space *space = kzalloc(sizeof(*space), GFP_KERNEL_ACCOUNT);

	if (!space)
		return ERR_PTR(-ENOMEM);
	spin_lock_init(&space->lock);
	INIT_LIST_HEAD(&space->regions);
	return &space->notifier;
}

static void space_free(struct mmu_notifier *mn)
{
	kfree(container_of(mn, struct qnic_space, notifier));
}

static const struct mmu_notifier_ops space_ops = {
	.clear_flush_young = space_clear_flush_young,
	.clear_young = space_clear_young,
	.test_young = space_test_young,
	.alloc_notifier = space_alloc,
	.free_notifier = space_free,
};

/* The one of an address space that lives; each has its own mmu_notifier_put(). */
static struct qnic_space *space_get(struct mm_struct *mm)
{
	struct mmu_notifier *mn = mmu_notifier_get(&space_ops, mm);

	return IS_ERR(mn) ? ERR_CAST(mn) : container_of(mn, struct qnic_space, notifier);
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
	notifier->space = space_get(mm);
	if (IS_ERR(notifier->space)) {
		ret = PTR_ERR(notifier->space);
		goto err_free;
	}
	ret = mmu_interval_notifier_insert(&notifier->interval, mm, start, bytes, &notifier_ops);
	if (ret)
		goto err_space;
	spin_lock(&notifier->space->lock);
	list_add(&notifier->link, &notifier->space->regions);
	spin_unlock(&notifier->space->lock);
	mmput(mm);
	*result = notifier;
	return 0;
err_space:
	mmu_notifier_put(&notifier->space->notifier);
err_free:
	mmput(mm);
	kfree(notifier);
	return ret;
}

void qnic_notifier_free(struct qnic_notifier *notifier)
{
	struct qnic_space *space = notifier->space;

	spin_lock(&space->lock);
	list_del(&notifier->link);
	spin_unlock(&space->lock);
	mmu_notifier_put(&space->notifier);
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

/*
 * How pages of a mapping are faulted in: not at all, as by a load or as by a store. Memory that is
 * private to the process from the start is always faulted in as by a store: a load would find
 * the zero page, which all processes share. The mmap lock is held.
 */
static unsigned long request_flags(struct vm_area_struct *vma, s32 fault)
{
	if (fault == QNIC_FAULT_NONE)
		return 0;
	if (fault == QNIC_FAULT_WRITE || (vma_is_anonymous(vma) && (vma->vm_flags & VM_WRITE)))
		return HMM_PFN_REQ_FAULT | HMM_PFN_REQ_WRITE;
	return HMM_PFN_REQ_FAULT;
}

/*
 * Looks up a range that begins in one mapping; the part behind the mapping is left out.
 * The mmap lock is held. Result: -errno or that of check_mapping().
 */
static int lookup_mapping(struct mm_struct *mm, struct hmm_range *range, s32 fault)
{
	struct vm_area_struct *vma = vma_lookup(mm, range->start);
	int ret;

	if (!vma)
		return -EFAULT;
	ret = check_mapping(vma, fault == QNIC_FAULT_WRITE);
	if (ret)
		return ret;
	range->end = min(range->end, vma->vm_end);
	range->default_flags = request_flags(vma, fault);
	return hmm_range_fault(range);
}

/* The result of qnic_notifier_lookup() for a page. */
static u64 frame_of(unsigned long pfn)
{
	if ((pfn & (HMM_PFN_VALID | HMM_PFN_ERROR)) != HMM_PFN_VALID)
		return 0;
	/* Memory of a device that looks like ordinary memory. */
	if (is_zone_device_page(hmm_pfn_to_page(pfn)))
		return 0;
	return ((u64)page_to_pfn(hmm_pfn_to_page(pfn)) + 1) << 1 | !!(pfn & HMM_PFN_WRITE);
}

s32 qnic_notifier_lookup(struct qnic_notifier *notifier, u64 start, u32 count, s32 fault, u64 *frames,
		      u64 *sequence)
{
	struct mm_struct *mm = notifier->interval.mm;
	struct mem_cgroup *group, *previous;
	unsigned long pfns[QNIC_FAULT_PAGES] = {};
	struct hmm_range range = {
		.notifier = &notifier->interval,
		.start = start,
		.end = start + ((u64)count << PAGE_SHIFT),
		.hmm_pfns = pfns,
	};
	u32 i;
	int ret;

	if (WARN_ON_ONCE(count > ARRAY_SIZE(pfns)))
		return -EINVAL;
	if (!mmget_not_zero(mm))
		return -ESRCH;
	/* Pages of a file are charged to the process, not to the worker. */
	group = get_mem_cgroup_from_mm(mm);
	previous = set_active_memcg(group);
	range.notifier_seq = mmu_interval_read_begin(&notifier->interval);
	*sequence = range.notifier_seq;
	mmap_read_lock(mm);
	ret = lookup_mapping(mm, &range, fault);
	mmap_read_unlock(mm);
	set_active_memcg(previous);
	mem_cgroup_put(group);
	mmput_async(mm);
	for (i = 0; !ret && i < count; i++)
		frames[i] = frame_of(pfns[i]);
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

u8 *qnic_host_area_memory(struct qnic_host_area *area, u32 page)
{
	return page < QNIC_HOST_PAGES ? page_address(area->pages[page]) : NULL;
}

struct page *qnic_host_area_page(struct qnic_host_area *area, unsigned long index)
{
	return index < QNIC_HOST_PAGES ? area->pages[index] : NULL;
}
