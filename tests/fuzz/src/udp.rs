//! UDP datagrams, before and after the handshake.
//!
//! ```text
//!   "a": a peer without the key,    ──┐
//!        or one with it that lies     ├──► "b": the carrier ──► frames
//!   "c": an honest peer ──────────────┘
//! ```
//! Both peers are sockets of the target, which makes handshakes and datagrams by itself (the module
//! `peer`). It waits for a datagram to arrive on the loopback interface, and not for a time.
//!
//! After any input: without the key nothing brings a frame; no datagram brings a frame
//! twice; frames are no longer than frames are; `c` is connected, in the session that it had
//! if that is not too old, and its frames get through both ways.

mod peer;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use qnic_links::codec::MAX_FRAME;
use qnic_links::{Carrier, PrivateKey, UdpCarrier, UdpIdentity, UdpPeer};
use qnic_nic::{Channel, Time};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::input::Input;
use peer::{Peer, FRAME, PING, RESPONSE};

/// Most steps of one input.
const STEPS: usize = 64;

/// The carrier's private key.
const CARRIER_KEY: [u8; 32] = [7; 32];

/// Longest datagram that an input makes.
const LONGEST: usize = 9000;

/// Kinds of datagrams in a session.
const KINDS: u8 = 6;

/// How long a datagram may need on the loopback interface: far longer than it ever does.
const LOOPBACK: Duration = Duration::from_secs(60);

/// Time in which the carrier answers one handshake of a peer.
const HANDSHAKE_TIME: u64 = 20_000_000;

/// How long the session of an honest peer is sure to be good.
const SESSION_TIME: u64 = 170_000_000_000;

struct World {
    carrier: UdpCarrier,
    address: SocketAddr,
    now: Time,
    a: Peer,
    c: Peer,
    /// When the session of `c` began.
    begun: Time,
    frames: Vec<(usize, Vec<u8>)>,
}

/// Runs one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new();
    world.exchange();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.exchange();
}

/// Waits until a datagram is there.
fn wait(socket: BorrowedFd<'_>) {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    let timeout = Timespec::try_from(LOOPBACK).expect("a short time");
    let arrived = poll(&mut fds, Some(&timeout)).expect("a poll");
    assert_eq!(arrived, 1, "a datagram on the loopback interface");
}

impl World {
    fn new() -> Self {
        let own = PrivateKey::from_bytes(CARRIER_KEY);
        let [a, c] = [("a", 8), ("c", 9)].map(|(name, key)| Peer::new(name, [key; 32], &own));
        let peers = [&a, &c].map(|peer| UdpPeer {
            name: peer.name.to_owned(),
            address: peer.address(),
            public_key: peer.public_key(),
        });
        let identity = UdpIdentity {
            name: peer::CARRIER.to_owned(),
            private_key: own,
            encrypt: true,
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let carrier = UdpCarrier::new(&identity, any, &peers).expect("a socket");
        let mut world = World {
            address: carrier.address().expect("a bound socket"),
            carrier,
            now: Time(1),
            a,
            c,
            begun: Time(0),
            frames: Vec::new(),
        };
        world.connect_c();
        world.connect_a();
        world
    }

    /// A handshake of `c`, which is honest; the carrier answers it and takes it over.
    fn connect_c(&mut self) {
        self.now = self.now.after(HANDSHAKE_TIME);
        let initiation = self.c.initiate();
        self.honest(initiation);
        while self.c.listen().0 == 0 {
            wait(self.c.socket.as_fd());
        }
        self.begun = self.now;
        let ping = self.c.seal(PING, &[]);
        self.honest(ping);
    }

    /// A handshake of `a`, which the carrier need not answer.
    fn connect_a(&mut self) {
        self.now = self.now.after(HANDSHAKE_TIME);
        let initiation = self.a.initiate();
        self.deliver_of_a(initiation);
        self.a.listen();
    }

    /// The carrier receives what has arrived.
    fn receive(&mut self) {
        let frames = &mut self.frames;
        self.carrier.receive(self.now, &mut |process, frame| {
            assert!(frame.len() <= LONGEST, "a frame of {} bytes", frame.len());
            frames.push((process, frame.to_vec()));
        });
        self.carrier.flush(self.now);
    }

    /// Sends a datagram, and has the carrier receive it.
    fn deliver(&mut self, socket: &UdpSocket, datagram: &[u8]) {
        if socket.send_to(datagram, self.address).is_err() {
            return;
        }
        wait(self.carrier.descriptor());
        self.receive();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        self.frames.clear();
        self.a.listen();
        self.c.listen();
        match input.byte() {
            0..=119 => self.with_key(input),
            120..=151 => self.handshake(input),
            152..=159 => self.connect_a(),
            160..=191 => self.without_key(input),
            192..=207 => self.replay(input),
            208..=223 => {
                let length = input.below(MAX_FRAME) + 1;
                let process = usize::from(input.byte() % 3);
                let channel = Channel::of(length);
                self.carrier.send(self.now, process, channel, &mut |out| {
                    out.extend(std::iter::repeat_n(9, length));
                    true
                });
                self.carrier.flush(self.now);
            }
            _ => {
                self.now = self.now.after(1 << input.below(35));
                self.receive();
            }
        }
    }

    /// Delivers a datagram of `a`, which has a key of its own and may lie with it.
    fn deliver_of_a(&mut self, datagram: Vec<u8>) {
        let socket = self.a.socket.try_clone().expect("a descriptor");
        self.deliver(&socket, &datagram);
        self.a.sent.push(datagram);
        assert!(self.frames.iter().all(|frame| frame.0 == 0), "from another");
        assert!(
            self.frames.len() <= 1,
            "a datagram brings one frame at most"
        );
    }

    /// A datagram of `a` that is sealed with its key, right but for what the input makes
    /// wrong.
    fn with_key(&mut self, input: &mut Input<'_>) {
        let kind = 1 + input_kind(input);
        let kind = input.near8(kind);
        let fill = usize::from(input.short()) % 256;
        let mut body = vec![7; fill];
        match kind {
            2 => body = fragment(input),
            6 => body = input.near(4000).to_le_bytes().to_vec(),
            _ if input.chance(16) => body = vec![8; input.below(LONGEST - 33)],
            _ => {}
        }
        if input.chance(32) {
            self.a.counter = input.near(self.a.counter);
        }
        if input.chance(16) {
            self.a.peer_session ^= 1 << input.below(32);
        }
        let mut datagram = self.a.seal(kind, &body);
        if input.chance(8) {
            datagram.truncate(input.below(datagram.len()));
        }
        self.deliver_of_a(datagram);
    }

    /// A datagram of a handshake of `a`, with the right tag, right but for what the input
    /// makes wrong.
    fn handshake(&mut self, input: &mut Input<'_>) {
        let step = 1 + input.byte() % 3;
        let step = input.near8(step);
        let stamp = input.near(self.a.stamp);
        let session = input.near(u64::from(self.a.session));
        let mut message = vec![3; usize::from(input.byte())];
        if step == RESPONSE || input.chance(64) {
            message = input.near(stamp).to_le_bytes().to_vec();
        }
        let datagram = self.a.tagged(step, stamp, session as u32, &message);
        self.deliver_of_a(datagram);
    }

    /// A datagram that was made without the key.
    fn without_key(&mut self, input: &mut Input<'_>) {
        let sent = match input.byte() {
            0..=99 => &self.c.sent,
            100..=199 => &self.a.sent,
            _ => &Vec::new(),
        };
        let at = input.below(sent.len().max(1));
        let mut datagram = sent.get(at).cloned().unwrap_or_default();
        if datagram.is_empty() {
            datagram = input.bytes(200).to_vec();
        } else {
            let at = input.below(datagram.len());
            datagram[at] ^= 1 << (input.byte() % 8);
        }
        let rejected = self.carrier.report().rejected;
        let socket = self.a.socket.try_clone().expect("a descriptor");
        self.deliver(&socket, &datagram);
        assert_eq!(self.frames, [], "a frame of a process without the key");
        // A datagram without a byte is nothing to reject.
        let counted = u64::from(!datagram.is_empty());
        assert_eq!(self.carrier.report().rejected, rejected + counted);
    }

    /// Datagrams that were sent before arrive again.
    fn replay(&mut self, input: &mut Input<'_>) {
        let sent = match input.chance(128) {
            true => &self.c.sent,
            false => &self.a.sent,
        };
        if !sent.is_empty() {
            let datagram = sent[input.below(sent.len())].clone();
            let socket = self.a.socket.try_clone().expect("a descriptor");
            self.deliver(&socket, &datagram);
            assert_eq!(self.frames, [], "a frame that came before");
        }
    }

    /// `c` exchanges a frame with the carrier; in a new session only if the one that it has
    /// gets too old.
    fn exchange(&mut self) {
        if self.now >= self.begun.after(SESSION_TIME) {
            self.connect_c();
        }
        self.frames.clear();
        let frame = self.c.counter.to_le_bytes();
        let datagram = self.c.seal(FRAME, &frame);
        self.honest(datagram);
        let expected = [(1, frame.to_vec())];
        assert_eq!(self.frames, expected, "a frame of an honest peer");
        let about_c = &self.carrier.report().processes[1];
        assert!(about_c.connected, "an honest peer is connected");
        self.carrier.send(self.now, 1, Channel::Data, &mut |out| {
            out.extend_from_slice(&frame);
            true
        });
        self.carrier.flush(self.now);
        while !self.c.listen().1.contains(&frame.to_vec()) {
            wait(self.c.socket.as_fd());
        }
    }

    fn honest(&mut self, datagram: Vec<u8>) {
        let socket = self.c.socket.try_clone().expect("a descriptor");
        self.deliver(&socket, &datagram);
        self.c.sent.push(datagram);
    }
}

fn input_kind(input: &mut Input<'_>) -> u8 {
    input.byte() % KINDS
}

/// The body of a fragment.
fn fragment(input: &mut Input<'_>) -> Vec<u8> {
    let length = usize::from(input.byte());
    let index = input.byte() % 4;
    let offset = u16::from(index) * length as u16;
    let total = length as u16 * 2;
    let frame = u64::from(input_kind(input));
    let mut body = input.near(frame).to_le_bytes().to_vec();
    body.extend(input.near16(offset).to_le_bytes());
    body.extend(input.near16(total).to_le_bytes());
    body.extend([input.near8(index), input.near8(2), 0, 0]);
    body.extend(std::iter::repeat_n(6, length));
    body
}
