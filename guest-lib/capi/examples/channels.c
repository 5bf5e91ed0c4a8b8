/* A channel in each direction, and notifications by a handler and by poll.
 *
 *     channels NODE-OF-THE-PEER
 */

#include <poll.h>
#include <semaphore.h>

#include "example.h"

enum { PORT = 12, TO_US = 1, TO_THEM = 2, SENT = 1, REPLENISH = 2, HANDLED = 3, POLLED = 4, BELL = 5 };

static void on_message(void *context, int status, const void *bytes, size_t length) {
    (void)bytes;
    if (status == 0)
        *(size_t *)context += length;
}

/* What the handler and the program share. */
struct shared {
    qnic_endpoint *endpoint;
    sem_t calls;
};

static void on_signal(void *context, uint32_t number) {
    struct shared *shared = context;
    /* The endpoint serves the handler's thread, too. */
    qnic_endpoint_info info = {.size = sizeof info};
    CHECK(qnic_endpoint_get_info(shared->endpoint, &info));
    printf("notification %u at port %u\n", number, info.port);
    sem_post(&shared->calls);
}

int main(int count, char **arguments) {
    uint16_t peer = peer_of(count, arguments);
    qnic_endpoint *endpoint = registered(PORT, "channels");
    qnic_channel_options options = {
        .size = sizeof options, .slots = 4, .message_bytes = 100, .sent = SENT};
    qnic_receiver *receiver;
    qnic_sender *sender;
    CHECK(qnic_receiver_open(endpoint, TO_US, &options, &receiver));
    CHECK(qnic_sender_open(endpoint, peer, PORT, TO_THEM, REPLENISH, NULL, LIMIT, &sender));

    /* What comes is sent back, until the peer closes its end. */
    char room[100];
    size_t length;
    int status;
    while ((status = qnic_receiver_receive(receiver, room, sizeof room, LIMIT, &length)) == 0)
        CHECK(qnic_sender_send(sender, room, length, LIMIT));
    expect(status == QNIC_E_CHANNEL_CLOSED, "the end of a channel");
    CHECK(qnic_sender_end(sender, LIMIT));
    CHECK(qnic_sender_close(sender));
    CHECK(qnic_receiver_close(receiver));

    /* A handler for one notification, a descriptor for all. */
    void *memory;
    qnic_buffer *buffer;
    qnic_segment *bell;
    qnic_armed *armed;
    qnic_poller *poller;
    struct shared shared = {.endpoint = endpoint};
    sem_init(&shared.calls, 0, 0);
    CHECK(qnic_notification_arm(endpoint, HANDLED, on_signal, &shared, &armed));
    CHECK(qnic_poller_open(endpoint, &poller));
    CHECK(qnic_buffer_open(endpoint, 4096, &memory, &buffer));
    CHECK(qnic_export(endpoint, BELL, buffer, QNIC_WRITE, NULL, &bell));
    struct pollfd descriptor = {.events = POLLIN};
    CHECK(qnic_poller_descriptor(poller, &descriptor.fd));
    for (;;) {
        uint64_t pending = 0;
        CHECK(qnic_poller_prepare(poller, NULL));
        CHECK(qnic_notification_test(endpoint, POLLED, NULL, &pending));
        if (pending > 0)
            break;
        expect(poll(&descriptor, 1, 30000) > 0, "a descriptor that stays silent");
    }
    CHECK(qnic_notification_acknowledge(endpoint, POLLED));
    /* The peer has signalled twice, and the handler's thread may be behind. */
    for (int call = 0; call < 2; call++)
        expect(sem_wait(&shared.calls) == 0, "a wait that was interrupted");
    CHECK(qnic_armed_close(armed));
    sem_destroy(&shared.calls);
    CHECK(qnic_poller_close(poller));
    CHECK(qnic_segment_close(bell));
    CHECK(qnic_buffer_close(buffer));

    /* A channel whose messages go to a handler, until it is closed. */
    size_t bytes = 0;
    CHECK(qnic_receiver_open(endpoint, TO_US, &options, &receiver));
    CHECK(qnic_receiver_handle(receiver, on_message, &bytes, &armed));
    expect(qnic_receiver_close(receiver) == QNIC_E_HANDLE, "a receiver that a handler has");
    CHECK(qnic_armed_close(armed));
    CHECK(qnic_endpoint_close(endpoint));
    return 0;
}
