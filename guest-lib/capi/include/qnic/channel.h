// Made by cbindgen of src/channel.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Channels: one-way streams of messages between two processes, and queues that many senders share.
//
// The receiver exports slots and names a counted notification, which serves no other purpose while the
// channel lives; so does the sender for its credits. Messages are copied in and out. An end that is
// closed tells the other, which gets what was sent, then `QNIC_E_CHANNEL_CLOSED`.

#ifndef QNIC_CHANNEL_H
#define QNIC_CHANNEL_H

#include <stddef.h>
#include <stdint.h>
#include "sync.h"

// The receiving end of a channel. Serves one call at a time.
typedef struct qnic_receiver qnic_receiver;

// The sending end of a channel. Serves one call at a time.
typedef struct qnic_sender qnic_sender;

// The receiving end of a queue that many senders share. Serves one call at a time.
typedef struct qnic_shared_receiver qnic_shared_receiver;

// A sending end of a queue that many senders share. Serves one call at a time.
typedef struct qnic_shared_sender qnic_shared_sender;

// A channel, as its receiver chooses it.
typedef struct {
  // Size of this structure.
  size_t size;
  // Messages that the receiver has room for, at least 2.
  size_t slots;
  // Longest message in bytes, at least 1.
  size_t message_bytes;
  // The receiver returns credits whenever it has consumed so many messages, 1 to `slots` - 1; 0: a
  // quarter of the slots.
  size_t refill;
  // Notification of the receiver's process that the channel signals.
  uint32_t sent;
  // `QNIC_EXPORT_LISTED`, `QNIC_EXPORT_SECRET`: which processes may become the sender.
  uint32_t flags;
  // The list.
  const qnic_process *listed;
  // How many processes are listed.
  uint32_t listed_count;
  // Zero.
  uint32_t reserved;
  // The secret.
  uint8_t secret[16];
} qnic_channel_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens the receiving end of a channel under a name.
//
// Fails with `QNIC_E_ARGUMENT`, and as `qnic_export`.
int qnic_receiver_open(qnic_endpoint *endpoint,
                       uint64_t name,
                       const qnic_channel_options *options,
                       qnic_receiver **receiver);

// Waits for the next message, up to `timeout_ns` nanoseconds, copies it to `room`, and stores its
// length. 0 looks once, and does not notice a sender that dies silently.
//
// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`: there is none;
// `QNIC_E_ARGUMENT`: `room` is shorter than messages can be; `QNIC_E_CHANNEL_CLOSED`,
// `QNIC_E_PEER_GONE`, `QNIC_E_CHANNEL_BROKEN`.
int qnic_receiver_receive(qnic_receiver *receiver,
                          void *room,
                          size_t capacity,
                          int64_t timeout_ns,
                          size_t *length);

// Asks the sender's NIC whether the sender is there, and waits for the answer, up to `timeout_ns`
// nanoseconds: for programs that wait by other means. Succeeds while no sender has connected.
//
// Fails with `QNIC_E_TIMED_OUT`; once all messages are taken with `QNIC_E_PEER_GONE`,
// `QNIC_E_CHANNEL_CLOSED`.
int qnic_receiver_check(qnic_receiver *receiver, int64_t timeout_ns);

// Closes the receiver, and calls `handler` for all its messages until `armed` is closed, which closes
// the channel. The thread of the endpoint's handlers calls it. `bytes` live as long as the call. The
// last call has the status with which the channel has ended, and no bytes.
//
// Fails with `QNIC_E_ARMED`: then the channel is closed.
int qnic_receiver_handle(qnic_receiver *receiver,
                         void (*handler)(void *context, int status, const void *bytes, size_t length),
                         void *context,
                         qnic_armed **armed);

// Closes the receiving end: the sender learns of it.
int qnic_receiver_close(qnic_receiver *receiver);

// Connects to the receiver of a channel; waits up to `timeout_ns` nanoseconds until it is there.
// `replenish` is a notification of this process, for its credits. `secret` is null, or 16 bytes.
//
// Fails as `qnic_import`, and with `QNIC_E_ARGUMENT`: the segment is no channel.
int qnic_sender_open(qnic_endpoint *endpoint,
                     uint16_t node,
                     uint16_t port,
                     uint64_t name,
                     uint32_t replenish,
                     const uint8_t *secret,
                     int64_t timeout_ns,
                     qnic_sender **sender);

// Stores the length of the longest message, and 1 if one can be sent without waiting, else 0. Both
// pointers may be null.
int qnic_sender_get_info(qnic_sender *sender, size_t *message_bytes, int *has_credit);

// Sends a message; waits for room, up to `timeout_ns` nanoseconds. The bytes are copied.
//
// Fails with `QNIC_E_TIMED_OUT`: nothing was sent; `QNIC_E_MESSAGE_TOO_LONG`, `QNIC_E_CHANNEL_CLOSED`,
// `QNIC_E_PEER_GONE`.
int qnic_sender_send(qnic_sender *sender,
                     const void *bytes,
                     size_t length,
                     int64_t timeout_ns);

// Waits until all messages are in the receiver's memory, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`: they go on; `QNIC_E_CHANNEL_CLOSED`, `QNIC_E_PEER_GONE`.
int qnic_sender_flush(qnic_sender *sender, int64_t timeout_ns);

// Ends the channel after what was sent, up to `timeout_ns` nanoseconds. The handle stays.
//
// Fails with `QNIC_E_TIMED_OUT`: call it again; or as `qnic_sender_flush`: not all has arrived.
int qnic_sender_end(qnic_sender *sender, int64_t timeout_ns);

// Closes the handle; ends the channel, unless that is done, and waits for the last writes.
int qnic_sender_close(qnic_sender *sender);

// Opens a queue of `slots` messages of `message_bytes` at most, under a name. `sent` is a notification
// of this process.
//
// Fails as `qnic_receiver_open`.
int qnic_shared_receiver_open(qnic_participant *participant,
                              uint64_t name,
                              uint32_t slots,
                              size_t message_bytes,
                              uint32_t sent,
                              qnic_shared_receiver **receiver);

// Waits for the next message of any sender, as `qnic_receiver_receive` does.
//
// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`; `QNIC_E_CHANNEL_BROKEN`.
int qnic_shared_receiver_receive(qnic_shared_receiver *receiver,
                                 void *room,
                                 size_t capacity,
                                 int64_t timeout_ns,
                                 size_t *length);

// Closes the receiving end.
int qnic_shared_receiver_close(qnic_shared_receiver *receiver);

// Connects to a shared queue; waits up to `timeout_ns` nanoseconds until it is there.
//
// Fails as `qnic_sender_open`.
int qnic_shared_sender_open(qnic_participant *participant,
                            uint16_t node,
                            uint16_t port,
                            uint64_t name,
                            int64_t timeout_ns,
                            qnic_shared_sender **sender);

// Stores the length of the longest message.
int qnic_shared_sender_message_bytes(qnic_shared_sender *sender, size_t *message_bytes);

// Sends a message; waits for its turn, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`: nothing was sent, and the place in the queue stays; with a timeout of 0
// `QNIC_E_WOULD_BLOCK`: there is no room; `QNIC_E_MESSAGE_TOO_LONG`, `QNIC_E_CHANNEL_CLOSED`,
// `QNIC_E_PEER_GONE`, `QNIC_E_BROKEN`.
int qnic_shared_sender_send(qnic_shared_sender *sender,
                            const void *bytes,
                            size_t length,
                            int64_t timeout_ns);

// Waits until all messages are in the receiver's memory, up to `timeout_ns` nanoseconds.
//
// Fails as `qnic_sender_flush`.
int qnic_shared_sender_flush(qnic_shared_sender *sender, int64_t timeout_ns);

// Closes a sending end.
int qnic_shared_sender_close(qnic_shared_sender *sender);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_CHANNEL_H */
