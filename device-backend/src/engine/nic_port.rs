//! The port of one NIC: its queues and its state in the device process.
//!
//! ```text
//!          start, mapped                    reset, disconnected
//!   Down ────────► Mapping ──► Running ────────────────────────► Down
//!                               │   ▲                              ▲
//!                 queues stop   ▼   │ started where stopped        │ reset, disconnected,
//!                    Paused, Suspended ────────────────────────────┘ started elsewhere
//! ```
//!
//! The connection numbers its starts; a mapping of the SRAM is valid only for the start that it was
//! made for.
//!
//! # What a stop of the queues is
//! QEMU stops the queues in the same way for a pause of the machine (`stop`, a debugger, a
//! snapshot) and for a reset of the device (a driver that leaves, a reboot). The NIC port finds out
//! which it is by what was announced before, or by what follows:
//!
//! | what happens | so it is |
//! |---|---|
//! | the driver has announced a reset (AnnounceReset): it is removed, or the guest reboots | a reset, at once |
//! | then comes RESET_DEVICE (QEMU 11 does not send it for this device, other front ends may) | a reset |
//! | then comes a start with the control and event queues where they stopped | a pause: the NIC goes on with all that it had |
//! | then comes a start elsewhere, or the end of the connection | a reset |
//!
//! Until that is known the NIC is *suspended*: if this is a reset, the guest's memory may already
//! have another use, so nothing accesses it. A NIC whose pause was announced is *paused* instead:
//! the memory of its guest stays as it is, and the NIC continues to serve its peers (N1). In both
//! states requests, responses and events wait.

use std::collections::HashMap;
use std::time::SystemTime;

use qnic_abi::attach::{CONTROL_QUEUE, FIRST_DOORBELL};
use qnic_abi::{SharedMemory, Status, PAGE_SIZE};
use qnic_links::Fabric;
use qnic_nic::env::Host;
use qnic_nic::{QueuePairFaults, Table, TableKind, Time};

use super::node::Node;
use super::poller::{Poller, Token};
use super::report::{NicCounters, NicReport, NicState};
use super::ring::{Buffer, QueueSetup, Ring};
use crate::memory::GuestMemory;
use crate::notifier::Notifier;
use crate::throttle::{throttled, Throttle};

/// Longest time between the announcement of a pause and the pause, in nanoseconds. A later stop of
/// the queues is not the announced one.
const PAUSE_TIMEOUT: u64 = 30_000_000_000;

/// A request whose response comes later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) head: u16,
    pub(super) response: Buffer,
}

/// What a command works with, besides the port.
pub(crate) struct Context<'a> {
    pub(super) now: Time,
    pub(super) fabric: &'a mut Fabric<Node>,
    pub(super) poller: &'a Poller,
}

#[derive(Debug, Default)]
pub(super) enum Phase {
    #[default]
    Down,
    Mapping(u64),
    Running,
    /// The machine is paused, as was announced.
    Paused(Stopped),
    /// The machine is paused, or the device is about to be reset.
    Suspended(Stopped),
}

/// The available indices at which the control and event queues stopped.
type Stopped = [u16; FIRST_DOORBELL];

/// The port of one NIC: the device process's side of it.
#[derive(Debug, Default)]
pub(crate) struct NicPort {
    pub(super) slot: usize,
    pub(super) name: String,
    /// A front end has connected.
    pub(crate) connected: bool,
    /// What spins behind it yields ([`qnic_abi::attach::YIELDING`]).
    pub(crate) yielding: bool,
    pub(super) phase: Phase,
    /// If the queues stop up to then, the machine is paused.
    expects_pause: Option<Time>,
    /// The control and event queues, by their numbers.
    pub(super) rings: [Option<Ring>; FIRST_DOORBELL],
    pub(super) doorbells: Vec<Option<Notifier>>,
    /// Requests may be waiting in the control queue.
    pub(super) requests_due: bool,
    /// Requests to which the NIC responds later, by their tokens. Tokens are never used
    /// twice, so a response from before a reset finds nothing here.
    pub(super) pending: HashMap<u64, Pending>,
    pub(super) next_token: u64,
    pub(super) counters: NicCounters,
    pub(super) throttle: Throttle,
}

impl NicPort {
    pub(crate) fn new(slot: usize, name: String, doorbells: usize) -> Self {
        NicPort {
            slot,
            name,
            doorbells: std::iter::repeat_with(|| None).take(doorbells).collect(),
            ..NicPort::default()
        }
    }

    /// The driver has started the device, or the machine continues after a pause. The result is
    /// true after a pause: `indices` are then the available indices at which the control and event
    /// queues were stopped. Otherwise the SRAM is about to be mapped.
    pub(crate) fn start(&mut self, cx: &mut Context<'_>, epoch: u64, indices: Stopped) -> bool {
        let stopped = match self.phase {
            Phase::Paused(stopped) | Phase::Suspended(stopped) => Some(stopped),
            Phase::Down | Phase::Mapping(_) | Phase::Running => None,
        };
        // Queues that were never used look like those of a reset device.
        if stopped != Some(indices) || indices == [0; 2] {
            self.halt(cx);
            self.phase = Phase::Mapping(epoch);
            return false;
        }
        self.phase = Phase::Running;
        self.counters.pauses += 1;
        cx.fabric.resume(self.slot, cx.now);
        self.expects_pause = None;
        self.requests_due = true;
        // Doorbells rung during the pause were not handled.
        for doorbell in 0..self.doorbells.len() as u32 {
            cx.fabric.nic_mut(self.slot).handle_doorbell(doorbell);
        }
        throttled!(self, info, "the machine and its device continue");
        true
    }

    /// Announces a pause of the machine. Returns false if the device does not run.
    pub(crate) fn expect_pause(&mut self, now: Time) -> bool {
        let running = matches!(self.phase, Phase::Running);
        self.expects_pause = running.then(|| now.after(PAUSE_TIMEOUT));
        running
    }

    /// The first queue stops: the machine is paused, or the device about to be reset.
    fn pause(&mut self, cx: &mut Context<'_>) {
        match self.phase {
            Phase::Running if cx.fabric.nic(self.slot).expects_reset() => return self.halt(cx),
            Phase::Running => {}
            Phase::Paused(_) | Phase::Suspended(_) => return,
            Phase::Down | Phase::Mapping(_) => return self.halt(cx),
        }
        let index = |ring: &Option<Ring>| ring.as_ref().map_or(0, Ring::next_available);
        let stopped = self.rings.each_ref().map(index);
        if self
            .expects_pause
            .take()
            .is_some_and(|until| cx.now <= until)
        {
            self.phase = Phase::Paused(stopped);
            throttled!(self, info, "the machine is paused");
        } else {
            self.phase = Phase::Suspended(stopped);
            cx.fabric.suspend(self.slot, cx.now);
            throttled!(
                self,
                info,
                "device stopped: a pause, unless a reset follows"
            );
        }
    }

    /// Resets the NIC if it runs. Afterwards nothing accesses the guest's memory.
    fn halt(&mut self, cx: &mut Context<'_>) {
        let phase = std::mem::replace(&mut self.phase, Phase::Down);
        self.expects_pause = None;
        self.pending.clear();
        self.requests_due = false;
        if !matches!(phase, Phase::Down | Phase::Mapping(_)) {
            self.counters.resets += 1;
            throttled!(self, info, "device stopped, NIC reset");
            cx.fabric.reset(self.slot, cx.now);
        }
    }

    /// Virtio reset.
    pub(crate) fn reset(&mut self, cx: &mut Context<'_>) {
        self.halt(cx);
        for queue in 0..FIRST_DOORBELL + self.doorbells.len() {
            self.remove_queue(cx, queue);
        }
    }

    /// The front end is gone: everything that it gave is dropped.
    pub(crate) fn disconnect(&mut self, cx: &mut Context<'_>) {
        self.reset(cx);
        self.connected = false;
        self.yielding = false;
        let node = cx.fabric.host_mut(self.slot);
        node.memory = GuestMemory::default();
        node.sram.clear();
    }

    /// The guest has other memory from now on.
    pub(crate) fn set_memory(&mut self, cx: &mut Context<'_>, memory: GuestMemory) {
        let geometry = *cx.fabric.nic(self.slot).geometry();
        let covered = geometry.frames * PAGE_SIZE as u64;
        // Queues and host areas may be anywhere, also in memory that was added while the guest runs.
        let frames = memory
            .end_without_devices(covered)
            .div_ceil(PAGE_SIZE as u64);
        let known = cx.fabric.host(self.slot).memory().end() == memory.end();
        let status = if frames <= geometry.frames {
            Status::Ok
        } else {
            // QEMU sends the table again whenever a mapping changes.
            if !known {
                throttled!(
                    self,
                    error,
                    guest_frames = frames,
                    sram_frames = geometry.frames,
                    sram_bytes = geometry.sram_bytes,
                    "the SRAM is too small for the guest's RAM: its page table covers {} frames, \
                     the guest has {frames}; raise `ram` of this NIC to the guest's memory",
                    geometry.frames,
                );
            }
            Status::SramTooSmall
        };
        cx.fabric.nic_mut(self.slot).set_unusable(status);
        cx.fabric.host_mut(self.slot).memory = memory;
        let memory = cx.fabric.host(self.slot).memory();
        for queue in 0..FIRST_DOORBELL {
            let ring = self.rings[queue].as_mut();
            let checked = ring.map_or(Ok(()), |ring| ring.check(memory));
            self.report_failure(queue, checked);
        }
    }

    /// The SRAM is mapped in start number `epoch`: lets the driver in, which waits for the
    /// magic word.
    pub(crate) fn mapped(&mut self, cx: &mut Context<'_>, epoch: u64) {
        if !matches!(self.phase, Phase::Mapping(expected) if expected == epoch) {
            return;
        }
        let session = wall_clock();
        cx.fabric.with(self.slot, cx.now, |now, nic, host, _| {
            nic.start(now, host, session);
        });
        self.phase = Phase::Running;
        self.requests_due = true;
        self.counters.starts += 1;
        throttled!(self, info, epoch, "device started, SRAM mapped");
    }

    /// A queue is complete and enabled. An error is a sentence that says why it cannot run.
    pub(crate) fn start_queue(
        &mut self,
        cx: &mut Context<'_>,
        queue: usize,
        setup: QueueSetup,
    ) -> Result<(), String> {
        self.remove_queue(cx, queue);
        let slot = self.slot;
        let memory = cx.fabric.host(slot).memory();
        let watch = |kick: &Notifier| {
            let watched = cx.poller.add(kick, Token::Kick { slot, queue });
            watched.map_err(|error| format!("cannot watch its kick: {error}"))
        };
        if let Some(doorbell) = queue.checked_sub(FIRST_DOORBELL) {
            let doorbell = self.doorbells.get_mut(doorbell).ok_or("no such queue")?;
            watch(&setup.kick)?;
            *doorbell = Some(setup.kick);
            return Ok(());
        }
        let mut ring = Ring::new(setup, memory).map_err(|error| error.to_string())?;
        watch(&ring.setup.kick)?;
        if queue == CONTROL_QUEUE {
            self.requests_due = true;
        } else {
            let unwanted = ring.want_kicks(memory, false);
            unwanted.map_err(|error| error.to_string())?;
        }
        self.rings[queue] = Some(ring);
        Ok(())
    }

    /// Sets the interrupt of a queue that runs.
    pub(crate) fn set_call(&mut self, queue: usize, call: Option<Notifier>) {
        if let Some(Some(ring)) = self.rings.get_mut(queue) {
            ring.setup.call = call;
        }
    }

    /// A queue stops, and with it the device. Returns the available index of the queue if it
    /// ran.
    pub(crate) fn stop_queue(&mut self, cx: &mut Context<'_>, queue: usize) -> Option<u16> {
        self.pause(cx);
        self.remove_queue(cx, queue)
    }

    fn remove_queue(&mut self, cx: &mut Context<'_>, queue: usize) -> Option<u16> {
        if let Some(doorbell) = queue.checked_sub(FIRST_DOORBELL) {
            let kick = self.doorbells.get_mut(doorbell)?.take()?;
            cx.poller.remove(&kick);
            return None;
        }
        let ring = self.rings[queue].take()?;
        cx.poller.remove(&ring.setup.kick);
        Some(ring.next_available())
    }

    /// A table of what the NIC holds, if it is that of the node.
    pub(crate) fn table(&self, fabric: &Fabric<Node>, node: u16, kind: TableKind) -> Option<Table> {
        let nic = fabric.nic(self.slot);
        (nic.geometry().node.0 == node).then(|| nic.table(kind))
    }

    /// Injects faults into a queue pair, if this is the NIC of the node. Returns false if it has none of
    /// that number.
    pub(crate) fn inject(
        &self,
        fabric: &mut Fabric<Node>,
        now: Time,
        (node, queue_pair): (u16, u32),
        faults: QueuePairFaults,
    ) -> Option<bool> {
        if fabric.nic(self.slot).geometry().node.0 != node {
            return None;
        }
        Some(fabric.with(self.slot, now, |now, nic, host, _| {
            nic.inject(now, host, queue_pair, faults)
        }))
    }

    pub(crate) fn report(&self, fabric: &Fabric<Node>) -> NicReport {
        let nic = fabric.nic(self.slot);
        NicReport {
            name: self.name.clone(),
            node: nic.geometry().node.0,
            connected: self.connected,
            state: match self.phase {
                Phase::Down => NicState::Down,
                Phase::Mapping(_) => NicState::Mapping,
                Phase::Running => NicState::Running,
                Phase::Paused(_) => NicState::Paused,
                Phase::Suspended(_) => NicState::Suspended,
            },
            counters: self.counters.clone(),
            ethernet: fabric.port_counters(self.slot),
            statistics: nic.counters(),
            budgets: nic.budgets(),
            stages: nic.stages(),
            processes: nic.vnis(fabric.host(self.slot)),
            peers: nic.peers(),
        }
    }
}

/// Nanoseconds since 1970: a session number that no earlier device process has used.
fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
