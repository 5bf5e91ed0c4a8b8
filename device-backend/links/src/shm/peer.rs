//! The conversation with one other process.
//!
//! ```text
//!   apart ── socket, Hello ─► asking ── Hello ─► joined ── socket ends, broken ring ─► apart
//!     └────────── (called) Hello ───────────────►┘
//! ```
//!
//! Of two processes, the one whose name comes first calls the other, again and again;
//! so they never call each other. The socket stays open while they are joined: when a
//! process ends, however it ends, the system closes it, and the other side knows.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use qnic_nic::Time;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::greeting::{self, Hello, Refused};
use super::mapping::RingMemory;
use super::ring::{Broken, Consumer, Producer, MAX_RECORD};
use crate::carrier::ProcessReport;
use crate::notifier::Notifier;

const MS: u64 = 1_000_000;
/// Time between two calls.
const CALL_EVERY: u64 = 200 * MS;
/// Time until the next call after one that failed for a reason that will stay.
const CALL_AGAIN: u64 = 1000 * MS;
/// Time for an answer.
pub(super) const PATIENCE: u64 = 2000 * MS;
/// A process that is not joined for so long is reported.
const SILENCE: u64 = 5000 * MS;

/// Why a process is no longer joined.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("its end of the connection is closed: it has ended, or its log says why")]
    Ended,
    #[error("it says something after its greeting")]
    Talks,
    #[error("it called again")]
    CalledAgain,
    #[error("the ring from it is broken: {0}")]
    Inbox(Broken),
    #[error("the ring to it is broken: {0}")]
    Outbox(Broken),
}

/// Another process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) report: ProcessReport,
    own_name: String,
    path: PathBuf,
    state: State,
    next_call: Time,
    /// Since when it has not been joined, until that was reported.
    apart_since: Option<Time>,
    /// Why it refused, or was refused, last: reported once.
    refused: String,
}

#[derive(Debug)]
enum State {
    Apart,
    Asking {
        socket: UnixStream,
        inbox: Consumer<RingMemory>,
        until: Time,
    },
    Joined {
        socket: UnixStream,
        inbox: Consumer<RingMemory>,
        outbox: Producer<RingMemory>,
        bell: Notifier,
    },
}

/// What a process needs to greet another: its end of a new ring, the descriptor for the
/// other end.
pub(super) fn new_inbox() -> std::io::Result<(Consumer<RingMemory>, OwnedFd)> {
    let (memory, memfd) = RingMemory::make()?;
    Ok((Consumer::new(memory), memfd))
}

impl Peer {
    /// The process `name`, which listens at `path`.
    pub(super) fn new(own_name: &str, name: &str, path: PathBuf) -> Self {
        Peer {
            report: ProcessReport {
                name: name.to_owned(),
                address: path.display().to_string(),
                mtu: MAX_RECORD as u64,
                ..ProcessReport::default()
            },
            own_name: own_name.to_owned(),
            path,
            state: State::Apart,
            next_call: Time(0),
            apart_since: Some(Time(0)),
            refused: String::new(),
        }
    }

    /// Says whether this process calls that one.
    fn is_called(&self) -> bool {
        self.own_name < self.report.name
    }

    /// Says whether a Hello with these names is from it.
    pub(super) fn calls_with(&self, hello: &Hello) -> bool {
        let names = (hello.source.as_str(), hello.destination.as_str());
        !self.is_called() && names == (self.report.name.as_str(), self.own_name.as_str())
    }

    /// When [`Peer::tick`] must be called at the latest.
    pub(super) fn deadline(&self) -> Option<Time> {
        let next = match self.state {
            State::Apart if self.is_called() => Some(self.next_call),
            State::Asking { until, .. } => Some(until),
            State::Apart | State::Joined { .. } => None,
        };
        let silence = self.apart_since.map(|since| since.after(SILENCE));
        next.into_iter().chain(silence).min()
    }

    /// Does what is due, and takes in what its socket says. `watch` is given new sockets.
    pub(super) fn tick(
        &mut self,
        now: Time,
        bell: &Notifier,
        watch: &dyn Fn(&UnixStream) -> Result<(), Errno>,
    ) {
        match &self.state {
            State::Apart if self.is_called() && now >= self.next_call => {
                self.next_call = now.after(CALL_EVERY);
                if let Err(why) = self.call(now, bell, watch) {
                    self.refuse(now, &why);
                }
            }
            State::Apart => {}
            State::Asking { socket, until, .. } => match greeting::hear(socket) {
                Ok(None) if now < *until => {}
                Ok(None) => self.refuse(now, &Refused::System(Errno::TIMEDOUT.into())),
                Ok(Some(hello)) => self.take_answer(now, hello),
                Err(why) => self.refuse(now, &why),
            },
            State::Joined { socket, .. } => {
                let mut byte = [0];
                let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
                match rustix::net::recv(socket, &mut byte[..], flags) {
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Ok((_, 1..)) => self.lose(now, &Lost::Talks),
                    Ok(_) | Err(_) => self.lose(now, &Lost::Ended),
                }
            }
        }
        if self
            .apart_since
            .is_some_and(|since| now >= since.after(SILENCE))
        {
            self.apart_since = None;
            tracing::error!(
                "process \"{}\" gets no answer from process \"{}\" at {}: is it running, and \
                 does the configuration of each name the other?",
                self.own_name,
                self.report.name,
                self.report.address
            );
        }
    }

    /// Calls it, if somebody listens there.
    fn call(
        &mut self,
        now: Time,
        bell: &Notifier,
        watch: &dyn Fn(&UnixStream) -> Result<(), Errno>,
    ) -> Result<(), Refused> {
        let socket = match greeting::connect(&self.path) {
            // Nobody is there yet, or is too busy to take the call.
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) => return Ok(()),
            result => result?,
        };
        watch(&socket)?;
        greeting::check_user(&socket)?;
        let (inbox, memfd) = new_inbox()?;
        greeting::say_hello(&socket, &self.own_name, &self.report.name, &memfd, bell)?;
        self.state = State::Asking {
            socket,
            inbox,
            until: now.after(PATIENCE),
        };
        Ok(())
    }

    fn take_answer(&mut self, now: Time, hello: Hello) {
        if (&hello.source, &hello.destination) != (&self.report.name, &self.own_name) {
            let (source_name, destination) = (hello.source, hello.destination);
            let why = Refused::Names {
                source_name,
                destination,
            };
            return self.refuse(now, &why);
        }
        match std::mem::replace(&mut self.state, State::Apart) {
            State::Asking { socket, inbox, .. } => self.join(socket, inbox, hello),
            other => self.state = other,
        }
    }

    /// It has called and was greeted.
    pub(super) fn answer(
        &mut self,
        now: Time,
        socket: UnixStream,
        inbox: Consumer<RingMemory>,
        hello: Hello,
    ) {
        if let State::Joined { .. } = self.state {
            self.lose(now, &Lost::CalledAgain);
        }
        self.join(socket, inbox, hello);
    }

    fn join(&mut self, socket: UnixStream, inbox: Consumer<RingMemory>, hello: Hello) {
        self.state = State::Joined {
            socket,
            inbox,
            outbox: Producer::new(hello.memory),
            bell: hello.bell,
        };
        self.report.connected = true;
        self.apart_since = None;
        self.refused.clear();
        let (name, at) = (&self.report.name, &self.report.address);
        tracing::info!("process \"{name}\" at {at} is joined by shared memory");
    }

    /// The two cannot be joined now.
    fn refuse(&mut self, now: Time, why: &Refused) {
        self.state = State::Apart;
        self.next_call = now.after(CALL_AGAIN);
        let why = why.to_string();
        if self.refused != why {
            tracing::error!(
                "process \"{}\" and process \"{}\" at {} cannot be joined: {why}",
                self.own_name,
                self.report.name,
                self.report.address
            );
            self.refused = why;
        }
    }

    fn lose(&mut self, now: Time, why: &Lost) {
        self.state = State::Apart;
        self.report.connected = false;
        self.report.malformed += u64::from(!matches!(why, Lost::Ended | Lost::CalledAgain));
        self.next_call = match why {
            Lost::Ended => now,
            _ => now.after(CALL_AGAIN),
        };
        self.apart_since = Some(now);
        tracing::error!(
            "process \"{}\" has lost process \"{}\" at {}: {why}; frames between the two are \
             dropped until it is joined again",
            self.own_name,
            self.report.name,
            self.report.address
        );
    }

    /// Sends a frame; one that does not fit is dropped.
    pub(super) fn send(&mut self, now: Time, frame: &[u8]) {
        let State::Joined { outbox, .. } = &mut self.state else {
            self.report.dropped += 1;
            return;
        };
        match outbox.push(frame) {
            Ok(true) => self.report.frames_sent += 1,
            Ok(false) => self.report.dropped += 1,
            Err(broken) => self.lose(now, &Lost::Outbox(broken)),
        }
    }

    /// Tells it of all frames, and wakes it if it sleeps.
    pub(super) fn flush(&mut self) {
        if let State::Joined { outbox, bell, .. } = &mut self.state {
            if outbox.flush() {
                bell.signal();
            }
        }
    }

    /// Takes in up to `most` frames; says how many there were.
    pub(super) fn receive(&mut self, now: Time, most: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        let State::Joined { inbox, .. } = &mut self.state else {
            return 0;
        };
        for count in 0..most {
            match inbox.pop() {
                Ok(Some(frame)) => {
                    self.report.frames_received += 1;
                    take(frame);
                }
                Ok(None) => {
                    inbox.release();
                    return count;
                }
                Err(broken) => {
                    self.lose(now, &Lost::Inbox(broken));
                    return count;
                }
            }
        }
        most
    }

    /// Says that this process is about to sleep; `false` if a frame is there, or the
    /// ring is broken. Either way [`Peer::wake`] comes next.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        match &mut self.state {
            // A broken ring is met again, and dealt with, by `receive`.
            State::Joined { inbox, .. } => inbox.prepare_sleep() == Ok(true),
            _ => true,
        }
    }

    /// Says that this process does not sleep.
    pub(super) fn wake(&mut self) {
        if let State::Joined { inbox, .. } = &mut self.state {
            inbox.wake();
        }
    }
}
