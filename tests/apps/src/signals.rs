//! Two processes that use every kind of notification between them: one-shot ones
//! through the queue, counted ones through handlers, an event loop and a wait for
//! several, and channels both ways (N16 to N19).

use std::sync::mpsc;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::{
    ChannelOptions, Endpoint, Error, NodeId, NotificationId, OneShot, Port, Receiver,
    RemoteSegment, SegmentName, Sender, Signal,
};
use qnic_apps::demo::pattern;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use qnic_apps::demo::node::{import, register, say, Exported};
use qnic_apps::demo::options::{notification, ANSWER_LIMIT, DATA, START_LIMIT};

const PORT: Port = Port(12);
const CHANNEL: SegmentName = SegmentName(40);

/// Both are there.
const READY: NotificationId = notification(1);
/// One of the one-shot notifications was taken.
const TAKEN: NotificationId = notification(2);
/// They have handlers.
const HANDLED: [NotificationId; 2] = [notification(3), notification(4)];
/// Waited for in an event loop.
const POLLED: NotificationId = notification(5);
/// Waited for together.
const SEVERAL: [NotificationId; 3] = [notification(6), notification(70), notification(1023)];
/// The channel's.
const SENT: NotificationId = notification(8);
const REPLENISH: NotificationId = notification(9);

/// One-shot notifications under way at most.
const WINDOW: u32 = 100;
/// Longest message of the channel in bytes.
const MESSAGE: usize = 10_000;

#[derive(Args)]
pub(crate) struct Options {
    /// Node of the other side
    #[arg(long)]
    peer: u16,
    /// Notifications and messages of each kind
    #[arg(long, default_value_t = 300)]
    rounds: u32,
}

/// One side, and the memory of the other.
struct Side {
    endpoint: Endpoint,
    peer: NodeId,
    remote: RemoteSegment,
    rounds: u32,
}

/// Runs one kind after the other, in step with the other side.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (_nic, endpoint) = register(PORT.0)?;
    let _inbox = Exported::new(&endpoint, DATA, 4096)?;
    let side = Side {
        remote: import(&endpoint, options.peer, PORT, DATA)?,
        peer: NodeId(options.peer),
        endpoint,
        rounds: options.rounds,
    };
    side.in_step(|| side.one_shots()).context("one-shot")?;
    side.in_step(|| side.handlers()).context("handlers")?;
    side.in_step(|| side.event_loop()).context("event loop")?;
    side.in_step(|| side.several()).context("several")?;
    side.in_step(|| side.channels()).context("channels")?;
    side.endpoint.flush().wait()?;
    say("signalled", options.rounds)
}

impl Side {
    fn signal(&self, signal: impl Into<Signal>) -> Result<()> {
        self.endpoint
            .write(&self.remote, 0, b"")
            .notify(signal)
            .post()?;
        Ok(())
    }

    fn take(&self, id: NotificationId) -> Result<()> {
        Ok(self.endpoint.notification(id).take(Some(ANSWER_LIMIT))?)
    }

    /// Runs a part on both sides; neither leaves it before both are through.
    fn in_step(&self, part: impl FnOnce() -> Result<()>) -> Result<()> {
        part()?;
        self.signal(READY)?;
        self.take(READY)
    }

    fn one_shots(&self) -> Result<()> {
        let number = |round| OneShot::new(OneShot::MIN + round).context("no one-shot number");
        for round in 0..self.rounds + WINDOW {
            if round < self.rounds {
                self.signal(number(round)?)?;
            }
            let Some(due) = round.checked_sub(WINDOW).filter(|due| *due < self.rounds) else {
                continue;
            };
            let next = self.endpoint.queue().wait(Some(ANSWER_LIMIT))?;
            ensure!(
                next == number(due)?.into(),
                "{next:?} instead of the {due}th"
            );
            // What the peer has taken leaves room for another one.
            self.signal(TAKEN)?;
            self.take(TAKEN)?;
        }
        Ok(())
    }

    fn handlers(&self) -> Result<()> {
        let (sender, calls) = mpsc::channel();
        let mut armed = Vec::new();
        for id in HANDLED {
            let sender = sender.clone();
            // The receiver is gone when this function has failed.
            let handler = move |id| sender.send(id).unwrap_or_default();
            armed.push(self.endpoint.notification(id).arm(handler)?);
        }
        for _ in 0..self.rounds {
            HANDLED.into_iter().try_for_each(|id| self.signal(id))?;
        }
        let mut counts = [0; 2];
        for _ in 0..2 * self.rounds {
            let id = calls.recv_timeout(ANSWER_LIMIT).context("no call")?;
            counts[usize::from(id == HANDLED[1])] += 1;
        }
        ensure!(counts == [self.rounds; 2], "calls: {counts:?}");
        drop((armed, sender));
        ensure!(calls.recv().is_err(), "a call too many");
        Ok(())
    }

    fn event_loop(&self) -> Result<()> {
        let poller = self.endpoint.poller()?;
        let notification = self.endpoint.notification(POLLED);
        let limit = Timespec::try_from(ANSWER_LIMIT)?;
        for _ in 0..self.rounds {
            self.signal(POLLED)?;
            while !notification.acknowledge() {
                poller.prepare()?;
                if notification.test() {
                    continue;
                }
                let mut descriptors = [PollFd::new(&poller, PollFlags::IN)];
                let ready = poll(&mut descriptors, Some(&limit))?;
                ensure!(ready == 1, "the descriptor did not become readable");
            }
        }
        Ok(())
    }

    fn several(&self) -> Result<()> {
        for round in 0..self.rounds {
            self.signal(SEVERAL[round as usize % SEVERAL.len()])?;
        }
        let mut counts = [0; 3];
        for _ in 0..self.rounds {
            let id = self.endpoint.wait_any(&SEVERAL, Some(ANSWER_LIMIT))?;
            ensure!(self.endpoint.notification(id).acknowledge(), "{id:?}");
            let index = SEVERAL.iter().position(|other| *other == id);
            counts[index.context("another one")?] += 1;
        }
        let all = counts.iter().sum::<u32>();
        ensure!(all == self.rounds && counts[0] >= counts[2], "{counts:?}");
        Ok(())
    }

    fn channels(&self) -> Result<()> {
        let message = |node: NodeId, number: u32| {
            let length = [0, 8, 96, 1000, MESSAGE][number as usize % 5];
            pattern::bytes(u64::from(node.0) << 32 | u64::from(number), length)
        };
        let options = ChannelOptions::new(8, MESSAGE, SENT);
        let mut receiver = Receiver::open(&self.endpoint, CHANNEL, &options)?;
        let connect = || {
            let (peer, endpoint) = (self.peer, &self.endpoint);
            Sender::connect(endpoint, (peer, PORT, CHANNEL), REPLENISH, START_LIMIT)
        };
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let mut sender = connect()?;
                for number in 0..self.rounds {
                    let message = message(self.endpoint.node(), number);
                    sender.send(&message, Some(ANSWER_LIMIT))?;
                }
                sender.close()
            });
            for number in 0..self.rounds {
                let got = receiver.recv(Some(ANSWER_LIMIT))?.to_vec();
                ensure!(
                    got == message(self.peer, number),
                    "message {number} differs"
                );
            }
            let end = receiver.recv(Some(ANSWER_LIMIT)).err();
            ensure!(matches!(end, Some(Error::ChannelClosed)), "{end:?}");
            let sent = sending.join();
            sent.map_err(|_| anyhow::anyhow!("the sending thread panicked"))??;
            Ok(())
        })
    }
}
