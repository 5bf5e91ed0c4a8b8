//! vhost-user messages, and what stands in virtqueues: a hostile front end and a hostile guest
//! behind it, against a whole device in this process.
//!
//! ```text
//!   messages, descriptors ──► NIC 0: connection thread, front end, rings ──┐
//!                                                                          ├── engine
//!   an honest front end ────► NIC 1 ───────────────────────────────────────┘
//! ```
//! An input is a list of steps: messages that are right but for what it makes wrong, whole
//! starts, pauses and resets, bytes that are no messages, chains of descriptors, answers on the
//! channel for SHMEM_MAP. A connection that the device ends is followed by the next one. The
//! threads of the device run as they like, so what an input reaches may differ from run to run;
//! what holds may not.
//!
//! After any input: the device ends the connection when its front end does; the honest front end
//! is served as before; NIC 0 serves a new honest one, on which nothing is left of the old; and
//! the two exchange data.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use qnic_abi::{NodeId, Status};
use qnic_device::{ByteSize, Config, Device, NicSettings};
use qnic_links::memfd::sealed_memfd;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::SealFlags;
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::front_end::{until, Guest, RAM_BYTES, TIMEOUT};
use crate::input::Input;

mod message;
mod rings;

use message::request;

/// Most steps of one input.
const STEPS: usize = 64;

/// The attacked NIC, and the honest one.
const HOSTILE: usize = 0;
const HONEST: usize = 1;

/// Where the hostile front end claims to have its RAM.
const USER_BASE: u64 = 0x7f00_0000_0000;

/// Runs one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(data: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory for sockets");
    let sockets = [HOSTILE, HONEST].map(|node| directory.path().join(format!("{node}.sock")));
    let nic = |node: usize| {
        let (name, ram) = (format!("n{node}"), ByteSize(RAM_BYTES));
        NicSettings::new(name, NodeId(node as u16), sockets[node].clone(), ram)
    };
    let config = Config::new([HOSTILE, HONEST].map(nic).into());
    let device = Device::start(&config).expect("a device");
    let mut honest = connect(&sockets[HONEST]);
    honest.register(20);
    let mut input = Input::new(data);
    while !input.is_empty() {
        let mut front_end = FrontEnd::connect(&sockets[HOSTILE]);
        for _ in 0..STEPS {
            if input.is_empty() || !front_end.step(&mut input) {
                break;
            }
        }
        front_end.end();
        assert_eq!(honest.counters()["processes"], 1);
    }
    let mut fresh = connect(&sockets[HOSTILE]);
    assert_eq!(fresh.counters()["processes"], 0);
    fresh.register(10);
    exchange(&mut fresh, &honest);
    drop((fresh, honest));
    device.stop().expect("an engine that lives");
}

/// A front end that behaves, and has started its device.
fn connect(socket: &Path) -> Guest {
    let mut guest = Guest::connect(socket, None);
    guest.start();
    assert_eq!(guest.hello(), Status::Ok);
    guest
}

/// The one writes to the other, and every byte arrives.
fn exchange(from: &mut Guest, to: &Guest) {
    let (status, _) = from.import(HONEST as u16, 20);
    assert_eq!(status, Status::Ok);
    let bytes: Vec<u8> = (0..9000u32).map(|n| (n % 251) as u8).collect();
    from.fill(&bytes);
    from.issue(0, &from.write_command(HONEST as u16, 20, 77, 9000));
    until("the completion", || from.writes_done() == 1);
    assert_eq!(to.data(77, 9000), bytes);
}

/// The hostile front end: one connection.
struct FrontEnd {
    stream: UnixStream,
    /// Its RAM, in a memfd that may be shared.
    ram: File,
    /// What it gives as kick, call and error eventfds.
    event: OwnedFd,
    /// Its end of the channel for SHMEM_MAP.
    channel: Option<UnixStream>,
    /// How many requests it has put on the control queue, and buffers on the event queue.
    available: [u16; 2],
}

impl FrontEnd {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the device listens");
        stream.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        FrontEnd {
            stream,
            ram: sealed_memfd("hostile", RAM_BYTES, SealFlags::SHRINK).expect("a memfd"),
            event: eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"),
            channel: None,
            available: [0; 2],
        }
    }

    /// Does what the input says. Returns false if the connection is over.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        let goes_on = match input.byte() {
            0..=99 => self.any_message(input),
            100..=139 => self.start(input),
            140..=159 => self.stop(input),
            160..=209 => {
                self.rings(input);
                true
            }
            210..=229 => self.answer(input),
            230..=239 => self.send_bytes(input.bytes(64), &[]),
            240..=247 => false,
            _ => self.kick(),
        };
        self.drain();
        goes_on
    }

    /// Ends the connection: the device sees that, and lets go of it.
    fn end(mut self) {
        let _gone = self.stream.shutdown(std::net::Shutdown::Write);
        self.channel = None;
        self.stream.set_nonblocking(false).expect("a socket");
        let mut rest = [0; 4096];
        loop {
            match self.stream.read(&mut rest) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
                // libFuzzer's alarm clock.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("the device does not end the connection: {error}"),
            }
        }
    }

    fn send_bytes(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let parts = [IoSlice::new(bytes)];
        let sent = sendmsg(&self.stream, &parts, &mut control, SendFlags::NOSIGNAL);
        sent.is_ok()
    }

    /// Takes what the device has answered so far, so that it never waits for room.
    fn drain(&mut self) {
        self.stream.set_nonblocking(true).expect("a socket");
        let mut answers = [0; 4096];
        while matches!(self.stream.read(&mut answers), Ok(1..)) {}
        self.stream.set_nonblocking(false).expect("a socket");
    }

    /// Rings all queues that have got the eventfd.
    fn kick(&self) -> bool {
        rustix::io::write(&self.event, &1u64.to_ne_bytes()).is_ok()
    }

    /// Opens the channel for SHMEM_MAP, or another one.
    fn open_channel(&mut self, flags: u32) -> bool {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket");
        self.channel = Some(ours);
        let bytes = message::encode(request::SET_BACKEND_REQ_FD, flags, &[]);
        self.send_bytes(&bytes, &[theirs.as_fd()])
    }

    /// Takes requests of the device from the channel, and answers them with what the input
    /// brings: right mostly.
    fn answer(&mut self, input: &mut Input<'_>) -> bool {
        let Some(channel) = &mut self.channel else {
            return true;
        };
        let mut asked = [0; 4096];
        let _nothing = channel.read(&mut asked);
        let code = u32::from_ne_bytes([asked[0], asked[1], asked[2], asked[3]]);
        let status = input.near(0).to_ne_bytes();
        let mut answer = message::encode(input.near32(code), input.near32(5), &status);
        answer.truncate(input.near(answer.len() as u64).min(64) as usize);
        let _gone = channel.write(&answer);
        true
    }
}
