//! Notifications of all kinds between NICs (N16 to N18).

use qnic_abi::host_area::{
    notification_offset, NOTIFICATIONS_LOST, NOTIFICATION_TAIL, ONE_SHOT_ENTRIES,
};
use qnic_abi::window::{armed_bit, NOTIFICATION_HEAD, SIGNAL_WAKE_REQUEST};
use qnic_nic::testing::{LossyWire, Net, Pair, Party};

/// Signals a notification, as soon as there is room in the queue.
fn notify(from: &Party, to: &Party, number: u32) {
    while from.signal(to, number).try_issue().is_none() {
        from.net.run();
    }
}

/// All that stands in the queue of a process, read or not.
fn entries(party: &Party) -> Vec<u64> {
    let entry = |number| party.word(notification_offset(number));
    (0..party.word(NOTIFICATION_TAIL)).map(entry).collect()
}

fn store(party: &Party, word: usize, value: u64) {
    party.net.store(party.node, party.window() + word, value);
}

#[test]
fn armed_numbers_coalesce_until_they_are_read_and_one_shots_never_do() {
    let Pair { net, a, b } = Pair::lossless();
    notify(&a, &b, 5);
    net.run();
    assert_eq!(entries(&b), [], "it is not armed");
    let (word, bit) = armed_bit(5);
    store(&b, word, bit);
    for number in [5, 6, 5, 2000, 5, 2000] {
        notify(&a, &b, number);
    }
    net.run();
    assert_eq!(entries(&b), [5, 2000, 2000]);
    assert_eq!((b.signals(5), b.signals(6)), (4, 1));
    store(&b, NOTIFICATION_HEAD, 1);
    notify(&a, &b, 5);
    notify(&a, &b, 5);
    net.run();
    assert_eq!(entries(&b), [5, 2000, 2000, 5]);
    store(&b, word, 0);
    store(&b, NOTIFICATION_HEAD, 4);
    notify(&a, &b, 5);
    net.run();
    assert_eq!(entries(&b).len(), 4, "it was disarmed");
    assert_eq!(b.signals(5), 7);
}

#[test]
fn one_shots_keep_their_order_over_a_wire_that_keeps_none() {
    for (seed, loss) in (0..).zip([0, 50, 200]) {
        let Pair { net, a, b } = Pair::on(Net::lossy(2, LossyWire::rough(loss), seed));
        let sent: Vec<u64> = (0..400).map(|number| 1024 + number * 7).collect();
        for number in &sent {
            notify(&a, &b, *number as u32);
        }
        net.run();
        assert!(entries(&b) == sent, "loss {loss}");
        assert_eq!(b.word(NOTIFICATIONS_LOST), 0);
    }
}

#[test]
fn a_full_queue_drops_one_shots_and_says_how_many() {
    let Pair { net, a, b } = Pair::lossless();
    for number in 0..ONE_SHOT_ENTRIES as u32 + 3 {
        notify(&a, &b, 5000 + number);
    }
    net.run();
    assert_eq!(b.word(NOTIFICATION_TAIL), ONE_SHOT_ENTRIES);
    assert_eq!(b.word(NOTIFICATIONS_LOST), 3);
    assert_eq!(a.errors(), [], "the write itself was done");
    store(&b, NOTIFICATION_HEAD, ONE_SHOT_ENTRIES);
    notify(&a, &b, u32::MAX);
    net.run();
    assert_eq!(entries(&b).last(), Some(&u32::MAX.into()));
    assert_eq!(b.word(NOTIFICATIONS_LOST), 3);
}

/// A process that waits for a notification is not woken by completions of its own
/// commands.
#[test]
fn signal_wake_requests_are_for_notifications_only() {
    let Pair { net, a, b } = Pair::lossless();
    let events = || net.cluster().nodes[1].events.len();
    store(&b, SIGNAL_WAKE_REQUEST, 1);
    b.signal(&a, 1).run();
    assert_eq!(b.done().0, 1);
    assert_eq!(events(), 0);
    b.request_wake();
    a.signal(&b, 9).run();
    assert_eq!(events(), 1, "one event for both requests");
    a.signal(&b, 9).run();
    assert_eq!(events(), 1, "not asked for again");
}
