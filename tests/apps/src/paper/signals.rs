//! What a notification costs (NetVM tables 27 to 29) if its receiver spins, waits, has a
//! handler or a queue; if the signal is pending already; and what a channel adds.
//!
//! A receiver that blocks, or has a handler, is another thread than the one that writes;
//! each write comes after the system has put it to sleep.

use std::sync::mpsc;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use procfs::process::Process;
use qnic::{Buffer, ChannelOptions, Endpoint, Part, Port, Receiver, RemoteSegment};
use qnic::{NotificationId, Segment, SegmentName, Sender};
use rustix::process::Pid;
use rustix::thread::gettid;

use super::objects::{exported, id, spin, timed, LIMIT, SIGNAL};
use super::{median, Ends, Samples, HERE};

/// Runs of a case in a round; the median is a value.
const RUNS: usize = 100;
/// Messages of a stream.
const STREAM: usize = 2000;
/// Bytes of a large transfer.
const PAGE: usize = 4096;
const TARGET: SegmentName = SegmentName(0x74);
const CHANNEL: SegmentName = SegmentName(0x75);

const SENT: NotificationId = id(2);
const REPLENISHED: NotificationId = id(3);

/// Where times go: a table, what grows in it, and the figure.
#[derive(Clone, Copy)]
struct Place<'a> {
    table: &'a str,
    length: Option<usize>,
    figure: &'a str,
}

impl Place<'_> {
    fn add(&self, times: &mut dyn Samples, name: &str, ns: f64) {
        let at = self.length.map(|length| ("bytes", length as f64));
        times.at(self.table, name, at, self.figure, ns);
    }
}

/// Lengths that [`Bench::by_length`] measures.
const LENGTHS: [usize; 6] = [4, 16, 64, 256, 1024, PAGE];

/// A process at each end, and a channel between them.
pub struct Bench {
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

/// The median of some runs.
fn runs(mut run: impl FnMut(usize) -> Result<f64>) -> Result<f64> {
    let times: Result<Vec<_>> = (0..RUNS).map(&mut run).collect();
    times.map(median)
}

impl Bench {
    /// Registers at both ends.
    ///
    /// # Errors
    /// Those of the library.
    pub fn new([near, far]: &Ends) -> Result<Self> {
        let (near, far) = (near.nic.register(Port(8))?, far.nic.register(Port(8))?);
        let (bytes, source) = exported(&near, TARGET)?;
        let (memory, target) = exported(&far, TARGET)?;
        let remote = near.import(far.node(), far.port(), TARGET, LIMIT)?;
        let receiver = Receiver::open(&far, CHANNEL, &ChannelOptions::new(32, PAGE, SENT))?;
        let sender = Sender::connect(&near, (far.node(), far.port(), CHANNEL), REPLENISHED, LIMIT)?;
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

    /// Tables 27 to 29: notifications of 4 bytes, of 4 KiB, detection, channels.
    ///
    /// # Errors
    /// Those of the library, and what was not as it must be.
    pub fn round(&mut self, times: &mut dyn Samples) -> Result<()> {
        for (table, length) in [("notification-4", 4), ("notification-4096", PAGE)] {
            let place = Place {
                table,
                length: None,
                figure: HERE,
            };
            self.latencies(length, place, times)?;
        }
        self.detections(times)?;
        self.channels(times)
    }

    /// For each length: notifications, and messages of a channel.
    ///
    /// # Errors
    /// Those of [`Bench::round`].
    pub fn by_length(&mut self, times: &mut dyn Samples) -> Result<()> {
        for length in LENGTHS {
            let place = |table| Place {
                table,
                length: Some(length),
                figure: "time [ns]",
            };
            self.latencies(length, place("notifications"), times)?;
            self.messages(length, place("channels"), times)?;
        }
        Ok(())
    }

    fn part(&self, length: usize) -> Part<'_> {
        self.source.part(0, length)
    }

    fn signal(&self, length: usize) -> Result<()> {
        let part = self.part(length);
        drop(
            self.near
                .write(&self.remote, 0, part)
                .notify(SIGNAL)
                .post()?,
        );
        Ok(())
    }

    /// Table 27 for one size, and the queue, which is measured here alone.
    fn latencies(&mut self, length: usize, to: Place, times: &mut dyn Samples) -> Result<()> {
        to.add(times, "write, seen", self.seen(length)?);
        let signal = self.far.notification(SIGNAL);
        let until = |noticed: &dyn Fn() -> Result<()>| {
            runs(|_| {
                let time = timed(|| {
                    self.signal(length)?;
                    noticed()
                })?;
                ensure!(signal.acknowledge(), "a signal that was noticed is gone");
                self.near.flush().wait()?;
                Ok(time)
            })
        };
        let spun = until(&|| {
            signal.spin(LIMIT)?;
            Ok(())
        });
        to.add(times, "writeN, notfSpin", spun?);
        to.add(times, "writeN, notfWait", self.waited(length)?);
        let (sender, noticed) = mpsc::channel();
        let handler = self.far.notification(SIGNAL).arm(move |_| {
            // Without a receiver the measurement has failed already.
            let _unheard = sender.send(Ok(Noticed::now()));
        })?;
        let handled = wakeups(&self.near, &noticed, || self.signal(length));
        to.add(times, "writeN, handler", handled?);
        drop(handler);
        let queue = self.far.queue();
        queue.watch(SIGNAL)?;
        let queued = until(&|| spin(|| Ok(queue.remove()?.is_some())));
        to.add(times, "writeN, queue", queued?);
        queue.unwatch(SIGNAL);
        Ok(())
    }

    /// A write whose last bytes are looked for.
    fn seen(&self, length: usize) -> Result<f64> {
        let last = length - 4;
        runs(|run| {
            let mark = run as u32 + 1;
            self.memory.store_u32(last, 0)?;
            self.bytes.store_u32(last, mark)?;
            let time = timed(|| {
                drop(self.near.write(&self.remote, 0, self.part(length)).post()?);
                spin(|| Ok(self.memory.load_u32(last)? == mark))
            });
            self.near.flush().wait()?;
            time
        })
    }

    /// A thread that blocks until it is signalled.
    fn waited(&self, length: usize) -> Result<f64> {
        let signal = self.far.notification(SIGNAL);
        let (sender, noticed) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || repeat(&sender, || Ok(signal.take(Some(LIMIT))?)));
            wakeups(&self.near, &noticed, || self.signal(length))
        })
    }

    /// Table 28: signals that are pending.
    fn detections(&self, times: &mut dyn Samples) -> Result<()> {
        let signal = self.far.notification(SIGNAL);
        let each = |body: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            let before = signal.signals();
            for _ in 0..RUNS {
                self.signal(4)?;
            }
            self.near.flush().wait()?;
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
        let spun = each(&mut || {
            signal.spin(LIMIT)?;
            acknowledge()
        });
        times.one("pending", "notfSpin and notfAck", HERE, spun?);
        let waited = each(&mut || {
            signal.wait(Some(LIMIT))?;
            acknowledge()
        });
        times.one("pending", "notfWait and notfAck", HERE, waited?);
        let tested = each(&mut || {
            ensure!(std::hint::black_box(&signal).test(), "a signal is gone");
            Ok(())
        });
        times.one("pending", "notfTest", HERE, tested?);
        times.one("pending", "notfAck", HERE, each(&mut || acknowledge())?);
        Ok(())
    }

    /// Messages of one length.
    fn messages(&mut self, length: usize, to: Place, times: &mut dyn Samples) -> Result<()> {
        let message = &[7; PAGE][..length];
        to.add(times, "spun", self.message_spun(message)?);
        to.add(times, "waited", self.message_waited(message)?);
        to.add(times, "stream", self.stream(message)?);
        Ok(())
    }

    fn message_spun(&mut self, message: &[u8]) -> Result<f64> {
        runs(|_| {
            let time = timed(|| {
                self.sender.send(message, Some(LIMIT))?;
                spin(|| Ok(self.receiver.try_recv()?.is_some()))
            });
            self.near.flush().wait()?;
            time
        })
    }

    /// Table 29.
    fn channels(&mut self, times: &mut dyn Samples) -> Result<()> {
        let message = [7; PAGE];
        let spun = self.message_spun(&message[..4])?;
        times.one("channels", "4 B, spun", HERE, spun);
        for length in [4, PAGE] {
            let time = self.message_waited(&message[..length])?;
            times.one("channels", &format!("{length} B, waited"), HERE, time);
        }
        for length in [4, PAGE] {
            let time = self.stream(&message[..length])?;
            times.one("channels", &format!("{length} B, stream"), HERE, time);
        }
        Ok(())
    }

    fn message_waited(&mut self, message: &[u8]) -> Result<f64> {
        let (wake, noticed) = mpsc::channel();
        let Bench {
            near,
            sender,
            receiver,
            ..
        } = self;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                repeat(&wake, || {
                    receiver.recv(Some(LIMIT))?;
                    Ok(())
                });
            });
            wakeups(near, &noticed, || Ok(sender.send(message, Some(LIMIT))?))
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

/// What a thread sends when it notices a signal.
struct Noticed {
    at: Instant,
    thread: Pid,
}

impl Noticed {
    fn now() -> Self {
        Noticed {
            at: Instant::now(),
            thread: gettid(),
        }
    }
}

/// The median time from `act` until another thread, which sleeps before, notices. The
/// first run is not counted: it shows which thread that is.
fn wakeups(
    near: &Endpoint,
    noticed: &mpsc::Receiver<Result<Noticed>>,
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
        let seen = noticed.recv_timeout(LIMIT);
        let seen = seen.context("a notification was not noticed")??;
        near.flush().wait()?;
        if waiter.replace(seen.thread).is_some() {
            times.push(seen.at.saturating_duration_since(start).as_nanos() as f64);
        }
    }
    Ok(median(times))
}

/// Returns true if a thread of this process sleeps.
fn is_asleep(thread: Pid) -> Result<bool> {
    let task = Process::myself()?.task_from_tid(thread.as_raw_nonzero().get())?;
    Ok(task.stat()?.state == 'S')
}

/// Waits with `body` as often as [`wakeups`] expects, and sends when it noticed each time.
fn repeat(sender: &mpsc::Sender<Result<Noticed>>, mut body: impl FnMut() -> Result<()>) {
    for _ in 0..=RUNS {
        let result = body().map(|()| Noticed::now());
        let failed = result.is_err();
        if sender.send(result).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_thread_is_told_from_a_running_one() {
        assert!(!is_asleep(gettid()).unwrap());
        let (sender, started) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                sender.send(gettid()).unwrap();
                ended.recv()
            });
            let sleeper = started.recv().unwrap();
            spin(|| is_asleep(sleeper)).unwrap();
            drop(end);
        });
    }
}
