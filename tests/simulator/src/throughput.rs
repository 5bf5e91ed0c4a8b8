//! How fast writes are in virtual time: a stream from one node to another, or from several
//! to one, through real NICs and driver cores, over wires that lose frames, take a fixed
//! time, and may have a rate.
//!
//! Every delay of the simulation is fixed, and the losses follow from a seed, so the
//! numbers are the same each time. They say nothing about a machine: no instruction
//! takes time. They show what window, acknowledgements, retransmissions and
//! congestion control cost.

use qnic_links::units::{Probability, Rate};
use qnic_links::Impairments;

use std::sync::{Arc, Mutex};

use qnic_abi::host_area::WRITABLE_PAGES;
use qnic_nic::Limits;

use crate::routes::Routes;
use crate::schedule::{lock, Schedule};
use crate::settings::{delay_only, Faults, Options, Settings};
use crate::workload::Workload;
use crate::workloads::rdma::stream::Stream;
use crate::workloads::rdma::Rdma;
use crate::world::World;

/// How long a frame takes from node to node, in nanoseconds.
pub const DELAY: u64 = 10_000;

/// Virtual time after which a stream counts as stuck, in nanoseconds.
const LIMIT: u64 = 1_000_000_000_000;

/// Streams of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Frames that are lost, in percent.
    pub loss: f64,
    /// Frames that a peer may have under way.
    pub window: u32,
    /// Bytes of each write.
    pub size: u64,
    /// Number of writes of each stream.
    pub writes: u32,
    /// Nodes that write to one more. They share the link to it.
    pub senders: usize,
    /// Rate of a link.
    pub rate: Option<Rate>,
}

/// What the streams were like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Virtual time of each stream from its first command to its last completion, in
    /// nanoseconds, the shortest first.
    pub times: Vec<u64>,
    /// Longest time that a frame was on a link, in nanoseconds.
    pub longest_transit: u64,
    /// Frames that the NICs have sent, to meet each other, too.
    pub frames: u64,
    /// How many of them for one more time.
    pub resent: u64,
}

/// Runs the streams.
///
/// # Panics
/// If it does not end, or a promise is broken.
pub fn measure(case: &Case) -> Measured {
    let wires = Impairments {
        loss: Probability::percent(case.loss),
        rate: case.rate,
        ..delay_only(DELAY)
    };
    let settings = settings(case, wires);
    let (routes, times) = (Routes::default(), Arc::<Mutex<Vec<u64>>>::default());
    let stream = Stream {
        size: case.size,
        times: times.clone(),
    };
    let rdma: Box<dyn Workload> = Box::new(Rdma::new(&settings, &routes, Some(stream)));
    let schedule = Schedule::new(1, None).steady();
    let mut world = World::with(settings, schedule, vec![rdma], routes);
    let (longest_transit, frames, resent) = world.run_undisturbed(LIMIT);
    let times = std::mem::take(&mut *lock(&times));
    Measured {
        times,
        longest_transit,
        frames,
        resent,
    }
}

/// Nodes with nothing but a stream of writes from each to the last.
fn settings(case: &Case, wires: Impairments) -> Settings {
    let nodes = case.senders + 1;
    let options = Options {
        nodes,
        operations: case.writes,
        faults: Faults::empty(),
        lossless: false,
        engines: false,
    };
    Settings {
        slots: (0..nodes).collect(),
        rdma_workers: nodes,
        frames: 96 + WRITABLE_PAGES as u64,
        limits: Limits {
            window: case.window,
            ..Limits::default()
        },
        poll: 200,
        think: 1,
        evict: 1,
        disk: 1,
        wires,
        shared_links: nodes > 2,
        wires_know: true,
        injected_faults: 0,
        ..Settings::new(&options, &mut fastrand::Rng::with_seed(1))
    }
}
