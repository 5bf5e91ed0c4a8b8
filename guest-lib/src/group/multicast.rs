//! Messages to all other members of a group, or to some of them, which ordinary receives take (Q3,
//! Q15).
//!
//! ```text
//!   Group::multicast(Tag, Source) ─► Multicast ── to, immediate, at ──┬─ post ─► Posted: test, wait
//!                                                                    └─ wait
//! ```
//! Without [`Multicast::to`] it is the Broadcast of QNIX, with it the Multicast; bytes that stand in the
//! command make them the short forms.

use std::time::Duration;

use qnic_abi::command::{CommandBody, INLINE_CAPACITY};
use qnic_abi::host_area::CompletionEntry;
use qnic_abi::multicast::{MulticastCommand, MulticastFlags, MAX_BYTES, MAX_RANKS};
use qnic_abi::Status;

use super::Group;
use crate::core::messages::{End, Pending};
use crate::core::Core;
use crate::error::{Error, GroupError, GroupOperation, Result};
use crate::memory::LocalMemory;
use crate::message::{MessageEndpoint, Tag};
use crate::rdma::transfer::Local;
use crate::rdma::Source;

impl Group<'_> {
    /// A message to all other members, or to [some](Multicast::to) of them, 2 GiB at most. Receives whose
    /// pattern takes this process and this tag take it.
    ///
    /// Of a message of more than 64 KiB the NICs keep that much, and a member that has no room for all of
    /// it gets it piece by piece into its receive. So it ends when all have received it.
    ///
    /// ```no_run
    /// # use qnic::group::Group;
    /// # use qnic::message::Tag;
    /// # fn f(group: &Group<'_>) -> qnic::Result<()> {
    /// group.multicast(Tag(5), b"to all").wait()?;
    /// group.multicast(Tag(6), b"to two").to(&[1, 3]).wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn multicast<'b>(&'b self, tag: Tag, contents: impl Into<Source<'b>>) -> Multicast<'b> {
        let mut command = MulticastCommand::command();
        command.group = self.number.into();
        command.tag = tag.0.into();
        Multicast {
            core: self.core,
            what: GroupError::new(GroupOperation::Multicast, self.membership.name),
            size: self.size(),
            command,
            source: contents.into(),
            ranks: None,
            timeout: None,
        }
    }
}

/// A multicast that has not begun.
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is sent before `post` or `wait`"]
pub struct Multicast<'b> {
    core: &'b Core,
    what: GroupError,
    size: u32,
    command: MulticastCommand,
    source: Source<'b>,
    ranks: Option<&'b [u32]>,
    timeout: Option<Duration>,
}

impl<'b> Multicast<'b> {
    /// To the members of these ranks only, 63 at most. This process gets none.
    pub fn to(self, ranks: &'b [u32]) -> Self {
        let ranks = Some(ranks);
        Multicast { ranks, ..self }
    }

    /// With 64 bits that the receivers get with the message.
    pub fn immediate(mut self, immediate: u64) -> Self {
        self.command.immediate = immediate.into();
        self
    }

    /// To this endpoint of the members; 0 at first.
    pub fn at(mut self, endpoint: MessageEndpoint) -> Self {
        self.command.endpoint = endpoint.number() as u8;
        self
    }

    /// How long [`Multicast::wait`] waits; `None`, as at first: as long as it takes.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        let timeout = timeout.into();
        Multicast { timeout, ..self }
    }

    /// Begins to send; never waits for a receiver. Bytes that the NIC fetches must not change before it
    /// has ended.
    ///
    /// # Errors
    /// [`WouldBlock`](crate::Error::WouldBlock): 64 multicasts of this process in this group have not
    /// ended; it has not begun. [`BadCollective`](crate::Error::BadCollective): it is too long, or names
    /// too many ranks or one that the group does not have.
    /// [`NotExported`](crate::Error::NotExported), [`OutOfRange`](crate::Error::OutOfRange),
    /// [`ForeignSegment`](crate::Error::ForeignSegment), [`DeviceGone`](crate::Error::DeviceGone),
    /// [`QueueFailed`](crate::Error::QueueFailed)
    pub fn post(self) -> Result<Posted<'b>> {
        self.begin(Some(Duration::ZERO))
            .map_err(|error| match error {
                Error::TimedOut => Error::WouldBlock,
                error => error,
            })
    }

    /// Sends, and waits until it was received, or staged as a whole, at all members that it is for.
    ///
    /// # Errors
    /// [`TimedOut`](crate::Error::TimedOut): if it has begun, it goes on, and may arrive; its source must
    /// not change. Those of [`Multicast::post`] but for `WouldBlock`, as it waits for room, and of
    /// [`Posted::wait`].
    pub fn wait(self) -> Result<()> {
        let deadline = self.core.deadline(self.timeout);
        let mut posted = self.begin(self.timeout)?;
        let end = posted.pending.wait(deadline)?;
        posted.result(&end).map(drop)
    }

    fn begin(self, timeout: Option<Duration>) -> Result<Posted<'b>> {
        let mut command = self.command;
        let mut payload = [0; INLINE_CAPACITY];
        let listed = self.list(&mut command, &mut payload)?;
        let mut copy = [0; INLINE_CAPACITY];
        let room = INLINE_CAPACITY - listed;
        let mut used = listed;
        let length = match self.core.local_within(self.source, &mut copy, room)? {
            Local::Inline(bytes) => {
                command.flags |= MulticastFlags::SHORT.bits();
                used += bytes.len();
                payload[listed..used].copy_from_slice(bytes);
                bytes.len() as u64
            }
            Local::Memory(range) => {
                command.set_local(&range);
                range.length
            }
        };
        if length > u64::from(MAX_BYTES) {
            return Err(Error::BadCollective(
                "a multicast has 2 GiB at most: send it in pieces, or to all with `broadcast`",
            ));
        }
        command.length = (length as u32).into();
        command.header.inline_length = used as u8;
        let deadline = self.core.deadline(timeout);
        let key = self
            .core
            .post_multicast(command, &payload[..used], deadline)?;
        Ok(Posted {
            pending: Pending::new(self.core, key),
            what: self.what,
        })
    }

    /// Writes the ranks into the payload. Returns how many bytes they take.
    fn list(
        &self,
        command: &mut MulticastCommand,
        payload: &mut [u8; INLINE_CAPACITY],
    ) -> Result<usize> {
        let Some(ranks) = self.ranks else {
            return Ok(0);
        };
        let right = ranks.iter().all(|rank| *rank < self.size);
        if ranks.is_empty() || ranks.len() > MAX_RANKS || !right {
            return Err(Error::BadCollective(
                "a multicast names 1 to 63 ranks, each below the size of its group",
            ));
        }
        command.flags |= MulticastFlags::RANKS.bits();
        let count = ranks.len() as u32;
        let words = std::iter::once(&count).chain(ranks);
        for (to, word) in payload.chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&(*word as u16).to_le_bytes());
        }
        Ok(2 * (ranks.len() + 1))
    }
}

/// A multicast that has begun. One that is dropped goes on, and its failure is dropped.
#[derive(Debug)]
#[must_use = "its failure is dropped with it"]
pub struct Posted<'a> {
    pending: Pending<'a>,
    what: GroupError,
}

impl Posted<'_> {
    /// Returns true if it was received, or staged, at all members that it is for, false if it goes on;
    /// never blocks.
    ///
    /// # Errors
    /// [`Group`](crate::Error::Group): it failed; the error says why and names the process that is the
    /// reason. [`QueueReset`](crate::Error::QueueReset): it was dropped.
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed)
    pub fn test(&mut self) -> Result<bool> {
        self.pending.core.progress_messages();
        let end = self.pending.look()?;
        end.map(|end| self.result(&end).map(drop)).transpose()?;
        Ok(end.is_some())
    }

    /// Waits until it has ended, or the time is over.
    ///
    /// # Errors
    /// Those of [`Posted::test`], and [`TimedOut`](crate::Error::TimedOut): it goes on.
    pub fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<()> {
        let deadline = self.pending.core.deadline(timeout.into());
        let end = self.pending.wait(deadline)?;
        self.result(&end).map(drop)
    }

    fn result(&self, end: &End) -> Result<CompletionEntry> {
        self.what.result(end)
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.pending.core.detach_request(self.pending.key);
    }
}

impl GroupError {
    /// The completion of an operation that has ended well.
    pub(super) fn result(&self, end: &End) -> Result<CompletionEntry> {
        match end.status(*self)? {
            (entry, Status::Ok) => Ok(entry),
            (entry, status) => Err(self.with(status, &entry).into()),
        }
    }
}
