//! Windows are shared out as peers come and go, and idle peers leave (N15, X8).

use proptest::prelude::*;
use qnic_abi::{Port, Status};
use qnic_nic::testing::{page, LossyWire, Net, Party};
use qnic_nic::{Limits, SMALLEST_WINDOW};

/// Bounds with which that many fragments are there for the windows of all peers, beside
/// the smallest of each and that of the own node.
fn shared(window: u32, peers: u32, fragments: u32) -> Limits {
    Limits {
        window,
        peers,
        held_frames: peers * SMALLEST_WINDOW + window - SMALLEST_WINDOW + fragments,
        idle_peer: 1_000_000_000,
        ..Limits::default()
    }
}

/// A process on each node.
fn parties(net: &Net, nodes: u16) -> Vec<Party> {
    let party = |node| net.party(usize::from(node), 1 + node % 7).present();
    (0..nodes).map(party).collect()
}

/// The windows that node 0 has granted, by its counters.
fn granted(net: &Net) -> (u32, u32) {
    let budgets = net.cluster().nodes[0].nic.budgets();
    let used = |name| {
        budgets
            .iter()
            .find(|budget| budget.name == name)
            .unwrap()
            .used as u32
    };
    (used("peers"), used("windows"))
}

#[test]
fn sixty_four_honest_nodes_have_whole_windows_where_memory_allows() {
    let limits = shared(4096, 1024, 80 * 4096);
    let net = Net::new(64, 64, 8, &limits);
    let all = parties(&net, 64);
    for party in &all[1..] {
        party.write(&all[0]).bytes(64).run();
    }
    assert_eq!(granted(&net), (64, 64 * 4096));
}

#[test]
fn sixty_four_honest_nodes_share_what_there_is() {
    let net = Net::new(64, 64, 8, &Limits::default());
    let all = parties(&net, 64);
    for party in &all[1..] {
        party.write(&all[0]).bytes(64).run();
    }
    net.settle();
    let limits = Limits::default();
    let (peers, fragments) = granted(&net);
    assert_eq!((peers, fragments), (64, 4096 + 63 * 720));
    assert!(fragments <= limits.held_frames);
    assert!(all[1..].iter().all(|party| party.done().0 == 1));
}

/// What a peer was allowed to send before its window shrank is taken, though more waits here
/// than its window is now; and the window that others get never is one that it has.
#[test]
fn a_window_that_shrinks_drops_nothing() {
    let limits = Limits {
        idle_peer: 1 << 60,
        ..shared(128, 8, 112)
    };
    let net = Net::new(6, 512, 8, &limits);
    let all = parties(&net, 6);
    all[1].write(&all[0]).bytes(8).run();
    assert_eq!(granted(&net), (2, 256));
    net.answer_faults(false);
    for number in 0..60 {
        all[0].evict(page(number));
    }
    for _ in 0..2 {
        all[1].write(&all[0]).pages(0..60).notify(5).issue();
    }
    net.run();
    assert!(net.counters(0).frames_held.get() > 60);
    for party in &all[2..] {
        party.write(&all[0]).from(page(61)).bytes(8).run();
        let held = net.counters(0).frames_held.get();
        let (_, fragments) = granted(&net);
        assert!(fragments <= limits.held_frames && u64::from(fragments) >= held.into());
    }
    net.answer_faults(true);
    net.answer_all(0, 60);
    net.settle();
    let counters = net.counters(0);
    assert_eq!(counters.frames_outside.get(), 0, "nothing is dropped");
    assert_eq!(all[0].signals(5), 2);
    assert_eq!(granted(&net), (6, 128 + 5 * (SMALLEST_WINDOW + 112 / 5)));
    assert!(all[1].errors().is_empty());
}

/// Windows grow again when peers leave, which they do when nothing is under way.
fn idle_peers_leave_and_come_back(net: &Net, rounds: u64) {
    let all = parties(net, 5);
    for round in 1..=rounds {
        for party in &all[1..] {
            party.write(&all[0]).bytes(5000).notify(3).issue();
            party.read(&all[0]).bytes(5000).issue();
        }
        net.settle();
        net.advance(1_100_000_000);
        net.settle();
        net.advance(1_100_000_000);
        net.settle();
        let (peers, _) = granted(net);
        assert!(peers <= 2, "of round {round}: {peers} stay");
        for party in &all[1..] {
            assert_eq!((party.done(), party.errors().len()), ((round, round), 0));
        }
        assert_eq!(u64::from(all[0].signals(3)), 4 * round);
    }
    assert_eq!(net.counters(0).frames_outside.get(), 0);
}

#[test]
fn idle_peers_leave_and_come_back_on_a_lossless_wire() {
    idle_peers_leave_and_come_back(&Net::new(5, 512, 8, &shared(64, 6, 50)), 4);
}

#[test]
fn idle_peers_leave_and_come_back_on_a_lossy_wire() {
    for seed in 0..20 {
        let net = Net::new(5, 512, 8, &shared(64, 6, 50));
        net.cluster().set_lossy_wire(LossyWire::rough(100), seed);
        idle_peers_leave_and_come_back(&net, 3);
    }
}

/// An import that waits keeps its peers.
#[test]
fn a_peer_that_waits_for_a_name_stays() {
    let net = Net::new(5, 512, 8, &shared(64, 6, 50));
    let all = parties(&net, 5);
    for party in &all[2..] {
        party.write(&all[0]).bytes(8).run();
    }
    let token = all[1].import(0, all[0].port, 77, 60_000).unwrap();
    for _ in 0..4 {
        net.advance(1_100_000_000);
        net.settle();
    }
    assert_eq!(net.import_reply(1, token), None);
    let stranger = all[2].import(0, Port(9), 1, 0).unwrap();
    net.settle();
    assert_eq!(
        net.import_reply(2, stranger),
        Some(Err(Status::NameNotFound))
    );
    let segment = all[0].export(9, 77, (0x900_0000, 4096), qnic_nic::testing::ALL);
    net.settle();
    assert!(segment.is_ok());
    assert!(net
        .import_reply(1, token)
        .is_some_and(|reply| reply.is_ok()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Work that comes at any moment of leaving is done once, whatever is lost meanwhile.
    #[test]
    fn work_at_any_moment_of_leaving_is_done_once(
        seed in any::<u64>(),
        loss in 0u64..200,
        pauses in prop::collection::vec((0usize..4, 0u64..2_500_000, 0u64..2), 1..40),
    ) {
        let limits = Limits { idle_peer: 1_000_000, ..shared(64, 6, 20) };
        let net = Net::new(4, 512, 8, &limits);
        net.cluster().set_lossy_wire(LossyWire::rough(loss), seed);
        let all = parties(&net, 4);
        let mut writes = [0; 4];
        for (node, pause, near) in pauses {
            // Moments around a sweep are those in which peers leave.
            let pause = pause / (1 + near * 40);
            let until = net.cluster().now.after(pause);
            while net.cluster().now < until {
                for node in 0..4 {
                    net.poll(node);
                }
                net.advance(7_000);
            }
            let to = (node + 1 + pause as usize % 3) % 4;
            if all[node].write(&all[to]).bytes(100).notify(3).try_issue().is_some() {
                writes[node] += 1;
            }
        }
        net.settle();
        let signals: u32 = all.iter().map(|party| party.signals(3) as u32).sum();
        for (party, writes) in all.iter().zip(writes) {
            prop_assert_eq!(party.errors(), []);
            prop_assert_eq!(party.done().0, writes);
        }
        prop_assert_eq!(u64::from(signals), writes.iter().sum::<u64>());
    }
}
