//! What a simulation is made of: the options of its caller, and what a seed makes
//! of them.

use std::ops::Range;

use qnic_abi::host_area::{OPERATIONS, WRITABLE_PAGES};
use qnic_links::units::{Probability, Span};
use qnic_links::Impairments;
use qnic_nic::{Limits, Path};

/// Port of the process in a slot.
pub(crate) fn port(slot: usize) -> u16 {
    50 + slot as u16
}

bitflags::bitflags! {
    /// Which faults happen.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Faults: u16 {
        /// Frames are lost.
        const LOSS = 1 << 0;
        /// Frames take their time, now more, now less.
        const DELAY = 1 << 1;
        /// Frames overtake each other.
        const REORDER = 1 << 2;
        /// Frames arrive twice.
        const DUPLICATE = 1 << 3;
        /// Frames are corrupted by the wire.
        const CORRUPT = 1 << 4;
        /// Routes between nodes are cut for a while, in one direction or both.
        const PARTITION = 1 << 5;
        /// Kernels take pages away.
        const EVICT = 1 << 6;
        /// Pages cannot be brought in for a while.
        const UNAVAILABLE = 1 << 7;
        /// Processes are killed.
        const KILL = 1 << 8;
        /// Segments are revoked while transfers use them.
        const REVOKE = 1 << 9;
        /// NICs are reset, as by a guest that reboots.
        const RESET = 1 << 10;
        /// Nodes lose their power, and most come back.
        const CRASH = 1 << 11;
        /// Drivers and disks of single nodes are slow for a while.
        const SLOW = 1 << 12;
    }
}

impl Faults {
    /// What a wire does, and what no device process would hide from its NICs: none of
    /// these happens on a lossless wire.
    const LOSSY: Faults = Faults::LOSS
        .union(Faults::DELAY)
        .union(Faults::REORDER)
        .union(Faults::DUPLICATE)
        .union(Faults::CORRUPT)
        .union(Faults::PARTITION)
        .union(Faults::CRASH);

    /// The fault of that name, as the command line has it.
    pub fn named(name: &str) -> Option<Self> {
        Self::from_name(&name.to_ascii_uppercase())
    }

    /// Names of the faults that happen, separated by commas.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.iter_names().map(|(name, _)| name).collect();
        names.join(",").to_ascii_lowercase()
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
    /// spans of pages in them. The first six faults, and crash, do not happen.
    pub lossless: bool,
    /// On a lossless wire, each NIC has an engine of its own: frames arrive later, and lie in the
    /// pages of their senders until then.
    pub engines: bool,
}

impl Options {
    /// Which faults happen on the wire that there is.
    pub(crate) fn possible_faults(&self) -> Faults {
        match self.lossless {
            false => self.faults,
            true => self.faults - Faults::LOSSY,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            nodes: 4,
            operations: 80,
            faults: Faults::all(),
            lossless: false,
            engines: false,
        }
    }
}

/// What a seed makes of the options.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) options: Options,
    /// Node of each process, by slot: RDMA workers first, then the others.
    pub(crate) slots: Vec<usize>,
    /// How many of them are RDMA workers.
    pub(crate) rdma_workers: usize,
    /// The others are the drivers of their nodes for the NICs, one for a node.
    pub(crate) drivers: bool,
    /// The others stand on the datagrams of the driver core, which then is a process of its NIC; and
    /// each is to see that everything works again before processes end.
    pub(crate) engine: bool,
    /// The others have long pauses.
    pub(crate) pauses: bool,
    /// Frames of memory of each node.
    pub(crate) frames: u64,
    /// The last of them are for blocks of the driver's memory.
    pub(crate) block_frames: u64,
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
    /// Most bytes of payload in a frame on a wire that is not lossless.
    pub(crate) max_payload: u32,
    /// All wires to a node share one link.
    pub(crate) shared_links: bool,
    /// Wires know which nodes are down, as those within one host do.
    pub(crate) wires_know: bool,
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
    /// Returns true if an RDMA worker has a slot.
    pub(crate) fn is_rdma(&self, slot: usize) -> bool {
        slot < self.rdma_workers
    }

    /// Slots of the others.
    pub(crate) fn others(&self) -> Range<usize> {
        self.rdma_workers..self.slots.len()
    }

    /// Port of the process of a node that its NIC takes for the driver.
    pub(crate) fn driver_port(&self, node: usize) -> Option<u16> {
        let mut others = self.others().filter(|_| self.drivers);
        Some(port(others.find(|slot| self.slots[*slot] == node)?))
    }

    /// Leaves one RDMA worker to each node; those behind them are others.
    pub(crate) fn keep_one_rdma_worker(&mut self) {
        self.rdma_workers = self.options.nodes;
    }

    /// Gives each node one RDMA worker and one other, on datagrams of the driver core.
    pub(crate) fn use_engine(&mut self) {
        self.keep_one_rdma_worker();
        let nodes = self.options.nodes;
        self.slots.truncate(nodes);
        self.slots.extend(0..nodes);
        self.engine = true;
        self.pauses = true;
    }

    /// Within which time faults are injected, in nanoseconds.
    pub(crate) fn faulty_time(&self) -> u64 {
        match self.pauses {
            true => 1_000_000_000,
            false => self.think * u64::from(self.options.operations),
        }
    }

    /// What a seed makes of the options, before a workload ([`crate::workloads`]) changes it.
    pub(crate) fn new(options: &Options, random: &mut fastrand::Rng) -> Self {
        let faults = options.possible_faults();
        let mut slots: Vec<usize> = (0..options.nodes).collect();
        slots.extend((0..options.nodes).filter(|_| random.bool()));
        let rdma_workers = slots.len();
        // One sync worker less than nodes at least, so that most objects are remote.
        let without = random.usize(0..=options.nodes);
        slots.extend((0..options.nodes).filter(|node| *node != without));
        let percent = |random: &mut fastrand::Rng, on: bool, most: f64| {
            // Mostly little, sometimes much.
            let share = random.f64() * random.f64();
            Probability::percent(if on { share * most } else { 0.0 })
        };
        let delay = random.u64(500..20_000);
        let jitter = match faults.contains(Faults::DELAY) {
            true => random.u64(0..delay),
            false => 0,
        };
        let wires = Impairments {
            loss: percent(random, faults.contains(Faults::LOSS), 20.0),
            reorder: percent(random, faults.contains(Faults::REORDER), 20.0),
            duplicate: percent(random, faults.contains(Faults::DUPLICATE), 20.0),
            corrupt: percent(random, faults.contains(Faults::CORRUPT), 20.0),
            jitter: Span::nanoseconds(jitter),
            ..delay_only(delay)
        };
        // Frames that the pools of processes take are not missing elsewhere.
        let on = |node: usize| slots.iter().filter(|slot| **slot == node).count();
        let most = (0..options.nodes).map(on).max().unwrap_or(0);
        let pools = (most * WRITABLE_PAGES) as u64;
        Settings {
            options: Options { faults, ..*options },
            slots,
            rdma_workers,
            drivers: false,
            engine: false,
            pauses: false,
            frames: random.u64(56..168) + pools,
            block_frames: 0,
            limits: limits(random),
            poll: random.u64(300..4000),
            think: random.u64(2_000..200_000),
            evict: random.u64(20_000..600_000),
            disk: random.u64(2_000..500_000),
            wires,
            max_payload: Path::UNKNOWN.max_payload,
            shared_links: false,
            wires_know: (random.bool() || options.lossless) && !options.engines,
            injected_faults: random.u64(0..8),
        }
    }
}

/// Bounds of the NICs: small ones are reached. A peer is given up only after so many
/// retransmissions that chance alone does not lose them all.
fn limits(random: &mut fastrand::Rng) -> Limits {
    let floor = random.u64(30_000..300_000);
    // Half of the clusters run as many at once as their processes have, so that none of these waits
    // for others.
    let few = random.u32(1..=64);
    Limits {
        operations: if few % 2 == 0 { OPERATIONS } else { few },
        commands_per_poll: random.u32(1..=16),
        fragments_per_poll: random.u32(1..=64),
        fragments_per_write: random.u32(1..=16),
        requests_per_read: random.u32(1..=8),
        faults: random.u32(1..=16),
        window: random.u32(1..=32),
        // Windows are shared, and peers leave, in most runs.
        peers: 16,
        held_frames: random.u32(256..=400),
        idle_peer: random.u64(1_000_000..50_000_000),
        retransmit_initial: floor * random.u64(1..10),
        retransmit_floor: floor,
        retransmit_floor_oldest: floor / 2,
        retransmit_ceiling: random.u64(1_000_000..5_000_000),
        ack_delay: random.u64(1_000..100_000),
        peer_timeout: random.u64(400_000_000..1_000_000_000),
        ..Limits::default()
    }
}
