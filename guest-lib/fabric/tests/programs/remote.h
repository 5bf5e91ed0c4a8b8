/* Memory of one process that the other one reads and writes. */
#ifndef REMOTE_H
#define REMOTE_H

#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>

/* How the other process names its memory. */
struct region {
	uint64_t address;
	uint64_t key;
};

/* Registers memory, and tells the other process how to name it; a counter counts its writes, if one is given. */
static inline struct fid_mr *give_counted_region(struct side *side, void *memory, size_t length, uint64_t access,
						 struct fid_cntr *counter)
{
	struct region region = { 0 };
	struct fid_mr *mr;
	IS(fi_mr_reg(side->domain, memory, length, access, 0, 17, counter ? FI_RMA_EVENT : 0, &mr, NULL), 0);
	if (counter)
		IS(fi_mr_bind(mr, &counter->fid, FI_REMOTE_WRITE), 0);
	if (side->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR)
		region.address = (uintptr_t)memory;
	region.key = fi_mr_key(mr);
	link_write(side->link, &region, sizeof region);
	return mr;
}

static inline struct fid_mr *give_region(struct side *side, void *memory, size_t length, uint64_t access)
{
	return give_counted_region(side, memory, length, access, NULL);
}

static inline struct region get_region(struct side *side)
{
	struct region region;
	link_read(side->link, &region, sizeof region);
	return region;
}

#endif
