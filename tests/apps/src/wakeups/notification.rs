//! Notifying writes of 8 bytes between two processes that sleep until the notification comes, in both
//! ways that never spin: a thread of the library that calls a handler, and an event loop that polls
//! a descriptor (N17).

use std::sync::{mpsc, Arc};

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::{Endpoint, NotificationId, RemoteSegment};
use qnic_apps::report::{BenchRow, Latency};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use super::{Rally, Side};
use qnic_apps::demo::node::{import, register, say_line, Exported};
use qnic_apps::demo::options::{notification, ANSWER_LIMIT, DATA, START_LIMIT, TARGET_PORT};

/// A ball for a handler, and one for an event loop.
const HANDLED: NotificationId = notification(1);
const POLLED: NotificationId = notification(2);

/// Bytes of a write.
const BYTES: [u8; 8] = [0x5a; 8];

#[derive(Args)]
pub(crate) struct Options {
    /// Node of the other side
    #[arg(long)]
    peer: u16,
    #[command(flatten)]
    side: Side,
}

/// Answers the balls of both ways, or measures them and says two [`BenchRow`]s.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (_nic, endpoint) = register(TARGET_PORT.0)?;
    let _inbox = Exported::new(&endpoint, DATA, BYTES.len())?;
    let remote = import(&endpoint, options.peer, TARGET_PORT, DATA)?;
    let ends = Arc::new(Ends { endpoint, remote });
    let ways = [
        ("handler", by_handler(&ends, &options.side)?),
        ("descriptor", by_descriptor(&ends, &options.side)?),
    ];
    ends.endpoint.flush().wait()?;
    if options.side.echo {
        return Ok(());
    }
    for (name, times) in ways {
        let mut row = BenchRow::new(name, BYTES.len());
        row.latency.extend(Latency::from_ns(times));
        say_line(&row)?;
    }
    Ok(())
}

/// This process, and the memory of the other one.
struct Ends {
    endpoint: Endpoint,
    remote: RemoteSegment,
}

impl Ends {
    fn signal(&self, id: NotificationId) -> Result<()> {
        drop(
            self.endpoint
                .write(&self.remote, 0, &BYTES)
                .notify(id)
                .post()?,
        );
        Ok(())
    }
}

/// The thread of the library that calls the handler sleeps; the handler hits the ball back.
fn by_handler(ends: &Arc<Ends>, side: &Side) -> Result<Vec<u64>> {
    let own = ends.clone();
    let mut rally = Rally::begin(side, move || own.signal(HANDLED))?;
    let (sender, ended) = mpsc::channel();
    let handler = move |_| {
        let outcome = match rally.comes() {
            Ok(false) => return,
            Ok(true) => Ok(std::mem::take(&mut rally.times)),
            Err(error) => Err(error),
        };
        // The receiver is gone when this function has failed.
        sender.send(outcome).unwrap_or_default();
    };
    let armed = ends.endpoint.notification(HANDLED).arm(handler)?;
    let limit = START_LIMIT + ANSWER_LIMIT;
    let times = ended.recv_timeout(limit).context("balls for the handler")?;
    drop(armed);
    times
}

/// This thread sleeps in poll.
fn by_descriptor(ends: &Ends, side: &Side) -> Result<Vec<u64>> {
    let poller = ends.endpoint.poller()?;
    let notification = ends.endpoint.notification(POLLED);
    let limit = Timespec::try_from(ANSWER_LIMIT)?;
    let rally = Rally::begin(side, || ends.signal(POLLED))?;
    rally.play(|| {
        while !notification.acknowledge() {
            poller.prepare()?;
            if notification.test() {
                continue;
            }
            let mut descriptors = [PollFd::new(&poller, PollFlags::IN)];
            let ready = poll(&mut descriptors, Some(&limit)).context("poll")?;
            ensure!(ready == 1, "no ball has come in {ANSWER_LIMIT:?}");
        }
        Ok(())
    })
}
