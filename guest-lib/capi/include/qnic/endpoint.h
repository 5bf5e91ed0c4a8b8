// Made by cbindgen of src/endpoint.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// An endpoint: this process on a port of its node. (node, port) names it in the network.

#ifndef QNIC_ENDPOINT_H
#define QNIC_ENDPOINT_H

#include <stddef.h>
#include <stdint.h>
#include "nic.h"

// A registered process. Serves many threads at once.
typedef struct qnic_endpoint qnic_endpoint;

// An endpoint, and what the library has counted for it.
typedef struct {
  // Size of this structure.
  size_t size;
  // Node number.
  uint16_t node;
  // Port.
  uint16_t port;
  // Most bytes of a segment that travel in the command.
  uint32_t inline_max;
  // After what silence its NIC gives up another one, in nanoseconds.
  uint64_t peer_timeout_ns;
  // Sends that have failed and whose end was not to be reported.
  uint64_t failed_sends;
  // Commands that its queue has room for.
  uint32_t command_entries;
  // Contexts for Sends, and as many for receives.
  uint32_t contexts;
  // Pages of its buffer pool.
  uint32_t pool_pages;
  // Pages of its buffer pool that are free, not necessarily in one run.
  uint32_t free_pool_pages;
} qnic_endpoint_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Registers this process on a port; 0 asks for any free one. `application`, if it is not null, gives
// it the name (`application`, `process`) as long as it lives; otherwise it has the place of
// `qnic_open`.
//
// Fails with `QNIC_E_PORT_IN_USE`, `QNIC_E_EXHAUSTED`, `QNIC_E_NAME_TAKEN`, `QNIC_E_ARGUMENT`.
int qnic_register(qnic_nic *nic,
                  uint16_t port,
                  const char *application,
                  uint32_t process,
                  qnic_endpoint **endpoint);

// Closes the handle. The endpoint ends when all that was made from it is closed, too.
int qnic_endpoint_close(qnic_endpoint *endpoint);

// Describes an endpoint.
int qnic_endpoint_get_info(qnic_endpoint *endpoint, qnic_endpoint_info *info);

// Tells how long transfers took from their post until a wait saw them complete: calls `each` for every
// range of times, with the longest of it in nanoseconds (`UINT64_MAX` of the last one) and their number,
// on this thread before this function returns. The first transfer and every 61st after it are timed, if
// the program waits for them.
int qnic_endpoint_times(qnic_endpoint *endpoint,
                        void (*each)(void *context, uint64_t longest_ns, uint64_t count),
                        void *context);

// What the route to a node is like. Without a session of the two NICs, the other one is asked, for
// five seconds at most.
//
// Fails with `QNIC_E_NO_PATH`.
int qnic_endpoint_path(qnic_endpoint *endpoint, uint16_t node, qnic_path *path);

// Bounds the Sends that wait in the library because the NIC has no place for them: `most` in all.
int qnic_endpoint_hold_sends(qnic_endpoint *endpoint, size_t most);

// Starts the command queue again after `QNIC_E_QUEUE_FAILED`. Commands in it are dropped.
//
// Fails with `QNIC_E_DEVICE_GONE`.
int qnic_endpoint_reset_queue(qnic_endpoint *endpoint);

// Calls `post` on this thread, and tells the NIC of all commands that it has posted at once, when it
// has returned.
int qnic_endpoint_batch(qnic_endpoint *endpoint,
                        void (*post)(void *context),
                        void *context);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_ENDPOINT_H */
