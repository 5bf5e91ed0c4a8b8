//! Receives.

use std::time::Duration;

use qnic_abi::command::CommandBody;
use qnic_abi::message::{Label, ReceiveCommand, ReceiveFlags};
use zerocopy::IntoBytes;

use super::pattern::Fields;
use super::{context, Completion, MultiReceive, Pattern, Request};
use crate::core::contexts::Direction;
use crate::core::messages::RoomWait;
use crate::core::quiet::Urgency;
use crate::core::Core;
use crate::error::{Error, MessageOperation, Result};
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
    pub(super) least: u64,
    pub(super) urgency: Urgency,
}

impl<'a> Receive<'_, 'a> {
    /// How long [`Receive::wait`] waits for a message; `None`, as at first: as long as it takes.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        let timeout = timeout.into();
        Receive { timeout, ..self }
    }

    /// Of [`Receive::many`], in the untagged space: how many bytes of memory it has left for each message. It ends
    /// when there are fewer, so a message of up to so many bytes is never truncated. 0, as at first: it ends when its
    /// memory is full.
    pub fn least(self, bytes: u64) -> Self {
        Receive {
            least: bytes,
            ..self
        }
    }

    /// Without a doorbell, if the NIC sleeps and no message waits: the next command rings, or the NIC finds it when a
    /// message comes. For programs that go on looking for its end ([`Request::test`], [`Ends`](super::Ends)): then the doorbell
    /// is rung some 0.1 ms later, in an emulated guest 0.4 ms, and so long it takes until the NIC begins to watch a
    /// sender that [`Pattern`] names.
    pub fn quietly(self) -> Self {
        Receive {
            urgency: Urgency::Message,
            ..self
        }
    }

    /// Posts it for one message. Waits only while the command queue is full.
    ///
    /// # Errors
    /// [`WouldBlock`](Error::WouldBlock): 16,320 receives of this process are posted; it is not.
    /// [`OutOfRange`](Error::OutOfRange), [`ForeignSegment`](Error::ForeignSegment),
    /// [`DeviceGone`](Error::DeviceGone), [`QueueFailed`](Error::QueueFailed). Of [`Room::Parts`]
    /// also [`BadPiece`](Error::BadPiece), [`PoolFull`](Error::PoolFull),
    /// [`NoContext`](Error::NoContext), as of [`Send::post`](super::Send::post).
    pub fn post(self) -> Result<Request<'a>> {
        self.begin(RoomWait::None)
    }

    fn begin(self, room_wait: RoomWait) -> Result<Request<'a>> {
        match self.room {
            Room::One(part) => {
                self.post_one(part, RequestKind::Receive, ReceiveFlags::empty(), room_wait)
            }
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
    /// none is taken any more. Those of [`Receive::post`] but `WouldBlock`: it waits until another
    /// receive has ended.
    pub fn wait(self) -> Result<Completion> {
        match self.post() {
            Err(Error::WouldBlock) => self.wait_for_room(),
            request => request?.finish(self.timeout),
        }
    }

    /// Posts it when there is room, and waits.
    #[cold]
    fn wait_for_room(self) -> Result<Completion> {
        let deadline = self.core.deadline(self.timeout);
        self.begin(RoomWait::Until(deadline))?
            .finish_until(deadline)
    }

    /// Posts it for many messages, one behind the other in its memory, until that is full, or has less left than
    /// [`Receive::least`].
    ///
    /// # Errors
    /// Those of [`Receive::post`]; [`BadPiece`](Error::BadPiece) of [`Room::Parts`], and of [`Receive::least`] in a
    /// tagged space.
    pub fn many(self) -> Result<MultiReceive<'a>> {
        if self.least > 0 && !self.pattern.untagged {
            let problem = "has tagged messages, and only a receive of untagged ones keeps bytes";
            return Err(Error::BadPiece { piece: 0, problem });
        }
        let Room::One(part) = self.room else {
            let problem = "is one of several, and a receive of many messages takes one";
            return Err(Error::BadPiece { piece: 0, problem });
        };
        self.post_one(part, RequestKind::Many, ReceiveFlags::MANY, RoomWait::None)
            .map(MultiReceive::new)
    }

    fn post_one(
        self,
        part: Part<'a>,
        kind: RequestKind,
        mut flags: ReceiveFlags,
        room_wait: RoomWait,
    ) -> Result<Request<'a>> {
        let range = part.range(self.core)?;
        let fields = Fields::from(self.pattern);
        let mut command = ReceiveCommand::command();
        flags.set(ReceiveFlags::ANY_PROC, fields.peer.is_none());
        fields.name_peer(&mut command.header);
        flags.set(ReceiveFlags::UNTAGGED, fields.untagged);
        command.tag = fields.tag.into();
        command.ignore = match kind {
            RequestKind::Many if fields.untagged => self.least.into(),
            _ => fields.ignore_or_immediate.into(),
        };
        command.endpoint = fields.endpoint.into();
        let label = fields.label();
        let label: &[u8] = label.as_ref().map_or(&[], Label::as_bytes);
        flags.set(ReceiveFlags::LABEL, !label.is_empty());
        command.header.inline_length = label.len() as u8;
        command.flags = flags.bits().into();
        let what = fields.what(MessageOperation::Receive, range.length);
        let command = into(command, &range);
        let urgency = self.urgency;
        let key = self.core.post_receive(command, label, room_wait, urgency)?;
        Ok(Request::new(self.core, key, kind, what))
    }
}

/// The receive whose bytes go into that memory.
pub(super) fn into(mut command: ReceiveCommand, range: &Range) -> ReceiveCommand {
    command.length = range.length.into();
    if range.length > 0 {
        command.set_local(range);
    }
    command
}
