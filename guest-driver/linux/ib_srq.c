// SPDX-License-Identifier: GPL-2.0
/*
 * Shared receive queues and address handles of the device of libibverbs.
 */
#include <uapi/rdma/rdma_user_rxe.h>

#include "qnic_ib.h"

int qnic_ib_create_srq(struct ib_srq *ib, struct ib_srq_init_attr *init, struct ib_udata *udata)
{
	struct qnic_ib_context *context = context_of(udata);
	struct rxe_create_srq_resp response = {};
	struct ib_srq_attr *attr = &init->attr;
	struct qnic_ib_srq *srq = to_srq(ib);
	int ret;

	if (init->srq_type != IB_SRQT_BASIC)
		return -EOPNOTSUPP;
	if (!context || udata->outlen < sizeof(response))
		return -EINVAL;
	/* "Irrelevant for ibv_create_srq": programs leave it as it is. */
	attr->srq_limit = 0;
	ret = qnic_rs_verbs_create_srq(context->context, owner_of(srq), to_domain(ib->pd)->number,
				       &attr->max_wr, &attr->max_sge, attr->srq_limit, &srq->srq);
	if (ret)
		return ret;
	srq->context = context;
	srq->attr = *attr;
	response.srq_num = qnic_rs_verbs_srq_number(srq->srq);
	ret = qnic_ib_ring_new(context, qnic_rs_verbs_srq_ring(srq->srq), &srq->ring, &response.mi);
	if (ret)
		goto err_destroy;
	ret = ib_copy_to_udata(udata, &response, sizeof(response));
	if (ret)
		goto err_ring;
	return 0;
err_ring:
	qnic_ib_ring_remove(srq->ring);
err_destroy:
	qnic_rs_verbs_destroy_srq(context->context, srq->srq);
	return ret;
}

/* The ring keeps its size. */
int qnic_ib_modify_srq(struct ib_srq *ib, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		       struct ib_udata *udata)
{
	struct qnic_ib_srq *srq = to_srq(ib);
	u32 before = READ_ONCE(srq->attr.srq_limit);
	int ret;

	if (mask & ~IB_SRQ_LIMIT)
		return -EOPNOTSUPP;
	if (!mask)
		return 0;
	if (attr->srq_limit > srq->attr.max_wr)
		return -EINVAL;
	/* Before the NIC knows it: its event clears it. */
	WRITE_ONCE(srq->attr.srq_limit, attr->srq_limit);
	ret = qnic_rs_verbs_modify_srq(srq->context->context, srq->srq, attr->srq_limit);
	if (ret)
		WRITE_ONCE(srq->attr.srq_limit, before);
	return ret;
}

int qnic_ib_query_srq(struct ib_srq *ib, struct ib_srq_attr *attr)
{
	struct qnic_ib_srq *srq = to_srq(ib);

	*attr = (struct ib_srq_attr){
		.max_wr = srq->attr.max_wr,
		.max_sge = srq->attr.max_sge,
		.srq_limit = READ_ONCE(srq->attr.srq_limit),
	};
	return 0;
}

int qnic_ib_destroy_srq(struct ib_srq *ib, struct ib_udata *udata)
{
	struct qnic_ib_srq *srq = to_srq(ib);

	qnic_rs_verbs_destroy_srq(srq->context->context, srq->srq);
	qnic_ib_ring_remove(srq->ring);
	return 0;
}

/* For a program, an address handle is a number that work requests carry. */
int qnic_ib_create_ah(struct ib_ah *ib, struct rdma_ah_init_attr *init, struct ib_udata *udata)
{
	const struct rdma_ah_attr *attr = init->ah_attr;
	struct rxe_create_ah_resp response = {};
	bool global = rdma_ah_get_ah_flags(attr) & IB_AH_GRH;
	struct qnic_ib_ah *ah = to_ah(ib);
	u32 lid = qnic_ib_lid_of(attr);

	response.ah_num = qnic_rs_verbs_path(lid, rdma_ah_get_sl(attr), global);
	if (!response.ah_num)
		return attr->type == RDMA_AH_ATTR_TYPE_ROCE ? -EHOSTUNREACH : -EINVAL;
	if (!udata) {
		ah->node = lid - 1;
		ah->to = rdma_ah_read_grh(attr)->dgid;
		return 0;
	}
	if (udata->outlen < sizeof(response))
		return -EINVAL;
	return ib_copy_to_udata(udata, &response, sizeof(response));
}

int qnic_ib_destroy_ah(struct ib_ah *ib, u32 flags)
{
	return 0;
}
