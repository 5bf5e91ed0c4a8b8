//! Taps: they are shown each frame on each link that it takes (X5).
//!
//! ```text
//!   send ─► link ─────► link ─────► arrived        a frame of this process: where it
//!            │ see       │ see                     enters each link, with what the
//!            ▼           ▼                         link is about to do to it
//!   carrier ─► deliver                             a frame of another process: where
//!      │ see                                       it arrives
//! ```
//!
//! A frame is seen once on each link, and a second time if a partition cuts it while
//! it is under way. Without taps all this is one branch.

use std::fmt::Debug;

use bitflags::bitflags;
use qnic_abi::NodeId;
use qnic_nic::Time;

use crate::network::LinkSet;
use crate::stage::{Fate, StageCounters};

/// What becomes of a frame on a link. The numbers are those of captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// It passes.
    Passes = 0,
    /// Lost by chance.
    Lost = 1,
    /// Stopped by a partition.
    Cut = 2,
    /// Dropped: the queue is full.
    Overflowed = 3,
    /// There is nobody who takes it.
    Refused = 4,
    /// It was seen to pass before, and then stopped by a partition while under way.
    CutUnderWay = 5,
}

impl From<Fate> for Outcome {
    fn from(fate: Fate) -> Self {
        match fate {
            Fate::Passes => Outcome::Passes,
            Fate::Lost => Outcome::Lost,
            Fate::Cut => Outcome::Cut,
            Fate::Overflowed => Outcome::Overflowed,
        }
    }
}

bitflags! {
    /// What else a link does to a frame. The bits are those of captures.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Marks: u16 {
        /// It arrives twice.
        const DUPLICATED = 1;
        /// It is held back so that others overtake it.
        const HELD_BACK = 2;
        /// Bits of it, or of its copy, flip. It is shown as it was before.
        const CORRUPTED = 4;
        /// It comes from another process.
        const FOREIGN = 8;
    }
}

impl Marks {
    /// What a stage did between two looks at its counters.
    pub(crate) fn between(before: &StageCounters, after: &StageCounters) -> Self {
        let mut marks = Marks::empty();
        marks.set(Marks::DUPLICATED, after.duplicated > before.duplicated);
        marks.set(Marks::HELD_BACK, after.reordered > before.reordered);
        marks.set(Marks::CORRUPTED, after.corrupted > before.corrupted);
        marks
    }
}

/// A frame on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting<'a> {
    /// When it entered the link, or arrived from another process.
    pub at: Time,
    /// Where the link begins.
    pub from: NodeId,
    /// Where it ends.
    pub to: NodeId,
    /// What becomes of it.
    pub outcome: Outcome,
    /// What else is done to it.
    pub marks: Marks,
    /// Header and payload; the payload is missing if it could not be read.
    pub bytes: &'a [u8],
    /// Length of header and payload in bytes.
    pub length: usize,
}

/// Looks at frames. It runs on the engine thread: it must neither wait nor fail.
pub trait Tap: Debug + Send {
    /// Takes note of a frame.
    fn see(&mut self, sighting: &Sighting<'_>);
}

/// Names a tap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapId(u64);

/// All taps.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    taps: Vec<(TapId, LinkSet, Box<dyn Tap>)>,
    added: u64,
}

impl Taps {
    pub(crate) fn add(&mut self, links: LinkSet, tap: Box<dyn Tap>) -> TapId {
        let id = TapId(self.added);
        self.added += 1;
        self.taps.push((id, links, tap));
        id
    }

    pub(crate) fn remove(&mut self, id: TapId) {
        self.taps.retain(|tap| tap.0 != id);
    }

    /// Says whether there is one.
    pub(crate) fn is_on(&self) -> bool {
        !self.taps.is_empty()
    }

    /// Shows a frame to all that look at its link.
    pub(crate) fn see(&mut self, sighting: &Sighting<'_>) {
        for (_, links, tap) in &mut self.taps {
            if links.holds(sighting.from, sighting.to) {
                tap.see(sighting);
            }
        }
    }
}
