/* Calls of locks, channels, datagrams, streams and machines that no example shows. */

#define _GNU_SOURCE
#include <poll.h>

#include "pair.h"

/* Objects lie in the memory of a. */
enum { LOCK = 0, QUEUE = QNIC_OBJECT_BYTES, SEMAPHORE = 2 * QNIC_OBJECT_BYTES };

static void locks(struct side *a, struct side *b) {
    qnic_remote *own;
    qnic_participant *participants[2];
    qnic_lock *mine, *yours;
    qnic_wait_queue *queue, *condition;
    qnic_process before;
    int broken = -1, recovered = -1;
    uint64_t woken;
    memset(a->memory, 0, 4096);
    CHECK(qnic_import(a->endpoint, a->node, a->port, SEGMENT, NULL, LIMIT, &own));
    CHECK(qnic_participant_open(a->endpoint, NULL, &participants[0]));
    CHECK(qnic_participant_open(b->endpoint, NULL, &participants[1]));
    REFUSED(qnic_lock_open(participants[0], own, 4, &mine), QNIC_E_MISALIGNED);
    CHECK(qnic_lock_open(participants[0], own, LOCK, &mine));
    CHECK(qnic_lock_open(participants[1], b->other, LOCK, &yours));
    CHECK(qnic_lock_try(mine));
    REFUSED(qnic_lock_try(mine), QNIC_E_ARGUMENT);
    REFUSED(qnic_lock_try(yours), QNIC_E_WOULD_BLOCK);
    REFUSED(qnic_lock_acquire(yours, 1000000), QNIC_E_TIMED_OUT);
    REFUSED(qnic_lock_predecessor(yours, &before), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_lock_release(mine));
    CHECK(qnic_lock_acquire(yours, LIMIT));
    CHECK(qnic_lock_predecessor(yours, &before));
    expect(before.node == a->node && before.port == a->port, "the holder before");
    CHECK(qnic_lock_is_broken(yours, &broken));
    expect(broken == 0, "a lock that is not broken");

    /* A monitor: wait for a condition, which the other one signals. */
    CHECK(qnic_wait_queue_open(participants[0], own, QUEUE, &queue));
    CHECK(qnic_wait_queue_open(participants[1], b->other, QUEUE, &condition));
    REFUSED(qnic_lock_wait(mine, queue, 0), QNIC_E_ARGUMENT);
    REFUSED(qnic_lock_wait(yours, condition, 1000000), QNIC_E_TIMED_OUT);
    CHECK(qnic_lock_acquire(mine, LIMIT));
    CHECK(qnic_wait_queue_remove(queue, 0, &woken));
    expect(woken == 1, "a process that was woken");
    CHECK(qnic_lock_release(mine));
    CHECK(qnic_lock_wait(yours, condition, LIMIT));
    CHECK(qnic_lock_release(yours));
    CHECK(qnic_lock_recover(mine, &recovered));

    REFUSED(qnic_wait_queue_wait(condition, 0), QNIC_E_ARGUMENT);
    CHECK(qnic_wait_queue_insert(condition));
    REFUSED(qnic_wait_queue_insert(condition), QNIC_E_ARGUMENT);
    CHECK(qnic_wait_queue_remove(queue, 1, &woken));
    expect(woken == 1, "all that waited");
    CHECK(qnic_wait_queue_wait(condition, LIMIT));
    CHECK(qnic_wait_queue_is_broken(queue, &broken));
    expect(broken == 0, "a queue that is not broken");
    CHECK(qnic_wait_queue_recover(queue, NULL));
    CHECK(qnic_wait_queue_close(queue));
    CHECK(qnic_wait_queue_close(condition));

    qnic_semaphore *semaphore;
    uint32_t units;
    CHECK(qnic_semaphore_open(participants[1], b->other, SEMAPHORE, &semaphore));
    CHECK(qnic_semaphore_initialize(semaphore, 1, &units));
    CHECK(qnic_semaphore_try(semaphore));
    REFUSED(qnic_semaphore_try(semaphore), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_semaphore_signal(semaphore));
    CHECK(qnic_semaphore_value(semaphore, &units));
    expect(units == 1, "the units of a semaphore");
    CHECK(qnic_semaphore_is_broken(semaphore, &broken));
    CHECK(qnic_semaphore_recover(semaphore, 5, NULL));
    CHECK(qnic_semaphore_close(semaphore));

    /* A queue that senders share. */
    qnic_shared_receiver *receiver;
    qnic_shared_sender *sender;
    size_t bytes;
    CHECK(qnic_shared_receiver_open(participants[0], 9, 2, 50, 20, &receiver));
    CHECK(qnic_shared_sender_open(participants[1], a->node, a->port, 9, LIMIT, &sender));
    CHECK(qnic_shared_sender_message_bytes(sender, &bytes));
    expect(bytes == 50, "the longest message");
    char room[50];
    REFUSED(qnic_shared_receiver_receive(receiver, room, 50, 0, &bytes), QNIC_E_WOULD_BLOCK);
    REFUSED(qnic_shared_receiver_receive(receiver, room, 10, 0, &bytes), QNIC_E_ARGUMENT);
    CHECK(qnic_shared_sender_send(sender, "shared", 6, LIMIT));
    CHECK(qnic_shared_sender_send(sender, "queue", 5, 0));
    REFUSED(qnic_shared_sender_send(sender, "full", 4, 0), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_shared_sender_flush(sender, LIMIT));
    CHECK(qnic_shared_receiver_receive(receiver, room, 50, LIMIT, &bytes));
    expect(bytes == 6 && memcmp(room, "shared", 6) == 0, "a message of a shared queue");
    CHECK(qnic_shared_sender_close(sender));
    CHECK(qnic_shared_receiver_close(receiver));
    CHECK(qnic_lock_close(mine));
    CHECK(qnic_lock_close(yours));
    CHECK(qnic_participant_close(participants[0]));
    CHECK(qnic_participant_close(participants[1]));
    CHECK(qnic_remote_close(own));
}

static void channels(struct side *a, struct side *b) {
    qnic_channel_options options = {.size = sizeof options, .slots = 2, .message_bytes = 10, .sent = 21};
    qnic_receiver *receiver;
    qnic_sender *sender;
    size_t length;
    int credit;
    char room[10];
    CHECK(qnic_receiver_open(a->endpoint, 10, &options, &receiver));
    CHECK(qnic_receiver_check(receiver, LIMIT));
    CHECK(qnic_sender_open(b->endpoint, a->node, a->port, 10, 22, NULL, LIMIT, &sender));
    CHECK(qnic_sender_get_info(sender, &length, &credit));
    expect(length == 10 && credit == 1, "a sender");
    REFUSED(qnic_sender_send(sender, "longer than a slot", 18, LIMIT), QNIC_E_MESSAGE_TOO_LONG);
    CHECK(qnic_sender_send(sender, "one", 3, LIMIT));
    CHECK(qnic_sender_get_info(sender, NULL, &credit));
    expect(credit == 0, "a sender without credit");
    REFUSED(qnic_sender_send(sender, "two", 3, 1000000), QNIC_E_TIMED_OUT);
    CHECK(qnic_sender_flush(sender, LIMIT));
    CHECK(qnic_receiver_receive(receiver, room, 10, 0, &length));
    expect(length == 3, "a message of a channel");
    REFUSED(qnic_receiver_receive(receiver, room, 10, 0, &length), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_receiver_check(receiver, LIMIT));
    CHECK(qnic_receiver_close(receiver));
    REFUSED(qnic_sender_end(sender, LIMIT), QNIC_E_CHANNEL_CLOSED);
    CHECK(qnic_sender_close(sender));
}

static void datagrams(qnic_nic *nic) {
    qnic_socket *sockets[2];
    uint16_t node, ports[2];
    for (int index = 0; index < 2; index++) {
        CHECK(qnic_socket_open(nic, 0, NULL, &sockets[index]));
        CHECK(qnic_socket_name(sockets[index], &node, &ports[index]));
    }
    char rooms[2][8];
    qnic_datagram out[] = {{"first", 5, {node, ports[1]}}, {"a long one", 10, {node, ports[1]}}};
    qnic_datagram in[] = {{rooms[0], 8, {0, 0}}, {rooms[1], 8, {0, 0}}};
    size_t received = 0, all = 0;
    struct pollfd descriptor = {.events = POLLIN};
    REFUSED(qnic_socket_receive(sockets[1], in, 1, 0, &received), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_socket_send_all(sockets[0], out, 2, LIMIT));
    CHECK(qnic_socket_poll(sockets[1], &descriptor.fd));
    expect(descriptor.fd == -1 || poll(&descriptor, 1, 30000) == 1, "a descriptor");
    for (; all < 2; all += received)
        CHECK(qnic_socket_receive(sockets[1], in + all, 2 - all, LIMIT, &received));
    expect(in[0].length == 5 && in[0].peer.port == ports[0], "a datagram");
    expect(in[1].length == 10 && memcmp(rooms[1], "a long o", 8) == 0, "as much as fits");
    qnic_frame_statistics statistics = {.size = sizeof statistics};
    CHECK(qnic_socket_statistics(sockets[1], &statistics));
    expect(statistics.received == 2 && statistics.frames_received >= 2, "what a socket has counted");
    CHECK(qnic_socket_close(sockets[0]));
    CHECK(qnic_socket_close(sockets[1]));

    qnic_pools *pools[2];
    qnic_frame_options options = {.size = sizeof options, .frame_bytes = 1024, .inputs = 4, .outputs = 1};
    size_t bytes;
    for (int index = 0; index < 2; index++) {
        CHECK(qnic_pools_open(nic, 0, &options, &pools[index]));
        CHECK(qnic_pools_get_info(pools[index], &node, &ports[index], &bytes));
    }
    expect(bytes == 1024, "bytes of a frame");
    qnic_datagram packet = {rooms[0], 8, {0, 0}};
    REFUSED(qnic_pools_receive(pools[1], &packet), QNIC_E_WOULD_BLOCK);
    REFUSED(qnic_pools_wait_input(pools[1], 1000), QNIC_E_TIMED_OUT);
    REFUSED(qnic_pools_send(pools[0], node, ports[1], rooms, 2048), QNIC_E_OUT_OF_RANGE);
    CHECK(qnic_pools_send(pools[0], node, ports[1], "packet", 6));
    CHECK(qnic_pools_flush(pools[0]));
    CHECK(qnic_pools_poll(pools[1], &descriptor.fd));
    CHECK(qnic_pools_wait_input(pools[1], LIMIT));
    CHECK(qnic_pools_receive(pools[1], &packet));
    expect(packet.length == 6 && memcmp(rooms[0], "packet", 6) == 0, "a packet");
    CHECK(qnic_pools_wait_output(pools[0], LIMIT));
    CHECK(qnic_pools_statistics(pools[0], &statistics));
    expect(statistics.frames_sent == 1, "what pools have counted");
    CHECK(qnic_pools_close(pools[0]));
    CHECK(qnic_pools_close(pools[1]));
}

static void streams(qnic_nic *nic) {
    qnic_streams *ends[2];
    qnic_listener *listener, *second;
    qnic_stream *near, *far;
    uint16_t node, port, peer;
    size_t count;
    char room[16];
    for (int index = 0; index < 2; index++)
        CHECK(qnic_streams_open(nic, 0, NULL, &ends[index]));
    CHECK(qnic_streams_name(ends[1], &node, &port));
    REFUSED(qnic_connect(ends[0], node, port, LIMIT, &near), QNIC_E_STREAM);
    CHECK(qnic_listen(ends[1], &listener));
    REFUSED(qnic_listen(ends[1], &second), QNIC_E_SYSTEM);
    REFUSED(qnic_accept(listener, 0, &far), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_connect(ends[0], node, port, LIMIT, &near));
    CHECK(qnic_accept(listener, LIMIT, &far));
    CHECK(qnic_stream_peer(near, NULL, &peer));
    expect(peer == port, "the other end of a stream");
    REFUSED(qnic_stream_receive(far, room, sizeof room, 0, &count), QNIC_E_WOULD_BLOCK);
    CHECK(qnic_stream_send(near, "bytes", 5, LIMIT, &count));
    expect(count == 5, "what was sent");
    CHECK(qnic_stream_flush(near, LIMIT));
    CHECK(qnic_stream_finish(near));
    REFUSED(qnic_stream_send(near, "more", 4, 0, &count), QNIC_E_STREAM_ENDED);
    CHECK(qnic_stream_receive(far, room, sizeof room, LIMIT, &count));
    expect(count == 5, "what has come");
    CHECK(qnic_stream_receive(far, room, sizeof room, LIMIT, &count));
    expect(count == 0, "the end of a stream");
    CHECK(qnic_stream_abort(far));
    qnic_stream_counters counters = {.size = sizeof counters};
    qnic_frame_statistics statistics = {.size = sizeof statistics};
    CHECK(qnic_streams_counters(ends[0], &counters));
    CHECK(qnic_streams_statistics(ends[0], &statistics));
    expect(counters.data_frames_sent >= 1 && statistics.frames_sent >= 1, "what streams have counted");
    REFUSED(qnic_stream_receive(near, room, sizeof room, LIMIT, &count), QNIC_E_STREAM);
    CHECK(qnic_stream_abort(near));
    CHECK(qnic_listener_close(listener));
    CHECK(qnic_streams_close(ends[0]));
    CHECK(qnic_streams_close(ends[1]));
}

static void machine(void) {
    qnic_machine *machine;
    qnic_machine_info info = {.size = sizeof info};
    uint16_t node, port;
    REFUSED(qnic_machine_open(&machine), QNIC_E_NO_MACHINE);
    setenv("QNIC_MACHINE", "lab", 1);
    setenv("QNIC_RANK", "1", 1);
    setenv("QNIC_SIZE", "2", 1);
    setenv("QNIC_MACHINE_NODES", "4,6", 1);
    setenv("QNIC_MACHINE_INTERFACE", "pool", 1);
    setenv("QNIC_MACHINE_KEY", "00ff00ff00ff00ff", 1);
    setenv("QNIC_MACHINE_PORT", "2000", 1);
    CHECK(qnic_machine_open(&machine));
    CHECK(qnic_machine_get_info(machine, &info));
    expect(info.rank == 1 && info.ranks == 2 && info.interface == QNIC_INTERFACE_POOL, "a machine");
    expect(strcmp((const char *)info.name, "lab") == 0, "its name");
    CHECK(qnic_machine_rank(machine, 1, &node, &port));
    expect(node == 6 && port == 2001, "a rank");
    REFUSED(qnic_machine_rank(machine, 2, &node, &port), QNIC_E_ARGUMENT);
    CHECK(qnic_machine_close(machine));
}

int main(void) {
    struct side a, b;
    qnic_nic *nic;
    CHECK(qnic_open(NULL, &nic));
    pair_open(nic, &a, &b);
    locks(&a, &b);
    channels(&a, &b);
    datagrams(nic);
    streams(nic);
    machine();
    side_close(&a);
    side_close(&b);
    CHECK(qnic_close(nic));
    return 0;
}
