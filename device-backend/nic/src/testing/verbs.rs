//! A context of libibverbs on a simulated node: what driver, module and librxe do for it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use qnic_abi::command::CommandBody;
use qnic_abi::control::Opcode;
use qnic_abi::verbs::commands::{VerbsArmCommand, VerbsSendCommand};
use qnic_abi::verbs::requests::{
    CreateCompletionQueue, CreateQueuePair, CreateSharedReceiveQueue, DestroyObject,
    ModifyQueuePair, ModifySharedReceiveQueue, Object, QueryQueuePair, QueuePairInfo,
    RegisterMemory, Ring, SIGNAL_ALL,
};
use qnic_abi::verbs::rings::{ReceiveEntry, Sge, WorkCompletion, PRODUCER};
use qnic_abi::verbs::{PathAddress, Rights, State, Transport, MAX_INLINE};
use qnic_abi::{NodeId, Status};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::{status_of, Net, Pair, Party, ProgramRing};
use crate::Limits;

/// Bytes of an entry of a send or receive queue here.
const ENTRY_BYTES: usize = 1024;

/// Pieces of a work request here, at most.
pub const SGES: usize = 8;

/// Number of the completion queue of a [`VerbsParty`].
pub const CQ: u32 = 1;

/// Number of the shared receive queue of a [`VerbsParty`], if it has one.
pub const SRQ: u32 = 4_000_000;

/// The protection domain of a [`VerbsParty`].
pub const DOMAIN: u32 = 5;

/// A queue pair as a program has it.
#[derive(Debug, Clone)]
pub struct ProgramQueuePair {
    /// Its send queue.
    pub send: ProgramRing,
    /// Its receive queue.
    pub receive: ProgramRing,
    /// Node of its peer.
    pub peer: Cell<u16>,
}

/// A context with a completion queue, queue pairs and registered memory.
#[derive(Debug)]
pub struct VerbsParty {
    /// The process that it is for the NIC.
    pub party: Party,
    /// Its completion queue.
    pub completions: ProgramRing,
    queue_pairs: RefCell<BTreeMap<u32, ProgramQueuePair>>,
}

impl VerbsParty {
    /// A context with a completion queue of so many entries.
    ///
    /// # Panics
    /// If the NIC refuses it.
    pub fn new(party: Party, completions: u32) -> Self {
        let ring = ProgramRing::new(&party, completions, size_of::<WorkCompletion>());
        let body = CreateCompletionQueue {
            cq: CQ.into(),
            reserved: 0.into(),
            token: token(CQ).into(),
            ring: ring.ring(),
        };
        let context = VerbsParty {
            party,
            completions: ring,
            queue_pairs: RefCell::default(),
        };
        let status = context.control(Opcode::CreateCompletionQueue, &body);
        assert_eq!(status, Status::Ok);
        context
    }

    /// Sends a request of the driver.
    pub fn control(&self, opcode: Opcode, body: &(impl IntoBytes + Immutable)) -> Status {
        let mut cluster = self.party.net.cluster();
        cluster.control(self.party.node, opcode, self.party.vni, body)
    }

    /// What a request for a queue pair says.
    pub fn queue_pair_request(&self, qp: u32, entries: u32) -> (CreateQueuePair, ProgramQueuePair) {
        let rings = [(); 2].map(|()| ProgramRing::new(&self.party, entries, ENTRY_BYTES));
        let [send, receive] = rings;
        let body = CreateQueuePair {
            qp: qp.into(),
            transport: Transport::Reliable as u8,
            flags: SIGNAL_ALL,
            inline: (MAX_INLINE as u16).into(),
            token: token(qp).into(),
            domain: DOMAIN.into(),
            srq: 0.into(),
            send_cq: CQ.into(),
            receive_cq: CQ.into(),
            send: send.ring(),
            receive: receive.ring(),
            send_sges: (SGES as u16).into(),
            receive_sges: (SGES as u16).into(),
            reserved: 0.into(),
        };
        let peer = Cell::default();
        let made = ProgramQueuePair {
            send,
            receive,
            peer,
        };
        (body, made)
    }

    /// Makes a shared receive queue of so many entries.
    pub fn create_shared(&self, entries: u32, limit: u32) -> (Status, ProgramRing) {
        let ring = ProgramRing::new(&self.party, entries, ENTRY_BYTES);
        let body = CreateSharedReceiveQueue {
            srq: SRQ.into(),
            domain: DOMAIN.into(),
            token: token(SRQ).into(),
            ring: ring.ring(),
            limit: limit.into(),
            sges: (SGES as u16).into(),
            reserved: 0.into(),
        };
        let status = self.control(Opcode::CreateSharedReceiveQueue, &body);
        (status, ring)
    }

    /// Sets the limit of the shared receive queue.
    pub fn limit_shared(&self, limit: u32) -> Status {
        let body = ModifySharedReceiveQueue {
            srq: SRQ.into(),
            limit: limit.into(),
        };
        self.control(Opcode::ModifySharedReceiveQueue, &body)
    }

    /// Makes a queue pair that uses the shared receive queue.
    pub fn create_sharing(&self, qp: u32, entries: u32) -> Status {
        let (mut body, made) = self.queue_pair_request(qp, entries);
        body.srq = SRQ.into();
        body.receive = Ring::new_zeroed();
        self.add(&body, made)
    }

    /// Makes a queue pair with so many entries each way.
    ///
    /// # Panics
    /// If the NIC refuses it.
    pub fn create(&self, qp: u32, entries: u32) {
        let (body, made) = self.queue_pair_request(qp, entries);
        assert_eq!(self.add(&body, made), Status::Ok);
    }

    /// Makes a queue pair of another transport.
    ///
    /// # Panics
    /// If the NIC refuses it.
    pub fn create_with(&self, transport: Transport, qp: u32, entries: u32) {
        let (mut body, made) = self.queue_pair_request(qp, entries);
        body.transport = transport as u8;
        made.peer.set(self.party.node as u16);
        assert_eq!(self.add(&body, made), Status::Ok);
    }

    /// Lets a queue pair exchange datagrams, with that key.
    ///
    /// # Panics
    /// If the NIC refuses it.
    pub fn open(&self, qp: u32, qkey: u32) {
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            self.become_with(qp, state, qkey);
        }
    }

    /// Takes a queue pair for datagrams to a state, with that key.
    ///
    /// # Panics
    /// If the NIC refuses it.
    pub fn become_with(&self, qp: u32, state: State, qkey: u32) {
        let mut body = ModifyQueuePair::new_zeroed();
        body.qp = qp.into();
        body.state = state as u8;
        body.qkey = qkey.into();
        body.send_psn = psn(qp).into();
        assert_eq!(self.modify(&body), Status::Ok);
    }

    /// Makes a queue pair.
    pub fn add(&self, body: &CreateQueuePair, made: ProgramQueuePair) -> Status {
        let status = self.control(Opcode::CreateQueuePair, body);
        if status == Status::Ok {
            let mut queue_pairs = self.queue_pairs.borrow_mut();
            queue_pairs.insert(body.qp.get(), made);
        }
        status
    }

    /// The queue pair of a number.
    ///
    /// # Panics
    /// If there is none.
    pub fn queue_pair(&self, qp: u32) -> ProgramQueuePair {
        self.queue_pairs.borrow()[&qp].clone()
    }

    /// What a queue pair is told when it is modified.
    pub fn attributes(&self, qp: u32, state: State, peer: (u16, u32)) -> ModifyQueuePair {
        let mut body = ModifyQueuePair::new_zeroed();
        body.qp = qp.into();
        body.state = state as u8;
        body.access = Rights::all().bits() as u8;
        body.timeout = 10;
        body.retries = 2;
        body.path = PathAddress::new(NodeId(peer.0), 0, false).0.into();
        body.peer_qp = peer.1.into();
        body.send_psn = psn(qp).into();
        body.receive_psn = psn(peer.1).into();
        body.mtu = 3;
        body.not_ready_timer = 12;
        body.not_ready_retries = 7;
        body.max_reads = 4;
        body.max_peer_reads = 4;
        body
    }

    /// Modifies a queue pair.
    pub fn modify(&self, body: &ModifyQueuePair) -> Status {
        if let Some(peer) = PathAddress(body.path.get()).node() {
            let queue_pairs = self.queue_pairs.borrow();
            queue_pairs[&body.qp.get()].peer.set(peer.0);
        }
        self.control(Opcode::ModifyQueuePair, body)
    }

    /// Connects a queue pair with that of a node.
    ///
    /// # Panics
    /// If the NIC refuses it.
    pub fn connect(&self, qp: u32, peer: (u16, u32)) {
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            let status = self.modify(&self.attributes(qp, state, peer));
            assert_eq!(status, Status::Ok);
        }
    }

    /// Ends an object.
    pub fn destroy(&self, object: Object, number: u32) -> Status {
        let body = DestroyObject {
            object: (object as u32).into(),
            number: number.into(),
        };
        self.control(Opcode::DestroyObject, &body)
    }

    /// State of a queue pair, numbers of the next messages that it sends and expects.
    ///
    /// # Panics
    /// If the NIC does not know it.
    pub fn query(&self, qp: u32) -> (State, u32, u32) {
        let info = self.query_all(qp);
        let state = State::try_from(info.state).expect("a state");
        (state, info.send_psn.get(), info.receive_psn.get())
    }

    /// All that the NIC says of a queue pair.
    ///
    /// # Panics
    /// If the NIC does not know it.
    pub fn query_all(&self, qp: u32) -> QueuePairInfo {
        let body = QueryQueuePair {
            qp: qp.into(),
            reserved: 0.into(),
        };
        let mut cluster = self.party.net.cluster();
        let (node, vni) = (self.party.node, self.party.vni);
        let reply = cluster.request(node, Opcode::QueryQueuePair, vni, &body).1;
        let reply = reply.expect("a reply at once");
        assert_eq!(status_of(&reply), Status::Ok);
        let (info, _) = QueuePairInfo::read_from_prefix(&reply[8..]).expect("a whole body");
        info
    }

    /// Registers the segment of the party with these rights; its addresses are those of the process.
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn register(&self, rights: Rights) -> Result<u32, Status> {
        let segment = self.party.segment;
        let key = u32::from(segment.id.0) << 16 | 0x77;
        let body = RegisterMemory {
            segment: segment.id.0.into(),
            rights: (rights.bits() as u16).into(),
            key: key.into(),
            domain: DOMAIN.into(),
            reserved: 0.into(),
            address: segment.address.into(),
        };
        match self.control(Opcode::RegisterMemory, &body) {
            Status::Ok => Ok(key),
            status => Err(status),
        }
    }

    /// A piece of the segment, with a key.
    pub fn sge(&self, offset: u64, length: u32, key: u32) -> Sge {
        Sge {
            address: (self.party.segment.address + offset).into(),
            length: length.into(),
            key: key.into(),
        }
    }

    /// Posts a receive. Returns false if there is no room.
    pub fn post_receive(&self, qp: u32, id: u64, sges: &[Sge]) -> bool {
        let receive = self.queue_pair(qp).receive;
        receive.post(&self.party, &receive_entry(id, sges))
    }

    /// Tells the NIC of work requests.
    pub fn ring(&self, qp: u32) {
        let mut command = VerbsSendCommand::command();
        command.qp = qp.into();
        command.header.remote_node = self.queue_pair(qp).peer.get().into();
        self.party.post(&command.descriptor());
    }

    /// Asks for an event.
    pub fn arm(&self, flags: u32) {
        self.arm_seen(flags, self.completions.index(&self.party, PRODUCER));
    }

    /// Asks for an event when there is something behind that index.
    pub fn arm_seen(&self, flags: u32, seen: u32) {
        let mut command = VerbsArmCommand::command();
        command.cq = CQ.into();
        command.flags = flags.into();
        command.seen = seen.into();
        self.party.post(&command.descriptor());
    }

    /// Index of the producer of the completion queue.
    pub fn produced(&self) -> u32 {
        self.completions.index(&self.party, PRODUCER)
    }

    /// Takes the oldest completion, if there is one.
    pub fn poll(&self) -> Option<WorkCompletion> {
        self.completions.poll(&self.party)
    }

    /// Takes all completions: identifier, outcome, opcode, length.
    pub fn poll_all(&self) -> Vec<(u64, u32, u32, u32)> {
        let polled = std::iter::from_fn(|| self.poll());
        polled
            .map(|it| {
                (
                    it.id.get(),
                    it.status.get(),
                    it.opcode.get(),
                    it.length.get(),
                )
            })
            .collect()
    }

    /// Takes all completions: identifiers, and how they ended.
    pub fn ends(&self) -> Vec<(u64, u32)> {
        let ends = self.poll_all().into_iter();
        ends.map(|end| (end.0, end.1)).collect()
    }

    /// Runs until all timers of its queue pairs are over.
    pub fn run_out(&self) {
        let net = &self.party.net;
        for _ in 0..4 {
            net.run();
            net.advance(10_000_000);
        }
        net.run();
    }

    /// Takes the events of verbs that its driver was told: token and number.
    pub fn events(&self) -> Vec<(u64, u16)> {
        let vni = self.party.vni.0;
        let take = |node: &mut super::SimNode| {
            let (own, others) = std::mem::take(&mut node.events)
                .into_iter()
                .partition(|event| event.kind.get() == 4 && event.vni.get() == vni);
            node.events = others;
            own
        };
        let own: Vec<qnic_abi::event::Event> = self.party.on_node(take);
        own.iter()
            .map(|event| (event.address.get(), event.flags.get()))
            .collect()
    }
}

/// Queue pair of `a` of a [`VerbsPair`].
pub const QP_A: u32 = 2;

/// Queue pair of `b`.
pub const QP_B: u32 = 9;

/// Two contexts with a connected queue pair each, and their segments registered with all rights.
#[derive(Debug)]
pub struct VerbsPair {
    /// Their nodes.
    pub net: Net,
    /// That of node 0.
    pub a: VerbsParty,
    /// That of node 1.
    pub b: VerbsParty,
    /// Keys of their segments.
    pub keys: [u32; 2],
}

impl VerbsPair {
    /// A pair on these nodes.
    ///
    /// # Panics
    /// If a NIC refuses it.
    pub fn on(net: Net) -> Self {
        let Pair { net, a, b } = Pair::on(net);
        let [a, b] = [a, b].map(|party| VerbsParty::new(party, 256));
        a.create(QP_A, 64);
        b.create(QP_B, 64);
        a.connect(QP_A, (1, QP_B));
        b.connect(QP_B, (0, QP_A));
        let keys = [&a, &b].map(|it| it.register(Rights::all()).expect("a key"));
        VerbsPair { net, a, b, keys }
    }

    /// A pair on a lossless wire.
    pub fn lossless() -> Self {
        VerbsPair::on(Net::new(2, 1024, 8, &Limits::default()))
    }

    /// A piece of the segment of `a`.
    pub fn at_a(&self, offset: u64, length: u32) -> Sge {
        self.a.sge(offset, length, self.keys[0])
    }

    /// A piece of the segment of `b`.
    pub fn at_b(&self, offset: u64, length: u32) -> Sge {
        self.b.sge(offset, length, self.keys[1])
    }
}

/// A receive, as it stands in a ring.
pub fn receive_entry(id: u64, sges: &[Sge]) -> Vec<u8> {
    let mut entry = ReceiveEntry::new_zeroed();
    entry.id = id.into();
    entry.gather.sges = (sges.len() as u32).into();
    [entry.as_bytes(), sges.as_bytes()].concat()
}

/// The token of an object here.
pub fn token(number: u32) -> u64 {
    0x70_0000 + u64::from(number)
}

/// Number of the first message of a queue pair here: soon behind the largest comes zero.
pub fn psn(qp: u32) -> u32 {
    qnic_abi::verbs::NUMBERS - 1 - qp % 2
}
