//! Frames into a NIC in any state.
//!
//! ```text
//!   node 0: a ◄───────────► node 1: b, victim ◄──── strangers: nodes 7 to 16
//!          honest                                   any frame, any order
//! ```
//! Strangers know the key of the victim, as if they had imported its segment, and not that
//! of `b`. The victim's pages come and go, its faults are answered late, its commands go to
//! strangers, which answer what they like.
//!
//! The driver of that node keeps buffers of datagrams posted.
//!
//! After any input: `b` holds what it held, `a` and `b` exchange data, all lists are within
//! their limits, no page is locked, packets are in their buffers; and once more after a reset.

use qnic_abi::atomic::kind as atomic;
use qnic_abi::collective::{kind as collective, Element, Operator};
use qnic_abi::command::CommandBody;
use qnic_abi::datagram::kind as datagram;
use qnic_abi::directory::kind as directory;
use qnic_abi::host_area::HEAD;
use qnic_abi::message::kind as message;
use qnic_abi::multicast::kind as multicast;
use qnic_abi::process_names::{kind as names, NameEntry};
use qnic_abi::rdma::kind as rdma;
use qnic_abi::window::COMMAND_ENTRIES;
use qnic_abi::wire::{
    kind, Class, Frame, BODY_BYTES, FRAME_MAGIC, MAX_PAYLOAD, MAX_SPAN, WIRE_VERSION,
};
use qnic_abi::PAGE_SIZE;
use qnic_nic::testing::{page, Memory, Net, Party, SimSegment, PAGE};
use qnic_nic::{Limits, Payload};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::driver::{self, Driver};
use crate::group_bodies;
use crate::honest::{check_bounds, limits, party, pass, reset, Pair, BYTES, PAGES, WINDOWS};
use crate::input::Input;

/// Most steps of one input.
const STEPS: usize = 96;

/// The node that is attacked.
const TARGET: usize = 1;

/// The first stranger; the others follow.
const STRANGER: u16 = 7;

/// Strangers: with both nodes more than a NIC may have peers.
const STRANGERS: usize = 10;

/// Whole pages of the victim's segment.
const WHOLE_PAGES: usize = PAGES as usize - 1;

/// Frames of the NIC that strangers remember.
const REMEMBERED: usize = 64;

/// Every kind, with the length of its body.
const KINDS: [(u8, u8); 38] = [
    (rdma::WRITE, 40),
    (rdma::READ_REQUEST, 40),
    (rdma::READ_RESPONSE, 16),
    (atomic::ATOMIC_REQUEST, 40),
    (atomic::ATOMIC_RESPONSE, 16),
    (directory::IMPORT_REQUEST, 32),
    (directory::IMPORT_RESPONSE, 40),
    (kind::ACK, 40),
    (kind::NAK, 16),
    (kind::HELLO, 8),
    (kind::HELLO_REPLY, 8),
    (kind::GOODBYE, 0),
    (kind::LEAVE, 16),
    (kind::PROCESS_GONE, 8),
    (kind::WINDOW, 8),
    (kind::WINDOW_TAKEN, 8),
    (message::MESSAGE, 40),
    (message::MESSAGE_REQUEST, 56),
    (message::MESSAGE_PERMIT, 24),
    (message::MESSAGE_DATA, 24),
    (message::MESSAGE_END, 8),
    (message::MESSAGE_SEEK, 8),
    (message::MESSAGE_GONE, 8),
    (collective::COLLECTIVE_UP, 40),
    (collective::COLLECTIVE_DOWN, 40),
    (collective::GROUP_FORM, 40),
    (collective::GROUP_END, 24),
    (collective::GROUP_SEEK, 24),
    (collective::GROUP_JOIN, 32),
    (collective::GROUP_REFUSED, 16),
    (collective::GROUP_FORMED, 16),
    (collective::GROUP_START, 16),
    (collective::GROUP_GREET, 16),
    (multicast::MULTICAST, 48),
    (multicast::MULTICAST_TAKEN, 24),
    (names::NAMES, 8),
    (names::NAMES_SEEN, 0),
    (datagram::DATAGRAM, 56),
];

/// One node outside.
#[derive(Debug, Clone, Copy)]
struct Stranger {
    node: u16,
    /// Its own session and that of the NIC.
    sessions: [u64; 2],
    /// Number of its next frame.
    sequence: u64,
}

struct Attack<'a, 'b> {
    input: &'a mut Input<'b>,
    net: Net,
    limits: Limits,
    pair: Pair,
    victim: Party,
    driver: Driver,
    strangers: Vec<Stranger>,
    foreign: Memory,
}

/// Runs one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut attack = Attack::new(&mut input);
    attack.pair.exchange();
    let kept = attack.pair.b.bytes(0, 500);
    for _ in 0..STEPS {
        if attack.input.is_empty() {
            break;
        }
        attack.step();
        attack.driver.check();
        check_bounds(&attack.net, &attack.limits, &[0, TARGET]);
    }
    assert_eq!(attack.pair.b.bytes(0, 500), kept, "bytes of a stranger");
    attack.pair.exchange();
    attack.end();
}

impl<'a, 'b> Attack<'a, 'b> {
    fn new(input: &'a mut Input<'b>) -> Self {
        let limits = limits();
        let net = Net::new(2, 144, WINDOWS, &limits);
        let (a, b, victim) = (
            party(&net, 0, 1),
            party(&net, TARGET, 2),
            party(&net, TARGET, 3),
        );
        net.answer_faults(false);
        net.cluster().lossless = !input.chance(128);
        let strangers = (0..STRANGERS as u16).map(|index| Stranger {
            node: STRANGER + index,
            sessions: [1000, 0],
            sequence: 1,
        });
        let strangers: Vec<_> = strangers.collect();
        for stranger in &strangers {
            net.cluster().outside.insert(stranger.node, Vec::new());
        }
        input.hide(&[a.segment.key, b.segment.key]);
        Attack {
            input,
            pair: Pair::new(a, b, &[0, TARGET]),
            driver: Driver::new(&net, TARGET),
            net,
            limits,
            victim,
            strangers,
            foreign: Memory::new(MAX_SPAN + PAGE_SIZE),
        }
    }

    fn step(&mut self) {
        match self.input.byte() {
            0..=119 => self.frame(),
            120..=159 => drop(self.net.poll(TARGET)),
            160..=179 => self.command(),
            180..=189 => self.handshake(),
            190..=199 => self.net.poll_both(self.input.below(16) as u32),
            200..=214 => self.answer(),
            215..=229 => {
                let number = self.input.below(WHOLE_PAGES) as u64;
                self.victim.evict(page(number));
            }
            230..=239 => {
                let number = self.input.below(WHOLE_PAGES) as u64;
                let available = self.input.chance(128);
                self.victim.set_available(page(number), available);
            }
            240..=247 => pass(&self.net, 1 << self.input.below(34)),
            248..=251 => drop(self.victim.unexport(&self.victim)),
            252..=253 => drop(self.victim.reset_queue()),
            _ => self.replace_victim(),
        }
        self.listen();
    }

    /// The strangers learn the session of the NIC, and forget old frames.
    fn listen(&mut self) {
        let cluster = &mut *self.net.cluster();
        for stranger in &mut self.strangers {
            let Some(frames) = cluster.outside.get_mut(&stranger.node) else {
                continue;
            };
            if let Some(last) = frames.last() {
                stranger.sessions[1] = last.envelope.source_session.get();
            }
            let old = frames.len().saturating_sub(REMEMBERED);
            frames.drain(..old);
        }
    }

    fn stranger(&mut self) -> usize {
        match self.input.chance(48) {
            true => self.input.below(STRANGERS),
            false => 0,
        }
    }

    /// A session from its beginning.
    fn handshake(&mut self) {
        let index = self.stranger();
        self.strangers[index].sessions[0] += u64::from(self.input.byte() % 4);
        self.strangers[index].sequence = 1;
        let mut frame = self.envelope(index, kind::HELLO, 8);
        frame.envelope.destination_session = 0.into();
        frame.body[..4].copy_from_slice(&64u32.to_le_bytes());
        self.hand(&frame, Payload::None);
        self.net.poll(TARGET);
    }

    /// An envelope in the stranger's session, without a number.
    fn envelope(&self, stranger: usize, kind: u8, body_length: u8) -> Frame {
        let stranger = &self.strangers[stranger];
        let mut frame = Frame::new_zeroed();
        let envelope = &mut frame.envelope;
        envelope.magic = FRAME_MAGIC.into();
        envelope.version = WIRE_VERSION;
        envelope.kind = kind;
        envelope.body_length = body_length;
        envelope.source_node = stranger.node.into();
        envelope.destination_node = (TARGET as u16).into();
        envelope.source_port = 55.into();
        envelope.destination_port = self.victim.port.0.into();
        envelope.source_session = stranger.sessions[0].into();
        envelope.destination_session = stranger.sessions[1].into();
        frame
    }

    /// A frame that the NIC has sent to a stranger.
    fn remembered(&mut self, stranger: usize) -> Frame {
        let cluster = self.net.cluster();
        let frames = &cluster.outside[&self.strangers[stranger].node];
        let back = usize::from(self.input.byte() % 8);
        let index = frames.len().checked_sub(1 + back);
        index.map_or_else(Frame::new_zeroed, |index| frames[index])
    }

    fn frame(&mut self) {
        let index = self.stranger();
        let (kind, length) = self.input.pick(&KINDS);
        let (kind, length) = (self.input.near8(kind), self.input.near8(length));
        let seen = self.remembered(index);
        let mut frame = self.envelope(index, kind, length);
        if kind == datagram::DATAGRAM {
            frame.envelope.destination_port = driver::port(self.input).into();
        }
        let words = self.body(kind, &seen);
        frame.body.copy_from_slice(&words.as_bytes()[..BODY_BYTES]);
        let class = Class::of(kind);
        let mut length = self.payload_length(class);
        if kind == names::NAMES && self.input.chance(240) {
            length -= length % size_of::<NameEntry>();
        }
        if kind == collective::GROUP_FORM && self.input.chance(240) {
            length = group_bodies::form_length(&words, self.input);
        }
        let fragments = (length.div_ceil(PAGE_SIZE)).max(1) as u8;
        let input = &mut *self.input;
        let stranger = &mut self.strangers[index];
        let envelope = &mut frame.envelope;
        if class.is_numbered() {
            let fragments = input.near8(fragments);
            envelope.fragments = fragments;
            envelope.sequence = input.near(stranger.sequence).into();
            if envelope.sequence.get() == stranger.sequence {
                stranger.sequence += u64::from(fragments);
            }
        }
        envelope.payload_length = (length as u16).into();
        envelope.destination_port = input.near16(envelope.destination_port.get()).into();
        envelope.source_port = input.near16(55).into();
        envelope.operation = input.near(seen.envelope.operation.get()).into();
        let last = seen.envelope.sequence.get();
        envelope.acknowledge = input.near(last).into();
        envelope.delivered = input.near(last).into();
        if input.chance(16) {
            envelope.source_session = input.near(stranger.sessions[0]).into();
            envelope.destination_session = input.near(stranger.sessions[1]).into();
            envelope.destination_node = input.near16(TARGET as u16).into();
        }
        let mut bytes = [7; MAX_SPAN];
        if kind == names::NAMES {
            group_bodies::fill_names(&mut bytes[..length], self.input);
        }
        if kind == collective::GROUP_FORM {
            group_bodies::fill_form(&mut bytes[..length], self.input);
        }
        if length == 0 {
            self.hand(&frame, Payload::None);
        } else if self.input.chance(64) {
            self.hand_from_memory(&frame, length);
        } else {
            self.hand(&frame, Payload::Bytes(&bytes[..length]));
        }
    }

    fn payload_length(&mut self, class: Class) -> usize {
        if !class.takes_payload() {
            return usize::from(self.input.chance(4));
        }
        match self.input.byte() {
            0..=63 => 8,
            64..=127 => usize::from(self.input.byte()),
            128..=191 => MAX_PAYLOAD,
            192..=223 => self.input.below(MAX_PAYLOAD + 1),
            224..=239 => MAX_SPAN,
            _ => self.input.below(MAX_SPAN + 1),
        }
    }

    /// The words of a body: right but for what the input makes wrong.
    fn body(&mut self, kind: u8, seen: &Frame) -> [u64; BODY_BYTES.div_ceil(8)] {
        let segment = self.victim.segment;
        let port = self.victim.port.0;
        let input = &mut *self.input;
        let address = segment.address + u64::from(input.short()) % segment.length;
        let packed = |input: &mut Input<'_>, low: u32, middle: u16, high: u16| {
            let low = u64::from(input.near32(low));
            let middle = u64::from(input.near16(middle));
            low | middle << 32 | u64::from(input.near16(high)) << 48
        };
        let id = segment.id.0;
        let right = match kind {
            rdma::WRITE => {
                let notification = input.near32(5);
                let flags = u16::from(input.chance(64));
                let low = u64::from(input.near16(id)) | u64::from(flags) << 16;
                [
                    address,
                    segment.key,
                    0,
                    0,
                    low | u64::from(notification) << 32,
                ]
            }
            rdma::READ_REQUEST => {
                let length = u32::from(input.short()) % (2 * PAGE_SIZE as u32);
                let inside = (address % PAGE) as u16;
                [
                    address,
                    segment.key,
                    0,
                    0,
                    packed(input, length, id, inside),
                ]
            }
            atomic::ATOMIC_REQUEST => {
                let function = 1 + u16::from(input.byte() % 11);
                let length = if function >= 7 { 32 } else { 8 };
                let operand = address & !(u64::from(length) - 1);
                [
                    operand,
                    segment.key,
                    1,
                    2,
                    packed(input, length, function, id),
                ]
            }
            directory::IMPORT_REQUEST => {
                let name = 7 + u64::from(input.byte() % 4);
                let secret = u64::from_ne_bytes([input.byte() % 4; 8]);
                [name, u64::from(input.short()), secret, secret, 0]
            }
            directory::IMPORT_RESPONSE => [0x10_0000, BYTES, 5, 3 << 32, 0],
            kind::NAK => {
                let status = input.byte() % 32;
                let refused = u64::from(seen.envelope.kind) << 32;
                [
                    u64::from(status) | refused,
                    seen.envelope.sequence.get(),
                    0,
                    0,
                    0,
                ]
            }
            message::MESSAGE | message::MESSAGE_REQUEST => {
                let (tag, after) = (input.byte() % 4, input.byte() % 8);
                let length = match input.byte() % 3 {
                    0 => 8,
                    1 => PAGE,
                    _ => u64::from(input.short()),
                };
                [tag.into(), 5, length, after.into(), 0]
            }
            message::MESSAGE_PERMIT => [1, u64::from(input.short()), 0, 0, 0],
            message::MESSAGE_DATA => {
                // The last permit that the NIC has given, if it was that.
                let words = <[u64; 3]>::read_from_prefix(&seen.body);
                let [receive, _, page_offset] = words.map_or([0; 3], |words| words.0);
                [receive, 0, page_offset, 0, 0]
            }
            message::MESSAGE_END => [16, 0, 0, 0, 0],
            message::MESSAGE_SEEK | message::MESSAGE_GONE => {
                [u64::from(input.byte() % 2), 0, 0, 0, 0]
            }
            kind::ACK => [u64::from(input.byte() % 2), input.raw(), 0, 0, 0],
            kind::HELLO | kind::HELLO_REPLY => [64, 0, 0, 0, 0],
            kind::LEAVE => [1, 1 + u64::from(input.byte() % 4), 0, 0, 0],
            kind::WINDOW | kind::WINDOW_TAKEN => [64, 0, 0, 0, 0],
            _ => group_bodies::words(kind, seen, port, input),
        };
        let words = right.map(|word| input.near(word));
        let behind = if input.chance(4) { input.raw() } else { 0 };
        let mut body = [behind; BODY_BYTES.div_ceil(8)];
        body[..words.len()].copy_from_slice(&words);
        if kind == message::MESSAGE_REQUEST {
            // Packets and their length.
            body[5] = input.near(words[2].div_ceil(PAGE));
            body[6] = input.near(PAGE);
        }
        body
    }

    fn hand(&self, frame: &Frame, payload: Payload<'_, Memory>) {
        let cluster = &mut *self.net.cluster();
        let (now, node) = (cluster.now, &mut cluster.nodes[TARGET]);
        node.nic.handle_frame(now, &node.host, frame, payload);
    }

    /// The payload lies in pages, as within one device process.
    fn hand_from_memory(&mut self, frame: &Frame, length: usize) {
        let pages: Vec<u64> = (0..=MAX_SPAN as u64 / PAGE)
            .map(|page| page * PAGE)
            .collect();
        let payload = Payload::Memory {
            memory: &self.foreign,
            pages: &pages,
            offset: self.input.below(PAGE_SIZE),
            length,
        };
        self.hand(frame, payload);
    }

    /// A command of the victim to a stranger, or to an honest process that has no such key.
    fn command(&mut self) {
        let stranger = self.stranger();
        let node = usize::from(match self.input.chance(32) {
            true => self.input.below(3) as u16,
            false => self.strangers[stranger].node,
        });
        let remote = SimSegment {
            node,
            ..self.victim.segment
        };
        let length = u64::from(self.input.short()) % (BYTES / 2);
        let kind = self.input.byte();
        match self.input.byte() {
            0..=95 => return self.message_command(remote, length),
            96..=143 => return self.group_command(remote, length),
            _ => {}
        }
        let operands = [self.input.byte().into(), 1];
        let function = self.input.pick(&qnic_abi::atomic::Function::ALL);
        let command = match kind % 4 {
            0 => self.victim.write(remote).bytes(length),
            1 => self.victim.read(remote).bytes(length),
            2 => self.victim.inline_write(remote, &[1; 40]).notify(5),
            _ => match function.inline_length() {
                0 => self.victim.atomic(function, remote, operands),
                _ => self.victim.atomic(function, remote, operands).masks([3; 2]),
            },
        };
        let _full = command.try_issue();
        if kind >= 240 {
            let _ = self.victim.import(node as u16, self.victim.port, 7, 50);
        }
    }

    /// The victim sends, receives, cancels, or reads completions.
    fn message_command(&mut self, remote: SimSegment, length: u64) {
        let tag = u64::from(self.input.byte() % 4);
        let victim = &self.victim;
        let full = victim.issued() - victim.word(HEAD) >= COMMAND_ENTRIES as u64;
        match self.input.byte() {
            0..=63 => drop(victim.completions()),
            _ if full => {}
            64..=127 => victim.send(tag, remote).tag(tag).bytes(0, length).issue(),
            128..=159 => victim.receive(tag).many().bytes(0, length).issue(),
            160..=191 => victim.receive(tag).tag(tag).bytes(0, length).issue(),
            192..=223 => victim.receive(tag).from(remote).bytes(0, length).issue(),
            _ => victim
                .receive(tag)
                .tag_ignoring(tag, 2)
                .bytes(9, length)
                .issue(),
        }
    }

    /// The victim joins a group, at itself or at a stranger, or takes part in a collective.
    fn group_command(&mut self, remote: SimSegment, length: u64) {
        let input = &mut *self.input;
        let victim = &self.victim;
        if victim.issued() - victim.word(HEAD) >= COMMAND_ENTRIES as u64 {
            return;
        }
        let (handle, name) = (u64::from(input.byte()), u64::from(input.byte() % 4));
        let group = 1 + u64::from(input.byte() % 16);
        let number = u32::from(input.byte() % 16);
        match input.byte() {
            0..=15 => victim.register_name(handle, ("fuzz", number)),
            16..=23 => victim.withdraw_name(handle, ("fuzz", number)),
            24..=47 => victim.look_up(handle, ("fuzz", number * 20), 50),
            48..=95 => {
                let own = input.chance(128);
                let (rank, size) = (u32::from(!own), 1 + u32::from(input.byte() % 3));
                let mut join = victim.join_command(handle, victim, name, (rank, size));
                if !own {
                    join.header.remote_node = (remote.node as u16).into();
                    join.header.remote_port = 55.into();
                }
                join.rank = rank.min(size - 1).into();
                victim.post(&join.descriptor());
            }
            96..=111 => victim.leave(handle, group),
            112..=159 => victim.barrier(handle, group).issue(),
            160..=207 => {
                let call = victim.barrier(handle, group);
                let call = call.allreduce(Operator::Sum, Element::U64);
                call.bytes(0, length & !7).issue();
            }
            _ => {
                let call = victim.barrier(handle, group).broadcast(0);
                call.bytes(3, length).timeout(50).issue();
            }
        }
    }

    /// The driver answers a fault, with as many pages as it likes.
    fn answer(&mut self) {
        let faults = self.net.faults(TARGET);
        if faults > 0 {
            let index = self.input.below(faults);
            let pages = self.input.byte().into();
            self.net.answer(TARGET, index, pages);
        }
    }

    /// The victim ends; another process takes its place.
    fn replace_victim(&mut self) {
        self.victim.end();
        self.net.poll(TARGET);
        self.victim = party(&self.net, TARGET, 3);
    }

    /// Resets the NIC with all that is under way, and goes on.
    fn end(mut self) {
        let stale = self.envelope(0, rdma::WRITE, 40);
        reset(&self.net, TARGET);
        self.net.assert_unlocked();
        self.net.cluster().start(TARGET);
        self.hand(&stale, Payload::None);
        self.pair.b = party(&self.net, TARGET, 2);
        self.pair.exchange();
        check_bounds(&self.net, &self.limits, &[0, TARGET]);
    }
}
