//! `qnic bench sync`: what notifications, channels, atomic operations, locks, queues and
//! semaphores cost (N16 to N24), as ratios to this system's own writes and reads, beside
//! those of NetVM.
//!
//! Two host-mode nodes in this process: one thread issues, and looks at the memory of
//! both, so nothing waits for another thread to be scheduled.

mod rates;
mod signals;

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use qnic::sync::{Lock, Participant, Semaphore, WaitQueue, OBJECT_BYTES};
use qnic::{Access, Buffer, Endpoint, Nic, NotificationId, Port};
use qnic::{RemoteSegment, RemoteU32, Segment, SegmentName};
use qnic_trials::nodes::host::HostNodes;

use super::figures::Table;
use super::goal::Goal;
use super::netvm;
use super::series::Recorder;
use super::MEMORY;
pub(super) use signals::{by_size, SIGNAL_SIZES};

/// Runs in a round, each of all cases one after the other; the median is a value.
const RUNS: u32 = 200;
/// Longest time for anything.
const LIMIT: Duration = Duration::from_secs(10);
const NAME: SegmentName = SegmentName(0x73);
const SIGNAL: NotificationId = id(1);

const fn id(number: u32) -> NotificationId {
    match NotificationId::new(number) {
        Some(id) => id,
        None => panic!("a counted notification"),
    }
}

/// The goal for the ratio of an operation: of a notification to a write, of the others to
/// a read. An atomic operation is a round trip as a read is, and what takes one of them
/// shall take at most 1.2 of it.
fn goal(name: &str) -> Option<Goal> {
    let most = match name {
        WRITE | "read 4 B" => return None,
        WRITE_NOTIFY => 1.55,
        "testandset" | "incr" | "decr" | "swap" | "cswap" | "fetch-add" => 1.15,
        _ => 1.15 * 1.2,
    };
    Some(Goal::at_most(most).code("P8"))
}

/// What notifications are compared with, and they.
const WRITE: &str = "write 4 B, seen";
const WRITE_NOTIFY: &str = "writeN 4 B, spun";

/// Measures everything. The first round warms up and is not counted.
pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let (_nodes, near, far) = two_nodes()?;
    let bench = Bench::new(&near, &far)?;
    let mut times = Recorder::new(netvm::OPERATIONS);
    for round in 0..=rounds {
        for run in 1..=RUNS {
            bench.run(run, &mut times)?;
        }
        times.end_round(round == 0);
        eprint!("\r{round} of {rounds} rounds");
    }
    eprintln!();
    let [small, large, pending, channels] = signals::measure(rounds)?;
    let mut tables: Vec<_> = operations(&times).into();
    let (write, large_write) = (small.unit("write, seen"), large.unit("write, seen"));
    tables.extend([
        small.table(
            "notification-4",
            "Notification with 4 bytes, ratio to a write (NetVM table 27); a receiver that waits has slept",
            &write,
        ),
        large.table(
            "notification-4096",
            "Notification with 4096 bytes, ratio to a write (NetVM table 27)",
            &large_write,
        ),
        pending.table(
            "pending",
            "A signal that is pending, ratio to a write of 4 bytes (NetVM table 28)",
            &write,
        ),
        channels.table(
            "channels",
            "Channels, ratio to a write of 4 bytes (NetVM table 29)",
            &write,
        ),
        rates::measure(rounds)?,
    ]);
    Ok(tables)
}

/// The tables of notifications, and of all other operations.
fn operations(times: &Recorder) -> [Table; 2] {
    let notifies = |name: &str| [WRITE, WRITE_NOTIFY].contains(&name);
    let (write, read) = (times.unit(WRITE), times.unit("read 4 B"));
    let notifications = "Notification, ratio to a write (NetVM table 27)";
    let others =
        "Atomic operations and what is made of them, ratio to a read (NetVM tables 30, 31)";
    [
        times.part(("notification", notifications), &write, notifies, goal),
        times.part(("operations", others), &read, |name| !notifies(name), goal),
    ]
}

/// Two nodes in this process, and the NIC of each.
fn two_nodes() -> Result<(HostNodes, Nic, Nic)> {
    let nodes = HostNodes::start(2)?;
    let nic = |node| Nic::open_host_with(nodes.socket(node), MEMORY);
    let (near, far) = (nic(0)?, nic(1)?);
    Ok((nodes, near, far))
}

/// A page of a process, exported.
fn exported(endpoint: &Endpoint, name: SegmentName) -> Result<(Buffer, Segment)> {
    let buffer = endpoint.allocate(4096)?;
    let segment = endpoint.export(name, &buffer, Access::all())?;
    Ok((buffer, segment))
}

/// Objects in the memory of another process.
struct Objects {
    lock: Lock,
    queue: WaitQueue,
    semaphore: Semaphore,
    word: RemoteU32,
}

impl Objects {
    /// Bytes that they take.
    const BYTES: u64 = 4 * OBJECT_BYTES;

    /// Objects at an offset, and a semaphore of so many `units`.
    fn new(endpoint: &Endpoint, remote: &RemoteSegment, at: u64, units: u32) -> Result<Self> {
        let participant = Participant::new(endpoint)?;
        let semaphore = Semaphore::new(&participant, remote, at + 2 * OBJECT_BYTES)?;
        semaphore.initialize(units)?;
        Ok(Objects {
            lock: Lock::new(&participant, remote, at)?,
            queue: WaitQueue::new(&participant, remote, at + OBJECT_BYTES)?,
            semaphore,
            word: endpoint.atomic_u32(remote, at + 3 * OBJECT_BYTES)?,
        })
    }
}

/// A process on each node, and objects at the far one.
struct Bench {
    near: Endpoint,
    far: Endpoint,
    near_memory: (Buffer, Segment),
    far_memory: (Buffer, Segment),
    remote: RemoteSegment,
    objects: Objects,
}

impl Bench {
    fn new(near: &Nic, far: &Nic) -> Result<Self> {
        let (near, far) = (near.register(Port(7))?, far.register(Port(7))?);
        let (near_memory, far_memory) = (exported(&near, NAME)?, exported(&far, NAME)?);
        let remote = near.import(far.node(), far.port(), NAME, LIMIT)?;
        Ok(Bench {
            objects: Objects::new(&near, &remote, 0, 2)?,
            near,
            far,
            near_memory,
            far_memory,
            remote,
        })
    }

    /// Times each operation once.
    fn run(&self, mark: u32, times: &mut Recorder) -> Result<()> {
        let objects = &self.objects;
        let mut add = |name: &str, ns: f64| times.add(name, ns);
        // Behind the objects.
        let at = Objects::BYTES as usize;
        let bytes = mark.to_le_bytes();
        self.far_memory.0.store_u32(at, 0)?;
        let write = timed(|| {
            drop(self.near.write(&self.remote, at as u64, &bytes)?);
            spin(|| Ok(self.far_memory.0.load_u32(at)? == mark))
        });
        add(WRITE, write?);
        self.near.flush()?;
        let signal = self.far.notification(SIGNAL);
        let notify = timed(|| {
            let (near, offset) = (&self.near, at as u64);
            drop(near.write_notify(&self.remote, offset, &bytes, SIGNAL)?);
            signal.spin(LIMIT)?;
            ensure!(signal.acknowledge(), "a signal that was seen is gone");
            Ok(())
        });
        add(WRITE_NOTIFY, notify?);
        self.near.flush()?;
        let part = self.near_memory.1.part(0, 4);
        let read = called(|| self.near.read_fenced(&self.remote, at as u64, part));
        add("read 4 B", read?);
        add("testandset", called(|| objects.word.test_and_set())?);
        add("incr", called(|| objects.word.increment())?);
        add("decr", called(|| objects.word.decrement())?);
        add("swap", called(|| objects.word.swap(mark))?);
        add("cswap", called(|| objects.word.compare_swap(mark, 0))?);
        add("fetch-add", called(|| objects.word.fetch_add(mark))?);
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
        self.near.flush()?;
        let remove = succeeded(|| objects.queue.remove(), "the first waits");
        add("removeQ", remove?);
        ensure!(objects.queue.remove()?, "the second waits, too");
        for entry in &mut waiting {
            entry.wait(Some(LIMIT))?;
        }
        add("Swait", called(|| objects.semaphore.wait())?);
        add("Ssignal, no waiter", called(|| objects.semaphore.signal())?);
        add("try_acquire, held", held);
        let try_wait = succeeded(|| objects.semaphore.try_wait(), "there are two units");
        add("try_wait", try_wait?);
        Ok(objects.semaphore.signal()?)
    }
}

fn timed(body: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    body()?;
    Ok(start.elapsed().as_nanos() as f64)
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

fn spin(mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !ready()? {
        ensure!(start.elapsed() < LIMIT, "nothing came");
        std::hint::spin_loop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::words_of_row;
    use super::*;

    #[test]
    fn ratios_are_to_the_own_write_and_read() {
        let mut times = Recorder::new(netvm::OPERATIONS);
        for (name, ns) in [
            (WRITE, 100.0),
            (WRITE_NOTIFY, 200.0),
            ("read 4 B", 300.0),
            ("swap", 700.0),
            ("fetch-add", 900.0),
        ] {
            times.add(name, ns);
        }
        times.end_round(false);
        let [notifications, others] = operations(&times);
        for (table, name, end) in [
            (&notifications, "writeN", "2.00 ≤ 1.55, missed 8.52 1.53"),
            (&others, "read", "1.00 - 9.25 1.00"),
            (&others, "swap", "2.33 ≤ 1.15, missed 10.52 1.14"),
            (&others, "fetch-add", "3.00 ≤ 1.15, missed - -"),
        ] {
            let words = words_of_row(table, name).join(" ");
            assert!(words.ends_with(end), "{words}");
        }
    }
}
