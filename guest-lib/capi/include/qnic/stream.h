// Made by cbindgen of src/stream.rs: change that, then UPDATE_EXPECT=1 cargo test.
//
// Reliable streams of bytes between datagram ports.
//
// One thread may read a stream while another writes. A timeout of 0 nanoseconds does what can be done
// without waiting, and fails with `QNIC_E_WOULD_BLOCK` if that is nothing.

#ifndef QNIC_STREAM_H
#define QNIC_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include "datagram.h"

// Streams that peers open. Serves many threads at once.
typedef struct qnic_listener qnic_listener;

// A stream. Serves many threads at once.
typedef struct qnic_stream qnic_stream;

// The streams of this process on one datagram port. Serve many threads at once.
typedef struct qnic_streams qnic_streams;

// Limits of streams. Null or zeros: those of the library.
typedef struct {
  // Size of this structure.
  size_t size;
  // Frames; null: 256 of 16 KiB for each direction.
  const qnic_frame_options *frames;
  // Streams at the same time; 64.
  size_t connections;
  // Streams that peers have opened and that are not accepted; 32.
  size_t backlog;
  // Frames of one stream that may be on their way, or received and not read, 1 to 257; 128.
  size_t window;
  // A peer that has been silent for so many nanoseconds is asked; 1 s.
  uint64_t keep_alive_ns;
  // A peer that has been silent for so many nanoseconds is given up; 5 s.
  uint64_t peer_timeout_ns;
} qnic_stream_options;

// What the protocol of streams has counted.
typedef struct {
  // Size of this structure.
  size_t size;
  // Frames sent, of any kind.
  uint64_t frames_sent;
  // Frames received, of any kind.
  uint64_t frames_received;
  // Frames with data sent, those that are sent again included.
  uint64_t data_frames_sent;
  // Frames with data sent again.
  uint64_t data_frames_resent;
  // Times that no acknowledgement came in time.
  uint64_t resend_timeouts;
  // Streams that have failed.
  uint64_t connections_failed;
} qnic_stream_counters;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens streams on a datagram port. `options` may be null.
//
// Fails as `qnic_socket_open`, and with `QNIC_E_SYSTEM`: the options do not fit together.
int qnic_streams_open(qnic_nic *nic,
                      uint16_t port,
                      const qnic_stream_options *options,
                      qnic_streams **streams);

// Stores node and datagram port. Both pointers may be null.
int qnic_streams_name(qnic_streams *streams, uint16_t *node, uint16_t *port);

// Tells what the pools beneath have counted: frames, and system calls.
int qnic_streams_statistics(qnic_streams *streams, qnic_frame_statistics *statistics);

// Tells what the protocol has counted.
int qnic_streams_counters(qnic_streams *streams, qnic_stream_counters *counters);

// Closes the handle. What listeners and streams need stays; with the last of them this waits until
// peers have what was written.
int qnic_streams_close(qnic_streams *streams);

// Lets peers connect, until the listener is closed. There is one at a time.
//
// Fails with `QNIC_E_SYSTEM`: there is one.
int qnic_listen(qnic_streams *streams, qnic_listener **listener);

// Waits for a stream that a peer opens, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_WOULD_BLOCK`, `QNIC_E_DEVICE_GONE`.
int qnic_accept(qnic_listener *listener, int64_t timeout_ns, qnic_stream **stream);

// Ends that peers connect. Streams go on.
int qnic_listener_close(qnic_listener *listener);

// Connects to the process at a datagram port of a node, up to `timeout_ns` nanoseconds; 10 s without an
// answer in any case.
//
// Fails with `QNIC_E_STREAM`: no program listens there, or it has too many; `QNIC_E_TOO_MANY_STREAMS`,
// `QNIC_E_TIMED_OUT`.
int qnic_connect(qnic_streams *streams,
                 uint16_t node,
                 uint16_t port,
                 int64_t timeout_ns,
                 qnic_stream **stream);

// Stores node and datagram port of the other end. Both pointers may be null.
int qnic_stream_peer(qnic_stream *stream, uint16_t *node, uint16_t *port);

// Writes as much as there is room for, at least one byte, and stores how much; waits for room, up to
// `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_WOULD_BLOCK`, `QNIC_E_STREAM`, `QNIC_E_STREAM_ENDED`.
int qnic_stream_send(qnic_stream *stream,
                     const void *bytes,
                     size_t length,
                     int64_t timeout_ns,
                     size_t *sent);

// Reads what has come, at most as much as fits, and stores how much; 0: the peer has ended its
// direction. Waits up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_WOULD_BLOCK`, `QNIC_E_STREAM`.
int qnic_stream_receive(qnic_stream *stream,
                        void *room,
                        size_t capacity,
                        int64_t timeout_ns,
                        size_t *received);

// Waits until the peer's library has all that was written, up to `timeout_ns` nanoseconds.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_STREAM`.
int qnic_stream_flush(qnic_stream *stream, int64_t timeout_ns);

// Ends this side's direction: the peer reads what was written, and then the end.
//
// Fails with `QNIC_E_STREAM`.
int qnic_stream_finish(qnic_stream *stream);

// Ends this side's direction, waits until the peer's library has all that was written, up to
// `timeout_ns` nanoseconds, and closes the handle.
//
// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_STREAM`: some may be lost, and the handle is closed.
int qnic_stream_close(qnic_stream *stream, int64_t timeout_ns);

// Gives a stream up and closes the handle: the peer is told, and what is under way is dropped.
int qnic_stream_abort(qnic_stream *stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QNIC_STREAM_H */
