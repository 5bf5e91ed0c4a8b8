//! The engine: one thread that runs all NICs of the process.
//!
//! ```text
//!   connection threads ──[Command, with an answer]──┐
//!   kick eventfds ───────────[epoll]──────────────┐ │
//!                                                 ▼ ▼
//!   round: receive from links and other processes
//!          for each NIC  poll ─► control requests ─► replies ─► events ─► interrupt
//!          flush to other processes
//!                                                     │
//!        work found ──► next round                    │ none for the poll window:
//!                                                     ▼
//!                              prepare_sleep on every NIC, all say yes ─► epoll_wait
//! ```
//!
//! # Ownership
//! Rings, guest memories, SRAMs and NICs belong to this thread alone; others hand
//! it finished [`Command`]s and wait for the answer. Once a stop, a new memory
//! table or a disconnection has been answered, nothing here touches what was
//! there before.
//!
//! # Waiting (performance.md, "Waiting policy")
//! The thread polls for [`crate::EngineSettings::poll_window`] after the
//! last work, tells the processes so by their *awake* words, and sleeps. It never
//! yields. While work keeps coming it still looks at commands and kicks every
//! [`CHECK_ROUNDS`] rounds.

mod command;
mod nic_slot;
mod node;
mod poller;
mod report;
mod ring;
mod traffic;

use std::num::NonZeroU64;
use std::sync::mpsc::Receiver;
use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic_links::{Fabric, ImpairmentChange, Impairments, LinkError, LinkSet};
use qnic_nic::{Progress, Time};

pub(crate) use command::{channel, Action, Answer, Command, EngineGone, EngineHandle, QueueSetup};
use nic_slot::NicSlot;
pub(crate) use node::Node;
use poller::{Poller, Token};
pub use report::{
    EngineReport, NetworkReport, NicCounters, NicReport, NicState, NicStatistics, Report,
};

use crate::notifier::Notifier;

/// Rounds with work between two looks at commands and kicks.
const CHECK_ROUNDS: u64 = 32;

/// The engine thread's state.
pub(crate) struct Engine {
    fabric: Fabric<Node>,
    nics: Vec<NicSlot>,
    commands: Receiver<Command>,
    poller: Poller,
    started: Instant,
    poll_window: Duration,
    counters: EngineReport,
    stopping: bool,
}

impl Engine {
    /// An engine for the NICs of `fabric`, in the order of its slots.
    ///
    /// # Errors
    /// What the system says to an epoll.
    pub(crate) fn new(
        fabric: Fabric<Node>,
        names: Vec<String>,
        commands: Receiver<Command>,
        wake: Arc<Notifier>,
        poll_window: Duration,
    ) -> std::io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&*wake, Token::Command)?;
        let nic_slot = |(slot, name)| {
            let doorbells = fabric.nic(slot).geometry().doorbells as usize;
            NicSlot::new(slot, name, doorbells)
        };
        for (index, carrier) in fabric.carriers().iter().enumerate() {
            poller.add(carrier.descriptor(), Token::Carrier(index))?;
        }
        let nics = names.into_iter().enumerate().map(nic_slot).collect();
        Ok(Engine {
            fabric,
            nics,
            commands,
            poller,
            started: Instant::now(),
            poll_window,
            counters: EngineReport::default(),
            stopping: false,
        })
    }

    /// Runs until [`Command::Stop`].
    pub(crate) fn run(mut self) {
        // Sleeps end when they should, and not up to 50 µs later, if the system agrees.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let window = self.poll_window.as_nanos() as u64;
        let mut last_work = self.now();
        while !self.stopping {
            let now = self.now();
            self.counters.rounds += 1;
            if self.round(now) {
                last_work = now;
            } else if now.0 - last_work.0 >= window && self.may_sleep() {
                self.counters.sleeps += 1;
                self.look(self.time_to_deadline());
                last_work = self.now();
                continue;
            }
            if self.counters.rounds % CHECK_ROUNDS == 0 {
                self.look(Some(Duration::ZERO));
            }
        }
        for slot in 0..self.nics.len() {
            self.nics[slot].disconnect(&mut self.fabric, Time(0), &self.poller);
        }
    }

    fn now(&self) -> Time {
        Time(self.started.elapsed().as_nanos() as u64)
    }

    /// Gives every NIC a turn and says whether one of them had work.
    fn round(&mut self, now: Time) -> bool {
        let mut busy = self.fabric.receive(now);
        for nic_slot in &mut self.nics {
            busy |= self.fabric.poll(nic_slot.slot(), now) == Progress::Busy;
            busy |= nic_slot.serve(&mut self.fabric, now);
        }
        self.fabric.flush(now);
        busy
    }

    /// Asks every NIC whether it can sleep: each tells its processes and looks
    /// once more.
    fn may_sleep(&mut self) -> bool {
        let now = self.now();
        let fabric = &mut self.fabric;
        (0..self.nics.len())
            .all(|slot| fabric.with(slot, now, |nic, host, _| nic.prepare_sleep(host)))
            && fabric.prepare_sleep()
    }

    fn time_to_deadline(&self) -> Option<Duration> {
        let first = self.fabric.next_deadline()?;
        Some(Duration::from_nanos(first.0.saturating_sub(self.now().0)))
    }

    /// Takes commands and kicks, waiting for the first of them up to `timeout`.
    fn look(&mut self, timeout: Option<Duration>) {
        let mut commands = false;
        for token in self.poller.wait(timeout) {
            match token {
                Token::Command => commands = true,
                // The next round looks at it.
                Token::Carrier(_) => {}
                Token::Kick { slot, queue } => {
                    self.counters.kicks += 1;
                    if let Some(nic_slot) = self.nics.get_mut(slot) {
                        nic_slot.kick(&mut self.fabric, queue);
                    }
                }
            }
        }
        if commands {
            while let Ok(command) = self.commands.try_recv() {
                self.execute(command);
            }
        }
    }

    fn execute(&mut self, command: Command) {
        let now = self.now();
        let (slot, action) = match command {
            Command::Stop => {
                self.stopping = true;
                return;
            }
            Command::Report { answer } => {
                let _ = answer.send(self.report());
                return;
            }
            Command::ExpectPause { node, answer } => {
                let (fabric, now) = (&self.fabric, self.now());
                let mut nics = self.nics.iter_mut();
                let nic_slot =
                    nics.find(|nic_slot| fabric.nic(nic_slot.slot()).geometry().node.0 == node);
                let _ = answer.send(nic_slot.is_some_and(|nic_slot| nic_slot.expect_pause(now)));
                return;
            }
            Command::SetLinks {
                links,
                change,
                answer,
            } => {
                let _ = answer.send(self.set_links(links, change));
                return;
            }
            Command::Tap { links, tap, answer } => {
                let tapped = self.fabric.tap(links, tap);
                let _ = answer.send(tapped.map(|tap| (tap, now)));
                return;
            }
            Command::Untap { tap } => {
                self.fabric.network_mut().untap(tap);
                return;
            }
            Command::Nic { slot, action } => (slot, action),
        };
        if let Some(nic_slot) = self.nics.get_mut(slot) {
            nic_slot.execute(&mut self.fabric, now, &self.poller, action);
        }
    }

    fn set_links(
        &mut self,
        links: LinkSet,
        change: Option<ImpairmentChange>,
    ) -> Result<usize, LinkError> {
        let network = self.fabric.network_mut();
        network.set(links, |impairments| {
            *impairments =
                change.map_or(Impairments::NONE, |change| change.applied_to(*impairments));
        })
    }

    fn report(&self) -> Report {
        let nics = self
            .nics
            .iter()
            .map(|nic_slot| nic_slot.report(&self.fabric));
        Report {
            nics: nics.collect(),
            engine: self.counters.clone(),
            network: NetworkReport::of(&self.fabric),
        }
    }
}
