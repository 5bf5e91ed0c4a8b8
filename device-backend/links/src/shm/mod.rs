//! Frames through shared memory, between device processes of one host.
//!
//! ```text
//!   process "a"                                    process "b"
//!   send ─► Producer ──[ring, b's memfd]──► Consumer ─► receive
//!                └──── eventfd, only if b sleeps ────►┘
//!   receive ◄─ Consumer ◄──[ring, a's memfd]── Producer ◄─ send
//!
//!   Unix socket: Hello with memfd and eventfd, both ways; then silence, until one ends
//! ```
//!
//! | module | what |
//! |---|---|
//! | `ring` | records from one process to another; sleep and wake |
//! | `mapping` | a ring's memory: a sealed memfd |
//! | `greeting` | what is said on the socket: versions, names, descriptors |
//! | `peer` | the conversation with one process: calls, its death, its return |
//! | `model` | the ring in every interleaving (loom) |
//!
//! A busy process makes no system call for a frame: the other is found awake. Every
//! 10 ms it looks at its sockets. A frame is copied into the ring and out of
//! it, and parsed only then: the other process is not trusted. Whatever it does to the
//! rings or says on the socket, the worst is that the two are apart, which is reported and
//! counted; a frame counts only if it is from a node of that process (as on every carrier).
//! One thing is taken for granted: it runs as the same user (checked), who could as well
//! stop this process; see [`crate::notifier`].
//!
//! A ring that is full loses frames, as any wire, and counts them.

mod greeting;
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

use qnic_nic::Time;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::Timespec;

use crate::carrier::{Carrier, CarrierReport};
use crate::notifier::Notifier;
use greeting::Refused;
pub use greeting::MAX_NAME;
use peer::{Peer, PATIENCE};

/// Time between two looks at the sockets while frames come and go.
const LOOK_EVERY: u64 = 10_000_000;

/// Most frames from one process in one [`Carrier::receive`].
const FRAMES_PER_RECEIVE: usize = 128;

/// Most processes that have called and not yet said who they are.
const MAX_CALLERS: usize = 16;

/// Another process of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShmPeer {
    /// Its name, at most [`MAX_NAME`] bytes.
    pub name: String,
    /// Where it listens.
    pub socket: PathBuf,
}

/// Frames through shared memory.
#[derive(Debug)]
pub struct ShmCarrier {
    name: String,
    listener: UnixListener,
    /// Watches listener, sockets and bell, all edge-triggered.
    epoll: OwnedFd,
    /// Wakes this process; every other process has it.
    bell: Notifier,
    peers: Vec<Peer>,
    callers: Vec<Caller>,
    frame: Vec<u8>,
    /// The sockets must be looked at now.
    look: bool,
    next_look: Time,
    /// The others were told that this process sleeps.
    asleep: bool,
    strangers: u64,
}

/// Somebody who has called and said nothing yet.
#[derive(Debug)]
struct Caller {
    socket: UnixStream,
    until: Time,
}

impl ShmCarrier {
    /// A carrier of the process `name`, which is called at `listener`, to `peers`. All
    /// processes must have different names.
    ///
    /// # Errors
    /// What the system says to an epoll or an eventfd.
    pub fn new(name: &str, listener: UnixListener, peers: &[ShmPeer]) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = Notifier::new()?;
        watch(&epoll, &listener)?;
        watch(&epoll, &bell)?;
        let peer = |peer: &ShmPeer| Peer::new(name, &peer.name, peer.socket.clone());
        Ok(ShmCarrier {
            name: name.to_owned(),
            listener,
            epoll,
            bell,
            peers: peers.iter().map(peer).collect(),
            callers: Vec::new(),
            frame: Vec::new(),
            look: true,
            next_look: Time(0),
            asleep: false,
            strangers: 0,
        })
    }

    /// Takes what has happened on the sockets, and says whether that was anything.
    fn happened(&self) -> bool {
        let mut events = [MaybeUninit::<Event>::uninit(); 32];
        let now = Timespec::default();
        let events = epoll::wait(&self.epoll, &mut events, Some(&now));
        events.is_ok_and(|(events, _)| !events.is_empty())
    }

    /// Looks at all sockets and does what is due.
    fn look(&mut self, now: Time) {
        self.look = false;
        self.next_look = now.after(LOOK_EVERY);
        self.happened();
        // An error other than an empty queue is met again with the next call.
        while let Ok((socket, _)) = self.listener.accept() {
            if self.callers.len() < MAX_CALLERS && watch(&self.epoll, &socket).is_ok() {
                let until = now.after(PATIENCE);
                self.callers.push(Caller { socket, until });
            } else {
                self.strangers += 1;
            }
        }
        for caller in std::mem::take(&mut self.callers) {
            self.hear(now, caller);
        }
        let epoll = &self.epoll;
        for peer in &mut self.peers {
            peer.tick(now, &self.bell, &|socket| watch(epoll, socket));
        }
    }

    /// Takes what a caller says.
    fn hear(&mut self, now: Time, caller: Caller) {
        let heard =
            greeting::check_user(&caller.socket).and_then(|()| greeting::hear(&caller.socket));
        let refused = match heard {
            Ok(None) if now < caller.until => return self.callers.push(caller),
            Ok(None) => "no greeting".to_owned(),
            Err(why) => why.to_string(),
            Ok(Some(hello)) => match self.peers.iter_mut().find(|peer| peer.calls_with(&hello)) {
                Some(peer) => match greet(&self.name, &self.bell, &caller.socket, &hello) {
                    Ok(inbox) => return peer.answer(now, caller.socket, inbox, hello),
                    Err(why) => why.to_string(),
                },
                None => {
                    let own = &self.name;
                    format!("process \"{own}\" is not configured to be called by that process")
                }
            },
        };
        self.strangers += 1;
        // Whoever has gone needs no answer.
        let _ = greeting::say_no(&caller.socket, &self.name, "", &refused);
    }
}

/// Answers a Hello; this end of the ring that was given away.
fn greet(
    name: &str,
    bell: &Notifier,
    socket: &UnixStream,
    hello: &greeting::Hello,
) -> Result<ring::Consumer<mapping::RingMemory>, Refused> {
    let (inbox, memfd) = peer::new_inbox()?;
    greeting::say_hello(socket, name, &hello.source, &memfd, bell)?;
    Ok(inbox)
}

fn watch(epoll: &OwnedFd, source: impl AsFd) -> rustix::io::Result<()> {
    let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    epoll::add(epoll, source, EventData::new_u64(0), flags)
}

impl Carrier for ShmCarrier {
    fn send(&mut self, now: Time, process: usize, fill: &mut dyn FnMut(&mut Vec<u8>) -> bool) {
        if let Some(peer) = self.peers.get_mut(process) {
            self.frame.clear();
            if fill(&mut self.frame) {
                peer.send(now, &self.frame);
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
            self.look = true;
        }
        let due = self.next_deadline().is_some_and(|deadline| now >= deadline);
        if self.look || due || now >= self.next_look {
            self.look(now);
        }
        let mut count = 0;
        for (place, peer) in self.peers.iter_mut().enumerate() {
            count += peer.receive(now, FRAMES_PER_RECEIVE, &mut |frame| take(place, frame));
        }
        count > 0
    }

    fn prepare_sleep(&mut self) -> bool {
        self.asleep = true;
        let mut empty = true;
        for peer in &mut self.peers {
            empty &= peer.prepare_sleep();
        }
        // Only now: a bell that was rung since the others were told counts.
        empty && !self.happened()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn next_deadline(&self) -> Option<Time> {
        let callers = self.callers.iter().map(|caller| caller.until);
        let peers = self.peers.iter().filter_map(Peer::deadline);
        callers.chain(peers).min()
    }

    fn report(&self) -> CarrierReport {
        let address = self.listener.local_addr().ok();
        let address =
            address.and_then(|address| Some(address.as_pathname()?.display().to_string()));
        CarrierReport {
            kind: "shm",
            address: address.unwrap_or_default(),
            strangers: self.strangers,
            processes: self.peers.iter().map(|peer| peer.report.clone()).collect(),
        }
    }
}
