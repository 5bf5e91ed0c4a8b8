/* Two programs of libibverbs register more memory than their machines have, and write and read all of it remotely.
 *
 *     beyond_ram MIB          the one whose memory is reached
 *     beyond_ram MIB HOST     the one that reaches it
 *
 * Exit status: 0 if all data were right. The last line of each says how much was swapped out and pinned.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT = 18515, BLOCK = 1 << 20, WORDS = BLOCK / 8, DEPTH = 8, PRIME = 7919 };

/* What one says to the other before they are connected. */
struct place {
    uint64_t address;
    uint32_t key, pair;
    uint16_t lid;
};

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *region;
static struct place theirs;
static uint64_t *memory;
static unsigned blocks;
static int peer;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void must(int holds, const char *what)
{
    if (!holds)
        fail(what);
}

static uint64_t expected(unsigned round, unsigned block, unsigned word)
{
    return ((uint64_t)round << 56) + ((uint64_t)block << 32) + word;
}

static void fill(unsigned round, unsigned block)
{
    for (unsigned word = 0; word < WORDS; word++)
        memory[(size_t)block * WORDS + word] = expected(round, block, word);
}

static void check(unsigned round, unsigned block)
{
    for (unsigned word = 0; word < WORDS; word++)
        if (memory[(size_t)block * WORDS + word] != expected(round, block, word)) {
            fprintf(stderr, "round %u: block %u is wrong at word %u\n", round, block, word);
            exit(1);
        }
}

/* Blocks in an order that has each of them once. */
static unsigned nth(unsigned at)
{
    return (unsigned)((uint64_t)at * PRIME % blocks);
}

static void say(const void *what, size_t bytes)
{
    must(write(peer, what, bytes) == (ssize_t)bytes, "say something to the peer");
}

static void hear(void *what, size_t bytes)
{
    must(recv(peer, what, bytes, MSG_WAITALL) == (ssize_t)bytes, "hear of the peer");
}

static void connect_with(const char *host)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int one = 1, listener;

    peer = socket(AF_INET, SOCK_STREAM, 0);
    if (host) {
        struct hostent *found = gethostbyname(host);

        must(found != NULL, "look the peer up");
        memcpy(&address.sin_addr, found->h_addr_list[0], sizeof(address.sin_addr));
        must(!connect(peer, (struct sockaddr *)&address, sizeof(address)), "connect with the peer");
        return;
    }
    listener = peer;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    must(!bind(listener, (struct sockaddr *)&address, sizeof(address)), "bind");
    must(!listen(listener, 1), "listen");
    peer = accept(listener, NULL, NULL);
    must(peer >= 0, "accept");
}

static void open_device(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_pd *domain;
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

    must(devices && devices[0], "find a device");
    context = ibv_open_device(devices[0]);
    must(context != NULL, "open the device");
    domain = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, 2 * DEPTH, NULL, channel, 0);
    must(domain && cq && !ibv_req_notify_cq(cq, 0), "make a completion queue");
    init.send_cq = init.recv_cq = cq;
    qp = ibv_create_qp(domain, &init);
    must(qp != NULL, "make a queue pair");
    memory = mmap(NULL, (size_t)blocks * BLOCK, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(memory != MAP_FAILED, "map memory");
    region = ibv_reg_mr(domain, memory, (size_t)blocks * BLOCK, access);
    must(region != NULL, "register memory");
}

static void connect_pair(void)
{
    struct ibv_port_attr port;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    };
    struct place mine = {.address = (uintptr_t)memory, .key = region->rkey, .pair = qp->qp_num};

    must(!ibv_query_port(context, 1, &port), "ask for the port");
    mine.lid = port.lid;
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
         "begin a connection");
    say(&mine, sizeof(mine));
    hear(&theirs, sizeof(theirs));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = theirs.pair,
        .max_dest_rd_atomic = DEPTH,
        .min_rnr_timer = 12,
        .ah_attr = {.dlid = theirs.lid, .port_num = 1},
    };
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "make the queue pair receive");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .timeout = 20,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = DEPTH,
    };
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
         "make the queue pair send");
}

static void post(enum ibv_wr_opcode what, unsigned block)
{
    struct ibv_sge piece = {
        .addr = (uintptr_t)memory + (uint64_t)block * BLOCK,
        .length = BLOCK,
        .lkey = region->lkey,
    };
    struct ibv_send_wr *bad, request = {
        .wr_id = block,
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = what,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = theirs.address + (uint64_t)block * BLOCK, .rkey = theirs.key},
    };

    must(!ibv_post_send(qp, &request, &bad), "post a request");
}

/* Waits for one completion. */
static void complete(void)
{
    struct ibv_wc done;
    struct ibv_cq *of;
    void *unused;
    int found;

    while (!(found = ibv_poll_cq(cq, 1, &done))) {
        must(!ibv_get_cq_event(channel, &of, &unused), "wait for a completion");
        ibv_ack_cq_events(of, 1);
        must(!ibv_req_notify_cq(cq, 0), "ask for the next event");
        found = ibv_poll_cq(cq, 1, &done);
        if (found)
            break;
    }
    must(found == 1, "poll");
    if (done.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "block %u: %s\n", (unsigned)done.wr_id, ibv_wc_status_str(done.status));
        exit(1);
    }
}

static void transfer(enum ibv_wr_opcode what)
{
    for (unsigned at = 0; at < blocks; at++) {
        if (what == IBV_WR_RDMA_WRITE)
            fill(1, nth(at));
        if (at >= DEPTH)
            complete();
        post(what, nth(at));
    }
    for (unsigned at = 0; at < DEPTH; at++)
        complete();
}

/* A line of /proc/self/status, in KiB. */
static long status(const char *name)
{
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");

    must(file != NULL, "open the status");
    while (fgets(line, sizeof(line), file))
        if (!strncmp(line, name, strlen(name)))
            kib = atol(line + strlen(name));
    fclose(file);
    return kib;
}

int main(int count, char **words)
{
    char turn = 0;
    const char *host = count > 2 ? words[2] : NULL;

    must(count > 1, "MIB [HOST]");
    blocks = (unsigned)atoi(words[1]);
    must(blocks > DEPTH && blocks % PRIME, "take more than 8 MiB");
    open_device();
    connect_with(host);
    connect_pair();
    if (host) {
        transfer(IBV_WR_RDMA_WRITE);
        say(&turn, 1);
        hear(&turn, 1);
        transfer(IBV_WR_RDMA_READ);
        say(&turn, 1);
    } else {
        hear(&turn, 1);
        for (unsigned at = blocks; at-- > 0;) {
            check(1, nth(at));
            fill(2, nth(at));
        }
        say(&turn, 1);
        hear(&turn, 1);
    }
    printf("swapped %ld pinned %ld locked %ld\n", status("VmSwap:"), status("VmPin:"), status("VmLck:"));
    for (unsigned block = 0; block < blocks; block++)
        check(2, block);
    return 0;
}
