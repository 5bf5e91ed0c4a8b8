//! Sends.

use std::time::Duration;

use qnic_abi::command::{CommandBody, INLINE_CAPACITY};
use qnic_abi::message::{Label, SendCommand, SendFlags};
use zerocopy::IntoBytes;

use super::pattern::Fields;
use super::{context, Completion, Destination, Request};
use crate::core::contexts::Direction;
use crate::core::messages::RoomWait;
use crate::core::Core;
use crate::error::{Error, MessageOperation, Result};
use crate::memory::{LocalMemory, Part};
use crate::rdma::transfer::Local;
use crate::rdma::Source;
use crate::request::RequestKind;

/// Where the bytes of a message come from.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Contents<'s> {
    /// One range of memory.
    One(Source<'s>),
    /// Parts of one segment, gathered by the NIC. All but the first begin where a page begins, all
    /// but the last end where one ends, and they lie in 256 pages at most. More than 8 pages are
    /// listed in a page of the pool, which is free again when the request has ended (Q6).
    Parts(&'s [Part<'s>]),
}

macro_rules! contents {
    ($($source:ty: $variant:ident $(($size:ident))?),* $(,)?) => {
        $(impl<'s $(, const $size: usize)?> From<$source> for Contents<'s> {
            fn from(source: $source) -> Self {
                Contents::$variant(source.into())
            }
        })*
    };
}

contents! {
    Source<'s>: One,
    Part<'s>: One,
    &'s [u8]: One,
    &'s [u8; N]: One(N),
    &'s [Part<'s>]: Parts,
}

impl<'s, const N: usize> From<&'s [Part<'s>; N]> for Contents<'s> {
    fn from(parts: &'s [Part<'s>; N]) -> Self {
        Contents::Parts(parts)
    }
}

/// A Send that has not begun ([`Endpoint::send`](crate::Endpoint::send)).
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is sent before `post` or `wait`"]
pub struct Send<'e, 's> {
    pub(super) core: &'e Core,
    pub(super) to: &'s Destination,
    pub(super) contents: Contents<'s>,
    pub(super) timeout: Option<Duration>,
}

impl<'e> Send<'e, '_> {
    /// How long [`Send::wait`] waits until the message has arrived; `None`, as at first: as long
    /// as it takes.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        let timeout = timeout.into();
        Send { timeout, ..self }
    }

    /// Begins to send; never waits for the receiver. Bytes that the NIC fetches must not change
    /// before the request has ended.
    ///
    /// # Errors
    /// [`WouldBlock`](crate::Error::WouldBlock): as many Sends wait as may
    /// ([`Endpoint::hold_sends`](crate::Endpoint::hold_sends)), 16 of them to this destination; it
    /// has not begun. Sends to other destinations may.
    /// [`NotExported`](crate::Error::NotExported), [`OutOfRange`](crate::Error::OutOfRange),
    /// [`ForeignSegment`](crate::Error::ForeignSegment), [`DeviceGone`](crate::Error::DeviceGone),
    /// [`QueueFailed`](crate::Error::QueueFailed). Of [`Contents::Parts`] also
    /// [`BadPiece`](crate::Error::BadPiece): they break their rule;
    /// [`PoolFull`](crate::Error::PoolFull): no page is free for the list;
    /// [`NoContext`](crate::Error::NoContext).
    pub fn post(self) -> Result<Request<'e>> {
        self.begin(RoomWait::None)
    }

    fn begin(self, room_wait: RoomWait) -> Result<Request<'e>> {
        let (core, fields) = (self.core, Fields::from(self.to));
        let source = match self.contents {
            Contents::One(source) => source,
            Contents::Parts(parts) => {
                return context::begin_pages(core, Direction::Send, &fields, parts);
            }
        };
        let mut copy = [0; INLINE_CAPACITY];
        let mut command = SendCommand::command();
        let label = fields.label();
        let label: &[u8] = label.as_ref().map_or(&[], Label::as_bytes);
        let mut payload = [0; INLINE_CAPACITY];
        let (front, room) = payload.split_at_mut(label.len());
        front.copy_from_slice(label);
        let mut inline = label.len();
        fields.name_peer(&mut command.header);
        command.tag = fields.tag.into();
        command.immediate = fields.ignore_or_immediate.into();
        command.endpoint = fields.endpoint.into();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::UNTAGGED, fields.untagged);
        flags.set(SendFlags::LABEL, !label.is_empty());
        command.flags = flags.bits().into();
        let length = match core.local_within(source, &mut copy, room.len())? {
            Local::Inline(bytes) => {
                room[..bytes.len()].copy_from_slice(bytes);
                inline += bytes.len();
                bytes.len() as u64
            }
            Local::Memory(range) => {
                command.set_local(&range);
                range.length
            }
        };
        command.length = length.into();
        command.header.inline_length = inline as u8;
        let key = core.post_send(command, &payload[..inline], room_wait)?;
        let what = fields.what(MessageOperation::Send, length);
        Ok(Request::new(core, key, RequestKind::Send, what))
    }

    /// Sends, and waits until the message has arrived at the other NIC.
    ///
    /// # Errors
    /// [`Message`](crate::Error::Message): it failed. [`TimedOut`](crate::Error::TimedOut): it
    /// goes on, and may arrive; its source must not change. Those of [`Send::post`] but for
    /// `WouldBlock`: it waits for room.
    pub fn wait(self) -> Result<Completion> {
        match self.begin(RoomWait::None) {
            Err(Error::WouldBlock) => self.wait_for_room(),
            request => request?.wait(self.timeout),
        }
    }

    /// Begins when there is room, and waits.
    #[cold]
    fn wait_for_room(self) -> Result<Completion> {
        let deadline = self.core.deadline(self.timeout);
        let mut request = self.begin(RoomWait::Until(deadline))?;
        let end = request.pending.wait(deadline)?;
        request.result(&end)
    }
}
