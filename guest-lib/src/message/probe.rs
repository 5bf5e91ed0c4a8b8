//! Messages that are looked for before they are received.

use std::time::Duration;

use qnic_abi::command::CommandBody;
use qnic_abi::message::{ProbeCommand, ProbeFlags};
use qnic_abi::Status;

use super::pattern::Fields;
use super::{Claim, Claimed, Completion, Envelope, Pattern, Request};
use crate::core::messages::RoomWait;
use crate::core::Core;
use crate::error::{MessageOperation, Result};
use crate::request::RequestKind;

/// A look for messages that have arrived, and that no posted receive takes, which has not begun
/// ([`Endpoint::probe`](crate::Endpoint::probe)).
///
/// At most 256 probes and claims of a process wait; one more waits until another has ended.
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is looked for before `wait`, `test`, `claim`, …"]
pub struct Probe<'e, 's> {
    pub(super) core: &'e Core,
    pub(super) pattern: &'s Pattern,
    pub(super) timeout: Option<Duration>,
}

impl<'e> Probe<'e, '_> {
    /// How long [`Probe::wait`] and [`Probe::claim`] wait; `None`, as at first: as long as it
    /// takes.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        let timeout = timeout.into();
        Probe { timeout, ..self }
    }

    /// Waits until a message has arrived that a receive with this pattern would take, and says what
    /// it is. It stays: the next receive or claim with this pattern gets it, unless another thread
    /// is faster; [`Probe::claim`] leaves no room for that.
    ///
    /// # Errors
    /// [`Message`](crate::Error::Message): it failed, with PeerGone for example.
    /// [`TimedOut`](crate::Error::TimedOut): there is none. [`DeviceGone`](crate::Error::DeviceGone),
    /// [`QueueFailed`](crate::Error::QueueFailed)
    pub fn wait(self) -> Result<Envelope> {
        self.finish(ProbeFlags::WAIT).map(Envelope::from)
    }

    /// The same, of a message that has arrived already; `None`: there is none. Waits for the NIC's
    /// answer only.
    ///
    /// # Errors
    /// Those of [`Probe::wait`] but TimedOut
    pub fn test(self) -> Result<Option<Envelope>> {
        Ok(self.find(ProbeFlags::empty())?.map(Envelope::from))
    }

    /// Waits until a message has arrived that a receive with this pattern would take, and claims
    /// it: no other receive, probe or claim finds it any more.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use qnic::message::{Pattern, Source, Tag};
    /// # use qnic::{Access, Endpoint, SegmentName};
    /// # fn receive(endpoint: &Endpoint) -> qnic::Result<Vec<u8>> {
    /// let pattern = Pattern::tagged(Source::Any, Tag(5));
    /// let claimed = endpoint.probe(&pattern).timeout(Duration::from_secs(10)).claim()?;
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
    /// Those of [`Probe::wait`]
    pub fn claim(self) -> Result<Claimed<'e>> {
        let found = self.finish(ProbeFlags::WAIT | ProbeFlags::CLAIM)?;
        Ok(Claimed::new(self.core, found))
    }

    /// The same, of a message that has arrived already; `None`: there is none. Waits for the NIC's
    /// answer only.
    ///
    /// # Errors
    /// Those of [`Probe::wait`] but TimedOut
    pub fn try_claim(self) -> Result<Option<Claimed<'e>>> {
        let found = self.find(ProbeFlags::CLAIM)?;
        Ok(found.map(|found| Claimed::new(self.core, found)))
    }

    /// Begins to wait for a message that is claimed when it has arrived. Waits only while the
    /// command queue is full.
    ///
    /// # Errors
    /// [`WouldBlock`](crate::Error::WouldBlock): as many probes and claims wait as may; it has not
    /// begun. [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed)
    pub fn post_claim(self) -> Result<Claim<'e>> {
        self.post(ProbeFlags::WAIT | ProbeFlags::CLAIM, RoomWait::None)
            .map(Claim::new)
    }

    /// Discards the first message that has arrived and that a receive with this pattern would
    /// take, and says what it was; `None`: there is none.
    ///
    /// # Errors
    /// Those of [`Probe::wait`] but TimedOut
    pub fn discard(self) -> Result<Option<Envelope>> {
        Ok(self.find(ProbeFlags::DISCARD)?.map(Envelope::from))
    }

    /// Begins to wait for a message that is discarded when it has arrived: of messages that come when nothing waits
    /// for them any more, nothing stays at the NIC. Waits only while the command queue is full.
    ///
    /// # Errors
    /// Those of [`Probe::post_claim`]
    pub fn post_discard(self) -> Result<Request<'e>> {
        self.post(ProbeFlags::WAIT | ProbeFlags::DISCARD, RoomWait::None)
    }

    /// Posts a probe that waits, when there is room, and waits for its message.
    fn finish(self, flags: ProbeFlags) -> Result<Completion> {
        let core = self.core;
        let deadline = core.deadline(self.timeout);
        let request = self.post(flags, RoomWait::Until(deadline))?;
        request.finish_until(deadline)
    }

    /// Posts a probe that does not wait, and waits for its answer.
    fn find(self, flags: ProbeFlags) -> Result<Option<Completion>> {
        match self.post(flags, RoomWait::None)?.wait(None) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.status() == Some(Status::NoMessage) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn post(self, mut flags: ProbeFlags, room_wait: RoomWait) -> Result<Request<'e>> {
        let fields = Fields::from(self.pattern);
        let mut command = ProbeCommand::command();
        flags.set(ProbeFlags::ANY_PROC, fields.peer.is_none());
        flags.set(ProbeFlags::UNTAGGED, fields.untagged);
        fields.name_peer(&mut command.header);
        command.tag = fields.tag.into();
        command.ignore = fields.ignore_or_immediate.into();
        command.incarnation = fields.incarnation.into();
        command.endpoint = fields.endpoint.into();
        command.flags = flags.bits().into();
        let key = match flags.contains(ProbeFlags::WAIT) {
            true => self.core.post_probe(command, room_wait)?,
            false => self.core.post_command(command)?,
        };
        let what = fields.what(MessageOperation::Probe, 0);
        Ok(Request::new(self.core, key, RequestKind::Probe, what))
    }
}
