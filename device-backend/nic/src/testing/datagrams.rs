//! Datagrams of the driver of a simulated node.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use qnic_abi::client::{withdraw, withdraw_all, Buffer, Packet, Record};
use qnic_abi::control::PROCESS_DRIVER;
use qnic_abi::datagram::{PostFlags, DRIVER_PORT, RECORD_BYTES};
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::{Port, Status, VniId, PAGE_SIZE};

use super::{Net, Party};
use crate::env::HostMemory;

/// A packet that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    /// Handle of its buffer.
    pub handle: u64,
    /// Node and port that have sent it.
    pub from: (u16, u16),
    /// What its record says.
    pub record: Record,
    /// Its data.
    pub data: Vec<u8>,
}

/// The end of a command of datagrams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatagramEnd {
    /// A packet was sent, or why not.
    Sent(u64, Status),
    /// A buffer has a packet.
    Received(Got),
    /// A buffer comes back without one.
    Returned(u64, Status),
}

/// The driver of a node as a process of its NIC. What it posts and sends stands in pages of its
/// own, which it has again at the end of each command.
#[derive(Debug)]
pub struct Datagrams {
    /// The process.
    pub party: Party,
    last: Cell<u64>,
    /// Buffers that are posted, by handle.
    posted: RefCell<BTreeMap<u64, Buffer>>,
}

impl Datagrams {
    /// Registers the driver of a node on a VNI.
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn register(net: &Net, node: usize, vni: u16) -> Result<Self, Status> {
        let port = Port(DRIVER_PORT);
        let party = Party::register(net, node, VniId(vni), port, PROCESS_DRIVER)?;
        Ok(Datagrams {
            party,
            last: Cell::new(0),
            posted: RefCell::default(),
        })
    }

    /// The same on the last VNI.
    ///
    /// # Panics
    /// If the NIC refuses it.
    pub fn of(net: &Net, node: usize) -> Self {
        Datagrams::register(net, node, 7).expect("a driver")
    }

    fn handle(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    /// A page of the node.
    pub fn page(&self) -> u64 {
        self.party.on_node(|node| node.driver.allocate(&node.host))
    }

    /// So many pages of the node, one behind the other; nothing was released before.
    ///
    /// # Panics
    /// If they are not.
    pub fn block(&self, pages: u64) -> u64 {
        let first = self.page();
        for page in 1..pages {
            assert_eq!(
                self.page(),
                first + page * PAGE_SIZE as u64,
                "contiguous pages"
            );
        }
        first
    }

    fn release(&self, pages: &[u64]) {
        self.party.on_node(|node| node.driver.release(pages));
    }

    /// A buffer of a whole page for a port, not posted.
    pub fn buffer(&self, port: u16) -> Buffer {
        Buffer {
            handle: self.handle(),
            address: self.page(),
            record: self.page(),
            length: PAGE_SIZE as u16,
            port,
            flags: 0,
        }
    }

    /// Posts a buffer; the queue has room.
    pub fn post_buffer(&self, buffer: Buffer) -> u64 {
        self.party.post(&buffer.descriptor());
        self.posted.borrow_mut().insert(buffer.handle, buffer);
        buffer.handle
    }

    /// Posts so many buffers for a port, and runs all nodes. Returns their handles.
    pub fn post(&self, port: u16, count: usize) -> Vec<u64> {
        let post = |_| {
            let handle = self.post_buffer(self.buffer(port));
            self.party.net.run();
            handle
        };
        (0..count).map(post).collect()
    }

    /// Posts a steered buffer for a port, and runs all nodes.
    pub fn post_steered(&self, port: u16) -> u64 {
        let buffer = Buffer {
            flags: PostFlags::STEERED.bits(),
            ..self.buffer(port)
        };
        let handle = self.post_buffer(buffer);
        self.party.net.run();
        handle
    }

    /// A packet from port 1 to a port of a node, without data and header.
    pub fn packet(&self, node: u16, port: u16) -> Packet {
        Packet {
            handle: self.handle(),
            node,
            port,
            source_port: 1,
            ..Packet::default()
        }
    }

    /// Stores bytes at a guest-physical address.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.party.on_node(|node| {
            let written = node.host.memory.write(address, bytes);
            written.expect("memory of the node");
        });
    }

    /// Bytes at a guest-physical address.
    pub fn read(&self, address: u64, bytes: &mut [u8]) {
        self.party.on_node(|node| {
            let read = node.host.memory.read(address, bytes);
            read.expect("memory of the node");
        });
    }

    /// Issues a packet; the queue has room.
    pub fn issue(&self, packet: &Packet) {
        self.party.post_with(&packet.descriptor(), &packet.header);
    }

    /// Sends bytes to a port of a node, and runs all nodes. Returns the handle.
    pub fn send(&self, node: u16, port: u16, data: &[u8]) -> u64 {
        self.send_to(node, port, 0, data)
    }

    /// Sends bytes to the steered buffer of that handle, and runs all nodes.
    pub fn send_to(&self, node: u16, port: u16, target: u64, data: &[u8]) -> u64 {
        let mut packet = Packet {
            target,
            ..self.packet(node, port)
        };
        if !data.is_empty() {
            packet.address = self.page();
            packet.length = data.len() as u16;
            self.write(packet.address, data);
        }
        self.issue(&packet);
        self.party.net.run();
        if packet.address != 0 {
            self.release(&[packet.address]);
        }
        packet.handle
    }

    /// Takes a buffer back, and runs all nodes.
    pub fn withdraw(&self, port: u16, handle: u64) {
        self.party.post(&withdraw(port, handle));
        self.party.net.run();
    }

    /// Takes all buffers of a port back, and runs all nodes.
    pub fn withdraw_all(&self, port: u16) {
        self.party.post(&withdraw_all(port));
        self.party.net.run();
    }

    fn end(&self, entry: &CompletionEntry) -> DatagramEnd {
        let handle = entry.handle.get();
        let status = Status::try_from(entry.status.get()).expect("a status");
        if entry.kind == CompletionKind::DatagramSend as u8 {
            return DatagramEnd::Sent(handle, status);
        }
        assert_eq!(entry.kind, CompletionKind::DatagramReceive as u8);
        let buffer = self.posted.borrow_mut().remove(&handle);
        let buffer = buffer.expect("a buffer that was posted, once");
        let mut data = vec![0; entry.length.get() as usize];
        let mut record = [0; RECORD_BYTES];
        if status == Status::Ok {
            self.read(buffer.address, &mut data);
            self.read(buffer.record, &mut record);
        }
        self.release(&[buffer.address, buffer.record]);
        match status {
            Status::Ok => DatagramEnd::Received(Got {
                handle,
                from: (entry.node.get(), entry.port.get()),
                record: Record::read(&record).expect("a header with a length"),
                data,
            }),
            status => DatagramEnd::Returned(handle, status),
        }
    }

    /// The ends that have come, in their order.
    pub fn ends(&self) -> Vec<DatagramEnd> {
        let entries = self.party.completions();
        entries.iter().map(|entry| self.end(entry)).collect()
    }

    /// Packets that have arrived; drops other ends.
    pub fn got(&self) -> Vec<Got> {
        let received = |end| match end {
            DatagramEnd::Received(got) => Some(got),
            _ => None,
        };
        self.ends().into_iter().filter_map(received).collect()
    }
}
