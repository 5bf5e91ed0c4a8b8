//! A hostile guest among honest ones, for the targets `commands` and `control`.
//!
//! ```text
//!   node 0: neighbour, villain ───► node 1: friend, a ◄──────► node 2: b
//!           the hostile guest       whose key it has    honest
//! ```
//! Either only the villain's process is hostile, then its neighbour on the same node must
//! not notice; or all of node 0 is, its kernel included, then the other nodes must not.

use qnic_abi::atomic::Function;
use qnic_abi::client::{Command, Memory};
use qnic_abi::collective::{CollectiveCommand, JoinGroupCommand, LeaveGroupCommand};
use qnic_abi::command::CommandBody;
use qnic_abi::context::{pages_of, CONTEXT_PAGES};
use qnic_abi::message::{CancelCommand, ProbeCommand, ReceiveCommand, ReceiveFlags, SendCommand};
use qnic_abi::multicast::MulticastCommand;
use qnic_abi::page_table::{entry_of, PageAccess, Tag};
use qnic_abi::process_names::{NameCommand, ProcessName};
use qnic_abi::window::{
    command_offset, ARMED, AWAKE, COMMAND_ENTRIES, COMPLETION_HEAD, NOTIFICATION_HEAD,
    WAKE_REQUEST, WINDOW_BYTES,
};
use qnic_abi::{Key, SegmentId, VniId};
use qnic_nic::testing::{page, Datagrams, Net, Party, PAGE};
use qnic_nic::Limits;

use crate::driver::Driver;
use crate::honest::{check_bounds, limits, party, pass, reset, Pair, BYTES, PAGES, WINDOWS};
use crate::input::Input;

/// The node of the hostile guest.
pub(crate) const HOSTILE: usize = 0;

/// Bytes of `b` that no hostile process has the right to change.
const KEPT: u64 = 500;

/// A cluster with a hostile guest.
pub(crate) struct Guest<'a, 'b> {
    pub(crate) input: &'a mut Input<'b>,
    pub(crate) net: Net,
    pub(crate) villain: Party,
    pub(crate) neighbour: Pair,
    pub(crate) friend: Party,
    /// All of the node is hostile.
    pub(crate) kernel: bool,
    /// Its driver, if it is.
    pub(crate) driver: Option<Datagrams>,
    /// The driver of `b`'s node.
    honest: Driver,
    limits: Limits,
    pair: Pair,
    kept: Vec<u8>,
}

impl<'a, 'b> Guest<'a, 'b> {
    /// A cluster whose honest processes have talked already.
    pub(crate) fn new(input: &'a mut Input<'b>, kernel: bool) -> Self {
        let limits = limits();
        let net = Net::new(3, 144, WINDOWS, &limits);
        let (a, b) = (party(&net, 1, 1), party(&net, 2, 2));
        let (neighbour, c) = (party(&net, HOSTILE, 1), party(&net, 2, 3));
        let (villain, friend) = (party(&net, HOSTILE, 3), party(&net, 1, 4));
        net.answer_faults(false);
        net.cluster().lossless = !input.chance(128);
        net.cluster().outside.insert(7, Vec::new());
        input.hide(&[&a, &b, &c, &neighbour].map(|party| party.segment.key));
        let drivers: &[usize] = if kernel { &[1, 2] } else { &[HOSTILE, 1, 2] };
        let mut pair = Pair::new(a, b, drivers);
        let mut neighbour = Pair::new(neighbour, c, &[HOSTILE, 1, 2]);
        pair.exchange();
        neighbour.exchange();
        let kept = pair.b.bytes(0, KEPT);
        Guest {
            input,
            villain,
            neighbour,
            friend,
            kernel,
            driver: kernel.then(|| Datagrams::register(&net, HOSTILE, 5).expect("a driver")),
            honest: Driver::new(&net, 2),
            net,
            limits,
            pair,
            kept,
        }
    }

    /// What holds after each step.
    pub(crate) fn check(&mut self) {
        self.honest.check();
        check_bounds(&self.net, &self.limits, &self.pair.drivers);
        if let Some(frames) = self.net.cluster().outside.get_mut(&7) {
            frames.clear();
        }
    }

    /// What holds at the end; then resets the hostile NIC, and it serves again.
    pub(crate) fn end(mut self) {
        assert_eq!(self.pair.b.bytes(0, KEPT), self.kept, "bytes of others");
        self.pair.exchange();
        if !self.kernel {
            self.neighbour.exchange();
        }
        self.check();
        reset(&self.net, HOSTILE);
        if !self.kernel {
            self.net.assert_unlocked();
        }
        self.net.cluster().start(HOSTILE);
        self.neighbour.a = party(&self.net, HOSTILE, 1);
        self.neighbour.drivers = vec![HOSTILE, 1, 2];
        self.neighbour.exchange();
        self.pair.exchange();
        self.check();
    }

    /// Time passes, or NICs have a turn.
    pub(crate) fn time(&mut self) {
        match self.input.byte() {
            0..=127 => drop(self.net.poll(HOSTILE)),
            128..=175 => self.net.run(),
            176..=199 => drop(self.net.cluster().sleeps(HOSTILE)),
            200..=223 => self.pair.serve(),
            _ => pass(&self.net, 1 << self.input.below(34)),
        }
    }

    pub(crate) fn ring(&mut self) {
        let vni = VniId(u16::from(self.input.byte()) % WINDOWS as u16);
        self.net.cluster().ring(HOSTILE, vni);
    }

    /// A command that is right but for what the input makes wrong.
    pub(crate) fn command(&mut self) {
        let input = &mut *self.input;
        let others = [self.friend.segment, self.villain.segment];
        let other = others[usize::from(input.chance(64))];
        let own = self.villain.segment;
        let mut remote = other.to(0);
        remote.memory.address = input.near_within(other.address, BYTES);
        remote.memory.key.0 = input.near(other.key);
        remote.memory.segment.0 = input.near16(other.id.0);
        remote.node.0 = match input.byte() {
            0..=215 => other.node as u16,
            216..=239 => 7,
            _ => input.short(),
        };
        remote.port.0 = input.near16(other.port.0);
        let local = Memory {
            address: input.near_within(own.address, BYTES),
            key: Key(input.near(own.key)),
            segment: SegmentId(input.near16(own.id.0)),
        };
        let length = input.near_within(0, BYTES / 2);
        let function = input.pick(&Function::ALL);
        let mut command = match input.byte() % 4 {
            0 => Command::write(local, remote, length),
            1 => Command::read(local, remote, length),
            2 => Command::inline_write(remote, input.near8(40)),
            _ => {
                remote.memory.address &= !31;
                let width = if function.is_on_queue() { 32 } else { 8 };
                let operands = [input.near(1), input.near(2)];
                let command = Command::atomic(function, remote, width, operands, input.near16(3));
                command.inline(function.inline_length())
            }
        };
        let ends = (other.node as u16, other.port.0);
        match input.byte() {
            0..=95 => return self.message_command(local, length, ends),
            96..=143 => return self.group_command(local, length, ends),
            144..=175 => return self.datagram_command(),
            _ => {}
        }
        command.opcode = input.near8(command.opcode);
        command.flags = input.near8(0);
        if input.chance(64) {
            command.notification = Some(input.near32(5));
        }
        self.villain.post(&command.descriptor());
    }

    /// A command of messages that is right but for what the input makes wrong.
    fn message_command(&mut self, local: Memory, length: u64, (node, port): (u16, u16)) {
        let input = &mut *self.input;
        let tag = u64::from(input.byte() % 4);
        let mut descriptor = match input.byte() % 8 {
            0 | 1 | 4 => {
                let mut send = SendCommand::command();
                send.length = length.into();
                send.local_address = local.address.into();
                send.local_key = local.key.0.into();
                send.local_segment = local.segment.0.into();
                send.endpoint = input.near16(0).into();
                let word = input.near32(0);
                send.flags = (word as u16).into();
                send.reserved = ((word >> 16) as u16 / 0xff00).into();
                send.descriptor()
            }
            5 => return self.claimed_command(local, length),
            6 => return self.context_command(tag, length, (node, port)),
            7 => {
                let mut probe = ProbeCommand::command();
                probe.ignore = input.near(3).into();
                probe.endpoint = input.near16(0).into();
                let flags = u32::from(input.byte() % 4) << 2;
                probe.flags = input.near32(flags | u32::from(tag as u8 & 1) << 1).into();
                probe.descriptor()
            }
            2 => {
                let mut receive = ReceiveCommand::command();
                receive.ignore = input.near(3).into();
                receive.length = length.into();
                receive.local_address = local.address.into();
                receive.local_key = local.key.0.into();
                receive.local_segment = local.segment.0.into();
                receive.endpoint = input.near16(0).into();
                receive.flags = input.near32(u32::from(tag as u8) << 1).into();
                receive.descriptor()
            }
            _ => CancelCommand::command().descriptor(),
        };
        let words = [input.near(tag), input.near(tag)];
        if descriptor.header.opcode != CancelCommand::OPCODE {
            let any = descriptor.header.opcode != SendCommand::OPCODE && input.chance(128);
            let (node, port) = if any { (0, 0) } else { (node, port) };
            descriptor.header.remote_node = input.near16(node).into();
            descriptor.header.remote_port = input.near16(port).into();
            descriptor.body[8..16].copy_from_slice(&words[1].to_le_bytes());
        }
        descriptor.body[..8].copy_from_slice(&words[0].to_le_bytes());
        descriptor.header.inline_length = input.near8(0);
        self.villain.post(&descriptor);
    }

    /// A message by a context that is right but for what the input makes wrong. A few numbers, so
    /// that contexts under way are named again.
    fn context_command(&mut self, tag: u64, length: u64, (node, port): (u16, u16)) {
        let input = &mut *self.input;
        let index = usize::from(input.byte() % 4);
        let sends = input.chance(144);
        let described = match sends {
            true => self.villain.send_context(index, &self.friend),
            false => self.villain.receive_context(index),
        };
        let described = match input.byte() % 8 {
            0 if sends => described.short(input.bytes(140)),
            0..=2 => {
                let (page, offset) = (input.byte() % 18, input.short() % 4100);
                described.pool(page.into(), offset, length)
            }
            _ => {
                let offset = u64::from(input.short()) % PAGE;
                let count = pages_of(offset as usize, length).min(3 * CONTEXT_PAGES as u64);
                let number = |_| u64::from(input.byte() % 8);
                let pages: Vec<u64> = (0..count).map(number).collect();
                let described = described.pages(&pages, offset, length);
                match pages.len() > CONTEXT_PAGES {
                    true => described.list((input.byte() % 18).into()),
                    false => described,
                }
            }
        };
        let mut described = described.tag(tag);
        let context = &mut described.context;
        context.flags = input
            .near32(context.flags.get() | u32::from(tag as u8) << 2)
            .into();
        context.length = input.near(context.length.get()).into();
        context.pages = input.near16(context.pages.get()).into();
        context.local_key = input.near(context.local_key.get()).into();
        context.endpoint = input.near16(0).into();
        if sends {
            context.remote_node = input.near16(node).into();
            context.remote_port = input.near16(port).into();
        }
        let descriptor = &mut described.pages[usize::from(input.byte()) % CONTEXT_PAGES];
        descriptor.address = input.near(descriptor.address.get()).into();
        descriptor.length = input.near16(descriptor.length.get()).into();
        if input.chance(48) {
            self.villain.cancel_context(index);
        }
        described.issue();
    }

    /// Receives or discards what may be a claimed message of the process: the numbers of a NIC
    /// are small.
    fn claimed_command(&mut self, local: Memory, length: u64) {
        let input = &mut *self.input;
        let mut receive = ReceiveCommand::command();
        receive.handle = input.near(1).into();
        receive.tag = (1 + u64::from(input.byte() % 64)).into();
        let mut flags = ReceiveFlags::CLAIMED;
        if input.chance(96) {
            flags |= ReceiveFlags::DISCARD;
        } else {
            receive.length = length.into();
            receive.local_address = local.address.into();
            receive.local_key = local.key.0.into();
            receive.local_segment = local.segment.0.into();
        }
        receive.flags = input.near32(flags.bits()).into();
        self.villain.post(&receive.descriptor());
    }

    /// A command of groups that is right but for what the input makes wrong.
    fn group_command(&mut self, local: Memory, length: u64, (node, port): (u16, u16)) {
        let input = &mut *self.input;
        let group = 1 + u64::from(input.byte() % 16);
        let descriptor = match input.byte() {
            0..=95 => {
                let own = input.chance(192);
                let size = 1 + u32::from(input.byte() % 3);
                let rank = if own { 0 } else { 1 };
                let (node, port) = match own {
                    true => (HOSTILE as u16, self.villain.port.0),
                    false => (node, port),
                };
                let mut join = JoinGroupCommand::command();
                join.header.remote_node = input.near16(node).into();
                join.header.remote_port = input.near16(port).into();
                join.name = u64::from(input.byte() % 4).into();
                join.size = input.near32(size).into();
                join.rank = input.near32(rank).into();
                join.timeout_ms = input.near32(1000).into();
                join.descriptor()
            }
            96..=107 => {
                let mut name = NameCommand::command();
                name.handle = group.into();
                let process = u32::from(input.byte() % 12);
                name.name = ProcessName::new("fuzz", process).unwrap_or_default();
                let action = 1 + input.byte() % 3;
                name.action = input.near8(action);
                let wait = if name.action == 3 { 50 } else { 0 };
                name.timeout_ms = input.near32(wait).into();
                name.descriptor()
            }
            120..=127 => {
                let mut send = MulticastCommand::command();
                send.group = input.near(group).into();
                send.length = input.near32(length as u32).into();
                send.local_address = local.address.into();
                send.local_key = local.key.0.into();
                send.local_segment = local.segment.0.into();
                send.flags = input.near8(0);
                send.descriptor()
            }
            108..=119 => {
                let mut leave = LeaveGroupCommand::command();
                leave.group = input.near(group).into();
                leave.descriptor()
            }
            _ => {
                let mut call = CollectiveCommand::command();
                call.group = input.near(group).into();
                call.length = input.near(length & !7).into();
                call.local_address = local.address.into();
                call.local_key = local.key.0.into();
                call.local_segment = local.segment.0.into();
                call.timeout_ms = input.near32(100).into();
                let right = [4, 7, 6].map(|most| 1 + input.byte() % most);
                let [collective, operator, element] = right.map(|right| input.near8(right));
                call.collective = collective;
                if collective > 2 {
                    (call.operator, call.element) = (operator, element);
                }
                call.descriptor()
            }
        };
        self.villain.post(&descriptor);
    }

    /// Words of the own window, most of them where the NIC looks.
    pub(crate) fn scribble_window(&mut self) {
        let input = &mut *self.input;
        let slot = command_offset(input.below(COMMAND_ENTRIES) as u64);
        let offset = match input.byte() {
            0..=31 => AWAKE,
            32..=63 => WAKE_REQUEST + usize::from(input.byte() % 2) * 8,
            64..=71 => COMPLETION_HEAD,
            72..=79 => NOTIFICATION_HEAD,
            80..=95 => ARMED + usize::from(input.byte() % 16) * 8,
            96..=223 => slot + usize::from(input.byte() % 24) * 8,
            _ => input.below(WINDOW_BYTES / 8) * 8,
        };
        let word = input.raw();
        self.net
            .store(HOSTILE, self.villain.window() + offset, word);
    }

    /// A word anywhere in the SRAM, most of them in the tables.
    pub(crate) fn scribble_sram(&mut self) {
        let geometry = *self.net.cluster().nodes[HOSTILE].nic.geometry();
        let input = &mut *self.input;
        let frame = input.below(geometry.frames as usize) as u32;
        let address = self.villain.segment.address;
        let tag = Tag::new(self.villain.vni, address);
        let (offset, right) = match input.byte() {
            0..=63 => {
                let row = tag.row(geometry.rows);
                let entry = entry_of(frame);
                (
                    geometry.entry_offset(row, 0) & !7,
                    u64::from(entry) << 32 | u64::from(entry),
                )
            }
            64..=111 => (geometry.vpn_word(frame), tag.word(PageAccess::Write)),
            112..=143 => (geometry.key_word(frame), 0xaa00),
            144..=175 => (geometry.lock_word(frame) & !7, 1),
            176..=191 => (geometry.dirty_nic_word(frame) & !7, u64::MAX),
            _ => (input.below(geometry.sram_bytes as usize / 8) * 8, 0),
        };
        let word = input.near(right);
        self.net.store(HOSTILE, offset, word);
    }

    /// Pages of the villain come and go, and its driver answers faults: honestly.
    pub(crate) fn paging(&mut self) {
        let input = &mut *self.input;
        let at = page(input.below(PAGES as usize - 1) as u64);
        match input.byte() {
            0..=99 => self.villain.evict(at),
            100..=139 => self.villain.set_available(at, input.chance(128)),
            _ if self.net.faults(HOSTILE) > 0 => {
                let index = input.below(self.net.faults(HOSTILE));
                self.net.answer(HOSTILE, index, input.byte().into());
            }
            _ => {}
        }
    }

    /// Starts the queue again; the driver frees its slots, or not.
    pub(crate) fn reset_queue(&mut self) {
        let _ = self.villain.reset_queue();
        if !self.input.chance(64) {
            self.villain.clear_queue();
        }
    }
}
