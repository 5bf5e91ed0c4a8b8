/* Unreliable datagrams, and a reliable stream, through the kernel: this program answers both.
 *
 *     datagrams
 */

#include "example.h"

enum { DATAGRAMS = 2000, STREAMS = 2001 };

int main(void) {
    qnic_nic *nic;
    qnic_socket *socket;
    qnic_streams *streams;
    qnic_listener *listener;
    CHECK(qnic_open(NULL, &nic));
    CHECK(qnic_socket_open(nic, DATAGRAMS, NULL, &socket));
    CHECK(qnic_streams_open(nic, STREAMS, NULL, &streams));
    CHECK(qnic_listen(streams, &listener));
    CHECK(qnic_close(nic));

    static char room[65536];
    size_t received = 0;
    qnic_datagram message = {.bytes = room, .length = sizeof room};
    CHECK(qnic_socket_receive(socket, &message, 1, LIMIT, &received));
    printf("a datagram of %zu bytes from node %u\n", message.length, message.peer.node);
    CHECK(qnic_socket_send(socket, message.peer.node, message.peer.port, room, message.length, LIMIT));

    qnic_stream *stream;
    CHECK(qnic_accept(listener, LIMIT, &stream));
    size_t total = 0;
    for (;;) {
        size_t sent;
        CHECK(qnic_stream_receive(stream, room, sizeof room, LIMIT, &received));
        if (received == 0)
            break;
        for (size_t at = 0; at < received; at += sent)
            CHECK(qnic_stream_send(stream, room + at, received - at, LIMIT, &sent));
        total += received;
    }
    CHECK(qnic_stream_close(stream, LIMIT));
    printf("a stream of %zu bytes\n", total);

    CHECK(qnic_listener_close(listener));
    CHECK(qnic_streams_close(streams));
    CHECK(qnic_socket_close(socket));
    return 0;
}
