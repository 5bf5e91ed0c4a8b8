//! What becomes of messages that nothing has asked for (Q12): they are staged, or they wait.

use qnic_abi::Status;
use qnic_nic::testing::{nets, status, LossyWire, Net, Pair, PAGE};
use qnic_nic::Limits;

/// In more frames than one.
const LONG: u64 = 5 * PAGE + 77;

#[test]
fn sends_that_nothing_has_asked_for_end_when_they_are_staged() {
    for net in nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        for length in [0, 1, PAGE, PAGE + 1, LONG, 64 << 10, 100_000] {
            let bytes = [a.fill(17, length, 1), b.fill(17, length, 2)];
            a.send(1, &b).bytes(17, length).tag(5).issue();
            b.send(2, &a).bytes(17, length).tag(5).issue();
            net.run();
            assert_eq!(a.ends(), [(1, Status::Ok)], "{length}");
            assert_eq!(b.ends(), [(2, Status::Ok)], "{length}");
            let into = 30 * PAGE + 33;
            a.receive(3).bytes(into, length).tag(5).run();
            b.receive(4).bytes(into, length).tag(5).run();
            assert_eq!(a.ends(), [(3, Status::Ok)]);
            assert_eq!(b.ends(), [(4, Status::Ok)]);
            assert!(a.holds(into, &bytes[1]) && b.holds(into, &bytes[0]));
        }
        net.assert_holds_nothing(0);
        net.assert_holds_nothing(1);
        net.assert_unlocked();
    }
}

#[test]
fn a_receive_may_come_while_bytes_are_coming() {
    for steps in 0..40 {
        let Pair { net, a, b } = Pair::on(Net::lossy(2, LossyWire::steady(10_000), 3));
        let bytes = a.fill(0, 40 * PAGE, 5);
        a.send(1, &b).bytes(0, 40 * PAGE).issue();
        for _ in 0..steps {
            net.advance(2_000);
            net.poll_both(1);
        }
        b.receive(2).bytes(0, 30 * PAGE).issue();
        net.run();
        let ends = a.ends();
        assert!(matches!(ends[..], [(1, Status::Ok | Status::Truncated)]));
        assert_eq!(b.ends(), [(2, Status::Truncated)]);
        assert!(b.holds(0, &bytes[..30 * PAGE as usize]));
        net.assert_holds_nothing(1);
        net.assert_unlocked();
    }
}

/// What comes after the receive goes straight to its pages, before the message is there as a whole; what
/// came before is copied when it is (Q12).
#[test]
fn what_comes_after_the_receive_goes_straight_to_its_pages() {
    let limits = Limits {
        fragments_per_poll: 2,
        ..Limits::default()
    };
    let mut seen = 0;
    for steps in 0..40 {
        let net = Net::new(2, 1024, 8, &limits);
        net.cluster().set_lossy_wire(LossyWire::steady(10_000), 3);
        let Pair { net, a, b } = Pair::on(net);
        let bytes = a.fill(0, 40 * PAGE, 5);
        a.send(1, &b).bytes(0, 40 * PAGE).issue();
        for _ in 0..steps {
            net.advance(2_000);
            net.poll_both(1);
        }
        // Not at the border of a page.
        let at = 100;
        b.receive(2).bytes(at, 40 * PAGE).issue();
        let has = |page: u64| {
            let bytes = &bytes[(page * PAGE) as usize..][..PAGE as usize];
            b.holds(at + page * PAGE, bytes)
        };
        while b.ends().is_empty() {
            seen += u32::from(!has(0) && (1..40).any(has));
            net.advance(2_000);
            net.poll_both(1);
        }
        assert!(b.holds(at, &bytes));
        net.run();
        net.assert_holds_nothing(1);
        net.assert_unlocked();
    }
    assert!(seen > 0, "everything was staged");
}

/// The source, or the process that receives, ends in between: the receive ends too, and nothing is left.
#[test]
fn either_side_may_end_while_the_rest_goes_straight() {
    let limits = Limits {
        fragments_per_poll: 2,
        ..Limits::default()
    };
    let mut failed = 0;
    for steps in (15..80).step_by(5) {
        for source_ends in [true, false] {
            let net = Net::new(2, 1024, 8, &limits);
            net.cluster().set_lossy_wire(LossyWire::steady(10_000), 3);
            let Pair { net, a, b } = Pair::on(net);
            a.fill(0, 40 * PAGE, 5);
            a.send(1, &b).bytes(0, 40 * PAGE).issue();
            for step in 0..steps + 10 {
                if step == steps {
                    b.receive(2).bytes(100, 40 * PAGE).issue();
                }
                net.advance(2_000);
                net.poll_both(1);
            }
            match source_ends {
                true => a.end(),
                false => b.end(),
            }
            net.run();
            if source_ends {
                let ends = b.ends();
                assert!(
                    matches!(ends[..], [(2, Status::Ok | Status::PeerGone)]),
                    "{ends:?}"
                );
                failed += u32::from(ends[0].1 == Status::PeerGone);
            }
            net.assert_holds_nothing(1);
            net.assert_unlocked();
        }
    }
    assert!(failed > 0, "every message came as a whole");
}

#[test]
fn a_message_may_be_discarded_and_its_source_may_end_while_bytes_are_coming() {
    for steps in 0..40 {
        for ends in [false, true] {
            let Pair { net, a, b } = Pair::on(Net::lossy(2, LossyWire::steady(10_000), 3));
            a.fill(0, 40 * PAGE, 5);
            a.send(1, &b).bytes(0, 40 * PAGE).issue();
            for _ in 0..steps {
                net.advance(2_000);
                net.poll_both(1);
            }
            match ends {
                true => a.end(),
                false => {
                    b.probe(2).discard().wait().issue();
                    net.run();
                    let sent = a.ends();
                    assert!(matches!(sent[..], [(1, Status::Ok | Status::Truncated)]));
                }
            }
            net.run();
            // What has come as a whole outlives its source.
            b.probe(3).discard().run();
            net.assert_holds_nothing(1);
            net.assert_unlocked();
        }
    }
}

/// A sender that sends more than its share leaves the others theirs.
#[test]
fn a_sender_does_not_take_the_room_of_others() {
    let limits = Limits {
        staged_bytes: 200_000,
        staged_bytes_per_sender: 40_000,
        ..Limits::default()
    };
    for lossy in [false, true] {
        let net = Net::new(2, 1024, 8, &limits);
        if lossy {
            net.cluster().set_lossy_wire(LossyWire::rough(100), 3);
        }
        let (greedy, b) = (net.party(0, 1), net.party(1, 2));
        for number in 0..30 {
            greedy.send(number, &b).bytes(0, 10_000).issue();
        }
        net.run();
        let staged = greedy.ends().len() as u64;
        assert!(staged < 11, "{staged}");
        for sender in [net.party(0, 3), net.party(1, 4)] {
            sender.send(1, &b).bytes(0, 32_000).run();
            assert_eq!(sender.ends(), [(1, Status::Ok)]);
        }
        assert!(net.budget(1, "staged_bytes_of_process") <= 200_000);
        // As the process receives, the others are staged: the last ones before their receives.
        for number in 0..20 {
            b.receive(number).from(&greedy).bytes(0, 10_000).run();
        }
        assert_eq!(b.ends().len(), 20);
        let sent = staged + greedy.ends().len() as u64;
        assert!((22..=30).contains(&sent), "{sent}");
        for number in 20..32 {
            b.receive(number).bytes(0, 32_000).run();
        }
        assert_eq!(b.ends().len(), 12);
        net.assert_holds_nothing(1);
    }
}

/// A node that keeps as many messages as it may makes the next ones wait at their source, in order
/// and beside those to other nodes.
#[test]
fn messages_beyond_what_a_node_keeps_wait_for_those_before_them() {
    let limits = Limits {
        staged_bytes: 300,
        envelopes_per_peer: 30,
        ..Limits::default()
    };
    for lossy in [false, true] {
        let net = Net::new(3, 1024, 8, &limits);
        if lossy {
            net.cluster().set_lossy_wire(LossyWire::rough(100), 3);
        }
        let (a, b, c) = (net.party(0, 1), net.party(1, 2), net.party(2, 3));
        for number in 0..60u64 {
            let length = [0, 100, 2 * PAGE][number as usize % 3];
            let send = a.send(number, &b).bytes(0, length);
            send.immediate(number).issue();
            net.run();
        }
        assert!(net.budget(1, "envelopes_of_peer") <= 3);
        c.receive(1).run();
        a.send(99, &c).run();
        assert_eq!(c.ends(), [(1, Status::Ok)], "another node is not held up");
        let mut received = Vec::new();
        for number in 0..60 {
            b.receive(number).bytes(0, 2 * PAGE).run();
            let entries = b.completions();
            assert!(entries.iter().all(|entry| status(entry) == Status::Ok));
            received.extend(entries.iter().map(|entry| entry.immediate.get()));
        }
        assert_eq!(received, (0..60).collect::<Vec<_>>());
        let sent = a.ends();
        assert!(sent.len() == 61 && sent.iter().all(|end| end.1 == Status::Ok));
        net.assert_holds_nothing(1);
    }
}
