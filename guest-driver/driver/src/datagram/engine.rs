//! The engine: the driver as a process of its own NIC, and the ports that share it.
//!
//! ```text
//!   wake event, deadline ──► serve:  enter ─► next ─► call upper module ─► next … leave
//!                                              ▲ at most BATCH times (H5)        │
//!   Port::send, expect, give ─────► output: completions, commands, doorbell ◄────┘
//! ```
//! # Locks
//! One spin lock guards everything here. Upper modules are called without it, one call at a time: while
//! one thread serves, others leave their work to it. A [`super::Buffer`] takes this lock when it is
//! dropped, so none is dropped under the lock.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::{Status, VniId};
use qnic_shared::window::Awaited;

use super::bound::{Bound, Call};
use super::buffer::{PortKey, TakeBack};
use super::counters::Counters;
use super::peers::{Outcome, Peers};
use super::queue::Queues;
use super::receives::{port_of, PORT_BITS};
use super::routes::Routes;
use super::sends::Slots;
use crate::device::{Device, Wake, Window};
use crate::platform::{table, HostArea, Level, Lock, NoMemory, Platform};

/// Most ports of a NIC.
pub(super) const MAX_PORTS: usize = 1 << PORT_BITS;

/// Calls of upper modules for one interrupt (H5).
pub(super) const BATCH: usize = 64;

/// When a full queue is looked at again, if no event comes earlier, in nanoseconds.
const FULL_NS: u64 = 1_000_000;

/// When sent packets are reaped if neither a thread waits for them nor an event comes earlier, in
/// nanoseconds (H2).
const REAP_NS: u64 = 2_000_000;

/// The engine of a NIC.
pub(crate) struct Engine<P: Platform, U: Send> {
    pub(super) device: Arc<Device<P>>,
    pub(crate) vni: VniId,
    doorbell: u16,
    wake: Arc<Wake<P>>,
    pub(crate) counters: Counters,
    pub(super) state: P::SpinLock<State<P, U>>,
}

/// The state under the lock.
pub(super) struct State<P: Platform, U> {
    pub(super) queues: Queues,
    /// A place for each port; bound ports are among the first [`State::places`].
    pub(super) ports: Vec<Option<Box<Bound<P, U>>>>,
    pub(super) places: usize,
    slots: Slots,
    routes: Routes,
    peers: Peers,
    /// Number of the next message.
    sequence: u32,
    /// The number of buffers that were ever posted.
    pub(super) uses: u64,
    pub(super) generation: u32,
    /// A thread serves.
    serving: bool,
    /// The serving thread is to serve once more.
    pub(super) again: bool,
    /// Threads that poll the NIC: meanwhile it sends no wake events.
    pub(super) lookers: u32,
    /// Why the next service at the platform's request is to go on polling, and until when.
    pub(super) look_on: Option<(LookOn, u64)>,
    /// The kinds of completions for which the last wake event was requested.
    armed: Awaited,
    /// The port that is next to be called, and the port that is next to send.
    call_turn: usize,
    command_turn: usize,
    /// The time of the last request to the platform.
    timer_ns: Option<u64>,
    /// The device is gone, and everything that it had was taken back.
    abandoned: bool,
    failed: bool,
}

/// How long service polls for an answer or the next packet, in nanoseconds: a few times what an
/// interrupt costs an emulated guest.
pub(super) const LOOK_ON_NS: u64 = 250_000;

/// Why service goes on polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LookOn {
    /// An event has come: the next packet may follow soon.
    Event,
    /// The running thread is about to wait for an answer.
    Thread,
}

impl<P: Platform, U: Send> Engine<P, U> {
    /// The engine of a driver on a VNI whose window is zero.
    pub(crate) fn new(
        device: &Arc<Device<P>>,
        vni: VniId,
        doorbell: u16,
        wake: Arc<Wake<P>>,
    ) -> Result<Self, NoMemory> {
        let window = Window::new(device.platform.sram(), &device.geometry, vni);
        let state = State {
            queues: Queues::new(&window, device.geometry.counts),
            ports: table(MAX_PORTS)?,
            places: 0,
            slots: Slots::new()?,
            routes: Routes::new()?,
            peers: Peers::new()?,
            // Random, because fragments of messages from before a reboot may be under way.
            sequence: device.platform.random() as u32,
            uses: 0,
            generation: 0,
            serving: false,
            again: false,
            lookers: 0,
            look_on: None,
            armed: Awaited::Anything,
            call_turn: 0,
            command_turn: 0,
            timer_ns: None,
            abandoned: false,
            failed: false,
        };
        Ok(Engine {
            device: device.clone(),
            vni,
            doorbell,
            wake,
            counters: Counters::default(),
            state: P::SpinLock::new(state)?,
        })
    }

    pub(super) fn window(&self) -> Window<'_, P::Sram> {
        let device = &self.device;
        Window::new(device.platform.sram(), &device.geometry, self.vni)
    }

    pub(super) fn area(&self) -> &<P::HostArea as HostArea>::Memory {
        self.wake.host_area.memory()
    }

    /// Has [`Engine::serve`] called soon. Atomic.
    pub(crate) fn request_service(&self) {
        self.request_service_at(self.device.platform.now_ns());
    }

    /// Handles a wake event: has [`Engine::serve`] called, unless a thread polls. Atomic.
    pub(crate) fn woken(&self) {
        let now = self.device.platform.now_ns();
        self.state.with(|state| {
            state.queues.woken();
            // It may interrupt another thread than the one that waits.
            state.look_on_until(LookOn::Event, now);
            match state.lookers {
                0 => state.schedule(self, now, now),
                _ => state.again = true,
            }
        });
    }

    /// Has [`Engine::serve`] called at that time. Atomic.
    pub(super) fn request_service_at(&self, at_ns: u64) {
        let now = self.device.platform.now_ns();
        self.state.with(|state| state.schedule(self, now, at_ns));
    }

    /// Runs `f` with a port, then sends what is to be sent; `None` if it is closed. Atomic.
    pub(super) fn with_port<R>(
        &self,
        key: PortKey,
        f: impl FnOnce(&mut Bound<P, U>) -> R,
    ) -> Option<R> {
        let now = self.device.platform.now_ns();
        self.state.with(|state| {
            let result = f(state.port(key)?);
            state.output_unless_served(self, now);
            Some(result)
        })
    }

    /// Returns true if the NIC has stopped the command queue: a bug of the driver.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.with(|state| state.failed)
    }
}

impl<P: Platform, U: Send> TakeBack<P::Memory> for Engine<P, U> {
    fn take_back(&self, key: PortKey, memory: P::Memory) {
        let surplus = self.with_port(key, |port| match port.closing {
            true => Some(memory),
            false => port.receives.give(memory).err(),
        });
        drop(surplus);
    }
}

impl<P: Platform, U: Send> State<P, U> {
    /// Asks service to go on polling. The request expires if no service comes in time.
    pub(super) fn look_on_until(&mut self, reason: LookOn, now_ns: u64) {
        self.look_on = Some((reason, now_ns.saturating_add(LOOK_ON_NS)));
    }

    /// A bound port.
    pub(super) fn port(&mut self, key: PortKey) -> Option<&mut Bound<P, U>> {
        let port = self.ports.get_mut(usize::from(key.index))?.as_mut()?;
        (port.key == key).then_some(&mut **port)
    }

    /// All bound ports.
    pub(super) fn bound(&self) -> impl Iterator<Item = &Bound<P, U>> {
        let places = self.ports.iter().take(self.places);
        places.flatten().map(|port| &**port)
    }

    /// No thread polls any more: asks for a wake event, or for service if there is work already.
    pub(super) fn rest(&mut self, engine: &Engine<P, U>, now_ns: u64) {
        let (window, area) = (engine.window(), engine.area());
        let ready = engine.device.is_attached();
        self.armed = self.awaited();
        if core::mem::take(&mut self.again)
            || self.has_calls()
            || (ready && self.queues.arm(&window, area, self.armed))
        {
            self.schedule(engine, now_ns, now_ns);
        }
        self.reap_later(engine, now_ns);
    }

    /// Schedules the reaping of packets for which no event comes.
    fn reap_later(&mut self, engine: &Engine<P, U>, now_ns: u64) {
        if self.armed == Awaited::Solicited && self.slots.has_busy() {
            self.schedule(engine, now_ns, now_ns.saturating_add(REAP_NS));
        }
    }

    /// The kinds of completions to request a wake event for. An interrupt for each sent packet would
    /// cost a guest more than the packet.
    fn awaited(&self) -> Awaited {
        match self.bound().any(Bound::awaits_sends) {
            true => Awaited::Anything,
            false => Awaited::Solicited,
        }
    }

    /// Has [`Engine::serve`] called at that time, unless it will be called earlier. A scheduled time that
    /// has passed does not count: clocks of platforms are coarse, a guest's ticks every four milliseconds.
    fn schedule(&mut self, engine: &Engine<P, U>, now_ns: u64, at_ns: u64) {
        let is_known = |timer: u64| timer == at_ns || (timer < at_ns && at_ns > now_ns);
        if !self.timer_ns.is_some_and(is_known) {
            self.timer_ns = Some(at_ns);
            engine.device.platform.schedule_datagrams(at_ns);
        }
    }

    /// Makes the calling thread the serving one; with `scheduled` it serves at the platform's request.
    /// Returns false if another thread serves.
    pub(super) fn enter(&mut self, scheduled: bool) -> bool {
        if scheduled {
            self.timer_ns = None;
        }
        self.again = self.serving;
        !core::mem::replace(&mut self.serving, true)
    }

    /// The next call of an upper module; ports take turns.
    pub(super) fn next(
        &mut self,
        engine: &Engine<P, U>,
        now_ns: u64,
    ) -> Option<(PortKey, Call<P>)> {
        self.collect(engine, now_ns);
        for _ in 0..self.places {
            let turn = self.call_turn;
            self.call_turn = (turn + 1) % self.places;
            let Some(Some(port)) = self.ports.get_mut(turn) else {
                continue;
            };
            if let Some(call) = port.next_call(now_ns, &engine.counters) {
                return Some((port.key, call));
            }
        }
        None
    }

    /// The serving thread has made its last call: sends what is to be sent, and schedules the next
    /// service if there is a reason.
    pub(super) fn leave(&mut self, engine: &Engine<P, U>, now_ns: u64) {
        self.output(engine, now_ns);
        self.serving = false;
        let ready = engine.device.is_attached();
        let area = engine.area();
        self.again |= self.has_calls();
        if self.lookers == 0 {
            self.rest(engine, now_ns);
        }
        if ready && self.queues.has_failed(area) && !core::mem::replace(&mut self.failed, true) {
            engine.device.platform.log(
                Level::Error,
                format_args!("the NIC has stopped the command queue of the driver"),
            );
        }
        let deadline = self.bound().filter_map(|port| port.deadline(now_ns));
        let deadline = deadline.min();
        if let Some(deadline) = deadline {
            self.schedule(engine, now_ns, deadline);
        }
    }

    /// Returns true if a thread serves.
    pub(super) fn is_served(&self) -> bool {
        self.serving
    }

    pub(super) fn has_calls(&self) -> bool {
        self.bound().any(Bound::has_calls)
    }

    /// Takes completions: send slots become FREE, packets go to their ports.
    fn collect(&mut self, engine: &Engine<P, U>, now_ns: u64) {
        if !engine.device.is_attached() {
            self.abandon();
            return;
        }
        let (window, area) = (engine.window(), engine.area());
        while let Some(entry) = self.queues.take(area) {
            self.complete(engine, now_ns, &entry);
        }
        if self.queues.acknowledge(&window, area) && engine.device.is_alive() {
            engine.device.platform.ring_doorbell(engine.doorbell);
        }
    }

    fn complete(&mut self, engine: &Engine<P, U>, now_ns: u64, entry: &CompletionEntry) {
        let (handle, counters) = (entry.handle.get(), &engine.counters);
        if entry.kind == CompletionKind::DatagramReceive as u8 {
            match self.ports.get_mut(port_of(handle)) {
                Some(Some(port)) => port.returned(now_ns, entry, counters),
                _ => counters.completions_unknown.add(1),
            }
            return;
        }
        let is_send = entry.kind == CompletionKind::DatagramSend as u8;
        let busy = is_send.then(|| self.slots.release(handle)).flatten();
        let Some(busy) = busy else {
            counters.completions_unknown.add(1);
            return;
        };
        let status = Status::try_from(entry.status.get()).unwrap_or(Status::Malformed);
        let (node, size) = (busy.node, usize::from(busy.size));
        let mut again = status == Status::BadLength && self.routes.refused(now_ns, node, size);
        counters.routes_narrowed.add(u64::from(again));
        if let Some(port) = self.port(busy.port) {
            again &= !port.closing;
            port.sends
                .returned(busy.message, busy.destination, status, again);
        }
        let outcome = self.peers.returned(node, status);
        if outcome != Outcome::Same {
            for port in self.ports.iter_mut().flatten() {
                port.sends.release(node, outcome == Outcome::Fail);
            }
        }
    }

    /// The device accesses no memory any more: everything that it had belongs to the driver again.
    fn abandon(&mut self) {
        while let Some(busy) = self
            .slots
            .any_busy()
            .and_then(|handle| self.slots.release(handle))
        {
            if let Some(port) = self.port(busy.port) {
                port.sends
                    .returned(busy.message, busy.destination, Status::Aborted, false);
            }
        }
        if !core::mem::replace(&mut self.abandoned, true) {
            for port in self.ports.iter_mut().flatten() {
                port.abandon();
            }
        }
    }

    /// [`State::output`], unless a thread serves: that thread does it after its calls.
    pub(super) fn output_unless_served(&mut self, engine: &Engine<P, U>, now_ns: u64) {
        if !self.serving {
            self.output(engine, now_ns);
            if self.has_calls() {
                self.schedule(engine, now_ns, now_ns);
            } else if self.lookers == 0 && self.armed != self.awaited() {
                self.rest(engine, now_ns);
            } else {
                self.reap_later(engine, now_ns);
            }
        }
    }

    /// Puts commands into the queue while there is room: buffers first, then packets; ports take
    /// turns.
    fn output(&mut self, engine: &Engine<P, U>, now_ns: u64) {
        self.collect(engine, now_ns);
        if !engine.device.is_alive() || !engine.device.is_attached() {
            return;
        }
        let (window, area) = (engine.window(), engine.area());
        let mut without = 0;
        while without < self.places {
            if !self.queues.has_room(area) {
                self.schedule(engine, now_ns, now_ns.saturating_add(FULL_NS));
                break;
            }
            let turn = self.command_turn;
            self.command_turn = (turn + 1) % self.places;
            without = match self.put_command(engine, turn, now_ns) {
                true => 0,
                false => without + 1,
            };
        }
        if self.queues.flush(&window, area) {
            engine.device.platform.ring_doorbell(engine.doorbell);
        }
    }

    /// Puts a command of a port into the queue, which has room. Returns false if the port has none.
    fn put_command(&mut self, engine: &Engine<P, U>, turn: usize, now_ns: u64) -> bool {
        let Some(Some(port)) = self.ports.get_mut(turn) else {
            return false;
        };
        let window = engine.window();
        if let Some(command) = port.next_command(now_ns, &mut self.uses) {
            engine.counters.buffers_posted.add(1);
            self.queues.put(&window, &command, &[]);
            return true;
        }
        if !self.slots.has_free() {
            return false;
        }
        let nodes = (&self.routes, &mut self.peers);
        let Some(mut packet) = port.next_packet(now_ns, nodes, &mut self.sequence) else {
            return false;
        };
        let Some(handle) = self.slots.take(port.key, &packet) else {
            return false;
        };
        packet.name(handle);
        self.peers.sent(packet.node);
        self.queues
            .put(&window, &packet.command, packet.header.as_bytes());
        engine.counters.packets_sent.add(1);
        true
    }
}
