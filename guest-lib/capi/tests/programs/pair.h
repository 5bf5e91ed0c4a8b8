/* Two endpoints of one process, each with exported memory that the other one has imported. */

#ifndef PAIR_H
#define PAIR_H

#include "example.h"

#define REFUSED(call, code) expect((call) == (code), #call)

enum { ROOM = 1 << 16, SEGMENT = 1 };

struct side {
    qnic_endpoint *endpoint;
    qnic_buffer *buffer;
    qnic_segment *segment;
    qnic_remote *other;
    char *memory;
    uint16_t node, port;
};

static inline void side_open(qnic_nic *nic, struct side *side) {
    qnic_endpoint_info info = {.size = sizeof info};
    void *memory;
    CHECK(qnic_register(nic, 0, NULL, 0, &side->endpoint));
    CHECK(qnic_endpoint_get_info(side->endpoint, &info));
    side->node = info.node;
    side->port = info.port;
    CHECK(qnic_buffer_open(side->endpoint, ROOM, &memory, &side->buffer));
    CHECK(qnic_export(side->endpoint, SEGMENT, side->buffer, QNIC_READ | QNIC_WRITE, NULL,
                      &side->segment));
    side->memory = memory;
}

static inline void side_import(struct side *side, const struct side *of) {
    CHECK(qnic_import(side->endpoint, of->node, of->port, SEGMENT, NULL, LIMIT, &side->other));
}

static inline void pair_open(qnic_nic *nic, struct side *a, struct side *b) {
    side_open(nic, a);
    side_open(nic, b);
    side_import(a, b);
    side_import(b, a);
}

static inline void side_close(struct side *side) {
    CHECK(qnic_remote_close(side->other));
    CHECK(qnic_segment_close(side->segment));
    CHECK(qnic_buffer_close(side->buffer));
    CHECK(qnic_endpoint_close(side->endpoint));
}

/* What a message of a side matches, and where one to it goes. */
static inline qnic_match match(const struct side *side, uint64_t tag) {
    return (qnic_match){.size = sizeof(qnic_match), .node = side->node, .port = side->port, .tag = tag};
}

#endif
