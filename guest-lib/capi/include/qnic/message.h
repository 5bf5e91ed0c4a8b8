// Made by cbindgen of src/message.rs, src/probe.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Tagged messages, matched by the NIC that receives them.
//
// A process has 16 message endpoints, each with a tagged and an untagged space. A message matches a
// receive of its space if the receive takes its source, and if both tags are equal in all bits that
// the receive does not ignore. Messages of one process to another do not overtake each other. The
// bytes of Sends follow the rules of writes; those of receives lie in memory that the endpoint exports,
// whatever access that grants.
// Messages that are looked for before they are received, and the buffer pool.
//
// A message that was only probed may go to a receive of another thread. One that was claimed goes only
// to a receive of its claim. What is said of a message stands in a `qnic_completion`.

#ifndef QNIC_MESSAGE_H
#define QNIC_MESSAGE_H

#include <stddef.h>
#include <stdint.h>
#include "atomic.h"

// In the untagged space.
#define QNIC_MESSAGE_UNTAGGED 1

// Of every process: `node` and `port` say nothing.
#define QNIC_MESSAGE_ANY_SOURCE 2

// A claim. Serves one call at a time.
typedef struct qnic_claim qnic_claim;

// A receive that takes many messages, one behind the other in its memory. Serves one call at a time.
typedef struct qnic_many qnic_many;

// Pages that the process shares with its NIC, so that no message in them waits for a page. They have
// one operation at a time. Serves one call at a time.
typedef struct qnic_pool_buffer qnic_pool_buffer;

// Where a message goes, or what a receive takes.
typedef struct {
  // Size of this structure.
  size_t size;
  // `QNIC_MESSAGE_…`.
  uint32_t flags;
  // Node of the other process.
  uint16_t node;
  // Port of the other process.
  uint16_t port;
  // The tag; 0 in the untagged space.
  uint64_t tag;
  // Of a receive: bits of the tag that it ignores.
  uint64_t ignore;
  // Of a Send: 64 bits that the receiver gets with the message.
  uint64_t immediate;
  // Message endpoint, 0 to 15.
  uint32_t endpoint;
  // Zero.
  uint32_t reserved;
} qnic_match;

// Memory of a message that lies in several places.
typedef struct {
  // Its first byte.
  void *address;
  // Its bytes.
  size_t length;
} qnic_piece;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Sends a message, and waits until it has arrived at the other NIC, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`: it goes on, and may arrive; `QNIC_E_NO_SUCH_PORT`,
// `QNIC_E_PEER_GONE`, `QNIC_E_TRUNCATED`, `QNIC_E_NOT_EXPORTED`.
int qnic_send(qnic_endpoint *endpoint,
              const qnic_match *to,
              const void *bytes,
              size_t length,
              int64_t timeout_ns);

// Begins to send; never waits for the receiver. `request` may be null: then nothing tells of its end.
//
// Fails with `QNIC_E_WOULD_BLOCK`: as many Sends wait as may, and it has not begun.
int qnic_send_post(qnic_endpoint *endpoint,
                   const qnic_match *to,
                   const void *bytes,
                   size_t length,
                   qnic_request **request);

// Begins to send up to 128 bytes that are stored in the NIC's memory; it needs a context, and does not
// wait for one. `request` may be null: then its end is told to nothing, and a failure is counted.
//
// Fails with `QNIC_E_NO_CONTEXT`, `QNIC_E_OUT_OF_RANGE`.
int qnic_send_short(qnic_endpoint *endpoint,
                    const qnic_match *to,
                    const void *bytes,
                    size_t length,
                    qnic_request **request);

// Begins to send pieces of one segment as one message. All but the first begin where a page begins,
// all but the last end where one ends, and they lie in 256 pages at most.
//
// Fails with `QNIC_E_ARGUMENT`: the pieces break that rule; `QNIC_E_NO_CONTEXT`, `QNIC_E_POOL_FULL`.
int qnic_send_pieces(qnic_endpoint *endpoint,
                     const qnic_match *to,
                     const qnic_piece *pieces,
                     size_t count,
                     qnic_request **request);

// Receives a message, and waits for it, up to `timeout_ns` nanoseconds. `completion` may be null.
//
// Memory of no bytes may be anywhere; the receive needs a context then.
//
// Fails with `QNIC_E_TIMED_OUT`: no message came, and none is taken any more.
int qnic_receive(qnic_endpoint *endpoint,
                 const qnic_match *from,
                 void *room,
                 size_t length,
                 int64_t timeout_ns,
                 qnic_completion *completion);

// Posts a receive of one message.
//
// Fails with `QNIC_E_WOULD_BLOCK`: as many are posted as may; `QNIC_E_NOT_EXPORTED`.
int qnic_receive_post(qnic_endpoint *endpoint,
                      const qnic_match *from,
                      void *room,
                      size_t length,
                      qnic_request **request);

// Posts a receive of one message into pieces of one segment; their rules are those of
// `qnic_send_pieces`.
int qnic_receive_pieces(qnic_endpoint *endpoint,
                        const qnic_match *from,
                        const qnic_piece *pieces,
                        size_t count,
                        qnic_request **request);

// Posts a receive of many messages. It ends when its memory is full: the message that does not fit is
// truncated, and the last.
//
// Fails as `qnic_receive_post`.
int qnic_many_open(qnic_endpoint *endpoint,
                   const qnic_match *from,
                   void *room,
                   size_t length,
                   qnic_many **many);

// Takes the next message if one has come: `offset` of the completion says where it begins.
//
// Fails with `QNIC_E_WOULD_BLOCK`: none has; or with why that message failed.
int qnic_many_test(qnic_many *many, qnic_completion *completion);

// Waits for the next message, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`: it stays posted; `QNIC_E_CANCELLED`: it has ended, and all of its
// messages are taken; or with why that message failed.
int qnic_many_wait(qnic_many *many, int64_t timeout_ns, qnic_completion *completion);

// Takes the receive back. Messages that have come can be taken still.
int qnic_many_cancel(qnic_many *many);

// Closes the receive: it is cancelled, and this waits until the NIC is done with its memory.
int qnic_many_close(qnic_many *many);

// Waits until a message has arrived that a receive would take, up to `timeout_ns` nanoseconds, and
// says what it is. It stays. A timeout of 0 looks once.
//
// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`: there is none.
int qnic_probe(qnic_endpoint *endpoint,
               const qnic_match *from,
               int64_t timeout_ns,
               qnic_completion *completion);

// Drops a message that has arrived, and says what it was.
//
// Fails with `QNIC_E_WOULD_BLOCK`: there is none.
int qnic_discard(qnic_endpoint *endpoint, const qnic_match *from, qnic_completion *completion);

// Posts a claim: the next message that a receive would take goes to it, and to nothing else.
int qnic_claim_open(qnic_endpoint *endpoint, const qnic_match *from, qnic_claim **claim);

// Claims a message that has arrived already.
//
// Fails with `QNIC_E_WOULD_BLOCK`: there is none.
int qnic_claim_now(qnic_endpoint *endpoint, const qnic_match *from, qnic_claim **claim);

// Waits until a claim has its message, up to `timeout_ns` nanoseconds, and says what it is; 0 looks
// once.
//
// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`: it has none yet;
// `QNIC_E_NO_MESSAGE`: it was received.
int qnic_claim_wait(qnic_claim *claim, int64_t timeout_ns, qnic_completion *completion);

// Receives the message of a claim that has one into memory that the endpoint exports, and waits until
// it is there: at the latest when its sender is given up.
//
// Fails with `QNIC_E_NO_MESSAGE`: it has none; its sender has ended before all of it was here; it was
// received. In each case but the first the message is gone.
int qnic_claim_receive(qnic_claim *claim,
                       void *room,
                       size_t length,
                       qnic_completion *completion);

// Takes a claim back: unless a message has come for it, it ends with `QNIC_E_CANCELLED`.
int qnic_claim_cancel(qnic_claim *claim);

// Closes a claim. Its message, if it has one that was not received, is discarded.
int qnic_claim_close(qnic_claim *claim);

// Takes so many pages of 4,096 bytes from the pool of an endpoint; never waits. What stood in them
// before is still there.
//
// Fails with `QNIC_E_POOL_FULL`.
int qnic_pool_buffer_open(qnic_endpoint *endpoint, size_t pages, qnic_pool_buffer **buffer);

// Copies bytes into pages.
//
// Fails with `QNIC_E_OUT_OF_RANGE`, `QNIC_E_BUSY`: an operation has them.
int qnic_pool_buffer_write(qnic_pool_buffer *buffer,
                           size_t offset,
                           const void *bytes,
                           size_t length);

// Copies bytes out of pages.
//
// Fails as `qnic_pool_buffer_write`.
int qnic_pool_buffer_read(qnic_pool_buffer *buffer, size_t offset, void *bytes, size_t length);

// Begins to send the first `length` bytes of pages. It needs a context, and does not wait for one.
//
// Fails with `QNIC_E_NO_CONTEXT`, `QNIC_E_OUT_OF_RANGE`: the pages go back to the pool;
// `QNIC_E_BUSY`: an operation has them.
int qnic_pool_buffer_send(qnic_pool_buffer *buffer, const qnic_match *to, size_t length);

// Posts a receive of one message into pages.
//
// Fails as `qnic_pool_buffer_send`.
int qnic_pool_buffer_receive(qnic_pool_buffer *buffer, const qnic_match *from);

// Waits until the operation of pages has ended, up to `timeout_ns` nanoseconds: the program has them
// again. `completion` may be null.
//
// Fails with `QNIC_E_TIMED_OUT`: it goes on; `QNIC_E_WOULD_BLOCK`: there is none; or with why it failed:
// then the pages have gone back to the pool.
int qnic_pool_buffer_wait(qnic_pool_buffer *buffer,
                          int64_t timeout_ns,
                          qnic_completion *completion);

// Takes the receive of pages back, as `qnic_request_cancel` does.
int qnic_pool_buffer_cancel(qnic_pool_buffer *buffer);

// Gives pages back to the pool. A receive is cancelled; a Send goes on, and has them until its end.
int qnic_pool_buffer_close(qnic_pool_buffer *buffer);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_MESSAGE_H */
