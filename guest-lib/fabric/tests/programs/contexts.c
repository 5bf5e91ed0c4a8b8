/* Scalable endpoints and shared contexts are opened, or refused by an error that says so. qnic refuses them. */
#include "common.h"

static void wants(struct fi_info *hints)
{
	hints->caps = FI_MSG;
}

static void check(struct fid *opened, int result)
{
	if (strcmp(getenv("FABRIC_PROVIDER"), "qnic") == 0)
		CHECK(result == -FI_ENOSYS);
	else if (result == 0)
		IS(fi_close(opened), 0);
	else
		CHECK(result == -FI_ENOSYS || result == -FI_EINVAL || result == -FI_EOPNOTSUPP);
}

static void test_a(struct side *side)
{
	struct fi_info *hints = fi_dupinfo(side->info), *found = NULL;
	struct fid_ep *scalable = NULL, *receive = NULL;
	struct fid_stx *send = NULL;
	int result;
	result = fi_scalable_ep(side->domain, side->info, &scalable, NULL);
	check(&scalable->fid, result);
	result = fi_srx_context(side->domain, side->info->rx_attr, &receive, NULL);
	check(&receive->fid, result);
	result = fi_stx_context(side->domain, side->info->tx_attr, &send, NULL);
	check(&send->fid, result);
	/* More contexts than any endpoint has: no query is granted that. */
	CHECK(hints);
	hints->ep_attr->tx_ctx_cnt = 100000;
	CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found) < 0);
	fi_freeinfo(hints);
}

static void test_b(struct side *side)
{
	(void)side;
}
