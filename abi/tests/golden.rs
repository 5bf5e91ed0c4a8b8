//! Golden bytes: what the structs look like in memory and on the wire.

use qnic_abi::atomic::{Function, WaitQueue};
use qnic_abi::command::{CommandFlags, Descriptor, Opcode};
use qnic_abi::event::{Event, Kind};
use qnic_abi::header::Geometry;
use qnic_abi::wire::{FrameHeader, FrameKind, FRAME_MAGIC, WIRE_VERSION};
use qnic_abi::NodeId;
use zerocopy::IntoBytes;

fn hex(bytes: &[u8]) -> String {
    bytes
        .chunks(8)
        .map(|row| row.iter().map(|b| format!("{b:02x}")).collect::<String>())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_notifying_inline_write() {
    let descriptor = Descriptor {
        opcode: Opcode::Write as u8,
        flags: (CommandFlags::NOTIFY | CommandFlags::INLINE).bits(),
        function: 0.into(),
        notification: 0x0a0b.into(),
        length: 8.into(),
        local_address: 0.into(),
        local_key: 0.into(),
        remote_address: 0x7f00_1234_5678.into(),
        remote_key: 0x1122_3344_5566_7788.into(),
        remote_node: 3.into(),
        remote_port: 0x0102.into(),
        local_segment: 0.into(),
        remote_segment: 9.into(),
        reserved1: 0.into(),
    };
    let golden = "010300000b0a0000\n\
                  0800000000000000\n\
                  0000000000000000\n\
                  0000000000000000\n\
                  78563412007f0000\n\
                  8877665544332211\n\
                  0300020100000900\n\
                  0000000000000000";
    assert_eq!(hex(descriptor.as_bytes()), golden);
}

#[test]
fn a_compare_and_swap() {
    let descriptor = Descriptor {
        opcode: Opcode::Atomic as u8,
        flags: CommandFlags::PUBLISH.bits(),
        function: (Function::CompareSwap as u16).into(),
        notification: 0.into(),
        length: 4.into(),
        local_address: 0x0102_0304.into(),
        local_key: 0x0506_0708.into(),
        remote_address: 0x7f00_1234_5678.into(),
        remote_key: 0x1122_3344_5566_7788.into(),
        remote_node: 3.into(),
        remote_port: 0x0102.into(),
        local_segment: 63.into(),
        remote_segment: 9.into(),
        reserved1: 0.into(),
    };
    let golden = "0304050000000000\n\
                  0400000000000000\n\
                  0403020100000000\n\
                  0807060500000000\n\
                  78563412007f0000\n\
                  8877665544332211\n\
                  030002013f000900\n\
                  0000000000000000";
    assert_eq!(hex(descriptor.as_bytes()), golden);
}

#[test]
fn a_wait_queue() {
    let queue = WaitQueue {
        head: 0x0102_0304_0506_0708.into(),
        tail: 0x1112.into(),
        count: 3.into(),
        pending: 1.into(),
        value: 0x0a0b.into(),
        reserved: 0.into(),
    };
    let golden = "0807060504030201\n\
                  1211000000000000\n\
                  0300000001000000\n\
                  0b0a000000000000";
    assert_eq!(hex(queue.as_bytes()), golden);
}

#[test]
fn a_frame() {
    let frame = FrameHeader {
        magic: FRAME_MAGIC.into(),
        version: WIRE_VERSION,
        kind: FrameKind::Nak as u8,
        flags: 2.into(),
        payload_length: 0x0304.into(),
        source_node: 5.into(),
        destination_node: 6.into(),
        source_port: 7.into(),
        destination_port: 8.into(),
        source_session: 0x20.into(),
        destination_session: 0x21.into(),
        sequence: 9.into(),
        acknowledge: 10.into(),
        delivered: 0x22.into(),
        operation: 11.into(),
        offset: 12.into(),
        length: 13.into(),
        address: 14.into(),
        key: 15.into(),
        argument: 16.into(),
        segment: 17.into(),
        reserved0: 0.into(),
        notification: 18.into(),
        status: 19.into(),
        reserved1: 0.into(),
    };
    let golden = "716e040502000403\n\
                  0500060007000800\n\
                  2000000000000000\n\
                  2100000000000000\n\
                  0900000000000000\n\
                  0a00000000000000\n\
                  2200000000000000\n\
                  0b00000000000000\n\
                  0c00000000000000\n\
                  0d00000000000000\n\
                  0e00000000000000\n\
                  0f00000000000000\n\
                  1000000000000000\n\
                  1100000012000000\n\
                  1300000000000000";
    assert_eq!(hex(frame.as_bytes()), golden);
}

#[test]
fn an_event() {
    let event = Event {
        kind: (Kind::PageFault as u32).into(),
        vni: 4.into(),
        flags: 1.into(),
        address: 0x5000.into(),
        pages: 2.into(),
        status: 0.into(),
        reserved: 0.into(),
    };
    let golden = "0200000004000100\n\
                  0050000000000000\n\
                  0200000000000000\n\
                  0000000000000000";
    assert_eq!(hex(event.as_bytes()), golden);
}

#[test]
fn the_first_words_of_an_sram() {
    let geometry = Geometry::new(NodeId(0x0201), 1 << 16, 128, 14).unwrap();
    let header = geometry.header();
    assert_eq!(
        hex(&header.as_bytes()[..32]),
        "716e69637372616d\n\
         0300000001020000\n\
         000000000e000000\n\
         0000800000000000"
    );
}
