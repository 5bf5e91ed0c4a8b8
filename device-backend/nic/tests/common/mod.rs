//! What the tests start from: NICs on a wire, and parties that transfer between them.
//!
//! ```text
//!   let Pair { net, a, b } = Pair::new();
//!   let bytes = a.fill(0, 4096, 1);                 memory of a
//!   a.write(&b).to(17).bytes(4096).notify(5).run(); what is issued; until all is idle
//!   assert_eq!(a.done(), (1, 0));                   what must hold
//!   assert!(b.holds(17, &bytes));
//! ```
#![allow(dead_code, unreachable_pub)]

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use qnic_abi::atomic::Function;
use qnic_abi::control::{self, Statistics};
use qnic_abi::rdma::Opcode;
use qnic_abi::shared::Ordering;
use qnic_abi::{Access, Port, SharedMemory, Status, VniId, PAGE_SIZE};
use qnic_abi_client::Command;
use qnic_nic::testing::{Cluster, LossyWire, SimProcess, SimSegment};
use qnic_nic::{Limits, Progress};

/// Readable and writable.
pub const ALL: Access = Access::all();

/// Bytes of a page.
pub const PAGE: u64 = PAGE_SIZE as u64;

/// Length of the segment of each party.
pub const SEGMENT: u64 = 64 * PAGE;

/// Where a segment starts within a page.
const OFF_BORDER: u64 = 0x123;

/// The offset of a whole page in a segment of a party.
pub const fn page(number: u64) -> u64 {
    PAGE - OFF_BORDER + number * PAGE
}

/// Bytes that differ from offset to offset.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(byte).collect()
}

/// Nodes and their wire; clones share them.
#[derive(Debug, Clone)]
pub struct Net(Rc<RefCell<Cluster>>);

impl Net {
    /// Nodes with so many frames and windows each, on a lossless wire.
    pub fn new(nodes: u16, frames: u64, windows: u32, limits: &Limits) -> Self {
        let cluster = Cluster::new(nodes, frames, windows, limits);
        Net(Rc::new(RefCell::new(cluster)))
    }

    /// Nodes on a lossy wire.
    pub fn lossy(nodes: u16, wire: LossyWire, seed: u64) -> Self {
        let net = Net::new(nodes, 2048, 8, &Limits::default());
        net.cluster().set_lossy_wire(wire, seed);
        net
    }

    /// What is under it.
    pub fn cluster(&self) -> RefMut<'_, Cluster> {
        self.0.borrow_mut()
    }

    /// A process with a segment that starts off a page border.
    pub fn party(&self, node: usize, vni: u16) -> Party {
        let port = Port(100 + vni);
        let process = SimProcess::register(&mut self.cluster(), node, VniId(vni), port).unwrap();
        let address = 0x10_0000 + u64::from(vni) * 0x100_0000 + OFF_BORDER;
        let range = (address, SEGMENT);
        let segment = process.export(&mut self.cluster(), 0, 7, range, ALL);
        Party::new(self, process, segment.unwrap())
    }

    /// [`party`](Net::party), with all pages present.
    pub fn present_party(&self, node: usize, vni: u16) -> Party {
        let party = self.party(node, vni);
        let cluster = &mut *self.cluster();
        let this = &mut cluster.nodes[node];
        for offset in (0..=SEGMENT).step_by(PAGE_SIZE) {
            let address = party.segment.address + offset;
            assert!(this.driver.fault_in(&this.host, party.vni, address));
        }
        party
    }

    /// Polls all NICs until none has work.
    pub fn run(&self) {
        self.cluster().run();
    }

    /// Runs until all NICs are asleep.
    pub fn settle(&self) {
        self.cluster().settle();
    }

    /// Polls one NIC once.
    pub fn poll(&self, node: usize) -> Progress {
        self.cluster().poll(node)
    }

    /// Polls nodes 0 and 1 in turn, so many times.
    pub fn poll_both(&self, times: u32) {
        for _ in 0..times {
            self.poll(0);
            self.poll(1);
        }
    }

    /// Lets time pass, in nanoseconds.
    pub fn advance(&self, nanoseconds: u64) {
        self.cluster().advance(nanoseconds);
    }

    /// What a NIC has counted.
    pub fn counters(&self, node: usize) -> Statistics {
        self.cluster().statistics(node)
    }

    /// Answers faults at once from now on, or leaves them to the test.
    pub fn answer_faults(&self, answer: bool) {
        self.cluster().answer_faults = answer;
    }

    /// Faults that wait for an answer.
    pub fn faults(&self, node: usize) -> usize {
        self.cluster().nodes[node].faults.len()
    }

    /// Answers a fault with up to so many pages.
    pub fn answer(&self, node: usize, index: usize, pages: u32) {
        self.cluster().answer_fault(node, index, pages);
    }

    /// Answers faults of a node with up to so many pages each and runs, until there is
    /// none.
    pub fn answer_all(&self, node: usize, pages: u32) {
        while self.faults(node) > 0 {
            self.answer(node, 0, pages);
            self.run();
        }
    }

    /// A word of a NIC's SRAM.
    pub fn load(&self, node: usize, offset: usize) -> u64 {
        let sram = &self.cluster().nodes[node].host.sram;
        sram.load_u64(offset, Ordering::Acquire)
    }

    /// Changes a word of a NIC's SRAM.
    pub fn store(&self, node: usize, offset: usize, word: u64) {
        let sram = &self.cluster().nodes[node].host.sram;
        sram.store_u64(offset, word, Ordering::Release);
        sram.fence();
    }

    /// Cuts a node off.
    pub fn cut(&self, node: u16) {
        self.cluster().cut.insert(node);
    }

    /// Joins all nodes again.
    pub fn heal(&self) {
        self.cluster().cut.clear();
    }

    /// The reply to an import: the key, or why there is none.
    pub fn import_reply(&self, node: usize, token: u64) -> Option<Result<u64, Status>> {
        let reply = self.cluster().import_reply(node, token)?;
        Some(reply.map(|imported| imported.key.get()))
    }

    /// Nothing waits for a page at a node.
    #[track_caller]
    pub fn assert_holds_nothing(&self, node: usize) {
        let counters = self.counters(node);
        assert_eq!(counters.frames_held.get(), 0);
        assert_eq!(counters.bounce_bytes.get(), 0);
    }

    /// No NIC holds a page locked.
    #[track_caller]
    pub fn assert_unlocked(&self) {
        for node in &self.cluster().nodes {
            assert!(node.driver.all_unlocked(&node.host));
        }
    }
}

/// A process `a` on node 0 and a process `b` on node 1.
#[derive(Debug)]
pub struct Pair {
    /// Their nodes.
    pub net: Net,
    /// VNI 1 of node 0.
    pub a: Party,
    /// VNI 2 of node 1.
    pub b: Party,
}

impl Pair {
    /// Two nodes on a lossless wire.
    pub fn new() -> Self {
        Pair::on(Net::new(2, 512, 8, &Limits::default()))
    }

    /// A pair on these nodes.
    pub fn on(net: Net) -> Self {
        let (a, b) = (net.party(0, 1), net.party(1, 2));
        Pair { net, a, b }
    }

    /// A pair whose pages are all present.
    pub fn present(net: Net) -> Self {
        let (a, b) = (net.present_party(0, 1), net.present_party(1, 2));
        Pair { net, a, b }
    }

    /// A pair that has moved a segment both ways, then lost these whole pages of `b`.
    /// Faults wait for the test.
    pub fn absent(limits: &Limits, pages: &[u64]) -> Self {
        let pair = Pair::on(Net::new(3, 512, 8, limits));
        pair.a.write(&pair.b).run();
        pair.a.read(&pair.b).run();
        pair.net.answer_faults(false);
        for number in pages {
            pair.b.evict(page(*number));
        }
        pair
    }
}

/// A process and its segment. Offsets are in the segment.
#[derive(Debug)]
pub struct Party {
    /// All nodes.
    pub net: Net,
    /// The process.
    pub process: RefCell<SimProcess>,
    /// Its segment.
    pub segment: SimSegment,
    /// Its node.
    pub node: usize,
    /// Its VNI.
    pub vni: VniId,
    /// Its port.
    pub port: Port,
}

impl From<&Party> for SimSegment {
    fn from(party: &Party) -> Self {
        party.segment
    }
}

impl Party {
    /// A process and one of its segments.
    pub fn new(net: &Net, process: SimProcess, segment: SimSegment) -> Self {
        Party {
            net: net.clone(),
            segment,
            node: process.node,
            vni: process.vni,
            port: process.port,
            process: RefCell::new(process),
        }
    }

    fn look<T>(&self, look: impl FnOnce(&SimProcess, &Cluster) -> T) -> T {
        look(&self.process.borrow(), &self.net.cluster())
    }

    /// Writes and reads that are complete.
    pub fn done(&self) -> (u64, u64) {
        self.look(SimProcess::done)
    }

    /// The last error records, in the order in which they came: command and status.
    pub fn errors(&self) -> Vec<(u64, Status)> {
        self.look(SimProcess::errors)
    }

    /// The last error records, by command.
    pub fn sorted_errors(&self) -> Vec<(u64, Status)> {
        let mut errors = self.errors();
        errors.sort_by_key(|error| error.0);
        errors
    }

    /// Signals of a counted notification.
    pub fn signals(&self, notification: u32) -> u64 {
        self.look(|process, cluster| process.signals(cluster, notification))
    }

    /// What an atomic command brought: value and detail.
    pub fn result(&self, record: u16) -> (u64, u64) {
        self.look(|process, cluster| process.result(cluster, record))
    }

    /// A word of the host area.
    pub fn word(&self, offset: usize) -> u64 {
        self.look(|process, cluster| process.word(cluster, offset))
    }

    /// Offset of the window.
    pub fn window(&self) -> usize {
        self.process.borrow().window()
    }

    /// Bytes of the segment.
    pub fn bytes(&self, offset: u64, length: u64) -> Vec<u8> {
        let address = self.segment.address + offset;
        self.look(|process, cluster| process.read(cluster, address, length as usize))
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
        let process = self.process.borrow();
        process.write(&mut self.net.cluster(), address, bytes);
    }

    /// Stores a [`pattern`] in the segment, and returns it.
    pub fn fill(&self, offset: u64, length: u64, seed: u64) -> Vec<u8> {
        let bytes = pattern(seed, length as usize);
        self.store(offset, &bytes);
        bytes
    }

    /// Takes the page of an offset away.
    pub fn evict(&self, offset: u64) {
        let address = self.segment.address + offset;
        self.net.cluster().evict(self.node, self.vni, address);
    }

    /// Says whether the page of an offset can be brought in from now on.
    pub fn set_available(&self, offset: u64, available: bool) {
        let address = self.segment.address + offset;
        let driver = &mut self.net.cluster().nodes[self.node].driver;
        driver.set_available(self.vni, address, available);
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
        let payload = bytes.to_vec();
        Transfer {
            payload,
            ..Transfer::new(self, remote, command)
        }
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

    /// Issues any command; returns its number, or `None` if the queue is full.
    pub fn issue(&self, command: &Command, payload: &[u8]) -> Option<u64> {
        let mut process = self.process.borrow_mut();
        process.issue(&mut self.net.cluster(), command, payload)
    }

    /// Asks to be woken at the next change of the host area.
    pub fn request_wake(&self) {
        let mut process = self.process.borrow_mut();
        process.request_wake(&self.net.cluster());
    }

    /// Exports a further range.
    pub fn export(&self, id: u16, name: u64, range: (u64, u64), access: Access) -> SimSegment {
        let process = self.process.borrow();
        let segment = process.export(&mut self.net.cluster(), id, name, range, access);
        segment.unwrap()
    }

    /// Revokes a segment.
    pub fn unexport(&self, segment: impl Into<SimSegment>) -> Status {
        let process = self.process.borrow();
        process.unexport(&mut self.net.cluster(), segment.into().id)
    }

    /// Starts an import; returns its token.
    pub fn import(&self, node: u16, port: Port, name: u64, wait_ms: u32) -> Result<u64, Status> {
        let process = self.process.borrow();
        process.import(&mut self.net.cluster(), node, port, name, wait_ms)
    }

    /// Asks the NIC to reset the command queue.
    pub fn reset_queue(&self) -> Status {
        let opcode = control::Opcode::ResetQueue;
        let mut cluster = self.net.cluster();
        cluster.control(self.node, opcode, self.vni, &[0u8; 0])
    }

    /// Frees all entries of the command queue, as a driver does after a reset.
    pub fn clear_queue(&self) {
        let mut process = self.process.borrow_mut();
        let sram = &self.net.cluster().nodes[self.node].host.sram;
        process.queue.clear(sram);
    }

    /// Ends the process.
    pub fn end(&self) {
        let process = self.process.borrow().clone();
        process.end(&mut self.net.cluster());
    }
}

/// A command in the making. It can be issued several times.
#[derive(Debug, Clone)]
pub struct Transfer<'a> {
    issuer: &'a Party,
    remote: SimSegment,
    payload: Vec<u8>,
    /// What it is so far.
    pub command: Command,
}

impl<'a> Transfer<'a> {
    fn new(issuer: &'a Party, remote: SimSegment, command: Command) -> Self {
        Transfer {
            issuer,
            remote,
            payload: Vec::new(),
            command,
        }
    }

    fn is_read(&self) -> bool {
        self.command.opcode == Opcode::Read as u8
    }

    fn local_at(self, offset: u64) -> Self {
        let local = self.issuer.segment.at(offset);
        self.with(|command| command.local = local)
    }

    fn remote_at(self, offset: u64) -> Self {
        let remote = self.remote.to(offset);
        self.with(|command| command.remote = remote)
    }

    /// The offset at the source.
    pub fn from(self, offset: u64) -> Self {
        match self.is_read() {
            true => self.remote_at(offset),
            false => self.local_at(offset),
        }
    }

    /// The offset at the destination.
    pub fn to(self, offset: u64) -> Self {
        match self.is_read() {
            true => self.local_at(offset),
            false => self.remote_at(offset),
        }
    }

    /// The length.
    pub fn bytes(self, length: u64) -> Self {
        self.with(|command| command.length = length)
    }

    /// To whole pages of the destination; the source lies off a border.
    pub fn pages(self, pages: std::ops::Range<u64>) -> Self {
        let length = (pages.end - pages.start) * PAGE;
        let from = self.from(pages.start * PAGE);
        from.to(page(pages.start)).bytes(length)
    }

    /// With a notification.
    pub fn notify(self, notification: u32) -> Self {
        self.with(|command| command.notification = Some(notification))
    }

    /// With its result in that record.
    pub fn record(self, record: u16) -> Self {
        self.with(|command| command.record = record)
    }

    /// With any other change.
    pub fn with(mut self, change: impl FnOnce(&mut Command)) -> Self {
        change(&mut self.command);
        self
    }

    /// Issues it; returns its number, or `None` if the queue is full.
    pub fn try_issue(&self) -> Option<u64> {
        self.issuer.issue(&self.command, &self.payload)
    }

    /// Issues it; returns its number.
    #[track_caller]
    pub fn issue(&self) -> u64 {
        self.try_issue().expect("room in the queue")
    }

    /// Issues it and polls all NICs until none has work; returns its number.
    #[track_caller]
    pub fn run(&self) -> u64 {
        let number = self.issue();
        self.issuer.net.run();
        number
    }
}
