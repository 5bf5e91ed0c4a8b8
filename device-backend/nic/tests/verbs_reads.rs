//! Reads and atomic operations of verbs (X18): what they bring, and in which order they complete.

use qnic_abi::verbs::requests::Object;
use qnic_abi::verbs::rings::SendFlags;
use qnic_abi::verbs::{Completed, Event, Outcome, Request, Rights, State};
use qnic_abi::Status;
use qnic_nic::testing::{
    page, token, LossyWire, Net, VerbsPair, PAGE, QP_A as A, QP_B as B, SEGMENT,
};

const OK: u32 = Outcome::Success as u32;
const READ: u32 = Completed::Read as u32;

/// An address of `b`, and its key.
fn remote(pair: &VerbsPair, offset: u64) -> (u64, u32) {
    (pair.b.party.segment.address + offset, pair.keys[1])
}

/// More than one queue pair may have under way; from and to absent pages, off their borders.
#[test]
fn reads_bring_what_is_there() {
    let pair = VerbsPair::lossless();
    let (a, b) = (&pair.a, &pair.b);
    let bytes = b.party.fill(0, SEGMENT, 4);
    for number in 0..8 {
        a.party.evict(page(number));
        b.party.evict(page(number));
    }
    let lengths = [0u32, 1, 4096, 4097, 65536, 9, 9000, 8];
    for (id, length) in (0..).zip(lengths) {
        let at = id * 9001;
        let (address, key) = remote(&pair, at);
        let half = length / 2;
        let into = [
            pair.at_a(at, half),
            pair.at_a(at + u64::from(half), length - half),
        ];
        assert!(a.send(A, id, &into).read_from(address, key).store());
    }
    a.ring(A);
    pair.net.run();
    let expected: Vec<_> = (0..)
        .zip(lengths)
        .map(|(id, length)| (id, OK, READ, length))
        .collect();
    assert_eq!(a.poll_all(), expected);
    for (id, length) in (0..).zip(lengths) {
        let at = id as usize * 9001;
        assert!(
            a.party.holds(at as u64, &bytes[at..at + length as usize]),
            "{length}"
        );
    }
    assert_eq!((a.query(A).1, b.poll_all()), (b.query(B).2, vec![]));
    pair.net.assert_holds_nothing(0);
    pair.net.assert_unlocked();
}

#[test]
fn atomic_operations_are_executed_once() {
    let pair = VerbsPair::lossless();
    let (a, b) = (&pair.a, &pair.b);
    let word = page(1) + 8;
    b.party.store(word, &7u64.to_le_bytes());
    for offset in [word, page(2)] {
        b.party.evict(offset);
        a.party.evict(offset);
    }
    let cases = [
        (Request::FetchAdd, [5, 0], 7, 12),
        (Request::CompareSwap, [11, 99], 12, 12),
        (Request::CompareSwap, [12, 99], 12, 99),
        (Request::FetchAdd, [u64::MAX, 0], 99, 98),
    ];
    for (id, (request, operands, before, after)) in (0..).zip(cases) {
        let into = page(2) + 16 + id * 8;
        let send = a.send(A, id, &[pair.at_a(into, 8)]);
        send.atomic(request, remote(&pair, word), operands).post();
        pair.net.run();
        let opcode = match request {
            Request::FetchAdd => Completed::FetchAdd,
            _ => Completed::CompareSwap,
        };
        assert_eq!(a.poll_all(), [(id, OK, opcode as u32, 8)]);
        assert!(a.party.holds(into, &u64::to_le_bytes(before)));
        assert!(b.party.holds(word, &u64::to_le_bytes(after)));
    }
    pair.net.assert_unlocked();
    // Neither another length, nor a word off its border.
    let send = a.send(A, 9, &[pair.at_a(0, 4)]);
    send.atomic(Request::FetchAdd, remote(&pair, word), [1, 0])
        .post();
    pair.net.run();
    assert_eq!(a.ends(), [(9, Outcome::LocalOperation as u32)]);
    let pair = VerbsPair::lossless();
    let send = pair.a.send(A, 9, &[pair.at_a(0, 8)]);
    send.atomic(Request::FetchAdd, remote(&pair, word + 4), [1, 0])
        .post();
    pair.net.run();
    assert_eq!(pair.a.ends(), [(9, Outcome::RemoteInvalidRequest as u32)]);
}

/// A fenced Send carries what a read before it has brought.
#[test]
fn a_fence_waits_for_reads() {
    let pair = VerbsPair::lossless();
    let (a, b) = (&pair.a, &pair.b);
    let bytes = b.party.fill(0, 9000, 8);
    assert!(b.post_receive(B, 1, &[pair.at_b(20_000, 9000)]));
    let (address, key) = remote(&pair, 0);
    let local = [pair.at_a(0, 9000)];
    assert!(a.send(A, 1, &local).read_from(address, key).store());
    a.send(A, 2, &local).flags(SendFlags::FENCE).post();
    pair.net.run();
    assert_eq!(
        (a.ends(), b.ends()),
        (vec![(1, OK), (2, OK)], vec![(1, OK)])
    );
    assert!(b.party.holds(20_000, &bytes));
}

/// A Send behind a read that waits for a page is done before it, and completes behind it.
#[test]
fn completions_stay_in_order() {
    let pair = VerbsPair::lossless();
    let (a, b) = (&pair.a, &pair.b);
    for context in [a, b] {
        context.party.fill(0, SEGMENT, 1);
    }
    assert!(b.post_receive(B, 0, &[pair.at_b(0, 100)]));
    a.send(A, 0, &[pair.at_a(0, 100)]).post();
    pair.net.run();
    assert_eq!((a.ends(), b.ends()), (vec![(0, OK)], vec![(0, OK)]));
    pair.net.answer_faults(false);
    a.party.evict(page(3));
    b.party.evict(page(4));
    let (address, key) = remote(&pair, page(4));
    let into = [pair.at_a(page(3), PAGE as u32)];
    assert!(a.send(A, 1, &into).read_from(address, key).store());
    assert!(b.post_receive(B, 2, &[pair.at_b(0, 100)]));
    a.send(A, 2, &[pair.at_a(0, 100)]).post();
    pair.net.run();
    assert_eq!((a.ends(), b.ends()), (vec![], vec![(2, OK)]));
    pair.net.answer_all(1, 1);
    pair.net.answer_all(0, 1);
    assert_eq!(a.ends(), [(1, OK), (2, OK)]);
    pair.net.assert_holds_nothing(0);
}

#[test]
fn reads_that_may_not_be_are_refused() {
    for case in 0..4 {
        let pair = VerbsPair::lossless();
        let (a, b) = (&pair.a, &pair.b);
        let (mut address, mut key) = remote(&pair, 0);
        match case {
            0 => key ^= 1,
            1 => address += SEGMENT - 99,
            _ => {
                let mut attributes = b.attributes(B, State::ReadyToSend, (0, A));
                attributes.access =
                    (Rights::all() - Rights::REMOTE_READ - Rights::REMOTE_ATOMIC).bits() as u8;
                assert_eq!(b.modify(&attributes), Status::Ok);
            }
        }
        let length = if case == 3 { 8 } else { 100 };
        let send = a.send(A, 1, &[pair.at_a(0, length)]);
        let send = match case {
            3 => send.atomic(Request::FetchAdd, (address, key), [1, 0]),
            _ => send.read_from(address, key),
        };
        send.post();
        pair.net.run();
        assert_eq!(a.ends(), [(1, Outcome::RemoteAccess as u32)], "{case}");
        assert_eq!(b.events(), [(token(B), Event::AccessError as u16)]);
        assert_eq!(b.query(B).0, State::Failed);
    }
}

/// At the source, at the destination, and for the word of an atomic operation.
#[test]
fn a_page_that_never_comes_ends_a_read() {
    for case in 0..3 {
        let pair = VerbsPair::lossless();
        let (a, b) = (&pair.a, &pair.b);
        let lacks = if case == 1 { b } else { a };
        lacks.party.evict(page(1));
        lacks.party.set_available(page(1), false);
        let (address, key) = remote(&pair, page(0) + 5 * (1 - case % 2) * PAGE);
        let local = [pair.at_a(page(0), 2 * PAGE as u32)];
        let word = [pair.at_a(page(1) + 8, 8)];
        match case {
            2 => a
                .send(A, 1, &word)
                .atomic(Request::FetchAdd, remote(&pair, page(3)), [1, 0]),
            _ => a.send(A, 1, &local).read_from(address, key),
        }
        .post();
        pair.net.run();
        let outcome = match case {
            1 => Outcome::RemoteOperation,
            _ => Outcome::LocalProtection,
        };
        assert_eq!(a.ends(), [(1, outcome as u32)], "{case}");
        pair.net.assert_holds_nothing(0);
        pair.net.assert_unlocked();
    }
}

/// The peer refuses the second of two reads: that one fails, and not the oldest.
#[test]
fn the_read_that_is_refused_fails() {
    let pair = VerbsPair::lossless();
    let (a, b) = (&pair.a, &pair.b);
    let (address, key) = remote(&pair, page(2));
    let into = pair.at_a(0, 100);
    a.send(A, 0, &[into]).read_from(address, key).post();
    pair.net.run();
    assert_eq!(a.ends(), [(0, OK)]);
    pair.net.answer_faults(false);
    // The answer of the first waits for a page of its own process.
    a.party.evict(page(1));
    b.party.evict(page(5));
    b.party.set_available(page(5), false);
    for (id, from) in [(1, page(2)), (2, page(5))] {
        let (address, key) = remote(&pair, from);
        let into = pair.at_a(page(id), 100);
        a.send(A, id, &[into]).read_from(address, key).post();
    }
    pair.net.run();
    assert_eq!((a.ends(), pair.net.faults(0)), (vec![], 1));
    pair.net.answer_all(1, 1);
    let ends = [
        (1, Outcome::Flushed as u32),
        (2, Outcome::RemoteOperation as u32),
    ];
    assert_eq!(a.ends(), ends);
    pair.net.answer_all(0, 1);
    pair.net.assert_unlocked();
}

#[test]
fn a_peer_that_is_gone_answers_no_read() {
    for case in 0..4 {
        let pair = VerbsPair::lossless();
        let (a, b) = (&pair.a, &pair.b);
        pair.net.answer_faults(false);
        let (address, key) = remote(&pair, 0);
        for id in 0..20 {
            let send = a.send(A, id, &[pair.at_a(0, 100)]);
            assert!(send.read_from(address, key).store());
        }
        a.ring(A);
        pair.net.run();
        assert_eq!(a.ends(), []);
        match case {
            0 => {
                pair.net.cluster().reset(1);
                pair.net.cluster().start(1);
            }
            1 => b.party.end(),
            2 => assert_eq!(b.destroy(Object::QueuePair, B), Status::Ok),
            _ => {
                let failed = b.attributes(B, State::Failed, (0, A));
                assert_eq!(b.modify(&failed), Status::Ok);
            }
        }
        a.run_out();
        let (ends, retries) = (a.ends(), Outcome::RetriesExceeded as u32);
        assert_eq!(
            (ends.len(), ends.first()),
            (20, Some(&(0, retries))),
            "{case}"
        );
        assert_eq!(pair.net.counters(0).operations, 0);
    }
}

/// Exact, and each once, over a wire that loses, repeats and reorders frames.
#[test]
fn a_lossy_wire_changes_nothing() {
    for seed in 0..6 {
        let pair = VerbsPair::on(Net::lossy(2, LossyWire::rough(50), seed));
        let (a, b) = (&pair.a, &pair.b);
        let word = page(20);
        let bytes = b.party.fill(0, 6 * 9000, seed);
        b.party.store(word, &[0; 8]);
        for id in 0..24 {
            let at = id / 4 * 9000;
            let (address, key) = remote(&pair, at);
            let send = match id % 4 {
                0 => a
                    .send(A, id, &[pair.at_a(at, 9000)])
                    .read_from(address, key),
                1 => a.send(A, id, &[pair.at_a(60_000 + id * 8, 8)]).atomic(
                    Request::FetchAdd,
                    remote(&pair, word),
                    [1, 0],
                ),
                2 => {
                    assert!(b.post_receive(B, id, &[]));
                    a.send(A, id, &[]).flags(SendFlags::FENCE)
                }
                _ => {
                    let (address, key) = remote(&pair, 100_000 + id * 8);
                    a.send(A, id, &[pair.at_a(at, 8)]).write_to(address, key)
                }
            };
            assert!(send.store());
        }
        a.ring(A);
        pair.net.run();
        let expected: Vec<_> = (0..24).map(|id| (id, OK)).collect();
        assert_eq!(a.ends(), expected, "seed {seed}");
        assert!(a.party.holds(0, &bytes), "seed {seed}");
        assert!(b.party.holds(word, &6u64.to_le_bytes()));
        for count in 0..6 {
            let at = 60_000 + (count * 4 + 1) * 8;
            assert!(a.party.holds(at, &count.to_le_bytes()), "seed {seed}");
        }
    }
}
