//! The Ethernet ports of a device process, and guests with the stock driver (X17).

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use super::ring::Ring;
use super::{ram_file, region, QUEUE_SIZE, RAM_BYTES};
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

pub(crate) const MERGED: u64 = 1 << 15;
pub(crate) const OFFLOADS: u64 = 1 << 1 | 1 << 7 | 1 << 8;
pub(crate) const VERSION_1: u64 = 1 << 32;

/// Where buffers are.
pub(crate) const SEND: u64 = 0x10_0000;
pub(crate) const RECEIVE: u64 = 0x20_0000;

pub(crate) struct Lab {
    pub(crate) device: Option<Device>,
    pub(crate) directory: TempDir,
}

impl Lab {
    pub(crate) fn new(ports: u16) -> Self {
        Lab::with(ports, |port| port)
    }

    /// Ports that are as `said` makes them.
    pub(crate) fn with(ports: u16, said: impl Fn(EthernetSettings) -> EthernetSettings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: String| directory.path().join(name);
        let nic = |node: u16| {
            let ram = ByteSize(RAM_BYTES);
            let socket = path(format!("{node}.sock"));
            NicSettings::new(format!("n{node}"), NodeId(node), socket, ram)
        };
        let mut config = Config::new((0..ports).map(nic).collect());
        config.ethernet = (0..ports)
            .map(|node| {
                said(EthernetSettings {
                    socket: Some(path(format!("{node}.eth"))),
                    ..EthernetSettings::new(NodeId(node), mac(node))
                })
            })
            .collect();
        config.ethernet_host = Some(path("host".to_owned()));
        Lab {
            device: Some(Device::start(&config).unwrap()),
            directory,
        }
    }

    pub(crate) fn socket(&self, node: u16) -> PathBuf {
        self.directory.path().join(format!("{node}.eth"))
    }

    pub(crate) fn counters(&self, node: usize) -> PortCounters {
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

pub(crate) fn mac(node: u16) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, node as u8 + 1])
}

/// A guest with the stock driver, as far as its port can see.
pub(crate) struct Port {
    pub(crate) front_end: Frontend,
    pub(crate) ram: GuestMemoryMmap,
    pub(crate) receive: Ring,
    pub(crate) transmit: Ring,
    /// The second pair and the control queue, if it has these.
    pub(crate) more: Vec<Ring>,
}

impl Port {
    pub(crate) fn connect(lab: &Lab, node: u16, features: u64) -> Self {
        Port::connect_pairs(lab, node, features, 1)
    }

    /// One with this many pairs of queues, one or two.
    pub(crate) fn connect_pairs(lab: &Lab, node: u16, features: u64, pairs: u8) -> Self {
        let stream = UnixStream::connect(lab.socket(node)).unwrap();
        let mut front_end = Frontend::from_stream(stream, 5);
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
        assert_eq!(space[8..12], [pairs, 0, 0xdc, 5], "pairs of queues, MTU");
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
            more: match pairs {
                1 => Vec::new(),
                _ => [0x7000, 0xa000, 0xd000].map(Ring::new).into(),
            },
        };
        port.start(0);
        port
    }

    pub(crate) fn start(&mut self, receive_base: u16) {
        let rings = [&self.receive, &self.transmit]
            .into_iter()
            .chain(&self.more);
        for (index, ring) in rings.enumerate() {
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
    pub(crate) fn send(&mut self, header: [u8; 12], frame: &[u8]) {
        let bytes = [&header, frame].concat();
        self.ram.write_slice(&bytes, GuestAddress(SEND)).unwrap();
        let buffers = [(SEND, 12, false), (SEND + 12, frame.len() as u32, false)];
        self.transmit.push(&self.ram, &buffers);
        self.transmit.kick.write(1).unwrap();
        self.transmit.take(&self.ram);
    }

    /// Asks on the control queue for so many pairs; what the device says.
    pub(crate) fn use_pairs(&mut self, pairs: u16) -> u8 {
        let [low, high] = pairs.to_le_bytes();
        let command = [4, 0, low, high, 0xff];
        self.ram.write_slice(&command, GuestAddress(SEND)).unwrap();
        let buffers = [(SEND, 2, false), (SEND + 2, 2, false), (SEND + 4, 1, true)];
        let control = &mut self.more[2];
        control.push(&self.ram, &buffers);
        control.kick.write(1).unwrap();
        control.take(&self.ram);
        self.ram.read_obj(GuestAddress(SEND + 4)).unwrap()
    }

    /// Gives the device `count` buffers of `bytes`.
    pub(crate) fn offer(&mut self, count: u64, bytes: u32) {
        for index in 0..count {
            let buffer = (RECEIVE + index * u64::from(bytes), bytes, true);
            self.receive.push(&self.ram, &[buffer]);
        }
        self.receive.kick.write(1).unwrap();
    }

    /// Waits for a frame in buffers of `bytes`: its header and its bytes.
    pub(crate) fn receive(&mut self, bytes: u32) -> ([u8; 12], Vec<u8>) {
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

pub(crate) const NOTHING: [u8; 12] = [0; 12];

pub(crate) fn frame(from: u16, to: u16, data: &[u8]) -> Vec<u8> {
    [&mac(to).0[..], &mac(from).0, &[0x88, 0xb5], data].concat()
}

/// A TCP segment over IPv4 that its guest has not divided.
pub(crate) fn segment(from: u16, to: u16, data: usize) -> ([u8; 12], Vec<u8>) {
    let mut bytes = frame(from, to, &[0x45, 0]);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes.extend((40u16.wrapping_add(data as u16)).to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0; 12]);
    bytes.extend([0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    bytes.extend((0..data).map(|index| index as u8));
    // Checksum from 34, at 50; TCP over IPv4, 1,000 bytes each.
    ([1, 1, 0, 0, 0xe8, 3, 34, 0, 16, 0, 0, 0], bytes)
}
