//! The engine: a thread that runs NICs of the process. One engine runs all of them; several share
//! them.
//!
//! ```text
//!   other threads ──[functions, by EngineHandle]──┐
//!   kick eventfds ───────────[epoll]────────────┐ │
//!                                               ▼ ▼
//!   round: receive from links, other engines and other processes
//!          for each NIC that is due
//!                        poll ─► control requests ─► responses ─► events ─► interrupt
//!          flush to other engines and processes
//!                                                     │
//!        work found ──► next round                    │ none for the poll window:
//!                                                     ▼
//!                              prepare_sleep on each of these, all return true ─► epoll_wait
//! ```
//! A NIC becomes *due* by a doorbell, a request, a buffer for events, a frame or its deadline, and
//! stays due until a turn finds nothing to do and none of its command queues is active
//! ([`Fabric::next_due`]). So a NIC that does nothing costs nothing (P9). Processes that had
//! commands within the last half millisecond ring no doorbell while this thread runs: it looks at
//! their queues when a round finds nothing, and with each check ([`Fabric::look`]).
//!
//! # Ownership
//! Rings, guest memories, SRAMs and NICs belong to this thread alone; other threads send
//! it functions through an [`EngineHandle`] and wait for the result. Once the call for a stop, a
//! new memory table or a disconnection has returned, this thread accesses none of the former queues
//! and memory. Another engine may still have to copy the payload of a frame from a guest's memory;
//! the fabric recalls such frames before the memory changes ([`qnic_links::siblings`]).
//!
//! # Waiting (performance.md, "Waiting policy")
//! The thread polls for [`qnic_config::EngineSettings::poll_window`] after the last work, but for no more than
//! [`CROWDED_WINDOW`] if the guests can take all processors: it then polls on that of a guest which has rung, and
//! could go on. Then it
//! announces in the *awake* words of the processes that it stops polling, and sleeps. While there
//! is work it still checks commands and kicks every [`CHECK_ROUNDS`] rounds, and every
//! [`CHECK_INTERVAL`] if rounds take long, so that a doorbell waits for one round of bulk and not
//! for 32 (U4). Without work it does so every [`IDLE_CHECK`].
//!
//! A process may need the processor of this thread in order to answer. In host mode, every process
//! that spins gives its processor up soon ([`qnic_abi::attach::YIELDING`]); then this thread does
//! so, too, after every [`TURN`] without work. It never does so if a guest is attached: a virtual
//! processor keeps a processor until the scheduler takes it away, milliseconds later.

mod engines;
mod handle;
mod nic_port;
mod node;
mod poller;
mod report;
mod ring;
mod traces;
mod traffic;

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use qnic_abi::ethernet::Ethernet;
use qnic_abi::NodeId;
use qnic_links::ethernet::EthernetFrame;
use qnic_links::{Fabric, LinkChange, LinkError, LinkSet, Tap, TapId};
use qnic_nic::{Progress, QueuePairFaults, Table, TableKind, Time};

pub(crate) use engines::{Engines, Tapped};
pub(crate) use handle::{channel, Commands, EngineGone, EngineHandle};
pub(crate) use nic_port::{Context, NicPort};
pub(crate) use node::Node;
use poller::{Poller, Token};
pub use report::{EngineReport, NetworkReport, NicCounters, NicReport, NicState, Report};
pub(crate) use ring::QueueSetup;
pub(crate) use traces::{empty_buffer, Traced};

/// Rounds with work between two checks of commands and kicks.
const CHECK_ROUNDS: u64 = 32;

/// Longest time between two checks, but for the round that is under way, in nanoseconds.
const CHECK_INTERVAL: u64 = 20_000;

/// NICs at rest that a round looks at for commands when it has found nothing: so few that a command at
/// one that is not at rest does not wait for them (P9).
const LOOKS: usize = 2;

/// The same, with each check.
const CHECK_LOOKS: usize = 16;

/// Longest time without work before a check, in nanoseconds: what a doorbell waits for.
const IDLE_CHECK: u64 = 1_000;

/// Longest poll window, in nanoseconds, if there are no more processors than guests.
const CROWDED_WINDOW: u64 = 1_000;

/// Longest time without work before the thread gives up its processor, in nanoseconds, if all
/// that spins does so.
const TURN: u64 = 1_000;

pub(crate) struct Engine {
    fabric: Fabric<Node>,
    nics: Vec<NicPort>,
    commands: Commands,
    poller: Poller,
    started: Instant,
    poll_window: Duration,
    /// There are no more processors than NICs.
    crowded: bool,
    /// All that spins gives up its processor.
    yielding: bool,
    counters: EngineReport,
    stopping: bool,
}

impl Engine {
    /// An engine for the NICs of `fabric`, with names in the order of its slots. Its clock begins
    /// at `started`.
    pub(crate) fn new(
        fabric: Fabric<Node>,
        names: Vec<String>,
        commands: Commands,
        poll_window: Duration,
        started: Instant,
    ) -> std::io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&*commands.wake, Token::Wake)?;
        if let Some(siblings) = fabric.siblings() {
            poller.add(siblings.descriptor(), Token::Wake)?;
        }
        for carrier in fabric.carriers() {
            poller.add(carrier.descriptor(), Token::Wake)?;
        }
        let nics = names.into_iter().enumerate().map(|(slot, name)| {
            let doorbells = fabric.nic(slot).geometry().doorbells as usize;
            NicPort::new(slot, name, doorbells)
        });
        let nics: Vec<_> = nics.collect();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Engine {
            crowded: processors <= nics.len(),
            nics,
            fabric,
            commands,
            poller,
            started,
            poll_window,
            yielding: false,
            counters: EngineReport::default(),
            stopping: false,
        })
    }

    /// Runs until [`Engine::stop`].
    pub(crate) fn run(mut self) {
        // Sleeps end in time, and not up to 50 µs later, if the system agrees.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut last_work = self.now();
        let mut last_check = last_work;
        let mut last_turn = last_work;
        while !self.stopping {
            let now = self.now();
            self.counters.rounds += 1;
            if self.round(now) || self.fabric.look(now, LOOKS) {
                last_work = now;
                last_turn = now;
            } else if now.0 - last_work.0 >= self.window() && self.may_sleep() {
                self.counters.sleeps += 1;
                self.check(self.time_to_deadline());
                last_work = self.now();
                last_check = last_work;
                last_turn = last_work;
                continue;
            } else if self.yielding && now.0 - last_turn.0 >= TURN {
                self.counters.yields += 1;
                std::thread::yield_now();
                last_turn = self.now();
            }
            let waited = now.0 - last_check.0;
            let idle = now.0 - last_check.max(last_work).0;
            if self.counters.rounds % CHECK_ROUNDS == 0
                || waited >= CHECK_INTERVAL
                || idle >= IDLE_CHECK
            {
                self.check(Some(Duration::ZERO));
                self.fabric.look(now, CHECK_LOOKS);
                last_check = now;
            }
        }
        for slot in 0..self.nics.len() {
            self.with_nic(slot, NicPort::disconnect);
        }
    }

    /// How long it polls after the last work, in nanoseconds.
    fn window(&self) -> u64 {
        let window = self.poll_window.as_nanos() as u64;
        match self.crowded && !self.yielding {
            true => window.min(CROWDED_WINDOW),
            false => window,
        }
    }

    fn now(&self) -> Time {
        Time(self.started.elapsed().as_nanos() as u64)
    }

    /// Gives every NIC that is due a turn. Returns true if one of them had work.
    fn round(&mut self, now: Time) -> bool {
        let mut busy = self.fabric.receive(now);
        let mut from = 0;
        while let Some(slot) = self.fabric.next_due(from) {
            from = slot + 1;
            let nic = &mut self.nics[slot];
            nic.counters.turns += 1;
            let mut worked = self.fabric.poll(slot, now) == Progress::Busy;
            worked |= nic.serve(&mut self.fabric, now);
            if !worked {
                self.fabric.rest(slot);
            }
            busy |= worked;
        }
        self.fabric.flush(now);
        busy
    }

    /// Returns true if every NIC can sleep: each that is due or watched announces it to its processes
    /// and checks once more for work. The others sleep.
    fn may_sleep(&mut self) -> bool {
        let now = self.now();
        let fabric = &mut self.fabric;
        fabric.make_watched_due();
        let mut from = 0;
        while let Some(slot) = fabric.next_due(from) {
            from = slot + 1;
            let sleeps = fabric.is_suspended(slot)
                || fabric.with(slot, now, |_, nic, host, _| nic.prepare_sleep(host));
            if !sleeps {
                return false;
            }
        }
        fabric.prepare_sleep()
    }

    fn time_to_deadline(&self) -> Option<Duration> {
        let first = self.fabric.next_deadline()?;
        Some(Duration::from_nanos(first.0.saturating_sub(self.now().0)))
    }

    /// Handles commands and kicks, after waiting up to `timeout` for the first of them.
    fn check(&mut self, timeout: Option<Duration>) {
        for token in self.poller.wait(timeout) {
            match token {
                // Commands are looked for below, and the next round receives from carriers.
                Token::Wake => {}
                Token::Kick { slot, queue } => {
                    self.counters.kicks += 1;
                    if let Some(nic) = self.nics.get_mut(slot) {
                        nic.kick(&mut self.fabric, queue);
                    }
                }
            }
        }
        while let Ok(command) = self.commands.receiver.try_recv() {
            command(self);
            let mut connected = self.nics.iter().filter(|nic| nic.connected);
            self.yielding = connected.all(|nic| nic.yielding);
        }
    }

    /// Calls `work` with the NIC of a slot.
    ///
    /// # Panics
    /// If there is no such slot.
    pub(crate) fn with_nic<T>(
        &mut self,
        slot: usize,
        work: impl FnOnce(&mut NicPort, &mut Context<'_>) -> T,
    ) -> T {
        // Whatever it changes, a turn follows.
        self.fabric.make_due(slot);
        let mut context = Context {
            now: self.now(),
            fabric: &mut self.fabric,
            poller: &self.poller,
        };
        work(&mut self.nics[slot], &mut context)
    }

    /// Sends Ethernet frames of the guest whose port is at a slot.
    pub(crate) fn send_ethernet(&mut self, slot: usize, frames: Vec<(Ethernet, Vec<u8>)>) {
        let now = self.now();
        for (left, bytes) in frames {
            self.fabric.send_ethernet(slot, now, left, bytes);
        }
    }

    /// Gives Ethernet frames of a program of the host to the ports here that they are for.
    pub(crate) fn receive_from_host(&mut self, frames: &[EthernetFrame]) {
        for frame in frames {
            self.fabric.receive_from_host(frame);
        }
    }

    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Announces a pause of the machine of a node. Returns false if its NIC does not run.
    pub(crate) fn expect_pause(&mut self, node: u16) -> bool {
        let (fabric, now) = (&self.fabric, self.now());
        let mut nics = self.nics.iter_mut();
        nics.find(|nic| fabric.nic(nic.slot).geometry().node.0 == node)
            .is_some_and(|nic| nic.expect_pause(now))
    }

    /// Changes the impairments of links, or removes them without a `change`. Returns the
    /// links.
    pub(crate) fn set_links(
        &mut self,
        links: LinkSet,
        seed: Option<u64>,
        change: LinkChange,
    ) -> Result<Vec<(NodeId, NodeId)>, LinkError> {
        self.fabric.set_links(links, seed, change)?;
        Ok(self.fabric.network().links_in(links))
    }

    /// Gives the frames on links to a tap. Returns its name and the present time.
    pub(crate) fn tap(
        &mut self,
        links: LinkSet,
        tap: Box<dyn Tap>,
    ) -> Result<(TapId, Time), LinkError> {
        let id = self.fabric.tap(links, tap)?;
        Ok((id, self.now()))
    }

    pub(crate) fn untap(&mut self, tap: TapId) {
        self.fabric.network_mut().untap(tap);
    }

    /// A table of what the NIC of a node holds; `None` if it is none of this process.
    pub(crate) fn table(&self, node: u16, kind: TableKind) -> Option<Table> {
        let mut nics = self.nics.iter();
        nics.find_map(|nic| nic.table(&self.fabric, node, kind))
    }

    /// Injects faults into a queue pair of the NIC of a node. Returns false if there is no such queue
    /// pair, and `None` if the NIC is none of this process.
    pub(crate) fn inject(
        &mut self,
        queue_pair: (u16, u32),
        faults: QueuePairFaults,
    ) -> Option<bool> {
        let now = self.now();
        let fabric = &mut self.fabric;
        let mut nics = self.nics.iter();
        nics.find_map(|nic| nic.inject(fabric, now, queue_pair, faults))
    }

    pub(crate) fn report(&self) -> Report {
        let nics = self.nics.iter().map(|nic| nic.report(&self.fabric));
        Report {
            nics: nics.collect(),
            engine: self.counters.clone(),
            network: NetworkReport::of(&self.fabric),
        }
    }
}
