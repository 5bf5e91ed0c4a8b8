/* Calls of NIC, endpoint, memory, transfers and notifications that no example shows. */

#include "pair.h"

static void count(void *context, const char *name, uint64_t value) {
    (void)value;
    *(int *)context += strlen(name) > 0;
}

enum { HALF = ROOM / 2 };

static void about(qnic_nic *nic, struct side *a) {
    qnic_nic_info info = {.size = sizeof info};
    CHECK(qnic_nic_get_info(nic, &info));
    expect(info.node == a->node && info.windows > 0 && info.ranks == 0, "what a NIC is");
    int counters = 0;
    for (uint32_t source = QNIC_COUNTERS_DRIVER; source <= QNIC_COUNTERS_NIC; source++)
        CHECK(qnic_nic_counters(nic, source, count, &counters));
    expect(counters > 30, "counters");
    REFUSED(qnic_nic_counters(nic, 99, count, &counters), QNIC_E_ARGUMENT);
    REFUSED(qnic_nic_counters(nic, 0, NULL, NULL), QNIC_E_ARGUMENT);
    REFUSED(qnic_nic_check_path(nic, 77, 1000000, NULL), QNIC_E_NO_PATH);
    REFUSED(qnic_endpoint_path(a->endpoint, 77, NULL), QNIC_E_NO_PATH);
    qnic_path path = {.size = sizeof path};
    CHECK(qnic_nic_check_path(nic, a->node, LIMIT, &path));
    expect(path.flags == QNIC_PATH_LOSSLESS && path.max_payload > 0, "a path within a node");
    CHECK(qnic_endpoint_hold_sends(a->endpoint, 100));
}

static void memory(struct side *a, struct side *b) {
    qnic_segment_info info = {.size = sizeof info};
    CHECK(qnic_export_lookup(a->endpoint, a->memory + 8, 100, &info));
    expect(info.name == SEGMENT && info.address == (uint64_t)a->memory && info.length == ROOM, "export");
    REFUSED(qnic_export_lookup(a->endpoint, a->memory + 8, ROOM, &info), QNIC_E_NOT_EXPORTED);
    CHECK(qnic_remote_get_info(a->other, &info));
    expect(info.node == b->node && info.port == b->port && info.access == 3, "import");
    uint64_t offset;
    qnic_remote *found;
    CHECK(qnic_import_lookup(a->endpoint, b->node, b->port, info.address + 40, &offset, &found));
    expect(offset == 40, "an offset in a segment");
    CHECK(qnic_remote_close(found));
    REFUSED(qnic_import_lookup(a->endpoint, b->node, b->port, 1, &offset, &found),
            QNIC_E_NO_SUCH_SEGMENT);

    /* With a secret, for a list, for one notification, beside another segment over the same memory. */
    qnic_process listed = {.node = b->node, .port = 0};
    qnic_export_options options = {.size = sizeof options,
                                   .flags = QNIC_EXPORT_LISTED | QNIC_EXPORT_SECRET
                                            | QNIC_EXPORT_OVERLAPPING,
                                   .first_notification = 7, .last_notification = 7,
                                   .listed = &listed, .listed_count = 1};
    qnic_segment *segment;
    qnic_remote *theirs;
    REFUSED(qnic_export(a->endpoint, 2, a->buffer, QNIC_WRITE, &options, &segment), QNIC_E_ARGUMENT);
    CHECK(qnic_secret_random(options.secret));
    CHECK(qnic_export_memory(a->endpoint, 2, a->memory, 64, QNIC_WRITE, &options, &segment));
    REFUSED(qnic_import(b->endpoint, a->node, a->port, 2, NULL, LIMIT, &theirs), QNIC_E_IMPORT_REFUSED);
    CHECK(qnic_import(b->endpoint, a->node, a->port, 2, options.secret, LIMIT, &theirs));
    CHECK(qnic_write(b->endpoint, theirs, 0, "secret", 6, 7, LIMIT));
    REFUSED(qnic_write(b->endpoint, theirs, 0, "secret", 6, 8, LIMIT), QNIC_E_ACCESS_DENIED);
    CHECK(qnic_notification_take(a->endpoint, 7, LIMIT));
    expect(memcmp(a->memory, "secret", 6) == 0, "bytes behind a secret");
    CHECK(qnic_segment_close(segment));
    REFUSED(qnic_write(b->endpoint, theirs, 0, "secret", 6, 7, LIMIT), QNIC_E_NO_SUCH_SEGMENT);
    qnic_error error = {.size = sizeof error};
    CHECK(qnic_last_error(&error));
    expect(error.flags == (QNIC_ERROR_PEER_GONE | QNIC_ERROR_HAS_PEER | QNIC_ERROR_HAS_TRANSFER), "flags");
    expect(error.port == a->port && error.segment == 2 && error.length == 6, "the transfer that failed");
    CHECK(qnic_remote_close(theirs));
}

/* Two writes whose doorbell is rung once. */
static void post_two(void *context) {
    struct side *a = context;
    CHECK(qnic_write_post(a->endpoint, a->other, 0, "12345678", 8, 0, LIMIT, NULL));
    CHECK(qnic_write_post(a->endpoint, a->other, 8, "12345678", 8, 0, LIMIT, NULL));
}

static void add(void *context, uint64_t longest_ns, uint64_t count) {
    *(uint64_t *)context += longest_ns > 0 ? count : 0;
}

static void transfers(struct side *a, struct side *b) {
    qnic_ticket *tickets[2];
    uint64_t numbers[2];
    memset(a->memory, 'a', ROOM);
    memset(b->memory, 'b', ROOM);
    /* They do not wait for each other: the read must not change the source of the write. */
    CHECK(qnic_write_post(a->endpoint, a->other, 0, a->memory, HALF, 0, LIMIT, &tickets[0]));
    CHECK(qnic_read_post(a->endpoint, a->other, HALF, a->memory + HALF, 16, LIMIT, &tickets[1]));
    for (int index = 0; index < 2; index++) {
        CHECK(qnic_ticket_number(tickets[index], &numbers[index]));
        CHECK(qnic_ticket_wait(tickets[index], LIMIT));
        CHECK(qnic_ticket_test(tickets[index]));
        CHECK(qnic_ticket_close(tickets[index]));
    }
    expect(numbers[1] == numbers[0] + 1, "numbers of commands");
    expect(b->memory[0] == 'a' && b->memory[HALF - 1] == 'a', "bytes of a write");
    expect(a->memory[HALF] == 'b' && a->memory[HALF + 15] == 'b', "bytes of a read");
    CHECK(qnic_endpoint_batch(a->endpoint, post_two, a));
    CHECK(qnic_flush(a->endpoint, QNIC_FLUSH_SOURCES, 0, 0, LIMIT));
    CHECK(qnic_flush(a->endpoint, QNIC_FLUSH_WRITES | QNIC_FLUSH_PROCESS, b->node, b->port, LIMIT));
    expect(memcmp(b->memory, "1234567812345678", 16) == 0, "bytes of a batch");
    uint64_t timed = 0;
    CHECK(qnic_endpoint_times(a->endpoint, add, &timed));
    expect(timed > 0, "a transfer that was timed");
    CHECK(qnic_flush(a->endpoint, QNIC_FLUSH_READS, 0, 0, LIMIT));
    CHECK(qnic_flush(a->endpoint, QNIC_FLUSH_READS | QNIC_FLUSH_WRITES, 0, 0, 0));
    REFUSED(qnic_flush(a->endpoint, QNIC_FLUSH_SOURCES | QNIC_FLUSH_READS, 0, 0, 0), QNIC_E_ARGUMENT);
    REFUSED(qnic_endpoint_batch(a->endpoint, NULL, NULL), QNIC_E_ARGUMENT);
}

static void notifications(struct side *a, struct side *b) {
    const uint32_t both[] = {3, 4};
    uint32_t number;
    uint64_t pending;
    CHECK(qnic_queue_watch(b->endpoint, 3));
    REFUSED(qnic_queue_watch(b->endpoint, 3), QNIC_E_ARMED);
    REFUSED(qnic_queue_test(b->endpoint, &number), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_write(a->endpoint, a->other, 0, NULL, 0, 3, LIMIT));
    CHECK(qnic_notification_spin(b->endpoint, 3, LIMIT, &pending));
    expect(pending == 1, "one signal");
    CHECK(qnic_notification_wait_any(b->endpoint, both, 2, LIMIT, &number));
    expect(number == 3, "the one that is pending");
    REFUSED(qnic_notification_wait_any(b->endpoint, both, 0, LIMIT, &number), QNIC_E_ARGUMENT);
    CHECK(qnic_queue_wait(b->endpoint, LIMIT, &number));
    expect(number == 3, "a counted notification in the queue");
    CHECK(qnic_notification_acknowledge(b->endpoint, 3));
    CHECK(qnic_queue_unwatch(b->endpoint, 3));
    /* One-shot: a number from 1,024 on. */
    CHECK(qnic_write(a->endpoint, a->other, 0, NULL, 0, 70000, LIMIT));
    CHECK(qnic_queue_wait(b->endpoint, LIMIT, &number));
    expect(number == 70000, "a one-shot notification");
    REFUSED(qnic_queue_wait(b->endpoint, 1000, &number), QNIC_E_TIMED_OUT);
}

int main(void) {
    struct side a, b;
    qnic_nic *nic;
    CHECK(qnic_open(NULL, &nic));
    pair_open(nic, &a, &b);
    about(nic, &a);
    memory(&a, &b);
    transfers(&a, &b);
    notifications(&a, &b);
    CHECK(qnic_endpoint_reset_queue(a.endpoint));
    CHECK(qnic_write(a.endpoint, a.other, 0, "again", 5, 0, LIMIT));
    side_close(&a);
    side_close(&b);
    CHECK(qnic_close(nic));
    return 0;
}
