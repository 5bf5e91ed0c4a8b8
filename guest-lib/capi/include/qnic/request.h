// Made by cbindgen of src/request.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Requests: operations with a completion of their own, of whatever kind. Messages, transfers and
// atomic operations of one endpoint can be waited for together.

#ifndef QNIC_REQUEST_H
#define QNIC_REQUEST_H

#include <stddef.h>
#include <stdint.h>
#include "memory.h"

// The message is longer than its receive: what fits has arrived.
#define QNIC_COMPLETION_TRUNCATED 1

// A message that is being sent, a receive that is posted, or a transfer with a completion of its own.
// Serves one call at a time.
typedef struct qnic_request qnic_request;

// A message that was sent, or has arrived; or a transfer.
typedef struct {
  // Size of this structure.
  size_t size;
  // Bytes of the message as it was sent, or of the transfer.
  uint64_t length;
  // Tag of the message; 0 in the untagged space.
  uint64_t tag;
  // What its sender has given with it. Of an atomic operation what the word was, as
  // `qnic_atomic` stores it.
  uint64_t immediate;
  // Where the message begins in the memory of a receive of many messages. Of a transfer the offset
  // in the remote segment.
  uint64_t offset;
  // `QNIC_COMPLETION_…`.
  uint32_t flags;
  // Node of the other process.
  uint16_t node;
  // Port of the other process.
  uint16_t port;
} qnic_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Says what has become of a request, without waiting. `completion` may be null.
//
// Fails with `QNIC_E_WOULD_BLOCK`: it goes on; or with why the operation failed.
int qnic_request_test(qnic_request *request, qnic_completion *completion);

// Waits until a request has ended, up to `timeout_ns` nanoseconds. `completion` may be null.
//
// Fails with `QNIC_E_TIMED_OUT`: it goes on, wait again; or with why the operation failed.
int qnic_request_wait(qnic_request *request, int64_t timeout_ns, qnic_completion *completion);

// Takes a receive back: unless a message has come for it, it ends with `QNIC_E_CANCELLED`. Does not
// wait for that. A Send and a transfer go on.
int qnic_request_cancel(qnic_request *request);

// Closes a request. A receive is cancelled, and this waits until the NIC is done with its memory. A
// Send goes on, and nothing tells of its failure. A transfer goes on, and its failure goes to the next
// fence or flush.
int qnic_request_close(qnic_request *request);

// Waits until one of several requests of one endpoint has ended, and stores its index;
// `qnic_request_test` tells what has become of it. Of several that have ended, it is the first.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_FOREIGN_REQUEST`, `QNIC_E_ARGUMENT`: there are none.
int qnic_request_wait_any(qnic_request *const *requests,
                          size_t count,
                          int64_t timeout_ns,
                          size_t *index);

// Waits until all of several requests of one endpoint have ended. `completions` is null, or has room
// for as many, each of which says its size.
//
// Fails with `QNIC_E_TIMED_OUT`: some have not; `QNIC_E_FOREIGN_REQUEST`; or with why the first failed
// that did: `qnic_request_test` tells of the others.
int qnic_request_wait_all(qnic_request *const *requests,
                          size_t count,
                          int64_t timeout_ns,
                          qnic_completion *completions);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_REQUEST_H */
