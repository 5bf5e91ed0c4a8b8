//! What every protocol stands on. The core knows no opcode and no kind of frame, and
//! owns no peer.
//!
//! | module | holds |
//! |---|---|
//! | `queue`, `awake` | command queues of processes, and how often each is looked at (Q2, N12, P9) |
//! | `operation`, `turns` | commands that run, and which of a process sends next (Q10, U6) |
//! | `lanes`, `order` | the orders in which they count as complete (N12) |
//! | `scheduler` | which process has the next turn to send (Q10) |
//! | `completion`, `completion_queue` | completion counters and entries, and waking processes (N12, N17) |
//! | `host_area`, `host_pages`, `notification` | what a process sees of all this (N16) |
//! | `process`, `segment` | registered processes, what they export, and to which others (N1, N2) |
//! | [`page_table`], `lookup_side`, `pages` | lockPage, unlockPage, unlockPageDirty; page spans; how transfers are cut (N4, N6, N7) |
//! | `early` | frames that came before others |
//! | `fault` | page faults, what waits for them, and bounce memory (N13 to N15) |
//! | `events`, `sampling`, `tracing`, `describe` | what the driver and people are told |

mod awake;
mod completion;
mod completion_queue;
mod describe;
mod early;
mod events;
mod fault;
mod host_area;
mod host_pages;
mod lanes;
mod lookup_side;
mod notification;
mod operation;
mod order;
pub mod page_table;
mod pages;
mod process;
mod queue;
mod sampling;
mod scheduler;
mod segment;
mod tracing;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use qnic_abi::control::REPLY_BYTES;
use qnic_abi::header::{Geometry, GeometryError, SEGMENTS_BEYOND, SEGMENTS_PER_PROCESS};
use qnic_abi::window::Changes;
use qnic_abi::{NodeId, Port, Status, VniId};

use crate::budget::Budget;
use crate::config::{Limits, NicConfig};
use crate::counters::Counters;
use crate::env::{Host, Time};
use crate::ids::{OperationId, PeerIndex, ProtocolId};

use awake::AwakeQueues;
use early::{EarlyFrames, EARLY_CONTROLS};
use events::EventQueue;
use fault::BounceMemory;
use pages::Kept;
use sampling::Sampler;
pub(crate) use tracing::Subject;
use tracing::Tracing;

pub(crate) use early::TURN;
pub(crate) use events::Pending;
pub(crate) use fault::{Fault, PageRange, Waiter};
pub(crate) use host_area::HostArea;
pub(crate) use lookup_side::LookupSide;
pub(crate) use operation::{Operation, Tally, CHUNK, OPERATION_SLOTS, SEND_SLOTS};
pub(crate) use order::Counter;
pub(crate) use pages::{to_border, Fragment};
pub(crate) use pages::{Destination, LockedSpan, PageError};
pub(crate) use process::PerProcess;
pub(crate) use process::Process;
pub(crate) use queue::{Fetched, INLINE_WORDS};
pub(crate) use sampling::Described;
pub(crate) use scheduler::{Owner, Work};
pub(crate) use segment::LocalMemory;
pub(crate) use segment::Permissions;
pub(crate) use segment::{PageKey, Segment};

/// The core of one NIC.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) limits: Limits,
    pub(crate) geometry: Geometry,
    /// [`NicConfig::routes`].
    pub(crate) routes: BTreeMap<NodeId, NodeId>,
    /// [`NicConfig::nodes`].
    pub(crate) nodes: Vec<NodeId>,
    doorbells: u32,
    /// By VNI.
    processes: Vec<Option<Box<Process>>>,
    /// VNI + 1 by port, or 0.
    ports: Vec<u16>,
    /// Owners of turns with something to send, in the order of their turns (Q10).
    scheduled: VecDeque<Owner>,
    /// Command queues that are looked at.
    awake: AwakeQueues,
    /// VNIs with completions to write back.
    dirty: Vec<VniId>,
    /// VNIs with completions that wait for room in their queues.
    completions_waiting: Vec<VniId>,
    /// Bit *d* modulo 64: doorbell *d* was rung.
    rung: u64,
    /// The command that was begun last has looked through all operations of its process: no other
    /// one of that process is read in this poll.
    pub(crate) was_long: bool,
    /// Commands started since the NIC was made: names operations apart.
    running_number: u64,
    /// Page faults since the NIC was made: names them apart.
    faults_made: u64,
    pub(crate) events: EventQueue,
    /// Late replies to the driver, with the token of their request.
    pub(crate) replies: VecDeque<(u64, [u8; REPLY_BYTES])>,
    /// When the first fault is given up, or an earlier time; the past if one has no
    /// deadline yet.
    pub(crate) fault_deadline: Option<Time>,
    pub(crate) bounce: BounceMemory,
    early: EarlyFrames,
    /// Pages of frames that a wire has kept.
    kept: Kept,
    pub(crate) counters: Counters,
    pub(crate) sampler: Sampler,
    pub(crate) tracing: Tracing,
    /// How often all operations were looked through.
    #[cfg(test)]
    pub(crate) searches: u64,
}

impl Core {
    /// A core without processes.
    ///
    /// # Errors
    /// [`GeometryError`] if no SRAM can be laid out for these numbers.
    pub(crate) fn new(config: &NicConfig) -> Result<Self, GeometryError> {
        let geometry = Geometry::new(config.node, config.frames, config.windows, config.doorbells)?
            .with_counts(config.limits.counts)?;
        let mut core = Core {
            limits: config.limits.clone(),
            geometry,
            routes: config.routes.clone(),
            nodes: config.nodes.clone(),
            doorbells: config.doorbells,
            processes: Vec::new(),
            ports: Vec::new(),
            scheduled: VecDeque::new(),
            awake: AwakeQueues::default(),
            dirty: Vec::new(),
            completions_waiting: Vec::new(),
            rung: 0,
            was_long: false,
            running_number: 0,
            faults_made: 0,
            events: EventQueue::default(),
            replies: VecDeque::new(),
            fault_deadline: None,
            bounce: BounceMemory::default(),
            early: EarlyFrames::default(),
            kept: Kept::default(),
            counters: Counters::default(),
            sampler: Sampler::new(),
            tracing: Tracing::default(),
            #[cfg(test)]
            searches: 0,
        };
        core.clear();
        Ok(core)
    }

    /// Forgets everything but what must never repeat.
    pub(crate) fn clear(&mut self) {
        self.processes.clear();
        let windows = self.geometry.windows as usize;
        self.processes.resize_with(windows, || None);
        self.ports.clear();
        self.scheduled.clear();
        self.awake = AwakeQueues::default();
        self.dirty.clear();
        self.completions_waiting.clear();
        self.rung = 0;
        self.events = EventQueue::default();
        self.replies.clear();
        self.fault_deadline = None;
        self.bounce = BounceMemory::default();
        self.early = EarlyFrames::default();
        // The caller has recalled them, or clears the SRAM.
        self.kept = Kept::default();
        self.counters = Counters::default();
        self.sampler.clear();
    }

    /// The process of a VNI.
    #[inline]
    pub(crate) fn process(&self, vni: VniId) -> Option<&Process> {
        self.processes.get(usize::from(vni.0))?.as_deref()
    }

    /// The process of a VNI.
    #[inline]
    pub(crate) fn process_mut(&mut self, vni: VniId) -> Option<&mut Process> {
        self.processes.get_mut(usize::from(vni.0))?.as_deref_mut()
    }

    /// Every registered process.
    pub(crate) fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        self.processes
            .iter_mut()
            .flatten()
            .map(|process| &mut **process)
    }

    /// The VNI whose process holds a port.
    #[inline]
    pub(crate) fn vni_of(&self, port: Port) -> Option<VniId> {
        let entry = self.ports.get(usize::from(port.0))?.checked_sub(1)?;
        Some(VniId(entry))
    }

    /// The process on a port, for a frame that names it.
    #[inline]
    pub(crate) fn process_on(&self, port: u16) -> Result<(VniId, &Process), Status> {
        let vni = self.vni_of(Port(port)).ok_or(Status::NoSuchPort)?;
        let process = self.process(vni).ok_or(Status::NoSuchPort)?;
        Ok((vni, process))
    }

    /// Checks that a VNI and a port are free.
    ///
    /// # Errors
    /// Why no process can be registered there.
    pub(crate) fn check_free(&self, vni: VniId, port: Port) -> Result<(), Status> {
        match self.processes.get(usize::from(vni.0)) {
            None => Err(Status::NoSuchVni),
            Some(Some(_)) => Err(Status::VniInUse),
            Some(None) if self.vni_of(port).is_some() => Err(Status::PortInUse),
            Some(None) => Ok(()),
        }
    }

    /// Registers a process on a VNI and a port that are free.
    pub(crate) fn insert(&mut self, vni: VniId, process: Process) {
        let port = usize::from(process.port.0);
        if port >= self.ports.len() {
            self.ports.resize(port + 1, 0);
        }
        self.ports[port] = vni.0 + 1;
        self.processes[usize::from(vni.0)] = Some(Box::new(process));
    }

    /// Takes a process out; nothing of it is polled, scheduled or reported any more.
    pub(crate) fn remove(&mut self, vni: VniId) -> Option<Box<Process>> {
        self.forget_awake(vni);
        let process = self.processes.get_mut(usize::from(vni.0))?.take()?;
        self.ports[usize::from(process.port.0)] = 0;
        self.scheduled.retain(|other| *other != Owner::Process(vni));
        self.dirty.retain(|other| *other != vni);
        self.completions_waiting.retain(|other| *other != vni);
        self.events.retain(|event| event.vni() != Some(vni));
        Some(process)
    }

    /// The operation of that name, if it still runs.
    #[inline]
    pub(crate) fn operation(&mut self, id: OperationId) -> Option<&mut Operation> {
        self.process_mut(id.vni())?.operations.find(id)
    }

    /// The operation of that name, if it still runs, is of that protocol, and that peer is
    /// its other end: a peer names what it likes.
    #[inline]
    pub(crate) fn operation_with(
        &mut self,
        id: OperationId,
        protocol: ProtocolId,
        peer: PeerIndex,
    ) -> Option<&mut Operation> {
        self.operation(id)
            .filter(|operation| operation.protocol == protocol && operation.peer == peer)
    }

    /// Returns true if a running operation has that peer as its other end.
    pub(crate) fn has_operation_with(&mut self, peer: PeerIndex) -> bool {
        self.count_search();
        let mut peers = self.processes().flat_map(|it| it.operations.peers());
        peers.any(|other| other == peer)
    }

    /// The other ends of all running operations.
    pub(crate) fn peers_with_operations(&mut self) -> BTreeSet<PeerIndex> {
        self.count_search();
        let peers = self.processes().flat_map(|it| it.operations.peers());
        peers.collect()
    }

    /// Notes for tests that all operations are looked through.
    fn count_search(&mut self) {
        #[cfg(test)]
        {
            self.searches += 1;
        }
    }

    /// Operations that run and whose other end is that peer, or one process there.
    pub(crate) fn operations_with(
        &mut self,
        peer: PeerIndex,
        port: Option<Port>,
    ) -> Vec<OperationId> {
        let concerned = self
            .processes()
            .flat_map(|process| process.operations.running_with(peer, port));
        concerned.map(|operation| operation.id).collect()
    }

    /// Starts the command queue of a process again, without operations.
    pub(crate) fn restart_queue<H: Host>(&mut self, host: &H, vni: VniId) {
        let window = self.geometry.window_offset(vni);
        self.forget_queue(vni);
        if let Some(process) = self.process_mut(vni) {
            let aborted = process.restart_queue(host.memory(), window);
            self.counters.aborted += u64::from(aborted);
        }
    }

    /// What the core holds and has counted.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.counters.clone();
        for process in self.processes.iter().flatten() {
            counters.processes += 1;
            counters.segments += u64::from(process.segments.count());
            counters.operations += u64::from(process.operations.count());
            counters.faults_pending += u64::from(process.faults.count());
        }
        counters.frames_held = self.bounce.frames.into();
        counters.bounces = self.bounce.total;
        counters.bytes_bounced = self.bounce.total_bytes;
        counters.bounce_bytes = self.bounce.bytes;
        counters.bounce_bytes_peak = self.bounce.peak;
        counters
    }

    /// Segments of all processes beyond those that each can have.
    pub(crate) fn segments_beyond(&self) -> u32 {
        let processes = self.processes.iter().flatten();
        processes.map(|process| process.segments.beyond()).sum()
    }

    /// What is kept for processes, and how much may be.
    pub(crate) fn budgets(&self) -> Vec<Budget> {
        let limits = &self.limits;
        let all = || self.processes.iter().flatten();
        let operations = all().map(|process| process.operations.counted());
        let sends = all().map(|process| process.operations.sends());
        let segments = all().map(|process| process.segments.count());
        let faults = all().map(|process| process.faults.count());
        let requests = all().map(|process| process.requests_held());
        let completions = all().map(|process| process.host_area.completions.waiting());
        vec![
            Budget::new("processes", all().count(), self.geometry.windows),
            Budget::new("held_frames", self.bounce.frames, limits.granted_windows()),
            Budget::most("operations_of_process", operations, limits.operations),
            Budget::most("sends_of_process", sends, limits.sends),
            Budget::most("segments_of_process", segments, SEGMENTS_PER_PROCESS),
            Budget::new(
                "segments_beyond",
                self.segments_beyond() as usize,
                SEGMENTS_BEYOND,
            ),
            Budget::most("faults_of_process", faults, limits.faults),
            Budget::most(
                "early_frames_of_peer",
                self.early_controls(),
                EARLY_CONTROLS,
            ),
            Budget::most("requests_to_process", requests, limits.responses),
            Budget::most(
                "completions_of_process",
                completions,
                limits.waiting_completions(),
            ),
        ]
    }

    /// Counts payload bytes that were sent from the memory of a process.
    #[inline]
    pub(crate) fn count_sent(&mut self, vni: VniId, bytes: usize) {
        self.counters.bytes_sent += bytes as u64;
        if let Some(process) = self.process_mut(vni) {
            process.bytes_sent += bytes as u64;
        }
    }

    /// Counts payload bytes that were delivered into the memory of a process.
    #[inline]
    pub(crate) fn count_received(&mut self, vni: VniId, bytes: usize) {
        self.counters.bytes_received += bytes as u64;
        if let Some(process) = self.process_mut(vni) {
            process.bytes_received += bytes as u64;
        }
    }

    /// Delivers a notification to a process.
    pub(crate) fn signal<H: Host>(&mut self, host: &H, vni: VniId, notification: u32) {
        self.counters.notifications += 1;
        if let Some(process) = self.process_mut(vni) {
            let window = process.queue.window;
            process.host_area.signal(host, window, notification);
            process.changes = Changes::ANYTHING;
            process.signalled = true;
        }
        self.mark_dirty(vni);
    }
}
