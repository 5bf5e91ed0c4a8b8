//! How work requests and queue pairs of verbs fail (X18): both ends learn why, what was before is
//! complete, and nothing is left.

use qnic_abi::control::Opcode;
use qnic_abi::verbs::requests::{CreateQueuePair, ModifyQueuePair, Object};
use qnic_abi::verbs::rings::{SendFlags, Sge};
use qnic_abi::verbs::{Event, Outcome, Request, Rights, State};
use qnic_abi::Status;
use qnic_nic::testing::{
    page, token, LossyWire, Net, Pair, VerbsPair, VerbsParty, CQ, PAGE, QP_A as A, QP_B as B,
    SEGMENT, SGES,
};
use qnic_nic::{QueuePairFaults, TableKind};

const OK: u32 = Outcome::Success as u32;

/// What is wrong at the source fails there, and the peer never learns of it; what was posted before
/// completes first.
#[test]
fn work_requests_that_are_wrong_fail_at_their_source() {
    let protection = Outcome::LocalProtection;
    type Make = fn(&VerbsPair) -> Vec<Sge>;
    let cases: [(Outcome, Make); 6] = [
        (protection, |two| vec![two.a.sge(0, 100, two.keys[0] + 1)]),
        (protection, |two| {
            vec![two.a.sge(SEGMENT - 50, 51, two.keys[0])]
        }),
        (protection, |two| {
            vec![two.at_a(0, 10), two.a.sge(0, 10, 0), two.at_a(0, 10)]
        }),
        (protection, |two| {
            let mut sge = two.at_a(0, 10);
            sge.address = (sge.address.get() - 1).into();
            vec![sge]
        }),
        (Outcome::LocalOperation, |two| {
            vec![two.at_a(0, 1); SGES + 1]
        }),
        (Outcome::LocalLength, |two| vec![two.at_a(0, 1 << 30); 3]),
    ];
    for (outcome, make) in cases {
        let two = VerbsPair::lossless();
        let (a, b) = (&two.a, &two.b);
        assert!(b.post_receive(B, 0, &[two.at_b(0, 100)]));
        assert!(b.post_receive(B, 1, &[two.at_b(0, 100)]));
        assert!(a.send(A, 5, &[two.at_a(0, 100)]).store());
        assert!(a.send(A, 6, &make(&two)).store());
        a.send(A, 7, &[two.at_a(0, 100)]).post();
        two.net.run();
        let expected = [(5, OK), (6, outcome as u32), (7, Outcome::Flushed as u32)];
        assert_eq!(a.ends(), expected, "{outcome:?}");
        assert_eq!(b.ends(), [(0, OK)]);
        assert_eq!(
            (a.query(A).0, b.query(B).0),
            (State::Failed, State::ReadyToSend)
        );
        two.net.assert_unlocked();
    }
    // An opcode that is none.
    let two = VerbsPair::lossless();
    let mut wrong = two.a.send(A, 6, &[]);
    wrong.entry.opcode = 99.into();
    wrong.post();
    two.net.run();
    assert_eq!(two.a.ends(), [(6, Outcome::LocalOperation as u32)]);
}

#[test]
fn receives_that_are_wrong_fail_at_both_ends() {
    type Make = fn(&VerbsPair) -> Vec<Sge>;
    let (remote, invalid) = (Outcome::RemoteOperation, Outcome::RemoteInvalidRequest);
    let cases: [(Outcome, Outcome, Make); 4] = [
        (Outcome::LocalLength, invalid, |two| vec![two.at_b(0, 99)]),
        (Outcome::LocalLength, invalid, |_| vec![]),
        (Outcome::LocalProtection, remote, |two| {
            vec![two.at_b(0, 50), two.b.sge(50, 50, 1)]
        }),
        (Outcome::LocalOperation, remote, |two| {
            vec![two.at_b(0, 100); SGES + 1]
        }),
    ];
    for (here, there, make) in cases {
        let two = VerbsPair::lossless();
        let (a, b) = (&two.a, &two.b);
        assert!(b.post_receive(B, 1, &make(&two)));
        assert!(b.post_receive(B, 2, &[two.at_b(0, 100)]));
        assert!(a.send(A, 5, &[two.at_a(0, 100)]).store());
        a.send(A, 6, &[two.at_a(0, 100)]).post();
        two.net.run();
        let flushed = Outcome::Flushed as u32;
        assert_eq!(b.ends(), [(1, here as u32), (2, flushed)], "{here:?}");
        assert_eq!(a.ends(), [(5, there as u32), (6, flushed)], "{here:?}");
        assert_eq!((a.query(A).0, b.query(B).0), (State::Failed, State::Failed));
        two.net.assert_unlocked();
    }
}

/// A receive needs a key that lets the NIC write, of the protection domain of the queue pair.
#[test]
fn keys_grant_what_they_were_given_for() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    assert_eq!(b.register(Rights::all()), Err(Status::NameExists));
    assert_eq!(b.destroy(Object::Memory, two.keys[1]), Status::Ok);
    assert_eq!(b.destroy(Object::Memory, two.keys[1]), Status::Malformed);
    let key = b.register(Rights::REMOTE_READ).unwrap();
    assert!(b.post_receive(B, 1, &[b.sge(0, 100, key)]));
    a.send(A, 5, &[two.at_a(0, 100)]).post();
    two.net.run();
    assert_eq!(b.ends(), [(1, Outcome::LocalProtection as u32)]);
    assert_eq!(a.ends(), [(5, Outcome::RemoteOperation as u32)]);
    // A segment that ends takes its key along.
    let two = VerbsPair::lossless();
    assert_eq!(two.a.party.unexport(&two.a.party), Status::Ok);
    two.a.send(A, 5, &[two.at_a(0, 100)]).post();
    two.net.run();
    assert_eq!(two.a.ends(), [(5, Outcome::LocalProtection as u32)]);
    assert_eq!(
        two.a.destroy(Object::Memory, two.keys[0]),
        Status::Malformed
    );
}

/// A write that is refused stores nothing, and both queue pairs fail.
#[test]
fn writes_that_may_not_be_are_refused() {
    for case in 0..4 {
        let two = VerbsPair::lossless();
        let (a, b) = (&two.a, &two.b);
        let (mut at, mut key) = (b.party.segment.address, two.keys[1]);
        match case {
            0 => key ^= 1,
            1 => at -= 1,
            2 => at += SEGMENT - 8999,
            _ => {
                let mut attributes = b.attributes(B, State::ReadyToSend, (0, A));
                attributes.access = Rights::REMOTE_READ.bits() as u8;
                assert_eq!(b.modify(&attributes), Status::Ok);
            }
        }
        let before = b.party.memory();
        a.party.fill(0, 9000, 3);
        a.send(A, 9, &[two.at_a(0, 9000)]).write_to(at, key).post();
        two.net.run();
        assert_eq!(a.ends(), [(9, Outcome::RemoteAccess as u32)]);
        assert_eq!(b.events(), [(token(B), Event::AccessError as u16)]);
        assert_eq!(b.query(B).0, State::Failed);
        assert!(b.party.memory() == before, "{case}");
    }
}

#[test]
fn a_queue_pair_that_is_not_ready_is_asked_again() {
    let Pair { net, a, b } = Pair::lossless();
    let [a, b] = [(a, A), (b, B)].map(|(party, qp)| {
        let context = VerbsParty::new(party, 256);
        context.create(qp, 64);
        context
    });
    a.connect(A, (1, B));
    let keys = [&a, &b].map(|it| it.register(Rights::all()).unwrap());
    a.send(A, 1, &[a.sge(0, 9000, keys[0])]).post();
    net.run();
    assert_eq!(a.ends(), []);
    b.connect(B, (0, A));
    assert!(b.post_receive(B, 1, &[b.sge(0, 9000, keys[1])]));
    net.advance(5_000_000);
    net.run();
    assert_eq!((a.ends(), b.ends()), (vec![(1, OK)], vec![(1, OK)]));
    // It takes nothing of others: of another queue pair, of another node, of another sequence.
    a.create(A + 1, 64);
    a.connect(A + 1, (1, B));
    a.send(A + 1, 2, &[]).post();
    a.run_out();
    assert_eq!(a.ends(), [(2, Outcome::RetriesExceeded as u32)]);
    let c = VerbsParty::new(net.party(1, 3), 256);
    c.create(A, 64);
    c.connect(A, (1, B));
    assert!(b.post_receive(B, 2, &[]));
    c.send(A, 4, &[]).post();
    c.run_out();
    assert_eq!(c.ends(), [(4, Outcome::RetriesExceeded as u32)]);
    assert_eq!(b.ends(), [], "it took a message of another node");
    assert_eq!(b.query(B).0, State::ReadyToSend);
    a.modify(&a.attributes(A, State::Reset, (1, B)));
    a.connect(A, (1, B));
    a.send(A, 3, &[]).post();
    net.run();
    assert_eq!(a.ends(), [(3, Outcome::RetriesExceeded as u32)]);
}

#[test]
fn a_peer_that_is_gone_ends_its_queue_pairs() {
    for case in 0..4 {
        let two = VerbsPair::lossless();
        let (a, b) = (&two.a, &two.b);
        // One message has come, the next waits for a page or a receive.
        assert!(b.post_receive(B, 1, &[two.at_b(0, 100)]));
        a.send(A, 1, &[two.at_a(0, 100)]).post();
        two.net.run();
        assert_eq!((a.ends(), b.ends()), (vec![(1, OK)], vec![(1, OK)]));
        two.net.answer_faults(false);
        b.party.evict(page(0));
        if case > 0 {
            assert!(b.post_receive(B, 2, &[two.at_b(page(0), 100)]));
        }
        a.send(A, 2, &[two.at_a(0, 100)]).post();
        two.net.run();
        match case {
            0 | 1 => b.party.end(),
            2 => assert_eq!(b.destroy(Object::QueuePair, B), Status::Ok),
            _ => {
                two.net.cluster().reset(1);
                two.net.cluster().start(1);
            }
        }
        two.a.run_out();
        assert_eq!(a.ends(), [(2, Outcome::RetriesExceeded as u32)], "{case}");
        assert_eq!(a.query(A).0, State::Failed);
        assert_eq!(two.net.counters(0).operations, 0);
        two.net.assert_unlocked();
    }
}

/// The process that sends ends, and its queue pair with it: nothing of it is left.
#[test]
fn a_source_that_is_gone_leaves_nothing() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    assert!(b.post_receive(B, 0, &[two.at_b(0, 100)]));
    a.send(A, 0, &[two.at_a(0, 100)]).post();
    two.net.run();
    assert_eq!(b.ends(), [(0, OK)]);
    two.net.answer_faults(false);
    a.party.evict(page(0));
    a.send(A, 1, &[two.at_a(0, 100)]).post();
    a.send(A, 2, &[two.at_a(page(0), 9000)]).post();
    assert!(b.post_receive(B, 1, &[two.at_b(0, 100)]));
    two.net.run();
    a.party.end();
    two.net.run();
    let budgets = two.net.cluster().nodes[0].nic.budgets();
    let mut budgets = budgets.iter().filter(|it| it.name.starts_with("verbs"));
    assert!(budgets.all(|budget| budget.used == 0));
    assert_eq!(two.net.counters(0).operations, 0);
    assert_eq!(b.ends(), [(1, OK)]);
}

#[test]
fn a_page_that_never_comes_fails_both_ends() {
    for at_source in [true, false] {
        let two = VerbsPair::lossless();
        let (a, b) = (&two.a, &two.b);
        let lacks = if at_source { a } else { b };
        lacks.party.evict(page(1));
        lacks.party.set_available(page(1), false);
        assert!(b.post_receive(B, 1, &[two.at_b(0, 4 * PAGE as u32)]));
        a.send(A, 2, &[two.at_a(0, 4 * PAGE as u32)]).post();
        two.net.run();
        let protection = Outcome::LocalProtection as u32;
        match at_source {
            true => assert_eq!((a.ends(), b.ends()), (vec![(2, protection)], vec![])),
            false => {
                let remote = Outcome::RemoteOperation as u32;
                assert_eq!(
                    (a.ends(), b.ends()),
                    (vec![(2, remote)], vec![(1, protection)])
                );
            }
        }
    }
}

/// A completion queue that is full takes nothing more: it says so, and those that need it.
#[test]
fn a_completion_queue_that_overruns_fails_what_needs_it() {
    let Pair { net, a, b } = Pair::lossless();
    let (a, b) = (VerbsParty::new(a, 4), VerbsParty::new(b, 256));
    a.create(A, 64);
    b.create(B, 64);
    a.connect(A, (1, B));
    b.connect(B, (0, A));
    for number in 0..5 {
        assert!(b.post_receive(B, number, &[]));
        a.send(A, number, &[]).post();
    }
    net.run();
    assert_eq!(b.ends().len(), 5);
    let [queue, pair] = [(CQ, Event::CompletionQueueError), (A, Event::Fatal)];
    let told = [queue, pair].map(|(object, event)| (token(object), event as u16));
    assert_eq!(a.events(), told);
    assert_eq!(a.query(A).0, State::Failed);
    assert_eq!(a.ends().len(), 3);
    a.ring(A);
    net.run();
    assert_eq!((a.ends(), a.events()), (vec![], vec![]));
}

/// It has said that it waits for a page, and says nothing any more: nothing is sent to it meanwhile.
#[test]
fn a_peer_that_falls_silent_is_noticed() {
    let pair = VerbsPair::on(Net::lossy(2, LossyWire::steady(10_000), 1));
    let (a, b) = (&pair.a, &pair.b);
    for round in 0..2 {
        assert!(b.post_receive(B, round, &[pair.at_b(round * 9000, 100)]));
        a.send(A, round, &[pair.at_a(0, 100)]).post();
        if round == 0 {
            pair.net.run();
            assert_eq!((a.ends(), b.ends()), (vec![(0, OK)], vec![(0, OK)]));
            pair.net.answer_faults(false);
        }
    }
    for _ in 0..100 {
        pair.net.advance(10_000);
        pair.net.poll_both(2);
    }
    assert_eq!((pair.net.faults(1), a.ends()), (1, vec![]));
    pair.net.cut(1);
    pair.net.run();
    assert_eq!(a.ends(), [(1, Outcome::RetriesExceeded as u32)]);
    assert!(pair.net.counters(0).peers_given_up > 0);
}

/// The NIC of the peer stands still for a while, as that of a guest that is paused from outside: work waits
/// for as long as a peer may be silent, and goes on. Of one that stands still for longer it ends.
#[test]
fn work_outlives_a_pause_of_the_peer() {
    for (pause, outcome) in [
        (4_900, Outcome::Success),
        (30_000, Outcome::RetriesExceeded),
    ] {
        let pair = VerbsPair::lossless();
        let (a, b) = (&pair.a, &pair.b);
        let first = b.party.segment.address;
        let write = a.send(A, 0, &[pair.at_a(0, 1)]);
        write.write_to(first, pair.keys[1]).post();
        pair.net.run();
        assert_eq!(a.ends(), [(0, OK)]);
        assert!(b.post_receive(B, 0, &[pair.at_b(0, 9000)]));
        a.send(A, 0, &[pair.at_a(0, 9000)]).post();
        let read = a.send(A, 1, &[pair.at_a(20_000, 9000)]);
        read.read_from(first, pair.keys[1]).post();
        for _ in 0..pause / 100 {
            pair.net.poll(0);
            pair.net.advance(100_000_000);
        }
        pair.net.run();
        let ends = a.ends();
        assert_eq!(ends[0], (0, outcome as u32), "{pause} ms");
        assert_eq!(ends.len(), 2);
        assert_eq!(pair.net.counters(0).operations, 0);
        pair.net.assert_unlocked();
    }
}

/// Only what the program asked for completes, and what fails.
#[test]
fn unsignaled_work_completes_silently() {
    let Pair { net, a, b } = Pair::lossless();
    let (a, b) = (VerbsParty::new(a, 64), VerbsParty::new(b, 64));
    let (mut body, made) = a.queue_pair_request(A, 16);
    body.flags = 0;
    assert_eq!(a.add(&body, made), Status::Ok);
    b.create(B, 16);
    a.connect(A, (1, B));
    b.connect(B, (0, A));
    for number in 0..6 {
        assert!(b.post_receive(B, number, &[]));
        let flags = match number % 3 {
            2 => SendFlags::SIGNALED,
            _ => SendFlags::empty(),
        };
        a.send(A, number, &[]).flags(flags).post();
    }
    net.run();
    assert_eq!(a.ends(), [(2, OK), (5, OK)]);
    a.send(A, 6, &[]).inline(&[1; 600]).post();
    net.run();
    assert_eq!(a.ends(), [(6, Outcome::LocalOperation as u32)]);
}

/// What a request of the driver says has to be possible; it changes nothing otherwise.
#[test]
fn requests_that_cannot_be_are_refused() {
    let pair = VerbsPair::lossless();
    let a = &pair.a;
    type Change = fn(&mut CreateQueuePair);
    let cases: [(Status, Change); 9] = [
        (Status::NameExists, |body| body.qp = A.into()),
        (Status::Malformed, |body| body.qp = 1.into()),
        (Status::Malformed, |body| body.send_cq = 99.into()),
        (Status::Malformed, |body| body.transport = 5),
        (Status::Malformed, |body| body.srq = 1.into()),
        (Status::Malformed, |body| body.flags = 2),
        (Status::Malformed, |body| body.send_sges = 17.into()),
        (Status::Malformed, |body| body.send.entry_bytes = 128.into()),
        (Status::BadAddress, |body| {
            body.send.first = (1 << 40).into()
        }),
    ];
    for (status, change) in cases {
        let (mut body, made) = a.queue_pair_request(50, 2);
        change(&mut body);
        assert_eq!(a.add(&body, made), status, "{body:?}");
    }
    type Modify = fn(&mut ModifyQueuePair);
    let cases: [Modify; 7] = [
        |body| body.qp = 50.into(),
        |body| body.state = 9,
        |body| body.path = 0.into(),
        |body| body.timeout = 32,
        |body| body.peer_qp = (1 << 24).into(),
        |body| body.max_reads = 17,
        |body| body.reserved[5] = 1,
    ];
    for change in cases {
        let mut body = a.attributes(A, State::ReadyToSend, (1, B));
        change(&mut body);
        let status = a.control(Opcode::ModifyQueuePair, &body);
        assert_eq!(status, Status::Malformed, "{body:?}");
    }
    for object in [
        Object::QueuePair,
        Object::CompletionQueue,
        Object::SharedReceiveQueue,
    ] {
        assert_eq!(a.destroy(object, 50), Status::Malformed);
    }
    // Neither is an object of another process.
    assert_eq!(pair.b.destroy(Object::QueuePair, A), Status::Malformed);
    assert_eq!(a.query(A).0, State::ReadyToSend);
}

/// Injects faults into a queue pair of a node. Returns false if it has none of that number.
fn inject(net: &Net, node: usize, queue_pair: u32, faults: QueuePairFaults) -> bool {
    let mut cluster = net.cluster();
    let now = cluster.now;
    let node = &mut cluster.nodes[node];
    node.nic.inject(now, &node.host, queue_pair, faults)
}

/// The cells of a queue pair of a node, as people see them.
fn cells(net: &Net, node: usize) -> String {
    let table = net.cluster().nodes[node].nic.table(TableKind::QueuePairs);
    assert_eq!(table.rows.len(), 1);
    table.rows[0].join(" ")
}

/// What is injected happens as often as it says, and programs learn of it as of what it stands for.
#[test]
fn injected_faults_happen_as_often_as_they_say() {
    let faults = QueuePairFaults::default();
    let two = VerbsPair::lossless();
    let (a, b, net) = (&two.a, &two.b, &two.net);
    let not_ready = QueuePairFaults {
        not_ready: 2,
        ..faults
    };
    assert!(!inject(net, 1, A, not_ready), "that of another node");
    assert!(inject(net, 1, B, not_ready));
    assert!(b.post_receive(B, 7, &[two.at_b(0, 100)]));
    a.send(A, 1, &[two.at_a(0, 100)]).post();
    net.run();
    assert_eq!((a.ends(), b.ends()), (vec![], vec![]));
    let vni = b.party.vni.0;
    assert_eq!(
        cells(net, 1),
        format!("{B} {vni} RC RTS 0 {A} 0 63 0 - rnr 1")
    );
    let waiting = format!("{A} {} RC RTS 1 {B} 1 63 0 timer -", a.party.vni.0);
    assert_eq!(cells(net, 0), waiting);
    a.run_out();
    assert_eq!((a.ends(), b.ends()), (vec![(1, OK)], vec![(7, OK)]));

    // A sender that does not wait fails.
    let mut hasty = a.attributes(A, State::ReadyToSend, (1, B));
    hasty.not_ready_retries = 1;
    assert_eq!(a.modify(&hasty), Status::Ok);
    assert!(b.post_receive(B, 8, &[two.at_b(0, 100)]));
    assert!(inject(net, 1, B, not_ready));
    a.send(A, 2, &[two.at_a(0, 100)]).post();
    a.run_out();
    assert_eq!(a.ends(), [(2, Outcome::ReceiverNotReady as u32)]);
    assert_eq!(b.query(B).0, State::ReadyToSend);
}

#[test]
fn access_that_is_denied_by_injection_is_denied_once() {
    let denied = QueuePairFaults {
        denied: 1,
        ..QueuePairFaults::default()
    };
    let address = |two: &VerbsPair| two.b.party.segment.address.next_multiple_of(8);
    type Post = fn(&VerbsPair, u64);
    let posts: [Post; 3] = [
        |two, at| {
            two.a
                .send(A, 1, &[two.at_a(0, 9000)])
                .write_to(at, two.keys[1])
                .post();
        },
        |two, at| {
            two.a
                .send(A, 1, &[two.at_a(0, 9000)])
                .read_from(at, two.keys[1])
                .post();
        },
        |two, at| {
            two.a
                .send(A, 1, &[two.at_a(0, 8)])
                .atomic(Request::FetchAdd, (at, two.keys[1]), [1, 0])
                .post();
        },
    ];
    for post in posts {
        let two = VerbsPair::lossless();
        post(&two, address(&two));
        two.net.run();
        assert_eq!(two.a.ends(), [(1, OK)]);
        assert!(inject(&two.net, 1, B, denied));
        post(&two, address(&two));
        two.net.run();
        assert_eq!(two.a.ends(), [(1, Outcome::RemoteAccess as u32)]);
        assert_eq!(two.b.events(), [(token(B), Event::AccessError as u16)]);
        assert_eq!(cells(&two.net, 1).rsplit_once(' ').unwrap().1, "-");
    }
}

#[test]
fn a_queue_pair_that_is_failed_by_injection_ends_all_that_is_posted() {
    let two = VerbsPair::lossless();
    let (a, b) = (&two.a, &two.b);
    let fails = QueuePairFaults {
        fails: true,
        ..QueuePairFaults::default()
    };
    assert!(b.post_receive(B, 7, &[two.at_b(0, 100)]));
    assert!(inject(&two.net, 1, B, fails));
    two.net.run();
    assert_eq!(b.ends(), [(7, Outcome::Flushed as u32)]);
    assert_eq!(b.events(), [(token(B), Event::Fatal as u16)]);
    assert!(cells(&two.net, 1).contains(" ERR - - "));
    a.send(A, 1, &[two.at_a(0, 100)]).post();
    a.run_out();
    assert_eq!(a.ends(), [(1, Outcome::RetriesExceeded as u32)]);
}
