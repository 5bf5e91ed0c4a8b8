//! Programs that write anything into their rings, and peers that send any frames of verbs (X8): nothing
//! panics or hangs, and others are not touched.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;
use qnic_abi::verbs::frames::{
    kind, VerbsDatagram, VerbsMessage, VerbsProbe, VerbsReply, VerbsUnreliable,
};
use qnic_abi::verbs::requests::Object;
use qnic_abi::verbs::rings::{CONSUMER, PRODUCER};
use qnic_abi::verbs::{Event, Outcome, PathAddress, State, Transport, QUEUE_PAIRS_OF_PROCESS};
use qnic_abi::wire::{self, Frame};
use qnic_abi::{NodeId, Status};
use qnic_nic::testing::{
    page, psn, receive_entry, token, LossyWire, Net, Pair, ProgramRing, VerbsPair, VerbsParty, CQ,
    QP_A, QP_B, SEGMENT, SRQ,
};
use qnic_nic::{Limits, Payload};
use zerocopy::FromZeros;

const OK: u32 = Outcome::Success as u32;

/// What a hostile program does.
#[derive(Debug, Clone)]
enum Step {
    /// Stores a word anywhere in a ring: which ring, which of its words.
    Word(usize, usize, u64),
    /// Stores an index.
    Index(usize, bool, u32),
    /// Posts a message and a receive as they have to be.
    Post(u64),
    Ring,
    Arm(u32),
    Run,
    Wait,
}

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => any::<u64>(),
        3 => 0u64..70,
        2 => (any::<u32>(), 0u64..10).prop_map(|(high, low)| u64::from(high) << 32 | low),
        1 => Just(u64::MAX),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0usize..3, 0usize..400, word()).prop_map(|(r, w, v)| Step::Word(r, w, v)),
        3 => (0usize..3, any::<bool>(), prop_oneof![0u32..70, any::<u32>()])
            .prop_map(|(ring, producer, index)| Step::Index(ring, producer, index)),
        4 => (0u64..SEGMENT - 9000).prop_map(Step::Post),
        3 => Just(Step::Ring),
        1 => any::<u32>().prop_map(Step::Arm),
        3 => Just(Step::Run),
        1 => Just(Step::Wait),
    ]
}

/// Two other contexts on the same nodes exchange a message.
fn check_others(net: &Net) {
    let [c, d] = [(0, 3, 20), (1, 4, 21)].map(|(node, vni, qp)| {
        let context = VerbsParty::new(net.party(node, vni), 64);
        context.create(qp, 16);
        context.connect(qp, (1 - node as u16, 41 - qp));
        context
    });
    assert!(d.post_receive(21, 1, &[]));
    c.send(20, 2, &[]).post();
    net.run();
    assert_eq!((c.ends(), d.ends()), (vec![(2, OK)], vec![(1, OK)]));
    net.assert_unlocked();
}

/// A queue pair of each side whose receives are in a ring that can be shared.
fn others(pair: &VerbsPair, transport: Transport) -> [ProgramRing; 2] {
    [(&pair.a, 1, 30), (&pair.b, 0, 31)].map(|(context, peer, qp)| {
        let (_, ring) = context.create_shared(16, 2);
        let (mut body, made) = context.queue_pair_request(qp, 16);
        body.transport = transport as u8;
        body.srq = SRQ.into();
        body.receive = FromZeros::new_zeroed();
        made.peer.set(1 - peer);
        context.add(&body, made);
        match transport {
            Transport::Datagram => context.open(qp, 5),
            _ => context.connect(qp, (peer, 61 - qp)),
        }
        ring
    })
}

/// A frame of class Unreliable of node 7.
fn cast([offset, remaining, request, address, key, psn_off, other]: [u64; 7]) -> Frame {
    if other % 3 == 2 {
        let mut body = VerbsDatagram::new_zeroed();
        body.qp = (40 + u32::from(offset == 1)).into();
        body.peer_qp = 3.into();
        body.qkey = (5 + u32::from(key == 1)).into();
        body.request = 2 + request as u8 % 2;
        body.flags = address as u8 & 3;
        return Frame::new(&body);
    }
    let body = message([offset, remaining, request, address, key, psn_off, other]);
    let mut message: VerbsMessage = body.body();
    message.qp = 41.into();
    Frame::new(&VerbsUnreliable { message })
}

fn body() -> impl Strategy<Value = [u64; 7]> {
    let near = prop_oneof![
        4 => Just(0u64),
        3 => 0u64..70,
        2 => 4090u64..9010,
        1 => any::<u64>(),
    ];
    prop::array::uniform7(near)
}

/// A frame of node 7 that is right but for what the numbers make wrong.
fn message([offset, remaining, request, address, key, psn_off, other]: [u64; 7]) -> Frame {
    let mut body = VerbsMessage::new_zeroed();
    body.qp = QP_B.into();
    body.peer_qp = (3 + u32::from(other == 1)).into();
    body.psn = (psn(3).wrapping_add(psn_off as u32) % qnic_abi::verbs::NUMBERS).into();
    body.offset = offset.into();
    body.remaining = remaining.into();
    body.request = request as u8 % 4;
    body.flags = other as u8 & 1;
    if body.request < 2 {
        body.address = (0x10_0000 + 2 * 0x100_0000 + 0x123 + address).into();
        body.key = if key == 0 { 0x77 } else { key as u32 }.into();
    }
    Frame::new(&body)
}

fn reply([reply_kind, psn_off, offset, timer, value, other, _]: [u64; 7]) -> Frame {
    let mut body = VerbsReply::new_zeroed();
    body.qp = QP_B.into();
    body.peer_qp = (3 + u32::from(other == 1)).into();
    body.psn = (psn(QP_B).wrapping_add(psn_off as u32) % qnic_abi::verbs::NUMBERS).into();
    body.kind = reply_kind as u8 % 10;
    body.timer = timer as u8 % 32;
    body.offset = offset.into();
    body.value = value.into();
    Frame::new(&body)
}

/// A session of node 7 with node 1: the numbers of both.
fn open_session(net: &Net) -> [u64; 2] {
    net.cluster().outside.insert(7, Vec::new());
    let mut hello = Frame::new(&wire::Hello::<{ wire::kind::HELLO }> {
        window: 64.into(),
        leaves: 0.into(),
    });
    hand(net, &mut hello, [1000, 0], &[]);
    net.poll(1);
    let reply = *net.cluster().outside[&7].first().expect("an answer");
    [1000, reply.envelope.source_session.get()]
}

fn hand(net: &Net, frame: &mut Frame, sessions: [u64; 2], payload: &[u8]) {
    let envelope = &mut frame.envelope;
    envelope.source_node = 7.into();
    envelope.destination_node = 1.into();
    envelope.source_session = sessions[0].into();
    envelope.destination_session = sessions[1].into();
    envelope.payload_length = (payload.len() as u16).into();
    let cluster = &mut *net.cluster();
    let (now, node) = (cluster.now, &mut cluster.nodes[1]);
    let payload = match payload {
        [] => Payload::None,
        bytes => Payload::Bytes(bytes),
    };
    node.nic.handle_frame(now, &node.host, frame, payload);
}

/// The probes of node 1 that node 7 has got.
fn probes(net: &Net) -> Vec<VerbsProbe> {
    let frames = net.cluster().outside.insert(7, Vec::new());
    let frames = frames.unwrap_or_default();
    let probes = frames
        .iter()
        .filter(|frame| frame.envelope.kind == kind::VERBS_PROBE);
    probes.map(Frame::body).collect()
}

/// It is there, and its session stands, but it says nothing of a message. A queue pair asks as often as it
/// was told to, and fails. An answer is patience.
#[test]
fn a_peer_that_does_not_answer_is_asked_and_given_up() {
    for answers in [false, true] {
        let pair = VerbsPair::on(Net::new(2, 1024, 8, &Limits::default()));
        let VerbsPair { net, b, .. } = &pair;
        let sessions = open_session(net);
        b.modify(&b.attributes(QP_B, State::Reset, (7, 3)));
        b.connect(QP_B, (7, 3));
        b.send(QP_B, 1, &[pair.at_b(0, 100)]).post();
        net.run();
        let mut asked = 0;
        for round in 1..=9 {
            net.advance(Limits::default().peer_timeout / 2);
            net.run();
            for probe in probes(net) {
                asked += 1;
                let numbers = [probe.qp, probe.peer_qp, probe.psn].map(|number| number.get());
                assert_eq!(numbers, [3, QP_B, psn(QP_B)]);
                if answers {
                    // What was before is done.
                    let mut frame = reply([0, u64::MAX, 0, 0, 0, 0, 0]);
                    frame.envelope.sequence = asked.into();
                    frame.envelope.fragments = 1;
                    hand(net, &mut frame, sessions, &[]);
                }
            }
            let ended = !answers && round > 3;
            assert_eq!(
                b.ends().len(),
                usize::from(!answers && round == 4),
                "{round}"
            );
            let state = b.query(QP_B).0;
            assert_eq!(state == State::Failed, ended, "{round}");
        }
        // Of those that are answered each second one: it has heard something between.
        assert_eq!(asked, if answers { 5 } else { 3 });
        if answers {
            let mut frame = reply([0, 0, 0, 0, 0, 0, 0]);
            frame.envelope.sequence = (asked + 1).into();
            frame.envelope.fragments = 1;
            hand(net, &mut frame, sessions, &[]);
            assert_eq!(b.ends(), [(1, OK)]);
        }
    }
}

/// It withholds one frame, and sends it when 200 have come behind it. Those are received by turns of 64, so it
/// has the engine for no longer than by frames in order.
#[test]
fn frames_behind_a_gap_are_received_by_turns() {
    let steady = LossyWire {
        loss: 0,
        duplication: 0,
        delay: 1_000,
        jitter: 0,
    };
    let VerbsPair { net, .. } = VerbsPair::on(Net::lossy(2, steady, 1));
    let sessions = open_session(&net);
    let probe = |number: u64| {
        let mut body = VerbsProbe::new_zeroed();
        (body.qp, body.peer_qp) = (QP_B.into(), 3.into());
        let mut frame = Frame::new(&body);
        frame.envelope.sequence = number.into();
        frame.envelope.fragments = 1;
        hand(&net, &mut frame, sessions, &[]);
    };
    let answers = || {
        let frames = net.cluster().outside.insert(7, Vec::new());
        let is_reply = |frame: &&Frame| frame.envelope.kind == kind::VERBS_REPLY;
        frames.unwrap_or_default().iter().filter(is_reply).count()
    };
    for number in 2..=201 {
        probe(number);
    }
    net.poll(1);
    assert_eq!(answers(), 0);
    probe(1);
    // The frame itself and a turn by its call; the first poll goes on before it sends the answers.
    let each_poll = [(); 4].map(|()| {
        net.poll(1);
        answers()
    });
    assert_eq!(each_poll, [1 + 64 + 64, 64, 8, 0]);
}

/// A process takes nearly half of the queue pairs of its NIC, and gives all of them work: its commands
/// are read on, and another process has the rest.
#[test]
fn one_process_leaves_half_of_the_queue_pairs() {
    let Pair { net, a, b } = Pair::lossless();
    let (a, other) = (VerbsParty::new(a, 64), VerbsParty::new(net.party(0, 5), 64));
    // They share the pages of one ring, which is theirs to spoil.
    let (body, made) = a.queue_pair_request(0, 2);
    let create = |context: &VerbsParty, qp: u32| {
        let mut body = body;
        body.qp = qp.into();
        context.add(&body, made.clone())
    };
    let most = QUEUE_PAIRS_OF_PROCESS as u32;
    assert!(a.send(100, 7, &[]).store_in(&made.send));
    for qp in 100..100 + most {
        assert_eq!(create(&a, qp), Status::Ok);
        a.connect(qp, (1, 3));
        a.ring(qp);
        net.run();
    }
    assert_eq!(create(&a, 50), Status::Exhausted);
    assert_eq!(net.counters(0).operations, u64::from(most));
    // Its commands go on: there is one operation to spare.
    a.arm(0);
    net.run();
    assert_eq!(a.destroy(Object::QueuePair, 100), Status::Ok);
    assert_eq!(create(&a, 50), Status::Ok);
    other.create(10_000, 4);
    for qp in 10_001..10_000 + most {
        assert_eq!(create(&other, qp), Status::Ok);
    }
    let b = VerbsParty::new(b, 64);
    other.connect(10_000, (1, 60));
    b.create(60, 4);
    b.connect(60, (0, 10_000));
    other.send(10_000, 8, &[]).write_to(0, 0).post();
    net.run();
    assert_eq!(other.ends(), [(8, OK)]);
    // The event of the armed queue.
    a.modify(&a.attributes(101, State::Failed, (1, 3)));
    net.run();
    assert_eq!(a.ends(), [(7, Outcome::Flushed as u32)]);
    assert!(a.events().contains(&(token(CQ), Event::Completion as u16)));
    a.party.end();
    net.run();
    assert_eq!(net.counters(0).operations, 0);
}

/// The flush of a long ring is no single step: others have their turns between.
#[test]
fn a_long_flush_goes_on_with_the_polls() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let a = VerbsParty::new(net.party(0, 1), 1 << 14);
    let (mut body, mut made) = a.queue_pair_request(60, 2);
    made.receive = ProgramRing::new(&a.party, 1 << 14, 64);
    (body.receive, body.receive_sges) = (made.receive.ring(), 1.into());
    assert_eq!(a.add(&body, made.clone()), Status::Ok);
    a.connect(60, (1, 3));
    let all = (1 << 14) - 1;
    made.receive.set_index(&a.party, PRODUCER, all);
    let failed = a.attributes(60, State::Failed, (1, 3));
    assert_eq!(a.modify(&failed), Status::Ok);
    let mut before = 0;
    for _ in 0..all / 256 {
        let now = a.produced();
        assert!((1..=256).contains(&(now - before)), "{before} {now}");
        before = now;
        net.poll(0);
    }
    net.run();
    assert_eq!((a.produced(), made.receive.posted(&a.party)), (all, 0));
    assert!(a
        .poll_all()
        .iter()
        .all(|end| end.1 == Outcome::Flushed as u32));
    // It ends with a queue pair that ends meanwhile.
    made.receive.set_index(&a.party, PRODUCER, all - 1);
    a.ring(60);
    net.poll(0);
    assert_eq!(a.destroy(Object::QueuePair, 60), Status::Ok);
    let produced = a.produced();
    net.run();
    assert_eq!(a.produced(), produced);
}

/// A program lets all of a queue pair fail while its send queue, which had failed alone, is flushed.
#[test]
fn a_queue_pair_fails_while_its_send_queue_is_flushed() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let a = VerbsParty::new(net.party(0, 1), 2048);
    a.create_with(Transport::Unreliable, 60, 1024);
    a.connect(60, (0, 3));
    assert!(a.post_receive(60, 7, &[]));
    for id in 0..600 {
        a.send(60, 1000 + id, &[a.sge(0, 8, 0xdead_0001)]).post();
    }
    for _ in 0..100 {
        if a.query(60).0 == State::SendError {
            break;
        }
        net.poll(0);
    }
    assert_eq!(a.query(60).0, State::SendError);
    let failed = a.attributes(60, State::Failed, (0, 3));
    assert_eq!(a.modify(&failed), Status::Ok);
    assert_eq!(a.query(60).0, State::Failed);
    net.run();
    let ends = a.ends();
    assert_eq!(ends.len(), 601, "each has ended once");
    assert!(ends.contains(&(7, Outcome::Flushed as u32)));
}

/// A queue pair goes from state to state as the specification has them, whatever its driver asks for.
#[test]
fn states_that_do_not_follow_are_refused() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let a = VerbsParty::new(net.party(0, 1), 64);
    a.create(60, 16);
    let becomes = |state| a.modify(&a.attributes(60, state, (1, 3)));
    for (state, status) in [
        (State::ReadyToReceive, Status::Malformed),
        (State::ReadyToSend, Status::Malformed),
        (State::Draining, Status::Malformed),
        (State::Init, Status::Ok),
        (State::ReadyToSend, Status::Malformed),
        (State::ReadyToReceive, Status::Ok),
        (State::Init, Status::Malformed),
        (State::ReadyToSend, Status::Ok),
        (State::ReadyToReceive, Status::Malformed),
        (State::SendError, Status::Malformed),
        (State::Failed, Status::Ok),
        (State::ReadyToSend, Status::Malformed),
        (State::Reset, Status::Ok),
    ] {
        let before = a.query(60).0;
        assert_eq!(becomes(state), status, "{before:?} to {state:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        ..ProptestConfig::with_failure_persistence(WithSource("proptest-regressions"))
    })]

    #[test]
    fn rings_with_any_words_hurt_only_their_context(
        steps in prop::collection::vec(step(), 1..120),
        both in any::<bool>(),
        transport in prop::option::of(prop::sample::select(vec![
            Transport::Reliable, Transport::Unreliable, Transport::Datagram,
        ])),
    ) {
        let pair = VerbsPair::lossless();
        let VerbsPair { net, a, b, .. } = &pair;
        let shared = transport.map(|transport| others(&pair, transport));
        let qps = if shared.is_some() { [30, 31] } else { [QP_A, QP_B] };
        let victims = [(a, qps[0], true, 0), (b, qps[1], both, 1)];
        for step in steps {
            for (context, qp, _, index) in victims.iter().filter(|victim| victim.2) {
                let made = context.queue_pair(*qp);
                let receive = shared.as_ref().map_or(&made.receive, |rings| &rings[*index]);
                let rings = [&made.send, receive, &context.completions];
                let party = &context.party;
                match step {
                    Step::Word(ring, word, value) => rings[ring].store_word(party, word, value),
                    Step::Index(ring, producer, index) => {
                        let at = if producer { PRODUCER } else { CONSUMER };
                        rings[ring].set_index(party, at, index);
                    }
                    Step::Post(at) => {
                        let key = u32::from(party.segment.id.0) << 16 | 0x77;
                        let sge = context.sge(at, 9000, key);
                        receive.post(party, &receive_entry(at, &[sge]));
                        let send = context.send(*qp, at, &[sge]);
                        match transport {
                            Some(Transport::Datagram) => {
                                let length = (at % 4097) as u32;
                                let sge = context.sge(at, length, key);
                                let path = PathAddress::new(NodeId(at as u16 % 3), 0, at % 2 == 0);
                                let to = qps[1 - index];
                                send.sges(&[sge]).datagram(path, to, 5).store()
                            }
                            _ => send.store(),
                        };
                    }
                    Step::Ring => context.ring(*qp),
                    Step::Arm(seen) => context.arm_seen(seen & 1, seen),
                    Step::Run => net.run(),
                    Step::Wait => net.advance(700_000),
                }
            }
        }
        net.run();
        check_others(net);
        a.party.end();
        b.party.end();
        net.run();
        prop_assert_eq!(net.counters(0).operations, 0);
    }

    #[test]
    fn frames_of_a_hostile_peer_hurt_only_its_queue_pair(
        frames in prop::collection::vec((any::<bool>(), body(), 0usize..9000), 1..60),
    ) {
        let pair = VerbsPair::on(Net::new(2, 1024, 8, &Limits::default()));
        let VerbsPair { net, b, .. } = &pair;
        let sessions = open_session(net);
        b.modify(&b.attributes(QP_B, State::Reset, (7, 3)));
        b.connect(QP_B, (7, 3));
        for number in 0..20 {
            b.post_receive(QP_B, number, &[pair.at_b(number * 4000, 4000)]);
            b.send(QP_B, number, &[pair.at_b(number * 4000, 6000)]).store();
        }
        b.ring(QP_B);
        // One that is right, so that the others are near to what is.
        let mut right = message([0, 0, 2, 0, 0, 0, 0]);
        right.envelope.sequence = 1.into();
        hand(net, &mut right, sessions, &[]);
        prop_assert_eq!(b.ends(), [(0, OK)]);
        let mut sequence = 2;
        for (is_reply, mut numbers, length) in frames {
            numbers[5] = numbers[5].wrapping_add(u64::from(!is_reply));
            net.run();
            let mut frame = if is_reply { reply(numbers) } else { message(numbers) };
            let remaining = frame.body::<VerbsMessage>().remaining.get();
            let bytes = vec![7; match is_reply {
                true => 0,
                false => length.min(remaining as usize),
            }];
            let first = match frame.envelope.kind {
                kind::VERBS_MESSAGE => frame.body::<VerbsMessage>().address.get(),
                _ => 0,
            };
            let fragments = wire::fragments(first, bytes.len());
            frame.envelope.fragments = fragments as u8;
            frame.envelope.sequence = sequence.into();
            sequence += fragments;
            hand(net, &mut frame, sessions, &bytes);
            net.advance(1_000_000);
        }
        net.run();
        check_others(net);
        b.party.end();
        net.run();
        prop_assert_eq!(net.counters(1).operations, 0);
    }

    #[test]
    fn casts_of_a_hostile_peer_hurt_only_their_queue_pairs(
        frames in prop::collection::vec((body(), 0usize..9000), 1..60),
        answers in any::<bool>(),
    ) {
        let pair = VerbsPair::on(Net::new(2, 1024, 8, &Limits::default()));
        let VerbsPair { net, b, .. } = &pair;
        let sessions = open_session(net);
        b.create_with(Transport::Datagram, 40, 64);
        b.open(40, 5);
        b.create_with(Transport::Unreliable, 41, 64);
        b.connect(41, (7, 3));
        for number in 0..20 {
            b.post_receive(40, number, &[pair.at_b(number * 8192, 4136)]);
            b.post_receive(41, number, &[pair.at_b(number * 8192, 6000)]);
        }
        // One that is right, so that the others are near to what is.
        hand(net, &mut cast([0, 0, 2, 0, 0, 0, 2]), sessions, &[]);
        prop_assert_eq!(b.ends(), [(0, OK)]);
        net.answer_faults(answers);
        for number in 0..SEGMENT / 4096 {
            b.party.evict(page(number));
        }
        for (numbers, length) in frames {
            let mut frame = cast(numbers);
            let length = match frame.envelope.kind {
                kind::VERBS_UNRELIABLE => {
                    let message = frame.body::<VerbsUnreliable>().message;
                    length.min(message.remaining.get() as usize)
                }
                _ => length,
            };
            hand(net, &mut frame, sessions, &vec![7; length]);
            net.run();
        }
        net.answer_all(1, 99);
        net.answer_faults(true);
        net.run();
        check_others(net);
        b.party.end();
        net.run();
        let budgets = net.cluster().nodes[1].nic.budgets();
        let mut budgets = budgets.iter().filter(|it| it.name.starts_with("verbs_frames"));
        prop_assert!(budgets.all(|budget| budget.used == 0));
    }
}
