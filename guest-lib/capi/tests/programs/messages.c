/* Calls of messages, names and groups that no example shows. */

#define _GNU_SOURCE
#include <pthread.h>

#include "pair.h"

static void probes(struct side *a, struct side *b) {
    qnic_match to = match(b, 5), from = match(a, 5);
    qnic_completion found = {.size = sizeof found};
    REFUSED(qnic_probe(b->endpoint, &from, 0, &found), QNIC_E_WOULD_BLOCK);
    REFUSED(qnic_probe(b->endpoint, &from, 1000000, &found), QNIC_E_TIMED_OUT);
    REFUSED(qnic_discard(b->endpoint, &from, &found), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_send(a->endpoint, &to, "first", 5, LIMIT));
    CHECK(qnic_send(a->endpoint, &to, "second", 6, LIMIT));
    CHECK(qnic_send(a->endpoint, &to, "third!!", 7, LIMIT));
    CHECK(qnic_probe(b->endpoint, &from, LIMIT, &found));
    expect(found.length == 5 && found.tag == 5 && found.port == a->port, "what a probe finds");
    CHECK(qnic_discard(b->endpoint, &from, &found));
    expect(found.length == 5, "what is discarded");
    qnic_claim *claim, *late;
    CHECK(qnic_claim_now(b->endpoint, &from, &claim));
    CHECK(qnic_claim_wait(claim, 0, &found));
    expect(found.length == 6, "what a claim has");
    CHECK(qnic_claim_receive(claim, b->memory, 6, &found));
    expect(memcmp(b->memory, "second", 6) == 0, "the claimed message");
    REFUSED(qnic_claim_wait(claim, 0, &found), QNIC_E_NO_MESSAGE);
    REFUSED(qnic_claim_receive(claim, b->memory, 6, &found), QNIC_E_NO_MESSAGE);
    CHECK(qnic_claim_close(claim));
    /* Taken without a byte of it. */
    CHECK(qnic_claim_now(b->endpoint, &from, &claim));
    CHECK(qnic_claim_receive(claim, NULL, 0, &found));
    expect(found.length == 7 && found.flags == QNIC_COMPLETION_TRUNCATED, "nothing of a message");
    CHECK(qnic_claim_close(claim));
    REFUSED(qnic_claim_now(b->endpoint, &from, &claim), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_claim_open(b->endpoint, &from, &late));
    REFUSED(qnic_claim_wait(late, 0, &found), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_claim_cancel(late));
    REFUSED(qnic_claim_wait(late, LIMIT, &found), QNIC_E_CANCELLED);
    CHECK(qnic_claim_close(late));
}

static void pool(struct side *a, struct side *b) {
    qnic_match to = match(b, 6), from = match(a, 6);
    qnic_pool_buffer *ours, *theirs;
    qnic_completion completion = {.size = sizeof completion};
    char bytes[5000];
    REFUSED(qnic_pool_buffer_open(a->endpoint, 100000, &ours), QNIC_E_POOL_FULL);
    CHECK(qnic_pool_buffer_open(a->endpoint, 2, &ours));
    CHECK(qnic_pool_buffer_open(b->endpoint, 2, &theirs));
    memset(bytes, 'p', sizeof bytes);
    CHECK(qnic_pool_buffer_write(ours, 0, bytes, sizeof bytes));
    REFUSED(qnic_pool_buffer_write(ours, 8000, bytes, sizeof bytes), QNIC_E_OUT_OF_RANGE);
    REFUSED(qnic_pool_buffer_wait(ours, LIMIT, NULL), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_pool_buffer_receive(theirs, &from));
    REFUSED(qnic_pool_buffer_receive(theirs, &from), QNIC_E_BUSY);
    REFUSED(qnic_pool_buffer_read(theirs, 0, bytes, 1), QNIC_E_BUSY);
    REFUSED(qnic_pool_buffer_wait(theirs, 0, &completion), QNIC_E_TIMED_OUT);
    CHECK(qnic_pool_buffer_send(ours, &to, sizeof bytes));
    CHECK(qnic_pool_buffer_wait(ours, LIMIT, &completion));
    CHECK(qnic_pool_buffer_wait(theirs, LIMIT, &completion));
    expect(completion.length == sizeof bytes, "a message of the pool");
    memset(bytes, 0, sizeof bytes);
    CHECK(qnic_pool_buffer_read(theirs, 0, bytes, sizeof bytes));
    expect(bytes[0] == 'p' && bytes[4999] == 'p', "its bytes");
    CHECK(qnic_pool_buffer_receive(theirs, &from));
    CHECK(qnic_pool_buffer_cancel(theirs));
    REFUSED(qnic_pool_buffer_wait(theirs, LIMIT, NULL), QNIC_E_CANCELLED);
    CHECK(qnic_pool_buffer_close(theirs));
    CHECK(qnic_pool_buffer_close(ours));
}

static void pieces(struct side *a, struct side *b) {
    qnic_match to = match(b, 7), from = match(a, 7);
    qnic_piece out[] = {{a->memory, 4096}, {a->memory + 8192, 100}};
    qnic_piece in[] = {{b->memory + 4096, 4096}, {b->memory, 4096}};
    qnic_request *requests[2];
    qnic_completion ended[2] = {{.size = sizeof ended[0]}, {.size = sizeof ended[1]}};
    memset(a->memory, 'x', 4096);
    memset(a->memory + 8192, 'y', 100);
    CHECK(qnic_receive_pieces(b->endpoint, &from, in, 2, &requests[0]));
    CHECK(qnic_send_pieces(a->endpoint, &to, out, 2, &requests[1]));
    CHECK(qnic_request_wait(requests[0], LIMIT, &ended[0]));
    CHECK(qnic_request_wait(requests[1], LIMIT, &ended[1]));
    expect(ended[0].length == 4196, "a message of pieces");
    expect(b->memory[4096] == 'x' && b->memory[0] == 'y' && b->memory[99] == 'y', "its bytes");
    REFUSED(qnic_request_wait_any(requests, 2, LIMIT, &(size_t){0}), QNIC_E_FOREIGN_REQUEST);
    CHECK(qnic_request_close(requests[0]));
    CHECK(qnic_request_close(requests[1]));
    out[0].length = 4000;
    REFUSED(qnic_send_pieces(a->endpoint, &to, out, 2, &requests[0]), QNIC_E_ARGUMENT);

    /* Short ones, and a receive of many that ends. */
    qnic_many *many;
    CHECK(qnic_many_open(b->endpoint, &from, b->memory, 4096, &many));
    REFUSED(qnic_many_test(many, NULL), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_send_short(a->endpoint, &to, "short", 5, &requests[0]));
    CHECK(qnic_request_wait(requests[0], LIMIT, NULL));
    CHECK(qnic_request_close(requests[0]));
    CHECK(qnic_send_short(a->endpoint, &to, "shorter", 7, NULL));
    for (uint64_t length = 5; length <= 7; length += 2) {
        CHECK(qnic_many_wait(many, LIMIT, &ended[0]));
        expect(ended[0].length == length, "a short message");
    }
    CHECK(qnic_many_cancel(many));
    REFUSED(qnic_many_wait(many, LIMIT, &ended[0]), QNIC_E_CANCELLED);
    CHECK(qnic_many_close(many));
}

static void names(struct side *a, struct side *b) {
    qnic_name *name;
    uint16_t node, port;
    CHECK(qnic_name_register(a->endpoint, "capi", 1, LIMIT, &name));
    REFUSED(qnic_name_register(b->endpoint, "capi", 1, 0, NULL), QNIC_E_NAME_TAKEN);
    CHECK(qnic_name_find(b->endpoint, "capi", 1, LIMIT, &node, &port));
    expect(node == a->node && port == a->port, "the process of a name");
    CHECK(qnic_name_close(name));
    CHECK(qnic_name_register(b->endpoint, "capi", 1, LIMIT, NULL));
    REFUSED(qnic_name_register(b->endpoint, "longer than 16 bytes", 1, 0, NULL), QNIC_E_ARGUMENT);
}

static qnic_group *join(struct side *side, const struct side *home, uint32_t rank) {
    qnic_membership membership = {.size = sizeof membership, .home_node = home->node,
                                  .home_port = home->port, .rank = rank, .members = 2,
                                  .name = 3, .key = 9};
    qnic_group *group;
    CHECK(qnic_group_join(side->endpoint, &membership, LIMIT, &group));
    return group;
}

struct member {
    struct side *side, *home;
};

static void *member(void *context) {
    struct member *member = context;
    qnic_group *group = join(member->side, member->home, 1);
    uint32_t rank, members;
    CHECK(qnic_group_get_info(group, &rank, &members));
    expect(rank == 1 && members == 2, "the place in a group");
    qnic_match all = match(member->home, 8);
    CHECK(qnic_receive(member->side->endpoint, &all, member->side->memory, 100, LIMIT, NULL));
    expect(memcmp(member->side->memory, "to rank 1", 9) == 0, "a message to a member");
    qnic_collective barrier = {.size = sizeof barrier, .function = QNIC_BARRIER};
    CHECK(qnic_group_collective(group, &barrier, LIMIT));
    /* The other one leaves when this one has taken part. */
    return group;
}

static void groups(struct side *a, struct side *b) {
    pthread_t thread;
    struct member other = {.side = b, .home = a};
    expect(pthread_create(&thread, NULL, member, &other) == 0, "no thread");
    qnic_group *group = join(a, a, 0);
    qnic_match all = {.size = sizeof all, .tag = 8};
    const uint32_t ranks[] = {1}, wrong[] = {5};
    qnic_call *call;
    REFUSED(qnic_group_send(group, wrong, 1, &all, "x", 1, LIMIT), QNIC_E_ARGUMENT);
    CHECK(qnic_group_send_post(group, ranks, 1, &all, "to rank 1", 9, &call));
    CHECK(qnic_call_wait(call, LIMIT));
    CHECK(qnic_call_test(call));
    CHECK(qnic_call_close(call));
    qnic_collective barrier = {.size = sizeof barrier, .function = 77};
    REFUSED(qnic_group_collective(group, &barrier, LIMIT), QNIC_E_ARGUMENT);
    barrier.function = QNIC_BARRIER;
    CHECK(qnic_group_collective(group, &barrier, LIMIT));
    void *theirs;
    expect(pthread_join(thread, &theirs) == 0, "the other member");
    CHECK(qnic_group_close(theirs));
    CHECK(qnic_group_close(group));
}

int main(void) {
    struct side a, b;
    qnic_nic *nic;
    CHECK(qnic_open(NULL, &nic));
    pair_open(nic, &a, &b);
    probes(&a, &b);
    pool(&a, &b);
    pieces(&a, &b);
    names(&a, &b);
    groups(&a, &b);
    side_close(&a);
    side_close(&b);
    CHECK(qnic_close(nic));
    return 0;
}
