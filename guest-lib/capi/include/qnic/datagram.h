// Made by cbindgen of src/datagram.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Datagrams: unreliable messages between datagram ports, and the pools of frames beneath.
//
// A socket sends and receives messages of up to 64 KiB and more, each in as many frames as it needs. A
// pool sends and receives single frames. Ports begin at 1,024; 0 asks for any free one.

#ifndef QNIC_DATAGRAM_H
#define QNIC_DATAGRAM_H

#include <stddef.h>
#include <stdint.h>
#include "channel.h"

// Pools of frames on a datagram port. Serve many threads at once.
typedef struct qnic_pools qnic_pools;

// A datagram port. Serves many threads at once.
typedef struct qnic_socket qnic_socket;

// Frames of a socket, a pool or streams. Null or zeros: 256 frames of 4,096 bytes for each direction.
typedef struct {
  // Size of this structure.
  size_t size;
  // Bytes of a frame, 256 to 32,768.
  size_t frame_bytes;
  // Frames that can be received into, 1 to 1,024.
  size_t inputs;
  // Frames that can be sent from, 1 to 1,024.
  size_t outputs;
  // Of a socket: how long it waits for the missing parts of a message, in nanoseconds.
  uint64_t join_timeout_ns;
} qnic_frame_options;

// A message and the datagram port that it goes to, or comes from.
typedef struct {
  // Its bytes, or room for them.
  void *bytes;
  // How many; of room: before the call its bytes, then those of the message.
  size_t length;
  // Node and datagram port of the other socket.
  qnic_process peer;
} qnic_datagram;

// What a socket or a pool has counted.
typedef struct {
  // Size of this structure.
  size_t size;
  // Frames given to the driver to be sent.
  uint64_t frames_sent;
  // Frames received.
  uint64_t frames_received;
  // System calls.
  uint64_t calls;
  // Frames that the NIC has refused, as the driver has counted; 0 of streams.
  uint64_t frames_refused;
  // Times that the NIC had no input frame, as the driver has counted; 0 of streams.
  uint64_t starved;
  // Of a socket: messages sent.
  uint64_t sent;
  // Of a socket: messages received whole.
  uint64_t received;
  // Of a socket: messages dropped, as parts were missing for too long or others crowded them out.
  uint64_t dropped;
  // Of a socket: packets sent to ports that no process had bound.
  uint64_t unbound;
} qnic_frame_statistics;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a socket on a datagram port. `options` may be null.
//
// Fails with `QNIC_E_PORT_IN_USE`, `QNIC_E_BAD_LENGTH`, `QNIC_E_EXHAUSTED`, `QNIC_E_ARGUMENT`.
int qnic_socket_open(qnic_nic *nic,
                     uint16_t port,
                     const qnic_frame_options *options,
                     qnic_socket **socket);

// Stores node and datagram port of a socket. Both pointers may be null.
int qnic_socket_name(qnic_socket *socket, uint16_t *node, uint16_t *port);

// Sends a message to a datagram port; waits while all frames are on their way, up to `timeout_ns`
// nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`; `QNIC_E_MESSAGE_TOO_LONG`.
int qnic_socket_send(qnic_socket *socket,
                     uint16_t node,
                     uint16_t port,
                     const void *bytes,
                     size_t length,
                     int64_t timeout_ns);

// Sends several messages, and tells the driver once.
//
// Fails as `qnic_socket_send`; the messages before have been sent.
int qnic_socket_send_all(qnic_socket *socket,
                         const qnic_datagram *messages,
                         size_t count,
                         int64_t timeout_ns);

// Waits for a message, up to `timeout_ns` nanoseconds, and takes what else has come, as far as there is
// room: `messages` are `count`, of which `received` become filled. Of a message that is longer than its
// room the beginning is there, and its whole length.
//
// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`: there is none.
int qnic_socket_receive(qnic_socket *socket,
                        qnic_datagram *messages,
                        size_t count,
                        int64_t timeout_ns,
                        size_t *received);

// Asks to be woken for a packet, and stores a descriptor for poll and epoll, or -1 if there is one
// already. Ask again each time before blocking. The descriptor is the library's.
int qnic_socket_poll(qnic_socket *socket, int *descriptor);

// Tells what a socket has counted.
int qnic_socket_statistics(qnic_socket *socket, qnic_frame_statistics *statistics);

// Closes a socket; sends what was not sent yet, for as long as a tenth of a second.
int qnic_socket_close(qnic_socket *socket);

// Opens pools on a datagram port. `options` may be null.
//
// Fails as `qnic_socket_open`.
int qnic_pools_open(qnic_nic *nic,
                    uint16_t port,
                    const qnic_frame_options *options,
                    qnic_pools **pools);

// Stores node, datagram port and bytes of a frame. The pointers may be null.
int qnic_pools_get_info(qnic_pools *pools, uint16_t *node, uint16_t *port, size_t *frame_bytes);

// Copies a packet to a frame and sends it. The driver notices it at the next flush or wait.
//
// Fails with `QNIC_E_WOULD_BLOCK`: all frames are on their way, wait for one; `QNIC_E_OUT_OF_RANGE`: it
// is longer than a frame.
int qnic_pools_send(qnic_pools *pools,
                    uint16_t node,
                    uint16_t port,
                    const void *bytes,
                    size_t length);

// Takes the next packet that has come; never waits. As much as fits is copied to the room of `packet`.
//
// Fails with `QNIC_E_WOULD_BLOCK`: there is none.
int qnic_pools_receive(qnic_pools *pools,
                       qnic_datagram *packet);

// Makes sure that the driver notices the frames that were sent.
int qnic_pools_flush(qnic_pools *pools);

// Waits until a packet is there, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_DEVICE_GONE`.
int qnic_pools_wait_input(qnic_pools *pools, int64_t timeout_ns);

// Waits until a frame can be sent from, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_DEVICE_GONE`.
int qnic_pools_wait_output(qnic_pools *pools, int64_t timeout_ns);

// Asks to be woken for input, as `qnic_socket_poll` does.
int qnic_pools_poll(qnic_pools *pools, int *descriptor);

// Tells what pools have counted.
int qnic_pools_statistics(qnic_pools *pools, qnic_frame_statistics *statistics);

// Closes pools.
int qnic_pools_close(qnic_pools *pools);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_DATAGRAM_H */
