//! What it takes to be told (NetVM tables 27 to 29): notifications that are spun for,
//! waited for, handled and queued; signals that are there already; channels.
//!
//! Who waits blocked or in a handler is another thread than the one that writes; each
//! write comes after the system has put it to sleep.

use std::sync::mpsc::{self, RecvTimeoutError, Sender as Teller};
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use qnic::{Access, Buffer, ChannelOptions, Endpoint, Part, Port, Receiver, RemoteSegment};
use qnic::{Nic, NotificationId, Segment, SegmentName, Sender};
use qnic_tests::host::HostNodes;
use rustix::process::Pid;
use rustix::thread::gettid;

use super::super::memory::Series;
use super::super::netvm;
use super::{spin, timed, LIMIT, MEMORY};

/// Runs of a case in a round; the median is a value.
const RUNS: usize = 100;
/// Messages of a stream.
const STREAM: usize = 2000;
/// Bytes of a large transfer.
const PAGE: usize = 4096;
const TARGET: SegmentName = SegmentName(0x74);
const CHANNEL: SegmentName = SegmentName(0x75);

const fn id(number: u32) -> NotificationId {
    match NotificationId::new(number) {
        Some(id) => id,
        None => panic!("a counted notification"),
    }
}

const SIGNAL: NotificationId = id(1);
const SENT: NotificationId = id(2);
const REPLENISHED: NotificationId = id(3);

/// Cases of one size in table 27, and the queue, which the source does not measure.
const LATENCIES: [(&str, [f64; 2]); 5] = [
    ("write, seen", netvm::WRITE),
    ("writeN, notfSpin", netvm::WRITE_NOTIFY_SPINS),
    ("writeN, notfWait", netvm::WRITE_NOTIFY_WAIT),
    ("writeN, handler", netvm::WRITE_NOTIFY_HANDLER),
    ("writeN, queue", [f64::NAN; 2]),
];

/// Cases of table 28.
const DETECTIONS: [(&str, f64); 4] = [
    ("notfSpin and notfAck", netvm::DETECT_SPIN),
    ("notfWait and notfAck", netvm::DETECT_WAIT),
    ("notfTest", netvm::DETECT_TEST),
    ("notfAck", netvm::ACKNOWLEDGE),
];

/// Cases of table 29.
const CHANNELS: [(&str, f64); 5] = [
    ("4 B, spun", netvm::CHANNEL_SPIN),
    ("4 B, waited", netvm::CHANNEL_WAIT[0]),
    ("4096 B, waited", netvm::CHANNEL_WAIT[1]),
    ("4 B, stream", netvm::CHANNEL_STREAM[0]),
    ("4096 B, stream", netvm::CHANNEL_STREAM[1]),
];

/// All series of these tables: those of 4 bytes, of 4 KiB, detection, channels.
pub(super) fn measure(rounds: usize) -> Result<[Vec<Series>; 4]> {
    let nodes = HostNodes::start(2)?;
    let nic = |node| Nic::open_host_with(nodes.socket(node), MEMORY);
    let mut bench = Bench::new(&nic(0)?, &nic(1)?)?;
    let source = |us: f64| (!us.is_nan()).then_some(us);
    let mut all = [
        LATENCIES.map(|(name, us)| (name, us[0])).to_vec(),
        LATENCIES.map(|(name, us)| (name, us[1])).to_vec(),
        DETECTIONS.to_vec(),
        CHANNELS.to_vec(),
    ]
    .map(|cases| {
        let series = cases.into_iter();
        let series = series.map(|(name, us)| Series::new(name, source(us)));
        series.collect::<Vec<_>>()
    });
    for round in 0..=rounds {
        let values = [
            bench.latencies(4)?,
            bench.latencies(PAGE)?,
            bench.detections()?,
            bench.channels()?,
        ];
        // The first round warms up.
        for (series, values) in all.iter_mut().zip(values).filter(|_| round > 0) {
            for (series, value) in series.iter_mut().zip(values) {
                series.push(value);
            }
        }
    }
    Ok(all)
}

struct Bench {
    near: Endpoint,
    far: Endpoint,
    bytes: Buffer,
    source: Segment,
    /// Keeps what is written to.
    _target: Segment,
    memory: Buffer,
    remote: RemoteSegment,
    sender: Sender,
    receiver: Receiver,
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median of some runs.
fn runs(mut run: impl FnMut(usize) -> Result<f64>) -> Result<f64> {
    let times: Result<Vec<_>> = (0..RUNS).map(&mut run).collect();
    times.map(median)
}

impl Bench {
    fn new(near: &Nic, far: &Nic) -> Result<Self> {
        let (near, far) = (near.register(Port(8))?, far.register(Port(8))?);
        let bytes = near.allocate(PAGE)?;
        let source = near.export(TARGET, &bytes, Access::all())?;
        let memory = far.allocate(PAGE)?;
        let target = far.export(TARGET, &memory, Access::all())?;
        let remote = near.import(far.node(), far.port(), TARGET, LIMIT)?;
        let receiver = far.receiver(CHANNEL, &ChannelOptions::new(32, PAGE, SENT))?;
        let sender = near.sender(far.node(), far.port(), CHANNEL, REPLENISHED, LIMIT)?;
        Ok(Bench {
            bytes,
            source,
            _target: target,
            memory,
            remote,
            sender,
            receiver,
            near,
            far,
        })
    }

    fn part(&self, length: usize) -> Part<'_> {
        self.source.part(0, length)
    }

    fn signal(&self, length: usize) -> Result<()> {
        let part = self.part(length);
        drop(self.near.write_notify(&self.remote, 0, part, SIGNAL)?);
        Ok(())
    }

    /// Table 27 for one size.
    fn latencies(&mut self, length: usize) -> Result<Vec<f64>> {
        let mut values = vec![self.seen(length)?];
        let signal = self.far.notification(SIGNAL);
        values.push(runs(|_| {
            let time = timed(|| {
                self.signal(length)?;
                signal.spin(LIMIT)?;
                Ok(())
            })?;
            ensure!(signal.acknowledge(), "a signal that was seen is gone");
            self.near.flush()?;
            Ok(time)
        })?);
        values.push(self.waited(length)?);
        let (tell, told) = mpsc::channel();
        let handler = self.far.arm(SIGNAL, move |_| {
            // Nobody listens any more: the measurement has failed.
            let _unheard = tell.send(Ok(Told::now()));
        })?;
        values.push(told_runs(&self.near, &told, || self.signal(length))?);
        drop(handler);
        let queue = self.far.queue();
        queue.watch(SIGNAL)?;
        values.push(runs(|_| {
            let time = timed(|| {
                self.signal(length)?;
                spin(|| Ok(queue.remove()?.is_some()))
            })?;
            ensure!(signal.acknowledge(), "a signal that was queued is gone");
            self.near.flush()?;
            Ok(time)
        })?);
        queue.unwatch(SIGNAL);
        Ok(values)
    }

    /// A write whose last bytes are looked for.
    fn seen(&self, length: usize) -> Result<f64> {
        let last = length - 4;
        runs(|run| {
            let mark = run as u32 + 1;
            self.memory.store_u32(last, 0)?;
            self.bytes.store_u32(last, mark)?;
            let time = timed(|| {
                drop(self.near.write(&self.remote, 0, self.part(length))?);
                spin(|| Ok(self.memory.load_u32(last)? == mark))
            });
            self.near.flush()?;
            time
        })
    }

    /// A thread that blocks until it is signalled.
    fn waited(&self, length: usize) -> Result<f64> {
        let signal = self.far.notification(SIGNAL);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                repeat(&tell, || Ok(signal.take(Some(LIMIT))?));
            });
            told_runs(&self.near, &told, || self.signal(length))
        })
    }

    /// Table 28: signals that are pending.
    fn detections(&self) -> Result<Vec<f64>> {
        let signal = self.far.notification(SIGNAL);
        let each = |body: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            let before = signal.signals();
            for _ in 0..RUNS {
                self.signal(4)?;
            }
            self.near.flush()?;
            ensure!(
                signal.signals() == before + RUNS as u64,
                "signals do not come with their data"
            );
            let time = timed(|| (0..RUNS).try_for_each(|_| body()))?;
            while signal.acknowledge() {}
            Ok(time / RUNS as f64)
        };
        let acknowledge = || {
            ensure!(signal.acknowledge(), "a signal that is pending is gone");
            Ok(())
        };
        Ok(vec![
            each(&mut || {
                signal.spin(LIMIT)?;
                acknowledge()
            })?,
            each(&mut || {
                signal.wait(Some(LIMIT))?;
                acknowledge()
            })?,
            each(&mut || {
                ensure!(std::hint::black_box(&signal).test(), "a signal is gone");
                Ok(())
            })?,
            each(&mut || acknowledge())?,
        ])
    }

    /// Table 29.
    fn channels(&mut self) -> Result<Vec<f64>> {
        let message = [7; PAGE];
        let mut values = Vec::new();
        values.push(runs(|_| {
            let time = timed(|| {
                self.sender.send(&message[..4], Some(LIMIT))?;
                spin(|| Ok(self.receiver.try_recv()?.is_some()))
            });
            self.near.flush()?;
            time
        })?);
        for length in [4, PAGE] {
            values.push(self.message_waited(&message[..length])?);
        }
        for length in [4, PAGE] {
            values.push(self.stream(&message[..length])?);
        }
        Ok(values)
    }

    fn message_waited(&mut self, message: &[u8]) -> Result<f64> {
        let (tell, told) = mpsc::channel();
        let Bench {
            near,
            sender,
            receiver,
            ..
        } = self;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                repeat(&tell, || {
                    receiver.recv(Some(LIMIT))?;
                    Ok(())
                });
            });
            told_runs(near, &told, || Ok(sender.send(message, Some(LIMIT))?))
        })
    }

    /// Time for each message of a stream.
    fn stream(&mut self, message: &[u8]) -> Result<f64> {
        let Bench {
            sender, receiver, ..
        } = self;
        let time = std::thread::scope(|scope| {
            let reader = scope.spawn(move || -> Result<()> {
                for _ in 0..STREAM {
                    receiver.recv(Some(LIMIT))?;
                }
                Ok(())
            });
            timed(|| {
                for _ in 0..STREAM {
                    sender.send(message, Some(LIMIT))?;
                }
                match reader.join() {
                    Ok(result) => result,
                    Err(_) => bail!("the receiver has panicked"),
                }
            })
        })?;
        Ok(time / STREAM as f64)
    }
}

/// What a thread that waited says.
struct Told {
    /// When it noticed.
    at: Instant,
    thread: Pid,
}

impl Told {
    fn now() -> Self {
        Told {
            at: Instant::now(),
            thread: gettid(),
        }
    }
}

/// The median time from `act` until another thread, which sleeps before, notices. The
/// first run is not counted: it tells which thread that is.
fn told_runs(
    near: &Endpoint,
    told: &mpsc::Receiver<Result<Told>>,
    mut act: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let mut waiter = None;
    let mut times = Vec::new();
    for _ in 0..=RUNS {
        if let Some(thread) = waiter {
            spin(|| is_asleep(thread))?;
        }
        let start = Instant::now();
        act()?;
        let seen = match told.recv_timeout(LIMIT) {
            Ok(seen) => seen?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                bail!("a notification was not noticed")
            }
        };
        near.flush()?;
        if waiter.replace(seen.thread).is_some() {
            times.push(seen.at.saturating_duration_since(start).as_nanos() as f64);
        }
    }
    Ok(median(times))
}

/// Says whether a thread of this process sleeps.
fn is_asleep(thread: Pid) -> Result<bool> {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let stat = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // The name before it may contain anything.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    Ok(state.with_context(|| format!("no state of a thread in {path}: {stat:?}"))? == 'S')
}

/// Does something as often as [`told_runs`] expects, and tells when each time.
fn repeat(tell: &Teller<Result<Told>>, mut body: impl FnMut() -> Result<()>) {
    for _ in 0..=RUNS {
        let result = body().map(|()| Told::now());
        let failed = result.is_err();
        if tell.send(result).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_are_told_from_those_who_run() {
        assert!(!is_asleep(gettid()).unwrap());
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                tell.send(gettid()).unwrap();
                ended.recv()
            });
            let sleeper = told.recv().unwrap();
            spin(|| is_asleep(sleeper)).unwrap();
            drop(end);
        });
    }
}
