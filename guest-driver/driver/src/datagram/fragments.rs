//! Incomplete messages of several packets (H3, H4).
//!
//! ```text
//!   packet ──► message by (node, port, sequence) ──┬─ all there ──► Whole
//!                        │                         ├─ not yet ────► kept
//!                        └── too old, too many ────┴─ nonsense ───► Dropped, and counted
//! ```
//! # Checks of a packet
//! All fragments of a message but the last have the same size: a power of two from
//! [`MIN_FRAGMENT`] to half of [`MAX_MESSAGE`], and there are [`MAX_FRAGMENTS`] at most. So the number
//! of a fragment tells its place. All of them carry the sender's header. A fragment that breaks these
//! rules, or contradicts an earlier one, drops the message: there is no way to tell
//! which fragment lies.
//!
//! # Bounds
//! A port keeps at most [`MAX_PARTIAL`] messages and a given number of fragments in its own buffers;
//! beyond that the oldest message is dropped. Each is dropped [`FRAGMENT_NS`] after its first fragment.

use alloc::collections::VecDeque;

use super::message::{Address, Header, MAX_MESSAGE};
use crate::platform::NoMemory;

/// Smallest fragment, in bytes, unless it is the last.
pub(super) const MIN_FRAGMENT: usize = 512;

/// Most fragments of a message: two pages in the smallest fragments, or a block of [`MAX_MESSAGE`] bytes
/// in fragments of half a page.
pub(super) const MAX_FRAGMENTS: usize = 16;

/// Most incomplete messages of a port.
pub(super) const MAX_PARTIAL: usize = 32;

/// How long fragments wait for the others, in nanoseconds.
pub(super) const FRAGMENT_NS: u64 = 1_000_000_000;

/// A packet of a message; `M` is the memory that its data is in.
pub(super) struct Fragment<M> {
    pub(super) from: Address,
    pub(super) sequence: u32,
    pub(super) number: u16,
    pub(super) last: bool,
    pub(super) header: Header,
    pub(super) length: usize,
    pub(super) memory: M,
    /// The memory is one of the port's own buffers.
    pub(super) own: bool,
}

/// The memory of fragments, by their numbers.
pub(super) type Parts<M> = [Option<M>; MAX_FRAGMENTS];

/// A complete message.
pub(super) struct Whole<M> {
    pub(super) from: Address,
    pub(super) header: Header,
    pub(super) parts: Parts<M>,
    /// Bytes of each fragment but the last.
    pub(super) size: usize,
    /// Bytes of all.
    pub(super) length: usize,
}

/// Why memory is given back without a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// This fragment was there already.
    Duplicate,
    /// It breaks the rules, or contradicts an earlier fragment.
    Malformed,
    /// It waited too long.
    Expired,
    /// There were too many other messages.
    Evicted,
}

/// The outcome of a fragment.
pub(super) enum Outcome<M> {
    Kept,
    Whole(Whole<M>),
    /// The memory of one or more fragments is given back.
    Dropped(Reason, Parts<M>),
}

struct Partial<M> {
    from: Address,
    sequence: u32,
    deadline_ns: u64,
    header: Header,
    /// Bytes of each fragment but the last, once one of these has come.
    size: Option<usize>,
    /// Number and length of the last, once it has come.
    last: Option<(usize, usize)>,
    parts: Parts<M>,
    count: usize,
    /// Fragments in own buffers.
    own: usize,
}

/// The incomplete messages of a port; the oldest first.
pub(super) struct Fragments<M> {
    partial: VecDeque<Partial<M>>,
    /// Fragments that are kept in own buffers, and their bound.
    kept: usize,
    limit: usize,
}

fn none<M>() -> Parts<M> {
    core::array::from_fn(|_| None)
}

fn one<M>(memory: M) -> Parts<M> {
    let mut parts = none();
    parts[0] = Some(memory);
    parts
}

impl<M> Fragments<M> {
    /// Keeps up to `limit` fragments in own buffers.
    pub(super) fn new(limit: usize) -> Result<Self, NoMemory> {
        let mut partial = VecDeque::new();
        partial.try_reserve_exact(MAX_PARTIAL)?;
        Ok(Fragments {
            partial,
            kept: 0,
            limit,
        })
    }

    /// Takes a fragment of a message that has others. If there is no room for it,
    /// [`Fragments::evict`] must be called first.
    pub(super) fn insert(&mut self, now_ns: u64, fragment: Fragment<M>) -> Outcome<M> {
        let number = usize::from(fragment.number);
        if number >= MAX_FRAGMENTS || fragment.length > MAX_MESSAGE {
            return Outcome::Dropped(Reason::Malformed, one(fragment.memory));
        }
        let key = (fragment.from, fragment.sequence);
        let mut place = self.partial.iter();
        let index = place
            .position(|partial| (partial.from, partial.sequence) == key)
            .unwrap_or_else(|| {
                self.partial.push_back(Partial::new(now_ns, &fragment));
                self.partial.len() - 1
            });
        let Some(partial) = self.partial.get_mut(index) else {
            return Outcome::Dropped(Reason::Malformed, one(fragment.memory));
        };
        let own = usize::from(fragment.own);
        match partial.take(fragment) {
            Ok(()) => self.kept += own,
            Err((Reason::Malformed, memory)) => {
                let mut parts = self.remove(index);
                // The place of this fragment is free, or another fragment has it and one is free.
                if let Some(free) = parts.iter_mut().find(|part| part.is_none()) {
                    *free = Some(memory);
                }
                return Outcome::Dropped(Reason::Malformed, parts);
            }
            Err((reason, memory)) => return Outcome::Dropped(reason, one(memory)),
        }
        match partial.whole() {
            None => Outcome::Kept,
            Some((size, length)) => Outcome::Whole(Whole {
                from: partial.from,
                header: partial.header,
                size,
                length,
                parts: self.remove(index),
            }),
        }
    }

    /// Gives the oldest message up if there is no room for another fragment.
    pub(super) fn evict(&mut self) -> Option<Parts<M>> {
        let full = self.partial.len() >= MAX_PARTIAL || self.kept >= self.limit;
        (full && !self.partial.is_empty()).then(|| self.remove(0))
    }

    /// Gives up a message whose time is over.
    pub(super) fn expire(&mut self, now_ns: u64) -> Option<Parts<M>> {
        let over = self.deadline().is_some_and(|deadline| deadline <= now_ns);
        over.then(|| self.remove(0))
    }

    /// Gives up the message that has a fragment in such memory.
    pub(super) fn take_where(&mut self, is_it: impl Fn(&M) -> bool) -> Option<Parts<M>> {
        let has = |partial: &Partial<M>| partial.parts.iter().flatten().any(&is_it);
        let index = self.partial.iter().position(has)?;
        Some(self.remove(index))
    }

    /// Gives any message up.
    pub(super) fn take_any(&mut self) -> Option<Parts<M>> {
        (!self.partial.is_empty()).then(|| self.remove(0))
    }

    /// When the next message is given up.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.partial.front().map(|partial| partial.deadline_ns)
    }

    fn remove(&mut self, index: usize) -> Parts<M> {
        match self.partial.remove(index) {
            Some(partial) => {
                self.kept -= partial.own;
                partial.parts
            }
            None => none(),
        }
    }
}

impl<M> Partial<M> {
    fn new(now_ns: u64, fragment: &Fragment<M>) -> Self {
        Partial {
            from: fragment.from,
            sequence: fragment.sequence,
            deadline_ns: now_ns.saturating_add(FRAGMENT_NS),
            header: fragment.header,
            size: None,
            last: None,
            parts: none(),
            count: 0,
            own: 0,
        }
    }

    /// Takes a fragment in, or returns the reason why not.
    fn take(&mut self, fragment: Fragment<M>) -> Result<(), (Reason, M)> {
        let (number, length) = (usize::from(fragment.number), fragment.length);
        let (size, last) = match fragment.last {
            true => (self.size, Some((number, length))),
            false => (Some(length), self.last),
        };
        let same = self.size.is_none_or(|known| Some(known) == size)
            && self.last.is_none_or(|known| Some(known) == last)
            && self.header == fragment.header;
        if !same || !fits(number, size, last, &self.parts) {
            return Err((Reason::Malformed, fragment.memory));
        }
        let Some(part) = self.parts.get_mut(number) else {
            return Err((Reason::Malformed, fragment.memory));
        };
        if part.is_some() {
            return Err((Reason::Duplicate, fragment.memory));
        }
        *part = Some(fragment.memory);
        self.count += 1;
        self.own += usize::from(fragment.own);
        (self.size, self.last) = (size, last);
        Ok(())
    }

    /// Size of its fragments and length of the message, if all are there.
    fn whole(&self) -> Option<(usize, usize)> {
        let (number, length) = self.last?;
        let size = self.size?;
        (self.count == number + 1).then_some((size, number * size + length))
    }
}

/// Returns true if a message can have such fragments.
fn fits<M>(
    number: usize,
    size: Option<usize>,
    last: Option<(usize, usize)>,
    parts: &Parts<M>,
) -> bool {
    let sizes = size.is_none_or(|size| size.is_power_of_two() && size >= MIN_FRAGMENT);
    let order = last.is_none_or(|(end, _)| {
        let behind = parts.get(end + 1..).unwrap_or(&[]);
        number <= end && behind.iter().all(Option::is_none)
    });
    let length = match (size, last) {
        (Some(size), Some((end, length))) => {
            length > 0 && length <= size && end * size + length <= MAX_MESSAGE
        }
        (Some(size), None) => (number + 1) * size < MAX_MESSAGE,
        (None, _) => true,
    };
    sizes && order && length
}

#[cfg(test)]
mod tests;
