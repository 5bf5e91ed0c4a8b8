//! A message worker: a process that sends and receives tagged messages (Q3, Q4, Q11 to Q13).
//!
//! ```text
//!   works: sends, receives, cancels, revokes ──► serves: a receive for any message in each
//!         │                                      space, until all others are done, too ──► ends
//!         └──► ends behind messages that it has just sent, in some seeds
//! ```
//! It is a task like an RDMA worker, and issues raw commands. The [`oracle`] learns
//! of each one when it is issued, and sees the completions when the NIC stores them; the worker
//! reads them later, as programs do. At the end nothing of it is posted or under way.
//!
//! In some seeds workers send to all others before they receive, as a correct MPI program may: what
//! fits into their shares of staging memory arrives although no process receives it. A deadlock shows
//! as processes that do not end.
//!
//! A process of which so many Sends run as the NIC takes has no more commands read, so it could
//! post no receive for those that wait for it: a worker leaves room for one.

mod oracle;

mod by_context;
mod commands;
mod contexts;

use std::collections::BTreeMap;
use std::sync::Mutex;

use qnic_abi::host_area::{CompletionEntry, CompletionKind, COMPLETION_MORE};
use qnic_abi::shared::Ordering;
use qnic_abi::window::INCARNATION;
use qnic_abi::{Access, SharedMemory, Status, PAGE_SIZE};
use qnic_driver::Process;
use qnic_nic::Limits;

use self::contexts::Contexts;
use self::oracle::{MessageOracle, Space, INCOMING, OUTGOING};
use crate::expected_bytes::{ExpectedBytes, Range};
use crate::machine::mapping::Mapping;
use crate::machine::platform::SimPlatform;
use crate::process::worker::{is_registered, Exported, Next, QueueWorker, Registered, Worker};
use crate::process::{pages, Ended, ProcessContext, Result};
use crate::schedule::lock;
use crate::settings::{Faults, Settings};
use crate::workload::{live, Oracle, Seed, Workload};

/// Endpoints that are used.
const ENDPOINTS: [u16; 3] = [0, 3, 15];

/// Messages that it claims before it receives one.
const CLAIMED: usize = 6;

/// After so many of a thousand steps a worker ends abruptly, in seeds in which some do.
const ABRUPT: u32 = 8;

/// How long it runs on behind its last messages then at most, in nanoseconds.
const MOMENT: u64 = 500_000;

/// How often a worker that serves draws memory for a receive, until that is free.
const DRAWS: usize = 16;

/// How long a worker that serves blocks at most, in nanoseconds.
const LOOK: u64 = 5_000_000;

/// A segment of a message worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Area {
    Outgoing,
    Incoming,
}

impl Area {
    const ALL: [Area; 2] = [Area::Outgoing, Area::Incoming];
}

/// Message workers and their oracle.
struct Messages {
    oracle: Mutex<MessageOracle>,
    /// Workers post probes, too.
    probes: bool,
    /// Workers use contexts, too.
    contexts: bool,
    /// Some workers end behind messages that they have just sent.
    abrupt: bool,
    /// Workers send to all others now and then, and receive nothing before that has arrived.
    exchanges: bool,
}

/// Message workers in the place of all RDMA workers of a node but one, and of sync workers.
pub(super) fn new(seed: &mut Seed<'_>) -> Box<dyn Workload> {
    seed.settings.keep_one_rdma_worker();
    let exchanges = limit(seed.settings, &mut seed.random);
    Box::new(Messages {
        oracle: Mutex::new(MessageOracle::new(seed.settings, seed.routes)),
        probes: seed.number % 7 == 6,
        contexts: seed.number % 14 >= 7,
        abrupt: seed.random.bool(),
        exchanges,
    })
}

/// Bounds for messages, small ones most of the time. A process that sends has to leave a
/// place for another message, or its queue stands still. Returns true if each process has a share
/// of the staging memory of each other one.
fn limit(settings: &mut Settings, random: &mut fastrand::Rng) -> bool {
    let senders = settings.others().len() as u32;
    let limits = &mut settings.limits;
    limits.sends = limits.operations.clamp(3, 64);
    limits.completions = random.u32(1..=32);
    if random.bool() {
        limits.staged_bytes = random.u32(300..30_000);
    }
    if random.bool() {
        limits.staged_bytes_per_peer = random.u32(300..60_000);
    }
    if random.bool() {
        limits.staged_bytes_per_sender = random.u32(300..20_000);
    }
    if random.u8(..) < 64 {
        limits.receives = random.u32(12..=40);
        limits.masks = random.u32(3..=8);
    }
    if random.u8(..) < 32 {
        limits.envelopes_per_peer = random.u32(8..=40);
    }
    let exchanges = random.u8(..) < 100;
    if exchanges {
        limits.staged_bytes_per_sender = random.u32(10_000..70_000);
        limits.staged_bytes = 2 * senders * limits.staged_bytes_per_sender;
        limits.staged_bytes_per_peer = senders * limits.staged_bytes;
        limits.envelopes_per_peer = Limits::default().envelopes_per_peer;
    }
    exchanges
}

impl Workload for Messages {
    fn run(&self, context: &ProcessContext) {
        let (machine, slot) = (&context.machine, context.slot);
        let schedule = &context.common.schedule;
        let offset = || schedule.range(0..PAGE_SIZE as u64);
        let ranges = [
            (0x40_0000 + offset(), OUTGOING),
            (0x80_0000 + offset(), INCOMING),
        ];
        let [outgoing, incoming] = ranges.map(|(address, length)| pages(address, length));
        let space = machine.kernel.new_space(outgoing.chain(incoming));
        let addresses = ranges.map(|(address, _)| address);
        lock(&self.oracle).begin(slot, machine, space, addresses);
        let process = live(self, context, ("message worker", space), |process| {
            let mut worker = MessageWorker::new(self, context, process, ranges);
            Area::ALL
                .into_iter()
                .try_for_each(|area| worker.export(area))?;
            worker.live()
        });
        drop(process);
        machine.kernel.end_space(space);
    }

    fn oracle(&self) -> &Mutex<dyn Oracle> {
        &self.oracle
    }
}

/// A registered process.
struct MessageWorker<'a> {
    workload: &'a Messages,
    registered: Registered<'a>,
    contexts: Contexts,
    ranges: [Range; 2],
    /// By area.
    exported: [Option<Exported>; 2],
    /// What messages under way lie in.
    sources: ExpectedBytes,
    /// Messages under way.
    sends: usize,
    /// Posted receives, and the space of those that serve.
    receives: BTreeMap<u64, Option<Space>>,
    /// Messages that it has claimed, and those of which a receive is posted, by its handle.
    claimed: Vec<Claimed>,
    landing: BTreeMap<u64, Claimed>,
    /// It waits for another process, as all are to do in the end.
    waits: bool,
}

/// A claimed message: its number at the NIC, its immediate data, and its length.
#[derive(Debug, Clone, Copy)]
struct Claimed {
    number: u64,
    id: u64,
    length: u64,
}

is_registered!(MessageWorker);

impl<'a> MessageWorker<'a> {
    fn new(
        workload: &'a Messages,
        context: &'a ProcessContext,
        process: &'a Process<SimPlatform>,
        ranges: [Range; 2],
    ) -> Self {
        // As a library does when it has registered.
        let incarnation = lock(&workload.oracle).incarnation(context.slot);
        let window = Mapping::window(&context.machine, process.window_offset());
        window.store_u64(INCARNATION, incarnation.into(), Ordering::Relaxed);
        lock(&workload.oracle).announce(context.slot);
        MessageWorker {
            workload,
            registered: Registered::new(context, process),
            contexts: Contexts::new(&context.machine, process),
            ranges,
            exported: [None; 2],
            sources: ExpectedBytes::default(),
            sends: 0,
            receives: BTreeMap::new(),
            claimed: Vec::new(),
            landing: BTreeMap::new(),
            waits: false,
        }
    }

    fn export(&mut self, area: Area) -> Result<()> {
        let (name, range) = (area as u64 + 1, self.ranges[area as usize]);
        let exported = self.registered.export((name, Access::all()), range)?;
        self.exported[area as usize] = Some(exported);
        if area == Area::Incoming {
            lock(&self.workload.oracle).revoke_incoming(self.slot, false);
        }
        Ok(())
    }

    fn unexport(&mut self, area: Area) -> Result<()> {
        let Some(exported) = self.exported[area as usize].take() else {
            return Ok(());
        };
        match area {
            Area::Outgoing => lock(&self.workload.oracle).revoke_outgoing(self.slot),
            Area::Incoming => lock(&self.workload.oracle).revoke_incoming(self.slot, true),
        }
        self.registered.unexport(exported)?;
        self.trace(format_args!("revokes {area:?}"));
        Ok(())
    }

    fn revoke(&mut self) -> Result<()> {
        let area = Area::ALL[self.schedule.below(2)];
        self.unexport(area)?;
        self.context.think(500)?;
        self.export(area)
    }

    /// Ends behind messages that it has just sent, as a program does that does not wait for them.
    fn end_abruptly(&mut self) -> Result<()> {
        self.send_some()?;
        let longest = self.schedule.range(1000..MOMENT);
        self.context.sleep(self.schedule.range(0..longest))?;
        Err(Ended)
    }

    /// Does one thing.
    fn act(&mut self) -> Result<()> {
        let faults = self.common.settings.options.faults;
        let revoke = 15 * u64::from(faults.contains(Faults::REVOKE));
        if self.workload.probes && self.schedule.chance(250) {
            return match self.claimed.len() {
                0..CLAIMED if self.schedule.chance(700) => self.probe(),
                _ => self.receive_claimed(),
            };
        }
        if self.workload.exchanges && self.schedule.chance(60) {
            return self.exchange();
        }
        match self.schedule.range(0..1000 + revoke) {
            0..=429 => self.send(),
            430..=769 => self.receive(),
            770..=829 => self.cancel_some(),
            830..=909 => self.send_some(),
            910..=999 => self.wait_a_little(),
            _ => self.revoke(),
        }
    }

    /// A Send has ended.
    fn sent(&mut self, id: u64) {
        self.sends -= 1;
        self.sources.release(id);
    }

    /// Notes what was claimed, or is claimed still as its receive has failed.
    fn note_claimed(&mut self, entry: &CompletionEntry) {
        let status = entry.status.get();
        if let Some(claimed) = self.landing.remove(&entry.handle.get()) {
            // It was not matched, and the message is there.
            let unmatched = entry.immediate.get() == 0 && status != Status::NoMessage.code();
            self.claimed.extend(unmatched.then_some(claimed));
        }
        let claims = entry.kind == CompletionKind::Probe as u8 && entry.offset.get() != 0;
        self.claimed.extend(claims.then(|| Claimed {
            number: entry.offset.get(),
            id: entry.immediate.get(),
            length: entry.length.get(),
        }));
    }
}

impl Worker for MessageWorker<'_> {
    fn context(&self) -> &ProcessContext {
        self.context
    }

    fn step(&mut self) -> Result<Next> {
        self.act()?;
        if !self.schedule.chance(400) {
            self.collect()?;
        }
        if self.workload.abrupt && self.schedule.chance(ABRUPT) {
            self.end_abruptly()?;
        }
        Ok(Next::GoOn)
    }

    fn begin_to_serve(&mut self) -> Result<()> {
        self.cancel_all()
    }

    /// Receives what comes.
    fn look(&mut self) -> Result<()> {
        self.collect()?;
        while !self.claimed.is_empty() {
            self.receive_claimed()?;
        }
        for endpoint in ENDPOINTS {
            for untagged in [false, true] {
                let space = (endpoint, untagged);
                // Much of its memory may be reserved by receives that have taken many messages.
                for _ in 0..DRAWS {
                    if !self.receives.values().any(|it| *it == Some(space)) {
                        self.receive_any(space)?;
                    }
                }
            }
        }
        if self.common.lets_wait() && !std::mem::replace(&mut self.waits, true) {
            self.wait_for_another()?;
        }
        self.context.set_idle(self.sends == 0);
        self.wait(LOOK)
    }

    /// Takes everything back, and waits until nothing of it is left.
    fn finish(&mut self) -> Result<()> {
        self.cancel_all()?;
        while self.sends > 0 || !self.receives.is_empty() || !self.claimed.is_empty() {
            match self.claimed.pop() {
                Some(claimed) => self.receive_or_drop(claimed, true)?,
                None => self.wait(LOOK)?,
            }
        }
        Area::ALL
            .into_iter()
            .try_for_each(|area| self.unexport(area))
    }
}

impl<'a> QueueWorker<'a> for MessageWorker<'a> {
    const NAME: &'static str = "message worker";

    fn complete(&mut self, entry: &CompletionEntry) {
        let handle = entry.handle.get();
        if entry.kind == CompletionKind::Send as u8 {
            self.sent(handle);
        } else if entry.flags & COMPLETION_MORE == 0 {
            self.receives.remove(&handle);
            self.note_claimed(entry);
        }
    }

    fn collected(&mut self) {
        for ((receives, _), handle) in self.contexts.ended() {
            match receives {
                true => drop(self.receives.remove(&handle)),
                false => self.sent(handle),
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.contexts.have_ended()
    }
}
