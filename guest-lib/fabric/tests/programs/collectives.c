/* Each collective gives what it has to, for elements of several types and any number of them. */
#include "common.h"
#include "group.h"

#define MOST 300000

static uint64_t given[2 * MOST], taken[2 * MOST];

static void wants(struct fi_info *hints)
{
	hints->caps = FI_MSG | FI_COLLECTIVE;
}

static bool offers(struct side *side, enum fi_collective_op kind, enum fi_datatype type, enum fi_op op)
{
	struct fi_collective_attr attr = { .op = op, .datatype = type };
	int found = fi_query_collective(side->domain, kind, &attr, 0);
	if (found == 0)
		CHECK(attr.max_members >= 2);
	return found == 0;
}

/* What a member gives. */
static uint64_t element(int rank, size_t at)
{
	return (rank + 1) * 1000 + at * 7 + 1;
}

static void prepare(int rank, size_t count)
{
	size_t at;
	for (at = 0; at < count; at++)
		given[at] = element(rank, at);
	memset(taken, 0xee, sizeof taken);
}

#define END(call)                                    \
	do {                                         \
		context_t context_;                  \
		AGAIN(side, call(&context_));        \
		expect(side, &context_);             \
	} while (0)

/* The elements that were taken from `first` on, and no others. */
static void is_taken(size_t first, size_t count)
{
	size_t at;
	for (at = 0; at < 2 * MOST; at++)
		if (at < first || at >= first + count)
			CHECK(taken[at] == 0xeeeeeeeeeeeeeeee);
}

static void move(struct side *side, struct group *group, int rank, size_t count)
{
	size_t at;
	int from;
#define BROADCAST(context) \
	fi_broadcast(side->ep, given, count, NULL, group->address, address_b, FI_UINT64, 0, context)
	prepare(rank, count);
	END(BROADCAST);
	for (at = 0; at < count; at++)
		CHECK(given[at] == element(1, at));
#define ALLGATHER(context) \
	fi_allgather(side->ep, given, count, NULL, taken, NULL, group->address, FI_UINT64, 0, context)
	prepare(rank, count);
	END(ALLGATHER);
	for (at = 0; at < 2 * count; at++)
		CHECK(taken[at] == element(at >= count, at % count));
	is_taken(0, 2 * count);
#define GATHER(context) \
	fi_gather(side->ep, given, count, NULL, taken, NULL, group->address, address_a, FI_UINT64, 0, context)
	prepare(rank, count);
	END(GATHER);
	is_taken(0, rank ? 0 : 2 * count);
	for (at = 0; !rank && at < 2 * count; at++)
		CHECK(taken[at] == element(at >= count, at % count));
#define SCATTER(context) \
	fi_scatter(side->ep, given, count, NULL, taken, NULL, group->address, address_a, FI_UINT64, 0, context)
	prepare(rank, 2 * count);
	END(SCATTER);
	for (at = 0; at < count; at++)
		CHECK(taken[at] == element(0, rank * count + at));
	is_taken(0, count);
#define ALLTOALL(context) \
	fi_alltoall(side->ep, given, count, NULL, taken, NULL, group->address, FI_UINT64, 0, context)
	prepare(rank, 2 * count);
	END(ALLTOALL);
	for (from = 0; from < 2; from++)
		for (at = 0; at < count; at++)
			CHECK(taken[from * count + at] == element(from, rank * count + at));
	is_taken(0, 2 * count);
}

static void reduce(struct side *side, struct group *group, int rank, size_t count)
{
	size_t at;
#define ALLREDUCE(context)                                                                           \
	fi_allreduce(side->ep, given, count, NULL, taken, NULL, group->address, FI_UINT64, FI_SUM, 0, \
		     context)
	prepare(rank, count);
	END(ALLREDUCE);
	for (at = 0; at < count; at++)
		CHECK(taken[at] == element(0, at) + element(1, at));
	is_taken(0, count);
#define REDUCE(context)                                                                            \
	fi_reduce(side->ep, given, count, NULL, taken, NULL, group->address, address_b, FI_UINT64, \
		  FI_MAX, 0, context)
	prepare(rank, count);
	END(REDUCE);
	is_taken(0, rank ? count : 0);
	for (at = 0; rank && at < count; at++)
		CHECK(taken[at] == element(1, at));
#define REDUCE_SCATTER(context)                                                                      \
	fi_reduce_scatter(side->ep, given, count, NULL, taken, NULL, group->address, FI_UINT64, FI_SUM, \
			  0, context)
	prepare(rank, 2 * count);
	END(REDUCE_SCATTER);
	for (at = 0; at < count; at++)
		CHECK(taken[at] == element(0, rank * count + at) + element(1, rank * count + at));
	is_taken(0, count);
}

/* Sums, products and truths of elements of a type: those of a are 3, 0 and the least, those of b 5, 7 and the greatest. */
#define REDUCTIONS(type, number, least, most)                                                      \
	static void reduce_##type(struct side *side, struct group *group, int rank)                \
	{                                                                                          \
		static const struct {                                                              \
			enum fi_op op;                                                             \
			type expected[3];                                                          \
		} cases[] = {                                                                      \
			{ FI_SUM, { 8, 7, (type)(least + most) } },                                \
			{ FI_PROD, { 15, 0, (type)(least * most) } },                              \
			{ FI_MIN, { 3, 0, least } },                                               \
			{ FI_MAX, { 5, 7, most } },                                                \
			{ FI_LOR, { 1, 1, 1 } },                                                   \
			{ FI_LAND, { 1, 0, (least) != 0 } },                                       \
			{ FI_LXOR, { 0, 1, (least) == 0 } },                                       \
		};                                                                                 \
		const type own[] = { rank ? 5 : 3, rank ? 7 : 0, rank ? most : least };            \
		type result[4];                                                                    \
		size_t at;                                                                         \
		for (at = 0; at < sizeof cases / sizeof *cases; at++) {                            \
			context_t context;                                                         \
			if (!offers(side, FI_ALLREDUCE, number, cases[at].op))                     \
				continue;                                                          \
			memset(result, 0x55, sizeof result);                                       \
			AGAIN(side, fi_allreduce(side->ep, own, 3, NULL, result, NULL, group->address, \
						 number, cases[at].op, 0, &context));              \
			expect(side, &context);                                                    \
			CHECK(!memcmp(result, cases[at].expected, sizeof own));                    \
			CHECK(((unsigned char *)(result + 3))[0] == 0x55);                         \
		}                                                                                  \
	}

REDUCTIONS(int8_t, FI_INT8, INT8_MIN, INT8_MAX)
REDUCTIONS(uint8_t, FI_UINT8, 0, UINT8_MAX)
REDUCTIONS(int16_t, FI_INT16, INT16_MIN, INT16_MAX)
REDUCTIONS(uint16_t, FI_UINT16, 0, UINT16_MAX)
REDUCTIONS(int32_t, FI_INT32, (-1000), 2000)
REDUCTIONS(uint32_t, FI_UINT32, 0, UINT32_MAX)
REDUCTIONS(int64_t, FI_INT64, (-1000000007LL), 3)
REDUCTIONS(uint64_t, FI_UINT64, 2, UINT64_MAX)
REDUCTIONS(float, FI_FLOAT, -1.5f, 4.25f)
REDUCTIONS(double, FI_DOUBLE, -1.5, 4.25)

/* Bits of short integers. */
static void reduce_bits(struct side *side, struct group *group, int rank)
{
	static const struct {
		enum fi_op op;
		uint8_t expected[3];
	} cases[] = {
		{ FI_BOR, { 0xf1, 0x3f, 0x81 } },
		{ FI_BAND, { 0x10, 0x0c, 0x00 } },
		{ FI_BXOR, { 0xe1, 0x33, 0x81 } },
	};
	const uint8_t own[2][3] = { { 0xf0, 0x3c, 0x80 }, { 0x11, 0x0f, 0x01 } };
	uint8_t result[3];
	size_t at;
	for (at = 0; at < 3; at++) {
		context_t context;
		if (!offers(side, FI_ALLREDUCE, FI_UINT8, cases[at].op))
			continue;
		AGAIN(side, fi_allreduce(side->ep, own[rank], 3, NULL, result, NULL, group->address, FI_UINT8,
					 cases[at].op, 0, &context));
		expect(side, &context);
		CHECK(!memcmp(result, cases[at].expected, 3));
	}
}

static void test(struct side *side, int rank)
{
	static const size_t counts[] = { 1, 2, 1000, MOST };
	struct fid_av_set *set;
	struct group group;
	size_t at;
	insert_own(side, rank == 0);
	CHECK(!offers(side, FI_ALLREDUCE, FI_FLOAT, FI_BOR));
	CHECK(offers(side, FI_BARRIER, FI_VOID, FI_NOOP));
	set = both_of(side);
	join(side, set, &group);
	/* Until one of the two is killed. */
	if (getenv("FABRIC_HOLD")) {
		printf("joined\n");
		fflush(stdout);
		for (;;)
			barrier(side, &group);
	}
	for (at = 0; at < sizeof counts / sizeof *counts; at++) {
		barrier(side, &group);
		move(side, &group, rank, counts[at]);
		reduce(side, &group, rank, counts[at]);
	}
	reduce_int8_t(side, &group, rank);
	reduce_uint8_t(side, &group, rank);
	reduce_int16_t(side, &group, rank);
	reduce_uint16_t(side, &group, rank);
	reduce_int32_t(side, &group, rank);
	reduce_uint32_t(side, &group, rank);
	reduce_int64_t(side, &group, rank);
	reduce_uint64_t(side, &group, rank);
	reduce_float(side, &group, rank);
	reduce_double(side, &group, rank);
	reduce_bits(side, &group, rank);
	IS(fi_close(&group.mc->fid), 0);
	IS(fi_close(&set->fid), 0);
}

static void test_a(struct side *side)
{
	test(side, 0);
}

static void test_b(struct side *side)
{
	test(side, 1);
}
