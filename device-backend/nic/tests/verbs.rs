//! Verbs (X18): messages go from ring to ring, with completions in order, whatever pages and wires
//! do.

use qnic_abi::verbs::commands::SOLICITED_ONLY;
use qnic_abi::verbs::requests::Object;
use qnic_abi::verbs::rings::{SendFlags, Sge};
use qnic_abi::verbs::{Completed, Event, Outcome, Rights, State};
use qnic_abi::Status;
use qnic_nic::testing::{
    page, token, LossyWire, Net, Pair, VerbsPair, VerbsParty, CQ, PAGE, QP_A as A, QP_B as B,
    SEGMENT,
};
use qnic_nic::Limits;

const OK: u32 = Outcome::Success as u32;
const SENT: u32 = Completed::Send as u32;
const RECEIVED: u32 = Completed::Receive as u32;

#[test]
fn a_send_goes_from_ring_to_ring() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    let bytes = a.party.fill(3, 8, 1);
    assert!(b.post_receive(B, 77, &[two.at_b(100, 64)]));
    a.send(A, 55, &[two.at_a(3, 8)]).post();
    two.net.run();
    assert!(b.party.holds(100, &bytes));
    assert_eq!(b.poll_all(), [(77, OK, RECEIVED, 8)]);
    assert_eq!(a.poll_all(), [(55, OK, SENT, 0)]);
    assert_eq!(a.query(A).0, State::ReadyToSend);
    assert_eq!(a.query(A).1, b.query(B).2);
    assert_eq!(a.queue_pair(A).send.posted(&a.party), 0);
    assert_eq!(b.queue_pair(B).receive.posted(&b.party), 0);
    two.net.assert_unlocked();
}

/// In one frame, many, and none; from and to several places, off the borders of pages.
#[test]
fn messages_of_all_lengths_are_gathered_and_scattered() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    for (length, sources, destinations) in [
        (0, 1, 1),
        (1, 1, 1),
        (4096, 1, 1),
        (4097, 1, 2),
        (9000, 3, 2),
        (65536, 2, 5),
        (65536, 8, 8),
    ] {
        let bytes = a.party.fill(5, u64::from(length), u64::from(length) + 1);
        let split = |count: u32, gap: u64, sge: &dyn Fn(u64, u32) -> Sge| -> Vec<Sge> {
            let part = length / count;
            (0..count)
                .map(|index| {
                    let last = if index + 1 == count {
                        length - part * index
                    } else {
                        part
                    };
                    sge(5 + u64::from(part * index) + gap * u64::from(index), last)
                })
                .collect()
        };
        let sources = split(sources, 0, &|at, length| two.at_a(at, length));
        let into = split(destinations, 17, &|at, length| two.at_b(at, length));
        assert!(b.post_receive(B, 1, &into));
        a.send(A, 2, &sources).immediate(0x0102_0304).post();
        two.net.run();
        let first = b.party.segment.address;
        let received: Vec<u8> = into
            .iter()
            .flat_map(|sge| {
                b.party
                    .bytes(sge.address.get() - first, sge.length.get().into())
            })
            .collect();
        assert_eq!(received, bytes, "{length}");
        let completion = b.poll().unwrap();
        assert_eq!(
            (completion.length.get(), completion.status.get()),
            (length, OK)
        );
        assert_eq!(
            (completion.immediate.get(), completion.flags.get()),
            (0x0102_0304, 2)
        );
        assert_eq!(a.poll_all(), [(2, OK, SENT, 0)]);
    }
    two.net.assert_unlocked();
}

#[test]
fn inline_bytes_need_no_memory_and_unsignaled_sends_complete_silently() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    for (number, length) in [1usize, 8, 512].into_iter().enumerate() {
        let bytes = vec![number as u8 + 1; length];
        assert!(b.post_receive(B, 1, &[two.at_b(0, 600)]));
        a.send(A, 2, &[]).inline(&bytes).post();
        two.net.run();
        assert!(b.party.holds(0, &bytes));
        assert_eq!(b.poll_all(), [(1, OK, RECEIVED, length as u32)]);
        assert_eq!(a.poll_all().len(), 1);
    }
    a.send(A, 3, &[]).inline(&[0; 512]).store();
    // Longer than the queue pair allows: the length is that of the entry.
    let mut long = a.send(A, 4, &[]).inline(&[0; 512]);
    long.entry.gather.length = 513.into();
    long.store();
    assert!(b.post_receive(B, 1, &[two.at_b(0, 600)]));
    a.ring(A);
    two.net.run();
    assert_eq!(a.ends(), [(3, OK), (4, Outcome::LocalOperation as u32)]);
    assert_eq!(a.query(A).0, State::Failed);
}

/// Many more than a ring, a window, or the messages under way: all arrive, in order.
#[test]
fn many_messages_arrive_in_order() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    for round in 0..12u64 {
        for number in 0..63 {
            let id = round * 63 + number;
            assert!(b.post_receive(B, id, &[two.at_b(number * 600, 600)]));
            a.party.fill(number * 600, 600, id);
            assert!(a.send(A, id, &[two.at_a(number * 600, 600)]).store());
        }
        assert!(!a.send(A, 0, &[]).store(), "one entry stays free");
        a.ring(A);
        two.net.run();
        assert!(b.party.holds(0, &a.party.bytes(0, 63 * 600)));
        let expected: Vec<_> = (round * 63..round * 63 + 63).map(|id| (id, OK)).collect();
        assert_eq!(a.ends(), expected);
        assert_eq!(b.ends(), expected);
    }
}

/// The sender waits as long as the receiver says, and goes on by itself.
#[test]
fn a_send_waits_for_a_receive() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    let bytes = a.party.fill(0, 3 * 9000, 1);
    for number in 0..3 {
        a.send(A, number, &[two.at_a(number * 9000, 9000)]).post();
    }
    two.net.run();
    assert_eq!((a.poll_all(), b.poll_all()), (vec![], vec![]));
    // Code 12: 640 microseconds.
    two.net.advance(639_000);
    assert!(b.post_receive(B, 0, &[two.at_b(0, 9000)]));
    two.net.run();
    assert_eq!(b.poll_all(), [], "not yet");
    two.net.advance(2_000);
    two.net.run();
    assert_eq!(b.poll_all(), [(0, OK, RECEIVED, 9000)]);
    assert_eq!(a.poll_all(), [(0, OK, SENT, 0)]);
    for number in 1..3 {
        assert!(b.post_receive(B, number, &[two.at_b(number * 9000, 9000)]));
    }
    two.net.advance(641_000);
    two.net.run();
    assert_eq!(b.poll_all().len(), 2);
    assert_eq!(a.poll_all().len(), 2);
    assert!(b.party.holds(0, &bytes));
}

#[test]
fn a_send_without_a_receive_fails_when_its_retries_are_over() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    let mut attributes = a.attributes(A, State::ReadyToSend, (1, B));
    attributes.not_ready_retries = 2;
    assert_eq!(a.modify(&attributes), qnic_abi::Status::Ok);
    a.send(A, 1, &[two.at_a(0, 100)]).post();
    a.send(A, 2, &[two.at_a(0, 100)]).post();
    for _ in 0..2 {
        two.net.run();
        assert_eq!(a.poll_all(), []);
        two.net.advance(641_000);
    }
    two.net.run();
    let outcomes = [Outcome::ReceiverNotReady, Outcome::Flushed].map(|it| it as u32);
    assert_eq!(a.ends(), [(1, outcomes[0]), (2, outcomes[1])]);
    assert_eq!(a.query(A).0, State::Failed);
    assert_eq!(b.query(B).0, State::ReadyToSend);
    // What is posted later is flushed, too.
    a.send(A, 3, &[two.at_a(0, 100)]).post();
    assert!(a.post_receive(A, 4, &[two.at_a(0, 100)]));
    a.ring(A);
    two.net.run();
    assert_eq!(a.ends(), [(3, outcomes[1]), (4, outcomes[1])]);
}

/// Pages of the source and of the destination, of which each is brought in when it is wanted.
#[test]
fn absent_pages_delay_a_message_and_change_nothing() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    let length = 9 * PAGE as u32;
    for answers in [true, false] {
        let bytes = a.party.fill(0, 2 * length as u64, 5 + u64::from(answers));
        two.net.answer_faults(answers);
        for number in 0..18 {
            a.party.evict(page(number));
            b.party.evict(page(number));
        }
        for number in 0..2 {
            let at = number * u64::from(length);
            assert!(b.post_receive(B, number, &[two.at_b(at, length)]));
            a.send(A, number, &[two.at_a(at, length)]).post();
        }
        two.net.run();
        if !answers {
            assert_eq!(b.poll_all(), []);
            // One page at a time, as a driver does that has no memory.
            while two.net.faults(0) + two.net.faults(1) > 0 {
                two.net.answer_all(0, 1);
                two.net.answer_all(1, 1);
            }
        }
        assert!(b.party.holds(0, &bytes), "answered at once: {answers}");
        assert_eq!(b.poll_all().len(), 2);
        assert_eq!(a.poll_all().len(), 2);
        two.net.assert_holds_nothing(1);
        two.net.assert_unlocked();
    }
}

#[test]
fn writes_go_where_they_say_and_end_a_receive_only_with_an_immediate() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    let first = b.party.segment.address;
    for (length, at) in [
        (0, 0),
        (1, 4),
        (4096, 7),
        (4096, page(2)),
        (65536, page(0) + 9),
    ] {
        let bytes = a.party.fill(33, u64::from(length), u64::from(length) + at);
        let write = a.send(A, 8, &[two.at_a(33, length)]);
        write.write_to(first + at, two.keys[1]).post();
        two.net.run();
        assert!(b.party.holds(at, &bytes), "{length}");
        let written = Completed::Write as u32;
        assert_eq!(a.poll_all(), [(8, OK, written, 0)]);
        assert_eq!(b.poll_all(), []);
    }
    let write = a.send(A, 9, &[two.at_a(0, 9000)]);
    write.write_to(first, two.keys[1]).immediate(5).post();
    two.net.run();
    assert_eq!(
        (a.ends(), b.ends()),
        (vec![], vec![]),
        "there is no receive"
    );
    assert!(b.post_receive(B, 1, &[]));
    two.net.advance(641_000);
    two.net.run();
    let written = Completed::ReceiveWrite as u32;
    assert_eq!(b.poll_all(), [(1, OK, written, 9000)]);
    assert_eq!(a.ends(), [(9, OK)]);
}

#[test]
fn a_node_sends_to_itself() {
    let net = Net::new(1, 1024, 8, &Limits::default());
    let [a, b] = [(1, A), (2, B)].map(|(vni, qp)| {
        let context = VerbsParty::new(net.party(0, vni), 256);
        context.create(qp, 64);
        context
    });
    a.connect(A, (0, B));
    b.connect(B, (0, A));
    let keys = [&a, &b].map(|it| it.register(Rights::all()).unwrap());
    let bytes = a.party.fill(0, 65536, 3);
    for page_number in 0..8 {
        b.party.evict(page(page_number));
    }
    assert!(b.post_receive(B, 1, &[b.sge(5, 65536, keys[1])]));
    a.send(A, 2, &[a.sge(0, 65536, keys[0])]).post();
    a.send(A, 3, &[a.sge(0, 100, keys[0])]).post();
    net.run();
    assert!(b.party.holds(5, &bytes));
    assert_eq!((a.ends(), b.ends()), (vec![(2, OK)], vec![(1, OK)]));
    assert!(b.post_receive(B, 2, &[b.sge(5, 100, keys[1])]));
    net.advance(641_000);
    net.run();
    assert_eq!((a.ends(), b.ends()), (vec![(3, OK)], vec![(2, OK)]));
    net.assert_unlocked();
    // The receiver ends.
    a.send(A, 4, &[a.sge(0, 100, keys[0])]).post();
    net.run();
    b.party.end();
    a.run_out();
    assert_eq!(a.ends(), [(4, Outcome::RetriesExceeded as u32)]);
}

/// Told once, at the next completion, or at once if that was before.
#[test]
fn an_armed_completion_queue_tells_once() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    let told = [(token(CQ), Event::Completion as u16)];
    let send = |flags: SendFlags| {
        assert!(b.post_receive(B, 1, &[]));
        a.send(A, 2, &[]).flags(flags).post();
        two.net.run();
    };
    send(SendFlags::empty());
    assert_eq!(b.events(), [], "it was not armed");
    let seen = b.produced();
    b.arm(0);
    two.net.run();
    assert_eq!(b.events(), []);
    send(SendFlags::empty());
    send(SendFlags::empty());
    assert_eq!(b.events(), told);
    // It was armed with what the program had seen before.
    b.arm_seen(0, seen);
    two.net.run();
    assert_eq!(b.events(), told);
    b.arm(SOLICITED_ONLY);
    two.net.run();
    send(SendFlags::empty());
    assert_eq!(b.events(), []);
    send(SendFlags::SOLICITED);
    assert_eq!(b.events(), told);
    // What fails is told as well.
    b.arm(SOLICITED_ONLY);
    assert!(b.post_receive(B, 1, &[]));
    assert_eq!(
        b.modify(&b.attributes(B, State::Failed, (0, A))),
        Status::Ok
    );
    two.net.run();
    assert_eq!(b.events(), told);
    // Not of an object that has ended.
    b.arm(0);
    b.arm_seen(0, 77);
    two.net.poll(1);
    assert_eq!(b.destroy(Object::QueuePair, B), Status::Ok);
    assert_eq!(b.destroy(Object::CompletionQueue, CQ), Status::Ok);
}

#[test]
fn a_queue_pair_tells_that_something_came_before_it_can_send() {
    let Pair { net, a, b } = Pair::lossless();
    let (a, b) = (VerbsParty::new(a, 64), VerbsParty::new(b, 64));
    a.create(A, 64);
    b.create(B, 64);
    a.connect(A, (1, B));
    for state in [State::Init, State::ReadyToReceive] {
        assert_eq!(b.modify(&b.attributes(B, state, (0, A))), Status::Ok);
    }
    for number in 0..2 {
        assert!(b.post_receive(B, number, &[]));
        a.send(A, number, &[]).post();
    }
    net.run();
    assert_eq!(b.ends(), [(0, OK), (1, OK)]);
    assert_eq!(b.events(), [(token(B), Event::Established as u16)]);
}

/// Each message once and in order, over a wire that loses, repeats and reorders frames.
#[test]
fn a_lossy_wire_changes_nothing() {
    for seed in 0..6 {
        let two = VerbsPair::on(Net::lossy(2, LossyWire::rough(50), seed));
        let (a, b) = (&two.a, &two.b);
        for number in 0..24 {
            let length = [0, 1, 600, 9000][number as usize % 4];
            let at = number * 9000;
            assert!(b.post_receive(B, number, &[two.at_b(at, length)]));
            assert!(a.send(A, number, &[two.at_a(at, length)]).store());
        }
        let bytes = a.party.fill(0, 24 * 9000, seed);
        let (first, from) = (24 * 9000, two.at_a(0, 9000));
        let write = a.send(A, 24, &[from]);
        let write = write.write_to(b.party.segment.address + first, two.keys[1]);
        assert!(write.store());
        a.ring(A);
        two.net.run();
        let expected: Vec<_> = (0..25).map(|number| (number, OK)).collect();
        assert_eq!(a.ends(), expected, "seed {seed}");
        assert_eq!(b.ends(), expected[..24], "seed {seed}");
        for number in (3..24).step_by(4) {
            let at = number * 9000;
            assert!(
                b.party.holds(at as u64, &bytes[at..at + 9000]),
                "seed {seed}"
            );
        }
        assert!(b.party.holds(first, &bytes[..9000]));
    }
}

/// What comes behind a frame that was lost is kept, and not sent again: losses cost round trips, and
/// not a timer for each frame. Time is that of the simulation.
#[test]
fn what_comes_behind_a_lost_frame_is_kept() {
    let wire = LossyWire {
        loss: 50,
        duplication: 0,
        delay: 25_000,
        jitter: 0,
    };
    for seed in 0..4 {
        let pair = VerbsPair::on(Net::lossy(2, wire.clone(), seed));
        let (a, b) = (&pair.a, &pair.b);
        let length = SEGMENT as u32;
        let bytes = a.party.fill(0, SEGMENT, seed);
        for number in 0..20 {
            assert!(b.post_receive(B, number, &[pair.at_b(0, length)]));
            assert!(a.send(A, number, &[pair.at_a(0, length)]).store());
        }
        a.ring(A);
        let mut ends = Vec::new();
        for _ in 0..20_000 {
            pair.net.advance(5_000);
            pair.net.poll_both(2);
            ends.extend(a.ends());
            if ends.len() == 20 {
                break;
            }
        }
        let expected: Vec<_> = (0..20).map(|number| (number, OK)).collect();
        assert_eq!(ends, expected, "seed {seed}: not within 100 ms");
        assert!(b.party.holds(0, &bytes));
        pair.net.run();
        let counters = pair.net.counters(1);
        assert!(counters.bounces > 0, "frames were kept");
        pair.net.assert_holds_nothing(1);
    }
}

/// Frames that were kept go with their session.
#[test]
fn kept_frames_end_with_their_session() {
    let wire = LossyWire {
        loss: 300,
        duplication: 0,
        delay: 25_000,
        jitter: 0,
    };
    let pair = VerbsPair::on(Net::lossy(2, wire, 3));
    let (a, b) = (&pair.a, &pair.b);
    for number in 0..20 {
        assert!(b.post_receive(B, number, &[pair.at_b(0, 60_000)]));
        assert!(a.send(A, number, &[pair.at_a(0, 60_000)]).store());
    }
    a.ring(A);
    for _ in 0..20_000 {
        pair.net.advance(1_000);
        pair.net.poll_both(1);
        if pair.net.counters(1).frames_held > 2 {
            break;
        }
    }
    assert!(pair.net.counters(1).frames_held > 2);
    pair.net.cut(0);
    pair.net.run();
    pair.net.assert_holds_nothing(1);
    assert_eq!(a.ends()[0].1, Outcome::RetriesExceeded as u32);
}
