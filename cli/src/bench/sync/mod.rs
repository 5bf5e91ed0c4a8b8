//! `qnic bench sync`: what notifications, channels, atomic operations, locks, queues and
//! semaphores cost (N16 to N24), as ratios to this system's own writes and reads, beside
//! those of the source.
//!
//! Two host-mode nodes in this process: one thread issues, and looks at the memory of
//! both, so nothing waits for another thread to be scheduled.

mod rates;
mod signals;

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use qnic::sync::{Lock, Participant, Semaphore, WaitQueue, OBJECT_BYTES};
use qnic::{Access, Endpoint, Nic, NotificationId, Port, RemoteSegment, RemoteU32, SegmentName};
use qnic_tests::host::HostNodes;
use serde::Serialize;

use super::memory::{section, Series};
use super::{netvm, spread};

/// Memory of a node.
const MEMORY: usize = 16 << 20;
/// Runs in a round, each of all cases one after the other; the median is a value.
const RUNS: u32 = 200;
/// Longest time for anything.
const LIMIT: Duration = Duration::from_secs(10);
const NAME: SegmentName = SegmentName(0x73);
const SIGNAL: NotificationId = match NotificationId::new(1) {
    Some(id) => id,
    None => panic!("1 is a counted notification"),
};
/// Where words stand in the home's page, behind the objects.
const WORD: u64 = 16 * OBJECT_BYTES;

/// What is measured: name, and what the source has for it in microseconds.
const CASES: [(&str, f64); 18] = [
    ("write 4 B, seen", netvm::WRITE[0]),
    ("writeN 4 B, spun", netvm::WRITE_NOTIFY_SPIN),
    ("read 4 B", netvm::READ[0]),
    ("testandset", netvm::TEST_AND_SET),
    ("incr", netvm::INCREMENT),
    ("decr", netvm::INCREMENT),
    ("swap", netvm::SWAP),
    ("cswap", netvm::TEST_AND_SET),
    ("fetch-add", f64::NAN),
    ("acquire", netvm::ACQUIRE),
    ("release, no successor", netvm::RELEASE),
    ("insertQ, first", netvm::INSERT[0]),
    ("insertQ, behind another", netvm::INSERT[1]),
    ("removeQ", netvm::REMOVE),
    ("Swait", netvm::SEMAPHORE),
    ("Ssignal, no waiter", netvm::SEMAPHORE),
    ("try_acquire, held", f64::NAN),
    ("try_wait", f64::NAN),
];

/// Cases that ratios are to.
const WRITE: usize = 0;
const READ: usize = 2;

/// All results.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    operations: Vec<Series>,
    /// Notifications with 4 bytes and with 4 KiB, signals that are pending, channels.
    signals: [Vec<Series>; 4],
    rates: Vec<rates::Rate>,
}

/// Measures everything. The first round warms up and is not counted.
pub(super) fn measure(rounds: usize) -> Result<Report> {
    let nodes = HostNodes::start(2)?;
    let nic = |node| Nic::open_host_with(nodes.socket(node), MEMORY);
    let bench = Bench::new(&nic(0)?, &nic(1)?)?;
    let source = |us: f64| (!us.is_nan()).then_some(us);
    let mut series = CASES.map(|(name, us)| Series::new(name, source(us)));
    for round in 0..=rounds {
        let mut times = CASES.map(|_| Vec::new());
        for run in 1..=RUNS {
            bench.run(run, &mut times)?;
        }
        if round > 0 {
            for (series, times) in series.iter_mut().zip(&times) {
                if let Some((median, ..)) = spread(times) {
                    series.push(median);
                }
            }
        }
        eprint!("\r{round} of {rounds} rounds");
    }
    eprintln!();
    Ok(Report {
        operations: series.into(),
        signals: signals::measure(rounds)?,
        rates: rates::measure(rounds)?,
    })
}

/// A process on each node, and everything at the far one.
struct Bench {
    near: Endpoint,
    far: Endpoint,
    near_memory: (qnic::Buffer, qnic::Segment),
    far_memory: (qnic::Buffer, qnic::Segment),
    remote: RemoteSegment,
    word: RemoteU32,
    lock: Lock,
    queue: WaitQueue,
    semaphore: Semaphore,
}

impl Bench {
    fn new(near: &Nic, far: &Nic) -> Result<Self> {
        let (near, far) = (near.register(Port(7))?, far.register(Port(7))?);
        let memory = |endpoint: &Endpoint| -> Result<_> {
            let buffer = endpoint.allocate(4096)?;
            let segment = endpoint.export(NAME, &buffer, Access::all())?;
            Ok((buffer, segment))
        };
        let (near_memory, far_memory) = (memory(&near)?, memory(&far)?);
        let remote = near.import(far.node(), far.port(), NAME, LIMIT)?;
        let participant = Participant::new(&near)?;
        let semaphore = Semaphore::new(&participant, &remote, 2 * OBJECT_BYTES)?;
        semaphore.initialize(2)?;
        Ok(Bench {
            word: near.atomic_u32(&remote, WORD)?,
            lock: Lock::new(&participant, &remote, 0)?,
            queue: WaitQueue::new(&participant, &remote, OBJECT_BYTES)?,
            semaphore,
            near,
            far,
            near_memory,
            far_memory,
            remote,
        })
    }

    /// Each case once; the times go behind the others.
    fn run(&self, mark: u32, times: &mut [Vec<f64>]) -> Result<()> {
        let mut case = 0;
        let mut add = |ns: f64| {
            times[case].push(ns);
            case += 1;
        };
        let at = WORD as usize + 8;
        let bytes = mark.to_le_bytes();
        self.far_memory.0.store_u32(at, 0)?;
        add(timed(|| {
            drop(self.near.write(&self.remote, at as u64, &bytes)?);
            spin(|| Ok(self.far_memory.0.load_u32(at)? == mark))
        })?);
        self.near.flush()?;
        let signal = self.far.notification(SIGNAL);
        add(timed(|| {
            drop(
                self.near
                    .write_notify(&self.remote, at as u64, &bytes, SIGNAL)?,
            );
            signal.spin(LIMIT)?;
            ensure!(signal.acknowledge(), "a signal that was seen is gone");
            Ok(())
        })?);
        self.near.flush()?;
        add(timed(|| {
            let part = self.near_memory.1.part(0, 4);
            Ok(self.near.read_fenced(&self.remote, WORD, part)?)
        })?);
        let word = &self.word;
        add(called(|| word.test_and_set())?);
        add(called(|| word.increment())?);
        add(called(|| word.decrement())?);
        add(called(|| word.swap(mark))?);
        add(called(|| word.compare_swap(mark, 0))?);
        add(called(|| word.fetch_add(mark))?);
        let mut guard = None;
        add(timed(|| {
            guard = Some(self.lock.acquire()?);
            Ok(())
        })?);
        let held = timed(|| {
            ensure!(self.lock.try_acquire()?.is_none(), "the lock is held");
            Ok(())
        })?;
        add(timed(|| match guard.take() {
            Some(guard) => Ok(guard.release()?),
            None => Ok(()),
        })?);
        let mut places = Vec::new();
        for _ in 0..2 {
            add(timed(|| {
                places.push(self.queue.insert()?);
                Ok(())
            })?);
        }
        // What an insertion does not wait for is not part of a removal.
        self.near.flush()?;
        add(timed(|| {
            ensure!(self.queue.remove()?, "somebody waits");
            Ok(())
        })?);
        ensure!(self.queue.remove()?, "the second waits, too");
        for place in &mut places {
            place.wait(Some(LIMIT))?;
        }
        add(called(|| self.semaphore.wait())?);
        add(called(|| self.semaphore.signal())?);
        add(held);
        add(timed(|| {
            ensure!(self.semaphore.try_wait()?, "there are two units");
            Ok(())
        })?);
        Ok(self.semaphore.signal()?)
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

fn spin(mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !ready()? {
        ensure!(start.elapsed() < LIMIT, "nothing came");
        std::hint::spin_loop();
    }
    Ok(())
}

impl Report {
    /// The report for people.
    pub(super) fn table(&self) -> String {
        let all = &self.operations;
        let median = |case: usize| all.get(case).map_or(f64::NAN, Series::median);
        let mut text = String::new();
        let (notifications, others) = all.split_at(READ.min(all.len()));
        let write = (median(WRITE), netvm::WRITE[0]);
        let read = (median(READ), netvm::READ[0]);
        let [small, large, pending, channels] = &self.signals;
        let first = |series: &[Series]| series.first().map_or(f64::NAN, Series::median);
        let small_write = (first(small), netvm::WRITE[0]);
        let large_write = (first(large), netvm::WRITE[1]);
        for (title, series, unit) in [
            (
                "Notification, ratio to a write (NetVM table 27); goal 1.55",
                notifications,
                write,
            ),
            (
                "Atomic operations and what stands on them, ratio to a read (NetVM tables 30, 31); \
                 goal 1.15, and 1.2 times that",
                others,
                read,
            ),
            (
                "Notification with 4 bytes, ratio to a write (NetVM table 27); who waits has slept",
                small,
                small_write,
            ),
            (
                "Notification with 4096 bytes, ratio to a write (NetVM table 27)",
                large,
                large_write,
            ),
            (
                "A signal that is pending, ratio to a write of 4 bytes (NetVM table 28)",
                pending,
                small_write,
            ),
            (
                "Channels, ratio to a write of 4 bytes (NetVM table 29)",
                channels,
                small_write,
            ),
        ] {
            section(&mut text, title, series, unit);
        }
        text += &rates::table(&self.rates);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::tests::words_of_row;
    use super::*;

    #[test]
    fn ratios_are_to_the_own_write_and_read() {
        let series = |(name, us): (&str, f64), ns| {
            let mut series = Series::new(name, (!us.is_nan()).then_some(us));
            series.push(ns);
            series
        };
        let all = CASES.into_iter().zip((1..).map(|n| f64::from(n) * 100.0));
        let report = Report {
            operations: all.map(|(case, ns)| series(case, ns)).collect(),
            signals: Default::default(),
            rates: Vec::new(),
        };
        let text = report.table();
        let row = |name| words_of_row(&text, name);
        assert!(row("writeN").ends_with(&["2.00", "|", "8.52", "1.53"].map(String::from)));
        assert!(row("read").ends_with(&["1.00", "|", "9.25", "1.00"].map(String::from)));
        assert!(row("swap").ends_with(&["2.33", "|", "10.52", "1.14"].map(String::from)));
        assert!(row("fetch-add").ends_with(&["3.00", "|", "-", "-"].map(String::from)));
    }
}
