//! Ethernet ports of the device process against front ends (X17).

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use super::guest::ring::Ring;
use super::guest::{ram_file, region, until, QUEUE_SIZE, RAM_BYTES};
use qnic_abi::NodeId;
use qnic_device::{ByteSize, Config, Device, EthernetSettings, MacAddress, NicSettings};
use qnic_links::ethernet::PortCounters;
use rustix::fs::SealFlags;
use tempfile::TempDir;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserVirtioFeatures};
use vhost::VhostBackend;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

const MERGED: u64 = 1 << 15;
const OFFLOADS: u64 = 1 << 1 | 1 << 7 | 1 << 8;
const VERSION_1: u64 = 1 << 32;

/// Where buffers are.
const SEND: u64 = 0x10_0000;
const RECEIVE: u64 = 0x20_0000;

struct Lab {
    device: Option<Device>,
    directory: TempDir,
}

impl Lab {
    fn new(ports: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: String| directory.path().join(name);
        let nic = |node: u16| {
            let ram = ByteSize(RAM_BYTES);
            let socket = path(format!("{node}.sock"));
            NicSettings::new(format!("n{node}"), NodeId(node), socket, ram)
        };
        let mut config = Config::new((0..ports).map(nic).collect());
        config.ethernet = (0..ports)
            .map(|node| EthernetSettings {
                socket: Some(path(format!("{node}.eth"))),
                ..EthernetSettings::new(NodeId(node), mac(node))
            })
            .collect();
        Lab {
            device: Some(Device::start(&config).unwrap()),
            directory,
        }
    }

    fn socket(&self, node: u16) -> PathBuf {
        self.directory.path().join(format!("{node}.eth"))
    }

    fn counters(&self, node: usize) -> PortCounters {
        let stats = self.device.as_ref().unwrap().stats().unwrap();
        stats.report.nics[node].ethernet.unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            device.stop().unwrap();
        }
    }
}

fn mac(node: u16) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, node as u8 + 1])
}

/// A guest with the stock driver, as far as its port can see.
struct Port {
    front_end: Frontend,
    ram: GuestMemoryMmap,
    receive: Ring,
    transmit: Ring,
}

impl Port {
    fn connect(lab: &Lab, node: u16, features: u64) -> Self {
        let stream = UnixStream::connect(lab.socket(node)).unwrap();
        let mut front_end = Frontend::from_stream(stream, 2);
        front_end.set_owner().unwrap();
        let offered = front_end.get_features().unwrap();
        let wanted = features | VERSION_1 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        assert_eq!(offered & wanted, wanted);
        let protocol = front_end.get_protocol_features().unwrap();
        let own = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG;
        assert!(protocol.contains(own));
        front_end.set_protocol_features(own).unwrap();
        // Each request is done when its call returns: what comes before a port has started is lost.
        front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        front_end.set_features(wanted).unwrap();
        let writable = VhostUserConfigFlags::WRITABLE;
        let space = front_end.get_config(0, 64, writable, &[0; 64]).unwrap().1;
        assert_eq!(
            (&space[..6], space[6]),
            (&mac(node).0[..], 1),
            "address, link"
        );
        assert_eq!(space[8..12], [1, 0, 0xdc, 5], "pairs of queues, MTU");
        let file = ram_file(RAM_BYTES, SealFlags::SHRINK);
        let table = [region(&file, 0, RAM_BYTES)];
        front_end.set_mem_table(&table).unwrap();
        let backing = Some(FileOffset::new(file, 0));
        let range = (GuestAddress(0), RAM_BYTES as usize, backing);
        let mut port = Port {
            front_end,
            ram: GuestMemoryMmap::from_ranges_with_files([range]).unwrap(),
            receive: Ring::new(0x1000),
            transmit: Ring::new(0x4000),
        };
        port.start(0);
        port
    }

    fn start(&mut self, receive_base: u16) {
        for (index, ring) in [&self.receive, &self.transmit].into_iter().enumerate() {
            let front_end = &mut self.front_end;
            front_end.set_vring_num(index, QUEUE_SIZE).unwrap();
            let base = if index == 0 { receive_base } else { 0 };
            front_end.set_vring_base(index, base).unwrap();
            front_end.set_vring_addr(index, &ring.places()).unwrap();
            front_end.set_vring_kick(index, &ring.kick).unwrap();
            front_end.set_vring_call(index, &ring.call).unwrap();
            front_end.set_vring_enable(index, true).unwrap();
        }
    }

    /// Sends a frame behind a header of virtio-net.
    fn send(&mut self, header: [u8; 12], frame: &[u8]) {
        let bytes = [&header, frame].concat();
        self.ram.write_slice(&bytes, GuestAddress(SEND)).unwrap();
        let buffers = [(SEND, 12, false), (SEND + 12, frame.len() as u32, false)];
        self.transmit.push(&self.ram, &buffers);
        self.transmit.kick.write(1).unwrap();
        self.transmit.take(&self.ram);
    }

    /// Gives the device `count` buffers of `bytes`.
    fn offer(&mut self, count: u64, bytes: u32) {
        for index in 0..count {
            let buffer = (RECEIVE + index * u64::from(bytes), bytes, true);
            self.receive.push(&self.ram, &[buffer]);
        }
        self.receive.kick.write(1).unwrap();
    }

    /// Waits for a frame in buffers of `bytes`: its header and its bytes.
    fn receive(&mut self, bytes: u32) -> ([u8; 12], Vec<u8>) {
        let mut all = Vec::new();
        let mut left = 1;
        while left > 0 {
            let (head, length) = self.receive.take(&self.ram);
            let mut part = vec![0; length as usize];
            let place = RECEIVE + head * u64::from(bytes);
            self.ram.read_slice(&mut part, GuestAddress(place)).unwrap();
            if all.is_empty() {
                left = u16::from_le_bytes([part[10], part[11]]);
            }
            left -= 1;
            all.extend(part);
        }
        let (header, frame) = all.split_at(12);
        (header.try_into().unwrap(), frame.to_vec())
    }
}

const NOTHING: [u8; 12] = [0; 12];

fn frame(from: u16, to: u16, data: &[u8]) -> Vec<u8> {
    [&mac(to).0[..], &mac(from).0, &[0x88, 0xb5], data].concat()
}

/// A TCP segment over IPv4 that its guest has not divided.
fn segment(from: u16, to: u16, data: usize) -> ([u8; 12], Vec<u8>) {
    let mut bytes = frame(from, to, &[0x45, 0]);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes.extend((40 + data as u16).to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0; 12]);
    bytes.extend([0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    bytes.extend((0..data).map(|index| index as u8));
    // Checksum from 34, at 50; TCP over IPv4, 1,000 bytes each.
    ([1, 1, 0, 0, 0xe8, 3, 34, 0, 16, 0, 0, 0], bytes)
}

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
    let (header, bytes) = segment(0, 1, 20_000);
    sender.send(header, &bytes);
    let (received, copy) = whole.receive(4_096);
    assert_eq!(copy, bytes);
    // Five chains of 4,096 bytes: 12 + 54 + 20,000 bytes.
    assert_eq!((&received[..10], received[10]), (&header[..10], 5));
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

#[test]
fn frames_wait_for_the_buffers_of_their_guest() {
    let lab = Lab::new(2);
    let mut sender = Port::connect(&lab, 0, MERGED);
    let mut receiver = Port::connect(&lab, 1, MERGED | OFFLOADS);
    let (header, bytes) = segment(0, 1, 20_000);
    receiver.offer(2, 4_096);
    sender.send(header, &bytes);
    sender.send(NOTHING, &frame(0, 1, b"behind it"));
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
    assert_eq!(receiver.receive(4_096).1, bytes);
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

#[test]
fn a_device_ends_while_front_ends_are_connected() {
    let mut lab = Lab::new(2);
    let port = Port::connect(&lab, 0, MERGED);
    lab.device.take().unwrap().stop().unwrap();
    drop(port);
}
