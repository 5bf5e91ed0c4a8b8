/* Hello between two nodes: each exports an inbox, writes into that of the other, and signals it.
 *
 *     hello NODE-OF-THE-PEER
 */

#include "example.h"

enum { PORT = 7, INBOX = 1, LETTER = 1, BYTES = 4096 };

int main(int count, char **arguments) {
    uint16_t peer = peer_of(count, arguments);
    qnic_endpoint *endpoint = registered(PORT, NULL);

    void *inbox;
    qnic_buffer *buffer;
    qnic_segment *segment;
    CHECK(qnic_buffer_open(endpoint, BYTES, &inbox, &buffer));
    CHECK(qnic_export(endpoint, INBOX, buffer, QNIC_WRITE, NULL, &segment));

    qnic_endpoint_info own = {.size = sizeof own};
    CHECK(qnic_endpoint_get_info(endpoint, &own));
    char greeting[64];
    snprintf(greeting, sizeof greeting, "hello from node %u", own.node);

    qnic_remote *theirs = imported(endpoint, peer, PORT, INBOX);
    CHECK(qnic_write(endpoint, theirs, 0, greeting, sizeof greeting, LETTER, LIMIT));

    CHECK(qnic_notification_take(endpoint, LETTER, LIMIT));
    printf("%s\n", (const char *)inbox);

    CHECK(qnic_remote_close(theirs));
    CHECK(qnic_segment_close(segment));
    CHECK(qnic_buffer_close(buffer));
    CHECK(qnic_endpoint_close(endpoint));
    return 0;
}
