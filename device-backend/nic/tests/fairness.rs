//! Two-level round robin (Q10): a process with a thousand transfers does not hold up one
//! with a single transfer; and equal shares of what they compete for (U6).

use qnic_nic::testing::{LossyWire, Net, Party, PAGE};
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
fn destinations_of_one_process_share_its_turns() {
    const TURNS: u32 = 100;
    let limits = Limits {
        fragments_per_poll: 1,
        ..Limits::default()
    };
    let net = Net::new(3, 1024, 8, &limits);
    let [a, b, c] = [(0, 1), (1, 2), (2, 3)].map(|(node, vni)| net.party(node, vni));
    for _ in 0..32 {
        a.write(&b).bytes(400_000).issue();
    }
    a.write(&c).bytes(400_000).issue();
    let before = net.counters(0).bytes_sent;
    for _ in 0..TURNS {
        for node in 0..3 {
            net.poll(node);
        }
    }
    let sent = net.counters(0).bytes_sent - before;
    let to_c = net.counters(2).bytes_received;
    assert!(to_c * 100 >= sent * 45, "{to_c} of {sent} bytes");
}

#[test]
fn readers_of_one_process_do_not_hold_up_another() {
    let (net, [source, quiet, reader]) = one_frame_per_poll();
    while reader.read(&source).bytes(200_000).try_issue().is_some() {}
    net.poll_both(300);
    quiet.inline_write(&reader, &[1; 8]).issue();
    assert_done_within(8, &quiet, (1, 0));
}

/// U4: as much bulk is on the wire as its links take; the small frame has a queue of its own
/// there.
#[test]
fn a_small_frame_does_not_wait_behind_bulk() {
    const DELAY: u64 = 1_000_000;
    let net = Net::lossy(2, LossyWire::steady(DELAY), 1);
    let [busy, quiet, target] = [(0, 1), (0, 2), (1, 3)].map(|(node, vni)| net.party(node, vni));
    quiet.inline_write(&target, &[1; 8]).run();
    while busy.write(&target).bytes(200_000).try_issue().is_some() {}
    for _ in 0..100 {
        net.poll(0);
    }
    quiet.inline_write(&target, &[2; 8]).issue();
    for _ in 0..10 {
        net.poll(0);
    }
    net.advance(DELAY);
    net.poll(1);
    assert!(target.holds(0, &[2; 8]), "one way later");
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
        let sent = net.counters(0).bytes_sent;
        assert!(sent - before <= u64::from(limits.fragments_per_poll) * 4096);
        before = sent;
        net.poll(1);
    }
}

/// Joins NICs by a wire that loses nothing, or leaves them on the lossless one; a window is so
/// small that each stream waits for it.
fn narrow_net(nodes: u16, lossless: bool) -> Net {
    let limits = Limits {
        window: 16,
        operations: 64,
        ..Limits::default()
    };
    let net = Net::new(nodes, 2048, 8, &limits);
    if !lossless {
        net.cluster().set_lossy_wire(LossyWire::steady(5000), 1);
    }
    net
}

/// Bytes that each of these streams has written, as streams between two processes each run at
/// once for so many polls of each NIC.
fn streamed(net: &Net, streams: &[(&Party, &Party)], polls: u32) -> Vec<u64> {
    const BYTES: u64 = 4 * PAGE;
    let nodes = net.cluster().nodes.len();
    for _ in 0..polls {
        for (from, to) in streams {
            while from.write(*to).bytes(BYTES).try_issue().is_some() {}
        }
        for node in 0..nodes {
            net.poll(node);
        }
        net.advance(1000);
    }
    let bytes = |(from, _): &(&Party, &Party)| from.done().0 * BYTES;
    streams.iter().map(bytes).collect()
}

/// Shares are equal but for a few transfers.
fn assert_equal_shares(shares: &[u64]) {
    let (least, most) = (shares.iter().min(), shares.iter().max());
    let (Some(least), Some(most)) = (least, most) else {
        panic!("no shares");
    };
    assert!(*least > 100 * PAGE, "{shares:?}");
    assert!((most - least) * 20 <= *most, "{shares:?}");
}

#[test]
fn two_processes_have_equal_shares_of_the_way_to_a_third() {
    for lossless in [true, false] {
        let net = narrow_net(2, lossless);
        let [a, b, target] = [(0, 1), (0, 2), (1, 3)].map(|(node, vni)| net.party(node, vni));
        assert_equal_shares(&streamed(&net, &[(&a, &target), (&b, &target)], 3000));
    }
}

#[test]
fn two_peers_have_equal_shares_of_a_third() {
    for lossless in [true, false] {
        let net = narrow_net(3, lossless);
        let [a, b, target] = [(0, 1), (1, 1), (2, 1)].map(|(node, vni)| net.party(node, vni));
        assert_equal_shares(&streamed(&net, &[(&a, &target), (&b, &target)], 3000));
    }
}

#[test]
fn two_peers_have_equal_shares_of_who_writes_to_both() {
    for lossless in [true, false] {
        let net = narrow_net(3, lossless);
        let [a, b] = [1, 2].map(|vni| net.party(0, vni));
        let targets = [1, 2].map(|node| net.party(node, 1));
        assert_equal_shares(&streamed(
            &net,
            &[(&a, &targets[0]), (&b, &targets[1])],
            3000,
        ));
    }
}
