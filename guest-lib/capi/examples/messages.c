/* Tagged messages: the peer asks, this program answers; then one receive takes many messages.
 *
 *     messages NODE-OF-THE-PEER
 */

#include "example.h"

enum { PORT = 8, MEMORY = 1, QUESTION = 5, ANSWER = 6, MANY = 7, BYTES = 1 << 16 };

int main(int count, char **arguments) {
    uint16_t peer = peer_of(count, arguments);
    qnic_endpoint *endpoint = registered(PORT, "messages");
    void *memory;
    qnic_buffer *buffer;
    qnic_segment *segment;
    CHECK(qnic_buffer_open(endpoint, 2 * BYTES, &memory, &buffer));
    CHECK(qnic_export(endpoint, MEMORY, buffer, QNIC_READ, NULL, &segment));
    char *room = memory;

    /* A question of any process, whatever it is of. */
    qnic_match from = {.size = sizeof from, .flags = QNIC_MESSAGE_ANY_SOURCE, .tag = QUESTION};
    qnic_completion asked = {.size = sizeof asked};
    CHECK(qnic_receive(endpoint, &from, room, BYTES, LIMIT, &asked));
    printf("%" PRIu64 " bytes from node %u with %" PRIu64 "\n", asked.length, asked.node,
           asked.immediate);

    /* Answered by the same bytes, which lie in exported memory: no copy. */
    qnic_match to = {.size = sizeof to, .node = peer, .port = PORT, .tag = ANSWER, .immediate = 42};
    qnic_request *answer;
    CHECK(qnic_send_post(endpoint, &to, room, asked.length, &answer));
    CHECK(qnic_request_wait(answer, LIMIT, NULL));
    CHECK(qnic_request_close(answer));

    /* A receive that stands for many messages, one behind the other. */
    qnic_match each = {.size = sizeof each, .node = peer, .port = PORT, .tag = MANY};
    qnic_many *many;
    CHECK(qnic_many_open(endpoint, &each, room + BYTES, BYTES, &many));
    to.tag = MANY;
    CHECK(qnic_send(endpoint, &to, "ready", 5, LIMIT));
    for (int number = 0; number < 3; number++) {
        qnic_completion letter = {.size = sizeof letter};
        CHECK(qnic_many_wait(many, LIMIT, &letter));
        printf("%.*s\n", (int)letter.length, room + BYTES + letter.offset);
    }
    CHECK(qnic_many_close(many));

    /* Claimed before it is received, into memory that is made for it. */
    qnic_match last = {.size = sizeof last, .flags = QNIC_MESSAGE_ANY_SOURCE, .ignore = UINT64_MAX};
    qnic_claim *claim;
    qnic_completion found = {.size = sizeof found};
    CHECK(qnic_claim_open(endpoint, &last, &claim));
    CHECK(qnic_claim_wait(claim, LIMIT, &found));
    CHECK(qnic_claim_receive(claim, room, found.length, NULL));
    printf("%.*s with tag %" PRIu64 "\n", (int)found.length, room, found.tag);
    CHECK(qnic_claim_close(claim));

    CHECK(qnic_segment_close(segment));
    CHECK(qnic_buffer_close(buffer));
    CHECK(qnic_endpoint_close(endpoint));
    return 0;
}
