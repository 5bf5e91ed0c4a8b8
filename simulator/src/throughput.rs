//! How fast writes are in virtual time: a stream from one node to another, through two
//! real NICs and driver cores, over wires that lose frames and take a fixed time.
//!
//! Every delay of the simulation is fixed, and the losses follow from a seed, so the
//! numbers are the same each time. They say nothing about a machine: no instruction
//! takes time. They show what window, acknowledgements and retransmissions cost.

use qnic_links::units::Probability;
use qnic_links::Impairments;

use crate::schedule::Schedule;
use crate::settings::{delay_only, Settings};
use crate::world::World;

/// How long a frame takes from node to node, in nanoseconds.
pub const DELAY: u64 = 10_000;

/// Virtual time after which a stream counts as stuck, in nanoseconds.
const LIMIT: u64 = 1_000_000_000_000;

/// One stream.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Frames that are lost, in percent.
    pub loss: f64,
    /// Frames that a peer may have under way.
    pub window: u32,
    /// Bytes of each write.
    pub size: u64,
    /// Number of writes.
    pub writes: u32,
}

/// What a stream was like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Virtual time from the first command to the last completion, in nanoseconds.
    pub time: u64,
    /// Frames that both NICs have sent, to meet each other, too.
    pub frames: u64,
    /// How many of them for one more time.
    pub resent: u64,
}

/// Runs one stream.
///
/// # Panics
/// If it does not end, or a promise is broken.
pub fn measure(case: &Case) -> Measured {
    let wires = Impairments {
        loss: Probability::percent(case.loss),
        ..delay_only(DELAY)
    };
    let settings = Settings::stream(case.writes, case.size, case.window, wires);
    World::with(settings, Schedule::new(1, None).steady()).run_stream(LIMIT)
}
