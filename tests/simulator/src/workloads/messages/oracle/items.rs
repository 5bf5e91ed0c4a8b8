//! Messages and receives, as their processes issue them.

use qnic_abi::Status;

use crate::expected_bytes::Range;

/// Where messages and receives meet: an endpoint, and whether it is its untagged space.
pub(crate) type Space = (u16, bool);

/// A message that was sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    /// Slots of the two processes.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) space: Space,
    pub(crate) tag: u64,
    pub(crate) length: u64,
    /// When it was issued, in nanoseconds.
    pub(crate) issued: u64,
    /// What its Send must end with.
    pub(crate) wrong: Option<Status>,
    /// The context that it goes by, and whether its end is told if all is well.
    pub(crate) context: Option<(usize, bool)>,
    /// The incarnation of the process that it is for; zero: of any.
    pub(crate) named: u32,
    /// Which incarnations the two processes were.
    pub(super) ends: (u32, u32),
    pub(super) disturbed: bool,
    /// What its Send has ended with.
    pub(super) sent: Option<Status>,
    /// A probe has claimed it.
    pub(super) claimed: bool,
    /// What the receive that has taken it has ended with; Truncated if it was discarded.
    pub(super) received: Option<Status>,
    /// When that was, in nanoseconds, and whether that receive went by a context.
    pub(super) gone: u64,
    pub(super) gone_by_context: bool,
}

impl Message {
    pub(crate) fn new((from, to): (usize, usize), space: Space, tag: u64, length: u64) -> Self {
        Message {
            from,
            to,
            space,
            tag,
            length,
            ..Message::default()
        }
    }

    /// Returns true if the two processes are the same as those of another message.
    pub(super) fn has_ends_of(&self, other: &Message) -> bool {
        (self.from, self.to, self.ends.0) == (other.from, other.to, other.ends.0)
    }

    /// Returns true if its Send was successful, and nothing excuses that it has not arrived.
    pub(super) fn is_owed(&self) -> bool {
        let sent = matches!(self.sent, Some(Status::Ok | Status::Truncated));
        sent && self.received.is_none() && !self.disturbed
    }
}

/// What a receive takes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pattern {
    /// Node and port, unless it takes messages of any process.
    pub(crate) source: Option<(u16, u16)>,
    /// That of the process there; zero: any.
    pub(crate) incarnation: u32,
    pub(crate) space: Space,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
}

impl Pattern {
    /// Returns true if it takes a message from the process of that node and port.
    pub(super) fn takes(&self, name: (u16, u16), message: &Message) -> bool {
        self.space == message.space
            && self.source.is_none_or(|source| source == name)
            && (self.incarnation == 0 || self.incarnation == message.ends.0)
            && (self.tag ^ message.tag) & !self.ignore == 0
    }
}

/// What is done with the message that a receive or a probe finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum How {
    /// A receive takes it.
    #[default]
    Receive,
    /// A receive takes this one, which was claimed.
    Claimed(u64),
    /// The same, and drops it.
    Dropped(u64),
    /// A probe leaves it where it is; true: it waits for one.
    Look(bool),
    Claim(bool),
    Discard(bool),
}

impl How {
    /// Returns true if it is a probe.
    pub(crate) fn probes(self) -> bool {
        matches!(self, How::Look(_) | How::Claim(_) | How::Discard(_))
    }

    /// Returns true if it is a probe that waits.
    pub(super) fn waits(self) -> bool {
        matches!(
            self,
            How::Look(true) | How::Claim(true) | How::Discard(true)
        )
    }

    /// The claimed message that it names.
    pub(super) fn claimed(self) -> Option<u64> {
        match self {
            How::Claimed(id) | How::Dropped(id) => Some(id),
            _ => None,
        }
    }

    /// Returns true if it takes messages out of the matching.
    pub(super) fn matches(self) -> bool {
        matches!(self, How::Receive | How::Claim(_) | How::Discard(_))
    }
}

/// A receive or a probe that was posted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Receive {
    pub(crate) handle: u64,
    pub(crate) pattern: Pattern,
    /// Start and length in the segment, or, behind it, in the pool.
    pub(crate) range: Range,
    pub(crate) many: bool,
    /// The context that it goes by.
    pub(crate) context: Option<usize>,
    pub(crate) how: How,
    pub(crate) issued: u64,
    /// What it must end with.
    pub(crate) wrong: Option<Status>,
    pub(super) disturbed: bool,
    pub(super) cancelled: bool,
    /// Number of the completion or doorbell with which it has left.
    pub(super) end: Option<u64>,
    /// When that was stored, in nanoseconds.
    pub(super) ended: u64,
    /// Messages that it has taken.
    pub(super) taken: Vec<Taken>,
}

/// A message that a receive has taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) id: u64,
    /// Start and length in the memory of the receive.
    pub(super) range: Range,
    /// Number of its completion or doorbell, and when that was stored.
    pub(super) completion: u64,
    pub(super) time: u64,
}

impl Receive {
    /// Returns true if it was posted at some time after a later one was issued, as far as can be
    /// known: a doorbell may be stored before a completion of the same poll.
    pub(super) fn was_posted_with(&self, later: &Receive) -> bool {
        self.end.is_none() || self.context.is_some() && self.ended >= later.issued
    }

    /// Returns true if it was posted by that time, and waits for a process of that node.
    pub(super) fn waits_for(&self, node: usize, since: u64) -> bool {
        let named = self
            .pattern
            .source
            .is_some_and(|it| usize::from(it.0) == node);
        named && self.end.is_none() && self.issued <= since && self.how.claimed().is_none()
    }

    pub(crate) fn new(handle: u64, pattern: Pattern, range: Range) -> Self {
        Receive {
            handle,
            pattern,
            range,
            ..Receive::default()
        }
    }
}
