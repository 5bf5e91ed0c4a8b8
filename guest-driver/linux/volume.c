// SPDX-License-Identifier: GPL-2.0
/*
 * Volumes in the memory of other nodes as block devices, /dev/qnicmemN (H9).
 *
 *   queue_rq ─► qnic_rs_volume_transfer() for each page ─► servers
 *   qnic_volume_done() for each page ─► the last one ends the request
 *
 * A page is sent from its place, and read into its place. Nothing is allocated
 * between queue_rq and the end of a request, and the Rust part has room for as many pages as the
 * tags allow: so a guest can page out to it.
 */
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/bottom_half.h>
#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "ffi.h"
#include "shim.h"

#define PAGE_SECTORS_OF_BLOCK	(PAGE_SIZE >> SECTOR_SHIFT)
#define QUEUES_MAX		4
#define REQUESTS		(QNIC_VOLUME_PAGES / QNIC_REQUEST_PAGES)

/* Requests merge unless a driver says otherwise; before 6.14 it had to ask for it. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
#define MERGE_FLAG	BLK_MQ_F_SHOULD_MERGE
#else
#define MERGE_FLAG	0
#endif

struct qnic_volume {
	void *rust;
	struct gendisk *disk;
	struct blk_mq_tag_set tags;
	bool closing;			/* under disk->open_mutex: cannot be opened any more */
};

/* Beside each request. */
struct transfer {
	atomic_t pages;			/* under way, and 1 while queue_rq is at it */
	blk_status_t status;		/* of a page that has failed */
};

static void page_ends(struct request *request, blk_status_t status)
{
	struct transfer *transfer = blk_mq_rq_to_pdu(request);

	if (status)
		WRITE_ONCE(transfer->status, status);
	/* Full order: the last one sees whether another one has failed. */
	if (atomic_dec_and_test(&transfer->pages))
		blk_mq_end_request(request, READ_ONCE(transfer->status));
}

void qnic_volume_done(u64 token, s32 error)
{
	page_ends((struct request *)(uintptr_t)token, errno_to_blk_status(error));
}

/* dma_alignment and the size of a block let only whole pages through. */
static bool is_whole_pages(struct request *request)
{
	struct req_iterator iterator;
	struct bio_vec bv;

	rq_for_each_segment(bv, request, iterator) {
		if (bv.bv_offset || bv.bv_len != PAGE_SIZE)
			return false;
	}
	return true;
}

static blk_status_t queue_rq(struct blk_mq_hw_ctx *queue, const struct blk_mq_queue_data *data)
{
	struct qnic_volume *volume = queue->queue->queuedata;
	struct request *request = data->rq;
	struct transfer *transfer = blk_mq_rq_to_pdu(request);
	u64 block = blk_rq_pos(request) / PAGE_SECTORS_OF_BLOCK;
	bool writes = req_op(request) == REQ_OP_WRITE;
	struct req_iterator iterator;
	struct bio_vec bv;

	if (!writes && req_op(request) != REQ_OP_READ)
		return BLK_STS_NOTSUPP;
	if (!is_whole_pages(request))
		return BLK_STS_IOERR;
	atomic_set(&transfer->pages, 1);
	transfer->status = BLK_STS_OK;
	blk_mq_start_request(request);
	/*
	 * The client is served when softirqs are enabled again, at once and on a stack of their
	 * own: a task that pages out has little left of its own.
	 */
	local_bh_disable();
	rq_for_each_segment(bv, request, iterator) {
		u64 address = page_to_phys(bv.bv_page);

		atomic_inc(&transfer->pages);
		qnic_page_get(address);
		if (!qnic_rs_volume_transfer(volume->rust, writes, block++, address,
					     (uintptr_t)request))
			page_ends(request, BLK_STS_IOERR);
	}
	page_ends(request, BLK_STS_OK);
	/* The last request of a batch, and the task is about to wait: service runs in its place. */
	if (data->last && op_is_sync(request->cmd_flags))
		qnic_rs_volume_look_on(volume->rust);
	local_bh_enable();
	return BLK_STS_OK;
}

static const struct blk_mq_ops queue_ops = { .queue_rq = queue_rq };

static int volume_open(struct gendisk *disk, blk_mode_t mode)
{
	struct qnic_volume *volume = disk->private_data;

	return volume->closing ? -ENXIO : 0;
}

static void volume_free(struct gendisk *disk)
{
	kfree(disk->private_data);
}

static const struct block_device_operations volume_ops = {
	.owner = THIS_MODULE,
	.open = volume_open,
	.free_disk = volume_free,
};

static int make_disk(struct qnic_volume *volume)
{
	struct queue_limits limits = {
		.logical_block_size = PAGE_SIZE,
		.physical_block_size = PAGE_SIZE,
		.max_hw_sectors = QNIC_REQUEST_PAGES * PAGE_SECTORS_OF_BLOCK,
		.max_segments = QNIC_REQUEST_PAGES,
		.dma_alignment = PAGE_SIZE - 1,
		/* All servers get the same bytes, whenever a page is sent. */
		.features = BLK_FEAT_STABLE_WRITES,
	};
	unsigned int queues = min_t(unsigned int, num_online_cpus(), QUEUES_MAX);
	struct gendisk *disk;
	int ret;

	volume->tags.ops = &queue_ops;
	volume->tags.nr_hw_queues = queues;
	volume->tags.queue_depth = REQUESTS / queues;
	volume->tags.numa_node = NUMA_NO_NODE;
	volume->tags.cmd_size = sizeof(struct transfer);
	volume->tags.flags = MERGE_FLAG | BLK_MQ_F_NO_SCHED_BY_DEFAULT;
	ret = blk_mq_alloc_tag_set(&volume->tags);
	if (ret)
		return ret;
	disk = blk_mq_alloc_disk(&volume->tags, &limits, volume);
	if (IS_ERR(disk)) {
		blk_mq_free_tag_set(&volume->tags);
		return PTR_ERR(disk);
	}
	disk->fops = &volume_ops;
	disk->private_data = volume;
	disk->flags |= GENHD_FL_NO_PART;
	volume->disk = disk;
	return 0;
}

/* The disk is there, and not added or deleted already. */
static void drop_disk(struct qnic_volume *volume)
{
	struct gendisk *disk = volume->disk;

	blk_mq_free_tag_set(&volume->tags);
	qnic_rs_volume_detach(volume->rust);
	/* Frees the volume, now or when the last user closes it. */
	put_disk(disk);
}

int qnic_volume_new(struct qnic_dev *dev, int slot, u8 *argument, struct qnic_volume **made)
{
	struct qnic_volume *volume = kzalloc(sizeof(*volume), GFP_KERNEL);
	int ret;

	if (!volume)
		return -ENOMEM;
	ret = qnic_rs_volume_attach(dev->driver, slot, argument, &volume->rust);
	if (ret || !volume->rust) {
		kfree(volume);
		return ret;
	}
	ret = make_disk(volume);
	if (ret) {
		qnic_rs_volume_detach(volume->rust);
		kfree(volume);
		return ret;
	}
	snprintf(volume->disk->disk_name, sizeof(volume->disk->disk_name), "qnicmem%d",
		 dev->id * QNIC_VOLUMES + slot);
	set_capacity(volume->disk, qnic_rs_volume_blocks(volume->rust) * PAGE_SECTORS_OF_BLOCK);
	ret = device_add_disk(dev->node->misc.this_device, volume->disk, NULL);
	if (ret) {
		drop_disk(volume);
		return ret;
	}
	*made = volume;
	return 0;
}

bool qnic_volume_claim(struct qnic_volume *volume)
{
	struct gendisk *disk = volume->disk;
	bool is_free;

	mutex_lock(&disk->open_mutex);
	is_free = !disk_openers(disk);
	if (is_free)
		volume->closing = true;
	mutex_unlock(&disk->open_mutex);
	return is_free;
}

void qnic_volume_remove(struct qnic_volume *volume, bool gone)
{
	/* Unwritten pages are lost with the volume: no task waits for them. */
	if (gone)
		blk_mark_disk_dead(volume->disk);
	del_gendisk(volume->disk);
	drop_disk(volume);
}

int qnic_volume_call(struct qnic_volume *volume, u32 command, u8 *argument)
{
	return qnic_rs_volume_call(volume->rust, command, argument);
}
