//! Nodes that tests share with their processes, and what most tests start from.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use qnic_abi::shared::Ordering;
use qnic_abi::{Access, NodeId, Port, SharedMemory, Status, VniId, PAGE_SIZE};

use super::{Cluster, LossyWire, Party};
use crate::{Counters, Limits, Progress};

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

    /// Nodes on a lossy wire, with what each knows of the routes ([`crate::NicConfig::routes`]).
    pub fn routed(
        nodes: u16,
        wire: LossyWire,
        routes: impl Fn(u16) -> BTreeMap<NodeId, NodeId>,
    ) -> Self {
        let cluster = Cluster::routed(nodes, 1024, 8, &Limits::default(), routes);
        let net = Net(Rc::new(RefCell::new(cluster)));
        net.cluster().set_lossy_wire(wire, 1);
        net
    }

    /// What is under it.
    pub fn cluster(&self) -> RefMut<'_, Cluster> {
        self.0.borrow_mut()
    }

    /// A process with a segment that starts off a page border.
    pub fn party(&self, node: usize, vni: u16) -> Party {
        let address = 0x10_0000 + u64::from(vni) * 0x100_0000 + OFF_BORDER;
        self.party_at(node, vni, (address, SEGMENT))
    }

    /// A process with a segment in this range.
    ///
    /// # Panics
    /// If the NIC refuses it.
    pub fn party_at(&self, node: usize, vni: u16, range: (u64, u64)) -> Party {
        let port = Port(100 + vni);
        let mut party = Party::register(self, node, VniId(vni), port, 0).expect("a process");
        party.segment = party.export(0, 7, range, ALL).expect("a segment");
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
    pub fn counters(&self, node: usize) -> Counters {
        self.cluster().counters(node)
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

    /// Nothing waits for a page or a receive at a node.
    #[track_caller]
    pub fn assert_holds_nothing(&self, node: usize) {
        let counters = self.counters(node);
        assert_eq!(counters.frames_held, 0);
        assert_eq!(counters.bounce_bytes, 0);
        let budgets = self.cluster().nodes[node].nic.budgets();
        for budget in budgets {
            let staged = [
                "messages_of_process",
                "staged_bytes_of_peer",
                "envelopes_of_peer",
            ];
            assert!(
                !staged.contains(&budget.name) || budget.used == 0,
                "{budget:?}"
            );
        }
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
    pub fn lossless() -> Self {
        Pair::on(Net::new(2, 512, 8, &Limits::default()))
    }

    /// The same, without staging memory for long messages.
    pub fn scarce() -> Self {
        Pair::on(Net::new(2, 512, 8, &super::scarce()))
    }

    /// A pair on these nodes.
    pub fn on(net: Net) -> Self {
        let (a, b) = (net.party(0, 1), net.party(1, 2));
        Pair { net, a, b }
    }

    /// A pair whose pages are all present.
    pub fn present(net: Net) -> Self {
        let (a, b) = (net.party(0, 1).present(), net.party(1, 2).present());
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
