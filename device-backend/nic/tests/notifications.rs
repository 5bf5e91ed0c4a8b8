//! Notifications of all kinds between NICs (N16 to N18).

mod common;

use common::{pair, process};
use qnic_abi::host_area::{
    notification_offset, NOTIFICATIONS_LOST, NOTIFICATION_TAIL, ONE_SHOT_ENTRIES,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{armed_bit, NOTIFICATION_HEAD, SIGNAL_WAKE_REQUEST};
use qnic_abi::SharedMemory;
use qnic_abi_client::Command;
use qnic_nic::testing::{Cluster, LossyWire, SimProcess, SimSegment};
use qnic_nic::Limits;

/// Signals a notification of the process that exports the segment.
fn notify(cluster: &mut Cluster, from: &mut SimProcess, to: &SimSegment, number: u32) {
    let mut command = Command::inline_write(to.to(0), 0);
    command.notification = Some(number);
    while from.issue(cluster, &command, &[]).is_none() {
        cluster.run();
    }
}

/// All that stands in the queue of a process, read or not.
fn entries(cluster: &Cluster, process: &SimProcess) -> Vec<u64> {
    let tail = process.word(cluster, NOTIFICATION_TAIL);
    let entry = |number| process.word(cluster, notification_offset(number));
    (0..tail).map(entry).collect()
}

fn store(cluster: &Cluster, process: &SimProcess, word: usize, value: u64) {
    let sram = &cluster.nodes[1].host.sram;
    sram.store_u64(process.window() + word, value, Ordering::Release);
    sram.fence();
}

#[test]
fn armed_numbers_coalesce_until_they_are_read_and_one_shots_never_do() {
    let (mut cluster, (mut a, _), (b, sb)) = pair();
    notify(&mut cluster, &mut a, &sb, 5);
    cluster.run();
    assert_eq!(entries(&cluster, &b), [], "nobody has armed it");
    let (word, bit) = armed_bit(5);
    store(&cluster, &b, word, bit);
    for number in [5, 6, 5, 2000, 5, 2000] {
        notify(&mut cluster, &mut a, &sb, number);
    }
    cluster.run();
    assert_eq!(entries(&cluster, &b), [5, 2000, 2000]);
    assert_eq!((b.signals(&cluster, 5), b.signals(&cluster, 6)), (4, 1));
    store(&cluster, &b, NOTIFICATION_HEAD, 1);
    notify(&mut cluster, &mut a, &sb, 5);
    notify(&mut cluster, &mut a, &sb, 5);
    cluster.run();
    assert_eq!(entries(&cluster, &b), [5, 2000, 2000, 5]);
    store(&cluster, &b, word, 0);
    store(&cluster, &b, NOTIFICATION_HEAD, 4);
    notify(&mut cluster, &mut a, &sb, 5);
    cluster.run();
    assert_eq!(entries(&cluster, &b).len(), 4, "it was disarmed");
    assert_eq!(b.signals(&cluster, 5), 7);
}

#[test]
fn one_shots_keep_their_order_over_a_wire_that_keeps_none() {
    for (seed, loss) in (0..).zip([0, 50, 200]) {
        let mut cluster = Cluster::new(2, 2048, 8, &Limits::default());
        let wire = LossyWire {
            loss,
            duplication: loss,
            delay: 10_000,
            jitter: 40_000,
        };
        cluster.set_lossy_wire(wire, seed);
        let (mut a, _) = process(&mut cluster, 0, 1);
        let (b, sb) = process(&mut cluster, 1, 2);
        let sent: Vec<u64> = (0..400).map(|number| 1024 + number * 7).collect();
        for number in &sent {
            notify(&mut cluster, &mut a, &sb, *number as u32);
        }
        cluster.run();
        assert!(entries(&cluster, &b) == sent, "loss {loss}");
        assert_eq!(b.word(&cluster, NOTIFICATIONS_LOST), 0);
    }
}

#[test]
fn a_full_queue_drops_one_shots_and_says_how_many() {
    let (mut cluster, (mut a, _), (b, sb)) = pair();
    for number in 0..ONE_SHOT_ENTRIES as u32 + 3 {
        notify(&mut cluster, &mut a, &sb, 5000 + number);
    }
    cluster.run();
    assert_eq!(b.word(&cluster, NOTIFICATION_TAIL), ONE_SHOT_ENTRIES);
    assert_eq!(b.word(&cluster, NOTIFICATIONS_LOST), 3);
    assert_eq!(a.errors(&cluster), [], "the write itself was done");
    store(&cluster, &b, NOTIFICATION_HEAD, ONE_SHOT_ENTRIES);
    notify(&mut cluster, &mut a, &sb, u32::MAX);
    cluster.run();
    assert_eq!(entries(&cluster, &b).last(), Some(&u32::MAX.into()));
    assert_eq!(b.word(&cluster, NOTIFICATIONS_LOST), 3);
}

/// Who waits for a notification is not woken by completions of its own commands.
#[test]
fn signal_wake_requests_are_for_notifications_only() {
    let (mut cluster, (mut a, sa), (mut b, sb)) = pair();
    store(&cluster, &b, SIGNAL_WAKE_REQUEST, 1);
    notify(&mut cluster, &mut b, &sa, 1);
    cluster.run();
    assert_eq!(b.done(&cluster).0, 1);
    assert!(cluster.nodes[1].events.is_empty());
    b.request_wake(&cluster);
    notify(&mut cluster, &mut a, &sb, 9);
    cluster.run();
    assert_eq!(
        cluster.nodes[1].events.len(),
        1,
        "one event for both requests"
    );
    notify(&mut cluster, &mut a, &sb, 9);
    cluster.run();
    assert_eq!(cluster.nodes[1].events.len(), 1, "nobody asked again");
}
