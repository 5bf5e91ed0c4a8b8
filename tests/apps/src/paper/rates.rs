//! How many operations a single process, or a group of them, can issue (NetVM
//! figure 28), as ratios to reads of 4 bytes.
//!
//! NetVM's are computed: of a single process from the operations' overhead (table 31), of a
//! group from what the network interface of the owner needs (table 30). Here both are
//! measured: every process of the group works at objects of its own, all of them in the
//! memory of one owner.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{bail, ensure, Result};
use qnic::{Buffer, Endpoint, Nic, Port, RemoteSegment, Segment, SegmentName};

use super::objects::{exported, Objects, LIMIT};
use super::{Ends, Samples};

/// Processes of a group.
const GROUP: usize = 4;
/// Operations, or pairs of them, of each process in a round.
const REPEATS: usize = 500;
const OWNER: SegmentName = SegmentName(0x76);
const OWN: SegmentName = SegmentName(0x77);

/// Kinds, and the operations in a step of each.
const KINDS: [(&str, usize); 5] = [
    ("read 4 B", 1),
    // The slowest of the atomic operations.
    ("swap", 1),
    ("acquire, release", 2),
    ("insertQ, removeQ", 2),
    ("Swait, Ssignal", 2),
];

/// A process of the group.
struct Worker {
    endpoint: Endpoint,
    remote: RemoteSegment,
    own: Segment,
    objects: Objects,
}

impl Worker {
    fn new(nic: &Nic, owner: &Endpoint, number: usize) -> Result<Self> {
        let endpoint = nic.register(Port(20 + number as u16))?;
        let (_, own) = exported(&endpoint, OWN)?;
        let remote = endpoint.import(owner.node(), owner.port(), OWNER, LIMIT)?;
        Ok(Worker {
            objects: Objects::new(&endpoint, &remote, number as u64 * Objects::BYTES, 1)?,
            endpoint,
            remote,
            own,
        })
    }

    /// One step of a kind.
    fn step(&self, kind: usize) -> Result<()> {
        let objects = &self.objects;
        match kind {
            0 => Ok(self
                .endpoint
                .read(&self.remote, 0, self.own.part(0, 4))
                .fenced()?),
            1 => {
                objects.word.swap(1).wait()?;
                Ok(())
            }
            2 => Ok(objects.lock.acquire()?.release()?),
            3 => {
                let mut waiting = objects.queue.insert()?;
                ensure!(objects.queue.remove()?, "this process waits");
                Ok(waiting.wait(Some(LIMIT))?)
            }
            _ => {
                objects.semaphore.wait()?;
                objects.semaphore.signal()?;
                Ok(())
            }
        }
    }
}

/// The group, and the owner of its objects.
pub struct Bench {
    workers: Vec<Worker>,
    _objects: (Buffer, Segment),
    _owner: Endpoint,
}

impl Bench {
    /// Registers at both ends.
    ///
    /// # Errors
    /// Those of the library.
    pub fn new([near, far]: &Ends) -> Result<Self> {
        let owner = far.nic.register(Port(9))?;
        let objects = exported(&owner, OWNER)?;
        let workers: Result<_> = (0..GROUP)
            .map(|it| Worker::new(&near.nic, &owner, it))
            .collect();
        Ok(Bench {
            workers: workers?,
            _objects: objects,
            _owner: owner,
        })
    }

    /// Both rates of each kind.
    ///
    /// # Errors
    /// Those of the library, and what was not as it must be.
    pub fn round(&self, rates: &mut dyn Samples) -> Result<()> {
        for (kind, (name, _)) in KINDS.iter().enumerate() {
            let groups = [
                ("single [1/s]", &self.workers[..1]),
                ("group [1/s]", &self.workers),
            ];
            for (figure, workers) in groups {
                rates.one("rates", name, figure, run(workers, kind)?);
            }
        }
        Ok(())
    }
}

/// Operations per second of some processes, each in a thread of its own.
fn run(workers: &[Worker], kind: usize) -> Result<f64> {
    let ready = Barrier::new(workers.len() + 1);
    let seconds = std::thread::scope(|scope| -> Result<f64> {
        let threads = workers.iter().map(|worker| {
            let ready = &ready;
            scope.spawn(move || -> Result<()> {
                ready.wait();
                (0..REPEATS).try_for_each(|_| worker.step(kind))
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
    Ok((workers.len() * REPEATS * KINDS[kind].1) as f64 / seconds)
}
