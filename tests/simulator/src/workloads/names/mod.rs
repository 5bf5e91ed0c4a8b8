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

pub(crate) mod oracle;

mod commands;

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::process_names::NameAction;
use qnic_abi::{Status, PAGE_SIZE};
use qnic_driver::Process;

use crate::common::{Common, Phase};
use crate::machine::platform::SimPlatform;
use crate::process::queue::Queue;
use crate::process::{pages, ProcessContext, Result};
use crate::schedule::{lock, trace, Schedule};
use crate::workloads::names::oracle::NAMES;

/// How long a worker that serves blocks at most, in nanoseconds.
const LOOK: u64 = 20_000_000;

/// Longest pause of a worker, in nanoseconds.
const PAUSE: u64 = 150_000_000;

/// Commands that a worker has under way at most.
const OPEN: usize = 24;

impl ProcessContext {
    /// A name worker from its start to its end.
    pub(crate) fn run_name_worker(&self) {
        let (machine, slot) = (&self.machine, self.slot);
        let space = machine.kernel.new_space(pages(0x40_0000, PAGE_SIZE as u64));
        lock(&self.common.names).begin(slot, machine, space);
        let process = self.live("name worker", space, |process| self.use_names(process));
        // Its NIC has ended it when this returns.
        drop(process);
        lock(&self.common.names).gone(slot, self.common.schedule.now());
        machine.kernel.end_space(space);
    }

    fn use_names(&self, process: &Process<SimPlatform>) -> Result<()> {
        let mut worker = NameWorker {
            context: self,
            common: &self.common,
            schedule: &self.common.schedule,
            slot: self.slot,
            process,
            queue: Queue::new(&self.machine, process),
            names: BTreeSet::new(),
            open: BTreeMap::new(),
        };
        match worker.work()? {
            Next::Serve => worker.serve(),
            Next::End => Ok(()),
        }
    }
}

/// What a worker does when it has worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Serve,
    End,
}

/// A registered process.
struct NameWorker<'a> {
    context: &'a ProcessContext,
    common: &'a Common,
    schedule: &'a Schedule,
    slot: usize,
    process: &'a Process<SimPlatform>,
    queue: Queue,
    /// Names that it has, as far as it has read.
    names: BTreeSet<usize>,
    /// Commands under way.
    open: BTreeMap<u64, (usize, NameAction)>,
}

impl NameWorker<'_> {
    /// Does what processes do, in any order, until it has done enough.
    fn work(&mut self) -> Result<Next> {
        for _ in self.context.steps() {
            self.act()?;
            if !self.schedule.chance(300) {
                self.collect()?;
            }
            if self.schedule.chance(4) {
                return Ok(Next::End);
            }
            self.context.think(500)?;
        }
        Ok(Next::Serve)
    }

    /// Does one thing.
    fn act(&mut self) -> Result<()> {
        match self.schedule.range(0..1000) {
            0..=239 => self.register(),
            240..=399 => self.withdraw(),
            400..=769 => self.look_up_some(),
            770..=779 => self.malform(),
            780..=879 => {
                let limit = self.schedule.range(1000..1_000_000);
                self.wait(limit)
            }
            _ => {
                let longest = self.schedule.range(1000..PAUSE);
                let pause = self.schedule.range(0..longest);
                self.context.sleep(pause)
            }
        }
    }

    /// Looks up now and then, until all others are done; when what all must find is certain, all
    /// names.
    fn serve(&mut self) -> Result<()> {
        let mut looked = false;
        while self.common.phase() != Phase::Exit {
            self.collect()?;
            let drains = self.common.phase() == Phase::Drain;
            let certain = || lock(&self.common.names).is_certain(self.schedule.now());
            if drains && !looked && self.open.is_empty() && certain() {
                for name in 0..NAMES {
                    self.look_up(name, 0)?;
                }
                looked = true;
            } else if !drains && self.schedule.chance(300) {
                self.look_up(self.schedule.below(NAMES), 0)?;
            }
            let idle = self.open.is_empty() && looked == drains;
            if idle && looked {
                lock(&self.common.names).looked(self.slot);
            }
            self.context.set_idle(idle);
            self.wait(LOOK)?;
        }
        Ok(())
    }

    /// Reads the completions that have come.
    fn collect(&mut self) -> Result<()> {
        for entry in self.context.completions(self.process, &mut self.queue) {
            let well = entry.status.get() == Status::Ok.code();
            match self.open.remove(&entry.handle.get()) {
                Some((name, NameAction::Register)) if well => {
                    self.names.insert(name);
                }
                Some((name, NameAction::Withdraw)) => {
                    self.names.remove(&name);
                }
                _ => {}
            }
        }
        self.context.check_alive()
    }

    /// Reads completions, or waits for some so many nanoseconds.
    fn wait(&mut self, limit: u64) -> Result<()> {
        self.context
            .wait(self.process, &self.queue, limit, || false)?;
        self.collect()
    }

    fn trace(&self, what: std::fmt::Arguments<'_>) {
        trace!(self.schedule, "name worker {}: {what}", self.slot);
    }
}
