// Made by cbindgen of src/transfer.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Writes and reads of remote memory, and what waits for them.
//
// A transfer is begun in one of three ways:
//
// | call | waits for | failures |
// |---|---|---|
// | `qnic_write` | this and all earlier writes to the same process (a fence) | of all of them that have no ticket |
// | `qnic_write_post` | room in the command queue | its ticket's; without one, the next fence's or flush's |
// | `qnic_write_begin` | room in the command queue | its request's: it ends by itself |
//
// Reads have the same three. Up to the inline limit, source bytes are copied and may lie anywhere;
// longer ones lie in memory that the endpoint exports, and must not change before the write is
// complete. A timeout ends the wait only: what was issued goes on.

#ifndef QNIC_TRANSFER_H
#define QNIC_TRANSFER_H

#include <stddef.h>
#include <stdint.h>
#include "request.h"

// Reads and atomic operations.
#define QNIC_FLUSH_READS 1

// Writes.
#define QNIC_FLUSH_WRITES 2

// Only the sources of writes: they may be changed afterwards. Reports no failure.
#define QNIC_FLUSH_SOURCES 4

// Only transfers to the process of `node` and `port`.
#define QNIC_FLUSH_PROCESS 8

// A transfer that was posted. Serves one call at a time.
typedef struct qnic_ticket qnic_ticket;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Writes `length` bytes to a remote segment at `offset`, and waits for this and all earlier writes to
// the same process, up to `timeout_ns` nanoseconds. If `notification` is not 0, it signals that
// notification of the remote process when all of it is there.
//
// Fails with `QNIC_E_TIMED_OUT`: the writes go on; `QNIC_E_NOT_EXPORTED`, `QNIC_E_OUT_OF_RANGE`,
// `QNIC_E_ACCESS_DENIED`, `QNIC_E_PEER_GONE`, …
int qnic_write(qnic_endpoint *endpoint,
               qnic_remote *to,
               uint64_t offset,
               const void *source,
               size_t length,
               uint32_t notification,
               int64_t timeout_ns);

// Posts a write; waits only for room in the command queue. `ticket` may be null: then a failure goes
// to the next fence or flush.
//
// Fails with `QNIC_E_QUEUE_FULL`: nothing was issued; and as `qnic_write` before it is issued.
int qnic_write_post(qnic_endpoint *endpoint,
                    qnic_remote *to,
                    uint64_t offset,
                    const void *source,
                    size_t length,
                    uint32_t notification,
                    int64_t timeout_ns,
                    qnic_ticket **ticket);

// Begins a write with a completion of its own. `request` may be null: then a failure goes to the next
// fence or flush.
//
// Fails as `qnic_write_post`.
int qnic_write_begin(qnic_endpoint *endpoint,
                     qnic_remote *to,
                     uint64_t offset,
                     const void *source,
                     size_t length,
                     uint32_t notification,
                     int64_t timeout_ns,
                     qnic_request **request);

// Reads `length` bytes from a remote segment at `offset` into memory that the endpoint exports, and
// waits for this and all earlier reads from the same process, up to `timeout_ns` nanoseconds.
//
// Fails as `qnic_write`.
int qnic_read(qnic_endpoint *endpoint,
              qnic_remote *from,
              uint64_t offset,
              void *destination,
              size_t length,
              int64_t timeout_ns);

// Posts a read; waits only for room in the command queue. `ticket` may be null.
//
// Fails as `qnic_write_post`.
int qnic_read_post(qnic_endpoint *endpoint,
                   qnic_remote *from,
                   uint64_t offset,
                   void *destination,
                   size_t length,
                   int64_t timeout_ns,
                   qnic_ticket **ticket);

// Begins a read with a completion of its own. `request` may be null.
//
// Fails as `qnic_write_post`.
int qnic_read_begin(qnic_endpoint *endpoint,
                    qnic_remote *from,
                    uint64_t offset,
                    void *destination,
                    size_t length,
                    int64_t timeout_ns,
                    qnic_request **request);

// Stores the number of a ticket's command among all of its endpoint, from 0 on.
int qnic_ticket_number(qnic_ticket *ticket, uint64_t *number);

// Returns 0 if the transfer and all earlier ones of its kind to the same process have ended, with
// success or not; `qnic_ticket_wait` says which.
//
// Fails with `QNIC_E_WOULD_BLOCK`: they go on.
int qnic_ticket_test(qnic_ticket *ticket);

// Waits until the transfer and all earlier ones of its kind to the same process have ended, up to
// `timeout_ns` nanoseconds. Its failure is reported once.
//
// Fails with `QNIC_E_TIMED_OUT`: it goes on, wait again; or with why this transfer failed.
int qnic_ticket_wait(qnic_ticket *ticket, int64_t timeout_ns);

// Closes a ticket. The transfer goes on, and its failure goes to the next fence or flush.
int qnic_ticket_close(qnic_ticket *ticket);

// Waits for reads and writes that were issued before, up to `timeout_ns` nanoseconds: those that
// `flags` name (`QNIC_FLUSH_…`), all with 0.
//
// Fails with `QNIC_E_TIMED_OUT`: they go on; or with the failures that no ticket and no request tells.
int qnic_flush(qnic_endpoint *endpoint,
               uint32_t flags,
               uint16_t node,
               uint16_t port,
               int64_t timeout_ns);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_TRANSFER_H */
