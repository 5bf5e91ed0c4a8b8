//! Golden bytes: what the structs look like in memory and on the wire.

use qnic_abi::atomic::{AtomicCommand, AtomicRequest, AtomicResponse, Function, WaitQueue};
use qnic_abi::command::{CommandBody, CommandFlags, CommandHeader};
use qnic_abi::counters::CounterPage;
use qnic_abi::datagram::{
    Datagram, DatagramPostCommand, DatagramSendCommand, DatagramWithdrawCommand, PacketFlags,
    PostFlags, WithdrawFlags,
};
use qnic_abi::directory::{ImportRequest, ImportResponse};
use qnic_abi::event::{Event, Kind};
use qnic_abi::header::Geometry;
use qnic_abi::host_area::{CompletionEntry, CompletionKind, COMPLETION_MORE};
use qnic_abi::message::{
    self, CancelCommand, Message, MessageData, MessageEnd, MessagePermit, ProbeCommand, ProbeFlags,
    ReceiveCommand, ReceiveFlags, SendCommand,
};
use qnic_abi::pool::{DatagramPart, OpenPools, PoolWait, Slot};
use qnic_abi::rdma::{FenceCommand, ReadCommand, ReadRequest, ReadResponse, Write, WriteCommand};
use qnic_abi::stream::{Kind as StreamKind, Reason, StreamFlags, StreamHeader, MAGIC};
use qnic_abi::wire::{
    kind, Ack, Body, Empty, Frame, Goodbye, Hello, Leave, Nak, ProcessGone, Window, ENVELOPE_BYTES,
};
use qnic_abi::{NodeId, Secret};
use zerocopy::IntoBytes;

/// Bytes in hexadecimal, eight by eight.
fn hex(bytes: &[u8]) -> String {
    let word = |word: &[u8]| word.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.chunks(8).map(word).collect::<Vec<String>>().join(" ")
}

fn header(opcode: u8, inline_length: u8) -> CommandHeader {
    CommandHeader {
        opcode,
        flags: CommandFlags::PUBLISH.bits(),
        inline_length,
        lane: 0,
        remote_node: 3.into(),
        remote_port: 0x0102.into(),
    }
}

#[test]
fn a_notifying_inline_write() {
    let command = WriteCommand {
        header: header(WriteCommand::OPCODE, 8),
        length: 8.into(),
        remote_address: 0x7f00_1234_5678.into(),
        remote_key: 0x1122_3344_5566_7788.into(),
        remote_segment: 9.into(),
        notification: 0x0a0b.into(),
        handle: 0x0c0d.into(),
        ..Default::default()
    };
    let golden = "0101080003000201 0800000000000000 0000000000000000 0000000000000000 \
                  78563412007f0000 8877665544332211 000009000b0a0000 0d0c000000000000";
    assert_eq!(hex(command.as_bytes()), golden);
    assert_eq!(command.descriptor().read::<WriteCommand>(), command);
}

#[test]
fn a_read() {
    let command = ReadCommand {
        header: header(ReadCommand::OPCODE, 0),
        length: 0x0100.into(),
        local_address: 0x1000.into(),
        local_key: 5.into(),
        remote_address: 0x7f00_1234_5678.into(),
        remote_key: 6.into(),
        local_segment: 7.into(),
        remote_segment: 9.into(),
        ..Default::default()
    };
    let golden = "0201000003000201 0001000000000000 0010000000000000 0500000000000000 \
                  78563412007f0000 0600000000000000 0700090000000000 0000000000000000";
    assert_eq!(hex(command.as_bytes()), golden);
}

#[test]
fn a_fence() {
    let command = FenceCommand {
        header: header(FenceCommand::OPCODE, 0),
        handle: 0x1122_3344_5566_7788.into(),
        ..Default::default()
    };
    let golden = "1301000003000201 0000000000000000 0000000000000000 0000000000000000 \
                  0000000000000000 0000000000000000 0000000000000000 8877665544332211";
    assert_eq!(hex(command.as_bytes()), golden);
}

#[test]
fn a_compare_and_swap() {
    let command = AtomicCommand {
        header: header(AtomicCommand::OPCODE, 0),
        remote_address: 0x7f00_1234_5678.into(),
        remote_key: 0x1122_3344_5566_7788.into(),
        operands: [0x0102_0304.into(), 0x0506_0708.into()],
        length: 4.into(),
        function: (Function::CompareSwap as u16).into(),
        record: 63.into(),
        remote_segment: 9.into(),
        ..Default::default()
    };
    let golden = "0301000003000201 78563412007f0000 8877665544332211 0403020100000000 \
                  0807060500000000 0400000005003f00 0900000000000000 0000000000000000";
    assert_eq!(hex(command.as_bytes()), golden);
}

#[test]
fn a_datagram_its_buffer_and_its_frame() {
    let send = DatagramSendCommand {
        header: header(DatagramSendCommand::OPCODE, 40),
        handle: 1.into(),
        address: 0x5000.into(),
        target: 2.into(),
        sequence: 3.into(),
        fragment: 4.into(),
        flags: PacketFlags::LAST.bits(),
        length: 0x1000.into(),
        source_port: 5.into(),
        ..Default::default()
    };
    let golden = "1001280003000201 0100000000000000 0050000000000000 0200000000000000 \
                  0300000004000100 0010050000000000 0000000000000000 0000000000000000";
    assert_eq!(hex(send.as_bytes()), golden);
    let post = DatagramPostCommand {
        header: header(DatagramPostCommand::OPCODE, 0),
        handle: 1.into(),
        address: 0x5000.into(),
        record: 0x6040.into(),
        length: 0x1000.into(),
        port: 5.into(),
        flags: PostFlags::STEERED.bits().into(),
        ..Default::default()
    };
    let golden = "1101000003000201 0100000000000000 0050000000000000 4060000000000000 \
                  0010050001000000 0000000000000000 0000000000000000 0000000000000000";
    assert_eq!(hex(post.as_bytes()), golden);
    let withdraw = DatagramWithdrawCommand {
        header: header(DatagramWithdrawCommand::OPCODE, 0),
        port: 5.into(),
        flags: WithdrawFlags::ALL.bits().into(),
        ..Default::default()
    };
    let golden = "1201000003000201 0000000000000000 0500010000000000 0000000000000000 \
                  0000000000000000 0000000000000000 0000000000000000 0000000000000000";
    assert_eq!(hex(withdraw.as_bytes()), golden);
    let mut datagram = Datagram {
        target: 1.into(),
        sequence: 2.into(),
        fragment: 3.into(),
        flags: PacketFlags::LAST.bits(),
        header_length: 9,
        header: [4.into(), 5.into(), 0.into(), 0.into(), 0.into()],
    };
    let golden = "0100000000000000 0200000003000109 0400000000000000 0500000000000000 \
                  0000000000000000 0000000000000000 0000000000000000";
    check(&datagram, "716e16c00038", golden);
    datagram.header_length = 8;
    assert!(!datagram.is_valid(), "a byte behind the header");
    datagram.header_length = 41;
    assert!(!datagram.is_valid(), "a header longer than its room");
}

#[test]
fn a_send_a_receive_and_a_cancel() {
    let send = SendCommand {
        header: header(SendCommand::OPCODE, 0),
        handle: 1.into(),
        tag: 2.into(),
        immediate: 3.into(),
        length: 4.into(),
        local_address: 5.into(),
        local_key: 6.into(),
        local_segment: 7.into(),
        endpoint: 8.into(),
        flags: 1.into(),
        reserved: 9.into(),
    };
    let golden = "0401000003000201 0100000000000000 0200000000000000 0300000000000000 \
                  0400000000000000 0500000000000000 0600000000000000 0700080001000900";
    assert_eq!(hex(send.as_bytes()), golden);
    let receive = ReceiveCommand {
        header: header(ReceiveCommand::OPCODE, 0),
        handle: 1.into(),
        tag: 2.into(),
        ignore: 3.into(),
        length: 4.into(),
        local_address: 5.into(),
        local_key: 6.into(),
        local_segment: 7.into(),
        endpoint: 8.into(),
        flags: ReceiveFlags::MANY.bits().into(),
    };
    let golden = "0501000003000201 0100000000000000 0200000000000000 0300000000000000 \
                  0400000000000000 0500000000000000 0600000000000000 0700080004000000";
    assert_eq!(hex(receive.as_bytes()), golden);
    let cancel = CancelCommand {
        header: header(CancelCommand::OPCODE, 0),
        handle: 0x0102.into(),
        ..Default::default()
    };
    assert_eq!(
        hex(&cancel.as_bytes()[..16]),
        "0601000003000201 0201000000000000"
    );
}

#[test]
fn a_probe() {
    let probe = ProbeCommand {
        header: header(ProbeCommand::OPCODE, 0),
        handle: 1.into(),
        tag: 2.into(),
        ignore: 3.into(),
        endpoint: 8.into(),
        flags: (ProbeFlags::WAIT | ProbeFlags::CLAIM).bits().into(),
        ..Default::default()
    };
    let golden = "0a01000003000201 0100000000000000 0200000000000000 0300000000000000 \
                  0000000000000000 0000000000000000 0000000000000000 000008000c000000";
    assert_eq!(hex(probe.as_bytes()), golden);
}

#[test]
fn a_completion_entry() {
    let entry = CompletionEntry {
        handle: 1.into(),
        tag: 2.into(),
        immediate: 3.into(),
        length: 4.into(),
        offset: 5.into(),
        status: 33.into(),
        node: 6.into(),
        port: 7.into(),
        kind: CompletionKind::Receive as u8,
        flags: COMPLETION_MORE,
        endpoint: 8.into(),
        mark: 9.into(),
        incarnation: 10.into(),
        ..Default::default()
    };
    let golden = "0100000000000000 0200000000000000 0300000000000000 0400000000000000 \
                  0500000000000000 2100000006000700 0201080000000000 090000000a000000";
    assert_eq!(hex(entry.as_bytes()), golden);
}

#[test]
fn the_frames_of_messages() {
    let eager = Message::<{ message::kind::MESSAGE }> {
        tag: 1.into(),
        immediate: 2.into(),
        length: 3.into(),
        after: 4.into(),
        endpoint: 5.into(),
        flags: 0.into(),
        mark: 0x0607.into(),
        incarnation: 8.into(),
        source: 9.into(),
    };
    let golden =
        "0100000000000000 0200000000000000 0300000000000000 0400000000000000 0500000007060000 0800000009000000";
    check(&eager, "716e16480130", golden);
    let request = message::MessageRequest {
        message: zerocopy::transmute!(eager),
        packets: 1.into(),
        packet_length: 4096.into(),
    };
    let golden = format!("{golden} 0100000000100000");
    check(&request, "716e16980138", &golden);
    let permit = MessagePermit {
        receive: 1.into(),
        length: 2.into(),
        page_offset: 3.into(),
        ..Default::default()
    };
    let golden = "0100000000000000 0200000000000000 0300000000000000";
    check(&permit, "716e16990118", golden);
    let data = MessageData {
        receive: 1.into(),
        offset: 2.into(),
        page_offset: 3.into(),
        ..Default::default()
    };
    check(&data, "716e16490118", golden);
    let end = MessageEnd {
        status: 16.into(),
        ..Default::default()
    };
    check(&end, "716e169a0108", "1000000000000000");
}

#[test]
fn a_wait_queue() {
    let queue = WaitQueue {
        head: 0x0102_0304_0506_0708.into(),
        tail: 0x1112.into(),
        count: 3.into(),
        pending: 1.into(),
        value: 0x0a0b.into(),
        ..Default::default()
    };
    let golden = "0807060504030201 1211000000000000 0300000001000000 0b0a000000000000";
    assert_eq!(hex(queue.as_bytes()), golden);
}

/// The envelope of a frame with this body, and the body.
fn frame<B: Body>(body: &B) -> (String, String) {
    let mut frame = Frame::new(body);
    let envelope = &mut frame.envelope;
    envelope.payload_length = 0x0304.into();
    envelope.source_node = 5.into();
    envelope.destination_node = 6.into();
    envelope.source_port = 7.into();
    envelope.destination_port = 8.into();
    envelope.source_session = 0x20.into();
    envelope.destination_session = 0x21.into();
    envelope.sequence = 9.into();
    envelope.acknowledge = 10.into();
    envelope.delivered = 0x22.into();
    envelope.operation = 11.into();
    let bytes = frame.header();
    assert_eq!(frame.body::<B>().as_bytes(), body.as_bytes());
    assert!(frame.is::<B>());
    (hex(&bytes[..ENVELOPE_BYTES]), hex(&bytes[ENVELOPE_BYTES..]))
}

#[test]
fn an_envelope_and_a_write() {
    let (envelope, body) = frame(&Write {
        address: 14.into(),
        key: 15.into(),
        offset: 12.into(),
        remaining: 13.into(),
        segment: 17.into(),
        flags: 1.into(),
        notification: 18.into(),
    });
    let golden = "716e164001280403 0500060007000800 2000000000000000 2100000000000000 \
                  0900000000000000 0a00000000000000 2200000000000000 0b00000000000000";
    assert_eq!(envelope, golden);
    let golden =
        "0e00000000000000 0f00000000000000 0c00000000000000 0d00000000000000 1100010012000000";
    assert_eq!(body, golden);
}

/// The first word of the envelope and the body.
fn check<B: Body>(body: &B, first: &str, golden: &str) {
    let (envelope, bytes) = frame(body);
    assert_eq!((&envelope[..12], &bytes[..]), (first, golden));
}

#[test]
fn the_bodies_of_all_other_kinds() {
    check(
        &Ack {
            flags: 1.into(),
            offset: 2.into(),
            bitmap: [3.into(), 4.into(), 5.into(), 6.into()],
        },
        "716e16010028",
        "0100000002000000 0300000000000000 0400000000000000 0500000000000000 0600000000000000",
    );
    let (window, leaves) = (0x0102.into(), 3.into());
    let hello = Hello::<{ kind::HELLO }> { window, leaves };
    check(&hello, "716e16020008", "0201000003000000");
    let reply = Hello::<{ kind::HELLO_REPLY }> { window, leaves };
    check(&reply, "716e16030008", "0201000003000000");
    check::<Goodbye>(&Empty, "716e16040000", "");
    let (next, reserved) = (7.into(), 0.into());
    let leave = Leave {
        leaves,
        reserved,
        next,
    };
    check(&leave, "716e16050010", "0300000000000000 0700000000000000");
    let renewed = Window::<{ kind::WINDOW }> { window, reserved };
    check(&renewed, "716e16820108", "0201000000000000");
    let taken = Window::<{ kind::WINDOW_TAKEN }> { window, reserved };
    check(&taken, "716e16830108", "0201000000000000");
    let last_received = 9.into();
    let gone = ProcessGone { last_received };
    check(&gone, "716e16810108", "0900000000000000");
    check(
        &Nak {
            status: 5.into(),
            kind: 0x40,
            reserved: [0; 3],
            sequence: 9.into(),
        },
        "716e16800110",
        "0500000040000000 0900000000000000",
    );
    check(
        &ReadRequest {
            address: 1.into(),
            key: 2.into(),
            offset: 3.into(),
            remaining: 4.into(),
            length: 5.into(),
            segment: 6.into(),
            page_offset: 7.into(),
        },
        "716e16900128",
        "0100000000000000 0200000000000000 0300000000000000 0400000000000000 0500000006000700",
    );
    check(
        &ReadResponse {
            offset: 1.into(),
            page_offset: 2.into(),
            ..Default::default()
        },
        "716e16410110",
        "0100000000000000 0200000000000000",
    );
    check(
        &AtomicRequest {
            address: 1.into(),
            key: 2.into(),
            operands: [3.into(), 4.into(), 7.into(), 8.into()],
            length: 8.into(),
            function: 5.into(),
            segment: 6.into(),
        },
        "716e16a00138",
        "0100000000000000 0200000000000000 0300000000000000 0400000000000000 0700000000000000 \
         0800000000000000 0800000005000600",
    );
    check(
        &AtomicResponse {
            value: 1.into(),
            detail: 2.into(),
        },
        "716e16a10110",
        "0100000000000000 0200000000000000",
    );
    check(
        &ImportRequest {
            name: 1.into(),
            wait_ms: 2.into(),
            secret: Secret(std::array::from_fn(|index| index as u8 + 1)),
            ..Default::default()
        },
        "716e16b00120",
        "0100000000000000 0200000000000000 0102030405060708 090a0b0c0d0e0f10",
    );
    check(
        &ImportResponse {
            address: 1.into(),
            length: 2.into(),
            key: 3.into(),
            status: 4.into(),
            access: 5.into(),
            segment: 6.into(),
            ..Default::default()
        },
        "716e16b10128",
        "0100000000000000 0200000000000000 0300000000000000 0400000005000000 0600000000000000",
    );
}

#[test]
fn frames_are_read_back_from_a_wire_and_nothing_else_is() {
    let mut frame = Frame::new(&ReadResponse {
        offset: 1.into(),
        page_offset: 2.into(),
        ..Default::default()
    });
    frame.envelope.payload_length = 3.into();
    let mut bytes = frame.header().to_vec();
    bytes.extend(b"abc");
    assert_eq!(Frame::from_wire(&bytes), Some((frame, &b"abc"[..])));
    for length in 0..bytes.len() {
        assert_eq!(Frame::from_wire(&bytes[..length]), None);
    }
    bytes.push(0);
    assert_eq!(Frame::from_wire(&bytes), None);
    bytes[5] = 57;
    assert_eq!(Frame::from_wire(&bytes), None, "no body is so long");
}

#[test]
fn shared_pools() {
    let open = OpenPools {
        status: 1.into(),
        port: 0x0405.into(),
        node: 3.into(),
        frame_bytes: 4096.into(),
        inputs: 256.into(),
        outputs: 128.into(),
        bytes: 0x12_3000.into(),
    };
    let golden = "0100000005040300 0010000000018000 0030120000000000";
    assert_eq!(hex(open.as_bytes()), golden);
    let wait = PoolWait {
        status: 1.into(),
        events: 3.into(),
        timeout_ns: (-1).into(),
    };
    assert_eq!(hex(wait.as_bytes()), "0100000003000000 ffffffffffffffff");
    let part = DatagramPart {
        message: 1.into(),
        length: 0x1_0000.into(),
        part: 2.into(),
        part_bytes: 4080.into(),
        ..Default::default()
    };
    assert_eq!(hex(part.as_bytes()), "0100000000000100 0200f00f00000000");
    let slot = Slot {
        index: 0x0102,
        length: 0x0304,
        node: NodeId(0x0506),
        port: 0x0708,
    };
    assert_eq!(slot.encode(), 0x0708_0506_0304_0103);
    assert_eq!(Slot::decode(slot.encode()), Some(slot));
    assert_eq!(Slot::default().encode(), 1, "never empty");
    assert_eq!(Slot::decode(0x0708_0506_0304_0000), None);
}

#[test]
fn a_frame_of_a_stream() {
    let header = StreamHeader {
        magic: MAGIC.into(),
        kind: StreamKind::Data as u8,
        flags: StreamFlags::END.bits(),
        window: 0x0102.into(),
        to: 1.into(),
        from: 2.into(),
        number: 3.into(),
        acknowledged: 4.into(),
        selective: [5.into(), 6.into(), 7.into(), 8.into()],
        detail: 0.into(),
        repeated: 9.into(),
    };
    let golden = "7153030102010000 0100000000000000 0200000000000000 0300000000000000 \
                  0400000000000000 0500000000000000 0600000000000000 0700000000000000 \
                  0800000000000000 0000000009000000";
    assert_eq!(
        hex(header.as_bytes()),
        golden.replace("                  ", "")
    );
    assert_eq!(header.check(0), None, "the window is too large");
    let header = StreamHeader {
        window: 0x0101.into(),
        ..header
    };
    assert_eq!(header.check(0), Some(StreamKind::Data));
    let reset = StreamHeader {
        kind: StreamKind::Reset as u8,
        detail: (Reason::Aborted as u32).into(),
        flags: 0,
        number: 0.into(),
        ..header
    };
    assert_eq!(reset.check(0), Some(StreamKind::Reset));
    assert_eq!(reset.check(1), None, "a reset has no data");
}

#[test]
fn an_event() {
    let event = Event {
        kind: (Kind::PageFault as u32).into(),
        vni: 4.into(),
        flags: 1.into(),
        address: 0x5000.into(),
        pages: 2.into(),
        ..Default::default()
    };
    let golden = "0200000004000100 0050000000000000 0200000000000000 0000000000000000";
    assert_eq!(hex(event.as_bytes()), golden);
}

#[test]
fn the_first_words_of_an_sram() {
    let geometry = Geometry::new(NodeId(0x0201), 1 << 16, 128, 14).unwrap();
    let golden = "716e69637372616d 2100000001020000 000000000e000000 0000000100000000";
    assert_eq!(hex(&geometry.header().as_bytes()[..32]), golden);
}

#[test]
fn a_page_of_counters() {
    qnic_abi::counters! {
        struct Table: u64 {
            Gauge _ "Not in the page." = first;
            Counter golden_ab_c_total "In the page." = ab_c;
        }
    }
    let table = Table {
        first: 7,
        ab_c: 0x0102_0304,
    };
    let page = CounterPage::of(&table, 1);
    let golden = "0200000000000000 61625f6300000000 0000000000000000 0000000000000000 \
                  0403020100000000 0000000000000000";
    assert_eq!(hex(&page.as_bytes()[..48]), golden);
    assert!(page.as_bytes()[48..].iter().all(|byte| *byte == 0));
}
