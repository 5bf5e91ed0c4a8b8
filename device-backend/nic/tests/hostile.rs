//! Guests, drivers and peers that write whatever they like: nothing panics, and
//! those who behave are not touched (X8).

mod common;

use common::{pair, pattern, process};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;
use qnic_abi::control::REQUEST_BYTES;
use qnic_abi::rdma::Opcode;
use qnic_abi::rdma::{kind as rdma, ReadRequest, Write};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{command_offset, WINDOW_BYTES};
use qnic_abi::wire::{kind, Body, Class, Frame, Hello, ProcessGone, FRAME_MAGIC, HEADER_BYTES};
use qnic_abi::{SharedMemory, Status};
use qnic_abi_client::Command;
use qnic_nic::testing::{Cluster, Memory, SimProcess, SimSegment};
use qnic_nic::{Limits, Payload};
use zerocopy::{FromBytes, FromZeros};

/// A transfer between two processes that behave still works.
fn check_others(cluster: &mut Cluster, a: &mut SimProcess, sa: &SimSegment, sb: &SimSegment) {
    let before = a.done(cluster).0;
    let errors = a.errors(cluster).len();
    let bytes = pattern(before, 6000);
    a.write(cluster, sa.address, &bytes);
    let command = Command::write(sa.at(0), sb.to(40), 6000);
    a.issue(cluster, &command, &[]).unwrap();
    cluster.run();
    assert_eq!(a.done(cluster).0, before + 1);
    assert_eq!(a.errors(cluster).len(), errors);
}

/// A third node that talks to node 1, past the handshake: its frames.
struct Stranger {
    /// The window that it was granted.
    granted: u64,
    sessions: [u64; 2],
}

impl Stranger {
    fn new(cluster: &mut Cluster) -> Self {
        cluster.outside.insert(7, Vec::new());
        let mut stranger = Stranger {
            granted: 0,
            sessions: [1000, 0],
        };
        let hello = stranger.frame(&Hello::<{ kind::HELLO }> {
            window: 64.into(),
            reserved: 0.into(),
        });
        hand(cluster, &hello, Payload::None);
        cluster.poll(1);
        let reply = cluster.outside[&7].first().expect("an answer");
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
    fn numbered<B: Body>(&self, body: &B, sequence: u64, to: &SimProcess) -> Frame {
        let mut frame = self.frame(body);
        frame.envelope.sequence = sequence.into();
        frame.envelope.destination_port = to.port.0.into();
        frame
    }
}

fn hand(cluster: &mut Cluster, frame: &Frame, payload: Payload<'_, Memory>) {
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
        let (mut cluster, (mut a, sa), (_b, sb)) = pair();
        let (villain, _) = process(&mut cluster, 0, 3);
        let window = villain.window();
        for (round, (place, value)) in scribbles.iter().enumerate() {
            let sram = &cluster.nodes[0].host.sram;
            sram.store_u64(window + place * 8, *value, Ordering::Relaxed);
            if round % 8 == 0 {
                cluster.ring(0, villain.vni);
                cluster.poll(0);
            }
        }
        for (place, command) in commands.iter().enumerate() {
            let opcode = qnic_abi::control::Opcode::ResetQueue;
            cluster.control(0, opcode, villain.vni, &[0u8; 0]);
            let mut words = command.clone();
            // Well formed at least in its first word.
            words[0] = 1 + place as u64 % 2;
            let sram = &cluster.nodes[0].host.sram;
            sram.write_words(window + command_offset(0), &words);
            cluster.ring(0, villain.vni);
            cluster.run();
        }
        check_others(&mut cluster, &mut a, &sa, &sb);
        cluster.settle();
        villain.end(&mut cluster);
        prop_assert_eq!(cluster.statistics(0).operations.get(), 0);
    }

    #[test]
    fn scribbled_tables_hurt_only_their_node(
        scribbles in prop::collection::vec((any::<prop::sample::Index>(), word()), 1..300),
    ) {
        let (mut cluster, (mut a, sa), (_b, sb)) = pair();
        let (mut c, sc) = process(&mut cluster, 0, 3);
        // Every page is resident, and faults of the broken node stay unanswered.
        let bytes = vec![0; 60_000];
        for (from, to) in [(&sa, &sb), (&sc, &sa)] {
            let player = if from.port == sa.port { &mut a } else { &mut c };
            player.write(&mut cluster, from.address, &bytes);
            let command = Command::write(from.at(0), to.to(0), 60_000);
            player.issue(&mut cluster, &command, &[]).unwrap();
        }
        cluster.run();
        cluster.answer_faults = false;
        let geometry = *cluster.nodes[1].nic.geometry();
        let tables = geometry.table_offset..geometry.sram_bytes as usize;
        for (place, value) in &scribbles {
            let sram = &cluster.nodes[1].host.sram;
            let offset = (tables.start + place.index(tables.len())) & !7;
            sram.store_u64(offset, *value, Ordering::Relaxed);
        }
        for opcode in [Opcode::Write, Opcode::Read] {
            let command = Command::transfer(opcode, sa.at(0), sb.to(0), 50_000);
            a.issue(&mut cluster, &command, &[]).unwrap();
        }
        for _ in 0..20 {
            for node in 0..2 {
                cluster.poll(node);
            }
        }
        check_others(&mut cluster, &mut c, &sc, &sa);
    }

    #[test]
    fn random_requests_are_answered(
        requests in prop::collection::vec(
            (0u32..12, prop_oneof![Just(1u16), Just(2), any::<u16>()], prop::collection::vec(word(), 7)),
            1..60,
        ),
        length in prop_oneof![9 => Just(REQUEST_BYTES), 1 => 0usize..100],
    ) {
        let (mut cluster, (mut a, sa), (_b, sb)) = pair();
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
            pending += usize::from(cluster.raw_request(0, &bytes, 1 << 40).is_none());
            cluster.run();
        }
        cluster.advance(3_600_000_000_000 + 1_000_000_000);
        cluster.run();
        let late = cluster.nodes[0].replies.iter().filter(|reply| reply.0 == 1 << 40);
        prop_assert_eq!(late.count(), pending, "every import is answered");
        check_others(&mut cluster, &mut a, &sa, &sb);
    }

    #[test]
    fn random_frames_are_refused_or_answered(
        frames in prop::collection::vec(
            (frame_kind(), prop::collection::vec(word(), HEADER_BYTES / 8), any::<bool>(), 0usize..4200),
            1..60,
        ),
    ) {
        let (mut cluster, (mut a, sa), (mut b, sb)) = pair();
        for opcode in [Opcode::Write, Opcode::Read] {
            let command = Command::transfer(opcode, sa.at(0), sb.to(0), 50_000);
            a.issue(&mut cluster, &command, &[]).unwrap();
            cluster.poll(0);
        }
        let payload = vec![7; 4200];
        let foreign = Memory::new(8192);
        let good = Stranger::new(&mut cluster);
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
            hand(&mut cluster, &frame, payload);
            cluster.poll(1);
        }
        cluster.run();
        prop_assert_eq!(a.done(&cluster), (1, 1));
        prop_assert_eq!(a.errors(&cluster), []);
        check_others(&mut cluster, &mut b, &sb, &sa);
    }

    #[test]
    fn arbitrary_bytes_are_no_frames(bytes: [u8; HEADER_BYTES]) {
        let mut cluster = Cluster::new(1, 64, 1, &Limits::default());
        let frame = Frame::read_from_bytes(&bytes).unwrap();
        let (now, node) = (cluster.now, &mut cluster.nodes[0]);
        node.nic.handle_frame(now, &node.host, &frame, Payload::None);
        prop_assert_eq!(node.nic.statistics().malformed_frames.get(), 1);
    }
}

#[test]
fn a_peer_cannot_use_a_key_that_it_was_not_given() {
    let (mut cluster, _, (b, sb)) = pair();
    let before = b.read(&cluster, sb.address, 4096);
    let stranger = Stranger::new(&mut cluster);
    for (sequence, key) in (1..).zip([0, sb.key ^ 1, u64::MAX]) {
        let mut write = Write::new_zeroed();
        write.address = sb.address.into();
        write.key = key.into();
        let mut frame = stranger.numbered(&write, sequence, &b);
        frame.envelope.payload_length = 16.into();
        hand(&mut cluster, &frame, Payload::Bytes(&[9; 16]));
    }
    cluster.run();
    assert_eq!(cluster.statistics(1).protection_errors.get(), 3);
    assert!(before == b.read(&cluster, sb.address, 4096));
}

#[test]
fn a_peer_that_ignores_its_window_fills_no_memory() {
    let (mut cluster, _, (b, sb)) = pair();
    cluster.answer_faults = false;
    let stranger = Stranger::new(&mut cluster);
    let granted = stranger.granted;
    let mut write = Write::new_zeroed();
    write.key = sb.key.into();
    write.remaining = 8.into();
    for sequence in 1..=granted + 50 {
        write.address = (sb.address + 5 + sequence % 400 * 8).into();
        let mut frame = stranger.numbered(&write, sequence, &b);
        frame.envelope.payload_length = 8.into();
        hand(&mut cluster, &frame, Payload::Bytes(&[5; 8]));
    }
    let statistics = cluster.statistics(1);
    assert_eq!(u64::from(statistics.frames_held.get()), granted);
    assert_eq!(statistics.bounce_bytes.get(), granted * 8);
    assert_eq!(statistics.frames_outside.get(), 50);
    cluster.poll(1);
    while !cluster.nodes[1].faults.is_empty() {
        cluster.answer_fault(1, 0, 1);
        cluster.poll(1);
    }
    assert_eq!(cluster.statistics(1).frames_held.get(), 0);
    assert_eq!(b.read(&cluster, sb.address + 85, 8), [5; 8]);
}

#[test]
fn two_processes_cannot_share_a_port_or_a_segment() {
    let (mut cluster, (a, _), _) = pair();
    let taken = SimProcess::register(&mut cluster, 0, qnic_abi::VniId(5), a.port);
    assert_eq!(taken.err(), Some(Status::PortInUse));
    let again = a.export(&mut cluster, 1, 7, (0, 10), common::ALL);
    assert_eq!(again.err(), Some(Status::NameExists));
}

#[test]
fn several_queues_can_fail_in_one_poll() {
    let (mut cluster, (mut a, sa), (_b, sb)) = pair();
    let mut villains: Vec<_> = [3, 4, 5, 6]
        .map(|vni| process(&mut cluster, 0, vni).0)
        .into();
    let mut bad = Command::inline_write(sb.to(0), 8);
    bad.opcode = 99;
    for villain in &mut villains {
        villain.issue(&mut cluster, &bad, &[]).unwrap();
    }
    check_others(&mut cluster, &mut a, &sa, &sb);
    for villain in &villains {
        assert_eq!(villain.errors(&cluster), [(0, Status::Malformed)]);
    }
    cluster.settle();
}

/// Found by a random workload: the new process waited for an answer for ever.
#[test]
fn a_request_that_overtakes_the_end_of_the_process_before_is_answered() {
    let (mut cluster, _, (b, sb)) = pair();
    b.write(&mut cluster, sb.address, &[6; 8]);
    let stranger = Stranger::new(&mut cluster);
    let mut request = ReadRequest::new_zeroed();
    request.key = sb.key.into();
    request.address = sb.address.into();
    request.length = 8.into();
    for (sequence, operation) in [(1, 11), (3, 33)] {
        let mut frame = stranger.numbered(&request, sequence, &b);
        frame.envelope.source_port = 55.into();
        frame.envelope.operation = operation.into();
        hand(&mut cluster, &frame, Payload::None);
    }
    let mut gone = stranger.frame::<ProcessGone>(&qnic_abi::wire::Empty);
    gone.envelope.source_port = 55.into();
    gone.envelope.sequence = 2.into();
    hand(&mut cluster, &gone, Payload::None);
    cluster.run();
    let responses = cluster.outside[&7].iter();
    let responses = responses.filter(|frame| frame.envelope.kind == rdma::READ_RESPONSE);
    let answered: Vec<_> = responses
        .map(|frame| frame.envelope.operation.get())
        .collect();
    assert_eq!(answered, [33]);
}
