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

pub(crate) mod oracle;

mod commands;
mod frames;

use std::collections::BTreeMap;

use qnic_abi::datagram::RECORD_BYTES;
use qnic_abi::PAGE_SIZE;
use qnic_driver::Process;

use crate::common::{Common, Phase};
use crate::machine::platform::SimPlatform;
use crate::process::queue::Queue;
use crate::process::{pages, ProcessContext, Result};
use crate::schedule::{lock, trace, Schedule};
use frames::Frames;

/// Datagram ports of each node, from 1 on.
const PORTS: u16 = 3;

/// Pages for buffers, and for packets.
const BUFFERS: usize = 12;
const PACKETS: usize = 6;

/// Frames that a worker takes: its pages, and one with records.
pub(crate) const FRAMES: u64 = (BUFFERS + PACKETS + 1) as u64;

const _: () = assert!(BUFFERS * RECORD_BYTES <= PAGE_SIZE);

/// How long a worker that serves blocks at most, in nanoseconds.
const LOOK: u64 = 5_000_000;

impl ProcessContext {
    /// A datagram worker from its start to its end.
    pub(crate) fn run_datagram_worker(&self) {
        let (machine, slot) = (&self.machine, self.slot);
        let space = machine.kernel.new_space(pages(0x40_0000, PAGE_SIZE as u64));
        if let Some(frames) = Frames::take(machine) {
            lock(&self.common.datagrams).begin(slot, machine, space);
            let work = |process: &Process<SimPlatform>| self.use_datagrams(process, &frames);
            let process = self.live("datagram worker", space, work);
            // Its NIC has ended it when this returns.
            drop(process);
            frames.release(machine);
        }
        machine.kernel.end_space(space);
    }

    fn use_datagrams(&self, process: &Process<SimPlatform>, frames: &Frames) -> Result<()> {
        let mut worker = DatagramWorker {
            context: self,
            common: &self.common,
            schedule: &self.common.schedule,
            slot: self.slot,
            process,
            queue: Queue::new(&self.machine, process),
            frames,
            free_buffers: (0..BUFFERS).collect(),
            free_packets: (0..PACKETS).collect(),
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

/// A command under way, and its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Buffer(usize, u16),
    Packet(usize),
}

/// A registered process.
struct DatagramWorker<'a> {
    context: &'a ProcessContext,
    common: &'a Common,
    schedule: &'a Schedule,
    slot: usize,
    process: &'a Process<SimPlatform>,
    queue: Queue,
    frames: &'a Frames,
    /// Pages that are its own.
    free_buffers: Vec<usize>,
    free_packets: Vec<usize>,
    /// Commands under way, by handle.
    open: BTreeMap<u64, Open>,
}

impl DatagramWorker<'_> {
    /// Does what drivers do, in any order, until it has done enough.
    fn work(&mut self) -> Result<Next> {
        for _ in self.context.steps() {
            for _ in 0..self.schedule.range(1..4) {
                self.act()?;
            }
            if !self.schedule.chance(200) {
                self.collect()?;
            }
            if self.schedule.chance(3) {
                return Ok(Next::End);
            }
            self.context.think(500)?;
        }
        Ok(Next::Serve)
    }

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
            _ => {
                let limit = self.schedule.range(1000..1_000_000);
                self.wait(limit)
            }
        }
    }

    /// Keeps a buffer posted for each port until all others are done; when nothing breaks any more,
    /// sends to each other worker until it is reached.
    fn serve(&mut self) -> Result<()> {
        for port in 1..=PORTS {
            self.take_all_back(port)?;
        }
        while self.common.phase() != Phase::Exit {
            self.collect()?;
            for port in 1..=PORTS {
                let posted = |open: &Open| matches!(open, Open::Buffer(_, of) if *of == port);
                if !self.open.values().any(posted) {
                    self.post_for(port, false)?;
                }
            }
            if self.common.phase() == Phase::Drain {
                let missing = lock(&self.common.datagrams).not_opened(self.slot);
                for node in missing {
                    self.open_session(node)?;
                }
            }
            self.context.set_idle(true);
            self.wait(LOOK)?;
        }
        Ok(())
    }

    /// Reads the completions that have come: their pages are its own again.
    fn collect(&mut self) -> Result<()> {
        for entry in self.context.completions(self.process, &mut self.queue) {
            match self.open.remove(&entry.handle.get()) {
                Some(Open::Buffer(page, _)) => self.free_buffers.push(page),
                Some(Open::Packet(page)) => self.free_packets.push(page),
                None => {}
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
        trace!(self.schedule, "datagram worker {}: {what}", self.slot);
    }
}
