//! Memory pressure: this process exports more than its guest has RAM, transfers
//! between random units of it and of a peer that does the same, writes and checks
//! a part of its own meanwhile, and compares every byte (N4, N7, N8, N13, N14).
//!
//! ```text
//!   unit:  0        4000      8000      12000  12288
//!          | peer's | own     | landing |      |        page borders at 4096, 8192
//! ```
//! Of each unit the peer writes and reads the first part, this process the second,
//! and what it reads from its peer lands in the third: every page is written from
//! both sides. The source of a write is an own part, so any page at either end of
//! any transfer may be in swap. What each part must hold is known by a seed.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::{Buffer, Endpoint, NotificationId, Port, RemoteSegment};
use qnic_apps::pattern;
use qnic_apps::report::PressureReport;
use rustix::process::{setrlimit, Resource, Rlimit};

use crate::mapping::{self, Forked};
use crate::node::{import, register, say, take, Exported};
use crate::options::{notification, DATA};
use crate::proc_status::{kibibytes, locked_and_pinned, machine_kibibytes, pages_swapped};

/// Bytes of a unit, of a part, and where the parts begin.
const UNIT: usize = 3 * 4096;
const PART: usize = 4000;
const OWN: usize = PART;
const LANDING: usize = 2 * PART;
/// Transfers of each kind that are under way at the same time.
const BATCH: usize = 16;
/// Units that a forked child looks at.
const CHILD_UNITS: usize = 64;
/// Rounds that a forked child lives.
const CHILD_ROUNDS: u64 = 4;
/// Signalled by the peer when it has checked everything.
const DONE: NotificationId = notification(9);
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
    /// How long to transfer
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Fork after every so many rounds; 0 for never
    #[arg(long, default_value_t = 0)]
    fork_every: u64,
    /// Seed of all choices and contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs until the time is over, then compares everything once more.
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
    let memory = Exported::new(&endpoint, DATA, units * UNIT)?;
    let peer = import(&endpoint, options.peer, Port(options.port), DATA)?;
    let before = pages_swapped()?;
    let mut run = Pressure {
        endpoint: &endpoint,
        memory: &memory,
        peer: &peer,
        own: vec![0; units],
        remote: vec![0; (peer.len() as usize) / UNIT],
        random: fastrand::Rng::with_seed((options.seed << 8) + u64::from(endpoint.node().0)),
        last_sign: Instant::now(),
        report: PressureReport::default(),
    };
    for unit in 0..units {
        run.renew(unit)?;
        // The page that has no own part.
        memory.buffer.write((unit + 1) * UNIT - 1, &[1])?;
    }
    run.look_at_swap()?;
    say("filled", units)?;
    run.transfer(options)?;
    say("rounds", run.report.rounds)?;
    run.compare_all()?;
    say("compared", units)?;
    endpoint
        .write_fenced_notify(&peer, 0, &[], DONE)
        .context("tell the peer")?;
    take(&endpoint, DONE, END_LIMIT, "wait for the peer's end")?;
    let mut report = run.report;
    let info = nic.info()?;
    report.exported_kib = (units * UNIT / 1024) as u64;
    report.ram_kib = ram;
    let [swapped_in, swapped_out] = pages_swapped()?;
    report.swapped_in = swapped_in - before[0];
    report.swapped_out = swapped_out - before[1];
    (report.locked_kib, report.pinned_kib) = locked_and_pinned()?;
    report.faults_served = info.faults_served.get();
    report.bounces = info.nic.bounces.get();
    report.pages_invalidated = info.pages_invalidated.get();
    report.lock_conflicts = info.lock_conflicts.get();
    say("pressure", report)
}

struct Pressure<'a> {
    endpoint: &'a Endpoint,
    memory: &'a Exported,
    peer: &'a RemoteSegment,
    /// Seed of the own part of each unit.
    own: Vec<u64>,
    /// Seed of the first part of each unit of the peer; 0: zeroes.
    remote: Vec<u64>,
    random: fastrand::Rng,
    last_sign: Instant,
    report: PressureReport,
}

impl Pressure<'_> {
    fn transfer(&mut self, options: &Options) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(options.seconds);
        let mut child: Option<(u64, Child)> = None;
        while Instant::now() < end {
            let rounds = self.report.rounds;
            if let Some((_, child)) = child.take_if(|(until, _)| *until <= rounds) {
                child.finish()?;
            }
            let fork = options.fork_every != 0 && rounds % options.fork_every == 0;
            if fork && child.is_none() {
                let units = self.distinct(self.own.len(), &BTreeSet::new(), CHILD_UNITS);
                let started = Child::start(&self.memory.buffer, &units, &self.own)?;
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
        child.map_or(Ok(()), |(_, child)| child.finish())
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
            self.endpoint.write(self.peer, (unit * UNIT) as u64, from)?;
            self.remote[*unit] = self.own[*source];
        }
        for (unit, landing) in read.iter().zip(&landings) {
            let to = self.memory.part(landing * UNIT + LANDING, PART);
            self.endpoint.read(self.peer, (unit * UNIT) as u64, to)?;
        }
        for unit in self.distinct(self.own.len(), &sources, BATCH / 2) {
            self.compare(OWN, unit, self.own[unit])?;
            self.renew(unit)?;
        }
        self.endpoint.flush().context("a transfer failed")?;
        for (unit, landing) in read.iter().zip(&landings) {
            self.compare(LANDING, *landing, self.remote[*unit])
                .with_context(|| format!("read from unit {unit} of the peer"))?;
        }
        self.report.owner_writes += BATCH as u64 / 2;
        self.report.writes += BATCH as u64;
        self.report.reads += BATCH as u64;
        Ok(())
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
                self.endpoint.read(self.peer, (unit * UNIT) as u64, to)?;
            }
            self.endpoint.flush().context("a transfer failed")?;
            for (landing, unit) in units.iter().enumerate() {
                self.compare(LANDING, landing, self.remote[*unit])
                    .with_context(|| format!("read from unit {unit} of the peer at the end"))?;
                self.sign("comparing", *unit as u64)?;
            }
        }
        for unit in 0..self.own.len() {
            self.compare(OWN, unit, self.own[unit])?;
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
        self.memory.buffer.write(unit * UNIT + OWN, &bytes)?;
        Ok(())
    }

    fn compare(&mut self, part: usize, unit: usize, seed: u64) -> Result<()> {
        compare(&self.memory.buffer, part, unit, seed)?;
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

/// Compares a part of a unit with the pattern of `seed`.
fn compare(buffer: &Buffer, part: usize, unit: usize, seed: u64) -> Result<()> {
    let wanted = match seed {
        0 => vec![0; PART],
        seed => pattern::bytes(seed, PART),
    };
    let found = buffer.read_vec(unit * UNIT + part, PART)?;
    let wrong: Vec<_> = (0..PART).filter(|at| found[*at] != wanted[*at]).collect();
    ensure!(
        wrong.is_empty(),
        "{} wrong bytes in the part at {part} of unit {unit}, from byte {} on",
        wrong.len(),
        wrong[0]
    );
    Ok(())
}

/// A forked child: what it has of the memory is what the parent had when it forked,
/// and stays so while peers write to the parent's.
struct Child {
    forked: Forked,
    parent: UnixStream,
}

impl Child {
    fn start(buffer: &Buffer, units: &BTreeSet<usize>, own: &[u64]) -> Result<Self> {
        let (parent, mut child) = UnixStream::pair()?;
        let look = || -> Result<Vec<Vec<u8>>> {
            let mut all = Vec::new();
            for unit in units {
                compare(buffer, OWN, *unit, own[*unit])?;
                all.push(buffer.read_vec(unit * UNIT, UNIT)?);
            }
            Ok(all)
        };
        let forked = mapping::fork(|| {
            let first = look();
            let _ = child.read_exact(&mut [0]);
            matches!((first, look()), (Ok(first), Ok(second)) if first == second)
        })?;
        Ok(Child { forked, parent })
    }

    /// Lets it look again; fails if anything was wrong.
    fn finish(mut self) -> Result<()> {
        self.parent.write_all(&[1]).context("tell the child")?;
        let whole = self.forked.succeeded().context("wait for the child")?;
        ensure!(
            whole,
            "a forked child saw its memory change, or wrong bytes"
        );
        Ok(())
    }
}
