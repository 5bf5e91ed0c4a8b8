//! The shared-memory ring, and the handshake before it.
//!
//! ```text
//!   "a": hostile, same user ──socket, four rings─┐
//!                                                ├── "b": the carrier ──► frames
//!   "c": an honest carrier ──────────────────────┘
//! ```
//! After any input: frames are as long as frames are, and one call brings a bounded number
//! of them; frames of `a` come as from `a`; frames of `c` get through both ways; and a new
//! connection of `a` that keeps the rules does, too.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering;

use qnic_abi::wire::WIRE_VERSION;
use qnic_links::codec::MAX_FRAME;
use qnic_links::memfd::sealed_memfd;
use qnic_links::notifier::Notifier;
use qnic_links::{Carrier, ShmCarrier, ShmPeer};
use qnic_nic::{Channel, Time};
use rustix::fs::SealFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use crate::input::Input;

/// Most steps of one input.
const STEPS: usize = 64;

/// Layout of a ring's memory, and of the data ring's.
const TAIL: usize = 0;
const HEAD: usize = 128;
const ASLEEP: usize = 256;
const RECORDS: usize = 4096;
const CAPACITY: usize = 8 << 20;

/// Where the priority ring begins, behind the data ring; and how much both take.
const PRIORITY: usize = RECORDS + CAPACITY;
const PRIORITY_CAPACITY: usize = 512 << 10;
const RING: usize = PRIORITY + RECORDS + PRIORITY_CAPACITY;

/// Bytes of a Hello.
const HELLO: usize = 288;

/// Time between two calls of a carrier: it looks at its sockets each time.
const STEP: u64 = 10_000_000;

/// Most frames of one peer in one call.
const FRAMES_PER_CALL: usize = 128;

/// Calls until honest processes are connected and a frame is there, at most.
const CALLS: usize = 1000;

/// The hostile end of a connection.
#[derive(Default)]
struct Hostile {
    socket: Option<UnixStream>,
    /// The rings from which `b` reads, and those to which it writes.
    inbox: Option<MmapRegion>,
    outbox: Option<MmapRegion>,
    /// What it has written, in bytes, to the data ring and to the priority ring.
    tails: [u64; 2],
}

/// Where the two rings begin, and the bytes of their records.
const RINGS: [(usize, u64); 2] = [(0, CAPACITY as u64), (PRIORITY, PRIORITY_CAPACITY as u64)];

struct World {
    _directory: tempfile::TempDir,
    path: std::path::PathBuf,
    b: ShmCarrier,
    c: ShmCarrier,
    now: Time,
    a: Hostile,
    eventfd: Notifier,
    /// Process and frame, of the last call.
    frames: Vec<(usize, Vec<u8>)>,
    at_c: Vec<Vec<u8>>,
}

/// Runs one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new();
    world.exchange(1);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.exchange(2);
    world.keep_the_rules();
    world.exchange(3);
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let carrier = |own: &str, peers: &[&str]| {
            let listener = UnixListener::bind(path(own)).expect("a socket");
            let peer = |name: &&str| ShmPeer {
                name: (*name).to_owned(),
                socket: path(name),
            };
            let peers: Vec<_> = peers.iter().map(peer).collect();
            ShmCarrier::new(own, listener, &peers).expect("a carrier")
        };
        World {
            path: path("b"),
            b: carrier("b", &["a", "c"]),
            c: carrier("c", &["b"]),
            now: Time(0),
            a: Hostile::default(),
            eventfd: Notifier::new().expect("an eventfd"),
            frames: Vec::new(),
            at_c: Vec::new(),
            _directory: directory,
        }
    }

    /// Both carriers have a turn.
    fn turn(&mut self) {
        self.now = self.now.after(STEP);
        let frames = &mut self.frames;
        frames.clear();
        self.b.receive(self.now, &mut |process, frame| {
            assert!((1..=MAX_FRAME).contains(&frame.len()), "{}", frame.len());
            frames.push((process, frame.to_vec()));
        });
        assert!(frames.len() <= 2 * FRAMES_PER_CALL, "too many frames");
        self.b.flush(self.now);
        self.at_c.clear();
        let at_c = &mut self.at_c;
        self.c
            .receive(self.now, &mut |_, frame| at_c.push(frame.to_vec()));
        self.c.flush(self.now);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            0..=31 => self.connect(input),
            32..=95 => self.record(input),
            96..=143 => self.overwrite(input),
            144..=207 => self.turn(),
            208..=223 => {
                let length = input.below(MAX_FRAME) + 1;
                self.b.send(self.now, 0, Channel::of(length), &mut |out| {
                    out.extend(std::iter::repeat_n(9, length));
                    true
                });
            }
            224..=231 => drop(self.b.prepare_sleep()),
            232..=239 => self.now = self.now.after(1 << input.below(34)),
            240..=247 => drop(self.a.socket.take()),
            _ => {
                if let Some(socket) = &mut self.a.socket {
                    let _ = socket.write(input.bytes(HELLO));
                }
            }
        }
    }

    /// Connects with a Hello that is right but for what the input makes wrong.
    fn connect(&mut self, input: &mut Input<'_>) {
        let mut hello = hello();
        if input.chance(64) {
            let at = input.below(HELLO);
            hello[at] = input.byte();
        }
        let size = if input.chance(16) { RING / 2 } else { RING };
        let seals = match input.byte() {
            0..=239 => SealFlags::SHRINK | SealFlags::GROW,
            _ => SealFlags::empty(),
        };
        let memfd = sealed_memfd("fuzz", size as u64, seals).expect("a memfd");
        let eventfd = self.eventfd.try_clone().expect("a descriptor");
        let null = File::open("/dev/null").expect("a descriptor");
        let all = [memfd.as_fd(), eventfd.as_fd(), null.as_fd()];
        let descriptors: &[BorrowedFd<'_>] = match input.byte() {
            0..=223 => &all[..2],
            224..=231 => &all[..1],
            232..=239 => &[all[0], all[2]],
            240..=247 => &[all[2], all[1]],
            _ => &all[..0],
        };
        let length = if input.chance(16) {
            input.below(HELLO)
        } else {
            HELLO
        };
        self.send_hello(&hello[..length], descriptors, &memfd, size);
    }

    fn send_hello(
        &mut self,
        hello: &[u8],
        descriptors: &[BorrowedFd<'_>],
        memfd: &File,
        size: usize,
    ) {
        self.a = Hostile::default();
        let Ok(socket) = UnixStream::connect(&self.path) else {
            return;
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = rustix::net::sendmsg(&socket, &[IoSlice::new(hello)], &mut control, flags);
        let outbox = memfd.try_clone().expect("a descriptor");
        self.a.outbox = MmapRegion::from_file(FileOffset::new(outbox, 0), size).ok();
        self.turn();
        self.a.inbox = receive_ring(&socket);
        self.a.socket = Some(socket);
    }

    /// A record in a ring to `b`, its length and the index behind it nearly right.
    fn record(&mut self, input: &mut Input<'_>) {
        let (ring, length) = match input.byte() {
            0..=63 => (0, usize::from(input.byte()) + 1),
            64..=127 => (1, usize::from(input.byte()) + 1),
            _ => (0, input.below(MAX_FRAME) + 1),
        };
        let stored = input.near(length as u64);
        self.a.write(ring, stored, &vec![3; length]);
        let tail = input.near(self.a.tails[ring]);
        store(self.a.inbox.as_ref(), RINGS[ring].0 + TAIL, tail);
    }

    /// Any word of either ring, mostly one that means something.
    fn overwrite(&mut self, input: &mut Input<'_>) {
        let ring = match input.chance(128) {
            true => &self.a.outbox,
            false => &self.a.inbox,
        };
        let offset = match input.byte() {
            0..=39 => TAIL,
            40..=79 => PRIORITY + TAIL,
            80..=119 => HEAD,
            120..=159 => PRIORITY + HEAD,
            160..=175 => ASLEEP,
            176..=191 => PRIORITY + ASLEEP,
            192..=223 => RECORDS + usize::from(input.byte()) * 8,
            _ => input.below(RING / 8) * 8,
        };
        let word = input.near(self.a.tails[0]);
        store(ring.as_ref(), offset, word);
    }

    /// A frame from `b` to `c` and one back.
    fn exchange(&mut self, byte: u8) {
        let frame = vec![byte; 3000];
        let (mut there, mut back) = (false, false);
        let mut sent = false;
        for _ in 0..CALLS {
            let connected =
                self.b.report().processes[1].connected && self.c.report().processes[0].connected;
            if connected && !sent {
                sent = true;
                let fill = &mut |out: &mut Vec<u8>| {
                    out.extend_from_slice(&frame);
                    true
                };
                self.b.send(self.now, 1, Channel::Data, fill);
                self.c.send(self.now, 0, Channel::Priority, fill);
            }
            self.turn();
            there |= self.at_c.contains(&frame);
            back |= self.frames.contains(&(1, frame.clone()));
            if there && back {
                return;
            }
        }
        panic!("frames of honest processes do not arrive: {there} {back}");
    }

    /// A connection that keeps the rules is served.
    fn keep_the_rules(&mut self) {
        let seals = SealFlags::SHRINK | SealFlags::GROW;
        let memfd = sealed_memfd("fuzz", RING as u64, seals).expect("a memfd");
        let eventfd = self.eventfd.try_clone().expect("a descriptor");
        let descriptors = [memfd.as_fd(), eventfd.as_fd()];
        self.turn();
        self.send_hello(&hello(), &descriptors, &memfd, RING);
        assert!(self.b.report().processes[0].connected, "a is connected");
        for (ring, (start, _)) in RINGS.into_iter().enumerate() {
            self.a.write(ring, 5, &[ring as u8, 2, 3, 4, 5]);
            store(self.a.inbox.as_ref(), start + TAIL, self.a.tails[ring]);
        }
        self.turn();
        for ring in [0, 1] {
            let frame = (0, vec![ring, 2, 3, 4, 5]);
            assert!(self.frames.contains(&frame), "its frames");
        }
    }
}

impl Hostile {
    /// A record, without the index behind it.
    fn write(&mut self, ring: usize, length: u64, bytes: &[u8]) {
        let (start, capacity) = RINGS[ring];
        let tail = &mut self.tails[ring];
        let at = |index: u64| start + RECORDS + (index % capacity) as usize;
        store(self.inbox.as_ref(), at(*tail), length);
        *tail += 8;
        for word in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            let word = u64::from_le_bytes(whole);
            store(self.inbox.as_ref(), at(*tail), word);
            *tail += 8;
        }
    }
}

fn store(ring: Option<&MmapRegion>, offset: usize, word: u64) {
    if let Some(ring) = ring {
        // Beyond the end of a ring that is too short there is nothing to store to.
        let _ = ring
            .as_volatile_slice()
            .store(word, offset, Ordering::Release);
    }
}

/// A Hello as the handshake says.
fn hello() -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(b"qnic-shm");
    hello[8..12].copy_from_slice(&2u32.to_le_bytes());
    hello[12..16].copy_from_slice(&1u32.to_le_bytes());
    hello[16..20].copy_from_slice(&u32::from(WIRE_VERSION).to_le_bytes());
    hello[24..32].copy_from_slice(&(RING as u64).to_le_bytes());
    hello[32] = b'a';
    hello[96] = b'b';
    hello
}

/// The ring that comes with the answer to a Hello.
fn receive_ring(socket: &UnixStream) -> Option<MmapRegion> {
    let mut bytes = [0; HELLO];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(&mut bytes)];
    rustix::net::recvmsg(socket, &mut parts, &mut control, flags).ok()?;
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    });
    let memory = File::from(descriptors.next()?);
    MmapRegion::from_file(FileOffset::new(memory, 0), RING).ok()
}
