//! Messages between processes (Q3, Q4, Q11 to Q13; docs/messages.md): a story for each rule.

use qnic_abi::host_area::COMPLETION_MORE;
use qnic_abi::Status;
use qnic_nic::testing::{nets, page, status, LossyWire, Net, Pair, PAGE};
use qnic_nic::Limits;

/// Longer than any frame of a short message.
const LONG: u64 = 5 * PAGE + 77;

#[test]
fn what_is_sent_arrives_whatever_comes_first() {
    for net in nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        for (length, expected) in [0, 1, 100, PAGE, LONG, 40 * PAGE]
            .into_iter()
            .flat_map(|length| [(length, true), (length, false)])
        {
            let bytes = a.fill(17, length, length + 1);
            let send = a.send(1, &b).bytes(17, length).tag(5).immediate(99);
            let receive = b.receive(2).bytes(33, length).from(&a).tag(5);
            match expected {
                true => {
                    receive.run();
                    send.run();
                }
                false => {
                    send.run();
                    receive.run();
                }
            }
            assert_eq!(a.sent(), [(1, Status::Ok)], "{length} {expected}");
            let entries = b.completions();
            let entry = entries.first().expect("a completion");
            assert_eq!((entries.len(), status(entry)), (1, Status::Ok));
            assert_eq!((entry.handle.get(), entry.tag.get()), (2, 5));
            assert_eq!((entry.immediate.get(), entry.length.get()), (99, length));
            assert_eq!((entry.node.get(), entry.port.get()), (0, a.port.0));
            assert!(b.holds(33, &bytes));
        }
        net.assert_holds_nothing(0);
        net.assert_holds_nothing(1);
        net.assert_unlocked();
    }
}

#[test]
fn a_receive_completes_in_the_poll_that_sends_its_message() {
    let Pair { net, a, b } = Pair::on(Net::new(2, 256, 8, &Limits::default()));
    // A session stands, and nothing is under way.
    b.receive(1).bytes(0, 8).run();
    a.send(1, &b).inline(b"opening.").run();
    assert_eq!((a.sent().len(), b.completions().len()), (1, 1));
    net.settle();
    b.receive(2).bytes(0, 8).run();
    a.send(2, &b).inline(b"8 bytes.").issue();
    net.poll(0);
    assert_eq!(
        b.completions().len(),
        1,
        "the receiver's NIC was not polled"
    );
    assert!(b.holds(0, b"8 bytes."));
}

#[test]
fn inline_messages_and_those_to_oneself_and_on_one_node_go_the_same_way() {
    let net = Net::new(1, 1024, 8, &Limits::default());
    let (a, b) = (net.party(0, 1), net.party(0, 2));
    for to in [&a, &b] {
        to.receive(1).bytes(0, 8).run();
        to.receive(2).bytes(10_000, LONG).run();
        let long = a.fill(50_000, LONG, 4);
        a.send(3, to).inline(b"in line!").issue();
        a.send(4, to).bytes(50_000, LONG).run();
        let entries = [a.completions(), b.completions()].concat();
        assert_eq!(entries.len(), 4);
        assert!(entries.iter().all(|entry| status(entry) == Status::Ok));
        assert!(to.holds(0, b"in line!") && to.holds(10_000, &long));
    }
    net.assert_holds_nothing(0);
}

#[test]
fn receives_match_in_posting_order_and_messages_do_not_overtake() {
    for net in nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        for round in 0..4u64 {
            let expected = round % 2 == 0;
            let receives = || {
                for number in 0..20u64 {
                    b.receive(number).bytes(number * 8192, 8192).tag(3).issue();
                }
                net.run();
            };
            if expected {
                receives();
            }
            for number in 0..20u64 {
                // Long ones between short ones.
                let length = if number % 3 == 0 { 6000 } else { 64 };
                let send = a.send(number, &b).bytes(0, length).tag(3);
                send.immediate(number).issue();
            }
            net.run();
            if !expected {
                receives();
            }
            let mut entries = b.completions();
            entries.sort_by_key(|entry| entry.handle.get());
            let order: Vec<_> = entries.iter().map(|it| it.immediate.get()).collect();
            assert_eq!(order, (0..20).collect::<Vec<_>>());
            assert_eq!(a.sent().len(), 20);
        }
        net.assert_holds_nothing(1);
    }
}

#[test]
fn sources_tags_spaces_and_endpoints_are_told_apart() {
    let net = Net::new(3, 1024, 8, &Limits::default());
    let (a, b, c) = (net.party(0, 1), net.party(1, 2), net.party(2, 3));
    b.receive(1).from(&c).issue();
    b.receive(2).tag(7).issue();
    b.receive(3).tag_ignoring(0x100, 0xff).issue();
    b.receive(4).untagged().issue();
    b.receive(5).endpoint(3).run();
    a.send(0, &b).tag(9).run();
    assert_eq!(b.received(), [], "no receive takes it");
    a.send(0, &b).tag(0x1ab).run();
    a.send(0, &b).untagged().run();
    a.send(0, &b).tag(9).endpoint(3).run();
    a.send(0, &b).tag(7).run();
    c.send(0, &b).tag(9).run();
    let order: Vec<_> = b.received().into_iter().map(|end| end.0).collect();
    assert_eq!(order, [3, 4, 5, 2, 1]);
    b.receive(6).run();
    assert_eq!(b.received(), [(6, Status::Ok)]);
    net.assert_holds_nothing(1);
}

#[test]
fn a_message_that_is_too_long_is_truncated() {
    let Pair { net, a, b } = Pair::lossless();
    let bytes = a.fill(0, LONG, 3);
    let before = b.fill(0, LONG, 4);
    for (length, room) in [(100, 60), (LONG, 5000), (LONG, 0)] {
        b.receive(1).bytes(0, room).run();
        a.send(2, &b).bytes(0, length).run();
        let entries = b.completions();
        assert_eq!(status(&entries[0]), Status::Truncated);
        assert_eq!(entries[0].length.get(), length);
        let expected = match length > PAGE {
            true => Status::Truncated,
            false => Status::Ok,
        };
        assert_eq!(a.sent(), [(2, expected)]);
        assert!(b.holds(0, &bytes[..room as usize]));
        let rest = room.max(5000) as usize;
        assert!(b.holds(rest as u64, &before[rest..]));
    }
    net.assert_holds_nothing(1);
}

#[test]
fn one_receive_takes_many_messages_one_behind_the_other() {
    let Pair { net, a, b } = Pair::lossless();
    let bytes = a.fill(0, 3 * LONG, 3);
    a.send(0, &b).bytes(0, 100).run();
    b.receive(1).bytes(0, 100 + LONG + 50).many().run();
    a.send(0, &b).bytes(100, LONG).run();
    a.send(0, &b).bytes(100 + LONG, 60).run();
    let entries = b.completions();
    let ends = entries
        .iter()
        .map(|it| (it.offset.get(), it.flags, status(it)));
    let ends: Vec<_> = ends.collect();
    let expected = [
        (0, COMPLETION_MORE, Status::Ok),
        (100, COMPLETION_MORE, Status::Ok),
        (100 + LONG, 0, Status::Truncated),
    ];
    assert_eq!(ends, expected);
    assert!(b.holds(0, &bytes[..100 + LONG as usize + 50]));
    net.assert_holds_nothing(1);
}

/// So no message up to that length is truncated (Q3).
#[test]
fn a_receive_of_many_ends_when_it_has_less_left_than_it_keeps() {
    let Pair { net, a, b } = Pair::lossless();
    b.receive(1).many_untagged(50).bytes(0, 200).run();
    for length in [100, 50, 50] {
        a.send(0, &b).untagged().bytes(0, length).run();
    }
    let ends = b.completions();
    let ends = ends
        .iter()
        .map(|it| (it.offset.get(), it.flags, status(it)));
    let ends: Vec<_> = ends.collect();
    // 50 bytes are left behind the second, none behind the third.
    let more = COMPLETION_MORE;
    assert_eq!(
        ends,
        [
            (0, more, Status::Ok),
            (100, more, Status::Ok),
            (150, 0, Status::Ok)
        ]
    );
    b.receive(2).many_untagged(50).bytes(0, 200).run();
    a.send(0, &b).untagged().bytes(0, 151).run();
    let end = b.completion();
    assert_eq!((end.flags, status(&end)), (0, Status::Ok));
    net.assert_holds_nothing(1);
}

#[test]
fn a_mark_comes_with_its_message() {
    let Pair { net, a, b } = Pair::lossless();
    a.fill(0, LONG, 3);
    for length in [0, 100, LONG] {
        a.send(0, &b).mark(0x8001).bytes(0, length).run();
        b.probe(1).run();
        assert_eq!(b.completion().mark.get(), 0x8001);
        b.receive(2).bytes(0, LONG).run();
        assert_eq!(b.completion().mark.get(), 0x8001);
    }
    net.assert_holds_nothing(1);
}

/// Its process knows by that when nothing more of it comes.
#[test]
fn the_end_of_a_receive_of_many_says_how_much_messages_have_taken() {
    let Pair { net, a, b } = Pair::lossless();
    b.receive(1).bytes(0, 20 * PAGE).many().run();
    a.send(0, &b).bytes(0, 100).run();
    a.send(0, &b).bytes(0, LONG).run();
    b.cancel(1);
    let ends = b.completions();
    let ends = ends.iter().map(|it| (it.offset.get(), status(it)));
    let ends: Vec<_> = ends.collect();
    let last = (100 + LONG, Status::Cancelled);
    assert_eq!(ends, [(0, Status::Ok), (100, Status::Ok), last]);
    net.assert_holds_nothing(1);
}

#[test]
fn cancel_takes_a_receive_back_once_and_no_other() {
    let Pair { a, b, .. } = Pair::lossless();
    b.receive(7).tag(1).issue();
    b.receive(7).tag(2).run();
    b.cancel(7);
    b.cancel(8);
    assert_eq!(b.received(), [(7, Status::Cancelled)]);
    a.send(0, &b).tag(2).run();
    assert_eq!(b.received(), [(7, Status::Ok)]);
    b.cancel(7);
    assert_eq!(b.received(), []);
}

#[test]
fn absent_pages_on_both_sides_delay_and_change_nothing() {
    for (length, expected) in [(3000, true), (3000, false), (LONG, true), (LONG, false)] {
        let Pair { net, a, b } = Pair::lossless();
        let bytes = a.fill(page(0) - 1000, length, 5);
        net.answer_faults(false);
        let all = (0..8).map(page).chain([0]);
        for at in all {
            a.evict(at);
            b.evict(at);
        }
        let send = a.send(1, &b).bytes(page(0) - 1000, length);
        let receive = b.receive(2).bytes(page(1) - 2000, length);
        match expected {
            true => {
                receive.run();
                send.run();
            }
            false => {
                send.run();
                receive.run();
            }
        }
        for _ in 0..40 {
            net.answer_all(0, 1);
            net.answer_all(1, 1);
        }
        assert_eq!(a.sent(), [(1, Status::Ok)]);
        assert_eq!(b.received(), [(2, Status::Ok)]);
        assert!(b.holds(page(1) - 2000, &bytes));
        net.assert_holds_nothing(1);
        net.assert_unlocked();
    }
}

#[test]
fn pages_that_never_come_fail_the_receive() {
    for length in [3000, LONG] {
        let Pair { net, a, b } = Pair::lossless();
        b.set_available(page(0), false);
        b.evict(page(0));
        b.receive(2).bytes(page(0), length).run();
        a.send(1, &b).bytes(0, length).run();
        assert_eq!(b.received(), [(2, Status::OwnPageUnavailable)]);
        let expected = match length > PAGE {
            true => Status::PageUnavailable,
            false => Status::Ok,
        };
        assert_eq!(a.sent(), [(1, expected)]);
        net.assert_holds_nothing(1);
    }
}

#[test]
fn a_slow_receiver_exhausts_staging_and_others_go_on() {
    let limits = Limits {
        staged_bytes: 10_000,
        ..Limits::default()
    };
    for wire in [None, Some(LossyWire::rough(100))] {
        let net = Net::new(2, 1024, 8, &limits);
        if let Some(wire) = wire {
            net.cluster().set_lossy_wire(wire, 3);
        }
        let (a, b, c) = (net.party(0, 1), net.party(1, 2), net.party(1, 3));
        let bytes = a.fill(0, 40 * 2000, 9);
        for number in 0..40 {
            a.send(number, &b).bytes(number * 2000, 2000).issue();
        }
        net.run();
        let done = a.sent().len();
        assert!(
            (1..10).contains(&done),
            "{done} are staged, the others wait"
        );
        assert!(net.budget(1, "staged_bytes_of_process") <= 10_000);
        for number in 0..20 {
            c.receive(number).bytes(0, 2000).run();
            a.send(100 + number, &c).bytes(0, 2000).run();
            assert_eq!(c.received(), [(number, Status::Ok)]);
            assert_eq!(a.sent(), [(100 + number, Status::Ok)]);
        }
        for number in 0..40 {
            b.receive(number).bytes(number * 2000, 2000).issue();
        }
        net.run();
        assert_eq!(a.sent().len() + done, 40);
        assert_eq!(b.received().len(), 40);
        assert!(b.holds(0, &bytes));
        net.assert_holds_nothing(1);
    }
}

/// A source that finds no room asks for permission, and seldom tries again: bytes for which there
/// is no room are not sent. With room again, short messages take the short way.
#[test]
fn short_messages_ask_while_their_receiver_has_no_room() {
    const MESSAGES: u64 = 200;
    const LENGTH: u64 = 1000;
    let limits = Limits {
        staged_bytes: 5_000,
        ..Limits::default()
    };
    for wire in [None, Some(LossyWire::steady(10_000))] {
        let net = Net::new(2, 1024, 8, &limits);
        if let Some(wire) = wire {
            net.cluster().set_lossy_wire(wire, 3);
        }
        let (a, b) = (net.party(0, 1), net.party(1, 2));
        let bytes = a.fill(0, MESSAGES * LENGTH, 9);
        let mut carried = 0;
        for _ in 0..2 {
            for number in 0..MESSAGES {
                a.send(number, &b).bytes(number * LENGTH, LENGTH).run();
            }
            for number in 0..MESSAGES {
                b.receive(number).bytes(number * LENGTH, LENGTH).run();
            }
            for ends in [a.sent(), b.received()] {
                assert_eq!(ends.len() as u64, MESSAGES);
                assert!(ends.iter().all(|(_, status)| *status == Status::Ok));
            }
            assert!(b.holds(0, &bytes));
            let before = std::mem::replace(&mut carried, net.counters(0).bytes_sent);
            let twice = (carried - before) / LENGTH - MESSAGES;
            // Refused are the first, and those behind 1, 2, 4 … 64 that ask.
            assert!((5..10).contains(&twice), "{twice} were sent twice");
            // Short messages find room again, each at once but for those that still ask.
            for number in 0..100 {
                b.receive(number).bytes(0, LENGTH).run();
                a.send(number, &b).bytes(0, LENGTH).run();
            }
            assert_eq!(a.sent().len() + b.received().len(), 200);
            carried = net.counters(0).bytes_sent;
            b.store(0, &bytes);
        }
    }
}

/// MPI lets a program send as much as it likes before it receives, and receive in another order.
#[test]
fn a_thousand_long_messages_wait_and_hold_up_nothing() {
    const MESSAGES: u64 = 1023;
    let limits = Limits {
        staged_bytes: 4_000,
        ..Limits::default()
    };
    for wire in [None, Some(LossyWire::rough(50))] {
        let net = Net::new(2, 1024, 8, &limits);
        if let Some(wire) = wire {
            net.cluster().set_lossy_wire(wire, 5);
        }
        let (a, b, c) = (net.party(0, 1), net.party(1, 2), net.party(1, 3));
        let bytes = a.fill(0, 3 * 4096, 9);
        for number in 0..MESSAGES {
            let length = 4097 + number;
            a.send(number, &b).bytes(0, length).tag(number).issue();
            if number % 50 == 0 {
                net.run();
            }
        }
        net.settle();
        assert_eq!(a.sent(), [], "none has a receive");
        assert_eq!(net.budget(0, "sends_of_process"), MESSAGES);
        assert_eq!(net.budget(0, "operations_of_process"), 0);
        assert_eq!(net.budget(1, "envelopes_of_peer"), MESSAGES);
        // Receives and transfers are read behind them, and go on.
        a.receive(0).bytes(32_768, 8).run();
        c.send(0, &a).inline(&[7; 8]).run();
        assert_eq!(a.received(), [(0, Status::Ok)]);
        a.inline_write(&c, &[1; 8]).run();
        assert_eq!(a.done(), (1, 0));
        for number in (0..MESSAGES).rev() {
            b.receive(number).bytes(0, 8192).tag(number).run();
            assert_eq!(b.received(), [(number, Status::Ok)]);
            assert!(b.holds(0, &bytes[..4097 + number as usize]));
            assert_eq!(a.sent(), [(number, Status::Ok)]);
        }
        net.assert_holds_nothing(1);
        assert_eq!(net.budget(0, "sends_of_process"), 0);
    }
}

/// One more, and the commands behind it wait for one to end.
#[test]
fn a_queue_waits_when_as_many_messages_run_as_may() {
    let limits = Limits {
        sends: 70,
        staged_bytes: 4_000,
        ..Limits::default()
    };
    let Pair { net, a, b } = Pair::on(Net::new(2, 512, 8, &limits));
    for number in 0..71 {
        a.send(number, &b).bytes(0, 5000).tag(number).issue();
        if number % 50 == 0 {
            net.run();
        }
    }
    a.inline_write(&b, &[1; 8]).run();
    assert_eq!(net.budget(0, "sends_of_process"), 70);
    assert_eq!(a.done(), (0, 0), "it stands behind the 71st");
    b.receive(1).bytes(8192, 5000).tag(60).run();
    assert_eq!(a.sent(), [(60, Status::Ok)]);
    assert_eq!(a.done(), (0, 0), "the 71st runs instead");
    b.receive(2).bytes(8192, 5000).tag(70).run();
    assert_eq!(a.sent(), [(70, Status::Ok)]);
    assert_eq!(a.done(), (1, 0));
    assert_eq!(a.reset_queue(), Status::Ok);
    net.run();
    net.assert_holds_nothing(1);
}

#[test]
fn ten_thousand_receives_are_posted_and_each_gets_its_message() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let (a, b) = (net.party(0, 1), net.party(1, 2));
    for first in (0..10_000u64).step_by(50) {
        for tag in first..first + 50 {
            b.receive(tag).bytes(tag % 16 * 8, 8).tag(tag).issue();
        }
        net.run();
    }
    assert_eq!(net.budget(1, "receives_of_process"), 10_000);
    let mut ended = 0;
    for first in (0..10_000u64).rev().step_by(50) {
        for tag in (first - 49..=first).rev() {
            a.send(tag, &b).inline(&tag.to_le_bytes()).tag(tag).issue();
        }
        net.run();
        assert_eq!(a.completions().len(), 50);
        let entries = b.completions();
        assert!(entries.iter().all(|it| it.handle == it.tag));
        ended += entries.len();
    }
    assert_eq!(ended, 10_000);
    assert_eq!(net.budget(1, "receives_of_process"), 0);
}

#[test]
fn too_many_receives_fail_one_by_one() {
    let limits = Limits {
        receives: 3,
        ..Limits::default()
    };
    let Pair { a, b, .. } = Pair::on(Net::new(2, 512, 8, &limits));
    for handle in 0..4 {
        b.receive(handle).run();
    }
    assert_eq!(b.received(), [(3, Status::Exhausted)]);
    a.send(0, &b).run();
    assert_eq!(b.received(), [(0, Status::Ok)]);
}

/// Masks beyond those that have bins cost walks, and no receive is refused (Q4). A process whose
/// messages walk far gets the rest in later polls, and another one has its message at once.
#[test]
fn any_number_of_masks_is_taken_at_the_expense_of_their_process() {
    for net in nets(2, 3) {
        let Pair { net, a, b } = Pair::on(net);
        let other = net.party(1, 3);
        let receives = 1_000;
        for handle in 0..receives {
            // The lowest bit has to be set, and ever more of the others are ignored.
            b.receive(handle).tag_ignoring(1, handle << 1).issue();
            if handle % 64 == 63 {
                net.run();
            }
        }
        other.receive(1).issue();
        net.run();
        let sends = 40;
        for handle in 0..sends {
            a.send(handle, &b)
                .tag(((receives - 1 - handle) << 1) | 1)
                .issue();
        }
        a.send(sends, &other).issue();
        net.run();
        let others = other.received();
        assert_eq!(others, [(1, Status::Ok)]);
        assert_eq!(a.sent().len() as u64, sends + 1);
        // In order: each took the first receive that ignores all bits that it has.
        let received = b.received();
        assert!(received.iter().all(|end| end.1 == Status::Ok));
        let mut open: Vec<u64> = (0..receives).collect();
        let expected = (0..sends).map(|send| {
            let bits = receives - 1 - send;
            let first = open.iter().position(|ignored| bits & !ignored == 0);
            open.remove(first.expect("a receive"))
        });
        let expected: Vec<u64> = expected.collect();
        let handles: Vec<u64> = received.iter().map(|end| end.0).collect();
        assert_eq!(handles, expected);
    }
}

#[test]
fn completions_that_nobody_reads_are_kept_and_hold_commands_and_messages_back() {
    let Pair { net, a, b } = Pair::lossless();
    b.receive(0).many().bytes(0, 1).run();
    for round in 0..40u64 {
        for number in 0..25 {
            a.send(0, &b).immediate(round * 25 + number).issue();
        }
        net.run();
        a.completions();
    }
    // All are zero bytes long: the receive stays. 256 are in the queue, 256 wait.
    let mut seen = Vec::new();
    while seen.len() < 1000 {
        let entries = b.completions();
        assert!(!entries.is_empty() && entries.len() <= 256);
        seen.extend(entries.iter().map(|entry| entry.immediate.get()));
        net.run();
    }
    assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    net.assert_holds_nothing(1);
}
