//! Verbs of the hostile guest (X18): objects as a driver makes them, whose rings are pages of the arena; work requests
//! that are right, or spoiled, or name memory and queue pairs of others.

use qnic_abi::client::{CommandQueue, Entry};
use qnic_abi::command::{CommandBody, Descriptor};
use qnic_abi::control::Opcode;
use qnic_abi::verbs::commands::{VerbsArmCommand, VerbsSendCommand};
use qnic_abi::verbs::requests::{
    CreateCompletionQueue, CreateQueuePair, CreateSharedReceiveQueue, ModifyQueuePair,
    RegisterMemory, Ring,
};
use qnic_abi::verbs::rings::{
    AtomicOperands, DatagramOperands, MemoryOperands, ReceiveEntry, SendEntry, SendFlags, Sge,
    WorkCompletion, ENTRIES, PRODUCER,
};
use qnic_abi::verbs::{Outcome, PathAddress, Rights, State, Transport};
use qnic_abi::{NodeId, VniId};
use zerocopy::{FromZeros, IntoBytes};

use super::{Attack, RINGS, SEGMENT};

/// Processes with queue pairs, one each: two that are connected with each other, one with a queue pair of another
/// guest, and one for datagrams.
const TRANSPORTS: [Transport; 4] = [
    Transport::Reliable,
    Transport::Reliable,
    Transport::Unreliable,
    Transport::Datagram,
];

/// Pages of rings of a process: completions, sends, receives, shared receives.
const PAGES: usize = 4;
pub(super) const RING_PAGES: usize = TRANSPORTS.len() * PAGES;

/// Entries of these rings, and bytes of one.
pub(super) const SHAPES: [(u32, u16); PAGES] = [(32, 64), (4, 512), (16, 128), (16, 128)];

/// Numbers of all objects but queue pairs, of the first queue pair, and of the memory.
const NUMBER: u32 = 1;
pub(super) const FIRST_PAIR: u32 = 10;
const KEY: u32 = 0x78;

/// States that a queue pair goes through until it works.
pub(super) const CONNECTS: [State; 3] = [State::Init, State::ReadyToReceive, State::ReadyToSend];

/// Identifies work requests that are right.
pub(super) const MARK: u64 = 0x0072_6571_7565_7374;

/// Nodes that are named, and queue pairs of others: drivers number them from 2 on.
const NODES: u16 = 6;
const PAIRS: u32 = 200;

pub(super) fn page(vni: u16, ring: usize) -> usize {
    RINGS + usize::from(vni) * PAGES + ring
}

impl Attack {
    fn ring_of(&self, vni: u16, ring: usize) -> Ring {
        let (entries, bytes) = SHAPES[ring];
        Ring {
            first: self.arena.address(page(vni, ring)).into(),
            list: 0.into(),
            entries: entries.into(),
            entry_bytes: bytes.into(),
            pages: 0.into(),
        }
    }

    fn some_pair(&mut self) -> u16 {
        self.random.u16(..TRANSPORTS.len() as u16)
    }

    /// Does what a driver does for a program that makes a queue pair and connects it.
    pub(super) fn make_pair(&mut self) {
        let vni = self.some_pair();
        let shared = self.random.bool();
        for (opcode, body) in self.objects(vni, shared) {
            self.send(opcode, vni, &body);
        }
        for state in CONNECTS {
            let change = self.change(vni, state);
            self.send(Opcode::ModifyQueuePair, vni, change.as_bytes());
        }
        self.done.pairs += 1;
    }

    /// The requests for the objects of a process, with the queue pair as the last.
    pub(super) fn objects(&self, vni: u16, shared: bool) -> [(Opcode, Vec<u8>); 4] {
        let [cq, sends, receives, shares] = [0, 1, 2, 3].map(|ring| self.ring_of(vni, ring));
        let mut queue = CreateCompletionQueue::new_zeroed();
        (queue.cq, queue.ring) = (NUMBER.into(), cq);
        let mut srq = CreateSharedReceiveQueue::new_zeroed();
        (srq.srq, srq.domain, srq.sges) = (NUMBER.into(), NUMBER.into(), 4.into());
        srq.ring = shares;
        let mut memory = RegisterMemory::new_zeroed();
        (memory.key, memory.domain) = (KEY.into(), NUMBER.into());
        memory.rights = (Rights::all().bits() as u16).into();
        memory.address = SEGMENT.0.into();
        let mut pair = CreateQueuePair::new_zeroed();
        pair.qp = (FIRST_PAIR + u32::from(vni)).into();
        pair.transport = TRANSPORTS[usize::from(vni)] as u8;
        pair.inline = 128.into();
        (pair.domain, pair.send) = (NUMBER.into(), sends);
        (pair.send_cq, pair.receive_cq) = (NUMBER.into(), NUMBER.into());
        (pair.send_sges, pair.receive_sges) = (4.into(), 4.into());
        match shared {
            true => pair.srq = NUMBER.into(),
            false => pair.receive = receives,
        }
        [
            (Opcode::CreateCompletionQueue, queue.as_bytes().to_vec()),
            (Opcode::CreateSharedReceiveQueue, srq.as_bytes().to_vec()),
            (Opcode::RegisterMemory, memory.as_bytes().to_vec()),
            (Opcode::CreateQueuePair, pair.as_bytes().to_vec()),
        ]
    }

    /// Another queue pair, and its node: of this guest, or of another one.
    fn other_pair(&mut self, vni: u16) -> (NodeId, u32) {
        let own = self.geometry.map_or(NodeId(0), |geometry| geometry.node);
        match vni {
            0 | 1 => (own, FIRST_PAIR + u32::from(vni ^ 1)),
            _ => (NodeId(self.random.u16(..NODES)), self.random.u32(2..PAIRS)),
        }
    }

    pub(super) fn change(&mut self, vni: u16, state: State) -> ModifyQueuePair {
        let (node, peer) = self.other_pair(vni);
        let mut change = ModifyQueuePair::new_zeroed();
        change.qp = (FIRST_PAIR + u32::from(vni)).into();
        change.state = state as u8;
        change.access = Rights::all().bits() as u8;
        (change.timeout, change.retries) = (16, 7);
        change.path = PathAddress::new(node, 0, false).0.into();
        change.peer_qp = peer.into();
        (change.mtu, change.max_reads, change.max_peer_reads) = (5, 4, 4);
        change.not_ready_retries = 7;
        change
    }

    /// Posts work requests to the rings of a process, and tells the NIC of them; or of queues that are not there.
    pub(super) fn post_work(&mut self) {
        let Some(geometry) = self.geometry else {
            return;
        };
        let vni = self.some_pair();
        for _ in 0..self.random.u32(1..6) {
            let entry = self.send_entry(vni);
            self.fill(vni, 1, &entry);
            let receive = self.receive_entry();
            let ring = self.random.usize(2..4);
            self.fill(vni, ring, &receive);
        }
        let mut send = VerbsSendCommand::command();
        let to_itself = self.random.u8(..4) > 0;
        send.header.remote_node = match to_itself {
            true => geometry.node.0.into(),
            false => self.other_pair(vni).0 .0.into(),
        };
        send.qp = (self.near((FIRST_PAIR + u32::from(vni)).into()) as u32).into();
        let mut arm = VerbsArmCommand::command();
        arm.cq = (self.near(NUMBER.into()) as u32).into();
        let window = geometry.window_offset(VniId(vni));
        self.tell(vni, window, &[send.descriptor(), arm.descriptor()]);
    }

    /// Posts commands to the queue of a process, which is in its window.
    pub(super) fn tell(&mut self, vni: u16, window: usize, commands: &[Descriptor]) {
        let mut queue = CommandQueue::at(window, self.posted[usize::from(vni)]);
        for command in commands {
            queue.post_words(&self.device.sram, Entry::new(command, &[]).words());
        }
        self.posted[usize::from(vni)] = queue.tail();
        self.device.ring(self.doorbell(vni));
    }

    /// Puts an entry into a ring, and moves its index: to the next entry mostly.
    fn fill(&mut self, vni: u16, ring: usize, entry: &[u8]) {
        let behind = (self.random.u8(..64) == 0).then(|| self.random.u32(..));
        self.put(vni, ring, entry, behind);
        self.done.work_requests += 1;
    }

    /// Puts an entry into a ring, and moves its index: to another one, or to the next entry.
    pub(super) fn put(&self, vni: u16, ring: usize, entry: &[u8], behind: Option<u32>) {
        let (entries, bytes) = SHAPES[ring];
        let page = page(vni, ring);
        let index = u32::from_le_bytes(self.arena.read(page, PRODUCER)) % entries;
        let at = ENTRIES + index as usize * usize::from(bytes);
        self.arena.write(page, at, entry);
        let next = behind.unwrap_or((index + 1) % entries);
        self.arena.write(page, PRODUCER, &next.to_le_bytes());
    }

    fn piece(&mut self) -> Sge {
        let (address, bytes) = SEGMENT;
        let length = self.random.u32(..6000);
        Sge {
            address: (address + self.random.u64(..bytes - u64::from(length))).into(),
            length: length.into(),
            key: KEY.into(),
        }
    }

    fn send_entry(&mut self, vni: u16) -> Vec<u8> {
        let mut entry = SendEntry::new_zeroed();
        entry.id = MARK.into();
        entry.opcode = self.random.u32(..7).into();
        let flags = SendFlags::SIGNALED | SendFlags::from_bits_truncate(self.random.u32(..32));
        entry.flags = flags.bits().into();
        let forged = self.random.u32(..);
        let key = [KEY, forged][usize::from(self.random.u8(..8) == 0)];
        let address = SEGMENT.0 + self.random.u64(..SEGMENT.1 / 2) / 8 * 8;
        let (node, peer) = self.other_pair(vni);
        let operands = entry.operands.as_mut_bytes();
        let datagram = DatagramOperands {
            qp: peer.into(),
            qkey: forged.into(),
            unused: 0.into(),
            path: PathAddress::new(node, 0, false).0.into(),
        };
        let memory = MemoryOperands {
            address: address.into(),
            key: key.into(),
            unused: 0.into(),
        };
        let mut atomic = AtomicOperands::new_zeroed();
        (atomic.address, atomic.key) = (address.into(), key.into());
        match entry.opcode.get() {
            _ if vni == 3 => operands[..16].copy_from_slice(datagram.as_bytes()),
            5.. => operands[..32].copy_from_slice(atomic.as_bytes()),
            _ => operands[..16].copy_from_slice(memory.as_bytes()),
        }
        let pieces: Vec<Sge> = (0..self.random.u32(..5)).map(|_| self.piece()).collect();
        entry.gather.sges = (pieces.len() as u32).into();
        let mut bytes = [entry.as_bytes(), pieces.as_bytes()].concat();
        self.spoil_bytes(&mut bytes);
        bytes
    }

    fn receive_entry(&mut self) -> Vec<u8> {
        let mut entry = ReceiveEntry::new_zeroed();
        entry.id = MARK.into();
        let pieces = [self.piece(), self.piece()];
        entry.gather.sges = 2.into();
        let mut bytes = [entry.as_bytes(), pieces.as_bytes()].concat();
        self.spoil_bytes(&mut bytes);
        bytes
    }

    /// Turns some bytes, at times.
    fn spoil_bytes(&mut self, bytes: &mut [u8]) {
        if self.random.u8(..8) == 0 {
            for _ in 0..self.random.u8(1..6) {
                let at = self.random.usize(..bytes.len());
                bytes[at] = self.random.u8(..);
            }
        }
    }

    /// Counts completions of work requests that went well.
    pub(super) fn count_completions(&mut self) {
        for vni in 0..TRANSPORTS.len() as u16 {
            for entry in 0..SHAPES[0].0 as usize {
                let completion = self.completion(vni, entry);
                let ended_well = completion.status.get() == Outcome::Success as u32;
                self.done.work_done += u64::from(completion.id.get() == MARK && ended_well);
            }
        }
    }

    /// What stands in an entry of a process's completion queue.
    pub(super) fn completion(&self, vni: u16, entry: usize) -> WorkCompletion {
        let at = ENTRIES + entry * size_of::<WorkCompletion>();
        let bytes: [u8; size_of::<WorkCompletion>()] = self.arena.read(page(vni, 0), at);
        zerocopy::transmute!(bytes)
    }
}
