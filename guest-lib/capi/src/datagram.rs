//! Datagrams: unreliable messages between datagram ports, and the pools of frames beneath.
//!
//! A socket sends and receives messages of up to 64 KiB and more, each in as many frames as it needs. A
//! pool sends and receives single frames. Ports begin at 1,024; 0 asks for any free one.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

use qnic::datagram::{Datagram, Socket, SocketOptions};
use qnic::pool::{PoolOptions, Pools};
use qnic::NodeId;

use crate::border::{call, fixed, head, timeout, In, Out};
use crate::failure::{Failure, Result};
use crate::handles::{close, get, open};
use crate::memory::qnic_process;
use crate::nic::qnic_nic;

/// Frames of a socket, a pool or streams. Null or zeros: 256 frames of 4,096 bytes for each direction.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_frame_options {
    /// Size of this structure.
    pub size: usize,
    /// Bytes of a frame, 256 to 32,768.
    pub frame_bytes: usize,
    /// Frames that can be received into, 1 to 1,024.
    pub inputs: usize,
    /// Frames that can be sent from, 1 to 1,024.
    pub outputs: usize,
    /// Of a socket: how long it waits for the missing parts of a message, in nanoseconds.
    pub join_timeout_ns: u64,
}

head!(qnic_frame_options {
    frame_bytes,
    inputs,
    outputs,
    join_timeout_ns
});

impl qnic_frame_options {
    /// With the defaults of the library where the program says nothing.
    pub(crate) fn frames(&self, mut frames: PoolOptions) -> PoolOptions {
        let given = |value: usize, default: usize| if value > 0 { value } else { default };
        frames.frame_bytes = given(self.frame_bytes, frames.frame_bytes);
        frames.inputs = given(self.inputs, frames.inputs);
        frames.outputs = given(self.outputs, frames.outputs);
        frames
    }
}

/// A datagram port. Serves many threads at once.
pub struct qnic_socket(Socket);

/// Opens a socket on a datagram port. `options` may be null.
///
/// Fails with `QNIC_E_PORT_IN_USE`, `QNIC_E_BAD_LENGTH`, `QNIC_E_EXHAUSTED`, `QNIC_E_ARGUMENT`.
#[no_mangle]
pub extern "C" fn qnic_socket_open(
    nic: *mut qnic_nic,
    port: u16,
    options: In<qnic_frame_options>,
    socket: Out<*mut qnic_socket>,
) -> c_int {
    open(socket, || {
        let given = options.head()?;
        let mut options = SocketOptions::default();
        options.pool = given.frames(options.pool);
        if given.join_timeout_ns > 0 {
            options.join_timeout = Duration::from_nanos(given.join_timeout_ns);
        }
        Ok(qnic_socket(Socket::bind_with(&get(nic)?.0, port, options)?))
    })
}

/// Stores node and datagram port of a socket. Both pointers may be null.
#[no_mangle]
pub extern "C" fn qnic_socket_name(
    socket: *mut qnic_socket,
    node: Out<u16>,
    port: Out<u16>,
) -> c_int {
    call(|| {
        let socket = get(socket)?;
        node.set(socket.0.node().0)?;
        port.set(socket.0.port())
    })
}

/// Sends a message to a datagram port; waits while all frames are on their way, up to `timeout_ns`
/// nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`; `QNIC_E_MESSAGE_TOO_LONG`.
#[no_mangle]
pub extern "C" fn qnic_socket_send(
    socket: *mut qnic_socket,
    node: u16,
    port: u16,
    bytes: In<c_void>,
    length: usize,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let (socket, bytes, node) = (get(socket)?, bytes.bytes(length)?, NodeId(node));
        Ok(match timeout_ns {
            0 => socket.0.try_send_to(bytes, node, port),
            _ => socket.0.send_to(bytes, node, port, timeout(timeout_ns)),
        }?)
    })
}

/// A message and the datagram port that it goes to, or comes from.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_datagram {
    /// Its bytes, or room for them.
    pub bytes: Out<c_void>,
    /// How many; of room: before the call its bytes, then those of the message.
    pub length: usize,
    /// Node and datagram port of the other socket.
    pub peer: qnic_process,
}

fixed!(qnic_datagram {
    bytes,
    length,
    peer
});

/// Sends several messages, and tells the driver once.
///
/// Fails as `qnic_socket_send`; the messages before have been sent.
#[no_mangle]
pub extern "C" fn qnic_socket_send_all(
    socket: *mut qnic_socket,
    messages: In<qnic_datagram>,
    count: usize,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let one = |message: &qnic_datagram| {
            let bytes = message.bytes.as_in().bytes(message.length)?;
            Ok((bytes, NodeId(message.peer.node), message.peer.port))
        };
        let messages: Result<Vec<_>> = messages.items(count)?.iter().map(one).collect();
        Ok(get(socket)?.0.send_batch(messages?, timeout(timeout_ns))?)
    })
}

/// Copies a message to its room: as much as fits.
fn give(datagram: &Datagram, to: &mut qnic_datagram) -> Result<()> {
    let fits = datagram.bytes.len().min(to.length);
    let room = to.bytes.bytes(fits)?;
    room.copy_from_slice(&datagram.bytes[..fits]);
    to.length = datagram.bytes.len();
    to.peer = qnic_process {
        node: datagram.node.0,
        port: datagram.port,
    };
    Ok(())
}

/// Waits for a message, up to `timeout_ns` nanoseconds, and takes what else has come, as far as there is
/// room: `messages` are `count`, of which `received` become filled. Of a message that is longer than its
/// room the beginning is there, and its whole length.
///
/// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`: there is none.
#[no_mangle]
pub extern "C" fn qnic_socket_receive(
    socket: *mut qnic_socket,
    messages: Out<qnic_datagram>,
    count: usize,
    timeout_ns: i64,
    received: Out<usize>,
) -> c_int {
    call(|| {
        received.check()?;
        let (socket, rooms) = (get(socket)?, messages.items(count)?);
        if rooms.is_empty() {
            return Err(Failure::argument("no room for a message"));
        }
        let taken = match timeout_ns {
            0 => vec![socket.0.try_receive()?],
            _ => socket.0.receive_batch(count, timeout(timeout_ns))?,
        };
        for (datagram, room) in taken.iter().zip(rooms) {
            give(datagram, room)?;
        }
        received.set(taken.len())
    })
}

/// Asks to be woken for a packet, and stores a descriptor for poll and epoll, or -1 if there is one
/// already. Ask again each time before blocking. The descriptor is the library's.
#[no_mangle]
pub extern "C" fn qnic_socket_poll(socket: *mut qnic_socket, descriptor: Out<c_int>) -> c_int {
    call(|| {
        let socket = get(socket)?;
        let found = socket.0.poll_input()?;
        descriptor.set(found.map_or(-1, |descriptor| descriptor.as_raw_fd()))
    })
}

/// What a socket or a pool has counted.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_frame_statistics {
    /// Size of this structure.
    pub size: usize,
    /// Frames given to the driver to be sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// System calls.
    pub calls: u64,
    /// Frames that the NIC has refused, as the driver has counted; 0 of streams.
    pub frames_refused: u64,
    /// Times that the NIC had no input frame, as the driver has counted; 0 of streams.
    pub starved: u64,
    /// Of a socket: messages sent.
    pub sent: u64,
    /// Of a socket: messages received whole.
    pub received: u64,
    /// Of a socket: messages dropped, as parts were missing for too long or others crowded them out.
    pub dropped: u64,
    /// Of a socket: packets sent to ports that no process had bound.
    pub unbound: u64,
}

head!(qnic_frame_statistics {
    frames_sent,
    frames_received,
    calls,
    frames_refused,
    starved,
    sent,
    received,
    dropped,
    unbound
});

impl qnic_frame_statistics {
    pub(crate) fn of_frames(frames: &qnic::pool::Statistics) -> Self {
        qnic_frame_statistics {
            size: size_of::<Self>(),
            frames_sent: frames.frames_sent,
            frames_received: frames.frames_received,
            calls: frames.calls(),
            frames_refused: 0,
            starved: 0,
            sent: 0,
            received: 0,
            dropped: 0,
            unbound: 0,
        }
    }

    fn of_pools(pools: &Pools) -> Result<Self> {
        let info = pools.info()?;
        Ok(qnic_frame_statistics {
            frames_refused: info.frames_refused.get(),
            starved: info.starved.get(),
            ..Self::of_frames(&pools.statistics())
        })
    }
}

/// Tells what a socket has counted.
#[no_mangle]
pub extern "C" fn qnic_socket_statistics(
    socket: *mut qnic_socket,
    statistics: Out<qnic_frame_statistics>,
) -> c_int {
    call(|| {
        let socket = get(socket)?;
        let own = socket.0.statistics();
        statistics.set_head(qnic_frame_statistics {
            sent: own.sent,
            received: own.received,
            dropped: own.expired + own.crowded_out,
            unbound: own.unbound,
            ..qnic_frame_statistics::of_pools(socket.0.pools())?
        })
    })
}

/// Closes a socket; sends what was not sent yet, for as long as a tenth of a second.
#[no_mangle]
pub extern "C" fn qnic_socket_close(socket: *mut qnic_socket) -> c_int {
    close(socket)
}

/// Pools of frames on a datagram port. Serve many threads at once.
pub struct qnic_pools(Pools);

/// Opens pools on a datagram port. `options` may be null.
///
/// Fails as `qnic_socket_open`.
#[no_mangle]
pub extern "C" fn qnic_pools_open(
    nic: *mut qnic_nic,
    port: u16,
    options: In<qnic_frame_options>,
    pools: Out<*mut qnic_pools>,
) -> c_int {
    open(pools, || {
        let frames = options.head()?.frames(PoolOptions::default());
        Ok(qnic_pools(get(nic)?.0.open_pools(port, frames)?))
    })
}

/// Stores node, datagram port and bytes of a frame. The pointers may be null.
#[no_mangle]
pub extern "C" fn qnic_pools_get_info(
    pools: *mut qnic_pools,
    node: Out<u16>,
    port: Out<u16>,
    frame_bytes: Out<usize>,
) -> c_int {
    call(|| {
        let pools = get(pools)?;
        node.set(pools.0.node().0)?;
        port.set(pools.0.port())?;
        frame_bytes.set(pools.0.frame_bytes())
    })
}

/// Copies a packet to a frame and sends it. The driver notices it at the next flush or wait.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: all frames are on their way, wait for one; `QNIC_E_OUT_OF_RANGE`: it
/// is longer than a frame.
#[no_mangle]
pub extern "C" fn qnic_pools_send(
    pools: *mut qnic_pools,
    node: u16,
    port: u16,
    bytes: In<c_void>,
    length: usize,
) -> c_int {
    call(|| {
        let (pools, bytes) = (get(pools)?, bytes.bytes(length)?);
        let mut frame = pools.0.output()?.ok_or_else(Failure::would_block)?;
        frame.write(0, bytes)?;
        Ok(frame.send(NodeId(node), port, length)?)
    })
}

/// Takes the next packet that has come; never waits. As much as fits is copied to the room of `packet`.
///
/// Fails with `QNIC_E_WOULD_BLOCK`: there is none.
#[no_mangle]
pub extern "C" fn qnic_pools_receive(pools: *mut qnic_pools, packet: Out<qnic_datagram>) -> c_int {
    call(|| {
        let (pools, room) = (get(pools)?, packet.items(1)?);
        let frame = pools.0.receive()?.ok_or_else(Failure::would_block)?;
        let fits = frame.len().min(room[0].length);
        frame.read(0, room[0].bytes.bytes(fits)?)?;
        room[0].length = frame.len();
        room[0].peer = qnic_process {
            node: frame.node().0,
            port: frame.port(),
        };
        Ok(())
    })
}

/// Makes sure that the driver notices the frames that were sent.
#[no_mangle]
pub extern "C" fn qnic_pools_flush(pools: *mut qnic_pools) -> c_int {
    call(|| Ok(get(pools)?.0.flush()?))
}

/// Waits until a packet is there, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_DEVICE_GONE`.
#[no_mangle]
pub extern "C" fn qnic_pools_wait_input(pools: *mut qnic_pools, timeout_ns: i64) -> c_int {
    call(|| Ok(get(pools)?.0.wait_input(timeout(timeout_ns))?))
}

/// Waits until a frame can be sent from, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`, `QNIC_E_DEVICE_GONE`.
#[no_mangle]
pub extern "C" fn qnic_pools_wait_output(pools: *mut qnic_pools, timeout_ns: i64) -> c_int {
    call(|| Ok(get(pools)?.0.wait_output(timeout(timeout_ns))?))
}

/// Asks to be woken for input, as `qnic_socket_poll` does.
#[no_mangle]
pub extern "C" fn qnic_pools_poll(pools: *mut qnic_pools, descriptor: Out<c_int>) -> c_int {
    call(|| {
        let pools = get(pools)?;
        let found = pools.0.poll_input()?;
        descriptor.set(found.map_or(-1, |descriptor| descriptor.as_raw_fd()))
    })
}

/// Tells what pools have counted.
#[no_mangle]
pub extern "C" fn qnic_pools_statistics(
    pools: *mut qnic_pools,
    statistics: Out<qnic_frame_statistics>,
) -> c_int {
    call(|| statistics.set_head(qnic_frame_statistics::of_pools(&get(pools)?.0)?))
}

/// Closes pools.
#[no_mangle]
pub extern "C" fn qnic_pools_close(pools: *mut qnic_pools) -> c_int {
    close(pools)
}
