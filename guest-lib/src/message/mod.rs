//! Tagged messages between processes, matched by the NIC that receives them (Q3, Q4, Q11 to
//! Q13, Q17; docs/messages.md).
//!
//! ```text
//!   what                           how          begin it
//!   send(Destination, Contents) ─► Send ──────┬─ post ─► Request ─┬─ test, wait
//!   receive(Pattern, Room) ──────► Receive ───┤                   ├─ wait_any, wait_all
//!                                  │ timeout  │                   └─ AsyncEndpoint::completion
//!                                  │          └─ wait ─► Completion: begun and waited for
//!                                  └─ many ─► MultiReceive ─► next: a Completion for each message
//!   probe(Pattern) ──────────────► Probe ─ timeout ─┬─ wait, test ───────► Envelope
//!                                                   └─ claim, try_claim ─► Claimed ─► receive
//!   send_short(Destination, bytes) ─► SendShort ─┬─ post ─► Request
//!                                                └─ forget: its end is told to nothing
//!   pool().take(pages) ─► PoolBuffer ─ post_send, post_receive ─► Pooled: gives the buffer back
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
//! let mut letter = endpoint.receive(&pattern, memory.part(0, 4096)).post()?;
//! let to = Destination::tagged(NodeId(1), Port(7), Tag(5));
//! endpoint.send(&to, b"hello").timeout(limit).wait()?;
//! let letter = letter.wait(limit)?;
//! println!("{} bytes from {}", letter.length, letter.node);
//! # Ok(())
//! # }
//! ```
//!
//! # What matches
//! A process has 16 endpoints ([`MessageEndpoint`]), each with a tagged and an untagged space. A
//! message matches a receive of its space if the receive takes its source, and if both tags are
//! equal in all bits that the receive does not ignore. Of several receives, the one that was posted
//! first takes it; of several messages, the one that was sent first. Messages of one process to
//! another do not overtake each other; of several threads, they stand in the order of the calls.
//!
//! # Before it is received
//! For a message that no posted receive has taken, [`Endpoint::probe`] returns sender, tag, length
//! and immediate data, before the bytes of a long one have moved. A message that was only probed
//! may go to a receive of another thread. A message that was claimed ([`Probe::claim`]) goes only
//! to a receive of its [`Claimed`], for example into memory of its length. Two claims never get the
//! same message. [`Probe::discard`], and dropping a [`Claimed`], drop the message; if it is long
//! and was not staged, its Send ends as truncated. A claimed message keeps the room that it has at
//! the NIC or at its sender.
//!
//! # Invariants
//! - Each request ends once, and its end is reported once, to its [`Request`]; later calls return
//!   the same.
//! - Memory that the NIC may still write to belongs to a request: a receive borrows its segment.
//!   Dropping the request of a receive cancels it, and waits until the NIC is done with the memory:
//!   at the latest when a message that has begun to arrive is there, or its sender is given up. If
//!   a request is leaked, the NIC may use the memory until the segment ends, but not longer (N2).
//! - A Send never takes the room of a receive: the library gives the NIC fewer Sends than it has
//!   room for. The others wait in the library, in order for each destination, and go to the NIC
//!   whenever any thread of the process posts, tests or waits. Sends to one destination that no
//!   receive takes do not hold up those to others: at the NIC and in the library each destination
//!   has room for 16 beside them ([`Endpoint::hold_sends`]).
//! - Messages that are sent before the other process receives them are staged at its NIC: 64 KiB of
//!   each sender, and more while there is room. A Send of such a message ends without waiting for
//!   the receive.
//! - Each thread that posts or waits takes the completions of all threads; it sleeps only after a
//!   look that found none.
//!
//! # Memory of a Send
//! Up to [`inline_max`](crate::Endpoint::inline_max) bytes of a part of a segment, and ordinary
//! bytes as far as the NIC takes them, travel in the command: their source is reusable at once. The
//! NIC fetches longer messages from an exported segment, where they must not change before the
//! request has ended; if the segment is dropped, the message fails on both sides. A Send whose
//! request is dropped goes on, and its failure is not reported.
//!
//! # Contexts
//! A process has 32 contexts for Sends and 32 for receives in its NIC's memory. The bytes of their messages are in
//! the buffer pool ([`Endpoint::pool`]), whose pages the NIC knows; or in pages of a segment, where they are
//! gathered and scattered; or in the context itself. A program that need not know their end can
//! [forget](SendShort::forget) them. A Send in a context keeps its place among the others.
//!
//! # Ends
//! | the call returns | the message |
//! |---|---|
//! | `Ok` of a Send | is at the other NIC, or in the memory of its receive |
//! | `Ok` of a receive | is in memory; `truncated`: as much of it as there was room |
//! | [`Error::Message`](crate::Error::Message) | failed: its status says why, PeerGone for example |
//! | [`Error::TimedOut`](crate::Error::TimedOut) | goes on; wait again |
//!
//! A receive or probe from [`Source::Any`] ends with a message or when it is cancelled. One from a process
//! that ends, or whose node falls silent for the peer timeout, fails with PeerGone.

mod claim;
mod context;
mod many;
mod pattern;
mod pool;
mod probe;
mod receive;
mod send;
mod short;

use qnic_abi::shared::Ordering;
use qnic_abi::window::INCARNATION;
use qnic_abi::SharedMemory;

use crate::core::quiet::Urgency;
use crate::endpoint::Endpoint;

pub use crate::ends::{Ends, News, RequestId};
pub use crate::request::{wait_all, wait_any, Completion, Request, Tag};
pub use claim::{Claim, Claimed, Envelope};
pub use context::{Pooled, PooledReceive, PooledSend};
pub use many::MultiReceive;
pub use pattern::{Destination, MessageEndpoint, Pattern, Source};
pub use pool::{Pool, PoolBuffer};
pub use probe::Probe;
pub use receive::{Receive, Room};
pub use send::{Contents, Send};
pub use short::{SendShort, SHORT_MAX};

/// Says by which number peers tell a process from those that have its port before or after it; 0, as at first: by
/// none. It may be any that no other process on the port has, a random one for example. Peers name it in what is for
/// this process alone ([`Destination::incarnation`]), and its own messages carry it from now on
/// ([`Completion::incarnation`]).
pub fn set_incarnation(endpoint: &Endpoint, incarnation: u32) {
    // Relaxed: a peer, and its NIC, know it only from what this process says later.
    let window = &endpoint.core().window();
    window.store_u64(INCARNATION, incarnation.into(), Ordering::Relaxed);
}

/// # Messages
/// [`crate::message`] has the rules.
impl Endpoint {
    /// A Send of a message.
    ///
    /// ```no_run
    /// # use qnic::message::{Destination, Tag};
    /// # use qnic::{Endpoint, NodeId, Port, Segment};
    /// # fn f(endpoint: &Endpoint, memory: &Segment) -> qnic::Result<()> {
    /// let to = Destination::tagged(NodeId(1), Port(7), Tag(5));
    /// endpoint.send(&to, b"hello").wait()?;
    /// let mut long = endpoint.send(&to, memory.part(0, 100_000)).post()?;
    /// long.wait(None)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn send<'s>(&self, to: &'s Destination, contents: impl Into<Contents<'s>>) -> Send<'_, 's> {
        Send {
            core: self.core(),
            to,
            contents: contents.into(),
            timeout: None,
        }
    }

    /// A Send of up to [`SHORT_MAX`] bytes, which are stored in the NIC's memory.
    pub fn send_short<'s>(&self, to: &'s Destination, bytes: &'s [u8]) -> SendShort<'_, 's> {
        SendShort {
            core: self.core(),
            to,
            bytes,
        }
    }

    /// A receive of a message that the pattern takes.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use qnic::message::{Pattern, Source, Tag};
    /// # use qnic::{Endpoint, Segment};
    /// # fn f(endpoint: &Endpoint, memory: &Segment) -> qnic::Result<()> {
    /// let pattern = Pattern::tagged(Source::Any, Tag(5));
    /// let limit = Duration::from_secs(10);
    /// let letter = endpoint.receive(&pattern, memory.part(0, 4096)).timeout(limit).wait()?;
    /// println!("{} bytes from {}", letter.length, letter.node);
    /// # Ok(())
    /// # }
    /// ```
    pub fn receive<'s, 'a>(
        &'a self,
        pattern: &'s Pattern,
        room: impl Into<Room<'s, 'a>>,
    ) -> Receive<'s, 'a> {
        Receive {
            core: self.core(),
            pattern,
            room: room.into(),
            timeout: None,
            least: 0,
            urgency: Urgency::Usual,
        }
    }

    /// A look for messages that have arrived, and that no posted receive takes.
    ///
    /// ```no_run
    /// # use qnic::message::{Pattern, Source, Tag};
    /// # fn f(endpoint: &qnic::Endpoint) -> qnic::Result<()> {
    /// if let Some(envelope) = endpoint.probe(&Pattern::any_tag(Source::Any)).test()? {
    ///     println!("{} bytes with {:?}", envelope.length, envelope.tag);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn probe<'s>(&self, pattern: &'s Pattern) -> Probe<'_, 's> {
        Probe {
            core: self.core(),
            pattern,
            timeout: None,
        }
    }

    /// The pool of this process.
    pub fn pool(&self) -> Pool<'_> {
        Pool::new(self.core())
    }
}
