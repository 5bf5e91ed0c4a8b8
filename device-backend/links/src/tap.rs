//! Taps: a tap records each frame on each link of its path (X5).
//!
//! A frame of this process is recorded where it enters each link, with what the link is
//! about to do to it; a frame of another process where it arrives (docs/capture.md).
//! A frame has one record for each link, and a second one if a partition drops it in
//! transit. Without taps all this costs one branch.

use std::fmt::Debug;

use bitflags::bitflags;
use qnic_abi::NodeId;
use qnic_nic::Time;

use crate::emulator::{LinkCounters, Verdict};
use crate::link_set::{Hop, LinkSet};

/// What becomes of a frame on a link. The numbers are those of captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// It passes.
    Passes = 0,
    /// Lost by chance.
    Lost = 1,
    /// Dropped by a partition.
    Cut = 2,
    /// Dropped: the queue is full.
    Overflowed = 3,
    /// Dropped: the destination does not run.
    Refused = 4,
    /// Recorded as passing before, and then dropped in transit by a partition.
    CutInTransit = 5,
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Passes => Outcome::Passes,
            Verdict::Lost => Outcome::Lost,
            Verdict::Cut => Outcome::Cut,
            Verdict::Overflowed => Outcome::Overflowed,
        }
    }
}

bitflags! {
    /// What else a link does to a frame. The bits are those of captures.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct TapFlags: u16 {
        /// It arrives twice.
        const DUPLICATED = 1;
        /// It is held back so that later frames overtake it.
        const REORDERED = 2;
        /// Bits of it, or of its copy, flip. The record shows it as it was before.
        const CORRUPTED = 4;
        /// It comes from another process.
        const FOREIGN = 8;
    }
}

impl TapFlags {
    /// What a link did between two readings of its counters.
    pub(crate) fn between(before: &LinkCounters, after: &LinkCounters) -> Self {
        let mut flags = TapFlags::empty();
        flags.set(TapFlags::DUPLICATED, after.duplicated > before.duplicated);
        flags.set(TapFlags::REORDERED, after.reordered > before.reordered);
        flags.set(TapFlags::CORRUPTED, after.corrupted > before.corrupted);
        flags
    }
}

/// A frame on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapRecord<'a> {
    /// When it entered the link, or arrived from another process.
    pub at: Time,
    /// Node where the link begins.
    pub from: NodeId,
    /// Node where the link ends.
    pub to: NodeId,
    /// What becomes of it.
    pub outcome: Outcome,
    /// What else the link does to it.
    pub flags: TapFlags,
    /// Header and payload; the header alone if the payload could not be read.
    pub bytes: &'a [u8],
    /// Length of header and payload in bytes.
    pub length: usize,
}

impl<'a> TapRecord<'a> {
    /// A frame whose `bytes` are complete, and which passes the link unchanged.
    pub(crate) fn passing(at: Time, (from, to): Hop, bytes: &'a [u8]) -> Self {
        TapRecord {
            at,
            from,
            to,
            outcome: Outcome::Passes,
            flags: TapFlags::empty(),
            bytes,
            length: bytes.len(),
        }
    }
}

/// Records frames. It runs on the engine thread, so it must neither block nor fail.
pub trait Tap: Debug + Send {
    /// Records a frame.
    fn record(&mut self, record: &TapRecord<'_>);
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

    /// Returns true if there is a tap.
    pub(crate) fn is_on(&self) -> bool {
        !self.taps.is_empty()
    }

    /// Gives a record to all taps of its link.
    pub(crate) fn record(&mut self, record: &TapRecord<'_>) {
        for (_, links, tap) in &mut self.taps {
            if links.contains(record.from, record.to) {
                tap.record(record);
            }
        }
    }
}
