/* Completions of single operations, in whatever order, and atomic operations on words of the peer.
 *
 *     atomics NODE-OF-THE-PEER
 */

#include "example.h"

enum { PORT = 9, WORDS = 1, OWN = 2, DONE = 3, BYTES = 8192, OPERATIONS = 16 };

static uint64_t atomic(qnic_endpoint *endpoint, qnic_remote *words, qnic_atomic_operation operation) {
    uint64_t before;
    operation.size = sizeof operation;
    CHECK(qnic_atomic(endpoint, words, &operation, LIMIT, &before));
    return before;
}

int main(int count, char **arguments) {
    uint16_t peer = peer_of(count, arguments);
    qnic_endpoint *endpoint = registered(PORT, NULL);
    void *own;
    qnic_buffer *buffer;
    qnic_segment *segment;
    CHECK(qnic_buffer_open(endpoint, BYTES, &own, &buffer));
    CHECK(qnic_export(endpoint, OWN, buffer, QNIC_READ, NULL, &segment));
    qnic_remote *words = imported(endpoint, peer, PORT, WORDS);

    /* Sixteen additions under way at once, waited for as they end. */
    qnic_request *requests[OPERATIONS];
    qnic_atomic_operation add = {
        .size = sizeof add, .function = QNIC_ATOMIC_ADD, .word = QNIC_U64, .value = 1};
    for (int index = 0; index < OPERATIONS; index++)
        CHECK(qnic_atomic_begin(endpoint, words, &add, LIMIT, &requests[index]));
    uint64_t sum = 0;
    for (size_t left = OPERATIONS; left > 0; left--) {
        size_t ended;
        qnic_completion completion = {.size = sizeof completion};
        CHECK(qnic_request_wait_any(requests, left, LIMIT, &ended));
        CHECK(qnic_request_test(requests[ended], &completion));
        sum += completion.immediate;
        CHECK(qnic_request_close(requests[ended]));
        requests[ended] = requests[left - 1];
    }
    printf("the words before sum up to %" PRIu64 "\n", sum);

    /* A number, a flag, and a floating-point number. */
    uint64_t swapped = atomic(endpoint, words, (qnic_atomic_operation){
        .function = QNIC_ATOMIC_COMPARE_SWAP, .word = QNIC_U64, .expected = OPERATIONS, .value = 99});
    uint64_t was_set = atomic(endpoint, words, (qnic_atomic_operation){
        .function = QNIC_ATOMIC_TEST_AND_SET, .word = QNIC_U32, .offset = 8});
    double half = 0.5;
    qnic_atomic_operation float_add = {
        .function = QNIC_ATOMIC_ADD, .word = QNIC_F64, .offset = 16};
    memcpy(&float_add.value, &half, sizeof half);
    uint64_t bits = atomic(endpoint, words, float_add);
    double before;
    memcpy(&before, &bits, sizeof before);
    printf("%" PRIu64 ", %" PRIu64 ", %.1f\n", swapped, was_set, before);

    /* A read and a write with completions of their own, both waited for. */
    memset((char *)own + 4096, 'x', 4096);
    qnic_completion ended[2] = {{.size = sizeof ended[0]}, {.size = sizeof ended[1]}};
    CHECK(qnic_read_begin(endpoint, words, 0, own, 24, LIMIT, &requests[0]));
    CHECK(qnic_write_begin(endpoint, words, 4096, (char *)own + 4096, 4096, DONE, LIMIT, &requests[1]));
    CHECK(qnic_request_wait_all(requests, 2, LIMIT, ended));
    uint64_t number;
    memcpy(&number, own, sizeof number);
    printf("read %" PRIu64 " of %" PRIu64 " bytes, wrote %" PRIu64 "\n", number, ended[0].length,
           ended[1].length);
    CHECK(qnic_request_close(requests[0]));
    CHECK(qnic_request_close(requests[1]));

    /* What fails says why. */
    int status = qnic_write(endpoint, words, 1 << 20, "", 1, 0, LIMIT);
    expect(status == QNIC_E_OUT_OF_RANGE, "a write outside of the segment");

    CHECK(qnic_remote_close(words));
    CHECK(qnic_segment_close(segment));
    CHECK(qnic_buffer_close(buffer));
    CHECK(qnic_endpoint_close(endpoint));
    return 0;
}
