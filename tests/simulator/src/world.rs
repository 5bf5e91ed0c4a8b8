//! One simulation from its seed to its end.
//!
//! ```text
//!   Work: processes transfer, faults are injected ──► Drain: everything is repaired; what
//!   is under way must end ──► audit of all memory ──► Exit: processes end ──► audit of
//!   nodes: nothing is left
//! ```

use std::sync::Arc;

use qnic_nic::Counters;

use crate::common::{Common, Phase, SlotState};
use crate::links::sessions::ends;
use crate::links::wire::{Arrived, Network};
use crate::node::Node;
use crate::process::watched::UnavailablePage;
use crate::report::Report;
use crate::routes::Routes;
use crate::schedule::{lock, trace, Event, Incarnation, Schedule, Trace};
use crate::settings::{delay_only, Faults, Options, Settings};
use crate::task::Tasks;
use crate::workload::{Workload, Workloads};
use crate::workloads;

/// How long processes may work, in nanoseconds.
const WORK: u64 = 3_000_000_000;

/// How long everything may take to end once nothing breaks any more, in nanoseconds.
const DRAIN: u64 = 20_000_000_000;

/// How long routes count as disturbed after they were repaired: by then, all NICs have
/// noticed, in nanoseconds.
const SETTLE: u64 = 3_000_000_000;

/// What the audit at the end waits for: the last frames and deadlines, in nanoseconds.
const QUIET: u64 = 2_000_000_000;

/// Within this time processes wait for others that are to, in nanoseconds.
const WAITING: u64 = 50_000_000;

/// How long a node is away that comes back at once, in nanoseconds: wires may hold frames
/// for longer.
const MOMENT: u64 = 40_000;

/// More events than any simulation has, for each pair of nodes, a node with itself included:
/// something repeats without end.
const EVENTS: u64 = 125_000;

/// What injects a fault.
type Injection = fn(&mut World);

/// Something that was broken and will be repaired.
#[derive(Debug, Clone, Copy)]
enum ActiveFault {
    /// The node is down.
    Node(usize),
    /// The route from one node to another is cut, perhaps also back.
    Route(usize, usize),
    /// The node is slow.
    Slow(usize),
    /// A page of the process in a slot cannot be brought in.
    Unavailable(UnavailablePage),
}

/// One simulation.
pub(crate) struct World {
    common: Arc<Common>,
    workloads: Arc<Workloads>,
    schedule: Arc<Schedule>,
    nodes: Vec<Node>,
    network: Network,
    tasks: Tasks,
    active_faults: Vec<Option<ActiveFault>>,
    events: u64,
    injected_faults: u64,
    /// When the present phase must be over.
    deadline: u64,
    /// Processes that waited for what is lost have been killed.
    starving_killed: bool,
}

impl World {
    pub(crate) fn new(seed: u64, options: &Options, trace: Trace) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut settings = Settings::new(options, &mut random);
        let routes = Routes::default();
        let workloads = workloads::of_seed(seed, &mut settings, &routes);
        let schedule = Schedule::new(random.u64(..), trace);
        trace!(schedule, "seed {seed}, {settings:?}");
        Self::with(settings, schedule, workloads, routes)
    }

    /// A world in which nothing has started.
    pub(crate) fn with(
        settings: Settings,
        schedule: Schedule,
        workloads: Vec<Box<dyn Workload>>,
        routes: Routes,
    ) -> Self {
        let schedule = Arc::new(schedule);
        schedule.install();
        let network = Network::new(schedule.clone(), &settings, &routes);
        let common = Arc::new(Common::new(schedule.clone(), settings));
        let workloads = Arc::new(Workloads::new(common.clone(), workloads, routes));
        let nodes = 0..common.settings.options.nodes;
        let nodes = nodes.map(|number| Node::new(&workloads, number));
        World {
            nodes: nodes.collect(),
            network,
            tasks: Tasks::default(),
            active_faults: Vec::new(),
            events: 0,
            injected_faults: 0,
            deadline: WORK,
            starving_killed: false,
            common,
            workloads,
            schedule,
        }
    }

    /// Runs to the end. Panics, with a message, where a promise is broken.
    pub(crate) fn run(&mut self) -> Report {
        self.start();
        for _ in 0..self.common.settings.injected_faults {
            let within = self.common.settings.faulty_time();
            self.schedule.after(0..within.min(WORK), Event::InjectFault);
        }
        self.until(|world| world.all_slots(SlotState::Drained));
        self.repair_everything();
        self.deadline = self.schedule.now() + DRAIN;
        self.common.set_phase(Phase::Drain);
        self.until(|world| {
            world.is_repaired() && world.all_slots(SlotState::Drained) && world.is_settled()
        });
        self.workloads.oracles().for_each(|oracle| oracle.audit());
        self.lose_awaited_node();
        self.exit()
    }

    /// Runs until all processes have done what they do, with nothing that breaks; returns the longest
    /// time that a frame was on a link, in nanoseconds, and how many frames the NICs have sent, and
    /// sent once more.
    pub(crate) fn run_undisturbed(&mut self, limit: u64) -> (u64, u64, u64) {
        self.start();
        self.deadline = limit;
        self.until(|world| world.all_slots(SlotState::Drained));
        assert!(self.all_slots(SlotState::Drained), "a stream is stuck");
        let resent = self.sum(|counters| counters.frames_resent);
        let measured = (self.network.longest_transit, self.network.sent, resent);
        self.exit();
        measured
    }

    fn start(&mut self) {
        for node in &mut self.nodes {
            node.start(&mut self.network);
        }
    }

    /// Lets all processes end, and looks at what is left.
    fn exit(&mut self) -> Report {
        self.deadline = self.schedule.now() + DRAIN;
        self.common.set_phase(Phase::Exit);
        self.until(|world| world.all_slots(SlotState::Empty));
        self.pass(QUIET);
        for node in &self.nodes {
            node.audit();
        }
        self.switch_off()
    }

    /// A node loses its power of which something waits for a process: that ends within twice the peer
    /// timeout, although nothing is sent (U10), nor was when it was posted: until then no NIC has reason
    /// to watch another one. On a lossless wire no node ends without a word.
    fn lose_awaited_node(&mut self) {
        let options = &self.common.settings.options;
        if !options.possible_faults().contains(Faults::CRASH) || options.lossless {
            return;
        }
        self.pass(self.common.settings.limits.peer_timeout);
        self.common.let_wait();
        self.pass(WAITING);
        let awaited = |node: &usize| {
            let mut oracles = self.workloads.oracles();
            self.nodes[*node].is_up && oracles.any(|it| it.waits_for(*node, u64::MAX).is_some())
        };
        let Some(node) = (0..self.nodes.len()).find(awaited) else {
            return;
        };
        // By then, all NICs know of all others that are up.
        self.pass(SETTLE);
        let since = self.schedule.now();
        trace!(self.schedule, "node {node} loses its power, and is awaited");
        self.disturb(node);
        self.nodes[node].crash();
        self.pass(2 * self.common.settings.limits.peer_timeout);
        let mut oracles = self.workloads.oracles();
        if let Some(waiting) = oracles.find_map(|oracle| oracle.waits_for(node, since)) {
            panic!("it waits for node {node}, which has lost its power: {waiting}");
        }
    }

    /// Lets so much time pass.
    fn pass(&mut self, time: u64) {
        let until = self.schedule.now() + time;
        self.deadline = until + DRAIN;
        self.schedule.at(until, Event::InjectFault);
        self.until(|world| world.schedule.now() >= until);
    }

    /// Sum of a counter of all NICs that have power.
    fn sum(&self, counter: impl Fn(&Counters) -> u64) -> u64 {
        let counters = self.nodes.iter().filter_map(Node::counters);
        counters.map(|counters| counter(&counters)).sum()
    }

    /// Lets everything go on until a condition holds.
    fn until(&mut self, done: impl Fn(&World) -> bool) {
        while !done(self) {
            if self.schedule.now() > self.deadline {
                if self.common.phase() == Phase::Work {
                    return;
                }
                if self.end_starving() {
                    continue;
                }
                panic!("no progress: {}", self.oldest("processes do not end"));
            }
            let Some(event) = self.schedule.next() else {
                panic!("nothing happens any more: {}", self.oldest("all wait"));
            };
            self.events += 1;
            let most = EVENTS * self.nodes.len().pow(2) as u64;
            assert!(self.events < most, "no progress: events without end");
            self.handle(event);
        }
    }

    /// Kills the processes that wait for what is lost, and waits for the others once more;
    /// once. Returns true if there were some.
    fn end_starving(&mut self) -> bool {
        let starving: Vec<usize> = self
            .workloads
            .oracles()
            .flat_map(|oracle| oracle.starving())
            .collect();
        if starving.is_empty() || std::mem::replace(&mut self.starving_killed, true) {
            return false;
        }
        for slot in starving {
            trace!(self.schedule, "sync worker {slot} starves, and is killed");
            self.end_process(slot);
        }
        self.deadline = self.schedule.now() + DRAIN;
        true
    }

    /// What has been under way for the longest time, or what is wrong if nothing is.
    fn oldest(&self, otherwise: &str) -> String {
        let oldest = self.workloads.oracles().find_map(|oracle| oracle.oldest());
        let oldest = oldest.or_else(|| self.nodes.iter().find_map(Node::left));
        oldest.unwrap_or_else(|| otherwise.to_owned())
    }

    /// Returns true if each slot on a node that is up is in this state.
    fn all_slots(&self, state: SlotState) -> bool {
        let slots = lock(&self.common.slots);
        let mut slots = slots.iter().zip(&self.common.settings.slots);
        slots.all(|(slot, node)| slot.state == state || !self.nodes[*node].is_up)
    }

    /// Returns true if no message is under way, all drivers reach each other by datagrams, and no
    /// NIC keeps a message, or a group, or other names than processes have.
    fn is_settled(&self) -> bool {
        let settled = self.others_are_verified()
            && self.workloads.oracles().all(|oracle| oracle.is_settled());
        settled && self.nodes.iter().all(|node| node.left().is_none())
    }

    /// Returns true if all workers on nodes that are up have seen that everything works again, of
    /// those that look for it.
    fn others_are_verified(&self) -> bool {
        let slots = lock(&self.common.slots);
        let mut slots = slots.iter().zip(&self.common.settings.slots);
        slots.all(|(slot, node)| !slot.verifies || !self.nodes[*node].is_up)
    }

    fn is_repaired(&self) -> bool {
        self.active_faults.iter().all(Option::is_none)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Resume(task, wait) => {
                for body in self.schedule.new_tasks() {
                    self.tasks.add(body);
                }
                if self.schedule.enter(task, wait) {
                    self.tasks.resume(task);
                    self.schedule.leave();
                }
            }
            Event::Poll(of) => self.at_node(of, Node::poll),
            Event::Control(of) => self.at_node(of, Node::take_request),
            Event::Interrupt(of) => self.at_node(of, |node, _| node.handle_interrupt()),
            Event::Datagrams(of) => self.at_node(of, |node, _| node.serve_datagrams()),
            Event::Doorbell(of, doorbell) => self.at_node(of, |node, _| node.ring(doorbell)),
            Event::Arrival(link) => {
                while let Some(arrived) = self.network.poll(link) {
                    self.deliver(&arrived);
                }
            }
            Event::Late(copy) => {
                if let Some(arrived) = self.network.late(copy) {
                    self.deliver(&arrived);
                }
            }
            Event::Direct(way, is_small) => {
                if let Some(arrived) = self.network.direct(way, is_small) {
                    self.deliver(&arrived);
                }
            }
            Event::InjectFault => self.inject_fault(),
            Event::Repair(fault) => self.repair(fault),
        }
    }

    /// Handles an event of a node, unless it is of an earlier incarnation.
    fn at_node(&mut self, of: Incarnation, handle: impl FnOnce(&mut Node, &mut Network)) {
        let node = &mut self.nodes[of.node];
        if node.is_current(of) {
            handle(node, &mut self.network);
        }
    }

    fn deliver(&mut self, arrived: &Arrived) {
        let (from, to) = ends(&arrived.frame);
        if arrived.returned {
            return self.nodes[from].take_returned(&mut self.network, &arrived.frame);
        }
        let sender = self.nodes[from].machine();
        let memory = sender.as_ref().map(|machine| &*machine.memory);
        self.nodes[to].take_frame(&mut self.network, arrived, memory);
    }

    fn inject_fault(&mut self) {
        if self.common.phase() != Phase::Work {
            return;
        }
        let faults = self.common.settings.options.faults;
        let kinds: [(Faults, Injection); 6] = [
            (Faults::KILL, World::kill),
            (Faults::RESET, World::reset),
            (Faults::CRASH, World::crash),
            (Faults::PARTITION, World::cut),
            (Faults::SLOW, World::slow),
            (Faults::UNAVAILABLE, World::make_unavailable),
        ];
        let kinds = kinds.into_iter().filter(|(kind, _)| faults.contains(*kind));
        let kinds: Vec<_> = kinds.collect();
        if !kinds.is_empty() {
            self.injected_faults += 1;
            kinds[self.schedule.below(kinds.len())].1(self);
        }
    }

    fn activate(&mut self, fault: ActiveFault, time: std::ops::Range<u64>) {
        self.active_faults.push(Some(fault));
        let number = self.active_faults.len() - 1;
        self.schedule.after(time, Event::Repair(number));
    }

    /// How long a node is away: sometimes so short that wires still hold frames of its old
    /// incarnation when the new one begins.
    fn absence(&self, longest: u64) -> std::ops::Range<u64> {
        match self.schedule.chance(400) {
            true => 1000..MOMENT,
            false => 1000..longest,
        }
    }

    fn kill(&mut self) {
        let slot = self.schedule.below(self.common.settings.slots.len());
        if lock(&self.common.slots)[slot].state != SlotState::Empty {
            trace!(self.schedule, "fault: process {slot} is killed");
            self.end_process(slot);
        }
    }

    fn end_process(&self, slot: usize) {
        self.workloads.oracle(slot).killed(slot);
        self.schedule.kill(lock(&self.common.slots)[slot].task);
    }

    /// A node goes down, and wires may know of it.
    fn disturb(&mut self, node: usize) {
        self.workloads.disturb_node(node, u64::MAX);
        self.network.reachable[node] = !self.common.settings.wires_know;
    }

    fn reset(&mut self) {
        let node = self.schedule.below(self.nodes.len());
        if self.nodes[node].is_up {
            trace!(self.schedule, "fault: NIC {node} is reset");
            self.disturb(node);
            self.nodes[node].reset(&mut self.network);
            let time = self.absence(20_000_000);
            self.activate(ActiveFault::Node(node), time);
        }
    }

    fn crash(&mut self) {
        let node = self.schedule.below(self.nodes.len());
        if self.nodes[node].is_up {
            trace!(self.schedule, "fault: node {node} loses its power");
            self.disturb(node);
            self.nodes[node].crash();
            if self.schedule.chance(850) {
                let time = self.absence(1_500_000_000);
                self.activate(ActiveFault::Node(node), time);
            }
        }
    }

    fn cut(&mut self) {
        let a = self.schedule.below(self.nodes.len());
        let b = self.schedule.below(self.nodes.len());
        if a != b {
            trace!(self.schedule, "fault: the route from {a} to {b} is cut");
            self.workloads.disturb_route(a, b, u64::MAX);
            self.network.set_cut(a, b, true);
            if self.schedule.chance(500) {
                self.network.set_cut(b, a, true);
            }
            self.activate(ActiveFault::Route(a, b), 1000..1_500_000_000);
        }
    }

    fn slow(&mut self) {
        let node = self.schedule.below(self.nodes.len());
        let slowness = self.schedule.range(2..100);
        trace!(
            self.schedule,
            "fault: node {node} is {slowness} times slower"
        );
        self.nodes[node].set_slowness(slowness);
        self.activate(ActiveFault::Slow(node), 1_000_000..50_000_000);
    }

    /// Takes a page from a process that transfers, and brings it in no more.
    fn make_unavailable(&mut self) {
        let page = self.workloads.make_unavailable();
        if let Some(page) = page {
            trace!(self.schedule, "fault: {page:?} is unavailable");
            self.activate(ActiveFault::Unavailable(page), 1000..20_000_000);
        }
    }

    fn repair(&mut self, number: usize) {
        let Some(fault) = self.active_faults[number].take() else {
            return;
        };
        let settled = self.schedule.now() + SETTLE;
        trace!(self.schedule, "repaired: {fault:?}");
        match fault {
            ActiveFault::Node(node) if self.nodes[node].can_start() => {
                self.network.reachable[node] = true;
                self.nodes[node].start(&mut self.network);
                self.workloads.disturb_node(node, settled);
            }
            ActiveFault::Node(_) => self.activate(fault, 1000..MOMENT),
            ActiveFault::Route(a, b) => {
                self.network.set_cut(a, b, false);
                self.network.set_cut(b, a, false);
                self.workloads.disturb_route(a, b, settled);
            }
            ActiveFault::Slow(node) => self.nodes[node].set_slowness(1),
            ActiveFault::Unavailable(page) => {
                let now = self.schedule.now();
                self.workloads.oracle(page.slot).make_available(page, now);
            }
        }
    }

    /// Ends all active faults; from now on, the wires only delay. Nodes that were to stay
    /// down stay down.
    fn repair_everything(&mut self) {
        self.network.set_all(delay_only(1000));
        for number in 0..self.active_faults.len() {
            self.repair(number);
        }
    }

    /// Ends all machines, so that their tasks end too.
    fn switch_off(&mut self) -> Report {
        let time = self.schedule.now();
        let bounced = self.sum(|counters| counters.bounces);
        for node in &mut self.nodes {
            node.crash();
        }
        while let Some(event) = self.schedule.next() {
            if matches!(event, Event::Resume(..)) {
                self.handle(event);
            }
        }
        let alive = self.tasks.alive();
        assert_eq!(alive, 0, "{alive} tasks wait for nothing");
        let oracles = self.workloads.oracles();
        Report {
            time,
            events: self.events,
            frames: self.network.sent,
            corrupted: self.network.corrupted,
            bounced,
            injected_faults: self.injected_faults,
            counts: oracles.flat_map(|oracle| oracle.counts()).collect(),
        }
    }
}

impl Drop for World {
    /// Completes the trace, also of a simulation that has failed.
    fn drop(&mut self) {
        self.schedule.flush();
    }
}
