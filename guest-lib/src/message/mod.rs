//! Tagged messages between processes, matched by the NIC that receives them (Q3, Q4, Q11 to
//! Q13, Q17; docs/messages.md).
//!
//! ```text
//!   Destination ─► send, post_send ──► Request ─┐          ┌─ test, wait
//!   Part, bytes ─┘                              ├─► Completion ◄─ wait_any, wait_all
//!   Pattern ────► receive, post_receive ► Request┘          └─ AsyncEndpoint::completion
//!   Part ───────┘ receive_many ─────► MultiReceive ─► next: a Completion for each message
//!   Pattern ────► probe, try_probe ─► Envelope: what has arrived
//!   PoolBuffer ─► post_send_from, post_receive_into ─► Pooled, which gives the buffer back
//!   Pattern ────► claim, try_claim ─► Claimed ─► receive into a Part, or discard
//! ```
//!
//! ```no_run
//! use std::time::Duration;
//! use qnic::message::{Destination, Pattern, Source, Tag};
//! use qnic::{Access, Nic, NodeId, Port, SegmentName};
//!
//! # fn main() -> qnic::Result<()> {
//! let endpoint = Nic::open()?.register(Port(7))?;
//! let buffer = endpoint.allocate(4096)?;
//! let memory = endpoint.export(SegmentName(1), &buffer, Access::READ)?;
//!
//! let limit = Some(Duration::from_secs(10));
//! let pattern = Pattern::tagged(Source::Any, Tag(5));
//! let mut letter = endpoint.post_receive(&pattern, memory.part(0, 4096))?;
//! endpoint.send(&Destination::tagged(NodeId(1), Port(7), Tag(5)), b"hello", limit)?;
//! let letter = letter.wait(limit)?;
//! println!("{} bytes from {}", letter.length, letter.node);
//! # Ok(())
//! # }
//! ```
//!
//! # What matches
//! A process has 16 endpoints ([`MessageEndpoint`]), each with a tagged and an untagged space. A
//! message matches a receive of its space if the receive takes its source, and its tag in all
//! bits that the receive does not ignore. Of several receives, the one that was posted first
//! takes it; of several messages, the one that was sent first. Messages of one process to
//! another do not overtake each other; of several threads, they stand in the order of the calls.
//!
//! # Before it is received
//! A message that no posted receive has taken can be looked at: [`Endpoint::probe`] tells its
//! sender, tag, length and immediate data, before the bytes of a long one have moved. What was
//! probed may go to a receive of another thread; a message that was claimed ([`Endpoint::claim`])
//! goes only where its [`Claimed`] is received, into memory of its length for example. Two claims
//! never get the same message. [`Endpoint::discard`], and a [`Claimed`] that is dropped, drop the
//! message; a Send of a long message ends as truncated then. A claimed message takes the room that
//! it had before, at the NIC or at its sender.
//!
//! # Invariants
//! - Each request ends once, and its end is told once, to its [`Request`]; later calls tell the
//!   same.
//! - Memory that the NIC may still write to belongs to a request: a receive borrows its segment.
//!   A request that is dropped is cancelled, and the drop waits until the NIC is done with the
//!   memory. That is at the latest when a message that has begun to arrive is there, or its
//!   sender is given up. One that is leaked lets its memory go only to the end of the segment,
//!   which the NIC does not outlive (N2).
//! - A Send never takes the room of a receive: at most 1,023 Sends are at the NIC, others wait in
//!   the library, in order. They go on whenever any thread of the process posts, tests or waits.
//!   Behind 1,023 that no receive takes, no other goes out, wherever it is to go.
//! - Completions of all threads are taken by each thread that posts or waits for anything; a
//!   thread sleeps only behind a look that found nothing.
//!
//! # Memory of a Send
//! Up to [`inline_max`](crate::Endpoint::inline_max) bytes of a part of a segment, and what the
//! NIC takes of ordinary bytes, travel in the command: their source is reusable at once. Longer
//! ones are fetched by the NIC from an exported segment, and must not change before the request
//! has ended; if their segment is dropped, the message fails on both sides. A Send that is
//! dropped goes on, and its failure is dropped.
//!
//! # Contexts
//! A process has 32 contexts for Sends and 32 for receives in its NIC's memory. Messages by them
//! come from and go to the buffer pool ([`Endpoint::pool`]), whose pages the NIC knows; are
//! gathered from and scattered to pages of a segment; or stand in the context themselves. Nobody
//! has to be told of their end ([`Notify::No`]). A Send in a context keeps its place among the
//! others.
//!
//! # Ends
//! | the call returns | the message |
//! |---|---|
//! | `Ok` of a Send | is at the other NIC, or in the memory of its receive if it is long |
//! | `Ok` of a receive | is in memory; `truncated`: as much of it as there was room |
//! | [`Error::Message`](crate::Error::Message) | failed: its status says why, PeerGone for example |
//! | [`Error::TimedOut`](crate::Error::TimedOut) | goes on; wait again |
//!
//! A receive or probe from [`Source::Any`] ends with a message or when it is cancelled. One from a process
//! that ends, or whose node falls silent for the peer timeout, fails with PeerGone.

mod context;
mod many;
mod pattern;
mod pool;
mod probe;
mod request;

use std::time::Duration;

use qnic_abi::command::{CommandBody, Descriptor, INLINE_CAPACITY};
use qnic_abi::message::{ReceiveCommand, ReceiveFlags, SendCommand, SendFlags};
use qnic_abi::{NodeId, Port};

use crate::endpoint::Endpoint;
use crate::error::{MessageOperation, Result};
use crate::memory::Part;
use crate::rdma::transfer::Local;
use crate::rdma::Source as Bytes;

pub use context::{Notify, Pooled, PooledReceive, PooledSend, SHORT_MAX};
pub use many::MultiReceive;
use pattern::Fields;
pub use pattern::{Destination, MessageEndpoint, Pattern, Source, Tag};
pub use pool::{Pool, PoolBuffer};
pub use probe::{Claim, Claimed, Envelope};
use request::RequestKind;
pub use request::{wait_all, wait_any, Request};

/// A message that was sent, or has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Node of the other process: that has sent it, or that it was sent to.
    pub node: NodeId,
    /// Port of the other process.
    pub port: Port,
    /// Its tag; 0 in the untagged space.
    pub tag: Tag,
    /// Bytes of the message as it was sent.
    pub length: u64,
    /// Where it begins in the part that its receive was given; 0 but for a [`MultiReceive`].
    pub offset: u64,
    /// What its sender has given with it; 0 of a Send.
    pub immediate: u64,
    /// The message is longer than its receive: what fits has arrived. The sender learns of it
    /// only if the message does not fit in a frame.
    pub truncated: bool,
}

/// # Messages
/// [`crate::message`] has the rules.
impl Endpoint {
    /// Sends a message, and waits until it has arrived at the other NIC.
    ///
    /// # Errors
    /// [`Message`](crate::Error::Message): it failed. [`TimedOut`](crate::Error::TimedOut): it
    /// goes on, and may arrive; its source must not change. Those of [`Endpoint::post_send`].
    pub fn send<'s>(
        &self,
        to: &Destination,
        bytes: impl Into<Bytes<'s>>,
        timeout: Option<Duration>,
    ) -> Result<Completion> {
        self.post_send(to, bytes)?.wait(timeout)
    }

    /// Begins to send a message. Never waits for the receiver; a thread that has begun more
    /// than 16,384 Sends which could not be posted yet waits.
    ///
    /// # Errors
    /// [`NotExported`](crate::Error::NotExported), [`OutOfRange`](crate::Error::OutOfRange),
    /// [`ForeignSegment`](crate::Error::ForeignSegment), [`DeviceGone`](crate::Error::DeviceGone),
    /// [`QueueFailed`](crate::Error::QueueFailed)
    pub fn post_send<'s>(
        &self,
        to: &Destination,
        bytes: impl Into<Bytes<'s>>,
    ) -> Result<Request<'_>> {
        let core = self.core();
        let mut copy = [0; INLINE_CAPACITY];
        let mut command = SendCommand::command();
        let mut payload: &[u8] = &[];
        let fields = Fields::from(to);
        fields.name_peer(&mut command.header);
        command.tag = fields.tag.into();
        command.immediate = fields.ignore_or_immediate.into();
        command.endpoint = fields.endpoint.into();
        if fields.untagged {
            command.flags = SendFlags::UNTAGGED.bits().into();
        }
        let length = match core.local(bytes.into(), &mut copy)? {
            Local::Inline(bytes) => {
                command.header.inline_length = bytes.len() as u8;
                payload = bytes;
                bytes.len() as u64
            }
            Local::Memory(range) => {
                command.local_address = range.address.into();
                command.local_segment = range.exported.segment.into();
                command.local_key = range.exported.key.into();
                range.length
            }
        };
        command.length = length.into();
        let command = |handle: u64| {
            let mut command = command;
            command.handle = handle.into();
            command.descriptor()
        };
        let key = core.post_send(command, payload, None)?;
        let what = fields.what(MessageOperation::Send, length);
        Ok(Request::new(core, key, RequestKind::Send, what))
    }

    /// Receives a message into memory that this endpoint exports, whatever access that grants.
    ///
    /// # Errors
    /// [`Message`](crate::Error::Message): it failed. [`TimedOut`](crate::Error::TimedOut): no message came,
    /// and none is taken any more. Those of [`Endpoint::post_receive`].
    pub fn receive(
        &self,
        pattern: &Pattern,
        into: Part<'_>,
        timeout: Option<Duration>,
    ) -> Result<Completion> {
        self.post_receive(pattern, into)?.finish(timeout)
    }

    /// Posts a receive for one message. Waits only while the command queue is full.
    ///
    /// At most 16,384 receives of a process are posted: one more fails with Exhausted.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange), [`ForeignSegment`](crate::Error::ForeignSegment),
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed)
    pub fn post_receive<'a>(&'a self, pattern: &Pattern, into: Part<'a>) -> Result<Request<'a>> {
        let kind = RequestKind::Receive;
        self.post_pattern(pattern, into, kind, ReceiveFlags::empty())
    }

    /// Posts a receive that takes many messages, one behind the other in its memory, until that
    /// is full.
    ///
    /// # Errors
    /// Those of [`Endpoint::post_receive`]
    pub fn receive_many<'a>(
        &'a self,
        pattern: &Pattern,
        into: Part<'a>,
    ) -> Result<MultiReceive<'a>> {
        let kind = RequestKind::Many;
        self.post_pattern(pattern, into, kind, ReceiveFlags::MANY)
            .map(MultiReceive::new)
    }

    fn post_pattern<'a>(
        &'a self,
        pattern: &Pattern,
        into: Part<'a>,
        kind: RequestKind,
        flags: ReceiveFlags,
    ) -> Result<Request<'a>> {
        let core = self.core();
        let range = into.range(core)?;
        let mut command = ReceiveCommand::command();
        let mut flags = flags;
        let fields = Fields::from(pattern);
        flags.set(ReceiveFlags::ANY_PROC, fields.peer.is_none());
        fields.name_peer(&mut command.header);
        flags.set(ReceiveFlags::UNTAGGED, fields.untagged);
        command.tag = fields.tag.into();
        command.ignore = fields.ignore_or_immediate.into();
        command.endpoint = fields.endpoint.into();
        command.flags = flags.bits().into();
        command.length = range.length.into();
        if range.length > 0 {
            command.local_address = range.address.into();
            command.local_segment = range.exported.segment.into();
            command.local_key = range.exported.key.into();
        }
        let command = |handle: u64| -> Descriptor {
            let mut command = command;
            command.handle = handle.into();
            command.descriptor()
        };
        let key = core.post_command(command, None)?;
        let what = fields.what(MessageOperation::Receive, range.length);
        Ok(Request::new(core, key, kind, what))
    }
}
