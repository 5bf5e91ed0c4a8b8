// SPDX-License-Identifier: GPL-2.0
/*
 * The character device: one open file is one process of the NIC, or its shared pools.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "ffi.h"
#include "shim.h"

struct qnic_file {
	struct list_head link;		/* in dev->files */
	struct qnic_dev *dev;
	void *driver;			/* a reference, which keeps dev */
	struct address_space *mapping;
	struct mutex register_lock;
	void *process;			/* set once; acquire, release */
	void *pools;			/* set once, in its place; acquire, release */
	struct mm_struct *mm;		/* that of the process */
	struct mmu_notifier end;	/* tells when mm ends */
	struct work_struct end_work;
	struct page *dummy_page;		/* replaces SRAM and doorbell once the device is gone */
};

/* The address space has ended, although another process may hold the file open. */
static void file_mm_ends(struct mmu_notifier *end, struct mm_struct *mm)
{
	struct qnic_file *f = container_of(end, struct qnic_file, end);

	queue_work(f->dev->workqueue, &f->end_work);
}

static const struct mmu_notifier_ops file_end_ops = { .release = file_mm_ends };

static void file_end_run(struct work_struct *work)
{
	struct qnic_file *f = container_of(work, struct qnic_file, end_work);
	void *process = smp_load_acquire(&f->process);

	if (process)
		qnic_rs_close(process);
}

static int qnic_open(struct inode *inode, struct file *file)
{
	struct qnic_node *node = container_of(file->private_data, struct qnic_node, misc);
	struct qnic_file *f = kzalloc(sizeof(*f), GFP_KERNEL);

	if (!f)
		return -ENOMEM;
	mutex_lock(&node->lock);
	f->dev = node->dev;
	if (f->dev)
		f->driver = qnic_rs_get(f->dev->driver);
	mutex_unlock(&node->lock);
	if (!f->dev) {
		kfree(f);
		return -ENODEV;
	}
	f->mapping = file->f_mapping;
	mutex_init(&f->register_lock);
	INIT_WORK(&f->end_work, file_end_run);
	mutex_lock(&f->dev->files_lock);
	list_add(&f->link, &f->dev->files);
	mutex_unlock(&f->dev->files_lock);
	file->private_data = f;
	return 0;
}

static int qnic_release(struct inode *inode, struct file *file)
{
	struct qnic_file *f = file->private_data;

	if (f->process) {
		mmu_notifier_unregister(&f->end, f->mm);
		cancel_work_sync(&f->end_work);
		qnic_rs_release(f->process);
		put_page(f->dummy_page);
	}
	if (f->pools) {
		qnic_rs_pools_close(f->pools);
		mmdrop(f->mm);
	}
	mutex_lock(&f->dev->files_lock);
	list_del(&f->link);
	mutex_unlock(&f->dev->files_lock);
	qnic_rs_put(f->driver);
	kfree(f);
	return 0;
}

/* The registered process, for a caller that lives in its address space. */
static void *file_process(struct qnic_file *f)
{
	void *process = smp_load_acquire(&f->process);

	return process && f->mm == current->mm ? process : NULL;
}

/* The pools that are open, for the same. */
static void *file_pools(struct qnic_file *f)
{
	void *pools = smp_load_acquire(&f->pools);

	return pools && f->mm == current->mm ? pools : NULL;
}

static int file_open_pools(struct qnic_file *f, u8 *argument)
{
	void *pools = NULL;
	int ret = qnic_rs_pools_open(f->driver, argument, &pools);

	if (ret || !pools)
		return ret;
	f->mm = current->mm;
	mmgrab(f->mm);
	smp_store_release(&f->pools, pools);
	return 0;
}

static int file_register(struct qnic_file *f, u8 *argument)
{
	void *process = NULL;
	int ret;

	f->dummy_page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!f->dummy_page)
		return -ENOMEM;
	f->mm = current->mm;
	f->end.ops = &file_end_ops;
	ret = mmu_notifier_register(&f->end, f->mm);
	if (ret)
		goto err_page;
	ret = qnic_rs_register(f->driver, f->mm, task_tgid_vnr(current), argument, &process);
	if (ret || !process)
		goto err_notifier;
	smp_store_release(&f->process, process);
	return 0;
err_notifier:
	mmu_notifier_unregister(&f->end, f->mm);
	cancel_work_sync(&f->end_work);
err_page:
	put_page(f->dummy_page);
	return ret;
}

static long qnic_ioctl(struct file *file, unsigned int command, unsigned long address)
{
	struct qnic_file *f = file->private_data;
	void __user *user = (void __user *)address;
	u8 argument[QNIC_ARGUMENT_BYTES] __aligned(8);
	int bytes = qnic_rs_argument_bytes(command);
	int ret;

	if (bytes < 0)
		return bytes;
	if (WARN_ON_ONCE(bytes > sizeof(argument)))
		return -EINVAL;
	if (copy_from_user(argument, user, bytes))
		return -EFAULT;
	if (command == QNIC_IOCTL_INFO) {
		ret = qnic_rs_info(f->driver, argument);
	} else if (command == QNIC_IOCTL_COUNTERS) {
		ret = qnic_rs_counters(f->driver, argument);
	} else if (_IOC_NR(command) >= QNIC_FIRST_MEMORY_CALL &&
		   _IOC_NR(command) <= QNIC_LAST_MEMORY_CALL) {
		ret = qnic_memory_call(f->dev, command, argument);
	} else if (command == QNIC_IOCTL_REGISTER) {
		mutex_lock(&f->register_lock);
		ret = f->process || f->pools ? -EBADFD : file_register(f, argument);
		mutex_unlock(&f->register_lock);
	} else if (command == QNIC_IOCTL_OPEN_POOLS) {
		mutex_lock(&f->register_lock);
		ret = f->process || f->pools ? -EBADFD : file_open_pools(f, argument);
		mutex_unlock(&f->register_lock);
	} else if (file_pools(f)) {
		ret = qnic_rs_pools_call(f->pools, command, argument);
	} else {
		void *process = file_process(f);

		ret = process ? qnic_rs_call(process, command, argument) : -EBADFD;
	}
	if (!ret && copy_to_user(user, argument, bytes))
		return -EFAULT;
	return ret;
}

static __poll_t qnic_poll(struct file *file, poll_table *table)
{
	struct qnic_file *f = file->private_data;
	void *process = file_process(f);
	__poll_t events = 0;
	s32 bits;

	if (file_pools(f))
		return qnic_pools_poll(f->pools, file, table);
	if (!process)
		return EPOLLERR;
	qnic_poll_wait(file, qnic_rs_waiters(process), table);
	bits = qnic_rs_poll(process);
	if (bits & QNIC_POLL_READABLE)
		events |= EPOLLIN | EPOLLRDNORM;
	if (bits & QNIC_POLL_GONE)
		events |= EPOLLERR;
	return events;
}

/* Window or doorbell; the first frame is in vm_private_data. */
static vm_fault_t device_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct qnic_file *f = vma->vm_file->private_data;
	unsigned long frame = (unsigned long)vma->vm_private_data;
	vm_fault_t ret;

	/*
	 * The lock makes revoking complete: a mapping of the device that was made
	 * before `revoked` is set is unmapped after it.
	 */
	mutex_lock(&f->dev->map_lock);
	if (f->dev->revoked)
		frame = page_to_pfn(f->dummy_page);
	else
		frame += (vmf->address - vma->vm_start) >> PAGE_SHIFT;
	ret = vmf_insert_pfn(vma, vmf->address, frame);
	mutex_unlock(&f->dev->map_lock);
	return ret;
}

static int refuse_split(struct vm_area_struct *vma, unsigned long address)
{
	return -EINVAL;
}

static int refuse_mremap(struct vm_area_struct *vma)
{
	return -EINVAL;
}

static const struct vm_operations_struct device_vm_ops = {
	.fault = device_fault,
	.may_split = refuse_split,
	.mremap = refuse_mremap,
};

static vm_fault_t map_host_page(struct vm_fault *vmf, unsigned long first)
{
	struct qnic_file *f = vmf->vma->vm_file->private_data;
	unsigned long index = first + ((vmf->address - vmf->vma->vm_start) >> PAGE_SHIFT);
	struct page *page = qnic_host_area_page(qnic_rs_host_area(f->process), index);

	if (!page)
		return VM_FAULT_SIGBUS;
	get_page(page);
	vmf->page = page;
	return 0;
}

static vm_fault_t host_area_fault(struct vm_fault *vmf)
{
	return map_host_page(vmf, 0);
}

static const struct vm_operations_struct host_area_vm_ops = {
	.fault = host_area_fault,
	.may_split = refuse_split,
	.mremap = refuse_mremap,
};

static vm_fault_t pool_fault(struct vm_fault *vmf)
{
	return map_host_page(vmf, QNIC_READ_ONLY_PAGES);
}

static const struct vm_operations_struct pool_vm_ops = {
	.fault = pool_fault,
	.may_split = refuse_split,
	.mremap = refuse_mremap,
};

static int qnic_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct qnic_file *f = file->private_data;
	void *process = file_process(f);
	unsigned long bytes = vma->vm_end - vma->vm_start;
	phys_addr_t address;
	u64 value;
	int kind;

	if (!process && !file_pools(f))
		return -EBADFD;
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_flags & VM_EXEC)
		return -EINVAL;
	if (!process)
		return qnic_pools_mmap(f->pools, vma);
	kind = qnic_rs_mapping(process, (u64)vma->vm_pgoff << PAGE_SHIFT, bytes,
			       vma->vm_flags & VM_WRITE, &value);
	if (kind < 0)
		return kind;
	/* A child does not inherit its parent's window. */
	vm_flags_mod(vma, VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY, VM_MAYEXEC);
	if (kind == QNIC_MAP_HOST_AREA) {
		vm_flags_clear(vma, VM_MAYWRITE);
		vma->vm_ops = &host_area_vm_ops;
		return 0;
	}
	if (kind == QNIC_MAP_POOL) {
		vma->vm_ops = &pool_vm_ops;
		return 0;
	}
	if (kind == QNIC_MAP_WINDOW)
		address = f->dev->sram_address + value;
	else
		address = f->dev->notify_address + value * f->dev->notify_step;
	vm_flags_set(vma, VM_IO | VM_PFNMAP);
	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	vma->vm_private_data = (void *)(unsigned long)PHYS_PFN(address);
	vma->vm_ops = &device_vm_ops;
	return 0;
}

const struct file_operations qnic_fops = {
	.owner = THIS_MODULE,
	.open = qnic_open,
	.release = qnic_release,
	.unlocked_ioctl = qnic_ioctl,
	.poll = qnic_poll,
	.mmap = qnic_mmap,
};

/* Unmaps SRAM and doorbells from every process; the device cannot be opened any more. */
void qnic_revoke_mappings(struct qnic_dev *dev)
{
	struct qnic_file *f;

	mutex_lock(&dev->map_lock);
	dev->revoked = true;
	mutex_unlock(&dev->map_lock);
	mutex_lock(&dev->files_lock);
	list_for_each_entry(f, &dev->files, link)
		unmap_mapping_range(f->mapping, 0, 0, 1);
	mutex_unlock(&dev->files_lock);
}
