//! How many operations a single process, or a group of them, can issue (NetVM
//! figure 28), as ratios to reads of 4 bytes.
//!
//! The source computes its rates: of a single process from the operations' overhead
//! (table 31), of a group from what the network interface at the home needs (table
//! 30). Here both are measured: every process of the group works at objects of its own,
//! all of them at one home.

use std::fmt::Write as _;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{bail, ensure, Result};
use qnic::sync::{Lock, Participant, Semaphore, WaitQueue, OBJECT_BYTES};
use qnic::{Access, Buffer, Endpoint, Nic, Port, RemoteSegment, RemoteU32, Segment, SegmentName};
use qnic_tests::host::HostNodes;
use serde::Serialize;

use super::super::{netvm, spread};
use super::{LIMIT, MEMORY};

/// Processes of a group.
const GROUP: usize = 4;
/// Operations, or pairs of them, of each process in a round.
const REPEATS: usize = 500;
const HOME: SegmentName = SegmentName(0x76);
const OWN: SegmentName = SegmentName(0x77);
/// Bytes of the home that each process uses.
const SHARE: u64 = 4 * OBJECT_BYTES;

/// Rates of one kind of operation, in operations per second, one value for each round.
#[derive(Debug, Serialize)]
pub(super) struct Rate {
    name: &'static str,
    single: Vec<f64>,
    group: Vec<f64>,
    /// Microseconds for each operation in the source: of a single process, of a group.
    netvm_us: [f64; 2],
}

/// What is measured: name, how many operations are a step, and what the source has.
const KINDS: [(&str, usize, [f64; 2]); 5] = [
    ("read 4 B", 1, netvm::RATE_READ),
    ("swap", 1, netvm::RATE_ATOMIC),
    ("acquire, release", 2, netvm::RATE_LOCK),
    ("insertQ, removeQ", 2, netvm::RATE_QUEUE),
    ("Swait, Ssignal", 2, netvm::RATE_SEMAPHORE),
];

/// A process of the group.
struct Member {
    endpoint: Endpoint,
    remote: RemoteSegment,
    own: Segment,
    word: RemoteU32,
    lock: Lock,
    queue: WaitQueue,
    semaphore: Semaphore,
}

impl Member {
    fn new(nic: &Nic, home: &Endpoint, number: usize) -> Result<Self> {
        let endpoint = nic.register(Port(20 + number as u16))?;
        let own = endpoint.allocate(4096)?;
        let own = endpoint.export(OWN, &own, Access::all())?;
        let remote = endpoint.import(home.node(), home.port(), HOME, LIMIT)?;
        let participant = Participant::new(&endpoint)?;
        let at = number as u64 * SHARE;
        let semaphore = Semaphore::new(&participant, &remote, at + 2 * OBJECT_BYTES)?;
        semaphore.initialize(1)?;
        Ok(Member {
            lock: Lock::new(&participant, &remote, at)?,
            queue: WaitQueue::new(&participant, &remote, at + OBJECT_BYTES)?,
            semaphore,
            word: endpoint.atomic_u32(&remote, at + 3 * OBJECT_BYTES)?,
            endpoint,
            remote,
            own,
        })
    }

    /// One step of a kind.
    fn step(&self, kind: usize) -> Result<()> {
        match kind {
            0 => Ok(self
                .endpoint
                .read_fenced(&self.remote, 0, self.own.part(0, 4))?),
            1 => {
                self.word.swap(1)?;
                Ok(())
            }
            2 => Ok(self.lock.acquire()?.release()?),
            3 => {
                let mut place = self.queue.insert()?;
                ensure!(self.queue.remove()?, "somebody waits");
                Ok(place.wait(Some(LIMIT))?)
            }
            _ => {
                self.semaphore.wait()?;
                Ok(self.semaphore.signal()?)
            }
        }
    }
}

/// Measures both rates of each kind. The first round warms up and is not counted.
pub(super) fn measure(rounds: usize) -> Result<Vec<Rate>> {
    let nodes = HostNodes::start(2)?;
    let nic = |node| Nic::open_host_with(nodes.socket(node), MEMORY);
    let (near, far) = (nic(0)?, nic(1)?);
    let home = far.register(Port(9))?;
    let _objects = export(&home)?;
    let members: Result<Vec<_>> = (0..GROUP).map(|i| Member::new(&near, &home, i)).collect();
    let members = members?;
    let mut rates = KINDS.map(|(name, _, netvm_us)| Rate {
        name,
        single: Vec::new(),
        group: Vec::new(),
        netvm_us,
    });
    for round in 0..=rounds {
        for (kind, rate) in rates.iter_mut().enumerate() {
            let single = run(&members[..1], kind)?;
            let group = run(&members, kind)?;
            if round > 0 {
                rate.single.push(single);
                rate.group.push(group);
            }
        }
    }
    Ok(rates.into())
}

fn export(home: &Endpoint) -> Result<(Buffer, Segment)> {
    let buffer = home.allocate(4096)?;
    let segment = home.export(HOME, &buffer, Access::all())?;
    Ok((buffer, segment))
}

/// Operations per second of some processes, each in a thread of its own.
fn run(members: &[Member], kind: usize) -> Result<f64> {
    let ready = Barrier::new(members.len() + 1);
    let seconds = std::thread::scope(|scope| -> Result<f64> {
        let threads = members.iter().map(|member| {
            let ready = &ready;
            scope.spawn(move || -> Result<()> {
                ready.wait();
                (0..REPEATS).try_for_each(|_| member.step(kind))
            })
        });
        let threads: Vec<_> = threads.collect();
        ready.wait();
        let start = Instant::now();
        for thread in threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => bail!("a process of the group has panicked"),
            }
        }
        Ok(start.elapsed().as_secs_f64())
    })?;
    Ok((members.len() * REPEATS * KINDS[kind].1) as f64 / seconds)
}

/// The table for people.
pub(super) fn table(rates: &[Rate]) -> String {
    let median = |values: &[f64]| spread(values).map_or(f64::NAN, |(median, ..)| median);
    let Some(read) = rates.first() else {
        return String::new();
    };
    let mut text = format!(
        "Operations per second of a single process and of {GROUP}, and their ratio to reads \
         (NetVM figure 28)\n{:<22} {:>9} {:>7} {:>9} {:>7} | {:>13} {:>13}\n",
        "", "single", "ratio", "group", "ratio", "NetVM single", "NetVM group"
    );
    for rate in rates {
        let (single, group) = (median(&rate.single), median(&rate.group));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<22} {single:>9.0} {:>7.2} {group:>9.0} {:>7.2} | {:>13.2} {:>13.2}",
            rate.name,
            single / median(&read.single),
            group / median(&read.group),
            read.netvm_us[0] / rate.netvm_us[0],
            read.netvm_us[1] / rate.netvm_us[1],
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::super::memory::tests::words_of_row;
    use super::*;

    #[test]
    fn rates_are_ratios_to_reads() {
        let rates = KINDS.map(|(name, _, netvm_us)| Rate {
            name,
            single: vec![if name == "swap" { 50.0 } else { 100.0 }],
            group: vec![if name == "swap" { 150.0 } else { 200.0 }],
            netvm_us,
        });
        let text = table(&rates);
        let words = words_of_row(&text, "swap");
        assert_eq!(
            words,
            ["swap", "50", "0.50", "150", "0.75", "|", "0.88", "0.63"]
        );
        assert!(words_of_row(&text, "read").ends_with(&["1.00".into(), "1.00".into()]));
    }
}
