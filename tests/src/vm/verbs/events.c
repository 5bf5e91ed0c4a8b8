/* A program of libibverbs that hears of what happens to its objects: a send queue that drains, an access that may not be,
 * a completion queue that overruns, the queue pair that needs it, and a shared receive queue that has fewer than its limit.
 *
 * Exit status: 0 if all five events came. Its queue pairs are connected with each other.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { SENDS = 64, BYTES = 4096, RECEIVES = 3 };

static struct ibv_context *context;
static struct ibv_pd *domain;
static struct ibv_mr *region;
static char memory[BYTES];

static void must(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static struct ibv_cq *new_queue(int entries)
{
    struct ibv_cq *queue = ibv_create_cq(context, entries, NULL, NULL, 0);

    must(queue != NULL, "make a completion queue");
    return queue;
}

static struct ibv_qp *new_pair(struct ibv_cq *queue)
{
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .send_cq = queue,
        .recv_cq = queue,
        .cap = {.max_send_wr = SENDS, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *pair = ibv_create_qp(domain, &init);

    must(pair != NULL, "make a queue pair");
    return pair;
}

static void connect_with(struct ibv_qp *pair, struct ibv_qp *peer)
{
    struct ibv_port_attr port;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
    };

    must(!ibv_query_port(context, 1, &port), "ask for the port");
    must(!ibv_modify_qp(pair, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
         "begin a connection");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = peer->qp_num,
        .min_rnr_timer = 12,
        .ah_attr = {.dlid = port.lid, .port_num = 1},
    };
    must(!ibv_modify_qp(pair, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                         IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "make the queue pair receive");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    must(!ibv_modify_qp(pair, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
         "make the queue pair send");
}

/* Two queue pairs that are connected: completions of the first go to a queue, those of the second to another. */
static void new_pairs(struct ibv_cq *queue, struct ibv_qp *pairs[2])
{
    pairs[0] = new_pair(queue);
    pairs[1] = new_pair(new_queue(SENDS));
    connect_with(pairs[0], pairs[1]);
    connect_with(pairs[1], pairs[0]);
}

static void write_once(struct ibv_qp *pair, uint32_t key)
{
    struct ibv_sge piece = {.addr = (uintptr_t)memory, .length = 8, .lkey = region->lkey};
    struct ibv_send_wr *bad, request = {
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = (uintptr_t)memory + 8, .rkey = key},
    };

    must(!ibv_post_send(pair, &request, &bad), "post a write");
}

/* Waits for an event, and says whose it is. */
static void *hear(enum ibv_event_type wanted)
{
    struct ibv_async_event event;
    void *owner;

    do {
        must(!ibv_get_async_event(context, &event), "wait for an event");
        owner = event.event_type == IBV_EVENT_CQ_ERR ? (void *)event.element.cq : (void *)event.element.qp;
        ibv_ack_async_event(&event);
        /* What has come before a queue pair was ready to send. */
    } while (event.event_type == IBV_EVENT_COMM_EST);
    printf("%s\n", ibv_event_type_str(event.event_type));
    must(event.event_type == wanted, "hear of something else");
    return owner;
}

static void set_limit(struct ibv_srq *shared, uint32_t limit)
{
    struct ibv_srq_attr attr = {.srq_limit = limit};

    must(!ibv_modify_srq(shared, &attr, IBV_SRQ_LIMIT), "set a limit");
}

static void limit_is(struct ibv_srq *shared, uint32_t limit)
{
    struct ibv_srq_attr attr;

    must(!ibv_query_srq(shared, &attr), "ask for the limit");
    must(attr.srq_limit == limit, "find the limit");
}

/* A limit is there until its event has come. */
static void share_receives(void)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 2 * RECEIVES, .max_sge = 1}};
    struct ibv_srq *shared = ibv_create_srq(domain, &init);
    struct ibv_recv_wr *bad, receive = {.num_sge = 0};

    must(shared != NULL, "make a shared receive queue");
    for (int at = 0; at < RECEIVES; at++)
        must(!ibv_post_srq_recv(shared, &receive, &bad), "post a receive");
    limit_is(shared, 0);
    set_limit(shared, RECEIVES);
    limit_is(shared, RECEIVES);
    set_limit(shared, RECEIVES + 1);
    must(hear(IBV_EVENT_SRQ_LIMIT_REACHED) == shared, "hear of the queue that has fewer");
    limit_is(shared, 0);
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_qp_attr drain = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    struct ibv_qp *pairs[2];
    struct ibv_cq *small;

    must(devices && devices[0], "find a device");
    context = ibv_open_device(devices[0]);
    must(context != NULL, "open the device");
    domain = ibv_alloc_pd(context);
    must(domain != NULL, "make a protection domain");
    region = ibv_reg_mr(domain, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    must(region != NULL, "register memory");

    new_pairs(new_queue(SENDS), pairs);
    write_once(pairs[0], region->rkey);
    must(!ibv_modify_qp(pairs[0], &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), "drain a send queue");
    must(hear(IBV_EVENT_SQ_DRAINED) == pairs[0], "hear of the queue pair that drains");

    new_pairs(new_queue(SENDS), pairs);
    write_once(pairs[0], region->rkey ^ 1);
    must(hear(IBV_EVENT_QP_ACCESS_ERR) == pairs[1], "hear of the queue pair that was accessed");

    small = new_queue(1);
    new_pairs(small, pairs);
    for (int at = 0; at < SENDS && at <= small->cqe; at++)
        write_once(pairs[0], region->rkey);
    must(hear(IBV_EVENT_CQ_ERR) == small, "hear of the queue that overruns");
    must(hear(IBV_EVENT_QP_FATAL) == pairs[0], "hear of the queue pair that needs it");

    share_receives();
    return 0;
}
