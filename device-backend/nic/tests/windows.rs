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

/// How many peers node 0 has, and the windows that it has granted, by its counters.
fn granted(net: &Net) -> (u32, u32) {
    granted_by(net, 0)
}

fn granted_by(net: &Net, node: usize) -> (u32, u32) {
    let budgets = net.cluster().nodes[node].nic.budgets();
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
    assert!(net.counters(0).frames_held > 60);
    for party in &all[2..] {
        party.write(&all[0]).from(page(61)).bytes(8).run();
        let held = net.counters(0).frames_held;
        let (_, fragments) = granted(&net);
        assert!(fragments <= limits.held_frames && u64::from(fragments) >= held);
    }
    net.answer_faults(true);
    net.answer_all(0, 60);
    net.settle();
    let counters = net.counters(0);
    assert_eq!(counters.frames_outside, 0, "nothing is dropped");
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
        assert_eq!(all[0].signals(3), 4 * round);
    }
    assert_eq!(net.counters(0).frames_outside, 0);
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

/// Polls the first `nodes` for that many nanoseconds.
fn pass(net: &Net, nodes: usize, nanoseconds: u64) {
    let until = net.cluster().now.after(nanoseconds);
    while net.cluster().now < until {
        for node in 0..nodes {
            net.poll(node);
        }
        net.advance(5_000);
    }
}

/// Two nodes on a wire that keeps the order, with a process each.
fn neighbours() -> (Net, [Party; 2]) {
    let limits = Limits {
        idle_peer: 1_000_000,
        ..shared(64, 3, 20)
    };
    let net = Net::new(2, 512, 8, &limits);
    net.cluster().set_lossy_wire(LossyWire::steady(10_000), 0);
    let all = [net.party(0, 1).present(), net.party(1, 2).present()];
    (net, all)
}

/// A write from node 0, after which node 0 asks to leave. Node 1 does not run meanwhile: what
/// arrives has to wait for the next time.
fn write_and_ask(net: &Net, all: &[Party; 2]) {
    all[0].write(&all[1]).bytes(8).notify(3).issue();
    pass(net, 1, 30_000);
    pass(net, 2, 300_000);
    pass(net, 1, 2_500_000);
}

/// A Leave that its sender takes back is void, also if it was received and not looked at yet.
#[test]
fn a_leave_that_is_taken_back_at_once_ends_nothing() {
    let (net, all) = neighbours();
    for number in 1..5 {
        write_and_ask(&net, &all);
        assert_eq!((all[0].errors(), all[0].done().0), (vec![], number));
        assert_eq!(all[1].signals(3), number);
    }
    assert_eq!(granted(&net).0, 2);
    net.settle();
    assert_eq!(granted(&net).0, 1, "the last Leave holds");
}

/// Leaves of a session with a NIC that was reset do not count in the next one.
#[test]
fn leaves_count_within_one_session() {
    let (net, mut all) = neighbours();
    for _ in 0..3 {
        write_and_ask(&net, &all);
    }
    net.cut(0);
    net.cluster().reset(1);
    net.cluster().start(1);
    net.heal();
    all[1] = net.party(1, 2).present();
    for number in 1..5 {
        write_and_ask(&net, &all);
        assert_eq!((all[0].errors(), all[1].signals(3)), (vec![], number));
    }
}

/// A session that has ended does not go on, whichever of the two begins the next.
#[test]
fn a_goodbye_that_is_lost_costs_no_work() {
    let (net, all) = neighbours();
    for first in [0, 0, 1, 1, 0, 1, 0, 0] {
        let (from, to) = (&all[first], &all[1 - first]);
        let before = to.signals(3);
        from.write(to).bytes(8).notify(3).issue();
        pass(&net, 2, 300_000);
        assert_eq!((from.errors(), to.signals(3)), (vec![], before + 1));
        // Node 0 asks, and does not hear that node 1 agrees.
        pass(&net, 1, 2_500_000);
        net.cut(0);
        pass(&net, 2, 30_000);
        net.heal();
        assert_eq!((granted(&net).0, granted_by(&net, 1).0), (2, 1));
    }
}

/// What [`work_at_any_moment_of_leaving_is_done_once`] checks.
fn work_is_done_once(seed: u64, loss: u64, pauses: &[(usize, u64, u64)]) {
    let limits = Limits {
        idle_peer: 1_000_000,
        ..shared(64, 6, 20)
    };
    let net = Net::new(4, 512, 8, &limits);
    net.cluster().set_lossy_wire(LossyWire::rough(loss), seed);
    let all = parties(&net, 4);
    let mut writes = [0; 4];
    for (node, pause, near) in pauses.iter().copied() {
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
        let write = all[node].write(&all[to]).bytes(100).notify(3);
        writes[node] += u64::from(write.try_issue().is_some());
    }
    net.settle();
    let signals: u64 = all.iter().map(|party| party.signals(3)).sum();
    for (party, writes) in all.iter().zip(writes) {
        assert_eq!((party.errors(), party.done().0), (vec![], writes));
    }
    assert_eq!(signals, writes.iter().sum::<u64>());
}

/// A case that has failed: a Leave and the Hello that takes it back arrived together.
#[test]
fn work_at_the_moment_of_leaving_is_done_once() {
    let pauses = [
        (1, 2_296_041, 1),
        (1, 126_118, 0),
        (1, 2_402_371, 0),
        (1, 651_153, 0),
        (1, 1_072_396, 1),
        (0, 1_724_273, 0),
        (0, 519_632, 0),
        (1, 505_832, 1),
        (3, 1_373_558, 0),
        (2, 672_718, 1),
        (1, 2_172_980, 1),
        (3, 1_072_285, 1),
        (0, 2_250_495, 0),
        (2, 1_828_636, 1),
        (0, 2_316_021, 0),
        (3, 2_484_032, 1),
        (0, 1_985_874, 1),
        (2, 30_450, 0),
        (3, 2_113_659, 1),
        (3, 1_451_673, 0),
        (3, 1_924_567, 1),
        (3, 1_574_490, 0),
        (2, 2_037_763, 1),
    ];
    work_is_done_once(11_441_093_154_909_573_716, 12, &pauses);
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
        work_is_done_once(seed, loss, &pauses);
    }
}
