//! Claims: messages that have arrived, and that go to one receive only.

use std::time::Duration;

use qnic_abi::command::CommandBody;
use qnic_abi::message::{ReceiveCommand, ReceiveFlags};
use qnic_abi::{NodeId, Port, Status};

use super::{receive, Completion, Request, Tag};
use crate::core::Core;
use crate::error::{MessageError, MessageOperation, Result};
use crate::memory::Part;
use crate::request::RequestKind;

/// What a message says of itself before it is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope {
    /// Node of its sender.
    pub node: NodeId,
    /// Port of its sender.
    pub port: Port,
    /// Its tag; 0 in the untagged space.
    pub tag: Tag,
    /// Its bytes.
    pub length: u64,
    /// What its sender has given with it.
    pub immediate: u64,
    /// The mark that its sender has given it ([`Destination::mark`](super::Destination::mark)).
    pub mark: u32,
    /// The incarnation of its sender; 0: it has none
    /// ([`set_incarnation`](super::set_incarnation)).
    pub incarnation: u32,
}

impl From<Completion> for Envelope {
    fn from(found: Completion) -> Self {
        Envelope {
            node: found.node,
            port: found.port,
            tag: found.tag,
            length: found.length,
            immediate: found.immediate,
            mark: found.mark,
            incarnation: found.incarnation,
        }
    }
}

/// A claim that waits for a message ([`Probe::post_claim`](super::Probe::post_claim)).
///
/// Dropped, it is cancelled; if a message comes for it at the last moment, that is discarded.
#[derive(Debug)]
#[must_use = "a claim that is dropped is cancelled"]
pub struct Claim<'a> {
    request: Request<'a>,
    told: bool,
}

impl<'a> Claim<'a> {
    pub(super) fn new(request: Request<'a>) -> Self {
        let told = false;
        Claim { request, told }
    }

    /// Returns its message if it has one; never blocks. The message is given once.
    ///
    /// # Errors
    /// [`Error::Message`](crate::Error::Message): it failed, was cancelled, or has given its message (NoMessage). Those of
    /// [`Request::test`].
    pub fn test(&mut self) -> Result<Option<Claimed<'a>>> {
        self.request.core().progress_messages();
        self.look()
    }

    /// Waits for its message, up to `timeout`; without one, as long as it takes.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut): it goes on, wait again. Those of [`Claim::test`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Claimed<'a>> {
        let core = self.request.core();
        core.wait_for(core.deadline(timeout), || self.look())
    }

    /// Takes it back: unless a message has come for it, it ends with [`Status::Cancelled`]. Does
    /// not wait for that.
    ///
    /// # Errors
    /// [`Error::DeviceGone`](crate::Error::DeviceGone)
    pub fn cancel(&mut self) -> Result<()> {
        self.request.cancel()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn core(&self) -> &'a Core {
        self.request.core()
    }

    pub(crate) fn look(&mut self) -> Result<Option<Claimed<'a>>> {
        if self.told {
            return Err(self.request.failure(Status::NoMessage));
        }
        let Some(end) = self.request.look()? else {
            return Ok(None);
        };
        let found = self.request.result(&end)?;
        self.told = true;
        Ok(Some(Claimed::new(self.request.core(), found)))
    }
}

/// A message that has arrived and that no other receive, probe or claim finds.
///
/// Dropped, it is discarded: a long message ends at its sender as truncated.
#[derive(Debug)]
#[must_use = "a claimed message that is dropped is discarded"]
pub struct Claimed<'a> {
    core: &'a Core,
    envelope: Envelope,
    /// Its number at the NIC.
    number: u64,
    received: bool,
}

impl<'a> Claimed<'a> {
    pub(super) fn new(core: &'a Core, found: Completion) -> Self {
        Claimed {
            core,
            envelope: found.into(),
            number: found.offset,
            received: false,
        }
    }

    /// What it says of itself.
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Receives it into memory that its endpoint exports, and waits until it is there: at the
    /// latest when its sender is given up.
    ///
    /// # Errors
    /// [`Error::Message`](crate::Error::Message): it failed; NoMessage: its sender has ended, or has given it up, before
    /// all of it was here. Those of [`Claimed::post_receive`].
    pub fn receive(self, into: Part<'_>) -> Result<Completion> {
        self.post_receive(into)?.wait(None)
    }

    /// Begins to receive it. Nothing cancels that: a request that is dropped waits until the
    /// message is there.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::ForeignSegment`](crate::Error::ForeignSegment), [`Error::DeviceGone`](crate::Error::DeviceGone),
    /// [`Error::QueueFailed`](crate::Error::QueueFailed): the message is discarded.
    pub fn post_receive<'p>(mut self, into: Part<'p>) -> Result<Request<'p>>
    where
        'a: 'p,
    {
        let core = self.core;
        let range = into.range(core)?;
        let mut command = ReceiveCommand::command();
        command.tag = self.number.into();
        command.flags = ReceiveFlags::CLAIMED.bits().into();
        let Envelope {
            node, port, tag, ..
        } = self.envelope;
        let operation = MessageOperation::Receive;
        let what = MessageError::new(operation, Some((node, port)), tag.0, range.length);
        let key = core.post_command(receive::into(command, &range))?;
        self.received = true;
        Ok(Request::new(core, key, RequestKind::Receive, what))
    }

    /// Drops it. Its sender is told nothing if it is short, and that nothing was taken
    /// (truncated) if it is long.
    pub fn discard(self) {}
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if !self.received {
            // A drop cannot report. An error says that the NIC holds nothing of this process.
            drop(self.core.discard_claimed(self.number));
        }
    }
}
