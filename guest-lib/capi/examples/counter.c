/* Programs of two nodes count together under a lock, and take turns by a semaphore. The peer exports the
 * memory of both, and of the number that they count with.
 *
 *     counter NODE-OF-THE-PEER
 */

#include "example.h"

enum { PORT = 10, OBJECTS = 1, OWN = 2, LOCK = 0, SEMAPHORE = 64, NUMBER = 128, ROUNDS = 50 };

int main(int count, char **arguments) {
    uint16_t peer = peer_of(count, arguments);
    qnic_endpoint *endpoint = registered(PORT, NULL);
    void *own;
    qnic_buffer *buffer;
    qnic_segment *segment;
    CHECK(qnic_buffer_open(endpoint, 4096, &own, &buffer));
    CHECK(qnic_export(endpoint, OWN, buffer, QNIC_READ, NULL, &segment));
    qnic_remote *objects = imported(endpoint, peer, PORT, OBJECTS);

    qnic_participant *participant;
    qnic_lock *lock;
    qnic_semaphore *semaphore;
    CHECK(qnic_participant_open(endpoint, NULL, &participant));
    CHECK(qnic_lock_open(participant, objects, LOCK, &lock));
    CHECK(qnic_semaphore_open(participant, objects, SEMAPHORE, &semaphore));

    /* The peer gives a unit when it has begun. */
    CHECK(qnic_semaphore_wait(semaphore, LIMIT));
    volatile uint64_t *number = own;
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(qnic_lock_acquire(lock, LIMIT));
        CHECK(qnic_read(endpoint, objects, NUMBER, own, 8, LIMIT));
        uint64_t next = *number + 1;
        CHECK(qnic_write(endpoint, objects, NUMBER, &next, 8, 0, LIMIT));
        CHECK(qnic_lock_release(lock));
    }
    expect(qnic_lock_release(lock) == QNIC_E_ARGUMENT, "a lock that was not held was released");
    CHECK(qnic_semaphore_signal(semaphore));
    printf("counted %d times\n", ROUNDS);

    CHECK(qnic_semaphore_close(semaphore));
    CHECK(qnic_lock_close(lock));
    CHECK(qnic_participant_close(participant));
    CHECK(qnic_remote_close(objects));
    CHECK(qnic_segment_close(segment));
    CHECK(qnic_buffer_close(buffer));
    CHECK(qnic_endpoint_close(endpoint));
    return 0;
}
