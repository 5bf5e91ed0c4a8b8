//! A verbs worker: a process with a context of libibverbs of the real driver core, which works on its
//! rings as librxe does (X18).
//!
//! ```text
//!   works: connects, accepts, posts, polls, closes, makes mistakes ──► serves, until all are done:
//!                              │                                        posts receives, accepts
//!                              └──► ends, and closes nothing            then closes all ──► ends
//! ```
//! Two workers learn of each other's queue pairs by the oracle, as programs do by a socket. A
//! connection has memory of its own at each end:
//!
//! ```text
//!   places for sends and answers │ places for receives │ area: the peer writes and reads │ word
//! ```
//! It is reliable, or unreliable, or of two queue pairs for datagrams, which name each other. Some queue pairs share
//! the receives of their process.
//!
//! A worker that waits has mostly armed its completion queue: a completion without an event fails the
//! run.
//!
//! | module | knows |
//! |---|---|
//! | `rings` | rings as librxe works on them |
//! | `ends` | how an end of a connection is made and closed |
//! | `posting` | what is posted, right and wrong |
//! | `oracle` | what must hold of it |

mod ends;
mod oracle;
mod posting;
mod rings;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Mutex;

use qnic_abi::verbs::{Event, Outcome, Rights};
use qnic_abi::Status;
use qnic_driver::verbs::{Capacity, CompletionQueue, SharedReceiveQueue};
use qnic_driver::{CallError, Failure, VerbsContext};

use self::ends::{End, DOMAIN};
use self::oracle::VerbsOracle;
use self::rings::ProgramRing;
use crate::common::Phase;
use crate::machine::mapping::Mapping;
use crate::machine::platform::SimPlatform;
use crate::process::worker::{Next, Worker};
use crate::process::{pages, Ended, ProcessContext, Result};
use crate::schedule::{lock, trace, Schedule};
use crate::workload::{ends, Oracle, Seed, Workload};

/// Ends of connections that a process has at most.
const ENDS: usize = 3;

/// Places for sends and answers, and as many for receives; bytes of each.
const PLACES: u64 = 4;
const PLACE_BYTES: u64 = 5000;

/// Where the places for receives begin, the area of the peer, and its word.
const RECEIVES: u64 = PLACES * PLACE_BYTES;
const AREA: u64 = 2 * RECEIVES;
const AREA_BYTES: u64 = 6000;
const WORD: u64 = 46_080;

/// Bytes of memory of an end.
const END_BYTES: u64 = 12 * 4096;

/// Where the places of shared receives begin, and bytes of all memory of a process.
const SHARED: u64 = ENDS as u64 * END_BYTES;
const SHARED_BYTES: u64 = 5 * 4096;
const BYTES: u64 = SHARED + SHARED_BYTES;

const _: () = assert!(PLACES * PLACE_BYTES <= SHARED_BYTES);

const _: () = assert!(AREA + AREA_BYTES <= WORD && WORD + 8 <= END_BYTES);

/// Address of the memory of a process.
const BASE: u64 = 0x40_0000;

/// Frames of a node for rings, and so that not all pages of processes are absent all the time.
const FRAMES: u64 = 100;

/// Completions that the queue of a process has room for: all that can be posted.
const COMPLETIONS: u32 = 100;

/// How long a worker that serves blocks at most, in nanoseconds.
const LOOK: u64 = 5_000_000;

/// By then a driver has heard of a completion, also a slow one, in nanoseconds.
const TOLD: u64 = 300_000_000;

/// Verbs workers and their oracle.
struct Verbs {
    oracle: Mutex<VerbsOracle>,
}

/// Verbs workers in the place of all RDMA workers of a node but one, and of sync workers.
pub(super) fn new(seed: &mut Seed<'_>) -> Box<dyn Workload> {
    seed.settings.keep_one_rdma_worker();
    seed.settings.frames += FRAMES;
    let oracle = Mutex::new(VerbsOracle::new(seed.settings, seed.routes));
    Box::new(Verbs { oracle })
}

/// Bytes that a number stands for.
fn bytes_of(number: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    bytes
}

impl Workload for Verbs {
    fn run(&self, context: &ProcessContext) {
        let (machine, slot) = (&context.machine, context.slot);
        let space = machine.kernel.new_space(pages(BASE, BYTES));
        lock(&self.oracle).begin(slot, machine, space);
        let opened = open(context, space);
        match &opened {
            Ok(opened) => self.live(context, opened, space),
            Err(Ended) => ends(self, context, "verbs worker", false),
        }
        // Its NIC has ended it when this returns.
        drop(opened);
        machine.kernel.end_space(space);
    }

    fn oracle(&self) -> &Mutex<dyn Oracle> {
        &self.oracle
    }
}

/// Opens a context.
fn open(context: &ProcessContext, space: u64) -> Result<VerbsContext<SimPlatform>> {
    let (machine, slot) = (&context.machine, context.slot);
    let driver = lock(&machine.driver).clone().ok_or(Ended)?;
    let opened = made(context, "context", || {
        machine.registering.store(slot, Ordering::Relaxed);
        driver.open_verbs(space, slot as u32)
    })?;
    let vni = opened.vni();
    machine.memory.set_vni(space, Some(vni));
    trace!(context.common.schedule, "verbs worker {slot}: opens, {vni}");
    Ok(opened)
}

/// What a call of the driver makes, once there is room for it.
fn made<T>(
    context: &ProcessContext,
    what: &str,
    make: impl Fn() -> std::result::Result<T, Failure>,
) -> Result<T> {
    loop {
        match make() {
            Ok(made) => return Ok(made),
            Err(Failure::Refused(Status::Exhausted) | Failure::Call(CallError::NoMemory)) => {
                context.sleep(100_000)?;
            }
            Err(Failure::Call(CallError::NoDevice | CallError::Interrupted)) => return Err(Ended),
            Err(error) => panic!("verbs worker {}: {what}: {error:?}", context.slot),
        }
    }
}

impl Verbs {
    fn live(&self, context: &ProcessContext, verbs: &VerbsContext<SimPlatform>, space: u64) {
        let slot = context.slot;
        let owner = u64::from(u32::MAX) + ((slot as u64) << 32);
        let queue = made(context, "completion queue", || {
            verbs.create_completion_queue(COMPLETIONS, owner)
        });
        let Ok(queue) = queue else {
            return ends(self, context, "verbs worker", false);
        };
        lock(&self.oracle).set_queue(slot, true);
        let mut worker = VerbsWorker {
            oracle: &self.oracle,
            context,
            schedule: &context.common.schedule,
            slot,
            verbs,
            memory: Mapping::pages(&context.machine, space, BASE, BYTES as usize),
            completions: ProgramRing::new(queue.ring()),
            queue,
            shared: None,
            ends: Vec::new(),
            armed: false,
            owed: None,
        };
        let ending = worker.share().and_then(|()| worker.live());
        ends(self, context, "verbs worker", ending.is_ok());
        worker.leave();
    }
}

/// Receives that queue pairs of a process share.
struct Shared {
    queue: SharedReceiveQueue<SimPlatform>,
    ring: ProgramRing,
    key: u32,
    /// Places that nothing uses, and those of receives that are posted.
    free: Vec<u64>,
    used: BTreeMap<u64, u64>,
}

/// A process with a context.
struct VerbsWorker<'a> {
    oracle: &'a Mutex<VerbsOracle>,
    context: &'a ProcessContext,
    schedule: &'a Schedule,
    slot: usize,
    verbs: &'a VerbsContext<SimPlatform>,
    /// All of its memory.
    memory: Mapping,
    queue: CompletionQueue<SimPlatform>,
    completions: ProgramRing,
    shared: Option<Shared>,
    ends: Vec<End>,
    /// An event is to tell of the next completion.
    armed: bool,
    /// Since when it has seen a completion of which no event has told.
    owed: Option<u64>,
}

impl VerbsWorker<'_> {
    fn trace(&self, what: std::fmt::Arguments<'_>) {
        trace!(self.schedule, "verbs worker {}: {what}", self.slot);
    }

    /// What a call of the driver gave.
    fn called(&self, what: &str, result: std::result::Result<(), Failure>) -> Result<()> {
        match result {
            Err(Failure::Refused(status)) => {
                panic!("verbs worker {}: {what} is refused: {status}", self.slot)
            }
            Err(Failure::Call(error)) => self.context.called(what, Err(error)),
            Ok(()) => self.context.check_alive(),
        }
    }

    /// Makes a shared receive queue, mostly.
    fn share(&mut self) -> Result<()> {
        if self.schedule.chance(300) {
            return Ok(());
        }
        let capacity = Capacity {
            requests: 3,
            sges: 3,
        };
        let queue = made(self.context, "shared receive queue", || {
            self.verbs
                .create_shared_receive_queue(DOMAIN, capacity, 0, u64::from(u32::MAX))
        })?;
        lock(self.oracle).set_shares(self.slot, true);
        let ring = ProgramRing::new(queue.ring());
        let range = (BASE + SHARED, SHARED_BYTES);
        self.shared = Some(Shared {
            queue,
            ring,
            key: 0,
            free: (0..PLACES).map(|place| place * PLACE_BYTES).collect(),
            used: BTreeMap::new(),
        });
        self.context.check_alive()?;
        let key = made(self.context, "memory", || {
            self.verbs
                .register(DOMAIN, range, range.0, Rights::LOCAL_WRITE)
        })?;
        if let Some(shared) = &mut self.shared {
            shared.key = key;
        }
        self.context.check_alive()
    }

    /// Takes events and completions.
    fn collect(&mut self) -> Result<()> {
        self.context.check_alive()?;
        self.take_events();
        if self.armed && !self.completions.is_empty() {
            self.owed.get_or_insert(self.schedule.now());
        }
        if let Some(since) = self.owed {
            let (slot, now) = (self.slot, self.schedule.now());
            assert!(now - since < TOLD, "verbs worker {slot}: no event tells");
        }
        while let Some(completion) = self.completions.poll() {
            let (id, outcome) = (completion.id.get(), completion.status.get());
            self.trace(format_args!("{id:#x} has ended: {outcome}"));
            let number = completion.qp.get();
            let end = self.ends.iter_mut().find(|end| end.number() == number);
            let end = end.unwrap_or_else(|| panic!("no queue pair: {completion:?}"));
            let ended = lock(self.oracle).completed(end.name, &completion);
            end.ended(&ended.0);
            end.failed |= ended.1;
            if let Some(shared) = &mut self.shared {
                shared.free.extend(shared.used.remove(&id));
            }
        }
        for end in &mut self.ends {
            if end.sends.is_empty() {
                let ended = lock(self.oracle).all_done(end.name);
                end.ended(&ended);
            }
        }
        Ok(())
    }

    fn take_events(&mut self) {
        let slot = self.slot as u64;
        let events = &self.context.machine.verbs_events;
        for (owner, event) in events.take(|owner| owner >> 32 == slot) {
            self.trace(format_args!("{event:?} of {owner:#x}"));
            let number = owner as u32;
            match self.ends.iter().find(|end| end.owner == number) {
                Some(end) => lock(self.oracle).told(end.name, event),
                None if event == Event::Completion => (self.armed, self.owed) = (false, None),
                None => assert_ne!(number, u32::MAX, "its completion queue has {event:?}"),
            }
        }
    }

    /// Waits for completions so many nanoseconds, mostly with an event that tells of them.
    fn wait(&mut self, limit: u64) -> Result<()> {
        if !self.armed && self.schedule.chance(800) {
            let armed = self.verbs.arm(&self.queue, false);
            self.context.called("arm", armed)?;
            // No event tells of what has come before.
            self.collect()?;
            self.armed = true;
        }
        let until = self.schedule.now() + limit;
        let told = &self.context.machine.verbs_events.told;
        self.schedule.wait(Some(told), Some(until));
        self.collect()
    }

    /// Connects, accepts, and closes what is over.
    fn tend(&mut self, in_haste: bool) -> Result<()> {
        if self.ends.len() < ENDS {
            let offer = lock(self.oracle).offers(self.slot);
            if let Some((connection, peer)) = offer {
                self.accept(connection, peer)?;
            }
        }
        let mut index = 0;
        while let Some(end) = self.ends.get(index) {
            let (name, failed) = (end.name, end.failed);
            if !end.ready {
                self.try_connect(index)?;
            }
            let end = &self.ends[index];
            let waits = !end.ready && (in_haste || self.schedule.now() > end.until);
            // Mostly what is under way ends by itself.
            let idle = end.sends.is_empty() || !in_haste && self.schedule.chance(20);
            let over = failed || waits || idle && lock(self.oracle).is_over(name);
            if over && (in_haste || self.schedule.chance(300)) {
                self.close(index)?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Does one thing.
    fn act(&mut self) -> Result<()> {
        if self.ends.is_empty() || self.ends.len() < ENDS && self.schedule.chance(60) {
            return self.offer();
        }
        let index = self.schedule.below(self.ends.len());
        match self.schedule.range(0..1000) {
            0..=299 => self.post_receive(index),
            300..=799 => self.post(index),
            800..=804 => self.close(index),
            805..=807 => self.take_key_back(index),
            808..=900 => self.tell(index),
            _ => {
                let limit = self.schedule.range(1000..1_000_000);
                self.wait(limit)
            }
        }
    }

    /// Everything of it ends: queue pairs before the completion queue, as libibverbs has it.
    fn leave(mut self) {
        for end in std::mem::take(&mut self.ends) {
            self.verbs.destroy_queue_pair(end.pair);
        }
        if let Some(shared) = self.shared {
            self.verbs.destroy_shared_receive_queue(shared.queue);
            lock(self.oracle).set_shares(self.slot, false);
        }
        self.verbs.destroy_completion_queue(self.queue);
        lock(self.oracle).set_queue(self.slot, false);
    }
}

impl Worker for VerbsWorker<'_> {
    fn context(&self) -> &ProcessContext {
        self.context
    }

    fn step(&mut self) -> Result<Next> {
        self.tend(false)?;
        for _ in 0..self.schedule.range(1..4) {
            self.act()?;
        }
        if !self.schedule.chance(200) {
            self.collect()?;
        }
        Ok(Next::end_if(self.schedule.chance(4)))
    }

    /// Posts receives, so that its peers can end; closes what neither side needs.
    fn look(&mut self) -> Result<()> {
        self.collect()?;
        let drains = self.context.common.phase() != Phase::Work;
        self.tend(drains)?;
        let mut index = 0;
        while index < self.ends.len() {
            self.post_receive(index)?;
            self.tell(index)?;
            let end = &self.ends[index];
            if end.ready && lock(self.oracle).finish(end.name) {
                self.close(index)?;
            } else {
                index += 1;
            }
        }
        let busy = self.ends.iter().any(|end| !end.sends.is_empty());
        self.context
            .set_idle(!busy && (!drains || self.ends.is_empty()));
        let limit = self.schedule.range(100_000..LOOK);
        self.wait(limit)
    }
}

/// How a mistake ends.
type Spoil = (Wrong, Outcome);

/// What is wrong with a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// The key of the peer.
    Key,
    /// The range of the peer.
    Range,
    /// Its own key.
    OwnKey,
    /// There is no such request.
    Opcode,
}
