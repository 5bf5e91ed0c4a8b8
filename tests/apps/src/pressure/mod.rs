//! Memory pressure: this process exports more than its guest has RAM, transfers
//! between random units of it and of a peer that does the same, writes and checks
//! a part of its own meanwhile, and compares every byte (N4, N7, N8, N13, N14).
//!
//! ```text
//!   unit:  0        4000      8000      12000  12288
//!          | peer's | own     | landing | tail |        page borders at 4096, 8192
//! ```
//! Of each unit the peer writes and reads the first part, this process the second,
//! and what it reads from its peer lands in the third: every page is written from
//! both sides. The source of a write is an own part, so any page at either end of
//! any transfer may be in swap. What each part must hold is known by a seed.
//!
//! The memory is private, or a mapping of a file: then forked children write to the tails of units,
//! the file is truncated and extended again and again while the peer writes to its edge, and at the
//! end the bytes are compared with those that read() gives, and with those on the disk.
//!
//! The transfers go on in phases, over the same memory; each has a report. Filling it, and comparing
//! all of it at the end, take longer than a phase.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic::{Endpoint, Error, NotificationId, Port, RemoteSegment, Status};
use qnic_apps::demo::pattern;
use qnic_apps::report::PressureReport;
use rustix::process::{setrlimit, Resource, Rlimit};

use self::child::Child;
use self::memory::{Memory, EDGE, EDGE_BYTE};
use self::phase::{Besides, Phase};
use crate::proc_status::{kibibytes, machine_kibibytes};
use qnic_apps::demo::node::{import, register, say, take};
use qnic_apps::demo::options::{notification, DATA};

mod child;
mod memory;
mod phase;

/// Bytes of a unit, of a part, and where the parts begin.
const UNIT: usize = 3 * 4096;
const PART: usize = 4000;
const OWN: usize = PART;
const LANDING: usize = 2 * PART;
/// Where the tail begins, and its bytes without the last word.
const TAIL: usize = 3 * PART;
const TAIL_BYTES: usize = UNIT - TAIL - 8;
/// Transfers of each kind that are under way at the same time.
const BATCH: usize = 16;
/// Units that a forked child looks at.
const CHILD_UNITS: usize = 64;
/// Rounds from one fork to the next, and those that a forked child lives.
const FORK_EVERY: u64 = 8;
const CHILD_ROUNDS: u64 = 4;
/// Writes to the edge of the peer's file in a round, and their length.
const EDGE_WRITES: usize = 8;
const EDGE_BYTES: usize = 64;
/// Rounds from one that truncates the file to the next.
const TRUNCATE_EVERY: u64 = 4;
/// Signalled by the peer when it has checked everything.
const DONE: NotificationId = notification(9);
/// Signalled by the peer when its file has no edge, at the end of a phase.
const EDGELESS: NotificationId = notification(10);
/// Signalled by the peer when it has tried to write to an edge that was not there.
const TRIED: NotificationId = notification(11);
/// Time between two signs of life.
const SIGN: Duration = Duration::from_secs(10);
/// Longest time that the peer may check on after this process is done.
const END_LIMIT: Duration = Duration::from_secs(300);

#[derive(Args)]
pub(crate) struct Options {
    /// Node of the peer, which runs the same
    #[arg(long)]
    peer: u16,
    /// Port of both
    #[arg(long, default_value_t = 41)]
    port: u16,
    /// MiB to export: more than the machine has RAM
    #[arg(long)]
    megabytes: usize,
    /// What happens besides the transfers, and for how many rounds of them; may be repeated
    #[arg(long = "phase", value_name = "KIND=ROUNDS", value_parser = Phase::parse, required = true)]
    phases: Vec<Phase>,
    /// Export a mapping of a file that is made in this directory, on both nodes
    #[arg(long, value_name = "DIRECTORY")]
    files: Option<PathBuf>,
    /// Export a mapping of a file in memory, on both nodes
    #[arg(long, conflicts_with = "files")]
    memory_file: bool,
    /// Seed of all choices and contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs all phases, then compares everything once more.
pub(crate) fn run(options: &Options) -> Result<()> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Memlock, none).context("set RLIMIT_MEMLOCK to 0")?;
    let ram = machine_kibibytes()?;
    ensure!(
        options.megabytes as u64 * 1024 > ram,
        "{} MiB are not more than the {ram} KiB of this machine",
        options.megabytes
    );
    let (nic, endpoint) = register(options.port)?;
    let units = (options.megabytes << 20) / UNIT;
    let (files, bytes) = (options.files.as_deref(), units * UNIT);
    let shared = options.memory_file || files.is_some();
    let memory = match shared {
        false => Memory::private(&endpoint, DATA, bytes)?,
        true => Memory::file(&endpoint, DATA, bytes, files)?,
    };
    let peer = import(&endpoint, options.peer, Port(options.port), DATA)?;
    let edge = if shared { EDGE } else { 0 };
    let mut run = Pressure {
        endpoint: &endpoint,
        memory: &memory,
        peer: &peer,
        own: vec![0; units],
        tails: vec![0; units],
        remote: vec![0; (peer.len() as usize - edge) / UNIT],
        random: fastrand::Rng::with_seed((options.seed << 8) + u64::from(endpoint.node().0)),
        last_sign: Instant::now(),
        report: PressureReport {
            exported_kib: (bytes / 1024) as u64,
            ram_kib: ram,
            ..Default::default()
        },
    };
    for unit in 0..units {
        run.renew(unit)?;
        // The page that has no own part.
        memory.write((unit + 1) * UNIT - 8, &[1; 8])?;
    }
    say("filled", units)?;
    for phase in &options.phases {
        say("phase", run.phase(&nic, *phase)?)?;
    }
    run.compare_all()?;
    say("compared", units)?;
    run.signal(DONE)?;
    take(&endpoint, DONE, END_LIMIT, "wait for the peer's end")?;
    run.report.compared_bytes += memory.compare_file().context("the file")?;
    say("checked", run.report.compared_bytes)
}

struct Pressure<'a> {
    endpoint: &'a Endpoint,
    memory: &'a Memory,
    peer: &'a RemoteSegment,
    /// Seed of the own part of each unit.
    own: Vec<u64>,
    /// Seed of what forked children have written to the tail of each unit; 0: zeroes.
    tails: Vec<u64>,
    /// Seed of the first part of each unit of the peer; 0: zeroes.
    remote: Vec<u64>,
    random: fastrand::Rng,
    last_sign: Instant,
    report: PressureReport,
}

impl Pressure<'_> {
    /// All rounds of a phase.
    fn transfer(&mut self, phase: Phase) -> Result<()> {
        let mut child: Option<(u64, Child)> = None;
        while self.report.rounds < phase.rounds {
            let rounds = self.report.rounds;
            if let Some((_, child)) = child.take_if(|(until, _)| *until <= rounds) {
                self.finish(child)?;
            }
            let fork = phase.besides == Besides::Fork && rounds % FORK_EVERY == 0;
            if fork && child.is_none() {
                let units = self.distinct(self.own.len(), &BTreeSet::new(), CHILD_UNITS);
                let seed = self.random.u64(1..);
                let started = Child::start(self.memory, units, &self.own, seed)?;
                child = Some((rounds + CHILD_ROUNDS, started));
                self.report.forks += 1;
            }
            self.round()?;
            self.report.rounds += 1;
            self.sign("rounds", self.report.rounds)?;
            if self.report.rounds % 64 == 0 {
                self.look_at_swap()?;
            }
        }
        child.map_or(Ok(()), |(_, child)| self.finish(child))?;
        match self.memory.is_shared() {
            true => self.meet_without_edges(),
            false => Ok(()),
        }
    }

    /// Writes to the edge of the peer's file while it certainly has none, and the peer likewise. In
    /// the rounds that is left to chance.
    fn meet_without_edges(&mut self) -> Result<()> {
        self.memory.truncate()?;
        self.report.truncations += 1;
        self.signal(EDGELESS)?;
        take(
            self.endpoint,
            EDGELESS,
            END_LIMIT,
            "wait for the peer to truncate its file",
        )?;
        self.write_to_edge()?;
        let flushed = self.endpoint.flush().wait();
        self.report.refused += self.refused(flushed).context("a write to no edge")?;
        self.signal(TRIED)?;
        take(
            self.endpoint,
            TRIED,
            END_LIMIT,
            "wait for the peer's writes to no edge",
        )?;
        self.memory.extend().context("the edge of the file")
    }

    fn signal(&self, id: NotificationId) -> Result<()> {
        let signalled = self.endpoint.write(self.peer, 0, &[]).notify(id).fenced();
        signalled.context("tell the peer")
    }

    fn finish(&mut self, child: Child) -> Result<()> {
        let (units, seed) = child.finish()?;
        if self.memory.is_shared() {
            units.iter().for_each(|unit| self.tails[*unit] = seed);
        }
        Ok(())
    }

    /// A batch of writes and one of reads, all under way while the own parts of
    /// other units are checked and written anew.
    fn round(&mut self) -> Result<()> {
        let none = BTreeSet::new();
        let sources = self.distinct(self.own.len(), &none, BATCH);
        let written = self.distinct(self.remote.len(), &none, BATCH);
        let read = self.distinct(self.remote.len(), &written, BATCH);
        let landings = self.distinct(self.own.len(), &none, BATCH);
        for (unit, source) in written.iter().zip(&sources) {
            let from = self.memory.part(source * UNIT + OWN, PART);
            self.endpoint
                .write(self.peer, (unit * UNIT) as u64, from)
                .post()?;
            self.remote[*unit] = self.own[*source];
        }
        for (unit, landing) in read.iter().zip(&landings) {
            let to = self.memory.part(landing * UNIT + LANDING, PART);
            self.endpoint
                .read(self.peer, (unit * UNIT) as u64, to)
                .post()?;
        }
        self.write_to_edge()?;
        let truncates = self.memory.is_shared() && self.report.rounds % TRUNCATE_EVERY == 0;
        if truncates {
            self.memory.truncate()?;
            self.report.truncations += 1;
        }
        for unit in self.distinct(self.own.len(), &sources, BATCH / 2) {
            self.compare(OWN, unit, self.own[unit])?;
            self.renew(unit)?;
        }
        let flushed = self.endpoint.flush().wait();
        if truncates {
            self.memory.extend().context("the edge of the file")?;
        }
        self.report.refused += self.refused(flushed).context("a transfer failed")?;
        for (unit, landing) in read.iter().zip(&landings) {
            self.compare(LANDING, *landing, self.remote[*unit])
                .with_context(|| format!("read from unit {unit} of the peer"))?;
        }
        self.report.owner_writes += BATCH as u64 / 2;
        self.report.writes += BATCH as u64;
        self.report.reads += BATCH as u64;
        Ok(())
    }

    /// Writes here and there to the edge of the peer's file, which may have none just now.
    fn write_to_edge(&mut self) -> Result<()> {
        let edge = self.remote.len() * UNIT;
        for _ in 0..EDGE_WRITES {
            if self.memory.is_shared() {
                let at = edge + self.random.usize(..EDGE / EDGE_BYTES) * EDGE_BYTES;
                self.endpoint
                    .write(self.peer, at as u64, &[EDGE_BYTE; EDGE_BYTES][..])
                    .post()?;
            }
        }
        Ok(())
    }

    /// How many writes were refused. Only those to an edge that is not there may be; if others
    /// were, their bytes are wrong.
    fn refused(&self, flushed: qnic::Result<()>) -> Result<u64> {
        let Err(Error::Transfer(errors)) = &flushed else {
            return Ok(flushed.map(|()| 0)?);
        };
        let mut statuses = errors.failures.iter().map(|failure| failure.status);
        let known = statuses.all(|status| status == Status::PageUnavailable);
        let refused = errors.failures.len();
        if !self.memory.is_shared() || !known || refused > EDGE_WRITES {
            flushed?;
        }
        Ok(refused as u64)
    }

    fn look_at_swap(&mut self) -> Result<()> {
        let swapped = kibibytes(|status| status.vmswap)?;
        self.report.swap_peak_kib = self.report.swap_peak_kib.max(swapped);
        Ok(())
    }

    /// Reads everything back that was ever written to the peer, and looks at all
    /// own parts.
    fn compare_all(&mut self) -> Result<()> {
        let all: Vec<usize> = (0..self.remote.len()).collect();
        for units in all.chunks(2 * BATCH) {
            for (landing, unit) in units.iter().enumerate() {
                let to = self.memory.part(landing * UNIT + LANDING, PART);
                self.endpoint
                    .read(self.peer, (unit * UNIT) as u64, to)
                    .post()?;
            }
            self.endpoint.flush().wait().context("a transfer failed")?;
            for (landing, unit) in units.iter().enumerate() {
                self.compare(LANDING, landing, self.remote[*unit])
                    .with_context(|| format!("read from unit {unit} of the peer at the end"))?;
                self.sign("comparing", *unit as u64)?;
            }
        }
        for unit in 0..self.own.len() {
            self.compare(OWN, unit, self.own[unit])?;
            let tail = self.memory.read(unit * UNIT + TAIL, TAIL_BYTES)?;
            let wanted = expected(self.tails[unit], TAIL_BYTES);
            ensure!(tail == wanted, "wrong bytes in the tail of unit {unit}");
            self.sign("comparing_own", unit as u64)?;
        }
        Ok(())
    }

    /// Says every few seconds how far it is.
    fn sign(&mut self, what: &str, count: u64) -> Result<()> {
        if self.last_sign.elapsed() >= SIGN {
            say(what, count)?;
            self.last_sign = Instant::now();
        }
        Ok(())
    }

    /// Writes a new pattern to the own part of a unit.
    fn renew(&mut self, unit: usize) -> Result<()> {
        let seed = self.random.u64(1..);
        self.own[unit] = seed;
        let bytes = pattern::bytes(seed, PART);
        self.memory.write(unit * UNIT + OWN, &bytes)
    }

    fn compare(&mut self, part: usize, unit: usize, seed: u64) -> Result<()> {
        compare(self.memory, part, unit, seed)?;
        self.report.compared_bytes += PART as u64;
        Ok(())
    }

    /// `count` numbers below `limit` that are not in `without`.
    fn distinct(
        &mut self,
        limit: usize,
        without: &BTreeSet<usize>,
        count: usize,
    ) -> BTreeSet<usize> {
        let mut numbers = BTreeSet::new();
        while numbers.len() < count {
            let number = self.random.usize(..limit);
            if !without.contains(&number) {
                numbers.insert(number);
            }
        }
        numbers
    }
}

/// The pattern of `seed`; zeroes for 0.
fn expected(seed: u64, length: usize) -> Vec<u8> {
    match seed {
        0 => vec![0; length],
        seed => pattern::bytes(seed, length),
    }
}

/// Compares a part of a unit with the pattern of `seed`.
fn compare(memory: &Memory, part: usize, unit: usize, seed: u64) -> Result<()> {
    let wanted = expected(seed, PART);
    let found = memory.read(unit * UNIT + part, PART)?;
    if found == wanted {
        return Ok(());
    }
    let wrong: Vec<_> = (0..PART).filter(|at| found[*at] != wanted[*at]).collect();
    bail!(
        "{} wrong bytes in the part at {part} of unit {unit}, from byte {} on",
        wrong.len(),
        wrong[0]
    )
}
