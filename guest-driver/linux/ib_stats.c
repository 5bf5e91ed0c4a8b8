// SPDX-License-Identifier: GPL-2.0
/*
 * What the NIC counts, as `rdma statistic` and sysfs show it. Which counters there are, the NIC says.
 */
#include <linux/slab.h>

#include "qnic_ib.h"

/* More than a NIC has. */
#define COUNTERS_MAX	4096

/* A call for a page of counters: uapi::Counters of the crate qnic-abi. */
struct page_call {
	__le32 status, source, first, reserved;
	__le32 total, unused;
	struct {
		char name[QNIC_COUNTER_NAME_BYTES];
		__le64 value;
	} counters[QNIC_PAGE_COUNTERS];
};

static_assert(sizeof(struct page_call) == QNIC_ARGUMENT_BYTES);

static int read_page(void *driver, u32 first, struct page_call *call)
{
	int ret;

	*call = (struct page_call){
		.source = cpu_to_le32(QNIC_COUNTERS_NIC),
		.first = cpu_to_le32(first),
	};
	ret = qnic_rs_counters(driver, (u8 *)call);
	if (!ret && call->status)
		ret = -EIO;
	return ret;
}

static int add_names(struct qnic_ib_device *device, struct page_call *call, u32 first)
{
	u32 i;

	for (i = first; i < min(first + QNIC_PAGE_COUNTERS, device->counters); i++) {
		device->names[i].name = kstrndup(call->counters[i - first].name, QNIC_COUNTER_NAME_BYTES,
						 GFP_KERNEL);
		if (!device->names[i].name)
			return -ENOMEM;
	}
	return 0;
}

int qnic_ib_stats_new(struct qnic_ib_device *device)
{
	struct page_call call;
	u32 first;
	int ret;

	ret = read_page(device->driver, 0, &call);
	if (ret)
		return ret;
	device->counters = le32_to_cpu(call.total);
	if (!device->counters || device->counters > COUNTERS_MAX)
		return -EINVAL;
	device->names = kcalloc(device->counters, sizeof(*device->names), GFP_KERNEL);
	if (!device->names)
		return -ENOMEM;
	for (first = 0; !ret && first < device->counters; first += QNIC_PAGE_COUNTERS) {
		ret = read_page(device->driver, first, &call);
		if (!ret)
			ret = add_names(device, &call, first);
	}
	if (ret) {
		qnic_ib_stats_free(device->names, device->counters);
		device->names = NULL;
	}
	return ret;
}

void qnic_ib_stats_free(struct rdma_stat_desc *names, u32 counters)
{
	u32 i;

	for (i = 0; names && i < counters; i++)
		kfree(names[i].name);
	kfree(names);
}

struct rdma_hw_stats *qnic_ib_alloc_stats(struct ib_device *ib, u32 port)
{
	struct qnic_ib_device *device = to_device(ib);

	return rdma_alloc_hw_stats_struct(device->names, device->counters,
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

/* The core takes the result for the number of counters, also when it asks for one: so all are read. */
int qnic_ib_get_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index)
{
	struct page_call call;
	u32 first, i;
	int ret;

	for (first = 0; first < stats->num_counters; first += QNIC_PAGE_COUNTERS) {
		ret = read_page(to_device(ib)->driver, first, &call);
		if (ret)
			return ret;
		for (i = 0; i < QNIC_PAGE_COUNTERS && first + i < stats->num_counters; i++)
			stats->value[first + i] = le64_to_cpu(call.counters[i].value);
	}
	return stats->num_counters;
}
