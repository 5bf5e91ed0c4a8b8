//! Tagged messages between processes (Q3, Q4, Q11 to Q13, U9).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use qnic::message::{
    set_incarnation, wait_all, wait_any, Completion, Contents, Destination, MessageEndpoint,
    Pattern, Request, Source, Tag,
};
use qnic::{
    Access, Buffer, Endpoint, Error, Nic, NodeId, Part, Port, Segment, SegmentName, Status,
};

use crate::cluster::{pattern, status, Cluster, SOON};

/// Long enough to see that nothing ends.
const SHORT: Option<Duration> = Some(Duration::from_millis(50));

pub(crate) const LIMIT: Option<Duration> = Some(SOON);
const NAME: SegmentName = SegmentName(7);

/// A process with memory for messages.
pub(crate) struct Party {
    pub(crate) memory: Segment,
    pub(crate) buffer: Buffer,
    pub(crate) endpoint: Endpoint,
}

impl Party {
    pub(crate) fn new(nic: &Nic, port: u16, length: usize) -> Self {
        let endpoint = nic.register(Port(port)).unwrap();
        let buffer = endpoint.allocate(length).unwrap();
        Party {
            memory: endpoint.export(NAME, &buffer, Access::READ).unwrap(),
            buffer,
            endpoint,
        }
    }

    pub(crate) fn with_tag(&self, tag: u64) -> Destination {
        Destination::tagged(self.endpoint.node(), self.endpoint.port(), Tag(tag))
    }

    pub(crate) fn source(&self) -> Source {
        Source::Process(self.endpoint.node(), self.endpoint.port())
    }

    /// Sends, and waits until the message has arrived.
    pub(crate) fn send<'s>(
        &self,
        to: &'s Destination,
        bytes: impl Into<Contents<'s>>,
    ) -> Completion {
        let send = self.endpoint.send(to, bytes).timeout(LIMIT);
        send.wait().unwrap()
    }

    pub(crate) fn receive(&self, pattern: &Pattern, into: Part<'_>) -> Completion {
        let receive = self.endpoint.receive(pattern, into).timeout(LIMIT);
        receive.wait().unwrap()
    }

    fn post(&self, pattern: &Pattern, offset: usize, length: usize) -> Request<'_> {
        let part = self.memory.part(offset, length);
        self.endpoint.receive(pattern, part).post().unwrap()
    }
}

pub(crate) fn pair(length: usize) -> (Cluster, Party, Party) {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| Party::new(&cluster.nic(node), 1, length));
    (cluster, a, b)
}

/// Longer than what is staged of one sender: such a message waits for its receive.
pub(crate) const NOT_STAGED: usize = 5 << 20;

pub(crate) const ANY: Pattern = Pattern::any_tag(Source::Any);

/// Short, long and empty ones, to another node, on the own one and to itself; before and behind
/// their receives; misaligned (Q13).
#[test]
fn messages_arrive_whole() {
    const ROOM: usize = 1 << 20;
    let cluster = Cluster::new(2);
    let nics = [0, 1].map(|node| cluster.nic(node));
    let [a, b, c] =
        [(0, 1), (1, 1), (0, 2)].map(|(node, port)| Party::new(&nics[node], port, ROOM));
    let lengths = [0, 1, 96, 97, 4096, 4097, 65_536, 300_001];
    for (round, to) in [&b, &c, &a].into_iter().enumerate() {
        for (seed, length) in lengths.into_iter().enumerate() {
            let bytes = pattern(seed + 100 * round, length);
            a.buffer.write(3, &bytes).unwrap();
            let part = || a.memory.part(3, length);
            let destination = to.with_tag(seed as u64).immediate(77);
            let from = Pattern::tagged(a.source(), Tag(seed as u64));
            for expected in [true, false] {
                let offset = 500_000 + 13;
                let (mut send, mut receive) = match expected {
                    true => {
                        let receive = to.post(&from, offset, length);
                        (
                            a.endpoint.send(&destination, part()).post().unwrap(),
                            receive,
                        )
                    }
                    false => {
                        let send = a.endpoint.send(&destination, part()).post().unwrap();
                        (send, to.post(&from, offset, length))
                    }
                };
                let completion = receive.wait(LIMIT).unwrap();
                let sent = send.wait(LIMIT).unwrap();
                assert_eq!(
                    (sent.node, sent.length),
                    (to.endpoint.node(), length as u64)
                );
                assert_eq!((completion.node, completion.port), (NodeId(0), Port(1)));
                assert_eq!(completion.tag, Tag(seed as u64));
                assert_eq!(
                    (completion.length, completion.immediate),
                    (length as u64, 77)
                );
                assert!(!completion.truncated);
                assert!(to.buffer.read_vec(offset, length).unwrap() == bytes);
            }
        }
    }
}

#[test]
fn spaces_endpoints_and_tags_are_told_apart() {
    let (_cluster, a, b) = pair(4096);
    let third = MessageEndpoint::new(3).unwrap();
    let masked = Pattern::ignoring(Source::Any, Tag(0x100), 0xff);
    let patterns = [
        Pattern::untagged(Source::Any),
        ANY.at(third),
        Pattern::tagged(Source::Any, Tag(9)),
        masked,
    ];
    let mut receives: Vec<_> = (0..)
        .zip(&patterns)
        .map(|(index, pattern)| b.post(pattern, index * 8, 8))
        .collect();
    let (node, port) = (b.endpoint.node(), b.endpoint.port());
    let untagged = Destination::untagged(node, port).immediate(0);
    let order = [
        (b.with_tag(0x1ab).immediate(3), 3),
        (b.with_tag(9).at(third).immediate(1), 1),
        (untagged, 0),
        (b.with_tag(9).immediate(2), 2),
    ];
    for (destination, index) in order {
        a.send(&destination, b"x");
        let completion = receives[index].wait(LIMIT).unwrap();
        assert_eq!(completion.immediate, index as u64);
    }
}

#[test]
fn a_message_that_does_not_fit_is_truncated() {
    let (_cluster, a, b) = pair(1 << 16);
    a.buffer.write(0, &pattern(1, 50_000)).unwrap();
    for length in [100, 50_000] {
        let mut receive = b.post(&ANY, 0, 60);
        // The probe behind it has ended, so it has been read.
        assert_eq!(b.endpoint.probe(&ANY).test().unwrap(), None);
        let part = a.memory.part(0, length);
        let sent = a.send(&b.with_tag(1), part);
        let received = receive.wait(LIMIT).unwrap();
        assert_eq!((received.length, received.truncated), (length as u64, true));
        assert_eq!(sent.truncated, length > 4096);
        assert_eq!(b.buffer.read_vec(0, 64).unwrap(), {
            let mut expected = pattern(1, 60);
            expected.extend([0; 4]);
            expected
        });
    }
}

#[test]
fn a_receive_can_be_cancelled_dropped_and_limited() {
    let (_cluster, a, b) = pair(4096);
    let mut cancelled = b.post(&ANY, 0, 8);
    let mut kept = b.post(&ANY, 8, 8);
    cancelled.cancel().unwrap();
    assert_eq!(status(cancelled.wait(LIMIT)), Status::Cancelled);
    drop(b.post(&Pattern::tagged(Source::Any, Tag(2)), 16, 8));
    let none = b
        .endpoint
        .receive(&Pattern::tagged(Source::Any, Tag(2)), b.memory.part(16, 8))
        .timeout(Duration::ZERO)
        .wait();
    assert_error!(none, Error::TimedOut);
    a.send(&b.with_tag(2), b"kept");
    assert_eq!(kept.wait(LIMIT).unwrap().tag, Tag(2));
    kept.cancel().unwrap();
    assert_eq!(kept.wait(LIMIT).unwrap().length, 4);
    assert_eq!(b.buffer.read_vec(8, 12).unwrap(), b"kept\0\0\0\0\0\0\0\0");
}

/// Two processes send each other more long messages than a NIC runs operations before either
/// posts a receive.
#[test]
fn sends_before_receives_do_not_block() {
    const COUNT: usize = 200;
    const LENGTH: usize = 10_000;
    let (_cluster, a, b) = pair(2 * LENGTH);
    let both = [&a, &b];
    crate::cluster::in_threads(&both, |me, party| {
        let other = both[1 - me as usize];
        let bytes = pattern(me as usize, LENGTH);
        party.buffer.write(0, &bytes).unwrap();
        let part = || party.memory.part(0, LENGTH);
        let mut sends: Vec<_> = (0..COUNT)
            .map(|number| {
                let to = other.with_tag(1).immediate(number as u64);
                party.endpoint.send(&to, part()).post().unwrap()
            })
            .collect();
        for number in 0..COUNT {
            let into = party.memory.part(LENGTH, LENGTH);
            let received = party.receive(&ANY, into);
            assert_eq!(received.immediate, number as u64);
            let expected = pattern(1 - me as usize, LENGTH);
            assert!(party.buffer.read_vec(LENGTH, LENGTH).unwrap() == expected);
        }
        wait_all(&mut sends, LIMIT).unwrap();
    });
}

/// A receiver takes the last of a thousand long messages first, as MPI lets it (Q4).
#[test]
fn long_messages_are_received_in_any_order() {
    const COUNT: usize = 1000;
    const LENGTH: usize = 10_000;
    let (_cluster, a, b) = pair(LENGTH + COUNT);
    let bytes = pattern(5, LENGTH + COUNT);
    a.buffer.write(0, &bytes).unwrap();
    let both = [&a, &b];
    crate::cluster::in_threads(&both, |me, party| {
        if me == 0 {
            let send = |number: usize| {
                let part = party.memory.part(number, LENGTH);
                let to = b.with_tag(number as u64);
                party.endpoint.send(&to, part).post().unwrap()
            };
            let mut sends: Vec<_> = (0..COUNT).map(send).collect();
            wait_all(&mut sends, LIMIT).unwrap();
            return;
        }
        for number in (0..COUNT).rev() {
            let from = Pattern::tagged(a.source(), Tag(number as u64));
            let into = party.memory.part(0, LENGTH);
            party.receive(&from, into);
            let received = party.buffer.read_vec(0, LENGTH).unwrap();
            assert!(received == bytes[number..number + LENGTH], "{number}");
        }
    });
}

/// Receives stay posted in any number up to the NIC's limit; one beyond it waits, or has not begun (Q12).
#[test]
fn ten_thousand_receives_are_posted_at_once() {
    const COUNT: usize = 10_000;
    let (_cluster, a, b) = pair(8 * COUNT);
    let receive = |index: usize| {
        let pattern = Pattern::tagged(Source::Any, Tag(index as u64));
        b.post(&pattern, 8 * index, 8)
    };
    let mut receives: Vec<_> = (0..COUNT).map(receive).collect();
    // Each message finds its receive wherever that stands.
    let send = |index: usize| {
        let bytes = (index as u64 * 3).to_le_bytes();
        let to = b.with_tag(index as u64);
        a.endpoint.send(&to, &bytes).post().unwrap()
    };
    let mut sends: Vec<_> = (0..COUNT).rev().map(send).collect();
    wait_all(&mut sends, LIMIT).unwrap();
    let completions = wait_all(&mut receives, LIMIT).unwrap();
    for (index, completion) in completions.iter().enumerate() {
        assert_eq!(completion.tag, Tag(index as u64));
        assert_eq!(b.buffer.load_u64(8 * index).unwrap(), index as u64 * 3);
    }
    drop(receives);
    let posted = || b.endpoint.receive(&ANY, b.memory.part(0, 0)).post();
    let mut receives: Vec<_> = std::iter::from_fn(|| posted().ok()).collect();
    assert_error!(posted(), Error::WouldBlock);
    assert!(receives.len() > 16_000);
    let soon = b.endpoint.receive(&ANY, b.memory.part(0, 0)).timeout(SHORT);
    assert_error!(soon.wait(), Error::TimedOut);
    // One that waits begins when another has ended: the message is for the first, as it was posted.
    // It waits while 16,000 others are cancelled one by one, which a busy machine may take its time for.
    let long = LIMIT.map(|it| 10 * it);
    let wait = b.endpoint.receive(&ANY, b.memory.part(0, 0)).timeout(long);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait.wait());
        let to = b.with_tag(1);
        a.endpoint.send(&to, b"").timeout(LIMIT).wait().unwrap();
        receives[0].wait(LIMIT).unwrap();
        drop(receives.split_off(1));
        a.endpoint.send(&to, b"").timeout(LIMIT).wait().unwrap();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn one_receive_takes_many_messages() {
    let (_cluster, a, b) = pair(1 << 20);
    let bytes = pattern(3, 300_000);
    a.buffer.write(0, &bytes).unwrap();
    let into = b.memory.part(16, 300_000);
    let mut many = b.endpoint.receive(&ANY, into).many().unwrap();
    let mut offset = 0;
    for length in [10, 50_000, 0, 4096, 100_000, 200_000] {
        let part = a.memory.part(offset, length);
        drop(a.endpoint.send(&b.with_tag(1), part).post().unwrap());
        offset += length;
    }
    let mut ends = Vec::new();
    while let Some(next) = many.next(LIMIT).unwrap() {
        ends.push((next.offset, next.length, next.truncated));
    }
    ends.sort_unstable();
    let expected = [
        (0, 10, false),
        (10, 50_000, false),
        (50_010, 0, false),
        (50_010, 4096, false),
        (54_106, 100_000, false),
        (154_106, 200_000, true),
    ];
    assert_eq!(ends, expected);
    assert!(b.buffer.read_vec(16, 300_000).unwrap() == bytes);
}

/// Threads of one process wait for messages of their own, by tag, and for any of several (U9).
#[test]
fn threads_of_one_process_share_its_messages() {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 300;
    let (_cluster, a, b) = pair(1 << 20);
    let sum = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, b, sum) = (&a, &b, &sum);
            scope.spawn(move || {
                let pattern = Pattern::tagged(a.source(), Tag(thread));
                let area = 16_384 * thread as usize;
                for round in (0..ROUNDS).step_by(2) {
                    let mut both = [0, 8192].map(|at| b.post(&pattern, area + at, 8192));
                    let first = wait_any(&mut both, LIMIT).unwrap().unwrap();
                    assert!(both[first].test().unwrap().is_some());
                    for (index, completion) in (0..).zip(wait_all(&mut both, LIMIT).unwrap()) {
                        assert_eq!(completion.immediate, round + index);
                        sum.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            scope.spawn(move || {
                let to = b.with_tag(thread);
                for round in 0..ROUNDS {
                    let length = (round * 997 % 8192) as usize;
                    let part = a.memory.part(16_384 * thread as usize, length);
                    a.send(&to.immediate(round), part);
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), THREADS * ROUNDS);
}

/// A receive from a process that ends, and a Send to it, fail; what has arrived stays.
#[test]
fn the_end_of_a_process_ends_what_waits_for_it() {
    let cluster = Cluster::new(2);
    let nics = [0, 1].map(|node| cluster.nic(node));
    let [a, b, c] =
        [(0, 1), (1, 1), (0, 9)].map(|(node, port)| Party::new(&nics[node], port, NOT_STAGED));
    let from = Pattern::any_tag(a.source());
    a.send(&b.with_tag(1), b"before");
    let mut any = b.post(&Pattern::tagged(Source::Any, Tag(3)), 0, 8);
    let mut stays = b.post(&Pattern::tagged(a.source(), Tag(2)), 16, 8);
    let mut long = b
        .endpoint
        .send(&a.with_tag(1), b.memory.part(0, NOT_STAGED))
        .post();
    // Its commands are read, whatever engine the other node has.
    b.send(&c.with_tag(8), b"read");
    set_incarnation(&a.endpoint, 5);
    let very = from.incarnation(5);
    drop(a);
    assert_eq!(status(stays.wait(LIMIT)), Status::PeerGone);
    // One that names it by its incarnation ends, too, if it is posted now, or if the next one is there.
    let mut late = b.post(&very, 48, 8);
    assert_eq!(status(late.wait(LIMIT)), Status::PeerGone);
    let next = Party::new(&nics[0], 1, 64);
    let mut late = b.post(&very, 48, 8);
    assert_eq!(status(late.wait(LIMIT)), Status::PeerGone);
    drop(next);
    let gone = status(long.as_mut().unwrap().wait(LIMIT));
    assert!(
        matches!(gone, Status::PeerGone | Status::NoSuchPort),
        "{gone}"
    );
    let before = b
        .endpoint
        .receive(&from, b.memory.part(32, 8))
        .timeout(LIMIT)
        .wait();
    assert_eq!(before.unwrap().length, 6);
    c.send(&b.with_tag(3), b"another");
    assert_eq!(any.wait(LIMIT).unwrap().port, Port(9));
    let nobody = Destination::tagged(NodeId(0), Port(55), Tag(1));
    let refused = b.endpoint.send(&nobody, b"x").timeout(LIMIT).wait();
    assert_eq!(status(refused), Status::NoSuchPort);
    let nowhere = Destination::tagged(NodeId(77), Port(1), Tag(1));
    let refused = b.endpoint.send(&nowhere, b"x").timeout(LIMIT).wait();
    assert_eq!(status(refused), Status::NoSuchNode);
}

/// Memory that is unexported under a receive ends it.
#[test]
fn an_unexported_segment_ends_its_requests() {
    let (_cluster, a, b) = pair(1 << 16);
    let buffer = b.endpoint.allocate(4096).unwrap();
    let lent = b.endpoint.export(SegmentName(8), &buffer, Access::READ);
    let lent = lent.unwrap();
    let (found, _) = b.endpoint.export_lookup(lent.address(), 8).unwrap();
    let mut receive = b.endpoint.receive(&ANY, found.part(0, 64)).post().unwrap();
    assert!(receive.test().unwrap().is_none());
    // The command is read before the segment ends.
    a.send(&b.with_tag(1).at(MessageEndpoint::new(1).unwrap()), b"");
    lent.unexport().unwrap();
    let ended = status(receive.wait(LIMIT));
    assert!(matches!(
        ended,
        Status::Aborted | Status::NoSuchSegment | Status::BadKey
    ));
    let mut late = b.endpoint.receive(&ANY, found.part(0, 64)).post().unwrap();
    let refused = status(late.wait(LIMIT));
    assert!(
        matches!(refused, Status::NoSuchSegment | Status::BadKey),
        "{refused}"
    );
}

/// On links that lose, double and reorder frames, messages come whole and in order.
#[test]
fn bad_links_change_nothing() {
    const COUNT: u64 = 200;
    let cluster = Cluster::on_bad_links(2, 5.0);
    let [a, b] = [0, 1].map(|node| Party::new(&cluster.nic(node), 1, 1 << 16));
    let bytes = pattern(5, 20_000);
    a.buffer.write(0, &bytes).unwrap();
    let length = |number: u64| [8, 3000, 20_000][number as usize % 3];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let send = |number: u64| {
                let part = a.memory.part(0, length(number));
                let to = b.with_tag(1).immediate(number);
                a.endpoint.send(&to, part).post().unwrap()
            };
            let mut sends: Vec<_> = (0..COUNT).map(send).collect();
            wait_all(&mut sends, LIMIT).unwrap();
        });
        for number in 0..COUNT {
            let into = b.memory.part(0, 20_000);
            let completion = b.receive(&ANY, into);
            assert_eq!(completion.immediate, number);
            let length = length(number);
            assert_eq!(completion.length, length as u64);
            assert!(b.buffer.read_vec(0, length).unwrap() == bytes[..length]);
        }
    });
}
