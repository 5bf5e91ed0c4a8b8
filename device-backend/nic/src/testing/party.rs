//! The library's side of one process on a simulated node.

use std::cell::RefCell;

use qnic_abi::atomic::Function;
use qnic_abi::client::{Command, CommandQueue, Entry, HostArea, Memory, Remote};
use qnic_abi::command::Descriptor;
use qnic_abi::control::{Export, Import, NewProcess, Opcode as Request, Unexport};
use qnic_abi::export::ExportOptions;
use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::rdma::Opcode;
use qnic_abi::shared::Ordering;
use qnic_abi::window::{COMPLETION_HEAD, INCARNATION};
use qnic_abi::{
    Access, Key, NodeId, Port, Secret, SegmentId, SharedMemory, Status, VniId, PAGE_SIZE,
};
use zerocopy::{Immutable, IntoBytes};

use super::driver::{pages, Writable};
use super::net::{page, pattern, SEGMENT};
use super::{Net, SimNode, Transfer};

/// A segment as its importer knows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimSegment {
    /// Node that exports.
    pub node: usize,
    /// Port of the process that exports.
    pub port: Port,
    /// Its index there.
    pub id: SegmentId,
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Its key.
    pub key: u64,
}

impl SimSegment {
    /// The address at an offset, for its own process.
    pub fn at(&self, offset: u64) -> Memory {
        Memory {
            address: self.address + offset,
            key: Key(self.key),
            segment: self.id,
        }
    }

    /// The address at an offset, for another process.
    pub fn to(&self, offset: u64) -> Remote {
        Remote {
            node: NodeId(self.node as u16),
            port: self.port,
            memory: self.at(offset),
        }
    }
}

/// A process and its segment. Offsets are in the segment.
#[derive(Debug)]
pub struct Party {
    /// All nodes.
    pub net: Net,
    /// Its node.
    pub node: usize,
    /// Its VNI.
    pub vni: VniId,
    /// Its port.
    pub port: Port,
    /// Its segment; empty as long as it has none.
    pub segment: SimSegment,
    queue: RefCell<CommandQueue>,
    host_area: [u64; HOST_PAGES],
}

impl From<&Party> for SimSegment {
    fn from(party: &Party) -> Self {
        party.segment
    }
}

impl Party {
    /// Registers a process with flags of [`NewProcess`].
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn register(
        net: &Net,
        node: usize,
        vni: VniId,
        port: Port,
        flags: u16,
    ) -> Result<Self, Status> {
        let cluster = &mut *net.cluster();
        let this = &mut cluster.nodes[node];
        let host_area = std::array::from_fn(|_| this.driver.allocate(&this.host));
        let window = this.nic.geometry().window_offset(vni);
        let mut queue = CommandQueue::new(&this.host.sram, window);
        queue.clear(&this.host.sram);
        for word in [COMPLETION_HEAD, INCARNATION] {
            let word = window + word;
            this.host.sram.store_u64(word, 0, Ordering::Relaxed);
        }
        let body = NewProcess {
            port: port.0.into(),
            flags: flags.into(),
            pid: 1.into(),
            host_area: host_area.map(Into::into),
        };
        match cluster.control(node, Request::NewProcess, vni, &body) {
            Status::Ok => Ok(Party {
                net: net.clone(),
                node,
                vni,
                port,
                segment: SimSegment::default(),
                queue: RefCell::new(queue),
                host_area,
            }),
            status => {
                cluster.nodes[node].driver.release(&host_area);
                Err(status)
            }
        }
    }

    pub(super) fn on_node<T>(&self, act: impl FnOnce(&mut SimNode) -> T) -> T {
        act(&mut self.net.cluster().nodes[self.node])
    }

    fn control(&self, opcode: Request, body: &(impl IntoBytes + Immutable)) -> Status {
        let mut cluster = self.net.cluster();
        cluster.control(self.node, opcode, self.vni, body)
    }

    /// Ends the process.
    pub fn end(&self) {
        if self.control(Request::DeleteProcess, &[0u8; 0]) == Status::Ok {
            self.on_node(|node| {
                node.driver.forget(&node.host, self.vni);
                node.driver.release(&self.host_area);
            });
        }
    }

    /// Exports a range.
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn export(
        &self,
        id: u16,
        name: u64,
        range: (u64, u64),
        access: Access,
    ) -> Result<SimSegment, Status> {
        self.export_to(id, name, range, access, ExportOptions::open())
    }

    /// Exports a range with options.
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn export_to(
        &self,
        id: u16,
        name: u64,
        range: (u64, u64),
        access: Access,
        options: ExportOptions,
    ) -> Result<SimSegment, Status> {
        let page_key = 0xaa00 + u64::from(id);
        self.on_node(|node| node.driver.cover(self.vni, range.0, range.1, page_key));
        self.request_export((0, page_key), (id, name), range, access, options)
    }

    /// Exports a range with flags of [`Export`] and a key of its pages.
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn export_with(
        &self,
        pages: (u16, u64),
        id: u16,
        name: u64,
        range: (u64, u64),
        access: Access,
    ) -> Result<SimSegment, Status> {
        self.request_export(pages, (id, name), range, access, ExportOptions::open())
    }

    fn request_export(
        &self,
        (flags, page_key): (u16, u64),
        (id, name): (u16, u64),
        (address, length): (u64, u64),
        access: Access,
        options: ExportOptions,
    ) -> Result<SimSegment, Status> {
        let key = name ^ 0x5eed_0000 ^ u64::from(self.vni.0) << 32;
        let body = Export {
            segment: id.into(),
            flags: flags.into(),
            access: access.bits().into(),
            name: name.into(),
            address: address.into(),
            length: length.into(),
            key: key.into(),
            page_key: page_key.into(),
            options,
        };
        match self.control(Request::Export, &body) {
            Status::Ok => Ok(SimSegment {
                node: self.node,
                port: self.port,
                id: SegmentId(id),
                address,
                length,
                key,
            }),
            status => Err(status),
        }
    }

    /// Revokes a segment.
    pub fn unexport(&self, segment: impl Into<SimSegment>) -> Status {
        let body = Unexport {
            segment: segment.into().id.0.into(),
            reserved: [0.into(); 3],
        };
        self.control(Request::Unexport, &body)
    }

    /// Starts an import; returns its token.
    ///
    /// # Errors
    /// What the NIC refuses it with at once.
    pub fn import(&self, node: u16, port: Port, name: u64, wait_ms: u32) -> Result<u64, Status> {
        self.import_with(Secret::default(), node, port, name, wait_ms)
    }

    /// Starts an import that presents a secret; returns its token.
    ///
    /// # Errors
    /// What the NIC refuses it with at once.
    pub fn import_with(
        &self,
        secret: Secret,
        node: u16,
        port: Port,
        name: u64,
        wait_ms: u32,
    ) -> Result<u64, Status> {
        let body = Import {
            node: node.into(),
            port: port.0.into(),
            wait_ms: wait_ms.into(),
            name: name.into(),
            secret,
        };
        let mut cluster = self.net.cluster();
        match cluster.request(self.node, Request::Import, self.vni, &body) {
            (token, None) => Ok(token),
            (_, Some(reply)) => Err(Status::try_from(u32::from(reply[0])).unwrap_or(Status::Ok)),
        }
    }

    /// Asks the NIC to reset the command queue.
    pub fn reset_queue(&self) -> Status {
        self.control(Request::ResetQueue, &[0u8; 0])
    }

    /// Frees all entries of the command queue, as a driver does after a reset.
    pub fn clear_queue(&self) {
        self.on_node(|node| self.queue.borrow_mut().clear(&node.host.sram));
    }

    /// Issues any command; rings if the NIC is not awake. Returns its number, or `None`
    /// if the queue is full.
    pub fn issue(&self, command: &Command, payload: &[u8]) -> Option<u64> {
        let mut cluster = self.net.cluster();
        let host = &cluster.nodes[self.node].host;
        let mut queue = self.queue.borrow_mut();
        let word = |offset| host.memory.word(self.address_of(offset));
        if queue.is_full(HostArea(word).head()) {
            return None;
        }
        let (number, ring) = queue.post(&host.sram, command, payload);
        if ring {
            cluster.ring(self.node, self.vni);
        }
        Some(number)
    }

    /// Issues a command of any protocol; the queue has room.
    pub fn post(&self, descriptor: &Descriptor) {
        self.post_with(descriptor, &[]);
    }

    /// Issues a command of any protocol with this payload; the queue has room.
    pub fn post_with(&self, descriptor: &Descriptor, payload: &[u8]) {
        if self.store_with(descriptor, payload) {
            self.net.cluster().ring(self.node, self.vni);
        }
    }

    /// The same without the doorbell. Returns true if the NIC does not look at the queue.
    pub(super) fn store_with(&self, descriptor: &Descriptor, payload: &[u8]) -> bool {
        let entry = Entry::new(descriptor, payload);
        let mut queue = self.queue.borrow_mut();
        let (_, ring) = self.on_node(|node| queue.post_words(&node.host.sram, entry.words()));
        ring
    }

    /// Asks to be woken at the next change of the host area.
    pub fn request_wake(&self) {
        self.on_node(|node| self.queue.borrow_mut().request_wake(&node.host.sram));
    }

    /// Stores its incarnation.
    pub fn set_incarnation(&self, incarnation: u32) {
        let word = self.window() + INCARNATION;
        let store = |node: &mut SimNode| {
            let sram = &node.host.sram;
            sram.store_u64(word, incarnation.into(), Ordering::Relaxed);
        };
        self.on_node(store);
    }

    /// Offset of its window.
    pub fn window(&self) -> usize {
        self.queue.borrow().window()
    }

    /// Commands issued.
    pub fn issued(&self) -> u64 {
        self.queue.borrow().tail()
    }

    fn area(&self) -> HostArea<impl Fn(usize) -> u64 + '_> {
        HostArea(|offset| self.word(offset))
    }

    /// A word of the host area.
    pub fn word(&self, offset: usize) -> u64 {
        self.on_node(|node| node.host.memory.word(self.address_of(offset)))
    }

    /// Guest-physical address of a word of the host area.
    pub(super) fn address_of(&self, offset: usize) -> u64 {
        self.host_area[offset / PAGE_SIZE] + (offset % PAGE_SIZE) as u64
    }

    /// Writes and reads that are complete.
    pub fn done(&self) -> (u64, u64) {
        self.area().done()
    }

    /// The last error records, in the order in which they came: command and status.
    pub fn errors(&self) -> Vec<(u64, Status)> {
        self.area().errors()
    }

    /// The last error records, by command.
    pub fn sorted_errors(&self) -> Vec<(u64, Status)> {
        let mut errors = self.errors();
        errors.sort_by_key(|error| error.0);
        errors
    }

    /// Signals of a counted notification.
    pub fn signals(&self, notification: u32) -> u64 {
        self.area().signals(notification)
    }

    /// What an atomic command brought: value and detail.
    pub fn result(&self, record: u16) -> (u64, u64) {
        self.area().result(record)
    }

    /// Bytes of the segment.
    pub fn bytes(&self, offset: u64, length: u64) -> Vec<u8> {
        let address = self.segment.address + offset;
        let mut bytes = vec![0; length as usize];
        self.on_node(|node| {
            let driver = &node.driver;
            driver.read(&node.host, self.vni, address, &mut bytes);
        });
        bytes
    }

    /// All bytes of the segment.
    pub fn memory(&self) -> Vec<u8> {
        self.bytes(0, SEGMENT)
    }

    /// Returns true if these bytes stand in the segment.
    pub fn holds(&self, offset: u64, bytes: &[u8]) -> bool {
        self.bytes(offset, bytes.len() as u64) == bytes
    }

    /// Stores bytes in the segment, as the process does.
    pub fn store(&self, offset: u64, bytes: &[u8]) {
        let address = self.segment.address + offset;
        self.on_node(|node| node.driver.write(&node.host, self.vni, address, bytes));
    }

    /// Stores a [`pattern`] in the segment, and returns it.
    pub fn fill(&self, offset: u64, length: u64, seed: u64) -> Vec<u8> {
        let bytes = pattern(seed, length as usize);
        self.store(offset, &bytes);
        bytes
    }

    /// The same, with all pages of the segment present.
    ///
    /// # Panics
    /// If one cannot be brought in.
    pub fn present(self) -> Self {
        let (first, length) = (self.segment.address, self.segment.length);
        for address in pages(first, length) {
            let there = self.on_node(|node| {
                let access = qnic_abi::page_table::PageAccess::Read;
                node.driver.fault_in(&node.host, self.vni, address, access)
            });
            assert_eq!(there, Ok(()), "no page at {address:#x}");
        }
        self
    }

    /// Takes the page of an offset away.
    pub fn evict(&self, offset: u64) {
        let address = self.segment.address + offset;
        self.on_node(|node| node.driver.evict(&node.host, self.vni, address));
    }

    /// Says whether the page of an offset can be brought in from now on.
    pub fn set_available(&self, offset: u64, available: bool) {
        let address = self.segment.address + offset;
        self.on_node(|node| node.driver.set_available(self.vni, address, available));
    }

    /// Says when the NIC may write to the page of an offset, and takes the page away.
    pub fn set_writable(&self, offset: u64, writable: Writable) {
        let address = self.segment.address + offset;
        self.on_node(|node| node.driver.set_writable(self.vni, address, writable));
        self.evict(offset);
    }

    /// A write of the whole segment to another.
    pub fn write(&self, to: impl Into<SimSegment>) -> Transfer<'_> {
        self.transfer(Opcode::Write, to)
    }

    /// A read of another whole segment.
    pub fn read(&self, from: impl Into<SimSegment>) -> Transfer<'_> {
        self.transfer(Opcode::Read, from)
    }

    /// A write or a read of a whole segment.
    pub fn transfer(&self, opcode: Opcode, other: impl Into<SimSegment>) -> Transfer<'_> {
        let (local, remote) = (self.segment, other.into());
        let command = Command::transfer(opcode, local.at(0), remote.to(0), SEGMENT);
        Transfer::new(self, remote, command)
    }

    /// A write of bytes that stand in the command.
    pub fn inline_write(&self, to: impl Into<SimSegment>, bytes: &[u8]) -> Transfer<'_> {
        let remote = to.into();
        let command = Command::inline_write(remote.to(0), bytes.len() as u8);
        Transfer::new(self, remote, command).payload(bytes)
    }

    /// A write of nothing, with a notification.
    pub fn signal(&self, to: impl Into<SimSegment>, notification: u32) -> Transfer<'_> {
        self.inline_write(to, &[]).notify(notification)
    }

    /// An atomic command on eight bytes of the first whole page, into record 0.
    pub fn atomic(
        &self,
        function: Function,
        to: impl Into<SimSegment>,
        operands: [u64; 2],
    ) -> Transfer<'_> {
        let remote = to.into();
        let command = Command::atomic(function, remote.to(page(0)), 8, operands, 0);
        Transfer::new(self, remote, command)
    }
}
