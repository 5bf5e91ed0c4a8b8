//! A node: its NIC as the device process drives it, and its tasks.
//!
//! ```text
//!   doorbell, request, frame ──► wake ──► poll … poll ──idle for a while──► prepare_sleep
//!                                                                   │
//!                            asleep, until the next of them, or the NIC's deadline
//! ```
//! The time between two polls is random, so the NICs of a cluster interleave in many
//! orders. After each call of a NIC no page is locked: whatever happens between two calls
//! happens to a NIC that holds nothing.

mod checks;

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use qnic_abi::event::EVENT_BYTES;
use qnic_abi::shared::Ordering;
use qnic_abi::wire;
use qnic_abi::NodeId;
use qnic_driver::{check_config, Driver, Handled};
use qnic_nic::testing::Sram;
use qnic_nic::{Counters, Host, Nic, NicConfig, Progress, Time};
use zerocopy::IntoBytes;

use crate::common::{Common, Phase};
use crate::links::wire::{details, summary, Arrived, Network, Outlet};
use crate::machine::memory::Memory;
use crate::machine::platform::{Machine, SimPlatform};
use crate::process::ProcessContext;
use crate::schedule::{lock, trace, Event, Incarnation};
use crate::settings::Faults;
use crate::workload::Workloads;

/// Windows of each NIC.
const WINDOWS: u32 = 4;

/// Doorbells of each NIC: fewer than windows, as on real devices.
const DOORBELLS: u32 = 2;

/// Event buffers that a driver posts.
const EVENT_BUFFERS: usize = 6;

/// A NIC that had nothing to do for so long goes to sleep, in nanoseconds.
const SLEEP_AFTER: u64 = 5000;

/// So many times longer are pauses between evictions where no page can be taken.
const REST: u64 = 16;

/// Workers of a driver that serve page faults.
const WORKERS: usize = 2;

/// What a NIC may touch.
impl Host for Machine {
    type Sram = Sram;
    type Memory = Memory;

    fn sram(&self) -> &Sram {
        &self.sram
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// One node of the cluster.
pub(crate) struct Node {
    workloads: Arc<Workloads>,
    common: Arc<Common>,
    /// Its number, and how often it has started.
    incarnation: Incarnation,
    /// `None` while it has no power.
    nic: Option<Nic>,
    /// The machine, also for a while after it has ended.
    machine: Option<Arc<Machine>>,
    /// It is up: its NIC was started and not reset since.
    pub(crate) is_up: bool,
    poll_at: Option<u64>,
    idle_since: Option<u64>,
    /// Event buffers that the NIC has filled.
    events: VecDeque<[u8; EVENT_BYTES]>,
    interrupted: bool,
    /// Its driver is so many times slower than others.
    slowness: u64,
}

impl Node {
    pub(crate) fn new(workloads: &Arc<Workloads>, number: usize) -> Self {
        Node {
            workloads: workloads.clone(),
            common: workloads.common.clone(),
            incarnation: Incarnation {
                node: number,
                number: 0,
            },
            nic: None,
            machine: None,
            is_up: false,
            poll_at: None,
            idle_since: None,
            events: VecDeque::new(),
            interrupted: false,
            slowness: 1,
        }
    }

    /// Returns true if an event is of this incarnation of the node.
    pub(crate) fn is_current(&self, incarnation: Incarnation) -> bool {
        self.is_up && incarnation == self.incarnation
    }

    /// Returns true if nothing of its last incarnation runs any more, so that it can start.
    pub(crate) fn can_start(&self) -> bool {
        let machine = self.machine.as_ref();
        !self.is_up && machine.is_none_or(|machine| lock(&machine.tasks).is_empty())
    }

    /// Starts it: the NIC first, then the driver, then processes.
    pub(crate) fn start(&mut self, network: &mut Network) {
        let settings = &self.common.settings;
        let now = Time(self.common.schedule.now());
        let nic = self.nic.get_or_insert_with(|| {
            let config = NicConfig {
                node: NodeId(self.incarnation.node as u16),
                frames: settings.frames,
                windows: WINDOWS,
                doorbells: DOORBELLS,
                limits: settings.limits.clone(),
                routes: std::collections::BTreeMap::new(),
                nodes: (0..settings.options.nodes as u16).map(NodeId).collect(),
            };
            Nic::new(config).expect("a geometry")
        });
        self.incarnation.number += 1;
        let incarnation = self.incarnation;
        let observer: Weak<Workloads> = Arc::downgrade(&self.workloads);
        let shared = (&self.common.schedule, settings);
        let machine = Machine::new(shared, observer, incarnation, *nic.geometry());
        // The wall clock of all nodes, which no session has reached yet.
        nic.start(now, &*machine, now.0 + 1);
        network.session_checker.started(self.incarnation.node);
        let config = nic.config_space();
        self.events.clear();
        self.interrupted = false;
        self.poll_at = None;
        self.idle_since = None;
        self.is_up = true;
        self.machine = Some(machine.clone());
        let Incarnation { node, number } = incarnation;
        trace!(
            self.common.schedule,
            "node {node}: starts, incarnation {number}"
        );
        let (workloads, booting) = (self.workloads.clone(), machine.clone());
        machine.run(move || {
            let bytes = config.as_bytes().try_into().expect("its size");
            let config = check_config(bytes).expect("a good configuration space");
            match Driver::start(SimPlatform(booting.clone()), &config) {
                Ok(driver) if !booting.is_gone() => {
                    *lock(&booting.driver) = Some(driver.clone());
                    populate(&workloads, &booting, &driver);
                }
                Ok(_) => {}
                Err(_) if booting.is_gone() => {}
                Err(error) => panic!("node {node}: the driver does not start: {error}"),
            }
        });
        self.wake();
    }

    /// Resets the NIC under its driver, as a guest that ends does.
    pub(crate) fn reset(&mut self, network: &mut Network) {
        self.end_life(|nic, machine, common| {
            let now = Time(common.schedule.now());
            let from = machine.incarnation.node;
            let memory = &machine.memory;
            let mut outlet = Outlet {
                network,
                from,
                memory,
            };
            nic.reset(now, machine, &mut outlet);
        });
    }

    /// Takes its power: it says nothing to its peers. Wires still hold what it has sent.
    pub(crate) fn crash(&mut self) {
        self.end_life(|_, _, _| {});
        self.nic = None;
    }

    fn end_life(&mut self, end: impl FnOnce(&mut Nic, &Machine, &Common)) {
        let (Some(nic), Some(machine)) = (&mut self.nic, &self.machine) else {
            return;
        };
        self.is_up = false;
        for (slot, node) in self.common.settings.slots.iter().enumerate() {
            if *node == self.incarnation.node {
                let now = self.common.schedule.now();
                self.workloads.oracle(slot).end(slot, now);
            }
        }
        let driver = lock(&machine.driver).take();
        if let Some(driver) = &driver {
            driver.begin_removal();
        }
        end(nic, machine, &self.common);
        if let Some(driver) = driver {
            driver.detach();
        }
        machine.disappear();
    }

    /// Has the NIC polled soon.
    pub(crate) fn wake(&mut self) {
        self.idle_since = None;
        let delay = self.common.schedule.delay(50..1500);
        self.poll_by(self.common.schedule.now() + delay);
    }

    fn poll_by(&mut self, time: u64) {
        if self.poll_at.is_none_or(|at| time < at) {
            self.poll_at = Some(time);
            let event = Event::Poll(self.incarnation);
            self.common.schedule.at(time, event);
        }
    }

    /// Calls the NIC, if it has power.
    fn call<T>(
        &mut self,
        network: &mut Network,
        call: impl FnOnce(&mut Nic, Time, &Machine, &mut Outlet) -> T,
    ) -> Option<T> {
        let now = Time(self.common.schedule.now());
        let from = self.incarnation.node;
        let (nic, machine) = (self.nic.as_mut()?, self.machine.as_ref()?);
        let memory = &machine.memory;
        let mut outlet = Outlet {
            network,
            from,
            memory,
        };
        Some(call(nic, now, machine, &mut outlet))
    }

    pub(crate) fn ring(&mut self, doorbell: u32) {
        if let Some(nic) = &mut self.nic {
            nic.handle_doorbell(doorbell);
        }
        self.wake();
    }

    /// Hands a frame to the NIC, which must see whether it is of another incarnation.
    /// `memory` is that of its sender.
    pub(crate) fn take_frame(
        &mut self,
        network: &mut Network,
        arrived: &Arrived,
        memory: Option<&Memory>,
    ) {
        if !self.is_up {
            return network.give_back(arrived);
        }
        let payload = arrived.content.lies_in(memory);
        let number = self.incarnation.node;
        let taken = self.call(network, |nic, now, machine, _| {
            let before = nic.counters().stale_frames;
            nic.handle_frame(now, machine, &arrived.frame, payload);
            let stale = nic.counters().stale_frames - before;
            assert!(
                !arrived.stale || stale == 1,
                "node {number}: a frame of another incarnation is taken: {} | {}",
                summary(&arrived.frame),
                details(&arrived.frame)
            );
        });
        if taken.is_some() {
            self.wake();
            self.after_call();
        }
    }

    /// Hands a frame back to the NIC that has sent it, which must see whether it is of another
    /// incarnation.
    pub(crate) fn take_returned(&mut self, network: &mut Network, frame: &wire::Frame) {
        if !self.is_up {
            return;
        }
        let taken = self.call(network, |nic, now, machine, _| {
            nic.handle_returned(now, machine, frame);
        });
        if taken.is_some() {
            self.wake();
            self.after_call();
        }
    }

    /// Its machine.
    pub(crate) fn machine(&self) -> Option<Arc<Machine>> {
        self.machine.clone()
    }

    /// Hands the next request of the driver to the NIC.
    pub(crate) fn take_request(&mut self, network: &mut Network) {
        let taken = self.call(network, |nic, now, machine, wire| {
            let (token, request) = lock(&machine.control).requests.pop_front()?;
            let reply = nic.handle_control(now, machine, wire, &request, token);
            if let Some(reply) = reply {
                machine.answer(token, reply);
            }
            Some(())
        });
        if taken.flatten().is_some() {
            self.wake();
            self.after_call();
        }
    }

    /// Polls the NIC, if that is due.
    pub(crate) fn poll(&mut self, network: &mut Network) {
        let now = self.common.schedule.now();
        if self.poll_at != Some(now) {
            return;
        }
        self.poll_at = None;
        let idle_since = *self.idle_since.get_or_insert(now);
        let sleeps = now - idle_since >= SLEEP_AFTER;
        let polled = self.call(network, |nic, now, machine, wire| {
            let progress = nic.poll(now, machine, wire);
            let asleep = progress == Progress::Idle && sleeps && nic.prepare_sleep(machine);
            (progress, asleep.then(|| nic.next_deadline()))
        });
        match polled {
            None => return,
            Some((Progress::Busy, _)) => {
                self.idle_since = None;
                let longest = self.common.settings.poll;
                self.poll_by(now + self.common.schedule.delay(100..longest));
            }
            Some((Progress::Idle, None)) => {
                self.poll_by(now + self.common.schedule.delay(500..3000));
            }
            Some((Progress::Idle, Some(deadline))) => {
                if let Some(Time(deadline)) = deadline {
                    self.poll_by(deadline.max(now + 1));
                }
            }
        }
        self.after_call();
    }

    /// Takes what the NIC has for its driver.
    fn after_call(&mut self) {
        let (Some(nic), Some(machine)) = (&mut self.nic, &self.machine) else {
            return;
        };
        while let Some((token, reply)) = nic.poll_reply() {
            machine.answer(token, reply);
        }
        while self.events.len() < EVENT_BUFFERS {
            let Some(event) = nic.poll_event() else {
                break;
            };
            let bytes = event.as_bytes().try_into().expect("the size of an event");
            self.events.push_back(bytes);
        }
        self.check_holdings();
        self.interrupt();
    }

    fn interrupt(&mut self) {
        if !self.events.is_empty() && !self.interrupted {
            self.interrupted = true;
            let delay = 200 * self.slowness..8000 * self.slowness;
            let event = Event::Interrupt(self.incarnation);
            self.common.schedule.after(delay, event);
        }
    }

    /// The driver takes its events.
    pub(crate) fn handle_interrupt(&mut self) {
        self.interrupted = false;
        let number = self.incarnation.node;
        let Some(machine) = self.machine.clone() else {
            return;
        };
        let Some(driver) = lock(&machine.driver).clone() else {
            return;
        };
        while driver.event_room() {
            let Some(event) = self.events.pop_front() else {
                break;
            };
            match driver.handle_event(&event) {
                Handled::Done => {}
                Handled::FaultQueued => machine.schedule.notify(&machine.faults),
                Handled::Refused => panic!("node {number}: the driver refuses an event"),
            }
        }
        self.after_call();
    }

    /// The driver serves its datagrams.
    pub(crate) fn serve_datagrams(&self) {
        let driver = self
            .machine
            .as_ref()
            .filter(|machine| machine.must_serve_datagrams())
            .map(|machine| lock(&machine.driver).clone());
        if let Some(driver) = driver.flatten() {
            driver.serve_datagrams();
        }
    }

    /// Makes its driver and disk slower, or as fast as usual again.
    pub(crate) fn set_slowness(&mut self, slowness: u64) {
        self.slowness = slowness;
        if let Some(machine) = &self.machine {
            let longest = self.common.settings.disk * slowness;
            machine.kernel.disk.store(longest, Ordering::Relaxed);
        }
    }

    /// The counters of its NIC, if it has power.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.nic.as_ref().map(Nic::counters)
    }
}

/// Starts everything that runs on a machine whose driver has started.
fn populate(workloads: &Arc<Workloads>, machine: &Arc<Machine>, driver: &Arc<Driver<SimPlatform>>) {
    let common = &workloads.common;
    for _ in 0..WORKERS {
        let (worker, driver) = (machine.clone(), driver.clone());
        machine.run(move || {
            while !worker.is_gone() {
                if !driver.serve_fault() {
                    worker.schedule.wait(Some(&worker.faults), None);
                }
            }
        });
    }
    if common.settings.options.faults.contains(Faults::EVICT) {
        let (common, evicted) = (common.clone(), machine.clone());
        machine.run(move || {
            let schedule = &common.schedule;
            let mut longest = common.settings.evict;
            while !evicted.is_gone() && common.phase() == Phase::Work {
                schedule.sleep(schedule.range(1000..longest));
                let taken = evicted.kernel.reclaim_any();
                longest = match taken {
                    true => common.settings.evict,
                    // Nothing comes in while processes wait for each other.
                    false => (2 * longest).min(REST * common.settings.evict),
                };
                if taken && schedule.chance(50) {
                    // A storm: the kernel wants much memory at once.
                    for _ in 0..schedule.range(5..60) {
                        evicted.kernel.reclaim_any();
                    }
                }
            }
        });
    }
    for (number, node) in common.settings.slots.iter().enumerate() {
        if *node == machine.incarnation.node {
            let process = ProcessContext {
                common: common.clone(),
                machine: machine.clone(),
                slot: number,
            };
            let workloads = workloads.clone();
            machine.run(move || workloads.run(&process));
        }
    }
}
