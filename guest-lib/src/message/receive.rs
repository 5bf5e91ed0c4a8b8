//! Receives.

use std::time::Duration;

use qnic_abi::command::CommandBody;
use qnic_abi::message::{ReceiveCommand, ReceiveFlags};

use super::pattern::Fields;
use super::{context, Completion, MultiReceive, Pattern, Request};
use crate::core::contexts::Direction;
use crate::core::Core;
use crate::error::{Error, MessageError, MessageOperation, Result};
use crate::memory::{LocalMemory, Part, Range};
use crate::request::RequestKind;

/// Where the bytes of a message go, in memory that the endpoint exports, whatever access that
/// grants.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Room<'s, 'a> {
    /// One range of memory.
    One(Part<'a>),
    /// Parts of one segment, scattered to by the NIC. The rules of
    /// [`Contents::Parts`](super::Contents::Parts) hold.
    Parts(&'s [Part<'a>]),
}

impl<'a> From<Part<'a>> for Room<'_, 'a> {
    fn from(part: Part<'a>) -> Self {
        Room::One(part)
    }
}

impl<'s, 'a> From<&'s [Part<'a>]> for Room<'s, 'a> {
    fn from(parts: &'s [Part<'a>]) -> Self {
        Room::Parts(parts)
    }
}

impl<'s, 'a, const N: usize> From<&'s [Part<'a>; N]> for Room<'s, 'a> {
    fn from(parts: &'s [Part<'a>; N]) -> Self {
        Room::Parts(parts)
    }
}

/// A receive that is not posted ([`Endpoint::receive`](crate::Endpoint::receive)).
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is received before `post`, `wait` or `many`"]
pub struct Receive<'s, 'a> {
    pub(super) core: &'a Core,
    pub(super) pattern: &'s Pattern,
    pub(super) room: Room<'s, 'a>,
    pub(super) timeout: Option<Duration>,
}

impl<'a> Receive<'_, 'a> {
    /// How long [`Receive::wait`] waits for a message; `None`, as at first: as long as it takes.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        let timeout = timeout.into();
        Receive { timeout, ..self }
    }

    /// Posts it for one message. Waits only while the command queue is full.
    ///
    /// At most 16,384 receives of a process are posted: one more fails with Exhausted.
    ///
    /// # Errors
    /// [`OutOfRange`](Error::OutOfRange), [`ForeignSegment`](Error::ForeignSegment),
    /// [`DeviceGone`](Error::DeviceGone), [`QueueFailed`](Error::QueueFailed). Of [`Room::Parts`]
    /// also [`BadPiece`](Error::BadPiece), [`PoolFull`](Error::PoolFull),
    /// [`NoContext`](Error::NoContext), as of [`Send::post`](super::Send::post).
    pub fn post(self) -> Result<Request<'a>> {
        match self.room {
            Room::One(part) => self.post_one(part, RequestKind::Receive, ReceiveFlags::empty()),
            Room::Parts(parts) => {
                let fields = Fields::from(self.pattern);
                context::begin_pages(self.core, Direction::Receive, &fields, parts)
            }
        }
    }

    /// Receives a message, and waits for it.
    ///
    /// # Errors
    /// [`Message`](Error::Message): it failed. [`TimedOut`](Error::TimedOut): no message came, and
    /// none is taken any more. Those of [`Receive::post`].
    pub fn wait(self) -> Result<Completion> {
        self.post()?.finish(self.timeout)
    }

    /// Posts it for many messages, one behind the other in its memory, until that is full.
    ///
    /// # Errors
    /// Those of [`Receive::post`]; [`BadPiece`](Error::BadPiece) of [`Room::Parts`].
    pub fn many(self) -> Result<MultiReceive<'a>> {
        let Room::One(part) = self.room else {
            let problem = "is one of several, and a receive of many messages takes one";
            return Err(Error::BadPiece { piece: 0, problem });
        };
        self.post_one(part, RequestKind::Many, ReceiveFlags::MANY)
            .map(MultiReceive::new)
    }

    fn post_one(
        self,
        part: Part<'a>,
        kind: RequestKind,
        mut flags: ReceiveFlags,
    ) -> Result<Request<'a>> {
        let range = part.range(self.core)?;
        let fields = Fields::from(self.pattern);
        let mut command = ReceiveCommand::command();
        flags.set(ReceiveFlags::ANY_PROC, fields.peer.is_none());
        fields.name_peer(&mut command.header);
        flags.set(ReceiveFlags::UNTAGGED, fields.untagged);
        command.tag = fields.tag.into();
        command.ignore = fields.ignore_or_immediate.into();
        command.endpoint = fields.endpoint.into();
        command.flags = flags.bits().into();
        let what = fields.what(MessageOperation::Receive, range.length);
        post(self.core, command, &range, kind, what)
    }
}

/// Posts a receive into exported memory.
pub(super) fn post<'a>(
    core: &'a Core,
    mut command: ReceiveCommand,
    range: &Range,
    kind: RequestKind,
    what: MessageError,
) -> Result<Request<'a>> {
    command.length = range.length.into();
    if range.length > 0 {
        command.set_local(range);
    }
    let key = core.post_command(command)?;
    Ok(Request::new(core, key, kind, what))
}
