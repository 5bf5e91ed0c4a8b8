//! Frames through shared memory, between device processes of one host.
//!
//! ```text
//!   process "a"                                    process "b"
//!   send ─► Outbox ──[two rings, b's memfd]──► Inbox ─► receive
//!              └────── eventfd, only if b sleeps ─────►┘
//!   receive ◄─ Inbox ◄──[two rings, a's memfd]── Outbox ◄─ send
//!
//!   Unix socket: Hello with memfd and eventfd, both ways; then nothing, until one ends
//! ```
//!
//! While both processes are busy, a frame costs no system call, since the reader does not
//! sleep. Every 10 ms a busy process polls its sockets. A frame that does not fit into
//! its ring is dropped and counted, as on any wire. Each channel has a ring of its own
//! (the module `channels`), so a small frame does not wait behind bulk.
//!
//! The other process is not trusted. A frame is copied out of the ring before it is
//! parsed, and dropped if it is not from a node of that process, as on every carrier.
//! Whatever the other process does to the rings or sends on the socket, at worst the
//! connection between the two ends, which is logged and counted. It must run as the same
//! user, which is checked; such a process could as well stop this one (see
//! [`crate::notifier`]).

mod channels;
mod handshake;
mod mapping;
#[cfg(test)]
mod model;
mod peer;
mod ring;
#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use qnic_nic::env::Channel;
use qnic_nic::Time;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::Timespec;

use crate::carrier::{Carrier, CarrierReport};
use crate::codec::MAX_FRAME;
use crate::notifier::Notifier;
use handshake::Refused;
use peer::{Peer, HELLO_TIMEOUT};

/// Time between two polls of the sockets while frames come and go.
const SOCKET_INTERVAL: u64 = 10_000_000;

/// Most frames from one process in one [`Carrier::receive`].
const FRAMES_PER_RECEIVE: usize = 128;

/// Most connections whose Hello has not arrived yet.
const MAX_INCOMING: usize = 16;

/// Another process of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShmPeer {
    /// Its name, at most [`MAX_NAME`](qnic_config::plan::MAX_NAME) bytes.
    pub name: String,
    /// Where it listens.
    pub socket: PathBuf,
}

/// Frames through shared memory.
#[derive(Debug)]
pub struct ShmCarrier {
    name: String,
    listener: UnixListener,
    /// Watches listener, sockets and notifier, all edge-triggered.
    epoll: OwnedFd,
    /// Wakes this process; every other process has it.
    notifier: Notifier,
    peers: Vec<Peer>,
    /// Connections whose Hello has not arrived yet, and until when it may.
    incoming: Vec<(UnixStream, Time)>,
    frame: Vec<u8>,
    /// The sockets must be polled now.
    sockets_due: bool,
    next_poll: Time,
    /// This process has announced to the others that it sleeps.
    asleep: bool,
    rejected: u64,
}

impl ShmCarrier {
    /// A carrier of the process `name`, which listens on `listener`, to `peers`. All
    /// processes must have different names.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn new(name: &str, listener: UnixListener, peers: &[ShmPeer]) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let notifier = Notifier::new()?;
        watch(&epoll, &listener)?;
        watch(&epoll, &notifier)?;
        let peer = |peer: &ShmPeer| Peer::new(name, &peer.name, peer.socket.clone());
        Ok(ShmCarrier {
            name: name.to_owned(),
            listener,
            epoll,
            notifier,
            peers: peers.iter().map(peer).collect(),
            incoming: Vec::new(),
            frame: Vec::new(),
            sockets_due: true,
            next_poll: Time(0),
            asleep: false,
            rejected: 0,
        })
    }

    /// Takes the events of the sockets. Returns true if there were any.
    fn take_events(&self) -> bool {
        let mut events = [MaybeUninit::<Event>::uninit(); 32];
        let now = Timespec::default();
        let events = epoll::wait(&self.epoll, &mut events, Some(&now));
        events.is_ok_and(|(events, _)| !events.is_empty())
    }

    /// Polls all sockets and does what is due.
    fn poll_sockets(&mut self, now: Time) {
        self.sockets_due = false;
        self.next_poll = now.after(SOCKET_INTERVAL);
        self.take_events();
        // An error other than an empty queue comes again with the next call.
        while let Ok((socket, _)) = self.listener.accept() {
            if self.incoming.len() < MAX_INCOMING && watch(&self.epoll, &socket).is_ok() {
                self.incoming.push((socket, now.after(HELLO_TIMEOUT)));
            } else {
                self.rejected += 1;
            }
        }
        for (socket, until) in std::mem::take(&mut self.incoming) {
            self.receive_hello(now, socket, until);
        }
        let epoll = &self.epoll;
        for peer in &mut self.peers {
            peer.tick(now, &self.notifier, &|socket| watch(epoll, socket));
        }
    }

    /// Handles the Hello of an incoming connection, if it has arrived.
    fn receive_hello(&mut self, now: Time, socket: UnixStream, until: Time) {
        let hello = handshake::check_user(&socket).and_then(|()| handshake::receive_hello(&socket));
        let reason = match hello {
            Ok(None) if now < until => return self.incoming.push((socket, until)),
            Ok(None) => "no hello".to_owned(),
            Err(why) => why.to_string(),
            Ok(Some(hello)) => match self.peers.iter_mut().find(|peer| peer.expects(&hello)) {
                Some(peer) => match respond(&self.name, &self.notifier, &socket, &hello) {
                    Ok(inbox) => return peer.accept(now, socket, inbox, hello),
                    Err(why) => why.to_string(),
                },
                None => format!(
                    "process \"{}\" is not configured to be connected to by that process",
                    self.name
                ),
            },
        };
        self.rejected += 1;
        // A process that has gone needs no reason.
        let _ = handshake::send_refusal(&socket, &self.name, "", &reason);
    }
}

/// Responds to a Hello; returns this end of the rings that it has handed out.
fn respond(
    name: &str,
    notifier: &Notifier,
    socket: &UnixStream,
    hello: &handshake::Hello,
) -> Result<channels::Inbox<mapping::RingMemory>, Refused> {
    let (inbox, memfd) = peer::new_inbox()?;
    handshake::send_hello(socket, name, &hello.source, &memfd, notifier)?;
    Ok(inbox)
}

fn watch(epoll: &OwnedFd, source: impl AsFd) -> rustix::io::Result<()> {
    let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    epoll::add(epoll, source, EventData::new_u64(0), flags)
}

impl Carrier for ShmCarrier {
    fn send(
        &mut self,
        now: Time,
        process: usize,
        channel: Channel,
        fill: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) {
        if let Some(peer) = self.peers.get_mut(process) {
            self.frame.clear();
            if fill(&mut self.frame) {
                peer.send(now, channel, &self.frame);
            }
        }
    }

    fn flush(&mut self, _now: Time) {
        for peer in &mut self.peers {
            peer.flush();
        }
    }

    fn receive(&mut self, now: Time, take: &mut dyn FnMut(usize, &[u8])) -> bool {
        if std::mem::take(&mut self.asleep) {
            for peer in &mut self.peers {
                peer.wake();
            }
            self.sockets_due = true;
        }
        let due = self.next_deadline().is_some_and(|deadline| now >= deadline);
        if self.sockets_due || due || now >= self.next_poll {
            self.poll_sockets(now);
        }
        let mut count = 0;
        for (index, peer) in self.peers.iter_mut().enumerate() {
            count += peer.receive(now, FRAMES_PER_RECEIVE, &mut |frame| take(index, frame));
        }
        count > 0
    }

    fn prepare_sleep(&mut self) -> bool {
        self.asleep = true;
        let mut empty = true;
        for peer in &mut self.peers {
            empty &= peer.prepare_sleep();
        }
        // Only now: a signal that came after the announcement counts.
        empty && !self.take_events()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn next_deadline(&self) -> Option<Time> {
        let incoming = self.incoming.iter().map(|(_, until)| *until);
        let peers = self.peers.iter().filter_map(Peer::deadline);
        incoming.chain(peers).min()
    }

    fn max_frame(&self, _process: usize) -> usize {
        MAX_FRAME
    }

    fn take_path_change(&mut self) -> bool {
        false
    }

    fn report(&self) -> CarrierReport {
        let address = self.listener.local_addr().ok();
        let address =
            address.and_then(|address| Some(address.as_pathname()?.display().to_string()));
        CarrierReport {
            kind: "shm",
            address: address.unwrap_or_default(),
            rejected: self.rejected,
            processes: self.peers.iter().map(|peer| peer.report.clone()).collect(),
        }
    }
}
