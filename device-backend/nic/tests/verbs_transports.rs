//! Receives that queue pairs share, unreliable connections and datagrams (X18).

use qnic_abi::verbs::requests::Object;
use qnic_abi::verbs::rings::WorkCompletion;
use qnic_abi::verbs::{
    route_header, Completed, Event, Outcome, PathAddress, Request, Rights, State, Transport,
};
use qnic_abi::{NodeId, Status};
use qnic_nic::testing::{
    page, receive_entry, token, LossyWire, Net, Pair, ProgramRing, VerbsPair, VerbsParty,
    QP_A as A, QP_B as B, SRQ,
};
use qnic_nic::Limits;

const OK: u32 = Outcome::Success as u32;

/// Two pairs of queue pairs, of which those of `b` share the receives that it posts.
fn sharing() -> (Net, VerbsParty, VerbsParty, ProgramRing) {
    let Pair { net, a, b } = Pair::lossless();
    let (a, b) = (VerbsParty::new(a, 64), VerbsParty::new(b, 64));
    let (status, ring) = b.create_shared(16, 0);
    assert_eq!(status, Status::Ok);
    for offset in 0..2 {
        a.create(A + offset, 16);
        assert_eq!(b.create_sharing(B + offset, 16), Status::Ok);
        a.connect(A + offset, (1, B + offset));
        b.connect(B + offset, (0, A + offset));
    }
    (net, a, b, ring)
}

/// They are taken in the order of their posting, by whichever queue pair needs one; one that finds none
/// waits as if they were its own.
#[test]
fn queue_pairs_share_receives() {
    let (net, a, b, ring) = sharing();
    let keys = [&a, &b].map(|it| it.register(Rights::all()).unwrap());
    let bytes = a.party.fill(0, 5 * 6000, 4);
    let at = |id: u64| b.sge(id * 6000, 6000, keys[1]);
    for id in 0..3 {
        assert!(ring.post(&b.party, &receive_entry(id, &[at(id)])));
    }
    for id in 0..5 {
        let qp = A + (id % 2) as u32;
        a.send(qp, id, &[a.sge(id * 6000, 6000, keys[0])]).post();
        net.run();
    }
    let ends = |expected: &[(u64, u32)]| {
        let polled = std::iter::from_fn(|| b.poll());
        let polled: Vec<_> = polled.map(|it| (it.id.get(), it.qp.get())).collect();
        assert_eq!(polled, expected);
    };
    ends(&[(0, B), (1, B + 1), (2, B)]);
    for id in 3..5 {
        assert!(ring.post(&b.party, &receive_entry(id, &[at(id)])));
        net.advance(641_000);
        net.run();
    }
    assert_eq!(a.ends().len(), 5);
    assert!(b.party.holds(0, &bytes[..18_000]));
    assert_eq!(b.poll_all().len(), 2);
    assert_eq!(ring.posted(&b.party), 0);
    net.assert_unlocked();
}

/// Once, when fewer receives are left than the limit; at once, if they are fewer when it is set.
#[test]
fn a_shared_receive_queue_tells_that_few_are_left() {
    let (net, a, b, ring) = sharing();
    let reached = [(token(SRQ), Event::LimitReached as u16)];
    for id in 0..5 {
        assert!(ring.post(&b.party, &receive_entry(id, &[])));
    }
    let send = || {
        a.send(A, 1, &[]).post();
        net.run();
    };
    assert_eq!(b.limit_shared(4), Status::Ok);
    send();
    assert_eq!(b.events(), [], "four are left");
    a.send(A, 1, &[]).post();
    net.run();
    assert_eq!(b.events(), reached);
    send();
    assert_eq!(b.events(), [], "it was told once");
    assert_eq!(b.limit_shared(3), Status::Ok);
    net.run();
    assert_eq!(b.events(), reached, "two are left");
    assert_eq!(b.limit_shared(1), Status::Ok);
    assert_eq!(b.limit_shared(0), Status::Ok);
    send();
    send();
    assert_eq!((b.ends().len(), b.events()), (5, vec![]));
    // It ends, and with it what it would tell; what uses it finds no receive.
    assert_eq!(b.limit_shared(1), Status::Ok);
    assert_eq!(b.destroy(Object::SharedReceiveQueue, SRQ), Status::Ok);
    assert!(ring.post(&b.party, &receive_entry(9, &[])));
    a.send(A, 9, &[]).post();
    net.run();
    assert_eq!((b.ends(), b.events()), (vec![], vec![]));
    assert_eq!(b.limit_shared(1), Status::Malformed);
}

/// A receive that is wrong fails the queue pair whose message has taken it, and what it had taken; the
/// others go on with what is left.
#[test]
fn a_queue_pair_that_fails_leaves_the_shared_receives_of_others() {
    let (net, a, b, ring) = sharing();
    let keys = [&a, &b].map(|it| it.register(Rights::all()).unwrap());
    let wrong = b.sge(0, 100, 1);
    for (id, sge) in [(1, wrong), (2, b.sge(0, 100, keys[1]))] {
        assert!(ring.post(&b.party, &receive_entry(id, &[sge])));
    }
    a.send(A, 5, &[a.sge(0, 100, keys[0])]).post();
    a.send(A + 1, 6, &[a.sge(0, 100, keys[0])]).post();
    net.run();
    let protection = Outcome::LocalProtection as u32;
    assert_eq!(b.ends(), [(1, protection), (2, OK)]);
    let remote = Outcome::RemoteOperation as u32;
    let mut ends = a.ends();
    ends.sort_unstable();
    assert_eq!(ends, [(5, remote), (6, OK)]);
    assert_eq!(b.events(), [(token(B), Event::LastReceive as u16)]);
    // One that has taken a receive and waits for its page flushes that one alone.
    net.answer_faults(false);
    b.party.evict(page(1));
    for id in 3..5 {
        let sge = b.sge(page(1), 100, keys[1]);
        assert!(ring.post(&b.party, &receive_entry(id, &[sge])));
    }
    a.send(A + 1, 7, &[a.sge(0, 100, keys[0])]).post();
    net.run();
    let failed = b.attributes(B + 1, State::Failed, (0, A + 1));
    assert_eq!(b.modify(&failed), Status::Ok);
    net.run();
    assert_eq!(b.ends(), [(3, Outcome::Flushed as u32)]);
    assert_eq!(ring.posted(&b.party), 1);
    // Requests that cannot be.
    assert_eq!(b.create_shared(16, 0).0, Status::NameExists);
    assert_eq!(a.create_sharing(77, 16), Status::Malformed);
    let (mut body, made) = b.queue_pair_request(77, 16);
    body.srq = SRQ.into();
    assert_eq!(
        b.add(&body, made),
        Status::Malformed,
        "it names a ring, too"
    );
    net.answer_all(1, 9);
    net.assert_unlocked();
}

/// What was begun completes, an event says so once, and what is posted meanwhile is sent later.
#[test]
fn a_send_queue_is_drained() {
    let pair = VerbsPair::lossless();
    let (a, b) = (&pair.a, &pair.b);
    a.send(A, 0, &[pair.at_a(0, 9000)]).post();
    pair.net.run();
    let modify = |state: State, drain_event: u8| {
        let mut body = a.attributes(A, state, (1, B));
        body.drain_event = drain_event;
        a.modify(&body)
    };
    let draining = || (a.query(A).0, a.query_all(A).draining);
    assert_eq!(modify(State::Draining, 1), Status::Ok);
    assert_eq!((draining(), a.events()), ((State::Draining, 1), vec![]));
    for id in 1..4 {
        a.send(A, id, &[]).post();
    }
    for id in 0..4 {
        assert!(b.post_receive(B, id, &[pair.at_b(id * 9000, 9000)]));
    }
    pair.net.advance(641_000);
    pair.net.run();
    assert_eq!(a.ends(), [(0, OK)]);
    let drained = [(token(A), Event::Drained as u16)];
    assert_eq!(
        (draining(), a.events()),
        ((State::Draining, 0), drained.to_vec())
    );
    // It receives meanwhile.
    assert!(a.post_receive(A, 9, &[]));
    b.send(B, 8, &[]).post();
    pair.net.run();
    assert_eq!((a.ends(), b.ends().len()), (vec![(9, OK)], 2));
    assert_eq!(modify(State::ReadyToSend, 0), Status::Ok);
    pair.net.run();
    let rest: Vec<_> = (1..4).map(|id| (id, OK)).collect();
    assert_eq!((a.ends(), b.ends()), (rest.clone(), rest));
    // There is nothing to drain: the event comes at once, if it was asked for.
    assert_eq!(modify(State::Draining, 1), Status::Ok);
    assert_eq!(draining(), (State::Draining, 0));
    pair.net.run();
    assert_eq!(a.events(), drained);
    assert_eq!(modify(State::ReadyToSend, 0), Status::Ok);
    assert_eq!(modify(State::Draining, 0), Status::Ok);
    pair.net.run();
    assert_eq!(a.events(), []);
    // What is posted by then fails with the queue pair.
    a.send(A, 10, &[]).post();
    assert_eq!(modify(State::Failed, 0), Status::Ok);
    assert_eq!(a.ends(), [(10, Outcome::Flushed as u32)]);
    assert_eq!(modify(State::Draining, 0), Status::Malformed);
    assert_eq!(modify(State::SendError, 0), Status::Malformed);
    pair.net.run();
    assert_eq!(pair.net.counters(0).operations, 0);
}

/// Key of datagrams here.
const QKEY: u32 = 0x1111_2222;

fn path(node: u16) -> PathAddress {
    PathAddress::new(NodeId(node), 3, false)
}

/// A context on each node, with a queue pair for datagrams and a key of its segment.
fn open(net: &Net, nodes: usize) -> Vec<(VerbsParty, u32)> {
    let context = |node| {
        let context = VerbsParty::new(net.party(node, node as u16 + 1), 256);
        context.create_with(Transport::Datagram, A + node as u32, 128);
        context.open(A + node as u32, QKEY);
        let key = context.register(Rights::all()).unwrap();
        (context, key)
    };
    (0..nodes).map(context).collect()
}

/// To any node, also the own one, of any length up to that of a packet; the completion names the source.
#[test]
fn datagrams_go_from_one_queue_pair_to_any() {
    let net = Net::new(3, 1024, 8, &Limits::default());
    let parties = open(&net, 3);
    let (a, key) = &parties[0];
    for (round, length) in [0u32, 1, 4000, 4096].into_iter().enumerate() {
        for to in 0..3u16 {
            let (b, receive_key) = &parties[usize::from(to)];
            let has_header = round % 2 == 1;
            let path = PathAddress::new(NodeId(to), 3, has_header);
            let bytes = a.party.fill(5, length.into(), u64::from(length) + 7);
            let before = b.party.bytes(30_000, 40);
            let qp = A + u32::from(to);
            let into = [
                b.sge(30_000, 1000, *receive_key),
                b.sge(31_000, 3136, *receive_key),
            ];
            assert!(b.post_receive(qp, 1, &into));
            let half = length / 2;
            let from = [
                a.sge(5, half, *key),
                a.sge(5 + u64::from(half), length - half, *key),
            ];
            let send = a.send(A, 2, &from).datagram(path, qp, QKEY);
            match has_header {
                true => send.immediate(77).post(),
                false => send.post(),
            }
            net.run();
            assert!(b.party.holds(30_040, &bytes), "{length} to {to}");
            let header = match has_header {
                true => route_header(NodeId(0), NodeId(to), length as u16).to_vec(),
                false => before,
            };
            assert!(b.party.holds(30_000, &header), "{length} to {to}");
            let mut ends: Vec<WorkCompletion> = std::iter::from_fn(|| b.poll()).collect();
            let at = ends.iter().position(|end| end.id.get() == 1).unwrap();
            let end = ends.remove(at);
            assert_eq!((end.status.get(), end.length.get()), (OK, 40 + length));
            assert_eq!((end.qp.get(), end.peer_qp.get()), (qp, A));
            assert_eq!((end.source_lid.get(), end.service_level), (1, 3));
            let flags = if has_header { 1 | 2 } else { 0 };
            assert_eq!(end.flags.get(), flags);
            assert_eq!(end.immediate.get(), if has_header { 77 } else { 0 });
            let sent = ends.len() + a.poll_all().len();
            assert_eq!(sent, 1);
        }
    }
    net.assert_unlocked();
    assert_eq!(net.counters(0).operations, 0);
}

/// Its sender learns nothing, and the receive is there for the next one.
#[test]
fn datagrams_that_nothing_takes_are_dropped_and_counted() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let parties = open(&net, 2);
    let ((a, key), (b, receive_key)) = (&parties[0], &parties[1]);
    b.create(50, 16);
    b.connect(50, (0, A));
    let send = |qp: u32, qkey: u32, length: u32| {
        let sge = a.sge(0, length, *key);
        a.send(A, 1, &[sge]).datagram(path(1), qp, qkey).post();
        net.run();
        assert_eq!((a.ends(), b.ends()), (vec![(1, OK)], vec![]));
    };
    send(B, QKEY, 10);
    send(50, QKEY, 10);
    send(A + 1, QKEY, 10);
    assert!(b.post_receive(A + 1, 9, &[b.sge(0, 139, *receive_key)]));
    send(A + 1, QKEY + 1, 10);
    send(A + 1, QKEY, 100);
    let counters = net.counters(1);
    let drops = [
        counters.verbs_drops_queue_pair,
        counters.verbs_drops_receive,
        counters.verbs_drops_key,
        counters.verbs_drops_length,
    ];
    assert_eq!(drops, [2, 1, 1, 1]);
    // The highest bit stands for the key of the sender.
    let sge = a.sge(0, 99, *key);
    a.send(A, 1, &[sge])
        .datagram(path(1), A + 1, 1 << 31)
        .post();
    net.run();
    assert_eq!(b.ends(), [(9, OK)]);
    assert_eq!(b.query(A + 1).0, State::ReadyToSend);
}

/// What is for a node that is not there is done and counted, at once or when the node is given up; what
/// is behind goes on.
#[test]
fn a_node_that_is_not_there_holds_no_datagram_up() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let parties = open(&net, 2);
    let ((a, _), (b, _)) = (&parties[0], &parties[1]);
    for id in 0..6 {
        let to = if id % 2 == 0 { 700 } else { 1 };
        let receive = b.sge(0, 40, parties[1].1);
        assert!(b.post_receive(A + 1, id, &[receive]));
        assert!(a.send(A, id, &[]).datagram(path(to), A + 1, QKEY).store());
    }
    a.ring(A);
    net.run();
    let all: Vec<_> = (0..6).map(|id| (id, OK)).collect();
    assert_eq!(a.ends(), all);
    assert_eq!(b.ends().len(), 3);
    assert_eq!(net.counters(0).verbs_drops_route, 3);
    // One that was there, and falls silent.
    net.cut(1);
    for id in 0..3 {
        a.send(A, id, &[]).datagram(path(1), A + 1, QKEY).post();
        net.run();
    }
    assert_eq!(a.ends(), all[..3]);
    assert_eq!(net.counters(0).operations, 0);
}

/// Datagrams wait for a page in their order, up to a bound; others are dropped. One that never comes
/// fails its receive.
#[test]
fn datagrams_wait_for_absent_pages() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let parties = open(&net, 2);
    let ((a, key), (b, receive_key)) = (&parties[0], &parties[1]);
    net.answer_faults(false);
    b.party.evict(page(1));
    a.party.evict(page(0));
    let bytes = a.party.fill(0, 70 * 8, 3);
    for id in 0..70u64 {
        let at = match id {
            0 => page(1) - 20,
            _ => page(3) + id * 64,
        };
        assert!(b.post_receive(A + 1, id, &[b.sge(at, 48, *receive_key)]));
        let sge = a.sge(id * 8, 8, *key);
        assert!(a.send(A, id, &[sge]).datagram(path(1), A + 1, QKEY).store());
    }
    a.ring(A);
    net.run();
    assert_eq!(a.ends(), [], "its own page is absent");
    net.answer_all(0, 9);
    net.run();
    assert_eq!((a.ends().len(), b.ends()), (70, vec![]));
    let kept = || {
        let budgets = net.cluster().nodes[1].nic.budgets();
        let kept = budgets.iter().find(|it| it.name == "verbs_frames_kept");
        kept.unwrap().used
    };
    assert_eq!(kept(), 64);
    assert_eq!(net.counters(1).verbs_drops_memory, 6);
    assert_eq!(net.faults(1), 1, "they wait for one page");
    net.answer_all(1, 9);
    net.run();
    let expected: Vec<_> = (0..64).map(|id| (id, OK)).collect();
    assert_eq!((b.ends(), kept()), (expected, 0));
    assert!(b.party.holds(page(1) + 20, &bytes[..8]));
    for id in 1..64usize {
        let at = page(3) + id as u64 * 64 + 40;
        assert!(b.party.holds(at, &bytes[id * 8..][..8]));
    }
    // The page of the next receive cannot be brought in.
    b.party.evict(page(4));
    b.party.set_available(page(4), false);
    net.answer_faults(true);
    for id in 0..3 {
        let sge = a.sge(0, 8, *key);
        a.send(A, id, &[sge]).datagram(path(1), A + 1, QKEY).post();
    }
    net.run();
    assert_eq!(b.ends()[0], (64, Outcome::LocalProtection as u32));
    assert_eq!((b.query(A + 1).0, kept()), (State::Failed, 0));
    net.assert_unlocked();
}

/// Only the send queue fails, and can be used again.
#[test]
fn a_wrong_work_request_fails_the_send_queue_alone() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let parties = open(&net, 2);
    let ((a, key), (b, receive_key)) = (&parties[0], &parties[1]);
    let right = |id| {
        let sge = a.sge(0, 8, *key);
        a.send(A, id, &[sge]).datagram(path(1), A + 1, QKEY)
    };
    let wrong = [
        (Outcome::LocalLength, right(1)),
        (Outcome::LocalOperation, right(1).request(Request::Write)),
        (
            Outcome::LocalOperation,
            right(1).datagram(PathAddress(0), 9, 0),
        ),
        (Outcome::LocalProtection, right(1)),
    ];
    for (round, (outcome, mut wrong)) in wrong.into_iter().enumerate() {
        match round {
            0 => wrong = wrong.sges(&[a.sge(0, 4097, *key)]),
            3 => wrong = wrong.sges(&[a.sge(0, 8, *key ^ 1)]),
            _ => {}
        }
        assert!(b.post_receive(A + 1, 0, &[b.sge(0, 48, *receive_key)]));
        assert!(right(0).store() && wrong.store() && right(2).store());
        a.ring(A);
        net.run();
        let flushed = Outcome::Flushed as u32;
        assert_eq!(a.ends(), [(0, OK), (1, outcome as u32), (2, flushed)]);
        assert_eq!(b.ends(), [(0, OK)]);
        assert_eq!((a.query(A).0, a.events()), (State::SendError, vec![]));
        // What is posted later ends, too.
        right(3).post();
        net.run();
        assert_eq!(a.ends(), [(3, flushed)]);
        assert!(a.post_receive(A, 5, &[a.sge(100, 40, *key)]));
        b.send(A + 1, 6, &[]).datagram(path(0), A, QKEY).post();
        net.run();
        assert_eq!((a.ends(), b.ends()), (vec![(5, OK)], vec![(6, OK)]));
        a.become_with(A, State::ReadyToSend, QKEY);
    }
}

/// Two contexts with unreliable connections, and keys of their segments.
fn unreliable(net: &Net) -> ([VerbsParty; 2], [u32; 2]) {
    let parties = [(0, A), (1, B)].map(|(node, qp)| {
        let context = VerbsParty::new(net.party(node, node as u16 + 1), 256);
        context.create_with(Transport::Unreliable, qp, 128);
        context.connect(qp, (1 - node as u16, A + B - qp));
        context
    });
    let keys = [&parties[0], &parties[1]].map(|it| it.register(Rights::all()).unwrap());
    (parties, keys)
}

#[test]
fn messages_and_writes_of_unreliable_connections() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let ([a, b], keys) = unreliable(&net);
    let first = b.party.segment.address;
    for length in [0u32, 1, 4096, 4097, 60_000] {
        let bytes = a.party.fill(3, length.into(), length.into());
        assert!(b.post_receive(B, 1, &[b.sge(5, 60_000, keys[1])]));
        a.send(A, 2, &[a.sge(3, length, keys[0])])
            .immediate(9)
            .post();
        net.run();
        assert!(b.party.holds(5, &bytes), "{length}");
        assert_eq!(b.poll_all(), [(1, OK, Completed::Receive as u32, length)]);
        let write = a.send(A, 3, &[a.sge(3, length, keys[0])]);
        write.write_to(first + 70_001, keys[1]).post();
        assert!(b.post_receive(B, 4, &[]));
        let write = a.send(A, 5, &[a.sge(3, length, keys[0])]);
        write.write_to(first + 140_001, keys[1]).immediate(9).post();
        net.run();
        assert!(b.party.holds(70_001, &bytes) && b.party.holds(140_001, &bytes));
        let written = Completed::ReceiveWrite as u32;
        assert_eq!(b.poll_all(), [(4, OK, written, length)]);
        assert_eq!(a.ends(), [(2, OK), (3, OK), (5, OK)]);
    }
    // A write that may not be is dropped, and neither side fails.
    let write = a.send(A, 3, &[a.sge(3, 10, keys[0])]);
    write.write_to(first, keys[1] ^ 1).post();
    // There is no receive; then one that is too short, which stays.
    a.send(A, 4, &[a.sge(3, 10, keys[0])]).post();
    net.run();
    assert!(b.post_receive(B, 1, &[b.sge(0, 9, keys[1])]));
    a.send(A, 5, &[a.sge(3, 10, keys[0])]).post();
    a.send(A, 6, &[a.sge(3, 9, keys[0])]).post();
    net.run();
    assert_eq!(a.ends(), [(3, OK), (4, OK), (5, OK), (6, OK)]);
    assert_eq!(b.ends(), [(1, OK)]);
    let counters = net.counters(1);
    let drops = [
        counters.verbs_drops_key,
        counters.verbs_drops_receive,
        counters.verbs_drops_length,
    ];
    assert_eq!(drops, [1, 1, 1]);
    // There is no reading.
    a.send(A, 7, &[a.sge(3, 9, keys[0])])
        .read_from(first, keys[1])
        .post();
    net.run();
    assert_eq!(a.ends(), [(7, Outcome::LocalOperation as u32)]);
    assert_eq!(a.query(A).0, State::SendError);
    net.assert_unlocked();
}

/// A short last piece stays behind the others where small frames overtake large ones (U4).
#[test]
fn pieces_of_unreliable_messages_keep_their_order() {
    let net = Net::lossy(2, LossyWire::steady(10_000), 1);
    net.cluster().set_backlog(50_000);
    let ([a, b], keys) = unreliable(&net);
    let length = 8192 + 100;
    assert!(b.post_receive(B, 1, &[b.sge(0, length, keys[1])]));
    a.send(A, 2, &[a.sge(0, length, keys[0])]).post();
    net.run();
    assert_eq!(b.poll_all(), [(1, OK, Completed::Receive as u32, length)]);
}

/// A message that has lost a piece is lost without a trace, and its receive is for the next one. What
/// completes is whole, and in order.
#[test]
fn a_message_with_a_gap_is_lost_silently() {
    let wire = LossyWire {
        loss: 50,
        duplication: 0,
        delay: 25_000,
        jitter: 0,
    };
    let (mut lost, mut arrived) = (0, 0);
    for seed in 0..6 {
        let net = Net::lossy(2, wire.clone(), seed);
        let ([a, b], keys) = unreliable(&net);
        let bytes = a.party.fill(0, 30 * 8_000, seed);
        for id in 0..30u64 {
            let at = id * 8_000;
            assert!(b.post_receive(B, id, &[b.sge(at, 8_000, keys[1])]));
            assert!(a
                .send(A, id, &[a.sge(at, 8_000, keys[0])])
                .immediate(id as u32)
                .store());
        }
        a.ring(A);
        net.run();
        let all: Vec<_> = (0..30).map(|id| (id, OK)).collect();
        assert_eq!(a.ends(), all);
        let mut last = None;
        let ends: Vec<WorkCompletion> = std::iter::from_fn(|| b.poll()).collect();
        for (end, receive) in ends.iter().zip(0u64..) {
            let message = end.immediate.get() as usize;
            assert_eq!((end.id.get(), end.status.get()), (receive, OK));
            assert!(last < Some(message), "in order");
            last = Some(message);
            let sent = &bytes[message * 8_000..][..8_000];
            assert!(b.party.holds(receive * 8_000, sent), "whole");
        }
        arrived += ends.len();
        lost += 30 - ends.len();
    }
    assert!(lost > 0 && arrived > 0, "{lost} {arrived}");
}

/// The peer ends: nothing tells the source. It goes on when there is another one.
#[test]
fn an_unreliable_connection_outlives_its_peer() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let ([a, b], _) = unreliable(&net);
    a.send(A, 1, &[]).post();
    net.run();
    net.cluster().reset(1);
    for id in 2..4 {
        a.send(A, id, &[]).post();
        net.run();
    }
    assert_eq!(a.ends(), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(a.query(A).0, State::ReadyToSend);
    drop(b);
    net.cluster().start(1);
    let b = VerbsParty::new(net.party(1, 2), 256);
    b.create_with(Transport::Unreliable, B, 16);
    b.connect(B, (0, A));
    assert!(b.post_receive(B, 1, &[]));
    for _ in 0..4 {
        a.send(A, 4, &[]).post();
        a.run_out();
    }
    assert_eq!(b.ends(), [(1, OK)]);
    assert_eq!(a.query(A).0, State::ReadyToSend);
    assert_eq!(net.counters(0).operations, 0);
}
