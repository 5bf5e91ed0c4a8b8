//! Messages by contexts and the buffer pool (Q4, Q5, Q7, Q8).

use qnic::message::{Pattern, Tag, SHORT_MAX};
use qnic::{Error, Part, Status};
use qnic_device::CountSettings;

use crate::cluster::{in_threads, pattern, status, Cluster};
use crate::messages::{pair, Party, ANY, LIMIT};

const PAGE: usize = 4096;

/// Fills what one sender may have of the staging memory of a process, but for a short message.
const STAGED: usize = (4 << 20) - 1024;

/// Each side's buffer goes to the NIC and comes back with every message.
#[test]
fn pool_buffers_play_ping_pong() {
    const ROUNDS: usize = 200;
    const LENGTH: usize = 3 * PAGE + 17;
    let (_cluster, a, b) = pair(PAGE);
    let both = [&a, &b];
    in_threads(&both, |me, party| {
        let (me, other) = (me as usize, both[1 - me as usize]);
        let pool = party.endpoint.pool();
        let [mut out, mut into] = [4, 4].map(|pages| pool.take(pages).unwrap());
        for round in 0..ROUNDS {
            // Short in one round, long in the other.
            let length = [LENGTH, 100][round % 2];
            let posted = into.post_receive(&ANY).unwrap();
            let send = || {
                out.write(0, &pattern(me + 2 * round, length)).unwrap();
                let to = other.with_tag(1).immediate(round as u64);
                let sent = out.post_send(&to, length);
                sent.unwrap().wait(LIMIT).unwrap().1
            };
            let receive = || {
                let (completion, buffer) = posted.wait(LIMIT).unwrap();
                assert_eq!(completion.immediate, round as u64);
                assert_eq!(completion.length, length as u64);
                let mut bytes = vec![0; length];
                buffer.read(0, &mut bytes).unwrap();
                assert!(bytes == pattern(1 - me + 2 * round, length));
                buffer
            };
            (out, into) = match me {
                0 => {
                    let out = send();
                    (out, receive())
                }
                _ => {
                    let into = receive();
                    (send(), into)
                }
            };
        }
        drop((out, into));
        assert_eq!(pool.free(), 16);
    });
}

/// NICs with other counts, which driver and library learn from them (Q1): the queue wraps, the
/// contexts and the pool are used up, and what fits into no region stands in the pool.
#[test]
fn the_geometry_is_that_of_the_nic() {
    let counts = CountSettings {
        command_entries: 16,
        contexts: 5,
        context_pages: 3,
        pool_pages: 2,
    };
    let cluster = Cluster::with_counts(2, counts);
    let [a, b] = [0, 1].map(|node| Party::new(&cluster.nic(node), 1, 8 * PAGE));
    assert_eq!(a.endpoint.pool().counts(), counts.into());
    let pool = b.endpoint.pool();
    assert_eq!(pool.free(), 2);
    assert!(matches!(
        pool.take(3),
        Err(Error::PoolFull { pages: 3, free: 2 })
    ));
    // A region has room for three descriptors, which are 48 bytes.
    let to = b.with_tag(1);
    let refused = a.endpoint.send_short(&to, &[0; 49]).post();
    assert!(matches!(refused, Err(Error::OutOfRange { .. })));
    for round in 0..40 {
        let posted: Vec<_> = (0..5)
            .map(|index| {
                let pages = [b.memory.part(index * PAGE, PAGE)];
                b.endpoint.receive(&ANY, &pages[..]).post().unwrap()
            })
            .collect();
        let pages = [b.memory.part(5 * PAGE, PAGE)];
        let beyond = b.endpoint.receive(&ANY, &pages[..]).post();
        assert!(matches!(beyond, Err(Error::NoContext { contexts: 5, .. })));
        for index in 0..5 {
            let bytes = pattern(round * 5 + index, 48);
            let sent = a.endpoint.send_short(&to, &bytes).post();
            sent.unwrap().wait(LIMIT).unwrap();
        }
        for (index, mut receive) in posted.into_iter().enumerate() {
            receive.wait(LIMIT).unwrap();
            let bytes = b.buffer.read_vec(index * PAGE, 48).unwrap();
            assert!(bytes == pattern(round * 5 + index, 48), "round {round}");
        }
    }
    // Four pages stand in a page of the pool.
    let bytes = pattern(1, 4 * PAGE);
    a.buffer.write(0, &bytes).unwrap();
    let pages: Vec<_> = (0..4)
        .map(|page| b.memory.part((6 - page) * PAGE, PAGE))
        .collect();
    let mut received = b.endpoint.receive(&ANY, &pages[..]).post().unwrap();
    assert_eq!(pool.free(), 1);
    let sent = a.endpoint.send(&to, a.memory.part(0, 4 * PAGE)).post();
    sent.unwrap().wait(LIMIT).unwrap();
    received.wait(LIMIT).unwrap();
    for page in 0..4 {
        let arrived = b.buffer.read_vec((6 - page) * PAGE, PAGE).unwrap();
        assert!(arrived == bytes[page * PAGE..][..PAGE]);
    }
}

/// Pages that stand in reversed order are one message, and come to others in another order.
#[test]
fn pages_are_gathered_and_scattered() {
    // Listed in the region; listed in a page of the pool, as they are more.
    for count in [7, 40] {
        gather_and_scatter(count);
    }
}

fn gather_and_scatter(count: usize) {
    let pages = 2 * count + 2;
    let (_cluster, a, b) = pair(pages * PAGE);
    // The first begins 100 bytes into its page, the last ends 50 bytes before its end.
    let piece = |index: usize| match index {
        0 => (100, PAGE - 100),
        index if index + 1 == count => (0, PAGE - 50),
        _ => (0, PAGE),
    };
    let place = |page: usize, index| (page * PAGE + piece(index).0, piece(index).1);
    let from: Vec<_> = (0..count).map(|it| place(count - it, it)).collect();
    // With a hole behind each page.
    let into: Vec<_> = (0..count).map(|it| place(2 * it + 1, it)).collect();
    let total = count * PAGE - 150;
    let bytes = pattern(5, total);
    let mut done = 0;
    for (offset, length) in &from {
        a.buffer.write(*offset, &bytes[done..][..*length]).unwrap();
        done += length;
    }
    fn of<'a>(party: &'a Party, places: &[(usize, usize)]) -> Vec<Part<'a>> {
        let part = |(offset, length): &(usize, usize)| party.memory.part(*offset, *length);
        places.iter().map(part).collect()
    }
    let mut received = b.endpoint.receive(&ANY, &of(&b, &into)[..]).post().unwrap();
    let sent = a.endpoint.send(&b.with_tag(3), &of(&a, &from)[..]).post();
    assert_eq!(received.wait(LIMIT).unwrap().length, total as u64);
    sent.unwrap().wait(LIMIT).unwrap();
    let mut arrived = Vec::new();
    for (offset, length) in &into {
        arrived.extend(b.buffer.read_vec(*offset, *length).unwrap());
    }
    assert!(arrived == bytes);
    for hole in (0..pages).step_by(2) {
        assert!(b.buffer.read_vec(hole * PAGE, PAGE).unwrap() == [0; PAGE]);
    }
}

/// With and without a notice; one that fails without one is counted.
#[test]
fn a_thousand_short_sends_arrive_in_order() {
    const COUNT: u64 = 1000;
    let (_cluster, a, b) = pair(PAGE);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                let length = number as usize % (SHORT_MAX + 1);
                let bytes = pattern(number as usize, length);
                let to = b.with_tag(1).immediate(number);
                let send = a.endpoint.send_short(&to, &bytes);
                let request = loop {
                    let sent = match number % 10 {
                        0 => send.post().map(Some),
                        _ => send.forget().map(|()| None),
                    };
                    match sent {
                        // Looks, too: it frees those that have ended.
                        Err(Error::NoContext { .. }) => std::thread::yield_now(),
                        other => break other.unwrap(),
                    }
                };
                if let Some(mut request) = request {
                    request.wait(LIMIT).unwrap();
                }
            }
        });
        for number in 0..COUNT {
            let into = b.memory.part(0, SHORT_MAX);
            let received = b.receive(&ANY, into);
            let length = number as usize % (SHORT_MAX + 1);
            assert_eq!(
                (received.immediate, received.length),
                (number, length as u64)
            );
            let expected = pattern(number as usize, length);
            assert!(b.buffer.read_vec(0, length).unwrap() == expected);
        }
    });
    assert_eq!(a.endpoint.statistics().failed_sends, 0);
    let nobody = qnic::message::Destination::tagged(b.endpoint.node(), qnic::Port(55), Tag(1));
    let failing = a.endpoint.send_short(&nobody, b"x").forget();
    failing.unwrap();
    // Fails behind it: of one process to one other in order.
    let told = a.endpoint.send_short(&nobody, b"x").post();
    let told = told.unwrap().wait(LIMIT);
    assert_eq!(status(told), Status::NoSuchPort);
    while a.endpoint.statistics().failed_sends == 0 {
        std::thread::yield_now();
    }
    assert_eq!(a.endpoint.statistics().failed_sends, 1);
}

/// A message that is shorter than its pages leaves the rest; a longer one is truncated.
#[test]
fn a_message_may_be_shorter_or_longer_than_its_pages() {
    let (_cluster, a, b) = pair(16 * PAGE);
    let bytes = pattern(1, 3 * PAGE);
    a.buffer.write(0, &bytes).unwrap();
    for (length, truncated) in [(5, false), (PAGE + 1, false), (3 * PAGE, true)] {
        let buffer = b.endpoint.pool().take(2).unwrap();
        buffer.write(0, &[0xee; 2 * PAGE]).unwrap();
        let posted = buffer.post_receive(&ANY).unwrap();
        // The probe behind it has ended, so it has been read.
        assert_eq!(b.endpoint.probe(&ANY).test().unwrap(), None);
        let part = a.memory.part(0, length);
        let sent = a.endpoint.send(&b.with_tag(7), part).post();
        let (completion, buffer) = posted.wait(LIMIT).unwrap();
        assert_eq!((completion.length, completion.tag), (length as u64, Tag(7)));
        assert_eq!(completion.truncated, truncated);
        assert_eq!(sent.unwrap().wait(LIMIT).unwrap().truncated, truncated);
        let mut arrived = vec![0; buffer.len()];
        buffer.read(0, &mut arrived).unwrap();
        let taken = length.min(2 * PAGE);
        assert!(arrived[..taken] == bytes[..taken]);
        assert!(arrived[taken..].iter().all(|byte| *byte == 0xee));
    }
}

/// What waits for a process that ends fails, and its pages come back; drops need no peer.
#[test]
fn the_end_of_a_peer_gives_the_pages_back() {
    let cluster = Cluster::new(2);
    let nics = [0, 1].map(|node| cluster.nic(node));
    let [a, b] = [0, 1].map(|node: usize| Party::new(&nics[node], 1, STAGED));
    let pool = b.endpoint.pool();
    let from = Pattern::any_tag(a.source());
    let take = |pages| pool.take(pages).unwrap();
    let received = take(2).post_receive(&from).unwrap();
    let stays = take(1).post_receive(&ANY).unwrap();
    // Staging memory has no room for more than a short message: they wait for a receive that is
    // never posted.
    b.send(&a.with_tag(3), b.memory.part(0, STAGED));
    let send = || take(4).post_send(&a.with_tag(1), 4 * PAGE);
    let (sent, dropped) = (send().unwrap(), send().unwrap());
    drop(dropped);
    // Its commands are read, whatever engine the other node has.
    b.send(&a.with_tag(2), b"read");
    drop(a);
    assert_eq!(status(received.wait(LIMIT)), Status::PeerGone);
    let gone = status(sent.wait(LIMIT));
    assert!(
        matches!(gone, Status::PeerGone | Status::NoSuchPort),
        "{gone}"
    );
    while pool.free() < 15 {
        std::thread::yield_now();
    }
    drop(stays);
    assert_eq!(pool.free(), 16);
}
