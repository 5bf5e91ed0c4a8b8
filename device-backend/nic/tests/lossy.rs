//! Transfers over wires that lose, double, delay and reorder frames (U1 to U3, U10), and
//! what happens when a peer is silent for good.

use qnic_abi::control::{Opcode, PathInfo, QueryPath, ReplyHeader};
use qnic_abi::{Status, VniId};
use qnic_nic::testing::{page, LossyWire, Net, Pair, PAGE, SEGMENT};
use qnic_nic::{Counters, Limits, Progress};
use zerocopy::FromBytes;

const MILLISECOND: u64 = 1_000_000;

/// A pair whose pages are all present, on this wire.
fn lossy_pair(wire: LossyWire, seed: u64) -> Pair {
    Pair::present(Net::lossy(2, wire, seed))
}

/// What both nodes have counted.
fn total(net: &Net, count: impl Fn(Counters) -> u64) -> u64 {
    (0..2).map(|node| count(net.counters(node))).sum()
}

/// Lets time pass until something holds; returns how much.
#[track_caller]
fn until(net: &Net, holds: impl Fn() -> bool) -> u64 {
    let start = net.cluster().now;
    while !holds() {
        net.advance(MILLISECOND);
        net.poll_both(1);
        let passed = net.cluster().now.0 - start.0;
        assert!(
            passed < 10 * Limits::default().peer_timeout,
            "it never does"
        );
    }
    net.cluster().now.0 - start.0
}

#[test]
fn everything_arrives_once_whatever_is_lost() {
    for (seed, loss) in (0..).zip([0, 10, 50, 200, 400]) {
        let Pair { net, a, b } = lossy_pair(LossyWire::rough(loss), seed);
        let bytes = a.fill(0, SEGMENT, seed);
        for round in 1..=20 {
            a.write(&b).notify(3).run();
            assert_eq!(a.done().0, round, "loss {loss}");
            assert_eq!(b.signals(3), round);
        }
        assert!(b.holds(0, &bytes));
        let half = SEGMENT / 2;
        a.read(&b).to(half).bytes(half).run();
        assert!(a.holds(half, &bytes[..half as usize]));
        assert_eq!(a.errors(), []);
        let again = total(&net, |counters| counters.frames_resent);
        assert!(loss == 0 || again > 0, "frames were sent again");
        assert_eq!(total(&net, |counters| counters.frames_outside), 0);
        assert_eq!(total(&net, |counters| counters.peers_given_up), 0);
    }
}

#[test]
fn on_a_wire_that_loses_nothing_no_frame_is_sent_again() {
    let Pair { net, a, b } = lossy_pair(LossyWire::steady(20_000), 1);
    for _ in 0..30 {
        a.write(&b).issue();
    }
    net.run();
    assert_eq!(a.done().0, 30);
    assert_eq!(total(&net, |counters| counters.frames_resent), 0);
    assert_eq!(total(&net, |counters| counters.duplicate_frames), 0);
    let acks = total(&net, |counters| counters.acknowledgements);
    assert!(acks < 30 * 64 / 4, "they are cumulative: {acks}");
}

/// On a route that takes long, so that a whole window is under way when the first gap
/// is noticed.
#[test]
fn what_is_sent_again_is_what_was_lost() {
    let long = LossyWire {
        loss: 10,
        ..LossyWire::steady(3 * MILLISECOND)
    };
    let Pair { net, a, b } = lossy_pair(long, 1);
    for _ in 0..10 {
        for _ in 0..16 {
            a.write(&b).issue();
            b.write(&a).issue();
        }
        net.run();
    }
    assert_eq!((a.done().0, b.done().0), (160, 160));
    let again = total(&net, |counters| counters.frames_resent);
    let in_vain = total(&net, |counters| counters.duplicate_frames);
    assert!(again > 100 && in_vain * 4 < again, "{in_vain} of {again}");
}

#[test]
fn an_acknowledgement_waits_for_a_frame_that_carries_it() {
    let Pair { net, a, b } = lossy_pair(LossyWire::rough(0), 1);
    a.inline_write(&b, &[1; 8]).run();
    a.inline_write(&b, &[2; 8]).issue();
    net.poll(0);
    let acknowledgements = || net.counters(1).acknowledgements;
    let before = acknowledgements();
    // In transit for 50 µs at most.
    net.advance(50_000);
    net.poll(1);
    assert_eq!(acknowledgements(), before);
    assert_eq!(net.poll(1), Progress::Idle, "waiting is not spinning");
    net.advance(49_000);
    net.poll(1);
    assert_eq!(acknowledgements(), before);
    net.advance(1000);
    net.poll(1);
    assert_eq!(acknowledgements(), before + 1);
}

#[test]
fn a_peer_that_is_silent_for_good_is_given_up_in_time_and_may_come_back() {
    let Pair { net, a, b } = lossy_pair(LossyWire::rough(0), 7);
    a.write(&b).run();
    net.cut(1);
    a.write(&b).issue();
    a.read(&b).issue();
    let timeout = Limits::default().peer_timeout;
    let passed = until(&net, || a.done() == (2, 1));
    assert!((timeout..timeout * 5 / 4).contains(&passed), "{passed}");
    let errors = a.errors();
    assert_eq!(errors.len(), 2);
    assert!(errors.iter().all(|error| error.1 == Status::PeerGone));
    assert_eq!(net.counters(0).peers_given_up, 1);
    // It was there all the time, and answers when it is asked; both start clean.
    net.heal();
    net.run();
    let bytes = a.fill(0, SEGMENT, 9);
    a.write(&b).run();
    assert_eq!(a.errors().len(), 2);
    assert!(b.holds(0, &bytes));
}

/// It asks for nothing and owes nothing; but what it has received waits for what is before it.
#[test]
fn a_sender_that_is_gone_before_it_has_filled_a_gap_is_given_up() {
    let Pair { net, a, b } = lossy_pair(LossyWire::steady(20_000), 3);
    a.write(&b).run();
    net.cut(1);
    a.inline_write(&b, &[1; 8]).issue();
    net.poll(0);
    net.heal();
    a.inline_write(&b, &[2; 8]).notify(3).issue();
    net.poll(0);
    net.advance(20_000);
    net.cut(0);
    let timeout = Limits::default().peer_timeout;
    let passed = until(&net, || net.counters(1).peers_given_up == 1);
    assert!((timeout..timeout * 5 / 4).contains(&passed), "{passed}");
    assert_eq!(b.signals(3), 0);
    net.assert_holds_nothing(1);
}

#[test]
fn a_partition_that_heals_in_time_costs_nothing_but_time() {
    let Pair { net, a, b } = Pair::present(Net::lossy(3, LossyWire::rough(20), 11));
    let bytes = a.fill(0, SEGMENT, 5);
    a.write(&b).run();
    for _ in 0..8 {
        a.write(&b).issue();
        net.poll(0);
        net.advance(30_000);
    }
    net.cut(0);
    net.cut(1);
    for _ in 0..400 {
        net.advance(10 * MILLISECOND);
        for node in 0..3 {
            net.poll(node);
        }
    }
    assert!(a.done().0 < 9);
    net.heal();
    net.run();
    assert_eq!(a.done().0, 9);
    assert_eq!(a.errors(), []);
    assert!(b.holds(0, &bytes));
}

#[test]
fn a_node_that_comes_back_without_a_word_starts_clean() {
    let Pair { net, a, b } = lossy_pair(LossyWire::rough(0), 3);
    a.write(&b).run();
    // It goes while no peer can hear it, with frames in transit to it.
    a.write(&b).issue();
    net.poll(0);
    net.cut(0);
    net.cluster().reset(1);
    net.heal();
    net.cluster().start(1);
    let b = net.party(1, 2).present();
    let before = b.memory();
    net.run();
    assert_eq!(a.errors(), [(1, Status::PeerGone)]);
    assert!(net.counters(1).stale_frames > 0);
    assert!(b.memory() == before, "a frame of the old session was taken");
    a.write(&b).run();
    assert_eq!(a.done().0, 3);
    assert_eq!(a.errors().len(), 1);
}

#[test]
fn fragments_are_no_longer_than_a_frame_of_the_route() {
    for loss in [None, Some(50)] {
        let net = match loss {
            None => Net::new(2, 2048, 8, &Limits::default()),
            Some(loss) => Net::lossy(2, LossyWire::rough(loss), 4),
        };
        net.cluster().max_payload = 1000;
        let Pair { a, b, .. } = Pair::present(net);
        let bytes = a.fill(0, SEGMENT, 5);
        a.write(&b).run();
        assert!(b.holds(0, &bytes));
        a.read(&b).from(3).to(70_000).bytes(50_000).run();
        assert!(a.holds(70_000, &bytes[3..50_003]));
        assert_eq!(a.done(), (1, 1));
    }
}

/// U8: what the wire has found out reaches sessions that run.
#[test]
fn fragments_follow_the_length_that_frames_may_have() {
    let Pair { net, a, b } = lossy_pair(LossyWire::steady(10_000), 4);
    // A source page is looked up for each frame.
    let sent = || net.counters(0).source_hits;
    let frames_of_four_pages = |max_payload| {
        net.cluster().max_payload = max_payload;
        net.cluster().update_paths(0);
        let before = sent();
        let bytes = a.fill(page(0), 4 * PAGE, u64::from(max_payload));
        a.write(&b).from(page(0)).to(page(0)).bytes(4 * PAGE).run();
        assert!(b.holds(page(0), &bytes));
        sent() - before
    };
    assert_eq!(path(&net, 1), Err(Status::NoSuchNode));
    a.inline_write(&b, &[2; 8]).run();
    assert_eq!(frames_of_four_pages(4096), 4);
    assert_eq!(frames_of_four_pages(1319), 16);
    let known = path(&net, 1).unwrap();
    assert_eq!((known.max_payload.get(), known.flags.get()), (1024, 0));
    assert!((20_000..1_000_000).contains(&known.round_trip.get()));
    assert_eq!(known.window.get(), Limits::default().window);
    assert_eq!(frames_of_four_pages(4096), 4);
    assert_eq!(path(&net, 77), Err(Status::NoSuchNode));
}

/// What the driver of node 0 learns of the route to another node.
fn path(net: &Net, node: u16) -> Result<PathInfo, Status> {
    let query = QueryPath {
        node: node.into(),
        ..QueryPath::default()
    };
    let (_, reply) = net
        .cluster()
        .request(0, Opcode::QueryPath, VniId(0), &query);
    let (header, body) = ReplyHeader::ref_from_prefix(reply.as_ref().unwrap()).unwrap();
    match Status::try_from(header.status.get()).unwrap() {
        Status::Ok => Ok(PathInfo::read_from_prefix(body).unwrap().0),
        status => Err(status),
    }
}

/// U7: tiny writes that arrive in order take no page of their source, and share their
/// acknowledgements; out of order they arrive as well, and it costs more of these.
#[test]
fn tiny_writes_in_order_are_acknowledged_together() {
    let acknowledgements = |wire| {
        let Pair { net, a, b } = lossy_pair(wire, 4);
        a.inline_write(&b, &[1; 8]).run();
        let before = net.counters(1).acknowledgements;
        for _ in 0..32 {
            a.inline_write(&b, &[2; 8]).issue();
        }
        net.run();
        assert_eq!(a.done().0, 33);
        let counters = net.counters(0);
        assert_eq!(counters.source_hits + counters.source_misses, 0);
        net.counters(1).acknowledgements - before
    };
    assert_eq!(acknowledgements(LossyWire::steady(10_000)), 1);
    let mixed = LossyWire {
        jitter: 40_000,
        ..LossyWire::steady(10_000)
    };
    assert!(acknowledgements(mixed) > 1);
}

#[test]
fn an_import_finds_its_way_through_loss() {
    for seed in 0..20 {
        let Pair { net, a, b } = lossy_pair(LossyWire::rough(300), seed);
        let token = a.import(1, b.port, 7, 10_000).unwrap();
        net.run();
        assert_eq!(net.import_reply(0, token), Some(Ok(b.segment.key)));
    }
}
