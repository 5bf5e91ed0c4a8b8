//! One NIC's place in the engine: its queues and what flows through them.
//!
//! ```text
//!          start, mapped              stopped, reset, disconnected
//!   Down ────────► Mapping ──► Running ───────────────────► Down
//!                               │   ▲                        ▲
//!               announced pause ▼   │ started where stopped  │ reset, disconnected,
//!                              Paused ───────────────────────┘ started elsewhere
//! ```
//!
//! A start is numbered by its connection; that the SRAM is mapped counts only for
//! the start that is under way.
//!
//! QEMU stops the queues alike for a pause and for a reset, after which the guest's
//! memory is somebody else's. So a NIC is reset when its queues stop, unless who
//! pauses the machine has announced that. A paused guest's memory stays what it was:
//! its NIC goes on serving its peers (N1); requests, replies and events wait.

use std::collections::HashMap;
use std::time::SystemTime;

use qnic_abi::attach::{CONTROL_QUEUE, EVENT_QUEUE, FIRST_DOORBELL};
use qnic_abi::header::Geometry;
use qnic_abi::{SharedMemory, Status, PAGE_SIZE};
use qnic_links::Fabric;
use qnic_nic::env::Host;
use qnic_nic::Time;

use super::command::{Action, QueueSetup};
use super::node::Node;
use super::poller::{Poller, Token};
use super::report::{NicCounters, NicReport, NicState};
use super::ring::{Buffer, Ring};
use crate::memory::GuestMemory;
use crate::notifier::Notifier;
use crate::throttle::{throttled, Throttle};

/// How long after its announcement a machine may be paused, in nanoseconds: beyond it,
/// queues that stop are a reset again.
const PAUSE_COMES_WITHIN: u64 = 30_000_000_000;

/// A request whose reply comes later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) head: u16,
    pub(super) reply: Buffer,
}

#[derive(Debug)]
pub(super) enum Phase {
    Down,
    Mapping(u64),
    Running,
    /// The machine is paused; places of the control and event queues.
    Paused([u16; 2]),
}

/// One NIC's place in the engine.
#[derive(Debug)]
pub(crate) struct NicSlot {
    pub(super) slot: usize,
    pub(super) name: String,
    pub(super) connected: bool,
    pub(super) phase: Phase,
    /// When the queues stop up to then, the machine is paused.
    expects_pause: Option<Time>,
    pub(super) control: Option<Ring>,
    pub(super) events: Option<Ring>,
    pub(super) doorbells: Vec<Option<Notifier>>,
    /// Requests may be waiting in the control queue.
    pub(super) look_for_requests: bool,
    /// Requests that the NIC will answer later, by their tokens. Tokens are never
    /// used twice, so an answer from before a reset finds nothing here.
    pub(super) pending: HashMap<u64, Pending>,
    pub(super) next_token: u64,
    pub(super) counters: NicCounters,
    pub(super) throttle: Throttle,
}

impl NicSlot {
    pub(crate) fn new(slot: usize, name: String, doorbells: usize) -> Self {
        NicSlot {
            slot,
            name,
            connected: false,
            phase: Phase::Down,
            expects_pause: None,
            control: None,
            events: None,
            doorbells: std::iter::repeat_with(|| None).take(doorbells).collect(),
            look_for_requests: false,
            pending: HashMap::new(),
            next_token: 0,
            counters: NicCounters::default(),
            throttle: Throttle::new(),
        }
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Executes a command.
    pub(crate) fn execute(
        &mut self,
        fabric: &mut Fabric<Node>,
        now: Time,
        poller: &Poller,
        action: Action,
    ) {
        // An asker that has gone does not wait for the answer any more.
        match action {
            Action::Connect { answer } => {
                self.connected = true;
                let _ = answer.send(());
            }
            Action::Disconnect { answer } => {
                self.disconnect(fabric, now, poller);
                let _ = answer.send(());
            }
            Action::SetMemory { memory, answer } => {
                self.set_memory(fabric, memory);
                let _ = answer.send(());
            }
            Action::Start {
                epoch,
                places,
                answer,
            } => {
                let _ = answer.send(self.start(fabric, now, epoch, places));
            }
            Action::Mapped { epoch } => self.mapped(fabric, now, epoch),
            Action::StartQueue {
                queue,
                setup,
                answer,
            } => {
                let _ = answer.send(self.start_queue(fabric, poller, queue, setup));
            }
            Action::SetCall {
                queue,
                call,
                answer,
            } => {
                if let Some(ring) = self.ring(queue) {
                    ring.set_call(call);
                }
                let _ = answer.send(());
            }
            Action::StopQueue { queue, answer } => {
                self.pause_or_halt(fabric, now);
                let _ = answer.send(self.stop_queue(poller, queue));
            }
            Action::Reset { answer } => {
                self.halt(fabric, now);
                self.stop_queues(poller);
                let _ = answer.send(());
            }
        }
    }

    fn ring(&mut self, queue: usize) -> Option<&mut Ring> {
        match queue {
            CONTROL_QUEUE => self.control.as_mut(),
            EVENT_QUEUE => self.events.as_mut(),
            _ => None,
        }
    }

    /// Starts the device, or lets it go on (`true`).
    fn start(
        &mut self,
        fabric: &mut Fabric<Node>,
        now: Time,
        epoch: u64,
        places: [u16; 2],
    ) -> bool {
        // Queues that were never used look like those of a reset device.
        let goes_on =
            places != [0; 2] && matches!(self.phase, Phase::Paused(stopped) if stopped == places);
        if !goes_on {
            self.halt(fabric, now);
            self.phase = Phase::Mapping(epoch);
            return false;
        }
        self.phase = Phase::Running;
        self.expects_pause = None;
        self.look_for_requests = true;
        // Doorbells may have been rung that nobody has heard.
        for doorbell in 0..self.doorbells.len() as u32 {
            fabric.with(self.slot, now, |nic, _, _| nic.handle_doorbell(doorbell));
        }
        throttled!(
            self.throttle,
            info,
            nic = self.name,
            "the machine goes on, and its device"
        );
        true
    }

    /// A pause of the machine was announced; `false` if the device does not run.
    pub(crate) fn expect_pause(&mut self, now: Time) -> bool {
        let running = matches!(self.phase, Phase::Running);
        self.expects_pause = running.then(|| now.after(PAUSE_COMES_WITHIN));
        running
    }

    /// A queue stops.
    fn pause_or_halt(&mut self, fabric: &mut Fabric<Node>, now: Time) {
        match self.phase {
            Phase::Paused(_) => {}
            Phase::Running if self.expects_pause.is_some_and(|until| now <= until) => {
                let place = |ring: &Option<Ring>| ring.as_ref().map_or(0, Ring::next_available);
                self.phase = Phase::Paused([place(&self.control), place(&self.events)]);
                self.counters.pauses += 1;
                throttled!(
                    self.throttle,
                    info,
                    nic = self.name,
                    "the machine is paused"
                );
            }
            _ => self.halt(fabric, now),
        }
    }

    /// Resets the NIC if it runs. Afterwards nothing touches the guest's memory.
    fn halt(&mut self, fabric: &mut Fabric<Node>, now: Time) {
        let phase = std::mem::replace(&mut self.phase, Phase::Down);
        self.expects_pause = None;
        self.pending.clear();
        self.look_for_requests = false;
        if matches!(phase, Phase::Running | Phase::Paused(_)) {
            self.counters.resets += 1;
            throttled!(
                self.throttle,
                info,
                nic = self.name,
                "device stopped, NIC reset"
            );
            fabric.with(self.slot, now, |nic, host, wire| nic.reset(now, host, wire));
        }
    }

    /// The front end is gone.
    pub(crate) fn disconnect(&mut self, fabric: &mut Fabric<Node>, now: Time, poller: &Poller) {
        self.halt(fabric, now);
        self.stop_queues(poller);
        self.connected = false;
        let node = fabric.host_mut(self.slot);
        node.memory = GuestMemory::default();
        node.sram.clear();
    }

    /// The guest has other memory from now on.
    fn set_memory(&mut self, fabric: &mut Fabric<Node>, memory: GuestMemory) {
        let geometry = *fabric.nic(self.slot).geometry();
        let frames = memory.end().div_ceil(PAGE_SIZE as u64);
        let known = fabric.host(self.slot).memory().end() == memory.end();
        let status = if frames <= geometry.frames {
            Status::Ok
        } else {
            // QEMU sends the table again whenever a mapping changes.
            if !known {
                self.report_small_sram(frames, &geometry);
            }
            Status::SramTooSmall
        };
        fabric.with(self.slot, Time(0), |nic, _, _| nic.set_unusable(status));
        fabric.host_mut(self.slot).memory = memory;
        let memory = fabric.host(self.slot).memory();
        let control = self
            .control
            .as_mut()
            .map_or(Ok(()), |ring| ring.check(memory));
        let events = self
            .events
            .as_mut()
            .map_or(Ok(()), |ring| ring.check(memory));
        self.settle("control", control);
        self.settle("event", events);
    }

    fn report_small_sram(&self, frames: u64, geometry: &Geometry) {
        throttled!(
            self.throttle,
            error,
            nic = self.name,
            guest_frames = frames,
            sram_frames = geometry.frames,
            sram_bytes = geometry.sram_bytes,
            "the SRAM is too small for the guest's RAM: its page table covers {} frames, the guest \
             has {frames}; raise `ram` of this NIC to the guest's memory",
            geometry.frames,
        );
    }

    /// The SRAM is mapped: lets the driver in, which waits for the magic word.
    fn mapped(&mut self, fabric: &mut Fabric<Node>, now: Time, epoch: u64) {
        if !matches!(self.phase, Phase::Mapping(expected) if expected == epoch) {
            return;
        }
        let session = wall_clock();
        fabric.with(self.slot, now, |nic, host, _| {
            nic.start(now, host, session);
        });
        self.phase = Phase::Running;
        self.look_for_requests = true;
        self.counters.starts += 1;
        throttled!(
            self.throttle,
            info,
            nic = self.name,
            epoch,
            "device started, SRAM mapped"
        );
    }

    fn start_queue(
        &mut self,
        fabric: &Fabric<Node>,
        poller: &Poller,
        queue: usize,
        setup: QueueSetup,
    ) -> Result<(), String> {
        self.stop_queue(poller, queue);
        let token = Token::Kick {
            slot: self.slot,
            queue,
        };
        let memory = fabric.host(self.slot).memory();
        let watch = |kick: &Notifier| {
            poller
                .add(kick, token)
                .map_err(|error| format!("cannot watch its kick: {error}"))
        };
        if let Some(place) = queue.checked_sub(FIRST_DOORBELL) {
            let place = self.doorbells.get_mut(place).ok_or("no such queue")?;
            watch(&setup.kick)?;
            *place = Some(setup.kick);
            return Ok(());
        }
        let mut ring = Ring::new(setup, memory).map_err(|error| error.to_string())?;
        watch(ring.kick())?;
        if queue == CONTROL_QUEUE {
            self.look_for_requests = true;
            self.control = Some(ring);
        } else {
            ring.want_kicks(memory, false)
                .map_err(|error| error.to_string())?;
            self.events = Some(ring);
        }
        Ok(())
    }

    fn stop_queue(&mut self, poller: &Poller, queue: usize) -> Option<u16> {
        if let Some(place) = queue.checked_sub(FIRST_DOORBELL) {
            let kick = self.doorbells.get_mut(place)?.take()?;
            poller.remove(&kick);
            return None;
        }
        let ring = match queue {
            CONTROL_QUEUE => self.control.take(),
            _ => self.events.take(),
        }?;
        poller.remove(ring.kick());
        Some(ring.next_available())
    }

    fn stop_queues(&mut self, poller: &Poller) {
        for queue in 0..FIRST_DOORBELL + self.doorbells.len() {
            self.stop_queue(poller, queue);
        }
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
            },
            counters: self.counters.clone(),
            statistics: nic.statistics().into(),
        }
    }
}

/// Nanoseconds since 1970: a session number that no device process before this one
/// has used.
fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
