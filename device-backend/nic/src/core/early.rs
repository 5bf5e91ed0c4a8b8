//! Frames of peers that are to be received in order and came before others, as a wire has lost these.
//!
//! ```text
//!   frame ──► all before it here? ── yes, and none of its peer is kept ──► received by its protocol
//!                  │ no                                                        ▲
//!                  ▼                                                           │ a few a call,
//!                kept ──► the gap closes ──► due ──────────────────────────────┘ by turns
//! ```
//! # Invariants
//! - Those of a peer are received in the order of their numbers, and one that comes in order is kept behind those that
//!   are due.
//! - One of class Windowed has a place in its window. Of the others a peer has [`EARLY_CONTROLS`] at most.
//! - A call receives [`TURN`] of them at most: a peer that withholds one frame and then sends it has no more of the
//!   engine at once than by frames in order.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::BTreeSet;
use std::ops::Bound;

use super::Core;
use crate::frame::StoredFrame;
use crate::ids::PeerIndex;

/// Frames of a peer that came before others and have no place in a window, at most.
pub(super) const EARLY_CONTROLS: u32 = 256;

/// Frames that were kept and are received in one call, at most.
pub(crate) const TURN: usize = 64;

/// What is kept.
#[derive(Debug, Default)]
pub(crate) struct EarlyFrames {
    /// By peer and number.
    frames: BTreeMap<(PeerIndex, u64), Box<StoredFrame>>,
    /// How many of each peer have no place in a window.
    controls: BTreeMap<PeerIndex, u32>,
    /// Peers of which some are next, which a call has left.
    due: BTreeSet<PeerIndex>,
    /// The peer whose turn was last.
    last: PeerIndex,
}

impl Core {
    /// Returns true if another frame of a peer may be kept that has no place in a window.
    pub(crate) fn may_keep_early(&self, peer: PeerIndex) -> bool {
        let kept = self.early.controls.get(&peer);
        kept.is_none_or(|kept| *kept < EARLY_CONTROLS)
    }

    /// How many such frames are kept of each peer.
    pub(super) fn early_controls(&self) -> impl Iterator<Item = u32> + '_ {
        self.early.controls.values().copied()
    }

    /// Keeps a frame until all frames before it have come.
    pub(crate) fn keep_early(&mut self, stored: Box<StoredFrame>) {
        if stored.held.is_none() {
            let kept = self.early.controls.entry(stored.peer);
            *kept.or_default() += 1;
        }
        let name = (stored.peer, stored.frame.envelope.sequence.get());
        self.early.frames.insert(name, stored);
    }

    /// Returns true if any frame is kept so.
    #[inline]
    pub(crate) fn has_early(&self) -> bool {
        !self.early.frames.is_empty()
    }

    /// Takes out the first frame of a peer that is kept so, if its number is `received` at most.
    pub(crate) fn take_early(
        &mut self,
        peer: PeerIndex,
        received: u64,
    ) -> Option<Box<StoredFrame>> {
        let mut kept = self.early.frames.range((peer, 0)..=(peer, received));
        let name = *kept.next()?.0;
        let stored = self.early.frames.remove(&name)?;
        if let (None, Entry::Occupied(mut kept)) = (stored.held, self.early.controls.entry(peer)) {
            *kept.get_mut() -= 1;
            if *kept.get() == 0 {
                kept.remove();
            }
        }
        Some(stored)
    }

    /// A call has received what it may of a peer. Those up to `received` that are left are due.
    pub(crate) fn note_due(&mut self, peer: PeerIndex, received: u64) {
        let mut left = self.early.frames.range((peer, 0)..=(peer, received));
        match left.next() {
            Some(_) => self.early.due.insert(peer),
            None => self.early.due.remove(&peer),
        };
    }

    /// Returns true if frames of a peer are due.
    pub(crate) fn is_due(&self, peer: PeerIndex) -> bool {
        self.early.due.contains(&peer)
    }

    /// The next peer of which frames are due, by turns.
    pub(crate) fn next_due(&mut self) -> Option<PeerIndex> {
        let EarlyFrames { due, last, .. } = &mut self.early;
        let behind = due.range((Bound::Excluded(*last), Bound::Unbounded));
        let next = behind.chain(&*due).next().copied()?;
        *last = next;
        Some(next)
    }

    /// Returns true if frames of any peer are due.
    #[inline]
    pub(crate) fn has_due(&self) -> bool {
        !self.early.due.is_empty()
    }
}
