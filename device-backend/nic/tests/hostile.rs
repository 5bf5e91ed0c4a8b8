//! Guests, drivers and peers that write whatever they like: nothing panics, and
//! processes that behave are not touched (X8).

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;
use qnic_abi::atomic::{kind as atomic, AtomicResponse, Function};
use qnic_abi::collective::{
    kind as collective, Collective, CollectivePart, GroupEnd, GroupState, PartFields, StateFields,
};
use qnic_abi::control::{self, REQUEST_BYTES};
use qnic_abi::message::{kind as message, MessageData, MessagePermit, MessageRequest};
use qnic_abi::rdma::Opcode;
use qnic_abi::rdma::{kind as rdma, ReadRequest, Write};
use qnic_abi::window::{command_offset, WINDOW_BYTES};
use qnic_abi::wire::{
    kind, Body, Class, Empty, Frame, Goodbye, Hello, Nak, ProcessGone, FRAME_MAGIC, HEADER_BYTES,
};
use qnic_abi::{SharedMemory, Status};
use qnic_nic::testing::{page, scarce, Cluster, Memory, Net, Pair, Party, SimSegment, ALL};
use qnic_nic::{Limits, Payload};
use zerocopy::{FromBytes, FromZeros};

/// A transfer between two processes that behave still works.
fn check_others(a: &Party, b: &Party) {
    let before = a.done().0;
    let errors = a.errors().len();
    a.fill(0, 6000, before);
    a.write(b).to(40).bytes(6000).run();
    assert_eq!(a.done().0, before + 1);
    assert_eq!(a.errors().len(), errors);
}

/// Golden peers: the first frame of the last version's NIC (wire version 10), and drivers of the
/// last versions.
#[test]
fn the_last_version_is_refused_and_costs_nothing() {
    let Pair { net, .. } = Pair::lossless();
    net.cluster().outside.insert(7, Vec::new());
    // Kind Hello, node 7 to node 1, session 1000; a window of 64.
    let mut bytes = [0; size_of::<Frame>()];
    bytes[..4].copy_from_slice(b"qn\x0a\x02");
    bytes[4..18].copy_from_slice(&[0, 8, 0, 0, 7, 0, 1, 0, 0, 0, 0, 0, 0xe8, 3]);
    bytes[64] = 64;
    let hello = Frame::read_from_bytes(&bytes).unwrap();
    hand(&net, &hello, Payload::None);
    net.poll(1);
    assert!(net.cluster().outside[&7].is_empty());
    assert_eq!(net.counters(1).malformed_frames, 1);
    for version in [10, 11, 12, 13, 14, 15] {
        let driver = control::Hello {
            abi_version: version.into(),
            ..Default::default()
        };
        let vni = qnic_abi::VniId(0);
        let refused = net
            .cluster()
            .control(1, control::Opcode::Hello, vni, &driver);
        assert_eq!(refused, Status::VersionMismatch, "{version}");
    }
}

/// A third node that talks to node 1, past the handshake: its frames.
struct Stranger {
    /// The window that it was granted.
    granted: u64,
    sessions: [u64; 2],
}

impl Stranger {
    fn new(net: &Net) -> Self {
        net.cluster().outside.insert(7, Vec::new());
        let mut stranger = Stranger {
            granted: 0,
            sessions: [1000, 0],
        };
        let hello = stranger.frame(&Hello::<{ kind::HELLO }> {
            window: 64.into(),
            leaves: 0.into(),
        });
        hand(net, &hello, Payload::None);
        net.poll(1);
        let reply = *net.cluster().outside[&7].first().expect("an answer");
        assert_eq!(reply.envelope.kind, kind::HELLO_REPLY);
        assert_eq!(reply.envelope.destination_session.get(), 1000);
        let granted: Hello<{ kind::HELLO_REPLY }> = reply.body();
        stranger.granted = granted.window.get().into();
        stranger.sessions[1] = reply.envelope.source_session.get();
        stranger
    }

    fn frame<B: Body>(&self, body: &B) -> Frame {
        let mut frame = Frame::new(body);
        frame.envelope.source_node = 7.into();
        frame.envelope.destination_node = 1.into();
        frame.envelope.source_session = self.sessions[0].into();
        frame.envelope.destination_session = self.sessions[1].into();
        frame
    }

    /// The same, with a number and a port.
    fn numbered<B: Body>(&self, body: &B, sequence: u64, to: &Party) -> Frame {
        let mut frame = self.frame(body);
        frame.envelope.sequence = sequence.into();
        frame.envelope.destination_port = to.port.0.into();
        frame
    }
}

fn hand(net: &Net, frame: &Frame, payload: Payload<'_, Memory>) {
    let cluster = &mut *net.cluster();
    let (now, node) = (cluster.now, &mut cluster.nodes[1]);
    node.nic.handle_frame(now, &node.host, frame, payload);
}

/// Words that are often almost right.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => any::<u64>(),
        2 => 0u64..1200,
        1 => Just(u64::MAX),
        1 => (0u64..0x20).prop_map(|page| 0x10_0000 + page * 4096),
    ]
}

/// A kind of frame, with the length of its body.
fn frame_kind() -> impl Strategy<Value = (u8, u8)> {
    use qnic_abi::{atomic, directory, wire};
    fn of<B: Body>() -> (u8, u8) {
        (B::KIND, size_of::<B>() as u8)
    }
    prop_oneof![
        1 => any::<(u8, u8)>(),
        9 => prop::sample::select(vec![
            of::<wire::Ack>(),
            of::<Hello<{ kind::HELLO }>>(),
            of::<Hello<{ kind::HELLO_REPLY }>>(),
            of::<wire::Goodbye>(),
            of::<wire::Nak>(),
            of::<ProcessGone>(),
            of::<Write>(),
            of::<ReadRequest>(),
            of::<qnic_abi::rdma::ReadResponse>(),
            of::<atomic::AtomicRequest>(),
            of::<atomic::AtomicResponse>(),
            of::<directory::ImportRequest>(),
            of::<directory::ImportResponse>(),
        ]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        ..ProptestConfig::with_failure_persistence(WithSource("proptest-regressions"))
    })]

    #[test]
    fn a_scribbled_window_hurts_only_its_process(
        scribbles in prop::collection::vec((0..WINDOW_BYTES / 8, word()), 1..200),
        commands in prop::collection::vec(prop::collection::vec(word(), 24), 0..20),
    ) {
        let Pair { net, a, b } = Pair::lossless();
        let villain = net.party(0, 3);
        let ring = || net.cluster().ring(0, villain.vni);
        for (round, (index, value)) in scribbles.iter().enumerate() {
            net.store(0, villain.window() + index * 8, *value);
            if round % 8 == 0 {
                ring();
                net.poll(0);
            }
        }
        for (number, command) in commands.iter().enumerate() {
            villain.reset_queue();
            let mut words = command.clone();
            // Well formed at least in its first word.
            words[0] = 1 + number as u64 % 2;
            let slot = villain.window() + command_offset(0);
            net.cluster().nodes[0].host.sram.write_words(slot, &words);
            ring();
            net.run();
        }
        check_others(&a, &b);
        net.settle();
        villain.end();
        prop_assert_eq!(net.counters(0).operations, 0);
    }

    #[test]
    fn scribbled_tables_hurt_only_their_node(
        scribbles in prop::collection::vec((any::<prop::sample::Index>(), word()), 1..300),
    ) {
        let Pair { net, a, b } = Pair::lossless();
        let c = net.party(0, 3);
        // Every page is resident, and faults of the broken node stay unanswered.
        for (from, to) in [(&a, &b), (&c, &a)] {
            from.store(0, &[0; 60_000]);
            from.write(to).bytes(60_000).issue();
        }
        net.run();
        net.answer_faults(false);
        let geometry = *net.cluster().nodes[1].nic.geometry();
        let tables = geometry.table_offset..geometry.sram_bytes as usize;
        for (index, value) in &scribbles {
            let offset = (tables.start + index.index(tables.len())) & !7;
            net.store(1, offset, *value);
        }
        a.write(&b).bytes(50_000).issue();
        a.read(&b).bytes(50_000).issue();
        net.poll_both(20);
        check_others(&c, &a);
    }

    #[test]
    fn random_requests_are_answered(
        requests in prop::collection::vec(
            (0u32..12, prop_oneof![Just(1u16), Just(2), any::<u16>()], prop::collection::vec(word(), 7)),
            1..60,
        ),
        length in prop_oneof![9 => Just(REQUEST_BYTES), 1 => 0usize..100],
    ) {
        let Pair { net, a, b } = Pair::lossless();
        let mut pending = 0;
        for (opcode, vni, words) in &requests {
            // VNI 1 behaves; its requests come through its own driver.
            let vni = if *vni == 1 { 3 } else { *vni };
            let mut bytes = Vec::new();
            bytes.extend(opcode.to_le_bytes());
            bytes.extend(vni.to_le_bytes());
            bytes.extend([0; 2]);
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            bytes.resize(length, 0);
            let reply = net.cluster().raw_request(0, &bytes, 1 << 40);
            pending += usize::from(reply.is_none());
            net.run();
        }
        net.advance(3_600_000_000_000 + 1_000_000_000);
        net.run();
        let replies = net.cluster().nodes[0].replies.clone();
        let late = replies.iter().filter(|reply| reply.0 == 1 << 40);
        prop_assert_eq!(late.count(), pending, "every import is answered");
        check_others(&a, &b);
    }

    #[test]
    fn random_frames_are_refused_or_answered(
        frames in prop::collection::vec(
            (frame_kind(), prop::collection::vec(word(), HEADER_BYTES / 8), any::<bool>(), 0usize..4200),
            1..60,
        ),
    ) {
        let Pair { net, a, b } = Pair::lossless();
        for opcode in [Opcode::Write, Opcode::Read] {
            a.transfer(opcode, &b).bytes(50_000).issue();
            net.poll(0);
        }
        let payload = vec![7; 4200];
        let foreign = Memory::new(8192);
        let good = Stranger::new(&net);
        for (number, ((kind, body_length), words, memory, length)) in (1u64..).zip(&frames) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let mut frame = Frame::read_from_bytes(&bytes).unwrap();
            // What is reserved in the body is often zero.
            if number % 2 != 0 {
                frame.body[30..].fill(0);
            }
            let mut envelope = good.numbered(&Write::new_zeroed(), number, &b).envelope;
            // Every fourth is in no session, or of no number, or acknowledges anything.
            if number % 4 == 0 {
                envelope = frame.envelope;
                envelope.magic = FRAME_MAGIC.into();
                envelope.version = qnic_abi::wire::WIRE_VERSION;
                envelope.source_node = 7.into();
                envelope.destination_node = 1.into();
            }
            frame.envelope = envelope;
            frame.envelope.kind = *kind;
            frame.envelope.body_length = *body_length;
            let class = Class::of(*kind);
            let length = if class.takes_payload() { *length } else { 0 };
            frame.envelope.payload_length = (length as u16).into();
            frame.envelope.fragments = match class.is_numbered() {
                true => words[0] as u8 % 3,
                false => 0,
            };
            let payload = match memory {
                true => Payload::Memory { memory: &foreign, pages: &[0, 4096], offset: 4000, length },
                false => Payload::Bytes(&payload[..length]),
            };
            hand(&net, &frame, payload);
            net.poll(1);
        }
        net.run();
        prop_assert_eq!(a.done(), (1, 1));
        prop_assert_eq!(a.errors(), []);
        check_others(&b, &a);
    }

    #[test]
    fn arbitrary_bytes_are_no_frames(bytes: [u8; HEADER_BYTES]) {
        let mut cluster = Cluster::new(1, 64, 1, &Limits::default());
        let frame = Frame::read_from_bytes(&bytes).unwrap();
        let (now, node) = (cluster.now, &mut cluster.nodes[0]);
        node.nic.handle_frame(now, &node.host, &frame, Payload::None);
        prop_assert_eq!(node.nic.counters().malformed_frames, 1);
    }
}

#[test]
fn a_peer_cannot_use_a_key_that_it_was_not_given() {
    let Pair { net, b, .. } = Pair::lossless();
    let before = b.bytes(0, 4096);
    let stranger = Stranger::new(&net);
    for (sequence, key) in (1..).zip([0, b.segment.key ^ 1, u64::MAX]) {
        let mut write = Write::new_zeroed();
        write.address = b.segment.address.into();
        write.key = key.into();
        let mut frame = stranger.numbered(&write, sequence, &b);
        frame.envelope.payload_length = 16.into();
        hand(&net, &frame, Payload::Bytes(&[9; 16]));
    }
    net.run();
    assert_eq!(net.counters(1).protection_errors, 3);
    assert!(b.holds(0, &before));
}

#[test]
fn a_peer_that_ignores_its_window_fills_no_memory() {
    let Pair { net, b, .. } = Pair::lossless();
    net.answer_faults(false);
    let stranger = Stranger::new(&net);
    let granted = stranger.granted;
    let mut write = Write::new_zeroed();
    write.key = b.segment.key.into();
    write.remaining = 8.into();
    for sequence in 1..=granted + 50 {
        write.address = (b.segment.address + 5 + sequence % 400 * 8).into();
        let mut frame = stranger.numbered(&write, sequence, &b);
        frame.envelope.payload_length = 8.into();
        hand(&net, &frame, Payload::Bytes(&[5; 8]));
    }
    let counters = net.counters(1);
    assert_eq!(counters.frames_held, granted);
    assert_eq!(counters.bounce_bytes, granted * 8);
    assert_eq!(counters.frames_outside, 50);
    net.poll(1);
    while net.faults(1) > 0 {
        net.answer(1, 0, 1);
        net.poll(1);
    }
    assert_eq!(net.counters(1).frames_held, 0);
    assert!(b.holds(85, &[5; 8]));
}

#[test]
fn two_processes_cannot_share_a_port_or_a_segment() {
    let Pair { net, a, .. } = Pair::lossless();
    let taken = Party::register(&net, 0, qnic_abi::VniId(5), a.port, 0);
    assert_eq!(taken.err(), Some(Status::PortInUse));
    let again = a.export(1, 7, (0, 10), ALL);
    assert_eq!(again.err(), Some(Status::NameExists));
}

#[test]
fn several_queues_can_fail_in_one_poll() {
    let Pair { net, a, b } = Pair::lossless();
    let villains = [3, 4, 5, 6].map(|vni| net.party(0, vni));
    for villain in &villains {
        let write = villain.inline_write(&b, &[0; 8]);
        write.with(|command| command.opcode = 99).issue();
    }
    check_others(&a, &b);
    for villain in &villains {
        assert_eq!(villain.errors(), [(0, Status::Malformed)]);
    }
    net.settle();
}

/// Found by a random workload: the new process waited for an answer for ever.
#[test]
fn a_request_that_overtakes_the_end_of_the_process_before_is_answered() {
    let Pair { net, b, .. } = Pair::lossless();
    b.store(0, &[6; 8]);
    let stranger = Stranger::new(&net);
    let mut request = ReadRequest::new_zeroed();
    request.key = b.segment.key.into();
    request.address = b.segment.address.into();
    request.length = 8.into();
    for (sequence, operation) in [(1, 11), (3, 33)] {
        let mut frame = stranger.numbered(&request, sequence, &b);
        frame.envelope.source_port = 55.into();
        frame.envelope.operation = operation.into();
        hand(&net, &frame, Payload::None);
    }
    let mut gone = stranger.frame(&ProcessGone {
        last_received: u64::MAX.into(),
    });
    gone.envelope.source_port = 55.into();
    gone.envelope.sequence = 2.into();
    hand(&net, &gone, Payload::None);
    net.run();
    let sent = net.cluster().outside[&7].clone();
    let responses = sent.iter().map(|frame| frame.envelope);
    let responses = responses.filter(|envelope| envelope.kind == rdma::READ_RESPONSE);
    let answered: Vec<_> = responses.map(|envelope| envelope.operation.get()).collect();
    assert_eq!(answered, [33]);
}

/// Found by a review: the peer ended a write as an atomic operation that had been in its
/// slot before.
#[test]
fn a_peer_answers_an_operation_only_in_its_own_protocol() {
    let Pair { net, b, .. } = Pair::lossless();
    let stranger = Stranger::new(&net);
    let remote = SimSegment {
        node: 7,
        ..b.segment
    };
    let last_of = |kind: u8| {
        net.run();
        let sent = net.cluster().outside[&7].clone();
        let mut envelopes = sent.iter().map(|frame| frame.envelope);
        let newest = envelopes.rfind(|envelope| envelope.kind == kind);
        newest.expect("a frame of that kind")
    };
    let refuse = |sequence: u64, kind: u8, refused: u64, operation: u64| {
        let mut nak = Nak::new_zeroed();
        nak.status = Status::AccessDenied.code().into();
        nak.kind = kind;
        nak.sequence = refused.into();
        let mut frame = stranger.numbered(&nak, sequence, &b);
        frame.envelope.operation = operation.into();
        hand(&net, &frame, Payload::None);
        net.run();
    };

    b.atomic(Function::Increment, remote, [0; 2]).issue();
    let request = last_of(atomic::ATOMIC_REQUEST);
    let (number, operation) = (request.sequence.get(), request.operation.get());
    refuse(1, atomic::ATOMIC_REQUEST, number, operation);
    assert_eq!(b.errors(), [(0, Status::AccessDenied)]);

    b.inline_write(remote, &[1; 8]).issue();
    let write = last_of(rdma::WRITE);
    let (number, operation) = (write.sequence.get(), write.operation.get());
    let mut answer = stranger.numbered(&AtomicResponse::new_zeroed(), 2, &b);
    answer.envelope.operation = operation.into();
    hand(&net, &answer, Payload::None);
    refuse(3, atomic::ATOMIC_REQUEST, number, operation);
    assert_eq!(net.counters(1).operations, 1, "it still runs");
    assert_eq!(b.errors().len(), 1);

    refuse(4, rdma::WRITE, number, operation);
    assert_eq!(net.counters(1).operations, 0);
    let errors = [(0, Status::AccessDenied), (1, Status::AccessDenied)];
    assert_eq!(b.errors(), errors);
}

/// A request says in which packets its message would come. One that contradicts itself is no frame,
/// and data that is longer than was told goes nowhere (Q11).
#[test]
fn messages_come_in_the_packets_of_their_request() {
    const LENGTH: u64 = 8192;
    let Pair { net, b, .. } = Pair::on(Net::new(2, 512, 8, &scarce()));
    let stranger = Stranger::new(&net);
    b.receive(1).bytes(page(1), LENGTH).run();
    let ask = |packets: u32, packet_length: u32| {
        let mut body = MessageRequest::new_zeroed();
        body.message.length = LENGTH.into();
        body.packets = packets.into();
        body.packet_length = packet_length.into();
        let mut frame = stranger.numbered(&body, 1, &b);
        frame.envelope.operation = 5.into();
        hand(&net, &frame, Payload::None);
        net.poll(1);
    };
    let before = net.counters(1).malformed_frames;
    let lies = [
        (0, 4096),
        (1, 4096),
        (3, 4096),
        (u32::MAX, 1),
        (0, 0),
        (1, 65_536),
    ];
    for (packets, packet_length) in lies {
        ask(packets, packet_length);
    }
    assert_eq!(net.counters(1).malformed_frames - before, lies.len() as u64);
    ask(8, 1024);
    let sent = |kind: u8| {
        let sent = net.cluster().outside[&7].clone();
        let newest = sent.into_iter().rfind(|frame| frame.envelope.kind == kind);
        newest.expect("a frame of that kind")
    };
    let permit: MessagePermit = sent(message::MESSAGE_PERMIT).body();
    let data = |sequence: u64, offset: u64, length: usize| {
        let mut body = MessageData::new_zeroed();
        body.receive = permit.receive;
        body.offset = offset.into();
        body.page_offset = ((offset % 4096) as u16).into();
        let mut frame = stranger.numbered(&body, sequence, &b);
        frame.envelope.operation = 5.into();
        frame.envelope.fragments = length.div_ceil(4096) as u8;
        frame.envelope.payload_length = (length as u16).into();
        hand(
            &net,
            &frame,
            Payload::Bytes(&[7; LENGTH as usize][..length]),
        );
        net.run();
    };
    data(2, 0, 4096);
    let nak: Nak = sent(kind::NAK).body();
    assert_eq!(nak.status.get(), Status::BadLength.code());
    assert!(b.completions().is_empty());
    for packet in 0..8 {
        data(3 + packet, packet * 1024, 1024);
    }
    assert_eq!(b.ends(), [(1, Status::Ok)]);
    assert!(b.holds(page(1), &[7; LENGTH as usize]));
}

/// A node that knows the number of a group without being part of it can neither end it nor give to it.
#[test]
fn a_stranger_has_no_part_in_a_group() {
    let net = Net::new(2, 512, 8, &Limits::default());
    let (a, b) = (net.party(0, 1), net.party(1, 2));
    a.join(1, &b, 5, (1, 2));
    b.join(1, &b, 5, (0, 2));
    net.run();
    let groups = [&a, &b].map(|party| party.completions()[0].immediate.get());
    let stranger = Stranger::new(&net);
    // The first group of a node whose time has not begun.
    let number = 1;
    let end = GroupEnd {
        number: number.into(),
        status: Status::PeerGone.code().into(),
        home: 1.into(),
        node: 0.into(),
        port: a.port.0.into(),
        ..GroupEnd::default()
    };
    let fields = PartFields {
        number: number.into(),
        home: 1.into(),
        collective: Collective::Barrier as u8,
        part_bytes: 4096.into(),
        ..PartFields::default()
    };
    let up = CollectivePart::<{ collective::COLLECTIVE_UP }>(fields);
    let down = CollectivePart::<{ collective::COLLECTIVE_DOWN }>(fields);
    b.barrier(2, groups[1]).run();
    hand(&net, &stranger.numbered(&end, 1, &b), Payload::None);
    hand(&net, &stranger.numbered(&up, 2, &b), Payload::None);
    hand(&net, &stranger.numbered(&down, 3, &b), Payload::None);
    net.run();
    assert!(b.completions().is_empty());
    a.barrier(2, groups[0]).run();
    for party in [&a, &b] {
        let entries = party.completions();
        assert_eq!((entries.len(), entries[0].status.get()), (1, 0));
    }
    // A neighbour may end it.
    a.leave(3, groups[0]);
    net.run();
    b.barrier(4, groups[1]).run();
    assert_ne!(b.completions()[0].status.get(), 0);
    // A node that takes it for a running one is told of that member, also when none is left here.
    b.leave(5, groups[1]);
    net.run();
    let state = GroupState::<{ collective::GROUP_GREET }>(StateFields {
        number: number.into(),
        home: 1.into(),
        ..StateFields::default()
    });
    hand(&net, &stranger.numbered(&state, 4, &b), Payload::None);
    net.run();
    let mut sent = net.cluster().outside[&7].clone().into_iter();
    let end = sent.rfind(|frame| frame.envelope.kind == collective::GROUP_END);
    let end: GroupEnd = end.expect("the end of the group").body();
    assert_eq!((end.node.get(), end.port.get()), (0, a.port.0));
}

/// It ends nothing, makes no peer, and is counted as any frame of another session.
#[test]
fn a_goodbye_of_a_node_that_is_no_peer_is_stale() {
    let Pair { net, .. } = Pair::lossless();
    let mut goodbye = Frame::new::<Goodbye>(&Empty);
    goodbye.envelope.source_node = 7.into();
    goodbye.envelope.destination_node = 1.into();
    goodbye.envelope.source_session = 1000.into();
    hand(&net, &goodbye, Payload::None);
    let counters = net.counters(1);
    let counted = (counters.stale_frames, counters.malformed_frames);
    assert_eq!(counted, (1, 0));
}
