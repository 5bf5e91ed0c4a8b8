//! Messages whose frames or whose news are lost, or come late (Q4, Q11 to Q13). The simulator's
//! message workers have found what stands here.

use qnic_abi::Status;
use qnic_nic::testing::{scarce, LossyWire, Net, Party, PAGE};
use qnic_nic::{Limits, SMALLEST_WINDOW};

/// Nodes on a wire that keeps the order; what is cut off is sent again.
fn steady(nodes: u16, limits: &Limits) -> Net {
    let net = Net::new(nodes, 1024, 8, limits);
    net.cluster().set_lossy_wire(LossyWire::steady(10_000), 1);
    net
}

/// Lets two processes learn of each other.
fn connect(a: &Party, b: &Party) {
    b.receive(0).run();
    a.send(0, b).run();
    assert_eq!(a.ends(), [(0, Status::Ok)]);
    assert_eq!(b.ends(), [(0, Status::Ok)]);
}

/// Lets time pass, but not as much as makes a NIC send again what was lost.
fn pass_a_moment(net: &Net) {
    for _ in 0..40 {
        net.advance(1000);
        net.poll_both(1);
    }
}

#[test]
fn a_message_that_is_given_up_on_its_way_is_not_kept_without_its_bytes() {
    let limits = Limits {
        staged_bytes: 1000,
        ..Limits::default()
    };
    let net = steady(2, &limits);
    let (a, b) = (net.party(0, 1), net.party(1, 2));
    connect(&a, &b);
    a.send(1, &b).bytes(0, 2000).issue();
    for _ in 0..4 {
        net.poll(0);
    }
    assert_eq!(a.unexport(&a), Status::Ok);
    net.run();
    assert_eq!(a.ends(), [(1, Status::Aborted)]);
    net.assert_holds_nothing(1);
    b.receive(2).from(&a).bytes(0, 100).run();
    assert_eq!(b.ends(), [], "nothing comes for it, and it stays");
}

#[test]
fn messages_behind_an_early_one_that_is_dropped_do_not_overtake_those_before_it() {
    let net = steady(2, &Limits::default());
    let (a, b) = (net.party(0, 1), net.party(1, 2));
    connect(&a, &b);
    net.cut(1);
    a.send(1, &b).immediate(1).issue();
    pass_a_moment(&net);
    net.heal();
    // Both are early; the first has its bytes at its sender, which ends.
    a.send(2, &b).bytes(0, 5 * PAGE).immediate(2).issue();
    a.send(3, &b).immediate(3).issue();
    pass_a_moment(&net);
    a.end();
    pass_a_moment(&net);
    b.receive(1).bytes(0, 10).issue();
    b.receive(2).bytes(0, 10).issue();
    net.run();
    let entries = b.completions();
    let taken = entries
        .iter()
        .map(|it| (it.handle.get(), it.immediate.get()));
    let taken: Vec<_> = taken.collect();
    assert_eq!(taken, [(1, 1), (2, 3)]);
    net.assert_holds_nothing(1);
}

/// Handle and immediate data of each message that a process has received.
fn taken(party: &Party) -> Vec<(u64, u64)> {
    let entries = party.completions();
    let taken = entries
        .iter()
        .map(|it| (it.handle.get(), it.immediate.get()));
    taken.collect()
}

/// Sends a message, and lets it arrive unless the wire is cut.
fn send(net: &Net, a: &Party, b: &Party, number: u64) {
    a.send(number, b).immediate(number).issue();
    pass_a_moment(net);
}

#[test]
fn messages_to_the_next_process_on_a_port_do_not_overtake_those_before_it() {
    // The process ends when the second message has come, or before that.
    for ends_later in [true, false] {
        let net = steady(2, &Limits::default());
        let (a, b) = (net.party(0, 1), net.party(1, 2));
        connect(&a, &b);
        net.cut(1);
        send(&net, &a, &b, 1);
        net.heal();
        if ends_later {
            // Early.
            send(&net, &a, &b, 2);
            b.end();
        } else {
            b.end();
            send(&net, &a, &b, 2);
        }
        let b = net.party(1, 2);
        for handle in [1, 2, 3] {
            b.receive(handle).bytes(0, 10).issue();
        }
        send(&net, &a, &b, 3);
        assert_eq!(taken(&b), [], "it waits for the first");
        net.run();
        assert_eq!(taken(&b), [(1, 1), (2, 3)], "ends later: {ends_later}");
        b.end();
        net.run();
        net.assert_holds_nothing(1);
    }
}

#[test]
fn a_sender_notices_that_the_permission_for_its_message_cannot_come() {
    let net = steady(2, &scarce());
    let (a, b) = (net.party(0, 1), net.party(1, 2));
    connect(&a, &b);
    a.send(1, &b).bytes(0, 5 * PAGE).run();
    // What the receiver says is lost; what the sender says is not.
    net.cut(0);
    b.receive(2).bytes(0, 5 * PAGE).run();
    assert_eq!(b.ends(), [(2, Status::PeerGone)]);
    assert_eq!(a.ends(), [(1, Status::PeerGone)]);
    net.assert_holds_nothing(0);
    net.assert_holds_nothing(1);
}

#[test]
fn a_receive_stays_when_a_session_is_left_in_which_nothing_runs() {
    let limits = Limits {
        window: 64,
        peers: 6,
        held_frames: 6 * SMALLEST_WINDOW + 64 - SMALLEST_WINDOW + 50,
        idle_peer: 10_000_000,
        ..Limits::default()
    };
    let net = steady(5, &limits);
    let all: Vec<_> = (0..5)
        .map(|node| net.party(node, 1 + node as u16))
        .collect();
    for other in &all[1..] {
        connect(other, &all[0]);
    }
    let pass = |time| {
        for _ in 0..100 {
            net.advance(time);
            for node in 0..5 {
                net.poll(node);
            }
        }
    };
    for other in &all[1..] {
        all[0].receive(0).issue();
        other.send(0, &all[0]).issue();
    }
    pass(10_000);
    assert!(all[1..]
        .iter()
        .all(|other| other.ends() == [(0, Status::Ok)]));
    all[0].ends();
    // It asks all others to leave; their answers are lost.
    net.cut(0);
    pass(500_000);
    all[0].receive(1).from(&all[1]).issue();
    net.poll(0);
    net.heal();
    all[1].send(2, &all[0]).run();
    assert_eq!(
        all[0].ends(),
        [(1, Status::Ok)],
        "the process that it names lives"
    );
}
