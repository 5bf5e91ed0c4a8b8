// SPDX-License-Identifier: GPL-2.0
/*
 * mmap and poll of shared pools. The range is ordinary pages of the kernel: a process that has
 * them mapped keeps them when the pools are closed.
 */
#include <linux/mm.h>
#include <linux/poll.h>

#include "ffi.h"
#include "shim.h"

static vm_fault_t pools_fault(struct vm_fault *vmf)
{
	unsigned long index = (vmf->address - vmf->vma->vm_start) >> PAGE_SHIFT;
	u64 address = qnic_rs_pools_page(vmf->vma->vm_private_data, index);

	if (!address)
		return VM_FAULT_SIGBUS;
	vmf->page = pfn_to_page(PHYS_PFN(address));
	get_page(vmf->page);
	return 0;
}

static int refuse_split(struct vm_area_struct *vma, unsigned long address)
{
	return -EINVAL;
}

static int refuse_mremap(struct vm_area_struct *vma)
{
	return -EINVAL;
}

static const struct vm_operations_struct pools_vm_ops = {
	.fault = pools_fault,
	.may_split = refuse_split,
	.mremap = refuse_mremap,
};

/* The mapping holds the file, and the file holds the pools. */
int qnic_pools_mmap(void *pools, struct vm_area_struct *vma)
{
	int ret = qnic_rs_pools_mapping(pools, (u64)vma->vm_pgoff << PAGE_SHIFT,
					vma->vm_end - vma->vm_start);

	if (ret)
		return ret;
	/* A child does not inherit its parent's pools. */
	vm_flags_mod(vma, VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY, VM_MAYEXEC);
	vma->vm_private_data = pools;
	vma->vm_ops = &pools_vm_ops;
	return 0;
}

__poll_t qnic_pools_poll(void *pools, struct file *file, poll_table *table)
{
	__poll_t events = 0;
	s32 bits;

	qnic_poll_wait(file, qnic_rs_pools_waiters(pools), table);
	bits = qnic_rs_pools_poll(pools);
	if (bits & QNIC_POLL_READABLE)
		events |= EPOLLIN | EPOLLRDNORM;
	if (bits & QNIC_POLL_GONE)
		events |= EPOLLERR;
	return events;
}
