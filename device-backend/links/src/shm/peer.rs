//! The connection with one other process.
//!
//! ```text
//!   Disconnected ── socket, Hello ─► Connecting ── Hello ─► Connected ── socket closed or
//!     └──── Hello of a process that connects to this one ──►┘            broken ring ─► Disconnected
//! ```
//!
//! Of two processes, the one whose name comes first connects to the other, and tries
//! again until it succeeds; so two processes never connect to each other at once. The
//! socket stays open while they are connected: however a process ends, the operating
//! system closes the socket, and the other process notices.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use qnic_nic::env::Channel;
use qnic_nic::Time;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::channels::{Inbox, Outbox};
use super::handshake::{self, Hello, Refused};
use super::mapping::{PairMemory, RingMemory};
use super::ring::{Broken, MAX_RECORD};
use crate::carrier::{Outage, ProcessReport};
use crate::notifier::Notifier;

const MS: u64 = 1_000_000;
/// Time between two attempts to connect.
const CONNECT_INTERVAL: u64 = 200 * MS;
/// Time until the next attempt after one that failed for a reason that persists.
const RETRY_INTERVAL: u64 = 1000 * MS;
/// Longest time to wait for a Hello.
pub(super) const HELLO_TIMEOUT: u64 = 2000 * MS;

/// Why a process is no longer connected.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("its end of the connection is closed: it has ended, or its log says why")]
    Closed,
    #[error("it sends something after its hello")]
    UnexpectedData,
    #[error("it has connected again")]
    ConnectedAgain,
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
    next_attempt: Time,
    outage: Outage,
    /// Why it refused, or was refused, last: logged once.
    refused: String,
}

#[derive(Debug)]
enum State {
    Disconnected,
    Connecting {
        socket: UnixStream,
        inbox: Inbox<RingMemory>,
        until: Time,
    },
    Connected {
        socket: UnixStream,
        inbox: Inbox<RingMemory>,
        outbox: Outbox<RingMemory>,
        notifier: Notifier,
    },
}

/// New rings: the end of this process, and the descriptor for the other end.
pub(super) fn new_inbox() -> std::io::Result<(Inbox<RingMemory>, OwnedFd)> {
    let (memory, memfd) = PairMemory::make()?;
    let ring = |channel| memory.ring(channel);
    let inbox = Inbox::new(ring(Channel::Priority), ring(Channel::Data));
    Ok((inbox, memfd))
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
            state: State::Disconnected,
            next_attempt: Time(0),
            outage: Outage::since(Time(0)),
            refused: String::new(),
        }
    }

    /// Returns true if this process connects to that one, and not the other way round.
    fn is_connected_to(&self) -> bool {
        self.own_name < self.report.name
    }

    /// Returns true if this Hello is from the process, and may be.
    pub(super) fn expects(&self, hello: &Hello) -> bool {
        !self.is_connected_to() && self.is_named_by(hello)
    }

    fn is_named_by(&self, hello: &Hello) -> bool {
        hello.source == self.report.name && hello.destination == self.own_name
    }

    /// When [`Peer::tick`] must be called at the latest.
    pub(super) fn deadline(&self) -> Option<Time> {
        let next = match self.state {
            State::Disconnected if self.is_connected_to() => Some(self.next_attempt),
            State::Connecting { until, .. } => Some(until),
            State::Disconnected | State::Connected { .. } => None,
        };
        next.into_iter().chain(self.outage.deadline()).min()
    }

    /// Does what is due, and handles what has arrived on the socket. New sockets are
    /// given to `watch`.
    pub(super) fn tick(
        &mut self,
        now: Time,
        notifier: &Notifier,
        watch: &dyn Fn(&UnixStream) -> Result<(), Errno>,
    ) {
        match &self.state {
            State::Disconnected if self.is_connected_to() && now >= self.next_attempt => {
                self.next_attempt = now.after(CONNECT_INTERVAL);
                if let Err(why) = self.connect(now, notifier, watch) {
                    self.refuse(now, &why);
                }
            }
            State::Disconnected => {}
            State::Connecting { socket, until, .. } => match handshake::receive_hello(socket) {
                Ok(None) if now < *until => {}
                Ok(None) => self.refuse(now, &Refused::System(Errno::TIMEDOUT.into())),
                Ok(Some(hello)) => self.complete(now, hello),
                Err(why) => self.refuse(now, &why),
            },
            State::Connected { socket, .. } => {
                let mut byte = [0];
                let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
                match rustix::net::recv(socket, &mut byte[..], flags) {
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Ok((_, 1..)) => self.lose(now, &Lost::UnexpectedData),
                    Ok(_) | Err(_) => self.lose(now, &Lost::Closed),
                }
            }
        }
        if self.outage.is_reported_at(now) {
            tracing::error!(
                "process \"{}\" gets no response from process \"{}\" at {}: is it running, and \
                 does the configuration of each name the other?",
                self.own_name,
                self.report.name,
                self.report.address
            );
        }
    }

    /// Connects to the process, if it listens.
    fn connect(
        &mut self,
        now: Time,
        notifier: &Notifier,
        watch: &dyn Fn(&UnixStream) -> Result<(), Errno>,
    ) -> Result<(), Refused> {
        let socket = match handshake::connect(&self.path) {
            // No process listens yet, or its queue is full.
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) => return Ok(()),
            result => result?,
        };
        watch(&socket)?;
        handshake::check_user(&socket)?;
        let (inbox, memfd) = new_inbox()?;
        handshake::send_hello(&socket, &self.own_name, &self.report.name, &memfd, notifier)?;
        self.state = State::Connecting {
            socket,
            inbox,
            until: now.after(HELLO_TIMEOUT),
        };
        Ok(())
    }

    /// Handles the Hello that responds to the one that [`Peer::connect`] has sent.
    fn complete(&mut self, now: Time, hello: Hello) {
        if !self.is_named_by(&hello) {
            let (source_name, destination) = (hello.source, hello.destination);
            let why = Refused::Names {
                source_name,
                destination,
            };
            return self.refuse(now, &why);
        }
        match std::mem::replace(&mut self.state, State::Disconnected) {
            State::Connecting { socket, inbox, .. } => self.establish(socket, inbox, hello),
            other => self.state = other,
        }
    }

    /// Accepts a connection of the process, to which this one has sent a Hello.
    pub(super) fn accept(
        &mut self,
        now: Time,
        socket: UnixStream,
        inbox: Inbox<RingMemory>,
        hello: Hello,
    ) {
        if let State::Connected { .. } = self.state {
            self.lose(now, &Lost::ConnectedAgain);
        }
        self.establish(socket, inbox, hello);
    }

    fn establish(&mut self, socket: UnixStream, inbox: Inbox<RingMemory>, hello: Hello) {
        let ring = |channel| hello.memory.ring(channel);
        self.state = State::Connected {
            socket,
            inbox,
            outbox: Outbox::new(ring(Channel::Priority), ring(Channel::Data)),
            notifier: hello.notifier,
        };
        self.report.connected = true;
        self.outage.end();
        self.refused.clear();
        let (name, at) = (&self.report.name, &self.report.address);
        tracing::info!("process \"{name}\" at {at} is connected by shared memory");
    }

    /// The two cannot be connected now.
    fn refuse(&mut self, now: Time, why: &Refused) {
        self.state = State::Disconnected;
        self.next_attempt = now.after(RETRY_INTERVAL);
        let why = why.to_string();
        if self.refused != why {
            tracing::error!(
                "process \"{}\" and process \"{}\" at {} cannot be connected: {why}",
                self.own_name,
                self.report.name,
                self.report.address
            );
            self.refused = why;
        }
    }

    fn lose(&mut self, now: Time, why: &Lost) {
        self.state = State::Disconnected;
        self.report.connected = false;
        self.report.malformed += u64::from(!matches!(why, Lost::Closed | Lost::ConnectedAgain));
        self.next_attempt = match why {
            Lost::Closed => now,
            _ => now.after(RETRY_INTERVAL),
        };
        self.outage = Outage::since(now);
        tracing::error!(
            "process \"{}\" has lost process \"{}\" at {}: {why}; frames between the two are \
             dropped until it is connected again",
            self.own_name,
            self.report.name,
            self.report.address
        );
    }

    /// Sends a frame; one that does not fit is dropped.
    pub(super) fn send(&mut self, now: Time, channel: Channel, frame: &[u8]) {
        let State::Connected { outbox, .. } = &mut self.state else {
            self.report.dropped += 1;
            return;
        };
        match outbox.push(channel, frame) {
            Ok(true) => self.report.frames_sent += 1,
            Ok(false) => self.report.dropped += 1,
            Err(broken) => self.lose(now, &Lost::Outbox(broken)),
        }
    }

    /// Publishes all frames that were sent, and wakes the process if it sleeps.
    pub(super) fn flush(&mut self) {
        if let State::Connected {
            outbox, notifier, ..
        } = &mut self.state
        {
            if outbox.flush() {
                notifier.signal();
            }
        }
    }

    /// Receives up to `most` frames and returns their number.
    pub(super) fn receive(&mut self, now: Time, most: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        let State::Connected { inbox, .. } = &mut self.state else {
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

    /// Announces that this process is about to sleep. Returns false if a frame is there,
    /// or the ring is broken. Either way [`Peer::wake`] must be called next.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        match &mut self.state {
            // `receive` finds a broken ring, too, and handles it.
            State::Connected { inbox, .. } => inbox.prepare_sleep() == Ok(true),
            _ => true,
        }
    }

    /// Announces that this process does not sleep.
    pub(super) fn wake(&mut self) {
        if let State::Connected { inbox, .. } = &mut self.state {
            inbox.wake();
        }
    }
}
