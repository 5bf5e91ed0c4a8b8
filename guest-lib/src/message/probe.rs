//! Messages that are looked for, claimed and discarded before they are received.

use std::time::Duration;

use qnic_abi::command::{CommandBody, Descriptor};
use qnic_abi::message::{ProbeCommand, ProbeFlags, ReceiveCommand, ReceiveFlags};
use qnic_abi::{NodeId, Port, Status};

use super::request::RequestKind;
use super::{Completion, Pattern, Request, Tag};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, MessageError, MessageOperation, Result};
use crate::memory::Part;

/// What a message says of itself before it is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

impl From<Completion> for Envelope {
    fn from(found: Completion) -> Self {
        Envelope {
            node: found.node,
            port: found.port,
            tag: found.tag,
            length: found.length,
            immediate: found.immediate,
        }
    }
}

/// A claim that waits for a message ([`Endpoint::post_claim`]).
///
/// Dropped, it is cancelled; if a message comes for it at the last moment, that is discarded.
#[derive(Debug)]
#[must_use = "a claim that is dropped is cancelled"]
pub struct Claim<'a> {
    request: Request<'a>,
    told: bool,
}

impl<'a> Claim<'a> {
    /// Returns its message if it has one; never blocks. The message is given once.
    ///
    /// # Errors
    /// [`Error::Message`]: it failed, was cancelled, or has given its message (NoMessage). Those of
    /// [`Request::test`].
    pub fn test(&mut self) -> Result<Option<Claimed<'a>>> {
        self.request.core.progress_messages();
        self.look()
    }

    /// Waits for its message, up to `timeout`; without one, as long as it takes.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: it goes on, wait again. Those of [`Claim::test`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Claimed<'a>> {
        let core = self.request.core;
        core.wait_for(core.deadline(timeout), || self.look())
    }

    /// Takes it back: unless a message has come for it, it ends with [`Status::Cancelled`]. Does
    /// not wait for that.
    ///
    /// # Errors
    /// [`Error::DeviceGone`]
    pub fn cancel(&mut self) -> Result<()> {
        self.request.cancel()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn core(&self) -> &'a Core {
        self.request.core
    }

    pub(crate) fn look(&mut self) -> Result<Option<Claimed<'a>>> {
        if self.told {
            let gone = self.request.what().with(Status::NoMessage);
            return Err(Error::Message(gone));
        }
        let Some(end) = self.request.look()? else {
            return Ok(None);
        };
        let found = self.request.result(&end)?;
        self.told = true;
        Ok(Some(Claimed::new(self.request.core, found)))
    }
}

/// A message that has arrived and that nobody else finds or receives.
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
    fn new(core: &'a Core, found: Completion) -> Self {
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
    /// [`Error::Message`]: it failed; NoMessage: its sender has ended, or has given it up, before
    /// all of it was here. Those of [`Claimed::post_receive`].
    pub fn receive(self, into: Part<'_>) -> Result<Completion> {
        self.post_receive(into)?.wait(None)
    }

    /// Begins to receive it. Nothing cancels that: a request that is dropped waits until the
    /// message is there.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ForeignSegment`], [`Error::DeviceGone`],
    /// [`Error::QueueFailed`]: the message is discarded.
    pub fn post_receive<'p>(mut self, into: Part<'p>) -> Result<Request<'p>>
    where
        'a: 'p,
    {
        let core = self.core;
        let range = into.range(core)?;
        let mut command = ReceiveCommand::command();
        command.tag = self.number.into();
        command.flags = ReceiveFlags::CLAIMED.bits().into();
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
        self.received = true;
        let Envelope {
            node, port, tag, ..
        } = self.envelope;
        let operation = MessageOperation::Receive;
        let what = MessageError::new(operation, Some((node, port)), tag.0, range.length);
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

/// # Probe, claim and discard
/// Messages that have arrived, and that no posted receive takes, before they are received
/// ([`crate::message`]).
impl Endpoint {
    /// Waits until a message has arrived that a receive with this pattern would take, and says what
    /// it is. It stays: the next receive or claim with this pattern gets it, unless another thread
    /// is faster; [`Endpoint::claim`] leaves no room for that.
    ///
    /// At most 256 probes and claims of a process wait: one more fails with Exhausted.
    ///
    /// # Errors
    /// [`Message`](crate::Error::Message): it failed, with PeerGone for example.
    /// [`TimedOut`](crate::Error::TimedOut): there is none. [`DeviceGone`](crate::Error::DeviceGone),
    /// [`QueueFailed`](crate::Error::QueueFailed)
    pub fn probe(&self, pattern: &Pattern, timeout: Option<Duration>) -> Result<Envelope> {
        let request = self.post_probe(pattern, ProbeFlags::WAIT)?;
        request.finish(timeout).map(Envelope::from)
    }

    /// The same, of a message that has arrived already; `None`: there is none. Waits for the NIC's
    /// answer only.
    ///
    /// # Errors
    /// Those of [`Endpoint::probe`] but TimedOut
    pub fn try_probe(&self, pattern: &Pattern) -> Result<Option<Envelope>> {
        let found = self.find(pattern, ProbeFlags::empty())?;
        Ok(found.map(Envelope::from))
    }

    /// Waits until a message has arrived that a receive with this pattern would take, and claims
    /// it: no other receive, probe or claim finds it any more.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use qnic::message::{Pattern, Source, Tag};
    /// # use qnic::{Access, Endpoint, SegmentName};
    /// # fn receive(endpoint: &Endpoint) -> qnic::Result<Vec<u8>> {
    /// let limit = Some(Duration::from_secs(10));
    /// let claimed = endpoint.claim(&Pattern::tagged(Source::Any, Tag(5)), limit)?;
    /// let length = claimed.envelope().length as usize;
    /// // Memory that is made for it.
    /// let buffer = endpoint.allocate(length.max(1))?;
    /// let memory = endpoint.export(SegmentName(2), &buffer, Access::READ)?;
    /// claimed.receive(memory.part(0, length))?;
    /// # buffer.read_vec(0, length)
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Endpoint::probe`]
    pub fn claim(&self, pattern: &Pattern, timeout: Option<Duration>) -> Result<Claimed<'_>> {
        let request = self.post_probe(pattern, ProbeFlags::WAIT | ProbeFlags::CLAIM)?;
        let found = request.finish(timeout)?;
        Ok(Claimed::new(self.core(), found))
    }

    /// The same, of a message that has arrived already; `None`: there is none. Waits for the NIC's
    /// answer only.
    ///
    /// # Errors
    /// Those of [`Endpoint::probe`] but TimedOut
    pub fn try_claim(&self, pattern: &Pattern) -> Result<Option<Claimed<'_>>> {
        let found = self.find(pattern, ProbeFlags::CLAIM)?;
        Ok(found.map(|found| Claimed::new(self.core(), found)))
    }

    /// Begins to wait for a message that is claimed when it has arrived. Waits only while the
    /// command queue is full.
    ///
    /// # Errors
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed)
    pub fn post_claim(&self, pattern: &Pattern) -> Result<Claim<'_>> {
        let request = self.post_probe(pattern, ProbeFlags::WAIT | ProbeFlags::CLAIM)?;
        Ok(Claim {
            request,
            told: false,
        })
    }

    /// Discards the first message that has arrived and that a receive with this pattern would
    /// take, and says what it was; `None`: there is none.
    ///
    /// # Errors
    /// Those of [`Endpoint::probe`] but TimedOut
    pub fn discard(&self, pattern: &Pattern) -> Result<Option<Envelope>> {
        let found = self.find(pattern, ProbeFlags::DISCARD)?;
        Ok(found.map(Envelope::from))
    }

    /// Posts a probe that does not wait, and waits for its answer.
    fn find(&self, pattern: &Pattern, flags: ProbeFlags) -> Result<Option<Completion>> {
        match self.post_probe(pattern, flags)?.wait(None) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.status() == Some(Status::NoMessage) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn post_probe(&self, pattern: &Pattern, flags: ProbeFlags) -> Result<Request<'_>> {
        let core = self.core();
        let source = pattern.process();
        let mut command = ProbeCommand::command();
        let mut flags = flags;
        flags.set(ProbeFlags::ANY_PROC, source.is_none());
        flags.set(ProbeFlags::UNTAGGED, pattern.untagged);
        if let Some((node, port)) = source {
            command.header.remote_node = node.0.into();
            command.header.remote_port = port.0.into();
        }
        command.tag = pattern.tag.0.into();
        command.ignore = pattern.ignore.into();
        command.endpoint = pattern.endpoint.number().into();
        command.flags = flags.bits().into();
        let command = |handle: u64| -> Descriptor {
            let mut command = command;
            command.handle = handle.into();
            command.descriptor()
        };
        let key = core.post_command(command, None)?;
        let what = MessageError::new(MessageOperation::Probe, source, pattern.tag.0, 0);
        Ok(Request::new(core, key, RequestKind::Probe, what))
    }
}
