//! Messages that are probed, claimed and discarded before they are received (Q4, U9).

use std::collections::BTreeSet;
use std::time::Duration;

use qnic::message::{wait_all, Claimed, Pattern, Tag};
use qnic::{Access, Error, SegmentName, Status};

use crate::cluster::{pattern, status, Cluster};
use crate::messages::{pair, Party, ANY, LIMIT, NOT_STAGED};

const NOW: Option<Duration> = Some(Duration::ZERO);

/// Receives a message into memory that is made for it.
fn receive_alone(party: &Party, claimed: Claimed<'_>) -> Vec<u8> {
    let length = claimed.envelope().length as usize;
    let buffer = party.endpoint.allocate(length.max(1)).unwrap();
    let memory = party
        .endpoint
        .export(SegmentName(99), &buffer, Access::READ);
    let memory = memory.unwrap();
    let received = claimed.receive(memory.part(0, length)).unwrap();
    assert_eq!(
        (received.length, received.truncated),
        (length as u64, false)
    );
    buffer.read_vec(0, length).unwrap()
}

/// The receiver does not know how long the next message is: its envelope says so before its bytes move.
#[test]
fn messages_of_unknown_size_are_received_into_memory_made_for_them() {
    const LENGTHS: [usize; 7] = [0, 1, 97, 4096, 4097, 65_536, 300_001];
    for loss in [None, Some(5.0)] {
        let cluster = match loss {
            None => Cluster::new(2),
            Some(loss) => Cluster::on_bad_links(2, loss),
        };
        let [a, b] = [0, 1].map(|node| Party::new(&cluster.nic(node), 1, 1 << 19));
        a.buffer.write(5, &pattern(7, 300_001)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let send = |length: usize| {
                    let to = b.with_tag(length as u64).immediate(8);
                    let part = a.memory.part(5, length);
                    a.endpoint.send(&to, part).post().unwrap()
                };
                let mut sends: Vec<_> = LENGTHS.into_iter().map(send).collect();
                let sent = wait_all(&mut sends, LIMIT).unwrap();
                assert!(sent.iter().all(|it| !it.truncated));
            });
            for length in LENGTHS {
                let found = b
                    .endpoint
                    .probe(&Pattern::any_tag(a.source()))
                    .timeout(LIMIT)
                    .wait()
                    .unwrap();
                let told = (found.node, found.port, found.immediate);
                assert_eq!(told, (a.endpoint.node(), a.endpoint.port(), 8));
                assert_eq!(
                    (found.tag, found.length),
                    (Tag(length as u64), length as u64)
                );
                let again = b.endpoint.probe(&ANY).test().unwrap();
                assert_eq!(again, Some(found), "it stays");
                let claimed = b
                    .endpoint
                    .probe(&ANY)
                    .try_claim()
                    .unwrap()
                    .expect("it is there");
                assert_eq!(*claimed.envelope(), found);
                assert!(receive_alone(&b, claimed) == pattern(7, length));
            }
        });
        assert_eq!(b.endpoint.probe(&ANY).test().unwrap(), None);
        assert_error!(b.endpoint.probe(&ANY).timeout(NOW).wait(), Error::TimedOut);
        assert_error!(b.endpoint.probe(&ANY).timeout(NOW).claim(), Error::TimedOut);
    }
}

/// What one thread has claimed, no other claims, probes or receives (U9).
#[test]
fn threads_that_claim_never_get_the_same_message() {
    const THREADS: usize = 4;
    const EACH: usize = 150;
    let (_cluster, a, b) = pair(1 << 17);
    a.buffer.write(0, &pattern(9, 6000)).unwrap();
    let length = |number: usize| [16, 6000][number % 2];
    let taken: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let take = |thread: usize| {
            let b = &b;
            move || {
                let receive = |_| {
                    let claimed = b.endpoint.probe(&ANY).timeout(LIMIT).claim().unwrap();
                    let number = claimed.envelope().immediate;
                    let length = length(number as usize);
                    let offset = thread * 8192;
                    let into = b.memory.part(offset, length);
                    assert_eq!(claimed.receive(into).unwrap().immediate, number);
                    let bytes = b.buffer.read_vec(offset, length).unwrap();
                    assert!(bytes == pattern(9, 6000)[..length]);
                    number
                };
                (0..EACH).map(receive).collect()
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|it| scope.spawn(take(it))).collect();
        let send = |number: usize| {
            let to = b.with_tag(1).immediate(number as u64);
            let part = a.memory.part(0, length(number));
            a.endpoint.send(&to, part).post().unwrap()
        };
        let mut sends: Vec<_> = (0..THREADS * EACH).map(send).collect();
        wait_all(&mut sends, LIMIT).unwrap();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    for one in &taken {
        assert!(one.is_sorted(), "in the order in which they were sent");
    }
    let all: BTreeSet<u64> = taken.into_iter().flatten().collect();
    assert_eq!(all.len(), THREADS * EACH);
}

#[test]
fn a_message_that_is_dropped_ends_at_its_sender() {
    let (_cluster, a, b) = pair(NOT_STAGED);
    let send = |length| {
        let part = a.memory.part(0, length);
        a.endpoint.send(&b.with_tag(1), part).post().unwrap()
    };
    for (length, truncated) in [(8, false), (50_000, false), (NOT_STAGED, true)] {
        let mut first = send(length);
        drop(b.endpoint.probe(&ANY).timeout(LIMIT).claim().unwrap());
        assert_eq!(first.wait(LIMIT).unwrap().truncated, truncated);
        let mut second = send(length);
        let found = b.endpoint.probe(&ANY).timeout(LIMIT).wait().unwrap();
        assert_eq!(b.endpoint.probe(&ANY).discard().unwrap(), Some(found));
        assert_eq!(second.wait(LIMIT).unwrap().truncated, truncated);
        assert_eq!(b.endpoint.probe(&ANY).discard().unwrap(), None);
        // A claim that nothing waits for any more takes nothing from later ones.
        drop(b.endpoint.probe(&ANY).post_claim().unwrap());
        assert_eq!(b.endpoint.probe(&ANY).test().unwrap(), None);
        let mut third = send(length);
        let into = b.memory.part(0, length);
        b.receive(&ANY, into);
        assert!(!third.wait(LIMIT).unwrap().truncated);
    }
}

#[test]
fn the_end_of_a_sender_ends_probes_for_it_and_claims_without_bytes() {
    let (_cluster, a, b) = pair(NOT_STAGED);
    a.buffer.write(0, b"short").unwrap();
    let part = |length| a.memory.part(0, length);
    a.send(&b.with_tag(1), part(5));
    drop(
        a.endpoint
            .send(&b.with_tag(2), part(NOT_STAGED))
            .post()
            .unwrap(),
    );
    let claim = |tag| {
        let pattern = Pattern::tagged(a.source(), Tag(tag));
        b.endpoint.probe(&pattern).timeout(LIMIT).claim().unwrap()
    };
    let (short, long) = (claim(1), claim(2));
    let from = Pattern::any_tag(a.source());
    let mut waits = b.endpoint.probe(&from).post_claim().unwrap();
    drop(a);
    assert_eq!(status(waits.wait(LIMIT)), Status::PeerGone);
    let into = b.memory.part(0, NOT_STAGED);
    assert_eq!(status(long.receive(into)), Status::NoMessage);
    assert_eq!(receive_alone(&b, short), b"short");
}

#[test]
fn a_reset_of_the_queue_discards_what_is_claimed() {
    let (_cluster, a, b) = pair(NOT_STAGED);
    let part = a.memory.part(0, NOT_STAGED);
    let mut send = a.endpoint.send(&b.with_tag(1), part).post().unwrap();
    let claimed = b.endpoint.probe(&ANY).timeout(LIMIT).claim().unwrap();
    let mut waits = b.endpoint.probe(&ANY).post_claim().unwrap();
    b.endpoint.reset_queue().unwrap();
    assert!(send.wait(LIMIT).unwrap().truncated);
    assert_error!(waits.wait(LIMIT), Error::QueueReset);
    assert_eq!(
        status(claimed.receive(b.memory.part(0, 8))),
        Status::NoMessage
    );
    a.send(&b.with_tag(1), b"again");
    assert_eq!(
        receive_alone(&b, b.endpoint.probe(&ANY).timeout(LIMIT).claim().unwrap()),
        b"again"
    );
}

/// A claim beyond those that may wait has not begun, and a probe waits until another has ended (Q12).
#[test]
fn claims_and_probes_beyond_the_most_wait() {
    let (_cluster, a, b) = pair(4096);
    let mut claims = Vec::new();
    let refused = loop {
        match b.endpoint.probe(&ANY).post_claim() {
            Ok(claim) => claims.push(claim),
            Err(refused) => break Err::<(), _>(refused),
        }
    };
    assert_error!(refused, Error::WouldBlock);
    assert_eq!(claims.len(), 256);
    let short = Duration::from_millis(50);
    assert_error!(
        b.endpoint.probe(&ANY).timeout(short).wait(),
        Error::TimedOut
    );
    assert!(b.endpoint.probe(&ANY).test().unwrap().is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| b.endpoint.probe(&ANY).timeout(LIMIT).wait());
        for number in 0..=256u64 {
            a.send(&b.with_tag(1).immediate(number), b"");
        }
        for (number, claim) in (0..).zip(&mut claims) {
            let claimed = claim.wait(LIMIT).unwrap();
            assert_eq!(claimed.envelope().immediate, number);
        }
        assert_eq!(waiter.join().unwrap().unwrap().immediate, 256);
    });
}

/// A probe that waits for room goes on when its queue is reset, and ends with the device process.
#[test]
fn a_probe_that_waits_for_room_outlives_a_reset_and_ends_with_the_device() {
    let (mut cluster, a, b) = pair(4096);
    let claim_all = || {
        let claim = || b.endpoint.probe(&ANY).post_claim();
        let claims: Vec<_> = std::iter::from_fn(|| claim().ok()).collect();
        assert_eq!(claims.len(), 256);
        claims
    };
    let probe = || b.endpoint.probe(&ANY).timeout(LIMIT).wait();
    let claims = claim_all();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(probe);
        b.endpoint.reset_queue().unwrap();
        a.send(&b.with_tag(1).immediate(7), b"");
        assert_eq!(waiter.join().unwrap().unwrap().immediate, 7);
    });
    drop(claims);
    let receive = b.endpoint.receive(&ANY, b.memory.part(0, 0));
    receive.timeout(LIMIT).wait().unwrap();
    let _claims = claim_all();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(probe);
        cluster.kill_device();
        assert_error!(waiter.join().unwrap(), Error::DeviceGone);
    });
}
