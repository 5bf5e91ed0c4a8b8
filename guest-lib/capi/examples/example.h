/* What the examples share: a check that ends the program with the detail of an error. */

#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <qnic.h>

/* Long enough for a peer to start, in nanoseconds. */
#define LIMIT INT64_C(30000000000)

/* Ends the program unless a call has succeeded. */
#define CHECK(call) check((call), #call)

static inline void check(int status, const char *call) {
    if (status == 0)
        return;
    qnic_error error = {.size = sizeof error};
    qnic_last_error(&error);
    fprintf(stderr, "%s: %s (%s)\n", call, error.message, qnic_strerror(status));
    exit(1);
}

/* Ends the program unless something is as it has to be. */
static inline void expect(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "unexpected: %s\n", what);
        exit(1);
    }
}

/* The node of the peer, of the command line; of two nodes of a cluster the other one. */
static inline uint16_t peer_of(int count, char **arguments) {
    const char *own = getenv("QNIC_NODE");
    if (count > 1)
        return (uint16_t)strtoul(arguments[1], NULL, 10);
    if (own)
        return strtoul(own, NULL, 10) ? 0 : 1;
    fprintf(stderr, "usage: %s NODE-OF-THE-PEER\n", arguments[0]);
    exit(2);
}

/* Opens the NIC that the environment names, and registers on a port, as process 0 of an application. */
static inline qnic_endpoint *registered(uint16_t port, const char *application) {
    qnic_nic *nic;
    qnic_endpoint *endpoint;
    CHECK(qnic_open(NULL, &nic));
    CHECK(qnic_register(nic, port, application, 0, &endpoint));
    CHECK(qnic_close(nic));
    return endpoint;
}

/* Imports a segment of a process, which may not be there yet. */
static inline qnic_remote *imported(qnic_endpoint *endpoint, uint16_t node, uint16_t port,
                                    uint64_t name) {
    qnic_remote *remote;
    CHECK(qnic_import(endpoint, node, port, name, NULL, LIMIT, &remote));
    return remote;
}

#endif
