//! What a simulation is made of: the options of its caller, and what a seed makes
//! of them.

use qnic_abi::host_area::WRITABLE_PAGES;
use qnic_links::units::{Probability, Span};
use qnic_links::Impairments;
use qnic_nic::{Limits, Path};

use crate::process::port;
use crate::throughput::Case;
use crate::workloads::datagrams::FRAMES as DATAGRAM_FRAMES;
use crate::workloads::memory::FRAMES as MEMORY_FRAMES;
use crate::workloads::streams::{BLOCK_FRAMES, FRAMES as STREAM_FRAMES};

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

/// What processes are that are no RDMA workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// They use locks, semaphores, wait queues and monitors.
    Sync,
    /// They send and receive messages.
    Messages,
    /// They form groups, and take part in collectives.
    Groups,
    /// They give themselves names, and look up those of others.
    Names,
    /// They send and receive datagrams, as drivers do.
    Datagrams,
    /// They are kernel modules that give memory to others, or use that of others.
    Memory,
    /// They send and receive streams over shared pools.
    Streams,
}

impl Others {
    /// They stand on the datagrams of the driver core, which then is a process of its NIC.
    pub(crate) fn use_engine(self) -> bool {
        matches!(self, Others::Memory | Others::Streams)
    }
}

/// What remote memory is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Volumes {
    /// On how many servers each block is kept.
    pub(crate) replicas: usize,
    /// No more servers are lost at a time than a volume can do without, so no request may fail.
    pub(crate) careful: bool,
    /// All its times are so many times as long: those of volumes on routes that take long.
    pub(crate) times: u64,
}

impl Volumes {
    /// There is none.
    const NONE: Volumes = Volumes {
        replicas: 0,
        careful: false,
        times: 1,
    };
}

/// How long a frame takes on a route that is long, in nanoseconds.
const LONG_ROUTE: u64 = 10_000_000;

/// What a seed makes of the options.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) options: Options,
    /// Node of each process, by slot: RDMA workers first, then the others.
    pub(crate) slots: Vec<usize>,
    /// How many of them are RDMA workers.
    pub(crate) rdma_workers: usize,
    /// What the others are.
    pub(crate) others: Others,
    /// What remote memory is like, if there is any.
    pub(crate) memory: Volumes,
    /// Message workers post probes, too.
    pub(crate) probes: bool,
    /// Message workers use contexts, too.
    pub(crate) contexts: bool,
    /// Some message workers end behind messages that they have just sent.
    pub(crate) abrupt: bool,
    /// Sync workers that were woken go on late, sometimes.
    pub(crate) late: bool,
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
    /// Wires know which nodes are down, as those within one host do.
    pub(crate) wires_know: bool,
    /// The RDMA workers in all slots but the last write streams to the one in that, and
    /// nothing else happens: bytes of each write.
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
    /// What the processes in a slot are, unless they are RDMA workers.
    pub(crate) fn others_in(&self, slot: usize) -> Option<Others> {
        (slot >= self.rdma_workers).then_some(self.others)
    }

    /// Port of the process of a node that its NIC takes for the driver.
    pub(crate) fn driver_port(&self, node: usize) -> Option<u16> {
        let mut slots = (self.rdma_workers..).zip(self.slots_of(Others::Datagrams));
        let slot = slots.find(|(_, of)| **of == node)?.0;
        Some(port(slot))
    }

    /// Nodes of the slots of such workers: none if this simulation has others.
    pub(crate) fn slots_of(&self, others: Others) -> &[usize] {
        match self.others == others {
            true => &self.slots[self.rdma_workers..],
            false => &[],
        }
    }

    /// What a seed makes of the options. Two of seven have message workers, one of seven has
    /// collective workers, and one of seven name workers, in the place of sync workers, and of all
    /// RDMA workers of a node but one. One of 28 has datagram workers in the place of sync workers,
    /// of which a node has one; one of 28 has servers and clients of remote memory, and one of 28
    /// stream workers.
    pub(crate) fn new(options: &Options, seed: u64, random: &mut fastrand::Rng) -> Self {
        let mut settings = Self::with_sync_workers(options, random);
        let mut random = fastrand::Rng::with_seed(!seed);
        settings.others = match seed % 7 {
            0 | 6 => Others::Messages,
            5 => Others::Groups,
            4 => Others::Names,
            _ if seed % 28 == 3 => Others::Datagrams,
            _ if seed % 28 == 10 => Others::Memory,
            _ if seed % 28 == 17 => Others::Streams,
            _ => {
                settings.late = seed % 4 == 1;
                return settings;
            }
        };
        if settings.others != Others::Datagrams {
            settings.rdma_workers = options.nodes;
        }
        settings.probes = seed % 7 == 6;
        settings.contexts = seed % 14 >= 7;
        match settings.others {
            Others::Groups => limit_groups(&mut settings.limits, &mut random),
            Others::Names => limit_names(&mut settings.limits, &mut random),
            Others::Datagrams => {
                settings.frames += DATAGRAM_FRAMES;
                limit_datagrams(&mut settings.limits, &mut random);
            }
            Others::Memory => settings.add_remote_memory(seed % 56 == 10, &mut random),
            Others::Streams => settings.add_streams(&mut random),
            _ => {
                limit_messages(&mut settings.limits, &mut random);
                settings.abrupt = random.bool();
            }
        }
        settings
    }

    /// A server on each node; one client if nothing may be lost, else two.
    fn add_remote_memory(&mut self, careful: bool, random: &mut fastrand::Rng) {
        let nodes = self.options.nodes;
        self.slots.truncate(nodes);
        self.slots.extend(0..nodes);
        self.slots.extend(0..if careful { 1 } else { 2 });
        let least = if careful { 2 } else { 1 };
        let most = (nodes - 1).min(3);
        self.memory = Volumes {
            replicas: random.usize(least.min(most)..=most),
            careful,
            times: 1,
        };
        if careful {
            self.injected_faults = 0;
        }
        if random.bool() {
            self.narrow_routes(random);
        }
        self.frames += MEMORY_FRAMES;
        limit_engine(&mut self.limits, random);
        if self.options.faults.contains(Faults::DELAY) && random.bool() {
            self.lengthen_routes(random);
        }
    }

    /// Each frame takes ten milliseconds: longer than a client waits for a near server. NICs and clients
    /// have times for such routes.
    fn lengthen_routes(&mut self, random: &mut fastrand::Rng) {
        self.memory.times = 4;
        self.wires.delay = Span::nanoseconds(LONG_ROUTE);
        self.wires.jitter = Span::nanoseconds(random.u64(0..LONG_ROUTE / 5));
        self.limits.retransmit_initial = 4 * LONG_ROUTE;
        self.limits.retransmit_ceiling = 4 * LONG_ROUTE;
        self.limits.idle_peer += 4 * LONG_ROUTE;
    }

    /// Pages come in two packets, or in four. A message is lost with any of these, so few are lost: a
    /// server that answers is not to be taken for one that does not.
    fn narrow_routes(&mut self, random: &mut fastrand::Rng) {
        self.max_payload = if random.bool() { 2048 } else { 1400 };
        let seldom = |share: Probability| Probability::percent(share.get() * 30.0);
        self.wires.loss = seldom(self.wires.loss);
        self.wires.corrupt = seldom(self.wires.corrupt);
    }

    /// A stream worker on each node.
    fn add_streams(&mut self, random: &mut fastrand::Rng) {
        self.slots.truncate(self.options.nodes);
        self.slots.extend(0..self.options.nodes);
        self.block_frames = BLOCK_FRAMES;
        self.frames += STREAM_FRAMES + BLOCK_FRAMES;
        limit_engine(&mut self.limits, random);
    }

    /// Within which time faults are injected, in nanoseconds.
    pub(crate) fn faulty_time(&self) -> u64 {
        match self.others {
            // They have long pauses.
            Others::Names | Others::Memory | Others::Streams => 1_000_000_000,
            _ => self.think * u64::from(self.options.operations),
        }
    }

    fn with_sync_workers(options: &Options, random: &mut fastrand::Rng) -> Self {
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
            others: Others::Sync,
            memory: Volumes::NONE,
            probes: false,
            contexts: false,
            abrupt: false,
            late: false,
            frames: random.u64(56..168) + pools,
            block_frames: 0,
            limits: limits(random),
            poll: random.u64(300..4000),
            think: random.u64(2_000..200_000),
            evict: random.u64(20_000..600_000),
            disk: random.u64(2_000..500_000),
            wires,
            max_payload: Path::UNKNOWN.max_payload,
            wires_know: (random.bool() || options.lossless) && !options.engines,
            injected_faults: random.u64(0..8),
            stream: None,
        }
    }

    /// Nodes with nothing but a stream of writes from each to the last.
    pub(crate) fn streams(case: &Case, wires: Impairments) -> Self {
        let nodes = case.senders + 1;
        Settings {
            options: Options {
                nodes,
                operations: case.writes,
                faults: Faults::empty(),
                lossless: false,
                engines: false,
            },
            slots: (0..nodes).collect(),
            rdma_workers: nodes,
            others: Others::Sync,
            memory: Volumes::NONE,
            probes: false,
            contexts: false,
            abrupt: false,
            late: false,
            frames: 96 + WRITABLE_PAGES as u64,
            block_frames: 0,
            limits: Limits {
                window: case.window,
                ..Limits::default()
            },
            poll: 200,
            think: 1,
            evict: 1,
            disk: 1,
            wires,
            max_payload: Path::UNKNOWN.max_payload,
            wires_know: true,
            injected_faults: 0,
            stream: Some(case.size),
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

/// Bounds for messages, small ones most of the time. A process that sends has to leave a
/// place for another message, or its queue stands still.
fn limit_messages(limits: &mut Limits, random: &mut fastrand::Rng) {
    limits.sends = limits.operations.max(3);
    limits.completions = random.u32(1..=32);
    if random.bool() {
        limits.staged_bytes = random.u32(300..30_000);
    }
    if random.bool() {
        limits.staged_bytes_per_peer = random.u32(300..60_000);
    }
    if random.u8(..) < 64 {
        limits.receives = random.u32(12..=40);
        limits.masks = random.u32(3..=8);
    }
    if random.u8(..) < 32 {
        limits.unexpected = random.u32(8..=40);
        limits.envelopes_per_peer = random.u32(8..=40);
    }
}

/// Bounds for groups, small ones some of the time.
fn limit_groups(limits: &mut Limits, random: &mut fastrand::Rng) {
    limits.completions = random.u32(1..=32);
    limits.collectives = random.u32(1..=12);
    if random.bool() {
        limits.groups = random.u32(2..=4);
    }
    if random.u8(..) < 32 {
        limits.group_bytes = random.u32(10_000..200_000);
    }
}

/// Bounds for names, small ones some of the time.
fn limit_names(limits: &mut Limits, random: &mut fastrand::Rng) {
    limits.completions = random.u32(1..=32);
    if random.bool() {
        limits.names_of_process = random.u32(1..=6);
    }
    if random.u8(..) < 96 {
        limits.names = random.u32(2..=8);
    }
    if random.bool() {
        limits.lookups = random.u32(1..=8);
    }
}

/// Bounds for datagrams, small ones some of the time. There are buffers for each port.
fn limit_datagrams(limits: &mut Limits, random: &mut fastrand::Rng) {
    limits.completions = random.u32(1..=32);
    limits.sends = random.u32(1..=16);
    if random.bool() {
        limits.datagram_buffers = random.u32(4..=12);
    }
}

/// Bounds for the datagrams of the driver core. Those of packets under way are not small: the driver
/// relies on a NIC that takes all that it has slots for, and leaves none of these to a node alone.
fn limit_engine(limits: &mut Limits, random: &mut fastrand::Rng) {
    limits.completions = random.u32(1..=32);
}
