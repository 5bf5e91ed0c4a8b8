//! Messages whose process, segment, queue or node ends (Q3, Q4; docs/messages.md): what waits
//! for them fails, and nothing else.

use qnic_abi::Status;
use qnic_nic::testing::{nets, page, scarce, scarce_nets, status, LossyWire, Net, Pair, PAGE};
use qnic_nic::Limits;

/// Longer than any frame of a short message.
const LONG: u64 = 5 * PAGE + 77;

#[test]
fn a_sender_that_ends_fails_receives_from_it_and_no_others() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        let long = a.fill(0, LONG, 1);
        a.send(1, &b).tag(1).bytes(0, 50).issue();
        a.send(2, &b).tag(2).bytes(0, LONG).run();
        b.receive(3).from(&a).tag(3).issue();
        b.receive(4).tag(4).run();
        a.end();
        net.run();
        assert_eq!(b.received(), [(3, Status::PeerGone)]);
        b.receive(5).bytes(0, LONG).tag(1).run();
        assert_eq!(b.received(), [(5, Status::Ok)], "it had arrived");
        assert!(b.holds(0, &long[..50]));
        b.receive(6).bytes(0, LONG).tag(2).run();
        assert_eq!(b.received(), [], "it will not come");
        net.assert_holds_nothing(1);
        // Another process of that port begins anew.
        let again = net.party(0, 1);
        again.send(1, &b).tag(4).run();
        assert_eq!(b.received(), [(4, Status::Ok)]);
    }
}

/// The news that a process has ended may come behind a message of the next one on its port. What names
/// the port from then on is for that one, and does not end; what named it before does.
#[test]
fn what_is_posted_for_a_successor_outlives_late_news_of_its_predecessor() {
    let net = Net::new(2, 2048, 8, &scarce());
    net.cluster().set_lossy_wire(LossyWire::steady(20_000), 3);
    let Pair { net, a, b } = Pair::on(net);
    b.send(1, &a).tag(9).issue();
    a.receive(1).tag(9).run();
    assert_eq!(a.received(), [(1, Status::Ok)]);
    a.receive(2).from(&b).tag(1).issue();
    a.probe(3).from(&b).tag(1).wait().issue();
    net.poll(0);
    // The news is lost.
    net.cut(1);
    b.end();
    net.poll(1);
    net.heal();
    let next = net.party(1, 2);
    next.send(4, &a).tag(2).issue();
    net.poll(1);
    net.advance(20_000);
    a.receive(4).from(&next).tag(2).issue();
    net.poll(0);
    assert_eq!(a.received(), [(4, Status::Ok)]);
    a.receive(5).from(&next).tag(3).issue();
    a.probe(6).from(&next).tag(3).wait().issue();
    a.send(7, &next).bytes(0, LONG).tag(4).issue();
    net.run();
    let mut ends = a.ends();
    ends.sort_unstable_by_key(|end| end.0);
    assert_eq!(ends, [(2, Status::PeerGone), (3, Status::PeerGone)]);
    next.receive(7).bytes(0, LONG).tag(4).issue();
    next.send(8, &a).tag(3).issue();
    next.send(9, &a).tag(3).run();
    let mut ends = a.ends();
    ends.sort_unstable_by_key(|end| end.0);
    assert_eq!(ends, [5, 6, 7].map(|handle| (handle, Status::Ok)));
}

/// The same of messages that the next one gets: it has permitted one before the news comes, and not the
/// other. What the first one had got fails.
#[test]
fn what_a_successor_gets_outlives_late_news_of_its_predecessor() {
    let net = Net::new(2, 2048, 8, &scarce());
    net.cluster().set_lossy_wire(LossyWire::steady(20_000), 3);
    let Pair { net, a, b } = Pair::on(net);
    a.send(1, &b).bytes(0, LONG).run();
    // The news is lost.
    net.cut(1);
    b.end();
    net.poll(1);
    net.heal();
    let next = net.party(1, 2);
    next.receive(2).tag(2).bytes(0, LONG).issue();
    for tag in [2, 3] {
        a.send(tag, &next).tag(tag).bytes(0, LONG).issue();
    }
    net.poll(0);
    net.advance(20_000);
    net.poll(1);
    net.advance(20_000);
    // The permit comes; what it permits is lost, so the news comes again before any of it arrives.
    net.cut(0);
    net.poll(0);
    net.heal();
    for _ in 0..100 {
        net.advance(1_000_000);
        net.poll(1);
    }
    net.run();
    assert_eq!(next.received(), [(2, Status::Ok)]);
    next.receive(3).tag(3).bytes(0, LONG).run();
    assert_eq!(next.received(), [(3, Status::Ok)]);
    let mut sent = a.sent();
    sent.sort_unstable_by_key(|end| end.0);
    let ends = [(1, Status::PeerGone), (2, Status::Ok), (3, Status::Ok)];
    assert_eq!(sent, ends);
}

#[test]
fn a_receiver_that_ends_fails_what_is_sent_to_it() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        a.send(1, &b).bytes(0, LONG).issue();
        a.send(2, &b).bytes(0, 10).run();
        b.end();
        net.run();
        let mut ends = a.sent();
        ends.sort_unstable_by_key(|end| end.0);
        assert_eq!(ends, [(1, Status::PeerGone), (2, Status::Ok)]);
        net.assert_holds_nothing(1);
        a.send(3, &b).run();
        assert_eq!(a.sent(), [(3, Status::NoSuchPort)]);
        let again = net.party(1, 2);
        again.receive(1).bytes(0, LONG).run();
        a.send(4, &again).bytes(0, LONG).run();
        assert_eq!(a.sent(), [(4, Status::Ok)]);
        assert_eq!(again.received(), [(1, Status::Ok)]);
    }
}

#[test]
fn transfers_end_with_either_process_while_pages_are_missing() {
    for (length, who) in [(3000, 0), (3000, 1), (LONG, 0), (LONG, 1)] {
        let Pair { net, a, b } = Pair::absent(&Limits::default(), &[0, 1, 2, 3, 4, 5]);
        b.receive(2).from(&a).bytes(page(0), length).run();
        a.send(1, &b).bytes(0, length).run();
        assert!(net.faults(1) > 0);
        match who {
            0 => a.end(),
            _ => b.end(),
        }
        net.run();
        net.answer_all(1, 8);
        net.answer_faults(true);
        net.run();
        if who == 0 {
            let expected = if length > PAGE {
                Status::PeerGone
            } else {
                Status::Ok
            };
            assert_eq!(b.received(), [(2, expected)]);
        } else if length > PAGE {
            assert_eq!(a.sent(), [(1, Status::PeerGone)]);
        }
        net.assert_holds_nothing(1);
        net.assert_unlocked();
    }
}

#[test]
fn a_queue_that_is_reset_takes_its_messages_and_receives_with_it() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        a.send(1, &b).bytes(0, LONG).tag(1).issue();
        b.receive(2).tag(9).run();
        assert_eq!(a.reset_queue(), Status::Ok);
        a.clear_queue();
        assert_eq!(b.reset_queue(), Status::Ok);
        b.clear_queue();
        net.run();
        net.assert_holds_nothing(1);
        assert_eq!(net.budget(1, "receives_of_process"), 0);
        b.receive(3).bytes(0, LONG).run();
        a.send(4, &b).bytes(0, LONG).tag(9).run();
        assert_eq!(b.received(), [(3, Status::Ok)]);
        assert_eq!(a.sent(), [(4, Status::Ok)]);
    }
}

#[test]
fn a_segment_that_is_unexported_ends_what_uses_it() {
    let Pair { net, a, b } = Pair::scarce();
    a.send(1, &b).bytes(0, LONG).tag(1).run();
    b.receive(2).bytes(0, 10).tag(2).run();
    assert_eq!(a.unexport(&a), Status::Ok);
    assert_eq!(b.unexport(&b), Status::Ok);
    net.run();
    assert_eq!(a.sent(), [(1, Status::Aborted)]);
    assert_eq!(b.received(), [(2, Status::Aborted)]);
    net.assert_holds_nothing(1);
    b.receive(3).bytes(0, 10).run();
    assert_eq!(b.received(), [(3, Status::NoSuchSegment)]);
    a.send(4, &b).bytes(0, 10).run();
    assert_eq!(a.sent(), [(4, Status::NoSuchSegment)]);
}

#[test]
fn a_node_that_is_reset_is_gone_for_both_sides() {
    for lossy in [false, true] {
        let Pair { net, a, b } = Pair::scarce();
        if lossy {
            net.cluster().set_lossy_wire(LossyWire::rough(50), 5);
        }
        a.send(1, &b).bytes(0, LONG).tag(1).run();
        a.receive(2).from(&b).issue();
        a.receive(3).run();
        net.cluster().reset(1);
        net.run();
        let entries = a.completions();
        let mut ends: Vec<_> = entries
            .iter()
            .map(|it| (it.handle.get(), status(it)))
            .collect();
        ends.sort_unstable_by_key(|end| end.0);
        assert_eq!(ends, [(1, Status::PeerGone), (2, Status::PeerGone)]);
        net.assert_holds_nothing(0);
        net.cluster().start(1);
        let b = net.party(1, 2);
        b.send(1, &a).run();
        assert_eq!(a.received(), [(3, Status::Ok)]);
    }
}

/// The next process on its port has nothing of it, short or long, whether it has an incarnation or not.
#[test]
fn a_message_reaches_no_process_of_another_incarnation() {
    for net in nets(2, 5) {
        let Pair { net, a, b } = Pair::on(net);
        a.set_incarnation(5);
        b.set_incarnation(7);
        b.receive(1).run();
        a.send(1, &b).label(7, 9).run();
        assert_eq!(a.ends(), [(1, Status::Ok)]);
        let entry = b.completion();
        assert_eq!((entry.mark.get(), entry.incarnation.get()), (9, 5));
        b.end();
        let b = net.party(1, 2);
        for next in [0, 8] {
            b.set_incarnation(next);
            a.send(2, &b).inline(b"short").label(7, 0).run();
            for (handle, length) in [(3, 0), (4, 100), (5, LONG)] {
                a.send(handle, &b).bytes(0, length).label(7, 0).run();
            }
            assert_eq!(a.ends(), [2, 3, 4, 5].map(|it| (it, Status::PeerGone)));
            b.probe(6).run();
            assert_eq!(b.ends(), [(6, Status::NoMessage)]);
        }
        b.receive(7).bytes(0, LONG).run();
        a.send(6, &b).bytes(0, LONG).label(8, 0).run();
        assert_eq!(b.ends(), [(7, Status::Ok)]);
        net.assert_holds_nothing(0);
        net.assert_holds_nothing(1);
    }
}

/// Whether messages come before the receive or behind it, and whether others are there for any incarnation.
#[test]
fn a_receive_takes_nothing_of_a_process_of_another_incarnation() {
    for net in nets(2, 5) {
        let Pair { net, a, b } = Pair::on(net);
        a.end();
        let a = net.party(0, 1);
        a.set_incarnation(6);
        b.receive(1).from(&a).incarnation(5).run();
        assert_eq!(b.ends(), [(1, Status::PeerGone)]);
        b.receive(2).from(&a).run();
        b.receive(3).from(&a).incarnation(6).run();
        for number in [1, 2] {
            a.send(number, &b).run();
            assert_eq!(b.ends(), [(number + 1, Status::Ok)]);
        }
        a.send(3, &b).run();
        b.probe(4).from(&a).incarnation(5).run();
        b.receive(5).from(&a).incarnation(5).run();
        let mut ends = b.ends();
        ends.sort_unstable_by_key(|end| end.0);
        assert_eq!(ends, [(4, Status::NoMessage), (5, Status::PeerGone)]);
        b.probe(6).from(&a).incarnation(6).run();
        b.receive(7).from(&a).incarnation(6).run();
        assert_eq!(b.ends(), [(6, Status::Ok), (7, Status::Ok)]);
        net.assert_holds_nothing(0);
        net.assert_holds_nothing(1);
    }
}

/// Whether its port has no process or another one, on its own node and on another; what it had sent still comes.
#[test]
fn what_names_a_process_that_has_ended_before_ends() {
    for (node, net) in [0, 1]
        .into_iter()
        .flat_map(|node| nets(2, 5).map(move |net| (node, net)))
    {
        let b = net.party(0, 2);
        for next in [None, Some(0), Some(6)] {
            let a = net.party(node, 1);
            a.set_incarnation(5);
            a.send(1, &b).tag(1).run();
            b.receive(1).from(&a).incarnation(5).tag(9).run();
            assert_eq!(b.ends(), [], "it lives");
            a.end();
            net.run();
            assert_eq!(b.ends(), [(1, Status::PeerGone)]);
            let next = next.map(|incarnation| {
                let next = net.party(node, 1);
                next.set_incarnation(incarnation);
                // Heard of before the receive is posted.
                next.send(1, &b).tag(2).run();
                next
            });
            b.receive(2).from(&a).incarnation(5).tag(2).issue();
            b.probe(3).from(&a).incarnation(5).tag(2).wait().issue();
            b.receive(4).from(&a).incarnation(5).tag(1).run();
            let mut ends = b.ends();
            ends.sort_unstable_by_key(|end| end.0);
            let gone = Status::PeerGone;
            assert_eq!(ends, [(2, gone), (3, gone), (4, Status::Ok)]);
            if let Some(next) = next {
                b.receive(5).from(&next).tag(2).run();
                assert_eq!(b.ends(), [(5, Status::Ok)]);
                next.end();
                net.run();
            }
        }
        net.assert_holds_nothing(0);
        net.assert_holds_nothing(1);
    }
}

/// The next process was heard of when it was posted, so the news of the end leaves it: it asks again.
#[test]
fn what_is_posted_for_a_process_before_the_late_news_of_its_end_ends() {
    let net = Net::new(2, 2048, 8, &scarce());
    net.cluster().set_lossy_wire(LossyWire::steady(20_000), 3);
    let Pair { net, a, b } = Pair::on(net);
    b.set_incarnation(5);
    a.receive(1).from(&b).incarnation(5).tag(1).run();
    // The news is lost.
    net.cut(1);
    b.end();
    net.poll(1);
    net.heal();
    let next = net.party(1, 2);
    next.set_incarnation(6);
    next.send(4, &a).tag(2).issue();
    net.poll(1);
    net.advance(20_000);
    net.poll(0);
    a.receive(2).from(&b).incarnation(5).tag(1).issue();
    a.receive(3).from(&next).incarnation(6).tag(1).issue();
    net.poll(0);
    assert_eq!(a.ends(), []);
    net.run();
    let mut ends = a.ends();
    ends.sort_unstable_by_key(|end| end.0);
    assert_eq!(ends, [(1, Status::PeerGone), (2, Status::PeerGone)]);
    a.receive(4).from(&next).incarnation(6).tag(2).run();
    assert_eq!(a.ends(), [(4, Status::Ok)]);
    next.end();
    net.run();
    assert_eq!(a.ends(), [(3, Status::PeerGone)]);
}

/// A message that names no incarnation waits for one that was lost, and not for one that is refused.
#[test]
fn a_message_that_is_for_a_former_process_does_not_hold_up_those_behind_it() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    net.cluster().set_lossy_wire(LossyWire::steady(10_000), 1);
    let (a, b) = (net.party(0, 1), net.party(1, 2));
    b.set_incarnation(7);
    b.receive(0).run();
    a.send(0, &b).label(7, 0).run();
    assert_eq!(
        (a.ends(), b.ends()),
        (vec![(0, Status::Ok)], vec![(0, Status::Ok)])
    );
    let pass_a_moment = || {
        for _ in 0..40 {
            net.advance(1000);
            net.poll_both(1);
        }
    };
    net.cut(1);
    a.send(1, &b).label(7, 0).issue();
    pass_a_moment();
    net.heal();
    // The second is early; so is the third, at the next process.
    a.send(2, &b).label(7, 0).issue();
    pass_a_moment();
    b.end();
    let b = net.party(1, 2);
    b.set_incarnation(8);
    a.send(3, &b).label(7, 0).issue();
    a.send(4, &b).label(0, 0).immediate(4).issue();
    pass_a_moment();
    b.receive(5).run();
    net.run();
    let entry = b.completion();
    assert_eq!((entry.handle.get(), entry.immediate.get()), (5, 4));
    let mut ends = a.ends();
    ends.sort_by_key(|(handle, _)| *handle);
    let [(1, Status::PeerGone), (2, _), (3, Status::PeerGone), (4, Status::Ok)] = ends[..] else {
        panic!("{ends:?}");
    };
    net.assert_holds_nothing(0);
    net.assert_holds_nothing(1);
}
