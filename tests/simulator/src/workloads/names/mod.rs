//! A name worker: a process that gives itself names, takes them back, and looks up those of others
//! (Q14).
//!
//! ```text
//!   works: registers, withdraws, looks up, makes mistakes ──► serves: looks up, until all are
//!                             │                               done; then all names once more ──► ends
//!                             └──► ends, and keeps its names until then
//! ```
//! All workers use the same few names, so many are taken, and some are registered twice. A worker
//! has several commands under way, and pauses that are longer than the news of a name, and some
//! than the silence after which a node is given up. It is a task like a message worker, and issues
//! raw commands.

mod oracle;

mod commands;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use qnic_abi::host_area::CompletionEntry;
use qnic_abi::{Status, PAGE_SIZE};
use qnic_nic::Limits;

use self::oracle::{NameOracle, What, NAMES};
use crate::common::Phase;
use crate::process::worker::{is_registered, Next, QueueWorker, Registered, Worker};
use crate::process::{pages, ProcessContext, Result};
use crate::schedule::lock;
use crate::workload::{live, Oracle, Seed, Workload};

/// How long a worker that serves blocks at most, in nanoseconds.
const LOOK: u64 = 20_000_000;

/// Longest pause of a worker, in nanoseconds.
const PAUSE: u64 = 150_000_000;

/// Commands that a worker has under way at most.
const OPEN: usize = 24;

/// Name workers and their oracle.
struct Names {
    oracle: Mutex<NameOracle>,
}

/// Name workers in the place of all RDMA workers of a node but one, and of sync workers.
pub(super) fn new(seed: &mut Seed<'_>) -> Box<dyn Workload> {
    seed.settings.keep_one_rdma_worker();
    seed.settings.pauses = true;
    limit(&mut seed.settings.limits, &mut seed.random);
    let oracle = Mutex::new(NameOracle::new(seed.settings, seed.routes));
    Box::new(Names { oracle })
}

/// Bounds for names, small ones some of the time.
fn limit(limits: &mut Limits, random: &mut fastrand::Rng) {
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

impl Workload for Names {
    fn run(&self, context: &ProcessContext) {
        let (machine, slot) = (&context.machine, context.slot);
        let space = machine.kernel.new_space(pages(0x40_0000, PAGE_SIZE as u64));
        lock(&self.oracle).begin(slot, machine, space);
        let process = live(self, context, ("name worker", space), |process| {
            let mut worker = NameWorker {
                oracle: &self.oracle,
                registered: Registered::new(context, process),
                names: BTreeSet::new(),
                open: BTreeMap::new(),
                looked: false,
            };
            worker.live()
        });
        // Its NIC has ended it when this returns.
        drop(process);
        lock(&self.oracle).gone(slot, context.common.schedule.now());
        machine.kernel.end_space(space);
    }

    fn oracle(&self) -> &Mutex<dyn Oracle> {
        &self.oracle
    }
}

/// A registered process.
struct NameWorker<'a> {
    oracle: &'a Mutex<NameOracle>,
    registered: Registered<'a>,
    /// Names that it has, as far as it has read.
    names: BTreeSet<usize>,
    /// Commands under way.
    open: BTreeMap<u64, (usize, What)>,
    /// It has looked all names up since nothing breaks any more.
    looked: bool,
}

is_registered!(NameWorker);

impl NameWorker<'_> {
    /// Does one thing.
    fn act(&mut self) -> Result<()> {
        match self.schedule.range(0..1000) {
            0..=239 => self.register(),
            240..=399 => self.withdraw(),
            400..=769 => self.look_up_some(),
            770..=779 => self.malform(),
            780..=879 => self.wait_a_little(),
            _ => {
                let longest = self.schedule.range(1000..PAUSE);
                let pause = self.schedule.range(0..longest);
                self.context.sleep(pause)
            }
        }
    }
}

impl Worker for NameWorker<'_> {
    fn context(&self) -> &ProcessContext {
        self.context
    }

    fn step(&mut self) -> Result<Next> {
        self.act()?;
        if !self.schedule.chance(300) {
            self.collect()?;
        }
        Ok(Next::end_if(self.schedule.chance(4)))
    }

    /// Looks up now and then; when what all must find is certain, all names.
    fn look(&mut self) -> Result<()> {
        self.collect()?;
        let drains = self.common.phase() == Phase::Drain;
        let certain = || lock(self.oracle).is_certain(self.schedule.now());
        if drains && !self.looked && self.open.is_empty() && certain() {
            for name in 0..NAMES {
                self.look_up(name, 0)?;
            }
            self.looked = true;
        } else if !drains && self.schedule.chance(300) {
            self.look_up(self.schedule.below(NAMES), 0)?;
        }
        let idle = self.open.is_empty() && self.looked == drains;
        if idle && self.looked {
            lock(self.oracle).looked(self.slot);
        }
        self.context.set_idle(idle);
        self.wait(LOOK)
    }
}

impl<'a> QueueWorker<'a> for NameWorker<'a> {
    const NAME: &'static str = "name worker";

    fn complete(&mut self, entry: &CompletionEntry) {
        let well = entry.status.get() == Status::Ok.code();
        match self.open.remove(&entry.handle.get()) {
            Some((name, What::Register(_))) if well => {
                self.names.insert(name);
            }
            Some((name, What::Withdraw)) => {
                self.names.remove(&name);
            }
            _ => {}
        }
    }
}
