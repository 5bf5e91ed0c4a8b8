//! Queue pairs of verbs (X18): a program that writes anything into its rings, a kernel that asks for
//! anything about them, and a peer that sends any frames.
//!
//! ```text
//!   node 0: villain ─────────► node 1: friend, a ◄─────────► node 2: b
//!           rings, requests            │ its queue pairs       honest
//!   node 7: a stranger ────────────────┘ are those of villain and stranger
//! ```
//! Villain and friend have a queue pair of each transport, and completion queues and shared receive
//! queues that they overrun.
//!
//! After any input: `b` holds what it held, messages of `a` reach `b` with their bytes, all lists are
//! within their limits, no page is locked; and once more after a reset of the villain's NIC.

mod frames;

use qnic_abi::command::CommandBody;
use qnic_abi::control::Opcode;
use qnic_abi::verbs::commands::{VerbsArmCommand, VerbsSendCommand};
use qnic_abi::verbs::requests::{
    CreateCompletionQueue, CreateSharedReceiveQueue, DestroyObject, ModifyQueuePair,
    ModifySharedReceiveQueue, QueryQueuePair, RegisterMemory, Ring,
};
use qnic_abi::verbs::rings::{SendEntry, Sge, CONSUMER, PRODUCER};
use qnic_abi::verbs::{Outcome, PathAddress, Rights, State, Transport};
use qnic_abi::{NodeId, VniId};
use qnic_nic::testing::{page, Net, ProgramQueuePair, ProgramRing, VerbsParty, CQ, DOMAIN, SRQ};
use qnic_nic::Limits;
use zerocopy::{FromZeros, Immutable, IntoBytes};

use self::frames::open_session;
use crate::honest::{check_bounds, limits, party, pass, reset, BYTES, PAGES, WINDOWS};
use crate::input::Input;

/// Most steps of one input.
const STEPS: usize = 96;

/// The node of the villain, and that of its friend.
const HOSTILE: usize = 0;
const FRIENDLY: usize = 1;

/// The node outside.
const STRANGER: u16 = 7;

/// Queue pairs of the villain, which are connected with those of its friend behind them.
const RELIABLE: u32 = 10;
const UNRELIABLE: u32 = 12;
const DATAGRAM: u32 = 14;

/// That of the friend which is connected with the stranger, and the stranger's.
const ATTACKED: u32 = 21;
const ATTACKER: u32 = 3;

/// Those of `a` and `b`.
const QP_A: u32 = 30;
const QP_B: u32 = 31;

/// Key of datagrams.
const QKEY: u32 = 0x1111;

/// Bytes of `b` that no message goes to.
const KEPT: u64 = 500;

const OK: u32 = Outcome::Success as u32;

/// Most rounds until an honest message has come, and virtual time of each in nanoseconds.
const ROUNDS: usize = 20_000;
const ROUND: u64 = 1_000_000;

/// Runs one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut attack = Attack::new(&mut input);
    let kept = attack.b.party.bytes(0, KEPT);
    attack.exchange();
    for _ in 0..STEPS {
        if attack.input.is_empty() {
            break;
        }
        attack.step();
        check_bounds(&attack.net, &attack.limits, &[HOSTILE, FRIENDLY, 2]);
    }
    attack.exchange();
    reset(&attack.net, HOSTILE);
    attack.net.run();
    attack.exchange();
    check_bounds(&attack.net, &attack.limits, &[FRIENDLY, 2]);
    assert_eq!(attack.b.party.bytes(0, KEPT), kept, "bytes of others");
}

struct Attack<'a, 'b> {
    input: &'a mut Input<'b>,
    net: Net,
    limits: Limits,
    villain: VerbsParty,
    friend: VerbsParty,
    shared: ProgramRing,
    /// Keys of the memory of both.
    keys: [u32; 2],
    a: VerbsParty,
    b: VerbsParty,
    rounds: u64,
    /// Sessions of the stranger and of the friend's NIC, and the number of its next frame.
    sessions: [u64; 2],
    sequence: u64,
}

/// A context with a queue pair of each transport: the reliable one is first.
fn context(net: &Net, (node, vni): (usize, u16), first: u32, peer: u16) -> VerbsParty {
    let context = VerbsParty::new(party(net, node, vni), 16);
    let other = first ^ 1;
    context.create(first, 8);
    context.connect(first, (peer, other));
    context.create_with(Transport::Unreliable, first + 2, 8);
    context.connect(first + 2, (peer, other + 2));
    context.create_with(Transport::Datagram, first + 4, 8);
    context.open(first + 4, QKEY);
    context
}

/// A context with one reliable queue pair.
fn honest(net: &Net, (node, vni): (usize, u16), qp: u32) -> VerbsParty {
    let context = VerbsParty::new(party(net, node, vni), 64);
    context.create(qp, 16);
    context.connect(qp, (3 - node as u16, qp ^ 1));
    context
}

impl<'a, 'b> Attack<'a, 'b> {
    fn new(input: &'a mut Input<'b>) -> Self {
        let limits = limits();
        let net = Net::new(3, 200, WINDOWS, &limits);
        net.cluster().lossless = !input.chance(128);
        let (a, b) = (honest(&net, (1, 1), QP_A), honest(&net, (2, 2), QP_B));
        let villain = context(&net, (HOSTILE, 3), RELIABLE, FRIENDLY as u16);
        let friend = context(&net, (FRIENDLY, 4), RELIABLE + 1, HOSTILE as u16);
        let (_, shared) = villain.create_shared(8, 0);
        let sessions = open_session(&net);
        friend.create(ATTACKED, 8);
        friend.connect(ATTACKED, (STRANGER, ATTACKER));
        let keys = [&villain, &friend].map(|it| it.register(Rights::all()).expect("a key"));
        Attack {
            input,
            limits,
            villain,
            friend,
            shared,
            keys,
            a,
            b,
            rounds: 0,
            sessions,
            sequence: 1,
            net,
        }
    }

    /// A message of `a` to `b`: it comes, and both learn that.
    fn exchange(&mut self) {
        self.rounds += 1;
        let (a, b) = (&self.a, &self.b);
        let keys = [a, b].map(|it| u32::from(it.party.segment.id.0) << 16 | 0x77);
        if self.rounds == 1 {
            for context in [a, b] {
                assert!(context.register(Rights::all()).is_ok());
            }
        }
        let bytes = a.party.fill(40, 6000, self.rounds);
        assert!(b.post_receive(QP_B, self.rounds, &[b.sge(KEPT, 6000, keys[1])]));
        a.send(QP_A, self.rounds, &[a.sge(40, 6000, keys[0])])
            .post();
        for _ in 0..ROUNDS {
            self.net.run();
            let ends = [a.ends(), b.ends()];
            if ends.iter().all(Vec::is_empty) {
                pass(&self.net, ROUND);
                continue;
            }
            assert_eq!(ends, [(); 2].map(|()| vec![(self.rounds, OK)]));
            assert!(b.party.holds(KEPT, &bytes), "bytes of an honest message");
            return;
        }
        panic!("an honest message never comes");
    }

    fn step(&mut self) {
        match self.input.byte() {
            0..=59 => self.work(),
            60..=79 => self.store_word_in_ring(),
            80..=94 => self.index(),
            95..=119 => self.command(),
            120..=149 => self.request(),
            150..=199 => self.frame(),
            200..=214 => self.receive(),
            215..=239 => self.time(),
            _ => self.pages(),
        }
    }

    /// The villain or its friend, and its key.
    fn side(&mut self) -> (&VerbsParty, u32) {
        match self.input.chance(64) {
            true => (&self.friend, self.keys[1]),
            false => (&self.villain, self.keys[0]),
        }
    }

    fn some_pair(&mut self) -> u32 {
        self.input.pick(&[RELIABLE, UNRELIABLE, DATAGRAM])
    }

    fn rings(&self, qp: u32) -> [ProgramRing; 4] {
        let ProgramQueuePair { send, receive, .. } = self.villain.queue_pair(qp);
        let completions = self.villain.completions.clone();
        [send, receive, completions, self.shared.clone()]
    }

    /// Any word of a ring of the villain.
    fn store_word_in_ring(&mut self) {
        let qp = self.some_pair();
        let ring = self.input.below(4);
        let (word, value) = (self.input.short().into(), self.input.near(1));
        self.rings(qp)[ring].store_word(&self.villain.party, word, value);
    }

    /// An index of a ring of the villain.
    fn index(&mut self) {
        let qp = self.some_pair();
        let ring = self.input.below(4);
        let at = self.input.pick(&[PRODUCER, CONSUMER]);
        let right = u32::from(self.input.byte() % 8);
        let index = self.input.near32(right);
        self.rings(qp)[ring].set_index(&self.villain.party, at, index);
    }

    /// Pieces of memory of a process that are right but for what the input makes wrong.
    fn sges(&mut self, address: u64, key: u32) -> Vec<Sge> {
        let count = self.input.byte() % 4;
        let input = &mut *self.input;
        let sge = |_| {
            let length = u32::from(input.byte()) * 16;
            Sge {
                address: input.near_within(address, BYTES - 5000).into(),
                length: input.near32(length).into(),
                key: input.near32(key).into(),
            }
        };
        (0..count).map(sge).collect()
    }

    /// A receive, of either side.
    fn receive(&mut self) {
        let qp = self.some_pair();
        let friend = self.input.chance(128);
        let (context, key, qp) = match friend {
            true => (&self.friend, self.keys[1], qp + 1),
            false => (&self.villain, self.keys[0], qp),
        };
        let address = context.party.segment.address;
        let sges = self.sges(address, key);
        let qp = match friend && self.input.chance(128) {
            true => ATTACKED,
            false => qp,
        };
        let context = if friend { &self.friend } else { &self.villain };
        context.post_receive(qp, 7, &sges);
    }

    /// A work request of the villain that is right but for what the input makes wrong.
    fn work(&mut self) {
        let qp = self.some_pair();
        let (address, key) = (self.villain.party.segment.address, self.keys[0]);
        let sges = self.sges(address, key);
        let there = self.friend.party.segment.address;
        let there = self.input.near_within(there, BYTES - 5000);
        let remote = self.input.near32(self.keys[1]);
        let path = PathAddress::new(NodeId(FRIENDLY as u16), 0, self.input.chance(64));
        let path = PathAddress(self.input.near32(path.0));
        let posting = self.villain.send(qp, self.input.byte().into(), &sges);
        let mut posting = match (qp, self.input.byte() % 4) {
            (DATAGRAM, _) => posting.datagram(path, qp + 1, self.input.near32(QKEY)),
            (_, 0) => posting,
            (_, 1) => posting.write_to(there, remote),
            (_, 2) => posting.read_from(there, remote),
            _ => posting.atomic(
                qnic_abi::verbs::Request::FetchAdd,
                (there & !7, remote),
                [1, 2],
            ),
        };
        if self.input.chance(64) {
            posting = posting.inline(self.input.bytes(40));
        }
        let entry: &mut SendEntry = &mut posting.entry;
        entry.opcode = self.input.near32(entry.opcode.get()).into();
        entry.flags = self.input.near32(entry.flags.get() | 2).into();
        entry.gather.sges = self.input.near32(entry.gather.sges.get()).into();
        entry.gather.length = self.input.near32(entry.gather.length.get()).into();
        if posting.store() && self.input.chance(200) {
            self.villain.ring(qp);
            self.net.poll(HOSTILE);
        }
    }

    /// A command of the villain's driver.
    fn command(&mut self) {
        let qp = self.some_pair();
        let descriptor = match self.input.chance(128) {
            true => {
                let mut send = VerbsSendCommand::command();
                send.qp = self.input.near32(qp).into();
                send.header.remote_node = self.input.near16(FRIENDLY as u16).into();
                send.reserved0 = u32::from(self.input.chance(4)).into();
                send.descriptor()
            }
            false => {
                let mut arm = VerbsArmCommand::command();
                arm.cq = self.input.near32(CQ).into();
                let flags = u32::from(self.input.byte() & 1);
                arm.flags = self.input.near32(flags).into();
                arm.seen = self.input.near32(3).into();
                arm.descriptor()
            }
        };
        self.villain.party.post(&descriptor);
        self.net.poll(HOSTILE);
    }

    fn ask(&mut self, opcode: Opcode, body: &(impl IntoBytes + Immutable)) {
        let vni = VniId(self.input.near16(self.villain.party.vni.0));
        self.net.cluster().control(HOSTILE, opcode, vni, body);
    }

    /// A ring of the villain, as its driver describes it.
    fn ring(&mut self, qp: u32) -> Ring {
        let which = self.input.below(4);
        let mut ring = self.rings(qp)[which].ring();
        let input = &mut *self.input;
        ring.first = input.near(ring.first.get()).into();
        ring.list = input.near(ring.list.get()).into();
        ring.entries = input.near32(ring.entries.get()).into();
        ring.entry_bytes = input.near16(ring.entry_bytes.get()).into();
        ring.pages = input.near16(ring.pages.get()).into();
        ring
    }

    /// A request of the villain's kernel that is right but for what the input makes wrong.
    fn request(&mut self) {
        let qp = self.some_pair();
        match self.input.byte() % 10 {
            0 => {
                let ring = self.ring(qp);
                let cq = self.input.near32(CQ + 1).into();
                let body = CreateCompletionQueue {
                    cq,
                    reserved: 0.into(),
                    token: 5.into(),
                    ring,
                };
                self.ask(Opcode::CreateCompletionQueue, &body);
            }
            1 => self.ask_for_pair(qp),
            2..=4 => self.ask_to_modify(qp),
            5 => {
                let segment = self.villain.party.segment;
                let mut body = RegisterMemory::new_zeroed();
                body.segment = self.input.near16(segment.id.0).into();
                body.rights = self.input.near16(15).into();
                body.key = self
                    .input
                    .near32(u32::from(segment.id.0) << 16 | 0x78)
                    .into();
                body.domain = self.input.near32(DOMAIN).into();
                body.address = self.input.near(segment.address).into();
                self.ask(Opcode::RegisterMemory, &body);
            }
            6 => {
                let object = u32::from(self.input.byte() % 5);
                let body = DestroyObject {
                    object: self.input.near32(object).into(),
                    number: self.input.near32(qp).into(),
                };
                self.ask(Opcode::DestroyObject, &body);
            }
            7 => {
                let ring = self.ring(qp);
                let mut body = CreateSharedReceiveQueue::new_zeroed();
                body.srq = self.input.near32(SRQ + 1).into();
                body.domain = self.input.near32(DOMAIN).into();
                body.token = 6.into();
                body.ring = ring;
                body.limit = self.input.near32(2).into();
                body.sges = self.input.near16(8).into();
                self.ask(Opcode::CreateSharedReceiveQueue, &body);
            }
            8 => {
                let body = ModifySharedReceiveQueue {
                    srq: self.input.near32(SRQ).into(),
                    limit: self.input.near32(2).into(),
                };
                self.ask(Opcode::ModifySharedReceiveQueue, &body);
            }
            _ => {
                let body = QueryQueuePair {
                    qp: self.input.near32(qp).into(),
                    reserved: 0.into(),
                };
                self.ask(Opcode::QueryQueuePair, &body);
            }
        }
    }

    fn ask_for_pair(&mut self, qp: u32) {
        let (send, receive) = (self.ring(qp), self.ring(qp));
        let input = &mut *self.input;
        let mut body = qnic_abi::verbs::requests::CreateQueuePair::new_zeroed();
        let (number, transport) = (input.byte() % 4, input.byte() % 3);
        body.qp = input.near32(40 + u32::from(number)).into();
        body.transport = input.near8(2 + transport);
        body.flags = input.near8(1);
        body.inline = input.near16(512).into();
        body.token = 7.into();
        body.domain = input.near32(DOMAIN).into();
        body.srq = [0, SRQ][usize::from(input.chance(64))].into();
        body.send_cq = input.near32(CQ).into();
        body.receive_cq = input.near32(CQ).into();
        body.send = send;
        if body.srq.get() == 0 {
            body.receive = receive;
        }
        body.send_sges = input.near16(8).into();
        body.receive_sges = input.near16(8).into();
        self.ask(Opcode::CreateQueuePair, &body);
    }

    fn ask_to_modify(&mut self, qp: u32) {
        let states = [
            State::Reset,
            State::Init,
            State::ReadyToReceive,
            State::ReadyToSend,
            State::ReadyToSend,
            State::Draining,
            State::Failed,
        ];
        let state = self.input.pick(&states);
        let peer = (FRIENDLY as u16, qp + 1);
        let right = self.villain.attributes(qp, state, peer);
        let input = &mut *self.input;
        let body = ModifyQueuePair {
            qp: input.near32(qp).into(),
            state: input.near8(right.state),
            access: input.near8(right.access),
            timeout: input.near8(right.timeout),
            path: input.near32(right.path.get()).into(),
            peer_qp: input.near32(right.peer_qp.get()).into(),
            send_psn: input.near32(right.send_psn.get()).into(),
            receive_psn: input.near32(right.receive_psn.get()).into(),
            max_reads: input.near8(right.max_reads),
            ..right
        };
        self.ask(Opcode::ModifyQueuePair, &body);
    }

    fn time(&mut self) {
        match self.input.byte() {
            0..=95 => drop(self.net.poll(HOSTILE)),
            96..=175 => self.net.run(),
            // The villain takes nothing, but moves its index.
            176..=199 => drop(self.friend.poll_all()),
            _ => pass(&self.net, 1 << self.input.below(34)),
        }
        if let Some(frames) = self.net.cluster().outside.get_mut(&STRANGER) {
            frames.clear();
        }
    }

    /// A page of either side goes away, or cannot be brought in.
    fn pages(&mut self) {
        let number = self.input.below(PAGES as usize - 1) as u64;
        let (evicts, available) = (self.input.chance(192), self.input.chance(128));
        let party = &self.side().0.party;
        match evicts {
            true => party.evict(page(number)),
            false => party.set_available(page(number), available),
        }
    }
}
