//! What atomic operations, locks, queues and semaphores cost (N19 to N24), and a notification (N16).
//!
//! Two endpoints of one process: one thread issues, and looks at the memory of both, so nothing waits for
//! another thread to be scheduled.

use std::time::Duration;

use anyhow::{ensure, Result};
use qnic::{Buffer, Endpoint, Port, RemoteSegment, Segment, SegmentName};

use super::objects::{exported, spin, timed, Objects, LIMIT, SIGNAL};
use super::{Ends, Samples, HERE};

const OPERATIONS: &str = "operations";

/// Runs in a round, each of all cases one after the other.
const RUNS: u32 = 200;
const NAME: SegmentName = SegmentName(0x73);

/// A process on each node, and objects at the far one.
pub struct Bench {
    near: Endpoint,
    far: Endpoint,
    near_memory: (Buffer, Segment),
    far_memory: (Buffer, Segment),
    remote: RemoteSegment,
    objects: Objects,
    /// Other objects, for both; the semaphore has no unit.
    shared: [Objects; 2],
}

impl Bench {
    /// Registers at both ends.
    ///
    /// # Errors
    /// Those of the library.
    pub fn new([near, far]: &Ends) -> Result<Self> {
        let (near, far) = (near.nic.register(Port(7))?, far.nic.register(Port(7))?);
        let (near_memory, far_memory) = (exported(&near, NAME)?, exported(&far, NAME)?);
        let remote = near.import(far.node(), far.port(), NAME, LIMIT)?;
        let own = far.import(far.node(), far.port(), NAME, LIMIT)?;
        Ok(Bench {
            objects: Objects::new(&near, &remote, 0, 2)?,
            shared: [
                Objects::new(&near, &remote, Objects::BYTES, 0)?,
                Objects::new(&far, &own, Objects::BYTES, 0)?,
            ],
            near,
            far,
            near_memory,
            far_memory,
            remote,
        })
    }

    /// Times each case some times, one of all after the other.
    ///
    /// # Errors
    /// Those of the library, and what was not as it must be.
    pub fn round(&self, times: &mut dyn Samples) -> Result<()> {
        (1..=RUNS).try_for_each(|run| self.run(run, times))
    }

    /// Times a write, and a notifying one.
    fn notify(&self, mark: u32, times: &mut dyn Samples) -> Result<()> {
        // Behind the objects.
        let at = 2 * Objects::BYTES as usize;
        let bytes = mark.to_le_bytes();
        self.far_memory.0.store_u32(at, 0)?;
        let write = timed(|| {
            drop(self.near.write(&self.remote, at as u64, &bytes).post()?);
            spin(|| Ok(self.far_memory.0.load_u32(at)? == mark))
        });
        times.one("notification", "write 4 B, seen", HERE, write?);
        self.near.flush().wait()?;
        let signal = self.far.notification(SIGNAL);
        let notify = timed(|| {
            let (near, offset) = (&self.near, at as u64);
            drop(
                near.write(&self.remote, offset, &bytes)
                    .notify(SIGNAL)
                    .post()?,
            );
            signal.spin(LIMIT)?;
            ensure!(signal.acknowledge(), "a signal that was seen is gone");
            Ok(())
        });
        times.one("notification", "writeN 4 B, spun", HERE, notify?);
        Ok(self.near.flush().wait()?)
    }

    /// Times what wakes a process that waits.
    fn wake(&self, times: &mut dyn Samples) -> Result<()> {
        let [ours, theirs] = &self.shared;
        let guard = ours.lock.acquire()?;
        let mut successor = theirs.lock.waiting();
        let waits = successor.wait(Some(Duration::ZERO)).is_err();
        ensure!(waits, "two processes hold a lock");
        let mut waiter = theirs.semaphore.waiting();
        let waits = waiter.wait(Some(Duration::ZERO)).is_err();
        ensure!(waits, "a semaphore without units gives one");
        // Their links have arrived.
        self.far.flush().wait()?;
        let release = timed(|| Ok(guard.release()?));
        times.one(OPERATIONS, "release, to a successor", HERE, release?);
        successor.wait(Some(LIMIT))?.release()?;
        let signal = called(|| ours.semaphore.signal())?;
        times.one(OPERATIONS, "Ssignal, to a waiter", HERE, signal);
        // It does not go back: the next one waits again.
        waiter.wait(Some(LIMIT))?.keep();
        Ok(())
    }

    /// Times each operation once.
    fn run(&self, mark: u32, times: &mut dyn Samples) -> Result<()> {
        let objects = &self.objects;
        self.notify(mark, times)?;
        self.wake(times)?;
        let mut add = |name: &str, ns: f64| times.one(OPERATIONS, name, HERE, ns);
        let part = self.near_memory.1.part(0, 4);
        let read = called(|| self.near.read(&self.remote, Objects::BYTES, part).fenced());
        add("read 4 B", read?);
        add("testandset", called(|| objects.word.test_and_set().wait())?);
        add("incr", called(|| objects.word.increment().wait())?);
        add("decr", called(|| objects.word.decrement().wait())?);
        add("swap", called(|| objects.word.swap(mark).wait())?);
        add(
            "cswap",
            called(|| objects.word.compare_swap(mark, 0).wait())?,
        );
        add("fetch-add", called(|| objects.word.fetch_add(mark).wait())?);
        let mut guard = None;
        let acquire = timed(|| {
            guard = Some(objects.lock.acquire()?);
            Ok(())
        });
        add("acquire", acquire?);
        let refused = || Ok(objects.lock.try_acquire()?.is_none());
        let held = succeeded(refused, "the lock is held")?;
        let release = timed(|| guard.map_or(Ok(()), |guard| Ok(guard.release()?)));
        add("release, no successor", release?);
        let mut waiting = Vec::new();
        for name in ["insertQ, first", "insertQ, behind another"] {
            let insert = timed(|| {
                waiting.push(objects.queue.insert()?);
                Ok(())
            });
            add(name, insert?);
        }
        // What an insertion does not wait for is not part of a removal.
        self.near.flush().wait()?;
        let remove = succeeded(|| objects.queue.remove(), "the first waits");
        add("removeQ", remove?);
        ensure!(objects.queue.remove()?, "the second waits, too");
        for entry in &mut waiting {
            entry.wait(Some(LIMIT))?;
        }
        add("Swait", called(|| objects.semaphore.wait())?);
        add("Ssignal, no waiter", called(|| objects.semaphore.signal())?);
        let empty = called(|| objects.queue.remove())?;
        add("removeQ, none waits", empty);
        add("try_acquire, held", held);
        let try_wait = succeeded(|| objects.semaphore.try_wait(), "there are two units");
        add("try_wait", try_wait?);
        objects.semaphore.signal()?;
        Ok(())
    }
}

/// Time of a call whose result does not matter.
fn called<T>(call: impl FnOnce() -> qnic::Result<T>) -> Result<f64> {
    timed(|| {
        call()?;
        Ok(())
    })
}

/// Time of a call that must return true; `what` says why.
fn succeeded(call: impl FnOnce() -> qnic::Result<bool>, what: &str) -> Result<f64> {
    timed(|| {
        ensure!(call()?, "it failed, but {what}");
        Ok(())
    })
}
