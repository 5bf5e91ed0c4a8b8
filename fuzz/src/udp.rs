//! UDP datagrams, before and after the handshake.
//!
//! ```text
//!   "a": a peer without the key,    ──┐
//!        or one with it that lies     ├──► "b": the carrier ──► frames
//!   "c": an honest peer ──────────────┘
//! ```
//! Both peers are sockets of the target, which makes the datagrams by itself. It waits for
//! a datagram to arrive on the loopback interface, and not for a time.
//!
//! After any input: without the key nothing brings a frame; no datagram brings a frame
//! twice; frames are no longer than frames are; `c` is connected, and its frames get
//! through both ways.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use qnic_links::codec::MAX_FRAME;
use qnic_links::{Carrier, ClusterKey, UdpCarrier, UdpPeer};
use qnic_nic::Time;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::input::Input;

/// Most steps of one input.
const STEPS: usize = 64;

/// The secret of the cluster.
const SECRET: [u8; 32] = [7; 32];

/// Bytes before the body of a datagram, and behind it.
const HEADER: usize = 48;
const TAG: usize = 32;

/// Longest datagram that an input makes.
const LONGEST: usize = 9000;

/// Kinds of datagrams.
const HELLO: u8 = 1;
const FRAME: u8 = 3;
const KINDS: u8 = 6;

/// How long a datagram may need on the loopback interface: far longer than it ever does.
const LOOPBACK: Duration = Duration::from_secs(60);

/// Datagrams until an honest peer is connected, at most.
const HANDSHAKE: usize = 16;

/// A peer of the carrier.
struct Peer {
    number: u64,
    socket: UdpSocket,
    session: u64,
    /// Session of the carrier, as far as known.
    known: u64,
    counter: u64,
    /// What it has sent, sealed.
    sent: Vec<Vec<u8>>,
}

struct World {
    carrier: UdpCarrier,
    address: SocketAddr,
    now: Time,
    a: Peer,
    c: Peer,
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

/// Name of a process in datagrams.
fn number(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    let first = hash.as_bytes().first_chunk().copied();
    u64::from_le_bytes(first.unwrap_or_default())
}

fn tag(bytes: &[u8]) -> [u8; TAG] {
    let key = blake3::derive_key("qnic udp link 1", &SECRET);
    *blake3::keyed_hash(&key, bytes).as_bytes()
}

impl Peer {
    fn new(name: &str) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = UdpSocket::bind(any).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        Peer {
            number: number(name),
            socket,
            session: 5000,
            known: 0,
            counter: 0,
            sent: Vec::new(),
        }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("a bound socket")
    }

    /// A datagram as the format says, without its tag.
    fn datagram(&mut self, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![b'q', b'u', 1, kind, 0, 0, 0, 0];
        let words = [
            self.number,
            number("b"),
            self.session,
            self.known,
            self.counter,
        ];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend_from_slice(body);
        self.counter = self.counter.wrapping_add(1);
        bytes
    }

    /// Learns the carrier's session from what has arrived; returns the bodies of frames.
    fn listen(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut bytes = [0; 1 << 16];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            let datagram = &bytes[..length];
            assert!(length >= HEADER + TAG, "a datagram that is too short");
            let (signed, sealed) = datagram.split_at(length - TAG);
            assert_eq!(sealed, tag(signed), "the tag of the carrier");
            let session = signed[24..32].first_chunk().copied();
            self.known = u64::from_le_bytes(session.unwrap_or_default());
            if signed[3] == FRAME {
                frames.push(signed[HEADER..].to_vec());
            }
        }
        frames
    }
}

impl World {
    fn new() -> Self {
        let (a, c) = (Peer::new("a"), Peer::new("c"));
        let key = ClusterKey::new(&SECRET).expect("a long secret");
        let peers = [("a", &a), ("c", &c)].map(|(name, peer)| UdpPeer {
            name: name.to_owned(),
            address: peer.address(),
        });
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let carrier = UdpCarrier::new("b", any, key, &peers).expect("a socket");
        World {
            address: carrier.address().expect("a bound socket"),
            carrier,
            now: Time(0),
            a,
            c,
            frames: Vec::new(),
        }
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
            0..=159 => self.with_key(input),
            160..=191 => self.without_key(input),
            192..=207 => self.replay(input),
            208..=223 => {
                let length = input.below(MAX_FRAME) + 1;
                let process = usize::from(input.byte() % 3);
                self.carrier.send(self.now, process, &mut |out| {
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

    /// A datagram of `a` that is sealed with the key, right but for what the input makes
    /// wrong. It says that it is from `a`: that others with the key can say otherwise is a
    /// known weakness of one key for all.
    fn with_key(&mut self, input: &mut Input<'_>) {
        let kind = 1 + input_kind(input);
        let kind = input.near8(kind);
        let fill = usize::from(input.short()) % 256;
        let mut body = vec![7; fill];
        match kind {
            4 => body = fragment(input),
            1 | 2 | 6 => body = input.near(self.a.known).to_le_bytes().to_vec(),
            _ if input.chance(16) => body = vec![8; input.below(LONGEST - HEADER - TAG)],
            _ => {}
        }
        if input.chance(16) {
            self.a.session = input.near(self.a.session + 1);
            self.a.counter = input.near(0);
        }
        let mut datagram = self.a.datagram(kind, &body);
        if input.chance(32) {
            let known = input.near(self.a.known).to_le_bytes();
            datagram[32..40].copy_from_slice(&known);
            let counter = input.near(self.a.counter).to_le_bytes();
            datagram[40..48].copy_from_slice(&counter);
        }
        if input.chance(8) {
            datagram.truncate(input.below(datagram.len()));
            let from_a = self.a.number.to_le_bytes();
            if datagram.get(8..16).is_some_and(|source| source != from_a) {
                return;
            }
        }
        datagram.extend(tag(&datagram));
        self.a.sent.push(datagram.clone());
        let socket = self.a.socket.try_clone().expect("a descriptor");
        self.deliver(&socket, &datagram);
        assert!(self.frames.iter().all(|frame| frame.0 == 0), "from another");
        assert!(
            self.frames.len() <= 1,
            "a datagram brings one frame at most"
        );
    }

    /// A datagram that was made without the key.
    fn without_key(&mut self, input: &mut Input<'_>) {
        let mut datagram = match input.byte() {
            0..=99 => self.c.sent.first().cloned().unwrap_or_default(),
            100..=199 => self.a.datagram(1 + input_kind(input), &[7; 40]),
            _ => Vec::new(),
        };
        if datagram.is_empty() {
            datagram = input.bytes(200).to_vec();
        } else {
            let at = input.below(datagram.len());
            datagram[at] ^= 1 << (input.byte() % 8);
        }
        let rejected = self.carrier.report().rejected;
        let socket = self.a.socket.try_clone().expect("a descriptor");
        self.deliver(&socket, &datagram);
        assert_eq!(self.frames, [], "a frame of somebody without the key");
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

    /// `c` connects if it is not connected, and exchanges a frame with the carrier.
    fn exchange(&mut self) {
        self.receive();
        let connected = |world: &World| world.carrier.report().processes[1].connected;
        for _ in 0..HANDSHAKE {
            self.c.listen();
            if connected(self) && self.c.known != 0 {
                break;
            }
            self.honest(HELLO, &0u64.to_le_bytes());
        }
        assert!(connected(self), "an honest peer is connected");
        self.frames.clear();
        let frame = self.c.counter.to_le_bytes();
        self.honest(FRAME, &frame);
        assert_eq!(
            self.frames,
            [(1, frame.to_vec())],
            "a frame of an honest peer"
        );
        self.carrier.send(self.now, 1, &mut |out| {
            out.extend_from_slice(&frame);
            true
        });
        self.carrier.flush(self.now);
        while !self.c.listen().contains(&frame.to_vec()) {
            wait(self.c.socket.as_fd());
        }
    }

    fn honest(&mut self, kind: u8, body: &[u8]) {
        let mut datagram = self.c.datagram(kind, body);
        datagram.extend(tag(&datagram));
        self.c.sent.push(datagram.clone());
        let socket = self.c.socket.try_clone().expect("a descriptor");
        self.deliver(&socket, &datagram);
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
