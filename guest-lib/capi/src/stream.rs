//! Reliable streams of bytes between datagram ports.
//!
//! One thread may read a stream while another writes. A timeout of 0 nanoseconds does what can be done
//! without waiting, and fails with `QNIC_E_WOULD_BLOCK` if that is nothing.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use qnic::stream::{Listener, Options, Stream, Streams};
use qnic::NodeId;

use crate::border::{call, head, timeout, In, Out};
use crate::datagram::{qnic_frame_options, qnic_frame_statistics};
use crate::handles::{close, get, open, take};
use crate::nic::qnic_nic;

/// The streams of this process on one datagram port. Serve many threads at once.
pub struct qnic_streams(Streams);

/// Streams that peers open. Serves many threads at once.
pub struct qnic_listener(Listener);

/// A stream. Serves many threads at once.
pub struct qnic_stream(Stream);

/// Limits of streams. Null or zeros: those of the library.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_stream_options {
    /// Size of this structure.
    pub size: usize,
    /// Frames; null: 256 of 16 KiB for each direction.
    pub frames: In<qnic_frame_options>,
    /// Streams at the same time; 64.
    pub connections: usize,
    /// Streams that peers have opened and that are not accepted; 32.
    pub backlog: usize,
    /// Frames of one stream that may be on their way, or received and not read, 1 to 257; 128.
    pub window: usize,
    /// A peer that has been silent for so many nanoseconds is asked; 1 s.
    pub keep_alive_ns: u64,
    /// A peer that has been silent for so many nanoseconds is given up; 5 s.
    pub peer_timeout_ns: u64,
}

head!(qnic_stream_options {
    frames,
    connections,
    backlog,
    window,
    keep_alive_ns,
    peer_timeout_ns
});

/// Opens streams on a datagram port. `options` may be null.
///
/// Fails as `qnic_socket_open`, and with `QNIC_E_SYSTEM`: the options do not fit together.
#[no_mangle]
pub extern "C" fn qnic_streams_open(
    nic: *mut qnic_nic,
    port: u16,
    options: In<qnic_stream_options>,
    streams: Out<*mut qnic_streams>,
) -> c_int {
    open(streams, || {
        let given = options.head()?;
        let mut options = Options::default();
        options.pool = given.frames.head()?.frames(options.pool);
        let number = |value: usize, to: &mut usize| *to = if value > 0 { value } else { *to };
        number(given.connections, &mut options.connections);
        number(given.backlog, &mut options.backlog);
        number(given.window, &mut options.window);
        let time = |value: u64, to: &mut Duration| {
            *to = if value > 0 {
                Duration::from_nanos(value)
            } else {
                *to
            };
        };
        time(given.keep_alive_ns, &mut options.keep_alive);
        time(given.peer_timeout_ns, &mut options.peer_timeout);
        Ok(qnic_streams(Streams::open(&get(nic)?.0, port, options)?))
    })
}

/// Stores node and datagram port. Both pointers may be null.
#[no_mangle]
pub extern "C" fn qnic_streams_name(
    streams: *mut qnic_streams,
    node: Out<u16>,
    port: Out<u16>,
) -> c_int {
    call(|| {
        let streams = get(streams)?;
        node.set(streams.0.node().0)?;
        port.set(streams.0.port())
    })
}

/// Tells what the pools beneath have counted: frames, and system calls.
#[no_mangle]
pub extern "C" fn qnic_streams_statistics(
    streams: *mut qnic_streams,
    statistics: Out<qnic_frame_statistics>,
) -> c_int {
    call(|| {
        let frames = get(streams)?.0.pool_statistics();
        statistics.set_head(qnic_frame_statistics::of_frames(&frames))
    })
}

/// What the protocol of streams has counted.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_stream_counters {
    /// Size of this structure.
    pub size: usize,
    /// Frames sent, of any kind.
    pub frames_sent: u64,
    /// Frames received, of any kind.
    pub frames_received: u64,
    /// Frames with data sent, those that are sent again included.
    pub data_frames_sent: u64,
    /// Frames with data sent again.
    pub data_frames_resent: u64,
    /// Times that no acknowledgement came in time.
    pub resend_timeouts: u64,
    /// Streams that have failed.
    pub connections_failed: u64,
}

head!(qnic_stream_counters {
    frames_sent,
    frames_received,
    data_frames_sent,
    data_frames_resent,
    resend_timeouts,
    connections_failed
});

/// Tells what the protocol has counted.
#[no_mangle]
pub extern "C" fn qnic_streams_counters(
    streams: *mut qnic_streams,
    counters: Out<qnic_stream_counters>,
) -> c_int {
    call(|| {
        let found = get(streams)?.0.counters();
        counters.set_head(qnic_stream_counters {
            size: size_of::<qnic_stream_counters>(),
            frames_sent: found.frames_sent,
            frames_received: found.frames_received,
            data_frames_sent: found.data_frames_sent,
            data_frames_resent: found.data_frames_resent,
            resend_timeouts: found.resend_timeouts,
            connections_failed: found.connections_failed,
        })
    })
}

/// Closes the handle. What listeners and streams need stays; with the last of them this waits until
/// peers have what was written.
#[no_mangle]
pub extern "C" fn qnic_streams_close(streams: *mut qnic_streams) -> c_int {
    close(streams)
}

/// Lets peers connect, until the listener is closed. There is one at a time.
///
/// Fails with `QNIC_E_SYSTEM`: there is one.
#[no_mangle]
pub extern "C" fn qnic_listen(
    streams: *mut qnic_streams,
    listener: Out<*mut qnic_listener>,
) -> c_int {
    open(listener, || Ok(qnic_listener(get(streams)?.0.listen()?)))
}

/// Waits for a stream that a peer opens, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_WOULD_BLOCK`, `QNIC_E_DEVICE_GONE`.
#[no_mangle]
pub extern "C" fn qnic_accept(
    listener: *mut qnic_listener,
    timeout_ns: i64,
    stream: Out<*mut qnic_stream>,
) -> c_int {
    open(stream, || {
        let listener = get(listener)?;
        Ok(qnic_stream(match timeout_ns {
            0 => listener.0.try_accept()?,
            _ => listener.0.accept(timeout(timeout_ns))?,
        }))
    })
}

/// Ends that peers connect. Streams go on.
#[no_mangle]
pub extern "C" fn qnic_listener_close(listener: *mut qnic_listener) -> c_int {
    close(listener)
}

/// Connects to the process at a datagram port of a node, up to `timeout_ns` nanoseconds; 10 s without an
/// answer in any case.
///
/// Fails with `QNIC_E_STREAM`: no program listens there, or it has too many; `QNIC_E_TOO_MANY_STREAMS`,
/// `QNIC_E_TIMED_OUT`.
#[no_mangle]
pub extern "C" fn qnic_connect(
    streams: *mut qnic_streams,
    node: u16,
    port: u16,
    timeout_ns: i64,
    stream: Out<*mut qnic_stream>,
) -> c_int {
    open(stream, || {
        let streams = get(streams)?;
        Ok(qnic_stream(streams.0.connect(
            NodeId(node),
            port,
            timeout(timeout_ns),
        )?))
    })
}

/// Stores node and datagram port of the other end. Both pointers may be null.
#[no_mangle]
pub extern "C" fn qnic_stream_peer(
    stream: *mut qnic_stream,
    node: Out<u16>,
    port: Out<u16>,
) -> c_int {
    call(|| {
        let stream = get(stream)?;
        node.set(stream.0.peer_node().0)?;
        port.set(stream.0.peer_port())
    })
}

/// Writes as much as there is room for, at least one byte, and stores how much; waits for room, up to
/// `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_WOULD_BLOCK`, `QNIC_E_STREAM`, `QNIC_E_STREAM_ENDED`.
#[no_mangle]
pub extern "C" fn qnic_stream_send(
    stream: *mut qnic_stream,
    bytes: In<c_void>,
    length: usize,
    timeout_ns: i64,
    sent: Out<usize>,
) -> c_int {
    call(|| {
        sent.check()?;
        let (stream, bytes) = (get(stream)?, bytes.bytes(length)?);
        sent.set(match timeout_ns {
            0 => stream.0.try_send(bytes)?,
            _ => stream.0.send(bytes, timeout(timeout_ns))?,
        })
    })
}

/// Reads what has come, at most as much as fits, and stores how much; 0: the peer has ended its
/// direction. Waits up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_WOULD_BLOCK`, `QNIC_E_STREAM`.
#[no_mangle]
pub extern "C" fn qnic_stream_receive(
    stream: *mut qnic_stream,
    room: Out<c_void>,
    capacity: usize,
    timeout_ns: i64,
    received: Out<usize>,
) -> c_int {
    call(|| {
        received.check()?;
        let (stream, room) = (get(stream)?, room.bytes(capacity)?);
        received.set(match timeout_ns {
            0 => stream.0.try_receive(room)?,
            _ => stream.0.receive(room, timeout(timeout_ns))?,
        })
    })
}

/// Waits until the peer's library has all that was written, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_STREAM`.
#[no_mangle]
pub extern "C" fn qnic_stream_flush(stream: *mut qnic_stream, timeout_ns: i64) -> c_int {
    call(|| Ok(get(stream)?.0.wait_delivered(timeout(timeout_ns))?))
}

/// Ends this side's direction: the peer reads what was written, and then the end.
///
/// Fails with `QNIC_E_STREAM`.
#[no_mangle]
pub extern "C" fn qnic_stream_finish(stream: *mut qnic_stream) -> c_int {
    call(|| Ok(get(stream)?.0.finish()?))
}

/// Ends this side's direction, waits until the peer's library has all that was written, up to
/// `timeout_ns` nanoseconds, and closes the handle.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_STREAM`: some may be lost, and the handle is closed.
#[no_mangle]
pub extern "C" fn qnic_stream_close(stream: *mut qnic_stream, timeout_ns: i64) -> c_int {
    call(|| match take(stream)? {
        Some(qnic_stream(stream)) => Ok(stream.close(timeout(timeout_ns))?),
        None => Ok(()),
    })
}

/// Gives a stream up and closes the handle: the peer is told, and what is under way is dropped.
#[no_mangle]
pub extern "C" fn qnic_stream_abort(stream: *mut qnic_stream) -> c_int {
    call(|| {
        if let Some(qnic_stream(stream)) = take(stream)? {
            stream.abort();
        }
        Ok(())
    })
}
