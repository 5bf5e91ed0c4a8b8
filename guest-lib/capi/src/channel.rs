//! Channels: one-way streams of messages between two processes, and queues that many senders share.
//!
//! The receiver exports slots and names a counted notification, which serves no other purpose while the
//! channel lives; so does the sender for its credits. Messages are copied in and out. An end that is
//! closed tells the other, which gets what was sent, then `QNIC_E_CHANNEL_CLOSED`.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use qnic::{
    ChannelOptions, ImportOptions, NodeId, Port, Receiver, Secret, SegmentName, Sender,
    SharedReceiver, SharedSender,
};

use crate::border::{call, head, limit, timeout, Context, In, Out};
use crate::endpoint::qnic_endpoint;
use crate::failure::{keep, Failure, Result};
use crate::handles::{close, get, open, take};
use crate::memory::{importers, qnic_process};
use crate::notification::{id, qnic_armed};
use crate::request::turn;
use crate::sync::qnic_participant;

/// The receiving end of a channel. Serves one call at a time.
pub struct qnic_receiver {
    end: Mutex<Receiver>,
    message_bytes: usize,
}

/// A channel, as its receiver chooses it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_channel_options {
    /// Size of this structure.
    pub size: usize,
    /// Messages that the receiver has room for, at least 2.
    pub slots: usize,
    /// Longest message in bytes, at least 1.
    pub message_bytes: usize,
    /// The receiver returns credits whenever it has consumed so many messages, 1 to `slots` - 1; 0: a
    /// quarter of the slots.
    pub refill: usize,
    /// Notification of the receiver's process that the channel signals.
    pub sent: u32,
    /// `QNIC_EXPORT_LISTED`, `QNIC_EXPORT_SECRET`: which processes may become the sender.
    pub flags: u32,
    /// The list.
    pub listed: In<qnic_process>,
    /// How many processes are listed.
    pub listed_count: u32,
    /// Zero.
    pub reserved: u32,
    /// The secret.
    pub secret: [u8; 16],
}

head!(qnic_channel_options {
    slots,
    message_bytes,
    refill,
    sent,
    flags,
    listed,
    listed_count,
    reserved,
    secret
});

/// Opens the receiving end of a channel under a name.
///
/// Fails with `QNIC_E_ARGUMENT`, and as `qnic_export`.
#[no_mangle]
pub extern "C" fn qnic_receiver_open(
    endpoint: *mut qnic_endpoint,
    name: u64,
    options: In<qnic_channel_options>,
    receiver: Out<*mut qnic_receiver>,
) -> c_int {
    open(receiver, || {
        let given = options.head()?;
        let senders = importers(given.flags, given.listed, given.listed_count, given.secret)?;
        let mut options = ChannelOptions::new(given.slots, given.message_bytes, id(given.sent)?);
        options = options.importers(senders);
        if given.refill > 0 {
            options.refill = given.refill;
        }
        let end = Receiver::open(&get(endpoint)?.0, SegmentName(name), &options)?;
        Ok(qnic_receiver {
            end: Mutex::new(end),
            message_bytes: given.message_bytes,
        })
    })
}

/// Has a message copied to memory of the program, and stores its length. Before it is taken, what the
/// program gives is checked: there is room for the longest message.
fn copied(
    room: Out<c_void>,
    capacity: usize,
    longest: usize,
    length: Out<usize>,
    receive: impl FnOnce(&mut [u8]) -> Result<usize>,
) -> Result<()> {
    length.check()?;
    if capacity < longest {
        return Err(Failure::argument("room for less than the longest message"));
    }
    length.set(receive(room.bytes(capacity)?)?)
}

/// Waits for the next message, up to `timeout_ns` nanoseconds, copies it to `room`, and stores its
/// length. 0 looks once, and does not notice a sender that dies silently.
///
/// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`: there is none;
/// `QNIC_E_ARGUMENT`: `room` is shorter than messages can be; `QNIC_E_CHANNEL_CLOSED`,
/// `QNIC_E_PEER_GONE`, `QNIC_E_CHANNEL_BROKEN`.
#[no_mangle]
pub extern "C" fn qnic_receiver_receive(
    receiver: *mut qnic_receiver,
    room: Out<c_void>,
    capacity: usize,
    timeout_ns: i64,
    length: Out<usize>,
) -> c_int {
    call(|| {
        let receiver = get(receiver)?;
        copied(room, capacity, receiver.message_bytes, length, |room| {
            let mut end = turn(&receiver.end)?;
            let message = match timeout_ns {
                0 => end.try_recv()?.ok_or_else(Failure::would_block)?,
                _ => end.recv(timeout(timeout_ns))?,
            };
            message.read(0, &mut room[..message.len()])?;
            Ok(message.len())
        })
    })
}

/// Asks the sender's NIC whether the sender is there, and waits for the answer, up to `timeout_ns`
/// nanoseconds: for programs that wait by other means. Succeeds while no sender has connected.
///
/// Fails with `QNIC_E_TIMED_OUT`; once all messages are taken with `QNIC_E_PEER_GONE`,
/// `QNIC_E_CHANNEL_CLOSED`.
#[no_mangle]
pub extern "C" fn qnic_receiver_check(receiver: *mut qnic_receiver, timeout_ns: i64) -> c_int {
    call(|| {
        let receiver = get(receiver)?;
        let mut end = turn(&receiver.end)?;
        Ok(end.check_peer_timeout(limit(timeout_ns))?)
    })
}

/// Closes the receiver, and calls `handler` for all its messages until `armed` is closed, which closes
/// the channel. The thread of the endpoint's handlers calls it. `bytes` live as long as the call. The
/// last call has the status with which the channel has ended, and no bytes.
///
/// Fails with `QNIC_E_ARMED`: then the channel is closed.
#[no_mangle]
pub extern "C" fn qnic_receiver_handle(
    receiver: *mut qnic_receiver,
    handler: Option<
        extern "C" fn(context: *mut c_void, status: c_int, bytes: *const c_void, length: usize),
    >,
    context: Context,
    armed: Out<*mut qnic_armed>,
) -> c_int {
    open(armed, || {
        let handler = handler.ok_or_else(|| Failure::argument("the handler is null"))?;
        let receiver = take(receiver)?.ok_or_else(|| Failure::handle(true))?;
        let end = receiver.end.into_inner();
        let end = end.unwrap_or_else(std::sync::PoisonError::into_inner);
        let armed = end.handle(move |message| {
            // The whole of it, not its pointer, moves to the thread.
            let context: Context = context;
            let bytes = message.map(|message| message.to_vec());
            match bytes {
                Ok(bytes) => handler(context.get(), 0, bytes.as_ptr().cast(), bytes.len()),
                Err(error) => handler(context.get(), keep(error.into()), std::ptr::null(), 0),
            }
        })?;
        Ok(qnic_armed(armed))
    })
}

/// Closes the receiving end: the sender learns of it.
#[no_mangle]
pub extern "C" fn qnic_receiver_close(receiver: *mut qnic_receiver) -> c_int {
    close(receiver)
}

/// The sending end of a channel. Serves one call at a time.
pub struct qnic_sender(Mutex<Sender>);

/// Connects to the receiver of a channel; waits up to `timeout_ns` nanoseconds until it is there.
/// `replenish` is a notification of this process, for its credits. `secret` is null, or 16 bytes.
///
/// Fails as `qnic_import`, and with `QNIC_E_ARGUMENT`: the segment is no channel.
#[no_mangle]
pub extern "C" fn qnic_sender_open(
    endpoint: *mut qnic_endpoint,
    node: u16,
    port: u16,
    name: u64,
    replenish: u32,
    secret: In<u8>,
    timeout_ns: i64,
    sender: Out<*mut qnic_sender>,
) -> c_int {
    open(sender, || {
        let mut options = ImportOptions::new(limit(timeout_ns));
        if !secret.is_null() {
            let bytes = secret.items(16)?.first_chunk().copied();
            options = options.secret(bytes.and_then(Secret::new));
        }
        let receiver = (NodeId(node), Port(port), SegmentName(name));
        let end = Sender::connect(&get(endpoint)?.0, receiver, id(replenish)?, options)?;
        Ok(qnic_sender(Mutex::new(end)))
    })
}

/// Stores the length of the longest message, and 1 if one can be sent without waiting, else 0. Both
/// pointers may be null.
#[no_mangle]
pub extern "C" fn qnic_sender_get_info(
    sender: *mut qnic_sender,
    message_bytes: Out<usize>,
    has_credit: Out<c_int>,
) -> c_int {
    call(|| {
        let sender = get(sender)?;
        let mut end = turn(&sender.0)?;
        message_bytes.set(end.message_bytes())?;
        has_credit.set(end.has_credit().into())
    })
}

/// Sends a message; waits for room, up to `timeout_ns` nanoseconds. The bytes are copied.
///
/// Fails with `QNIC_E_TIMED_OUT`: nothing was sent; `QNIC_E_MESSAGE_TOO_LONG`, `QNIC_E_CHANNEL_CLOSED`,
/// `QNIC_E_PEER_GONE`.
#[no_mangle]
pub extern "C" fn qnic_sender_send(
    sender: *mut qnic_sender,
    bytes: In<c_void>,
    length: usize,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let (sender, bytes) = (get(sender)?, bytes.bytes(length)?);
        let mut end = turn(&sender.0)?;
        Ok(end.send(bytes, timeout(timeout_ns))?)
    })
}

/// Waits until all messages are in the receiver's memory, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`: they go on; `QNIC_E_CHANNEL_CLOSED`, `QNIC_E_PEER_GONE`.
#[no_mangle]
pub extern "C" fn qnic_sender_flush(sender: *mut qnic_sender, timeout_ns: i64) -> c_int {
    call(|| {
        let sender = get(sender)?;
        let mut end = turn(&sender.0)?;
        Ok(end.flush_timeout(limit(timeout_ns))?)
    })
}

/// Ends the channel after what was sent, up to `timeout_ns` nanoseconds. The handle stays.
///
/// Fails with `QNIC_E_TIMED_OUT`: call it again; or as `qnic_sender_flush`: not all has arrived.
#[no_mangle]
pub extern "C" fn qnic_sender_end(sender: *mut qnic_sender, timeout_ns: i64) -> c_int {
    call(|| {
        let sender = get(sender)?;
        let mut end = turn(&sender.0)?;
        Ok(end.close_timeout(limit(timeout_ns))?)
    })
}

/// Closes the handle; ends the channel, unless that is done, and waits for the last writes.
#[no_mangle]
pub extern "C" fn qnic_sender_close(sender: *mut qnic_sender) -> c_int {
    close(sender)
}

/// The receiving end of a queue that many senders share. Serves one call at a time.
pub struct qnic_shared_receiver {
    end: Mutex<SharedReceiver>,
    message_bytes: usize,
}

/// Opens a queue of `slots` messages of `message_bytes` at most, under a name. `sent` is a notification
/// of this process.
///
/// Fails as `qnic_receiver_open`.
#[no_mangle]
pub extern "C" fn qnic_shared_receiver_open(
    participant: *mut qnic_participant,
    name: u64,
    slots: u32,
    message_bytes: usize,
    sent: u32,
    receiver: Out<*mut qnic_shared_receiver>,
) -> c_int {
    open(receiver, || {
        let (participant, name) = (get(participant)?, SegmentName(name));
        let end = SharedReceiver::open(&participant.0, name, slots, message_bytes, id(sent)?)?;
        Ok(qnic_shared_receiver {
            end: Mutex::new(end),
            message_bytes,
        })
    })
}

/// Waits for the next message of any sender, as `qnic_receiver_receive` does.
///
/// Fails with `QNIC_E_TIMED_OUT`, with a timeout of 0 `QNIC_E_WOULD_BLOCK`; `QNIC_E_CHANNEL_BROKEN`.
#[no_mangle]
pub extern "C" fn qnic_shared_receiver_receive(
    receiver: *mut qnic_shared_receiver,
    room: Out<c_void>,
    capacity: usize,
    timeout_ns: i64,
    length: Out<usize>,
) -> c_int {
    call(|| {
        let receiver = get(receiver)?;
        copied(room, capacity, receiver.message_bytes, length, |room| {
            let mut end = turn(&receiver.end)?;
            let message = match timeout_ns {
                0 => end.try_recv()?.ok_or_else(Failure::would_block)?,
                _ => end.recv(timeout(timeout_ns))?,
            };
            room[..message.len()].copy_from_slice(&message);
            Ok(message.len())
        })
    })
}

/// Closes the receiving end.
#[no_mangle]
pub extern "C" fn qnic_shared_receiver_close(receiver: *mut qnic_shared_receiver) -> c_int {
    close(receiver)
}

/// A sending end of a queue that many senders share. Serves one call at a time.
pub struct qnic_shared_sender(Mutex<SharedSender>);

/// Connects to a shared queue; waits up to `timeout_ns` nanoseconds until it is there.
///
/// Fails as `qnic_sender_open`.
#[no_mangle]
pub extern "C" fn qnic_shared_sender_open(
    participant: *mut qnic_participant,
    node: u16,
    port: u16,
    name: u64,
    timeout_ns: i64,
    sender: Out<*mut qnic_shared_sender>,
) -> c_int {
    open(sender, || {
        let receiver = (NodeId(node), Port(port), SegmentName(name));
        let wait = limit(timeout_ns);
        let end = SharedSender::connect(&get(participant)?.0, receiver, wait)?;
        Ok(qnic_shared_sender(Mutex::new(end)))
    })
}

fn with_shared<R>(
    sender: *mut qnic_shared_sender,
    work: impl FnOnce(&mut SharedSender) -> Result<R>,
) -> Result<R> {
    let sender = get(sender)?;
    let outcome = work(&mut *turn(&sender.0)?);
    outcome
}

/// Stores the length of the longest message.
#[no_mangle]
pub extern "C" fn qnic_shared_sender_message_bytes(
    sender: *mut qnic_shared_sender,
    message_bytes: Out<usize>,
) -> c_int {
    call(|| message_bytes.set(with_shared(sender, |end| Ok(end.message_bytes()))?))
}

/// Sends a message; waits for its turn, up to `timeout_ns` nanoseconds.
///
/// Fails with `QNIC_E_TIMED_OUT`: nothing was sent, and the place in the queue stays; with a timeout of 0
/// `QNIC_E_WOULD_BLOCK`: there is no room; `QNIC_E_MESSAGE_TOO_LONG`, `QNIC_E_CHANNEL_CLOSED`,
/// `QNIC_E_PEER_GONE`, `QNIC_E_BROKEN`.
#[no_mangle]
pub extern "C" fn qnic_shared_sender_send(
    sender: *mut qnic_shared_sender,
    bytes: In<c_void>,
    length: usize,
    timeout_ns: i64,
) -> c_int {
    call(|| {
        let bytes = bytes.bytes(length)?;
        with_shared(sender, |end| match timeout(timeout_ns) {
            None => Ok(end.send(bytes)?),
            Some(limit) if !limit.is_zero() => Ok(end.send_timeout(bytes, limit)?),
            Some(_) => match end.try_send(bytes)? {
                true => Ok(()),
                false => Err(Failure::would_block()),
            },
        })
    })
}

/// Waits until all messages are in the receiver's memory, up to `timeout_ns` nanoseconds.
///
/// Fails as `qnic_sender_flush`.
#[no_mangle]
pub extern "C" fn qnic_shared_sender_flush(
    sender: *mut qnic_shared_sender,
    timeout_ns: i64,
) -> c_int {
    call(|| with_shared(sender, |end| Ok(end.flush_timeout(limit(timeout_ns))?)))
}

/// Closes a sending end.
#[no_mangle]
pub extern "C" fn qnic_shared_sender_close(sender: *mut qnic_shared_sender) -> c_int {
    close(sender)
}
