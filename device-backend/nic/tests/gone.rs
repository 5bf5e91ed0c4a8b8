//! Nodes that fall silent, come, and come back: what waits for one of them without sending to it
//! learns of its end, and what is sent to one that is gone fails at once (U10).

use qnic_abi::atomic::Function;
use qnic_abi::host_area::CompletionKind;
use qnic_abi::Status;
use qnic_nic::testing::{status, LossyWire, Net, Pair, Party};
use qnic_nic::Limits;

const MILLISECOND: u64 = 1_000_000;

/// A silent node is given up after this.
fn timeout() -> u64 {
    Limits::default().peer_timeout
}

/// Lets time pass until a process has so many completions; returns them, by handle, and how long it
/// took.
#[track_caller]
fn wait(net: &Net, party: &Party, count: usize) -> (Vec<(u64, Status)>, u64) {
    let start = net.cluster().now.0;
    let mut ends = Vec::new();
    while ends.len() < count {
        net.pass(5 * MILLISECOND, MILLISECOND, 1);
        ends.extend(party.ends());
        let passed = net.cluster().now.0 - start;
        assert!(passed < 10 * timeout(), "nothing has ended but {ends:?}");
    }
    ends.sort_unstable_by_key(|end| end.0);
    (ends, net.cluster().now.0 - start)
}

/// Two processes that have had a message of each other.
fn acquainted() -> Pair {
    let pair = Pair::on(Net::lossy(2, LossyWire::steady(20_000), 3));
    let Pair { net, a, b } = &pair;
    a.send(1, b).issue();
    b.send(1, a).issue();
    a.receive(2).from(b).issue();
    b.receive(2).from(a).issue();
    net.pass(50 * MILLISECOND, MILLISECOND, 1);
    assert_eq!((a.ends().len(), b.ends().len()), (2, 2));
    pair
}

const WAITS: [(u64, Status); 2] = [(5, Status::PeerGone), (6, Status::PeerGone)];

/// A receive and a probe end with PeerGone within twice the peer timeout, whether their node falls
/// silent before or after them, and although nothing has been sent since.
#[test]
fn what_waits_for_a_node_that_falls_silent_learns_of_it() {
    for silent_before in [false, true] {
        let Pair { net, a, b } = acquainted();
        net.pass(4 * timeout(), MILLISECOND, 1);
        if silent_before {
            net.cut(1);
            net.pass(1000 * MILLISECOND, MILLISECOND, 1);
        }
        a.receive(5).from(&b).issue();
        a.probe(6).from(&b).wait().issue();
        a.receive(7).issue();
        if !silent_before {
            net.pass(3 * timeout(), MILLISECOND, 1);
            assert_eq!(a.ends(), [], "it is there");
            net.cut(1);
        }
        let (ends, passed) = wait(&net, &a, 2);
        assert_eq!(ends, WAITS);
        assert!(passed < 2 * timeout(), "{passed}");
        // Now it is known to be gone.
        a.receive(5).from(&b).issue();
        a.probe(6).from(&b).wait().issue();
        net.poll(0);
        assert_eq!(a.ends(), WAITS);
        net.heal();
        net.pass(timeout(), MILLISECOND, 1);
        a.receive(8).from(&b).issue();
        b.send(9, &a).issue();
        net.pass(50 * MILLISECOND, MILLISECOND, 1);
        assert_eq!(a.ends(), [(7, Status::Ok)], "the first that was posted");
    }
}

/// However many receives wait for a node, it is asked eight times in a peer timeout, and never if
/// nothing waits.
#[test]
fn a_wait_costs_a_probe_now_and_then() {
    let Pair { net, a, b } = acquainted();
    let frames = || net.counters(0).acknowledgements + net.counters(1).acknowledgements;
    net.pass(2 * timeout(), MILLISECOND, 1);
    let before = frames();
    net.pass(10 * timeout(), MILLISECOND, 1);
    assert_eq!(frames(), before, "a quiet cluster is quiet");
    for handle in 0..50 {
        a.receive(handle).from(&b).issue();
        net.poll(0);
    }
    net.pass(timeout(), MILLISECOND, 1);
    let before = frames();
    net.pass(10 * timeout(), MILLISECOND, 1);
    let both = frames() - before;
    assert!((100..=170).contains(&both), "{both} probes and answers");
    (0..50).for_each(|handle| a.cancel(handle));
    net.pass(timeout(), MILLISECOND, 1);
    let before = frames();
    net.pass(10 * timeout(), MILLISECOND, 1);
    assert_eq!(frames(), before);
}

/// A receive waits for a process on a node that has not started. From when it is there, its end is
/// noticed.
#[test]
fn a_receive_waits_for_a_node_that_comes_later_and_learns_of_its_end() {
    let Pair { net, a, b } = Pair::on(Net::lossy(2, LossyWire::steady(20_000), 3));
    net.cut(1);
    a.receive(5).from(&b).issue();
    a.probe(6).from(&b).wait().issue();
    net.pass(4 * timeout(), MILLISECOND, 1);
    assert_eq!(a.ends(), []);
    // A Send does not wait for it, and the others go on to.
    a.send(1, &b).issue();
    net.pass(2 * timeout(), MILLISECOND, 1);
    assert_eq!(a.ends(), [(1, Status::NoSuchNode)]);
    net.heal();
    // It says nothing, and is found.
    net.pass(5 * timeout(), MILLISECOND, 1);
    net.cut(1);
    let (ends, passed) = wait(&net, &a, 2);
    assert_eq!(ends, WAITS);
    assert!(passed < 2 * timeout(), "{passed}");
}

/// The same where frames cannot be lost: a node that is down has no route, and says that it ends.
#[test]
fn a_receive_learns_of_the_end_of_a_node_that_it_never_heard_of() {
    let Pair { net, a, b } = Pair::lossless();
    a.receive(5).from(&b).issue();
    net.run();
    net.cluster().reset(1);
    net.run();
    assert_eq!(a.ends(), [(5, Status::PeerGone)]);
    // It is down, and comes.
    a.receive(6).from(&b).issue();
    net.pass(2 * timeout(), MILLISECOND, 1);
    assert_eq!(a.ends(), []);
    net.cluster().start(1);
    net.pass(timeout(), MILLISECOND, 1);
    net.cluster().reset(1);
    net.run();
    assert_eq!(a.ends(), [(6, Status::PeerGone)]);
}

/// A process that has joined a group is noticed when its node falls silent, before the group forms.
#[test]
fn a_member_whose_node_falls_silent_before_the_group_forms_is_missed() {
    let net = Net::lossy(3, LossyWire::steady(20_000), 3);
    let members: Vec<_> = (0..3).map(|node| net.party(node, 1)).collect();
    for rank in [0, 1] {
        members[rank].join(1, &members[0], 7, (rank as u32, 3));
    }
    net.pass(100 * MILLISECOND, MILLISECOND, 1);
    assert_eq!(net.budget(0, "joins_of_peer"), 1);
    net.cut(1);
    net.pass(2 * timeout(), MILLISECOND, 1);
    assert_eq!(net.counters(0).peers_given_up, 1);
    net.heal();
    members[2].join(1, &members[0], 7, (2, 3));
    net.pass(2 * timeout(), MILLISECOND, 1);
    for member in &members {
        let joined = member.completions_of(CompletionKind::Join);
        assert_eq!(joined.len(), 1, "it joins again by itself");
        assert_eq!(status(&joined[0]), Status::Ok);
    }
}

/// The first operation to a node that falls silent costs the peer timeout, each further one nothing,
/// whatever it is. The node is found again without any.
#[test]
fn what_is_sent_to_a_node_that_is_gone_fails_at_once() {
    let Pair { net, a, b } = acquainted();
    a.write(&b).bytes(64).issue();
    net.pass(50 * MILLISECOND, MILLISECOND, 1);
    net.cut(1);
    a.send(3, &b).issue();
    let (ends, passed) = wait(&net, &a, 1);
    assert_eq!(ends, [(3, Status::PeerGone)]);
    assert!(passed < timeout() * 5 / 4, "{passed}");
    for round in 0..20 {
        a.send(4, &b).issue();
        let before = a.done();
        a.write(&b).bytes(64).issue();
        a.inline_write(&b, &[1; 8]).issue();
        a.read(&b).bytes(64).issue();
        a.atomic(Function::Increment, &b, [0; 2]).issue();
        net.poll(0);
        net.poll(0);
        assert_eq!(a.ends(), [(4, Status::NoSuchNode)], "round {round}");
        let done = a.done();
        let done = done.0 + done.1 - before.0 - before.1;
        assert_eq!(done, 4, "round {round}");
        let last = a.errors();
        assert!(last.iter().all(|error| error.1 == Status::NoSuchNode));
        net.pass(100 * MILLISECOND, MILLISECOND, 1);
    }
    net.heal();
    net.pass(timeout(), MILLISECOND, 1);
    a.send(5, &b).issue();
    net.pass(50 * MILLISECOND, MILLISECOND, 1);
    b.receive(5).issue();
    net.pass(50 * MILLISECOND, MILLISECOND, 1);
    assert_eq!(b.ends(), [(5, Status::Ok)]);
}

/// A node is asked ever more seldom while nothing wants it, and found when it is wanted.
#[test]
fn a_node_that_stays_away_is_asked_ever_more_seldom() {
    let Pair { net, a, b } = acquainted();
    net.cut(1);
    a.send(3, &b).issue();
    wait(&net, &a, 1);
    net.pass(30 * timeout(), MILLISECOND, 1);
    net.heal();
    assert_eq!(net.counters(0).peers_given_up, 1, "once");
    a.send(4, &b).issue();
    net.poll(0);
    assert_eq!(a.ends(), [(4, Status::NoSuchNode)]);
    net.pass(50 * MILLISECOND, MILLISECOND, 1);
    a.send(5, &b).issue();
    net.pass(50 * MILLISECOND, MILLISECOND, 1);
    b.receive(5).issue();
    net.pass(50 * MILLISECOND, MILLISECOND, 1);
    assert_eq!(b.ends(), [(5, Status::Ok)]);
}
