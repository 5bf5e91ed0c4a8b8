//! Acknowledgements that return with the calls that deliver frames (P9): what they save, and that they
//! say what Acks say.

use qnic_abi::{Port, Status, VniId};
use qnic_nic::testing::{page, Net, Pair, Party, SEGMENT};
use qnic_nic::{Limits, Progress};

/// Two nodes on a wire with receipts that know each other and whose pages are there.
fn pair() -> Pair {
    let pair = Pair::on(Net::new(2, 512, 8, &Limits::default()));
    pair.net.cluster().receipts = true;
    pair.a.write(&pair.b).run();
    pair.b.write(&pair.a).run();
    pair
}

fn acks(net: &Net) -> u64 {
    let acks = |node| net.counters(node).acknowledgements;
    acks(0) + acks(1)
}

#[test]
fn writes_are_complete_with_the_poll_that_sends_them() {
    let Pair { net, a, b } = pair();
    let before = acks(&net);
    for round in 0..20u64 {
        let number = a.inline_write(&b, &round.to_le_bytes()).issue();
        net.poll(0);
        assert!(b.holds(0, &round.to_le_bytes()));
        assert_eq!(a.done().0, number + 1);
    }
    net.run();
    assert_eq!(acks(&net), before, "there is nothing left to acknowledge");
    assert_eq!(a.errors(), []);
}

/// A receipt says so much of a batch as one Ack would.
#[test]
fn one_receipt_is_for_all_that_a_poll_has_sent() {
    let Pair { net, a, b } = pair();
    let before = a.done().0;
    let batch = u64::from(Limits::default().commands_per_poll);
    for _ in 0..batch {
        a.inline_write(&b, b"8 bytes.").notify(3).issue();
    }
    net.poll(0);
    assert_eq!(a.done().0, before + batch);
    assert_eq!(b.signals(3), batch);
}

#[test]
fn a_nic_that_has_received_writes_has_nothing_to_do() {
    let Pair { net, a, b } = pair();
    net.advance(Limits::default().idle_timeout);
    net.run();
    let undisturbed = || net.cluster().nodes[1].nic.is_undisturbed();
    assert!(undisturbed());
    a.inline_write(&b, b"8 bytes.").issue();
    net.poll(0);
    assert_eq!(a.done().0, 2);
    // The first data after a while may be answered.
    net.advance(Limits::default().idle_timeout);
    net.run();
    for _ in 0..3 {
        a.inline_write(&b, b"8 bytes.").issue();
        net.poll(0);
        assert!(undisturbed(), "no answer goes");
    }
    assert_eq!(net.poll(1), Progress::Idle);
    a.inline_write(&b, b"8 bytes.").notify(3).issue();
    net.poll(0);
    assert!(!undisturbed(), "its process may wait for a notification");
    net.run();
    a.read(&b).bytes(8).issue();
    net.poll(0);
    assert!(!undisturbed(), "it has to answer");
    net.run();
    assert!(undisturbed());
    assert_eq!(a.errors(), []);
}

/// What is held is not delivered, and a receipt does not say so.
#[test]
fn a_receipt_does_not_say_more_than_an_ack() {
    let Pair { net, a, b } = pair();
    net.answer_faults(false);
    b.evict(page(1));
    let before = a.done().0;
    a.write(&b).to(page(1)).bytes(8).issue();
    a.write(&b).to(page(3)).bytes(8).notify(4).issue();
    net.poll(0);
    net.run();
    assert_eq!((a.done().0, b.signals(4)), (before, 0));
    net.answer_faults(true);
    net.cluster().serve(1);
    while net.faults(1) > 0 {
        net.answer(1, 0, 1);
    }
    net.run();
    assert_eq!((a.done().0, b.signals(4)), (before + 2, 1));
    assert_eq!(a.errors(), []);
}

#[test]
fn refusals_come_as_ever() {
    let Pair { net, a, b } = pair();
    let wrong = a.write(&b).bytes(8);
    let number = wrong
        .with(|command| command.remote.memory.key.0 ^= 1)
        .issue();
    let good = a.inline_write(&b, b"8 bytes.").notify(2).issue();
    net.run();
    assert_eq!(a.errors(), [(number, Status::BadKey)]);
    assert_eq!(a.done().0, good + 1);
    assert_eq!(b.signals(2), 1);
    assert_eq!(net.counters(1).frames_held, 0);
}

/// More than a window, both ways at once, by several processes.
#[test]
fn windows_open_again() {
    let Pair { net, a, b } = pair();
    let other = Party::register(&net, 1, VniId(5), Port(500), 0).unwrap();
    let bytes = a.fill(0, SEGMENT, 4);
    for _ in 0..20 {
        a.write(&b).issue();
        a.read(&b).issue();
        other.inline_write(&a, b"8 bytes.").issue();
    }
    net.run();
    assert_eq!((a.done(), other.done().0), ((21, 20), 20));
    assert_eq!(a.errors(), []);
    assert!(b.holds(8, &bytes[8..]));
}

/// A receipt of a session that has ended counts for nothing in the next one.
#[test]
fn sessions_end_and_begin_with_receipts() {
    let Pair { net, a, b } = pair();
    for round in 1..4 {
        a.write(&b).bytes(8).issue();
        net.poll(0);
        net.cluster().cut.insert(1);
        a.write(&b).bytes(8).run();
        assert_eq!(a.errors().len(), round, "it cannot be reached");
        net.cluster().cut.clear();
        net.advance(1_000_000_000);
        let number = a.write(&b).bytes(8).run();
        assert_eq!(a.done().0, number + 1);
    }
    assert_eq!(net.counters(0).stale_frames, 0);
}
