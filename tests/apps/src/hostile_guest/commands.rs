//! Commands of all protocols that are right, most of them for processes of this guest.
//!
//! A command may name segments, groups and messages of others, whose keys and numbers are not
//! known here. Numbers, tags and names are few, so that commands meet each other.

use fastrand::Rng;
use qnic_abi::atomic::Function;
use qnic_abi::client::{Command, Entry, Memory, Remote};
use qnic_abi::collective::{Collective, CollectiveCommand, JoinGroupCommand, LeaveGroupCommand};
use qnic_abi::command::{CommandBody, Descriptor};
use qnic_abi::context::{
    pages_of, ContextCommand, ContextFlags, MessageContext, Opcode, PageDescriptor, CONTEXT_BYTES,
    CONTEXT_PAGES, POOL_PAGES, REGION_BYTES,
};
use qnic_abi::message::{CancelCommand, ProbeCommand, ReceiveCommand, SendCommand};
use qnic_abi::multicast::MulticastCommand;
use qnic_abi::process_names::{NameCommand, ProcessName};
use qnic_abi::window::{receive_context_offset, send_context_offset};
use qnic_abi::{Key, NodeId, Port, SegmentId, PAGE_SIZE};
use zerocopy::IntoBytes;

/// VNIs that are used, each with a port.
pub(super) const VNIS: u16 = 8;

pub(super) fn port(vni: u16) -> u16 {
    100 + vni
}

/// The segment of each process: address and length, and its key.
pub(super) const SEGMENT: (u64, u64) = (VIRTUAL, PAGES * PAGE_SIZE as u64);
const VIRTUAL: u64 = 0x5555_0000_0000;
const PAGES: u64 = 16;
pub(super) const KEY: u64 = 0xfeed_f00d;

/// The port of processes that exchange data on other nodes ([`crate::exchange`]).
const OTHERS_PORT: u16 = 20;

/// Nodes that are named: those of a small cluster, and some that do not exist.
const NODES: u16 = 6;

/// Longest time that a call of a group, a join or a lookup is given.
const TIMEOUT_MS: u32 = 50;

/// A context with its region, and where in the window it stands.
pub(super) type Described = (usize, [u64; CONTEXT_BYTES / 8]);

/// What makes commands: chance, and the node that they come from.
pub(super) struct Commands<'a> {
    pub(super) random: &'a mut Rng,
    pub(super) node: NodeId,
}

impl Commands<'_> {
    /// A command, and the context that it issues, if it is one of a context.
    pub(super) fn any(&mut self) -> (Entry, Option<Described>) {
        let descriptor = match self.random.u8(..16) {
            0..=4 => return (self.transfer(), None),
            5..=6 => self.send(),
            7..=8 => self.receive(),
            9 => self.probe_or_cancel(),
            10..=12 => self.group(),
            _ => {
                let (command, described) = self.context();
                return (Entry::new(&command, &[]), Some(described));
            }
        };
        let payload = vec![0x5a; descriptor.header.inline_length.into()];
        (Entry::new(&descriptor, &payload), None)
    }

    fn memory(&mut self) -> Memory {
        Memory {
            address: VIRTUAL + self.random.u64(..PAGES * PAGE_SIZE as u64),
            key: Key(KEY),
            segment: SegmentId(0),
        }
    }

    fn length(&mut self) -> u64 {
        self.random.u64(..2 * PAGE_SIZE as u64)
    }

    /// This node, or one that may not exist.
    fn other(&mut self) -> (NodeId, Port) {
        let node = match self.random.bool() {
            true => self.node,
            false => NodeId(self.random.u16(..NODES)),
        };
        (node, Port(port(self.random.u16(..VNIS))))
    }

    fn transfer(&mut self) -> Entry {
        let (local, mut memory) = (self.memory(), self.memory());
        let (node, mut port) = self.other();
        if self.random.u8(..4) == 0 {
            port = Port(OTHERS_PORT);
            memory.segment = SegmentId(self.random.u16(..4));
            memory.key = Key(self.random.u64(..));
        }
        let remote = Remote { node, port, memory };
        let length = self.length();
        let command = match self.random.u8(..3) {
            0 => Command::read(local, remote, length),
            1 => Command::write(local, remote, length).notify(self.random.u32(..64)),
            _ => {
                let operands = [self.random.u64(..), self.random.u64(..)];
                let number = self.random.u16(..16);
                let function = Function::ALL[self.random.usize(..Function::ALL.len())];
                Command::atomic(function, remote, 8, operands, number)
                    .inline(function.inline_length())
            }
        };
        command.publish().entry(&[])
    }

    /// Of the few handles, tags and names.
    fn few(&mut self) -> u64 {
        self.random.u64(..4)
    }

    fn send(&mut self) -> Descriptor {
        let (local, (node, port)) = (self.memory(), self.other());
        let mut send = SendCommand::command();
        send.header.remote_node = node.0.into();
        send.header.remote_port = port.0.into();
        (send.handle, send.tag) = (self.few().into(), self.few().into());
        if self.random.bool() {
            send.header.inline_length = self.random.u8(..=128);
            send.length = u64::from(send.header.inline_length).into();
        } else {
            send.length = self.length().into();
            send.local_address = local.address.into();
            send.local_key = local.key.0.into();
        }
        send.descriptor()
    }

    fn receive(&mut self) -> Descriptor {
        let local = self.memory();
        let mut receive = ReceiveCommand::command();
        (receive.handle, receive.tag) = (self.few().into(), self.few().into());
        receive.ignore = self.few().into();
        receive.flags = (2 * self.random.u32(..4)).into();
        if self.random.u8(..4) == 0 {
            // A message that a probe may have claimed, into memory or nowhere.
            receive.flags = (8 * self.random.u32(1..4)).into();
            receive.tag = self.random.u64(1..16).into();
            receive.ignore = 0.into();
        }
        receive.length = self.length().into();
        receive.local_address = local.address.into();
        receive.local_key = local.key.0.into();
        receive.descriptor()
    }

    fn probe_or_cancel(&mut self) -> Descriptor {
        if self.random.bool() {
            let mut cancel = CancelCommand::command();
            cancel.handle = self.few().into();
            cancel.flags = self.random.u32(..2).into();
            return cancel.descriptor();
        }
        let mut probe = ProbeCommand::command();
        (probe.handle, probe.tag) = (self.few().into(), self.few().into());
        probe.ignore = self.few().into();
        // From any process; waiting, claiming, discarding or neither.
        probe.flags = (2 + 4 * self.random.u32(..8)).into();
        probe.descriptor()
    }

    /// Memberships, collectives and names.
    fn group(&mut self) -> Descriptor {
        let group = self.random.u64(1..16);
        match self.random.u8(..8) {
            0..=2 => {
                let (node, home) = self.other();
                let mut join = JoinGroupCommand::command();
                join.header.remote_node = node.0.into();
                join.header.remote_port = home.0.into();
                (join.handle, join.name) = (self.few().into(), self.few().into());
                join.size = self.random.u32(1..4).into();
                join.rank = self.random.u32(..2).into();
                join.timeout_ms = TIMEOUT_MS.into();
                join.descriptor()
            }
            3 => {
                let mut leave = LeaveGroupCommand::command();
                leave.group = group.into();
                leave.descriptor()
            }
            5 => {
                let local = self.memory();
                let mut send = MulticastCommand::command();
                (send.handle, send.group) = (self.few().into(), group.into());
                send.length = (self.length() as u32).into();
                send.local_address = local.address.into();
                send.local_key = local.key.0.into();
                send.flags = self.random.u8(..4);
                send.descriptor()
            }
            4 => {
                let mut name = NameCommand::command();
                name.handle = self.few().into();
                let process = self.random.u32(..);
                name.name = ProcessName::new("hostile", process).unwrap_or_default();
                name.action = self.random.u8(1..=3);
                let waits = if name.action == 3 { TIMEOUT_MS } else { 0 };
                name.timeout_ms = waits.into();
                name.descriptor()
            }
            _ => {
                let local = self.memory();
                let mut call = CollectiveCommand::command();
                (call.handle, call.group) = (self.few().into(), group.into());
                call.timeout_ms = TIMEOUT_MS.into();
                call.collective = self.random.u8(1..=4);
                if call.collective != Collective::Barrier as u8 {
                    call.length = (self.length() & !7).into();
                    call.local_address = local.address.into();
                    call.local_key = local.key.0.into();
                }
                if call.collective >= Collective::Reduce as u8 {
                    call.operator = self.random.u8(1..=7);
                    call.element = self.random.u8(1..=6);
                }
                call.descriptor()
            }
        }
    }

    /// A Send or a Receive of a context: of bytes in its region, in the pool, or in pages.
    fn context(&mut self) -> (Descriptor, Described) {
        let index = self.random.usize(..4);
        let (opcode, at) = match self.random.bool() {
            true => (Opcode::SendContext, send_context_offset(index)),
            false => (Opcode::ReceiveContext, receive_context_offset(index)),
        };
        let sends = opcode == Opcode::SendContext;
        let mut context = MessageContext::default();
        let mut pages = [PageDescriptor::default(); CONTEXT_PAGES];
        let mut flags = ContextFlags::empty();
        flags.set(ContextFlags::NOTIFY, self.random.bool());
        if sends {
            let (node, port) = self.other();
            context.remote_node = node.0.into();
            context.remote_port = port.0.into();
        } else {
            flags |= ContextFlags::ANY_PROC;
            context.ignore_or_immediate = self.few().into();
        }
        context.tag = self.few().into();
        let offset = self.random.usize(..PAGE_SIZE);
        let length = self.length();
        let count = pages_of(offset, length);
        context.length = length.into();
        context.pages = (count as u16).into();
        match self.random.u8(..3) {
            0 if sends => {
                flags |= ContextFlags::REGION;
                context.length = self.random.u64(..=REGION_BYTES as u64).into();
                context.pages = 0.into();
            }
            0 | 1 => {
                flags |= ContextFlags::POOL;
                context.pool_page = self.random.u16(..POOL_PAGES as u16).into();
                context.pool_offset = (offset as u16).into();
            }
            _ => {
                context.local_key = KEY.into();
                self.fill(&mut pages[..count as usize], offset, length);
            }
        }
        context.flags = flags.bits().into();
        let mut words = [0u64; CONTEXT_BYTES / 8];
        let (front, region) = words
            .as_mut_bytes()
            .split_at_mut(size_of::<MessageContext>());
        front.copy_from_slice(context.as_bytes());
        region.copy_from_slice(pages.as_bytes());
        let command = ContextCommand::new(opcode, index, &context);
        (zerocopy::transmute!(command), (at, words.map(u64::from_le)))
    }

    /// Pages of the segment, in any order.
    fn fill(&mut self, pages: &mut [PageDescriptor], offset: usize, length: u64) {
        let mut left = length;
        for (index, page) in pages.iter_mut().enumerate() {
            let from = if index == 0 { offset } else { 0 };
            let bytes = left.min((PAGE_SIZE - from) as u64);
            left -= bytes;
            *page = PageDescriptor {
                address: (VIRTUAL + self.random.u64(..PAGES) * PAGE_SIZE as u64).into(),
                offset: (from as u16).into(),
                length: (bytes as u16).into(),
                valid: 1.into(),
            };
        }
    }
}
