//! Ethernet frames on the links of nodes (X17): where each arrives, and what becomes of the others.

use std::sync::Arc;

use qnic_abi::ethernet::{Ethernet, Segmentation, ETHERNET_HEADER, MAX_ETHERNET};
use qnic_abi::wire::Frame;
use qnic_config::MacAddress;
use qnic_nic::env::Channel;
use qnic_nic::testing::SimHost;
use zerocopy::FromZeros;

use super::engine_tests::engines;
use super::tests::{fabric, impaired, probed, Lengths, NOW};
use super::*;
use crate::ethernet::tests::{mac, plain};
use crate::ethernet::{EthernetFrame, Inbox, Lease, PortCounters, Switch};
use crate::link_set::LinkSet;
use crate::testing::change;

/// Gives each node of a fabric a port; the address of node *n* ends in *n* + 1.
fn with_ports(fabric: &mut Fabric<SimHost>, all: &[u16]) -> Vec<Arc<Inbox>> {
    let ports = all.iter().map(|node| (mac(*node as u8 + 1), NodeId(*node)));
    fabric.set_switch(Switch::new(ports));
    let inboxes = (0..fabric.slots.len()).map(|slot| {
        let inbox = Arc::new(Inbox::new().unwrap());
        fabric.add_port(slot, inbox.clone(), None);
        inbox
    });
    inboxes.collect()
}

fn send(fabric: &mut Fabric<SimHost>, slot: usize, frame: &EthernetFrame) {
    fabric.send_ethernet(slot, NOW, *frame.left(), frame.bytes().to_vec());
}

fn counters(fabric: &Fabric<SimHost>, slot: usize) -> PortCounters {
    fabric.port_counters(slot).unwrap()
}

/// A frame to all.
fn broadcast(from: u8) -> EthernetFrame {
    let mut bytes = plain(from, 0, b"all").bytes().to_vec();
    bytes[..6].fill(0xff);
    EthernetFrame::new(Ethernet::new_zeroed(), bytes).unwrap()
}

#[test]
fn frames_reach_the_port_that_has_their_address_whatever_nics_do() {
    // No NIC runs.
    let mut fabric = fabric(&[0, 1, 2], 0);
    let inboxes = with_ports(&mut fabric, &[0, 1, 2]);
    let frame = plain(1, 3, b"hello");
    send(&mut fabric, 0, &frame);
    assert_eq!(
        [0, 1, 2].map(|port| inboxes[port].take()),
        [None, None, Some(frame)]
    );
    let all = broadcast(2);
    send(&mut fabric, 1, &all);
    let received = [0, 1, 2].map(|port: usize| inboxes[port].take());
    assert_eq!(received, [Some(all.clone()), None, Some(all)]);
    assert_eq!(
        (counters(&fabric, 0).sent, counters(&fabric, 2).received),
        (1, 2)
    );
    assert_eq!(counters(&fabric, 2).received_bytes, 14 + 5 + 14 + 3);
}

#[test]
fn what_has_no_place_is_dropped_and_counted() {
    let mut fabric = fabric(&[0, 1], 2);
    let inboxes = with_ports(&mut fabric, &[0, 1]);
    send(&mut fabric, 0, &plain(2, 2, b"another port's address"));
    let mut bytes = plain(1, 2, b"a group's").bytes().to_vec();
    bytes[6] = 3;
    fabric.send_ethernet(0, NOW, Ethernet::new_zeroed(), bytes);
    send(&mut fabric, 0, &plain(1, 9, b"for no port"));
    send(&mut fabric, 0, &plain(1, 1, b"for itself"));
    fabric.send_ethernet(0, NOW, Ethernet::new_zeroed(), vec![0; 13]);
    assert_eq!(inboxes[1].take(), None);
    let dropped = counters(&fabric, 0);
    assert_eq!(
        (
            dropped.spoofed,
            dropped.unknown,
            dropped.malformed,
            dropped.sent
        ),
        (2, 2, 1, 0)
    );
    // An address that no port has may send: a bridge in the guest.
    send(&mut fabric, 0, &plain(77, 2, b""));
    assert!(inboxes[1].take().is_some());
}

#[test]
fn a_guest_that_takes_nothing_loses_its_own_frames_alone() {
    let mut fabric = fabric(&[0, 1, 2], 3);
    let inboxes = with_ports(&mut fabric, &[0, 1, 2]);
    let long = plain(1, 2, &vec![7; MAX_ETHERNET - ETHERNET_HEADER]);
    for _ in 0..100 {
        send(&mut fabric, 0, &long);
    }
    let slow = counters(&fabric, 1);
    assert_eq!(slow.received + slow.overflowed, 100);
    assert!(slow.overflowed > 30, "{slow:?}");
    let other = plain(1, 3, b"to a third");
    send(&mut fabric, 0, &other);
    assert_eq!(inboxes[2].take(), Some(other));
    while inboxes[1].take().is_some() {}
    send(&mut fabric, 0, &long);
    assert_eq!(inboxes[1].take(), Some(long));
}

#[test]
fn frames_take_the_links_of_their_nodes() {
    let mut fabric = impaired(&[0, 1, 2], "delay 1us");
    let inboxes = with_ports(&mut fabric, &[0, 1, 2]);
    let frame = plain(1, 2, b"slow");
    send(&mut fabric, 0, &frame);
    assert!(!fabric.receive(NOW.after(999)));
    assert_eq!(inboxes[1].take(), None);
    assert!(fabric.receive(NOW.after(1_000)));
    assert_eq!(inboxes[1].take(), Some(frame));
    // One that is cut off does not hide the other.
    let link = LinkSet::Between(NodeId(0), NodeId(1));
    let network = fabric.network_mut();
    network.set(link, None, change("partition")).unwrap();
    let all = broadcast(1);
    send(&mut fabric, 0, &all);
    fabric.receive(NOW.after(2_000));
    assert_eq!((inboxes[1].take(), inboxes[2].take()), (None, Some(all)));
}

#[test]
fn frames_reach_the_ports_of_another_engine() {
    let [mut first, mut second] = engines([&[0], &[1, 9]], None);
    with_ports(&mut first, &[0, 1, 9]);
    let inboxes = with_ports(&mut second, &[0, 1, 9]);
    let long = plain(1, 10, &vec![3; MAX_ETHERNET - ETHERNET_HEADER]);
    send(&mut first, 0, &long);
    assert!(second.receive(NOW));
    assert_eq!(inboxes[1].take(), Some(long), "its NIC does not run");
    assert!(!first.receive(NOW), "nothing comes back");
}

/// A TCP segment of `bytes`, which its guest has not divided.
fn segment(bytes: usize) -> EthernetFrame {
    let mut left = Ethernet::new_zeroed();
    left.needs_checksum = 1;
    left.checksum_start = 34.into();
    left.checksum_offset = 16.into();
    left.segmentation = Segmentation::Tcp4 as u8;
    left.segment_bytes = 1_000.into();
    let total = (40 + bytes) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([0; 12]);
    packet.extend([0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    packet.resize(40 + bytes, 7);
    let mut frame = plain(1, 2, &packet).bytes().to_vec();
    frame[12..14].copy_from_slice(&[8, 0]);
    EthernetFrame::new(left, frame).unwrap()
}

#[test]
fn a_long_segment_crosses_a_lossless_wire_whole_and_others_in_parts() {
    let mut lossless = fabric(&[0, 1], 2);
    let inboxes = with_ports(&mut lossless, &[0, 1]);
    let long = segment(60_000);
    send(&mut lossless, 0, &long);
    assert_eq!(
        (inboxes[1].take(), inboxes[1].take()),
        (Some(long.clone()), None)
    );
    let mut lossy = impaired(&[0, 1], "delay 1us");
    let inboxes = with_ports(&mut lossy, &[0, 1]);
    send(&mut lossy, 0, &long);
    lossy.receive(NOW.after(1_000));
    let parts: Vec<_> = std::iter::from_fn(|| inboxes[1].take()).collect();
    assert_eq!(parts.len(), 60);
    assert!(parts.iter().all(|part| part.bytes().len() == 54 + 1_000));
    assert_eq!(counters(&lossy, 0).sent, 1);
    // One frame that is longer than the link carries, and cannot be divided.
    send(&mut lossy, 0, &plain(1, 2, &[0; 5_000]));
    assert_eq!(counters(&lossy, 0).malformed, 1);
}

#[test]
fn another_process_gets_parts_and_sends_what_is_its_own() {
    let (mut fabric, probe) = probed(&[0], &[vec![NodeId(1)]]);
    let inboxes = with_ports(&mut fabric, &[0, 1]);
    send(&mut fabric, 0, &segment(60_000));
    let sent = std::mem::take(&mut probe.lock().unwrap().sent);
    assert_eq!(sent.len(), 60);
    for (_, channel, bytes) in &sent {
        assert_eq!(*channel, Channel::Data);
        let (frame, bytes) = Frame::from_wire(bytes).unwrap();
        let part = EthernetFrame::from_wire(&frame, bytes.to_vec()).unwrap();
        assert_eq!(part.bytes().len(), 54 + 1_000);
    }
    let answer = plain(2, 1, b"back");
    let image = |from, to| {
        let frame = answer.wire_frame(NodeId(from), NodeId(to));
        [frame.header(), answer.bytes()].concat()
    };
    probe.lock().unwrap().coming = vec![(0, image(1, 0)), (0, image(0, 0)), (0, image(1, 7))];
    assert!(fabric.receive(NOW));
    assert_eq!((inboxes[0].take(), inboxes[0].take()), (Some(answer), None));
    assert_eq!(fabric.misdirected(), 2);
}

#[test]
fn captures_have_ethernet_frames() {
    let mut fabric = fabric(&[0, 1], 2);
    let _inboxes = with_ports(&mut fabric, &[0, 1]);
    let tap = Lengths::default();
    fabric.tap(LinkSet::All, Box::new(tap.clone())).unwrap();
    let frame = plain(1, 2, b"seen");
    send(&mut fabric, 0, &frame);
    let length = 64 + 16 + frame.bytes().len();
    assert_eq!(*tap.0.lock().unwrap(), [(length, length)]);
}

/// Programs of the host reach the ports of this process, cut off or not, and are reached by them.
#[test]
fn the_host_has_addresses_of_its_own() {
    let mut fabric = fabric(&[0, 1, 2], 0);
    let inboxes = with_ports(&mut fabric, &[0, 1, 2, 3]);
    let host = fabric.ethernet.hosts().join().unwrap().unwrap();
    let between = |from: MacAddress, to: MacAddress| {
        let bytes = [&to.0[..], &from.0, &[0x88, 0xb5], b"data"].concat();
        EthernetFrame::new(Ethernet::new_zeroed(), bytes).unwrap()
    };
    let there = between(mac(2), host.mac());
    send(&mut fabric, 1, &there);
    assert_eq!(host.inbox().take(), Some(there));
    send(&mut fabric, 1, &between(mac(2), MacAddress::of_host(9)));
    assert_eq!(counters(&fabric, 1).unknown, 1, "no such program");
    // No guest has the host's address.
    send(&mut fabric, 1, &between(host.mac(), mac(1)));
    assert_eq!(counters(&fabric, 1).spoofed, 1);
    let all = broadcast(1);
    send(&mut fabric, 0, &all);
    assert_eq!(host.inbox().take(), Some(all));
    assert_eq!(
        [1, 2].map(|port: usize| inboxes[port].take().is_some()),
        [true; 2]
    );
    let back = between(host.mac(), mac(3));
    fabric.receive_from_host(&back);
    assert_eq!(
        [0, 1, 2].map(|port: usize| inboxes[port].take()),
        [None, None, Some(back)]
    );
    fabric.receive_from_host(&between(host.mac(), MacAddress([0xff; 6])));
    assert!(inboxes.iter().all(|inbox| inbox.take().is_some()));
    // Node 3 is in another process.
    fabric.receive_from_host(&between(host.mac(), mac(4)));
    assert!(inboxes.iter().all(|inbox| inbox.take().is_none()));
}

/// A guest that asks for its address by DHCP gets it from its port, and no other guest sees that.
#[test]
fn a_request_for_an_address_goes_nowhere_else() {
    let mut fabric = fabric(&[0, 1], 0);
    let inboxes = with_ports(&mut fabric, &[0, 1]);
    let lease = Lease {
        ip: "10.71.0.1/16".parse().unwrap(),
        mtu: 1500,
        name: "n0".to_owned(),
    };
    fabric.add_port(0, inboxes[0].clone(), Some(lease));
    let request = crate::ethernet::dhcp_request(mac(1));
    fabric.send_ethernet(0, NOW, Ethernet::new_zeroed(), request.clone());
    let answer = inboxes[0].take().unwrap();
    assert_eq!(answer.destination(), mac(1));
    assert_eq!((inboxes[1].take(), counters(&fabric, 0).sent), (None, 1));
    // Port 1 has none to give: its request is a broadcast like any other.
    let mut other = request;
    other[6..12].copy_from_slice(&mac(2).0);
    fabric.send_ethernet(1, NOW, Ethernet::new_zeroed(), other);
    assert_eq!(
        [0, 1].map(|port: usize| inboxes[port].take().is_some()),
        [true, false]
    );
}
