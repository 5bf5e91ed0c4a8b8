//! What a simulation is made of: the options of its caller, and what a seed makes
//! of them.

use qnic_links::units::{Probability, Span};
use qnic_links::Impairments;
use qnic_nic::Limits;

/// Which faults happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Frames are lost.
    pub loss: bool,
    /// Frames take their time, now more, now less.
    pub delay: bool,
    /// Frames overtake each other.
    pub reorder: bool,
    /// Frames arrive twice.
    pub duplicate: bool,
    /// Frames are corrupted on their way.
    pub corrupt: bool,
    /// Ways between nodes are cut for a while, in one direction or both.
    pub partition: bool,
    /// Kernels take pages away.
    pub evict: bool,
    /// Processes are killed.
    pub kill: bool,
    /// Segments are revoked while transfers use them.
    pub revoke: bool,
    /// NICs are reset, as by a guest that reboots.
    pub reset: bool,
    /// Nodes lose their power, and most come back.
    pub crash: bool,
    /// Drivers and disks of single nodes are slow for a while.
    pub slow: bool,
}

impl Faults {
    /// Everything.
    pub const ALL: Faults = Faults {
        loss: true,
        delay: true,
        reorder: true,
        duplicate: true,
        corrupt: true,
        partition: true,
        evict: true,
        kill: true,
        revoke: true,
        reset: true,
        crash: true,
        slow: true,
    };

    /// Nothing.
    pub const NONE: Faults = Faults {
        loss: false,
        delay: false,
        reorder: false,
        duplicate: false,
        corrupt: false,
        partition: false,
        evict: false,
        kill: false,
        revoke: false,
        reset: false,
        crash: false,
        slow: false,
    };

    /// Names of all faults, as the command line has them.
    pub const NAMES: [&'static str; 12] = [
        "loss",
        "delay",
        "reorder",
        "duplicate",
        "corrupt",
        "partition",
        "evict",
        "kill",
        "revoke",
        "reset",
        "crash",
        "slow",
    ];

    /// The switch of a fault by its name.
    pub fn switch(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "loss" => &mut self.loss,
            "delay" => &mut self.delay,
            "reorder" => &mut self.reorder,
            "duplicate" => &mut self.duplicate,
            "corrupt" => &mut self.corrupt,
            "partition" => &mut self.partition,
            "evict" => &mut self.evict,
            "kill" => &mut self.kill,
            "revoke" => &mut self.revoke,
            "reset" => &mut self.reset,
            "crash" => &mut self.crash,
            "slow" => &mut self.slow,
            _ => return None,
        })
    }

    /// Names of the faults that happen.
    pub fn names(&self) -> Vec<&'static str> {
        let mut faults = *self;
        let on = |name: &&'static str| faults.switch(name).is_some_and(|switch| *switch);
        Self::NAMES.into_iter().filter(on).collect()
    }
}

/// What a simulation is made of, beside its seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Nodes, at least 2.
    pub nodes: usize,
    /// Transfers that each process issues.
    pub operations: u32,
    /// Which faults happen.
    pub faults: Faults,
    /// The wire is the one within a device process: frames arrive in order, once, with
    /// runs of pages in them. What wires do, and what no device process would hide
    /// from its NICs, does not happen: the first six faults, and crash.
    pub lossless: bool,
}

impl Options {
    /// Which faults happen on the wire that there is.
    pub(crate) fn possible_faults(&self) -> Faults {
        match self.lossless {
            false => self.faults,
            true => Faults {
                evict: self.faults.evict,
                kill: self.faults.kill,
                revoke: self.faults.revoke,
                reset: self.faults.reset,
                slow: self.faults.slow,
                ..Faults::NONE
            },
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            nodes: 4,
            operations: 80,
            faults: Faults::ALL,
            lossless: false,
        }
    }
}

/// What a seed makes of the options.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) options: Options,
    /// Node of each process, by slot: rdma_workers first, then workers.
    pub(crate) slots: Vec<usize>,
    /// How many of them are rdma_workers.
    pub(crate) rdma_workers: usize,
    /// Frames of memory of each node.
    pub(crate) frames: u64,
    pub(crate) limits: Limits,
    /// Longest time between two polls of a busy NIC, in nanoseconds.
    pub(crate) poll: u64,
    /// Longest time that a process thinks between two actions, in nanoseconds.
    pub(crate) think: u64,
    /// Longest time between two pages that a kernel takes away, in nanoseconds.
    pub(crate) evict: u64,
    /// Longest time to read a page from the disk, in nanoseconds.
    pub(crate) disk: u64,
    /// What the wires do.
    pub(crate) wires: Impairments,
    /// Wires know which nodes are down, as those within one host do.
    pub(crate) wires_know: bool,
    /// The RDMA worker in the first slot writes a stream of so many bytes each to the one
    /// in the second, and nothing else happens.
    pub(crate) stream: Option<u64>,
    /// Faults (kill, reset, crash, partition, slow) while the processes work.
    pub(crate) injected_faults: u64,
}

/// A wire that delays and does nothing else.
pub(crate) fn delay_only(delay: u64) -> Impairments {
    Impairments {
        delay: Span::nanoseconds(delay),
        ..Impairments::NONE
    }
}

impl Settings {
    /// Says whether the process at a slot is a worker: one that synchronizes with
    /// others.
    pub(crate) fn is_sync_worker(&self, slot: usize) -> bool {
        slot >= self.rdma_workers
    }

    pub(crate) fn new(options: &Options, random: &mut fastrand::Rng) -> Self {
        let faults = options.possible_faults();
        let mut slots: Vec<usize> = (0..options.nodes).collect();
        slots.extend((0..options.nodes).filter(|_| random.bool()));
        let rdma_workers = slots.len();
        // One worker less than nodes at least, so that most homes are remote.
        let without = random.usize(0..=options.nodes);
        slots.extend((0..options.nodes).filter(|node| *node != without));
        let percent = |random: &mut fastrand::Rng, on: bool, most: f64| {
            // Mostly little, sometimes much.
            let share = random.f64() * random.f64();
            Probability::percent(if on { share * most } else { 0.0 })
        };
        let delay = random.u64(500..20_000);
        let jitter = if faults.delay {
            random.u64(0..delay)
        } else {
            0
        };
        let wires = Impairments {
            loss: percent(random, faults.loss, 20.0),
            reorder: percent(random, faults.reorder, 20.0),
            duplicate: percent(random, faults.duplicate, 20.0),
            corrupt: percent(random, faults.corrupt, 20.0),
            jitter: Span::nanoseconds(jitter),
            ..delay_only(delay)
        };
        Settings {
            options: Options { faults, ..*options },
            slots,
            rdma_workers,
            frames: random.u64(56..168),
            limits: limits(random),
            poll: random.u64(300..4000),
            think: random.u64(2_000..200_000),
            evict: random.u64(20_000..600_000),
            disk: random.u64(2_000..500_000),
            wires,
            wires_know: random.bool() || options.lossless,
            injected_faults: random.u64(0..8),
            stream: None,
        }
    }

    /// Two nodes with nothing but a stream of writes from one to the other.
    pub(crate) fn stream(writes: u32, size: u64, window: u32, wires: Impairments) -> Self {
        Settings {
            options: Options {
                nodes: 2,
                operations: writes,
                faults: Faults::NONE,
                lossless: false,
            },
            slots: vec![0, 1],
            rdma_workers: 2,
            frames: 96,
            limits: Limits {
                window,
                ..Limits::default()
            },
            poll: 200,
            think: 1,
            evict: 1,
            disk: 1,
            wires,
            wires_know: true,
            injected_faults: 0,
            stream: Some(size),
        }
    }
}

/// Bounds of the NICs: small ones are reached. A peer is given up only after so many
/// retransmissions that chance alone does not lose them all.
fn limits(random: &mut fastrand::Rng) -> Limits {
    let floor = random.u64(30_000..300_000);
    Limits {
        operations: random.u32(1..=64),
        commands_per_poll: random.u32(1..=16),
        frames_per_poll: random.u32(1..=64),
        frames_per_write: random.u32(1..=16),
        requests_per_read: random.u32(1..=8),
        faults: random.u32(1..=16),
        window: random.u32(1..=32),
        retransmit_initial: floor * random.u64(1..10),
        retransmit_floor: floor,
        retransmit_floor_oldest: floor / 2,
        retransmit_ceiling: random.u64(1_000_000..5_000_000),
        acknowledge_after: random.u64(1_000..100_000),
        peer_timeout: random.u64(400_000_000..1_000_000_000),
        ..Limits::default()
    }
}
