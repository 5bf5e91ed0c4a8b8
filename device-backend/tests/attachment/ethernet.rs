//! Ethernet ports of the device process against front ends (X17).

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::guest::ethernet::{
    frame, mac, segment, Lab, Port, MERGED, NOTHING, OFFLOADS, RECEIVE, SEND,
};
use super::guest::ring::Ring;
use super::guest::{ram_file, region, until, RAM_BYTES};
use qnic_device::{EthernetSettings, MacAddress};
use rustix::fs::SealFlags;
use rustix::net::{
    connect, recv, send, socket_with, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::VhostBackend;

#[test]
fn frames_go_from_guest_to_guest() {
    let lab = Lab::new(3);
    let mut ports = [0, 1, 2].map(|node| Port::connect(&lab, node, MERGED | OFFLOADS));
    let short = frame(0, 1, b"hello");
    ports[1].offer(2, 2_048);
    ports[0].send(NOTHING, &short);
    let (header, received) = ports[1].receive(2_048);
    assert_eq!((header[0], header[10], received), (0, 1, short));
    // A broadcast reaches all but its sender.
    let mut all = frame(2, 0, b"all");
    all[..6].fill(0xff);
    ports[0].offer(1, 2_048);
    ports[2].send(NOTHING, &all);
    assert_eq!(ports[0].receive(2_048).1, all);
    assert_eq!(ports[1].receive(2_048).1, all);
    assert_eq!(lab.counters(1).received, 2);
    assert_eq!(lab.counters(2).received, 0);
}

#[test]
fn a_long_segment_comes_whole_or_divided_as_its_receiver_wants() {
    let lab = Lab::new(3);
    let mut sender = Port::connect(&lab, 0, MERGED);
    let mut whole = Port::connect(&lab, 1, MERGED | OFFLOADS);
    let mut plain = Port::connect(&lab, 2, 0);
    whole.offer(8, 4_096);
    let (header, bytes) = segment(0, 1, 12_000);
    sender.send(header, &bytes);
    let (received, copy) = whole.receive(4_096);
    assert_eq!(copy, bytes);
    // Three chains of 4,096 bytes: 12 + 54 + 12,000 bytes.
    assert_eq!((&received[..10], received[10]), (&header[..10], 3));
    plain.offer(8, 2_048);
    let (header, bytes) = segment(0, 2, 5_000);
    sender.send(header, &bytes);
    for part in 0..5 {
        let (received, copy) = plain.receive(2_048);
        assert_eq!((received[0], received[1], copy.len()), (0, 0, 1_054));
        let data = 54 + part * 1_000;
        assert_eq!(copy[54..], bytes[data..data + 1_000]);
    }
}

/// Stock drivers add buffers when half of their ring is used, and not before.
#[test]
fn a_segment_for_more_than_half_of_a_ring_does_not_wait_for_the_rest() {
    let lab = Lab::new(2);
    let mut sender = Port::connect(&lab, 0, MERGED);
    let mut receiver = Port::connect(&lab, 1, MERGED | OFFLOADS);
    receiver.offer(9, 1_536);
    let (header, bytes) = segment(0, 1, 15_000);
    sender.send(header, &bytes);
    for part in 0..9 {
        let (received, copy) = receiver.receive(1_536);
        assert_eq!((received[1], received[10], copy.len()), (0, 1, 1_054));
        let data = 54 + part * 1_000;
        assert_eq!(copy[54..], bytes[data..data + 1_000]);
    }
}

#[test]
fn frames_wait_for_the_buffers_of_their_guest() {
    let lab = Lab::new(2);
    let mut sender = Port::connect(&lab, 0, MERGED);
    let mut receiver = Port::connect(&lab, 1, MERGED | OFFLOADS);
    let (header, bytes) = segment(0, 1, 12_000);
    receiver.offer(2, 4_096);
    sender.send(header, &bytes);
    let behind = frame(0, 1, b"behind it");
    sender.send(NOTHING, &behind);
    until("both are at the port", || lab.counters(1).received == 2);
    assert!(!receiver.receive.has_entry(&receiver.ram));
    // A machine that is paused stops its queues: the two buffers are its own again.
    assert_eq!(receiver.front_end.get_vring_base(0).unwrap(), 0);
    receiver.front_end.get_vring_base(1).unwrap();
    receiver.transmit.clear(&receiver.ram);
    receiver.start(0);
    sender.send(header, &bytes);
    for buffer in 2..6 {
        let place = (RECEIVE + buffer * 4_096, 4_096, true);
        receiver.receive.push(&receiver.ram, &[place]);
        receiver.receive.kick.write(1).unwrap();
    }
    let mut received = receiver.receive(4_096).1;
    if received == behind {
        // It had not left the inbox when the queue stopped.
        received = receiver.receive(4_096).1;
    }
    assert!(received == bytes, "{} bytes", received.len());
}

/// Whatever a guest does to its queues, its neighbours go on (X8).
#[test]
fn broken_queues_hurt_their_own_guest_alone() {
    let lab = Lab::new(3);
    let mut hostile = Port::connect(&lab, 0, MERGED);
    let mut a = Port::connect(&lab, 1, MERGED);
    let mut b = Port::connect(&lab, 2, MERGED);
    hostile.send([0xff; 12], &frame(0, 1, b"a header of nonsense"));
    hostile.send(NOTHING, &[]);
    hostile.send(NOTHING, &vec![7; 70_000]);
    // A chain without end, one outside of memory, an index that jumps.
    hostile.transmit.describe(&hostile.ram, 3, (SEND, 12, 1, 3));
    hostile.transmit.offer(&hostile.ram, 3);
    let outside = (RAM_BYTES + 5, u32::MAX, 0, 0);
    hostile.transmit.describe(&hostile.ram, 4, outside);
    hostile.transmit.offer(&hostile.ram, 4);
    hostile.transmit.set_available(&hostile.ram, 0x8000);
    hostile.receive.set_available(&hostile.ram, 0x4000);
    hostile.transmit.kick.write(1).unwrap();
    hostile.receive.kick.write(1).unwrap();
    b.offer(1, 2_048);
    let good = frame(1, 2, b"undisturbed");
    a.send(NOTHING, &good);
    assert_eq!(b.receive(2_048).1, good);
    // Its own port serves the next front end.
    drop(hostile);
    let mut again = Port::connect(&lab, 0, MERGED);
    again.offer(1, 2_048);
    let hello = frame(1, 0, b"welcome");
    a.send(NOTHING, &hello);
    assert_eq!(again.receive(2_048).1, hello);
}

/// `misaligned_rings_stop_their_queue_and_nothing_else` and `a_second_front_end_is_turned_away`, where
/// `vhost-user-backend` speaks: why the NIC's own attachment does without it (docs/architecture.md). A version of it
/// that keeps these promises fails here.
#[test]
fn promises_of_the_nic_are_not_kept_by_the_attachment_of_ports() {
    let lab = Lab::new(1);
    let mut port = Port::connect(&lab, 0, MERGED);
    let second = UnixStream::connect(lab.socket(0)).unwrap();
    port.front_end.get_vring_base(1).unwrap();
    // As QEMU sends it: without the wish for an answer.
    port.front_end.set_hdr_flags(VhostUserHeaderFlag::empty());
    port.transmit.base += 1;
    let _ = port.front_end.set_vring_addr(1, &port.transmit.places());
    assert!(port.front_end.get_vring_base(0).is_err(), "connected");
    // The second one has waited, and nothing told it that it did.
    let second = Frontend::from_stream(second, 1);
    second.get_features().unwrap();
}

/// Truncating it would kill the process.
#[test]
fn memory_that_can_shrink_ends_its_own_connection_alone() {
    let lab = Lab::new(2);
    let mut other = Port::connect(&lab, 1, MERGED);
    let stream = UnixStream::connect(lab.socket(0)).unwrap();
    let mut front_end = Frontend::from_stream(stream, 2);
    front_end.set_owner().unwrap();
    front_end.get_features().unwrap();
    front_end.get_protocol_features().unwrap();
    let acknowledged = VhostUserProtocolFeatures::REPLY_ACK;
    front_end.set_protocol_features(acknowledged).unwrap();
    front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    let file = ram_file(RAM_BYTES, SealFlags::empty());
    let refused = front_end.set_mem_table(&[region(&file, 0, RAM_BYTES)]);
    assert!(refused.is_err());
    drop(front_end);
    let mut next = Port::connect(&lab, 0, MERGED);
    next.offer(1, 2_048);
    let hello = frame(1, 0, b"welcome");
    other.send(NOTHING, &hello);
    assert_eq!(next.receive(2_048).1, hello);
}

/// Flows are dealt to the queues that the driver has asked for, and keep theirs.
#[test]
fn flows_are_dealt_to_the_pairs_of_queues_that_the_driver_uses() {
    let lab = Lab::with(2, |port| EthernetSettings { queues: 2, ..port });
    let several = 1 << 17 | 1 << 22;
    let mut sender = Port::connect_pairs(&lab, 0, MERGED | OFFLOADS | several, 2);
    let mut receiver = Port::connect_pairs(&lab, 1, MERGED | OFFLOADS | several, 2);
    let flow = |port: u8, data: u8| {
        let (_, mut bytes) = segment(0, 1, 1);
        bytes[35] = port;
        bytes[54] = data;
        bytes
    };
    // Before the driver asks for both, all comes by the first.
    receiver.offer(16, 256);
    for port in 0..8 {
        sender.send(NOTHING, &flow(port, 0));
        assert_eq!(receiver.receive(256).1, flow(port, 0));
    }
    receiver.offer(8, 256);
    let asked = [0, 3, 0xffff].map(|pairs| receiver.use_pairs(pairs));
    assert_eq!(asked, [1; 3], "refused");
    assert_eq!(receiver.use_pairs(2), 0);
    let second = RECEIVE + 0x10_0000;
    let offer_second = |receiver: &mut Port| {
        receiver.more[0].push(&receiver.ram, &[(second, 256, true)]);
        receiver.more[0].kick.write(1).unwrap();
    };
    offer_second(&mut receiver);
    let mut of_flow = [None; 8];
    for data in 0..4 {
        for (port, queue) in (0..8).zip(&mut of_flow) {
            sender.send(NOTHING, &flow(port, data));
            let came = |ring: &Ring| ring.has_entry(&receiver.ram);
            until("it has come", || {
                came(&receiver.receive) || came(&receiver.more[0])
            });
            let is_second = came(&receiver.more[0]);
            assert_eq!(*queue.get_or_insert(is_second), is_second, "flow {port}");
            match is_second {
                true => {
                    receiver.more[0].take(&receiver.ram);
                    offer_second(&mut receiver);
                }
                false => {
                    receiver.receive.take(&receiver.ram);
                    receiver.offer(1, 256);
                }
            }
        }
    }
    let both = [true, false].map(|queue| of_flow.contains(&Some(queue)));
    assert_eq!(both, [true; 2], "{of_flow:?}");
    // The second transmit queue sends as the first does.
    sender.transmit = std::mem::replace(&mut sender.more[1], Ring::new(0x20000));
    sender.send(NOTHING, &frame(0, 1, b"by the second"));
    until("it has come", || receiver.receive.has_entry(&receiver.ram));
}

/// Offloads can be turned off, one by one: the driver is not offered them.
#[test]
fn offloads_have_switches() {
    let offered = |checksum_offload, segmentation_offload| {
        let lab = Lab::with(1, |port| EthernetSettings {
            checksum_offload,
            segmentation_offload,
            ..port
        });
        let stream = UnixStream::connect(lab.socket(0)).unwrap();
        let front_end = Frontend::from_stream(stream, 2);
        front_end.set_owner().unwrap();
        let features = front_end.get_features().unwrap();
        [0, 1, 7, 8, 11, 12].map(|bit| features >> bit & 1)
    };
    assert_eq!(offered(true, true), [1; 6]);
    assert_eq!(offered(true, false), [1, 1, 0, 0, 0, 0]);
    assert_eq!(offered(false, true), [0; 6]);
}

/// A program of the host, as `qnic forward` is.
fn join(lab: &Lab) -> (OwnedFd, MacAddress) {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let path = lab.directory.path().join("host");
    connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    let mut mac = [0; 6];
    assert_eq!(recv(&socket, &mut mac, RecvFlags::empty()).unwrap().1, 6);
    (socket, MacAddress(mac))
}

#[test]
fn programs_of_the_host_join_and_leave() {
    let lab = Lab::new(2);
    let mut guest = Port::connect(&lab, 0, MERGED | OFFLOADS);
    let (program, own) = join(&lab);
    assert_eq!(own.host_number(), Some(0));
    let between = |from: MacAddress, to: MacAddress, data: &[u8]| {
        [&to.0[..], &from.0, &[0x88, 0xb5], data].concat()
    };
    let say = |bytes: &[u8]| send(&program, bytes, SendFlags::empty()).unwrap();
    guest.offer(4, 2_048);
    // From the address of another, to another process's port, of no length, and too long.
    say(&between(mac(1), mac(0), b"spoofed"));
    say(&between(own, mac(9), b"unknown"));
    say(&[0]);
    say(&between(own, mac(0), &[0; 9_000]));
    say(&between(own, mac(0), b"hello"));
    assert_eq!(guest.receive(2_048).1, between(own, mac(0), b"hello"));
    // What the guest has left to its device is done.
    let (header, mut bytes) = segment(0, 1, 2_500);
    bytes[..6].copy_from_slice(&own.0);
    guest.send(header, &bytes);
    let mut received = vec![0; 4_096];
    for length in [1_054, 1_054, 554] {
        assert_eq!(
            recv(&program, &mut received[..], RecvFlags::empty())
                .unwrap()
                .1,
            length
        );
    }
    let (_second, other) = join(&lab);
    assert_eq!(other.host_number(), Some(1));
    drop(program);
    // Its address is free as soon as the process has seen that.
    until("the first has left", || {
        join(&lab).1.host_number() == Some(0)
    });
}

#[test]
fn a_device_ends_while_front_ends_are_connected() {
    let mut lab = Lab::new(2);
    let port = Port::connect(&lab, 0, MERGED);
    lab.device.take().unwrap().stop().unwrap();
    drop(port);
}
