//! Golden bytes of verbs: rings as librxe has them, and what driver and NICs say of them.

use qnic_abi::command::{CommandBody, CommandHeader};
use qnic_abi::verbs::commands::{VerbsArmCommand, VerbsSendCommand, SOLICITED_ONLY};
use qnic_abi::verbs::frames::{
    MessageFlags, ReplyKind, VerbsAtomic, VerbsDatagram, VerbsMessage, VerbsProbe, VerbsRead,
    VerbsReadData, VerbsReply, VerbsUnreliable,
};
use qnic_abi::verbs::requests::{
    CreateCompletionQueue, CreateQueuePair, CreateSharedReceiveQueue, ModifyQueuePair, Object,
    RegisterMemory, Ring, SIGNAL_ALL,
};
use qnic_abi::verbs::requests::{DestroyObject, QueuePairInfo};
use qnic_abi::verbs::rings::{
    AtomicOperands, CompletionFlags, DatagramOperands, Gather, MemoryOperands, QueueHeader,
    ReceiveEntry, SendEntry, SendFlags, Sge, WorkCompletion,
};
use qnic_abi::verbs::{Completed, Outcome, Request, Rights, State, Transport, NUMBERS};
use qnic_abi::wire::{Body, Frame};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes in hexadecimal, eight by eight.
fn hex(bytes: &[u8]) -> String {
    let word = |word: &[u8]| word.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.chunks(8).map(word).collect::<Vec<String>>().join(" ")
}

/// Bytes that each say where they stand, as if librxe had written all words.
fn marked<T: FromBytes>() -> T {
    let bytes: Vec<u8> = (0..size_of::<T>()).map(|at| at as u8).collect();
    T::read_from_bytes(&bytes).unwrap()
}

/// The word that stands at an offset of [`marked`].
fn at(offset: u8) -> u32 {
    u32::from_le_bytes([offset, offset + 1, offset + 2, offset + 3])
}

/// Offsets as a C compiler gives them for the kernel's structures.
#[test]
fn words_of_rings_stand_where_librxe_has_them() {
    let entry: SendEntry = marked();
    assert_eq!(entry.id.get() as u32, at(0));
    let words = [entry.opcode, entry.flags, entry.immediate].map(|word| word.get());
    assert_eq!(words, [at(12), at(16), at(20)]);
    let memory: MemoryOperands = entry.operands();
    assert_eq!(
        (memory.address.get() as u32, memory.key.get()),
        (at(24), at(32))
    );
    let atomic: AtomicOperands = entry.operands();
    let longs = [atomic.address, atomic.operand, atomic.swap].map(|word| word.get() as u32);
    assert_eq!(
        (longs, atomic.key.get()),
        ([at(24), at(32), at(40)], at(48))
    );
    let datagram: DatagramOperands = entry.operands();
    let words = [datagram.qp, datagram.qkey, datagram.path].map(|word| word.get());
    assert_eq!(words, [at(24), at(28), at(36)]);
    assert_eq!(
        (entry.gather.length.get(), entry.gather.sges.get()),
        (at(184), at(196))
    );
    let receive: ReceiveEntry = marked();
    assert_eq!(receive.gather.sges.get(), at(28));
    let sizes = [
        size_of::<SendEntry>(),
        size_of::<ReceiveEntry>(),
        size_of::<QueueHeader>(),
    ];
    assert_eq!(sizes, [208, 40, 384]);
}

#[test]
fn a_receive_a_completion_and_a_piece() {
    let receive = ReceiveEntry {
        id: 0x0102_0304.into(),
        gather: Gather {
            length: 64.into(),
            sges: 1.into(),
            ..Default::default()
        },
        ..Default::default()
    };
    let golden = "0403020100000000 0000000000000000 4000000000000000 0000000001000000 \
                  0000000000000000";
    assert_eq!(hex(receive.as_bytes()), golden);
    let piece = Sge {
        address: 0x7f00_1234_5678.into(),
        length: 64.into(),
        key: 0x0003_8001.into(),
    };
    assert_eq!(hex(piece.as_bytes()), "78563412007f0000 4000000001800300");
    let completion = WorkCompletion {
        id: 0x0102_0304.into(),
        status: (Outcome::ReceiverNotReady as u32).into(),
        opcode: (Completed::ReceiveWrite as u32).into(),
        vendor_error: 5.into(),
        length: 64.into(),
        immediate: 0x0a0b_0c0d.into(),
        qp: 17.into(),
        peer_qp: 18.into(),
        flags: CompletionFlags::all().bits().into(),
        source_lid: 4.into(),
        service_level: 6,
        port: 1,
        ..Default::default()
    };
    let golden = "0403020100000000 0d00000081000000 0500000040000000 0d0c0b0a11000000 \
                  1200000003000000 0000040006000100 0000000000000000 0000000000000000";
    assert_eq!(hex(completion.as_bytes()), golden);
    assert_eq!(SendFlags::all().bits(), 15);
}

fn ring(first: u64) -> Ring {
    Ring {
        first: first.into(),
        list: 0x6000.into(),
        entries: 128.into(),
        entry_bytes: 64.into(),
        pages: 2.into(),
    }
}

#[test]
fn requests_that_make_objects() {
    assert!(ring(0x5000).is_valid());
    let one_ring = "0050000000000000 0060000000000000 8000000040000200";
    let cq = CreateCompletionQueue {
        cq: 3.into(),
        token: 0x77.into(),
        ring: ring(0x5000),
        ..Default::default()
    };
    let golden = format!("0300000000000000 7700000000000000 {one_ring}");
    assert_eq!(hex(cq.as_bytes()), golden);
    let srq = CreateSharedReceiveQueue {
        srq: 4.into(),
        domain: 5.into(),
        token: 0x78.into(),
        ring: ring(0x5000),
        limit: 6.into(),
        sges: 7.into(),
        ..Default::default()
    };
    let golden = format!("0400000005000000 7800000000000000 {one_ring} 0600000007000000");
    assert_eq!(hex(srq.as_bytes()), golden);
    let qp = CreateQueuePair {
        qp: 0x0111.into(),
        transport: Transport::Reliable as u8,
        flags: SIGNAL_ALL,
        inline: 0x0100.into(),
        token: 0x79.into(),
        domain: 5.into(),
        srq: 4.into(),
        send_cq: 3.into(),
        receive_cq: 2.into(),
        send: ring(0x5000),
        receive: ring(0x8000),
        send_sges: 8.into(),
        receive_sges: 9.into(),
        ..Default::default()
    };
    let golden = format!(
        "1101000002010001 7900000000000000 0500000004000000 0300000002000000 {one_ring} \
         0080000000000000 0060000000000000 8000000040000200 0800090000000000"
    );
    assert_eq!(hex(qp.as_bytes()), golden);
}

#[test]
fn requests_about_objects() {
    let modify = ModifyQueuePair {
        qp: 0x0111.into(),
        state: State::ReadyToSend as u8,
        access: Rights::all().bits() as u8,
        timeout: 14,
        retries: 7,
        path: 2.into(),
        peer_qp: 0x0112.into(),
        send_psn: 0x0abcdef.into(),
        receive_psn: 0x0123456.into(),
        qkey: 0x8001_0000.into(),
        mtu: 5,
        not_ready_timer: 12,
        not_ready_retries: 6,
        max_reads: 16,
        max_peer_reads: 15,
        drain_event: 1,
        ..Default::default()
    };
    let golden = "11010000030f0e07 0200000012010000 efcdab0056341200 00000180050c0610 \
                  0f01000000000000";
    assert_eq!(hex(modify.as_bytes()), golden);
    let info = QueuePairInfo {
        state: State::Failed as u8,
        draining: 1,
        send_psn: 2.into(),
        receive_psn: 3.into(),
        ..Default::default()
    };
    assert_eq!(hex(info.as_bytes()), "0601000002000000 0300000000000000");
    let memory = RegisterMemory {
        segment: 9.into(),
        rights: (Rights::all().bits() as u16).into(),
        key: 0x0009_8001.into(),
        domain: 5.into(),
        address: 0x7f00_0000_1000.into(),
        ..Default::default()
    };
    let golden = "09000f0001800900 0500000000000000 00100000007f0000";
    assert_eq!(hex(memory.as_bytes()), golden);
    let end = DestroyObject {
        object: (Object::Memory as u32).into(),
        number: 0x0009_8001.into(),
    };
    assert_eq!(hex(end.as_bytes()), "0400000001800900");
}

#[test]
fn commands_in_the_window() {
    let header = |opcode, node: u16| CommandHeader {
        opcode,
        remote_node: node.into(),
        ..Default::default()
    };
    let send = VerbsSendCommand {
        header: header(VerbsSendCommand::OPCODE, 3),
        qp: 0x0111.into(),
        ..Default::default()
    };
    assert!(hex(send.as_bytes()).starts_with("1400000003000000 1101000000000000 00"));
    assert_eq!(send.descriptor().handle(), 0x0111);
    let arm = VerbsArmCommand {
        header: header(VerbsArmCommand::OPCODE, 0),
        cq: 3.into(),
        flags: SOLICITED_ONLY.into(),
        seen: 0x0405.into(),
        ..Default::default()
    };
    let golden = "1500000000000000 0300000001000000 0504000000000000 00";
    assert!(hex(arm.as_bytes()).starts_with(golden));
}

/// First words of the envelope, and the body.
fn check<B: Body>(body: &B, first: &str, golden: &str) {
    let frame = Frame::new(body);
    assert!(frame.is::<B>());
    let header = frame.header();
    assert_eq!(
        (&hex(&header[..6])[..], &hex(&header[64..])[..]),
        (first, golden)
    );
}

fn message() -> VerbsMessage {
    VerbsMessage {
        qp: 1.into(),
        peer_qp: 2.into(),
        psn: 3.into(),
        immediate: 4.into(),
        offset: 5.into(),
        remaining: 6.into(),
        address: 7.into(),
        key: 8.into(),
        request: Request::WriteImmediate as u8,
        flags: MessageFlags::SOLICITED.bits(),
        ..Default::default()
    }
}

#[test]
fn frames_of_messages() {
    let golden = "0100000002000000 0300000004000000 0500000000000000 0600000000000000 \
                  0700000000000000 0800000001010000";
    check(&message(), "716e16600130", golden);
    let message = message();
    check(&VerbsUnreliable { message }, "716e16c90030", golden);
    let datagram = VerbsDatagram {
        qp: 1.into(),
        peer_qp: 2.into(),
        qkey: 0x1111_1111.into(),
        immediate: 4.into(),
        request: Request::SendImmediate as u8,
        flags: MessageFlags::ROUTE_HEADER.bits(),
        service_level: 5,
        ..Default::default()
    };
    check(
        &datagram,
        "716e16c80018",
        "0100000002000000 1111111104000000 0302050000000000",
    );
}

#[test]
fn frames_of_reads_and_answers() {
    let (qp, peer_qp, psn, key) = (1.into(), 2.into(), 3.into(), 4.into());
    let (address, length) = (5.into(), 6.into());
    let read = VerbsRead {
        qp,
        peer_qp,
        psn,
        key,
        address,
        length,
    };
    let golden = "0100000002000000 0300000004000000 0500000000000000 0600000000000000";
    check(&read, "716e16880120", golden);
    let data = VerbsReadData {
        qp,
        peer_qp,
        psn,
        reserved: 0.into(),
        offset: 7.into(),
    };
    check(
        &data,
        "716e16610118",
        "0100000002000000 0300000000000000 0700000000000000",
    );
    let atomic = VerbsAtomic {
        qp,
        peer_qp,
        psn,
        key,
        address,
        operand: 7.into(),
        swap: 8.into(),
        request: Request::FetchAdd as u8,
        reserved: [0; 7],
    };
    let golden = "0100000002000000 0300000004000000 0500000000000000 0700000000000000 \
                  0800000000000000 0600000000000000";
    check(&atomic, "716e16890130", golden);
    let reply = VerbsReply {
        qp,
        peer_qp,
        psn,
        kind: ReplyKind::ReceiverNotReady as u8,
        timer: 12,
        reserved: 0.into(),
        offset: 5.into(),
        value: 6.into(),
    };
    let golden = "0100000002000000 03000000010c0000 0500000000000000 0600000000000000";
    check(&reply, "716e168a0120", golden);
    let probe = VerbsProbe {
        qp,
        peer_qp,
        psn,
        reserved: 0.into(),
    };
    check(&probe, "716e168b0110", "0100000002000000 0300000000000000");
}

#[test]
fn bodies_that_the_format_excludes_are_refused() {
    let good = message();
    let with = |change: fn(&mut VerbsMessage)| {
        let mut message = good;
        change(&mut message);
        message.is_valid()
    };
    assert!(good.is_valid());
    assert!(with(|it| {
        it.request = Request::Send as u8;
        (it.address, it.key) = (0.into(), 0.into());
    }));
    assert!(
        !with(|it| it.request = Request::Send as u8),
        "a Send has no address"
    );
    assert!(!with(|it| it.request = Request::Read as u8));
    assert!(!with(|it| it.request = 99));
    assert!(!with(|it| it.flags = MessageFlags::ROUTE_HEADER.bits()));
    assert!(!with(|it| it.flags = 0x80));
    assert!(!with(|it| it.reserved = 1.into()));
    assert!(!with(|it| it.qp = NUMBERS.into()));
    assert!(!with(|it| it.psn = NUMBERS.into()));
    let reply = VerbsReply::default();
    assert!(reply.is_valid());
    assert!(!VerbsReply { kind: 10, ..reply }.is_valid());
    assert!(!VerbsReply { timer: 32, ..reply }.is_valid());
    assert!(
        !VerbsAtomic::default().is_valid(),
        "a write is no atomic operation"
    );
    assert!(
        !VerbsDatagram::default().is_valid(),
        "a write is no datagram"
    );
}
