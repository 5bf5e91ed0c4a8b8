//! A datagram worker: a process that is the driver of its node for the NIC, and does what drivers do
//! with datagrams (H1 to H3, H8).
//!
//! ```text
//!   works: posts, sends, takes back, makes mistakes ──► serves: keeps buffers posted, until all are
//!                             │                         done; then reaches all others ──► ends
//!                             └──► ends, and leaves what it has posted
//! ```
//! Buffers are of any length and anywhere in their pages; some are steered. Packets go to any port
//! of any node, most to where something is posted, and many name a steered buffer: the right one,
//! one that is gone, or one of another port. It is a task like a message worker, and issues raw
//! commands, which name frames of its machine.

mod oracle;

mod commands;
mod frames;

use std::collections::BTreeMap;
use std::sync::Mutex;

use qnic_abi::datagram::RECORD_BYTES;
use qnic_abi::host_area::CompletionEntry;
use qnic_abi::PAGE_SIZE;
use qnic_nic::Limits;

use self::frames::Frames;
use self::oracle::DatagramOracle;
use crate::common::Phase;
use crate::process::worker::{is_registered, Next, QueueWorker, Registered, Worker};
use crate::process::{pages, ProcessContext, Result};
use crate::schedule::lock;
use crate::workload::{live, Oracle, Seed, Workload};

/// Datagram ports of each node, from 1 on.
const PORTS: u16 = 3;

/// Pages for buffers, and for packets.
const BUFFERS: usize = 12;
const PACKETS: usize = 6;

/// Frames that a worker takes: its pages, and one with records.
const FRAMES: u64 = (BUFFERS + PACKETS + 1) as u64;

const _: () = assert!(BUFFERS * RECORD_BYTES <= PAGE_SIZE);

/// How long a worker that serves blocks at most, in nanoseconds.
const LOOK: u64 = 5_000_000;

/// Datagram workers and their oracle.
struct Datagrams {
    oracle: Mutex<DatagramOracle>,
}

/// Datagram workers, one for a node at most, in the place of sync workers.
pub(super) fn new(seed: &mut Seed<'_>) -> Box<dyn Workload> {
    seed.settings.drivers = true;
    seed.settings.frames += FRAMES;
    limit(&mut seed.settings.limits, &mut seed.random);
    let oracle = Mutex::new(DatagramOracle::new(seed.settings, seed.routes));
    Box::new(Datagrams { oracle })
}

/// Bounds for datagrams, small ones some of the time. There are buffers for each port.
fn limit(limits: &mut Limits, random: &mut fastrand::Rng) {
    limits.completions = random.u32(1..=32);
    limits.sends = random.u32(1..=16);
    if random.bool() {
        limits.datagram_buffers = random.u32(4..=12);
    }
}

impl Workload for Datagrams {
    fn run(&self, context: &ProcessContext) {
        let (machine, slot) = (&context.machine, context.slot);
        let space = machine.kernel.new_space(pages(0x40_0000, PAGE_SIZE as u64));
        if let Some(frames) = Frames::take(machine) {
            lock(&self.oracle).begin(slot, machine, space);
            let process = live(self, context, ("datagram worker", space), |process| {
                let mut worker = DatagramWorker {
                    oracle: &self.oracle,
                    registered: Registered::new(context, process),
                    frames: &frames,
                    free_buffers: (0..BUFFERS).collect(),
                    free_packets: (0..PACKETS).collect(),
                    open: BTreeMap::new(),
                };
                worker.live()
            });
            // Its NIC has ended it when this returns.
            drop(process);
            frames.release(machine);
        }
        machine.kernel.end_space(space);
    }

    fn oracle(&self) -> &Mutex<dyn Oracle> {
        &self.oracle
    }
}

/// A command under way, and its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Buffer(usize, u16),
    Packet(usize),
}

/// A registered process.
struct DatagramWorker<'a> {
    oracle: &'a Mutex<DatagramOracle>,
    registered: Registered<'a>,
    frames: &'a Frames,
    /// Pages that are its own.
    free_buffers: Vec<usize>,
    free_packets: Vec<usize>,
    /// Commands under way, by handle.
    open: BTreeMap<u64, Open>,
}

is_registered!(DatagramWorker);

impl DatagramWorker<'_> {
    /// Does one thing.
    fn act(&mut self) -> Result<()> {
        match self.schedule.range(0..1000) {
            0..=379 => self.send(),
            380..=759 => self.post(),
            760..=829 => self.withdraw(),
            830..=859 => self.withdraw_all(),
            860..=889 => self.send_wrong(),
            890..=919 => self.post_wrong(),
            920..=929 => self.malform(),
            _ => self.wait_a_little(),
        }
    }
}

impl Worker for DatagramWorker<'_> {
    fn context(&self) -> &ProcessContext {
        self.context
    }

    fn step(&mut self) -> Result<Next> {
        for _ in 0..self.schedule.range(1..4) {
            self.act()?;
        }
        if !self.schedule.chance(200) {
            self.collect()?;
        }
        Ok(Next::end_if(self.schedule.chance(3)))
    }

    fn begin_to_serve(&mut self) -> Result<()> {
        (1..=PORTS).try_for_each(|port| self.take_all_back(port))
    }

    /// Keeps a buffer posted for each port; when nothing breaks any more, sends to each other worker
    /// until it is reached.
    fn look(&mut self) -> Result<()> {
        self.collect()?;
        for port in 1..=PORTS {
            let posted = |open: &Open| matches!(open, Open::Buffer(_, of) if *of == port);
            if !self.open.values().any(posted) {
                self.post_for(port, false)?;
            }
        }
        if self.common.phase() == Phase::Drain {
            let missing = lock(self.oracle).not_opened(self.slot);
            for node in missing {
                self.open_session(node)?;
            }
        }
        self.context.set_idle(true);
        self.wait(LOOK)
    }
}

impl<'a> QueueWorker<'a> for DatagramWorker<'a> {
    const NAME: &'static str = "datagram worker";

    /// Its page is its own again.
    fn complete(&mut self, entry: &CompletionEntry) {
        match self.open.remove(&entry.handle.get()) {
            Some(Open::Buffer(page, _)) => self.free_buffers.push(page),
            Some(Open::Packet(page)) => self.free_packets.push(page),
            None => {}
        }
    }
}
