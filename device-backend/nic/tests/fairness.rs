//! Two-level round robin (Q10): a process with a thousand transfers does not hold up one
//! with a single transfer.

use qnic_nic::testing::{Net, Party};
use qnic_nic::Limits;

/// Processes 1 and 2 on node 0 and process 3 on node 1; one frame per poll, so that
/// polls count turns.
fn one_frame_per_poll() -> (Net, [Party; 3]) {
    let limits = Limits {
        fragments_per_poll: 1,
        ..Limits::default()
    };
    let net = Net::new(2, 1024, 8, &limits);
    let parties = [(0, 1), (0, 2), (1, 3)].map(|(node, vni)| net.party(node, vni));
    (net, parties)
}

/// Polls until the party has completed so many writes and reads; they are few.
fn assert_done_within(polls: u32, party: &Party, done: (u64, u64)) {
    for _ in 0..polls {
        party.net.poll_both(1);
        if party.done() == done {
            return;
        }
    }
    panic!("{:?} instead of {done:?} after {polls} polls", party.done());
}

#[test]
fn one_transfer_passes_a_thousand_of_another_process() {
    let (net, [busy, quiet, target]) = one_frame_per_poll();
    while busy.write(&target).bytes(200_000).try_issue().is_some() {}
    net.poll_both(200);
    quiet.inline_write(&target, &[1; 8]).issue();
    assert_done_within(6, &quiet, (1, 0));
    assert_eq!(busy.done().0, 0);
}

#[test]
fn one_transfer_passes_long_ones_of_its_own_process() {
    let (net, [a, _, target]) = one_frame_per_poll();
    for _ in 0..4 {
        a.write(&target).bytes(200_000).issue();
    }
    net.poll_both(100);
    let read = a.read(&target).bytes(8);
    read.with(|command| *command = command.publish()).issue();
    assert_done_within(15, &a, (0, 1));
}

#[test]
fn readers_of_one_process_do_not_hold_up_another() {
    let (net, [source, quiet, reader]) = one_frame_per_poll();
    while reader.read(&source).bytes(200_000).try_issue().is_some() {}
    net.poll_both(300);
    quiet.inline_write(&reader, &[1; 8]).issue();
    assert_done_within(8, &quiet, (1, 0));
}

#[test]
fn the_work_of_a_poll_is_bounded() {
    let limits = Limits::default();
    let net = Net::new(2, 1024, 8, &limits);
    let (a, target) = (net.party(0, 1), net.party(1, 3));
    while a.write(&target).bytes(200_000).try_issue().is_some() {}
    let mut before = 0;
    for _ in 0..200 {
        net.poll(0);
        let sent = net.counters(0).bytes_sent.get();
        assert!(sent - before <= u64::from(limits.fragments_per_poll) * 4096);
        before = sent;
        net.poll(1);
    }
}
