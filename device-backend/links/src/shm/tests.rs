//! Tests of the carrier: several processes in one, and a hostile one.

use std::os::unix::net::UnixListener;

use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;
use rustix::event::{poll, PollFd, PollFlags};
use tempfile::TempDir;

use super::channels::Outbox;
use super::mapping::PairMemory;
use super::ring::MAX_RECORD;
use super::*;
use crate::testing::Processes;

/// Processes that are configured to know each other, and the directory of their sockets.
type World = Processes<ShmCarrier, TempDir>;

impl World {
    fn start_all(count: usize) -> Self {
        let carriers = (0..count).map(|_| None).collect();
        let mut world = Processes::new(carriers, tempfile::tempdir().unwrap());
        (0..count).for_each(|process| world.start(process));
        world
    }

    fn socket(&self, process: usize) -> PathBuf {
        self.context.path().join(format!("p{process}"))
    }

    /// Its peers are the others, in the order of their numbers.
    fn start(&mut self, process: usize) {
        // What a process that was killed leaves.
        let _ = std::fs::remove_file(self.socket(process));
        let listener = UnixListener::bind(self.socket(process)).unwrap();
        let others = (0..self.carriers.len()).filter(|other| *other != process);
        let peer = |other: usize| ShmPeer {
            name: format!("p{other}"),
            socket: self.socket(other),
        };
        let peers: Vec<_> = others.map(peer).collect();
        let carrier = ShmCarrier::new(&format!("p{process}"), listener, &peers).unwrap();
        self.carriers[process] = Some(carrier);
    }
}

#[test]
fn frames_of_all_lengths_reach_their_process_in_order() {
    let mut world = World::start_all(3);
    world.until("all connected", Processes::connected);
    let lengths = [96, MAX_RECORD, 700, 97];
    let sent = world.send_all(300, &[(0, 0, 1), (1, 1, 2), (2, 0, 0)], lengths);
    assert_eq!(world.frames, sent);
    assert_eq!(world.about(0, 0).frames_sent, 300);
    assert_eq!(world.about(1, 0).frames_received, 300);
}

#[test]
fn a_process_that_ends_is_noticed_and_connected_again_when_it_returns() {
    for killed in [0, 1] {
        let mut world = World::start_all(2);
        let other = 1 - killed;
        world.until("joined", Processes::connected);
        world.carriers[killed] = None;
        world.until("missed", |world| !world.about(other, 0).connected);
        world.send(other, 0, b"lost");
        assert_eq!(world.about(other, 0).dropped, 1);
        world.start(killed);
        world.until("joined again", Processes::connected);
        world.send(other, 0, b"taken");
        world.until("a frame", |world| !world.frames[killed].is_empty());
        assert_eq!(world.frames[killed], [b"taken"]);
    }
}

/// A frame beyond what fits is dropped and counted, and those before it are not harmed.
#[test]
fn a_full_ring_drops_frames_and_counts_them() {
    let mut world = World::start_all(2);
    world.until("joined", Processes::connected);
    let count = mapping::CAPACITY / MAX_RECORD + 100;
    for number in 0..count {
        world.send(0, 0, &vec![number as u8; MAX_RECORD]);
    }
    let report = world.about(0, 0);
    assert!(report.dropped > 0);
    assert_eq!(report.frames_sent + report.dropped, count as u64);
    let sent = report.frames_sent as usize;
    world.until("the others", |world| world.frames[1].len() == sent);
    let frames = world.frames[1].iter().enumerate();
    assert!(frames
        .clone()
        .all(|(number, frame)| frame[..] == vec![number as u8; MAX_RECORD]));
}

/// U4: it is read before what was written before it.
#[test]
fn a_small_frame_does_not_wait_behind_bulk() {
    let mut world = World::start_all(2);
    world.until("joined", Processes::connected);
    for _ in 0..50 {
        world.send(0, 0, &[1; MAX_RECORD]);
    }
    world.send_on(Channel::Priority, 0, 0, &[2; 100]);
    world.until("all frames", |world| world.frames[1].len() == 51);
    assert_eq!(world.frames[1][0], [2; 100]);
}

/// Nor does bulk wait for all small frames that ever come.
#[test]
fn small_frames_leave_turns_to_bulk() {
    let mut world = World::start_all(2);
    world.until("joined", Processes::connected);
    world.send(0, 0, &[1; MAX_RECORD]);
    for _ in 0..100 {
        world.send_on(Channel::Priority, 0, 0, &[2; 100]);
    }
    world.until("all frames", |world| world.frames[1].len() == 101);
    let turn = world.frames[1].iter().position(|frame| frame[0] == 1);
    assert_eq!(turn, Some(crate::turns::RUN as usize));
}

/// They take the other ring.
#[test]
fn more_small_frames_than_the_priority_ring_has_room_for_are_not_lost() {
    let mut world = World::start_all(2);
    world.until("joined", Processes::connected);
    let count = 2 * mapping::PRIORITY_CAPACITY / 100;
    for _ in 0..count {
        world.send_on(Channel::Priority, 0, 0, &[2; 100]);
    }
    assert_eq!(world.about(0, 0).dropped, 0);
    world.until("all frames", |world| world.frames[1].len() == count);
}

/// A process that pretends to be "p0" towards a real "p1".
struct Impostor {
    world: World,
    socket: UnixStream,
    notifier: Notifier,
}

impl Impostor {
    fn new() -> Self {
        let mut world = World::start_all(2);
        world.carriers[0] = None;
        let path = world.socket(1);
        let socket = handshake::connect(&path).unwrap();
        let notifier = Notifier::new().unwrap();
        Impostor {
            world,
            socket,
            notifier,
        }
    }

    fn rejected(&mut self, count: u64) {
        self.world
            .until("a rejection", |world| world.report(1).rejected == count);
        assert!(!self.world.about(1, 0).connected);
    }

    /// The response of "p1".
    fn response(&mut self) -> Result<handshake::Hello, String> {
        loop {
            match handshake::receive_hello(&self.socket) {
                Ok(Some(hello)) => return Ok(hello),
                Ok(None) => {
                    let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
                    poll(&mut fds, None).unwrap();
                }
                Err(why) => return Err(why.to_string()),
            }
        }
    }
}

#[test]
fn a_bad_hello_is_refused_with_its_reason_and_counted() {
    use std::io::Write;
    let mut one = Impostor::new();
    one.socket.write_all(&[7; 288]).unwrap();
    one.rejected(1);
    assert!(one.response().unwrap_err().contains("not a qnic hello"));

    let mut one = Impostor::new();
    let mut other = [0; 288];
    other[..8].copy_from_slice(b"qnic-shm");
    other[8] = 99;
    one.socket.write_all(&other).unwrap();
    one.rejected(1);
    let why = one.response().unwrap_err();
    assert!(
        why.contains("version of the shared-memory link is 99"),
        "{why}"
    );

    // A golden peer: the hello of the last version, link version 2, wire version 10.
    let mut one = Impostor::new();
    let mut last = [0; 288];
    last[..8].copy_from_slice(b"qnic-shm");
    (last[8], last[12], last[16]) = (2, 1, 10);
    one.socket.write_all(&last).unwrap();
    one.rejected(1);
    let why = one.response().unwrap_err();
    assert!(why.contains("frame version is 10"), "{why}");

    let ring: OwnedFd = PairMemory::make().unwrap().1;
    let zero = std::fs::File::open("/dev/zero").unwrap().into();
    for (name, memory, reason) in [
        ("p7", &ring, "not configured"),
        ("p0", &zero, "not a memfd"),
    ] {
        let mut one = Impostor::new();
        handshake::send_hello(&one.socket, name, "p1", memory, &one.notifier).unwrap();
        one.rejected(1);
        assert!(one.response().unwrap_err().contains(reason));
    }

    let mut one = Impostor::new();
    drop(one.socket);
    one.socket = UnixStream::pair().unwrap().0;
    one.rejected(1);
}

#[test]
fn a_ring_that_is_broken_ends_the_link_and_nothing_else() {
    break_the_ring_of(Channel::Priority);
    break_the_ring_of(Channel::Data);
}

fn break_the_ring_of(channel: Channel) {
    let mut one = Impostor::new();
    let (_, memfd) = PairMemory::make().unwrap();
    handshake::send_hello(&one.socket, "p0", "p1", &memfd, &one.notifier).unwrap();
    one.world.until("joined", Processes::connected);
    let hello = one.response().unwrap();
    let ring = |channel| hello.memory.ring(channel);
    let mut outbox = Outbox::new(ring(Channel::Priority), ring(Channel::Data));
    assert_eq!(outbox.push(Channel::Data, b"good"), Ok(true));
    if outbox.flush() {
        hello.notifier.signal();
    }
    one.world
        .until("a frame", |world| world.frames[1] == [b"good"]);
    // The writer's index.
    ring(channel).store_u64(0, u64::MAX, Ordering::Relaxed);
    hello.notifier.signal();
    one.world
        .until("lost", |world| !world.about(1, 0).connected);
    assert_eq!(one.world.about(1, 0).malformed, 1);
    // The real one comes, and is joined.
    one.world.start(0);
    one.world.until("joined", Processes::connected);
}
