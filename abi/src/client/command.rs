//! Commands with all their fields in the open, so that a test can set any of them.

use crate::atomic::{AtomicCommand, Function};
use crate::command::{CommandBody, CommandFlags, Descriptor, COMMAND_BYTES, DESCRIPTOR_BYTES};
use crate::rdma::{Opcode, WriteCommand};
use crate::{Key, NodeId, Port, SegmentId};
use zerocopy::IntoBytes;

const READ: u8 = Opcode::Read as u8;

/// An address in an exported segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Virtual address.
    pub address: u64,
    /// Key of the segment.
    pub key: Key,
    /// Index of the segment.
    pub segment: SegmentId,
}

/// An address in an exported segment of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remote {
    /// Node of the process.
    pub node: NodeId,
    /// Port of the process.
    pub port: Port,
    /// The address there.
    pub memory: Memory,
}

/// A command: the fields of all opcodes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Command {
    /// Opcode, which decides which fields count.
    pub opcode: u8,
    /// [`CommandFlags`].
    pub flags: u8,
    /// Payload bytes in the entry.
    pub inline_length: u8,
    /// Number of the notification of a write.
    pub notification: Option<u32>,
    /// Bytes to transfer, or of the operand.
    pub length: u64,
    /// Memory of the own process.
    pub local: Memory,
    /// Memory of the other process.
    pub remote: Remote,
    /// Function of an atomic command.
    pub function: u16,
    /// Operands of an atomic command.
    pub operands: [u64; 2],
    /// Result record of an atomic command.
    pub record: u16,
    /// Zero, or the handle of its completion.
    pub handle: u64,
}

impl Command {
    fn new(opcode: u8, local: Memory, remote: Remote, length: u64) -> Self {
        Command {
            opcode,
            length,
            local,
            remote,
            ..Command::default()
        }
    }

    /// A write or a read.
    pub fn transfer(opcode: Opcode, local: Memory, remote: Remote, length: u64) -> Self {
        Self::new(opcode as u8, local, remote, length)
    }

    /// A write from local memory.
    pub fn write(local: Memory, remote: Remote, length: u64) -> Self {
        Self::new(Opcode::Write as u8, local, remote, length)
    }

    /// A write whose payload stands in the entry.
    pub fn inline_write(remote: Remote, length: u8) -> Self {
        let mut command = Self::write(Memory::default(), remote, length.into());
        command.inline_length = length;
        command
    }

    /// A read into local memory.
    pub fn read(local: Memory, remote: Remote, length: u64) -> Self {
        Self::new(READ, local, remote, length)
    }

    /// An atomic command on `length` bytes, with its result in that record.
    pub fn atomic(
        function: Function,
        remote: Remote,
        length: u64,
        operands: [u64; 2],
        record: u16,
    ) -> Self {
        let mut command = Self::new(crate::atomic::OPCODE, Memory::default(), remote, length);
        command.function = function as u16;
        command.operands = operands;
        command.record = record;
        command
    }

    /// The same, with a notification.
    #[must_use]
    pub fn notify(mut self, notification: u32) -> Self {
        self.notification = Some(notification);
        self
    }

    /// The same, with completion counters written back as soon as it is complete.
    #[must_use]
    pub fn publish(mut self) -> Self {
        self.flags |= CommandFlags::PUBLISH.bits();
        self
    }

    /// The same, with so many payload bytes in the entry.
    #[must_use]
    pub fn inline(mut self, length: u8) -> Self {
        self.inline_length = length;
        self
    }

    /// The same, with a completion of its own.
    #[must_use]
    pub fn handle(mut self, handle: u64) -> Self {
        self.handle = handle;
        self
    }

    /// What stands in the queue. An opcode that is none gets the fields of a write.
    pub fn descriptor(&self) -> Descriptor {
        let mut raw = match self.opcode {
            crate::atomic::OPCODE => self.as_atomic().descriptor(),
            _ => self.as_transfer().descriptor(),
        };
        raw.header.opcode = self.opcode;
        raw.header.flags = self.flags;
        raw.header.inline_length = self.inline_length;
        raw.header.remote_node = self.remote.node.0.into();
        raw.header.remote_port = self.remote.port.0.into();
        raw
    }

    /// The entry of the queue, with this payload.
    pub fn entry(&self, payload: &[u8]) -> Entry {
        Entry::new(&self.descriptor(), payload)
    }

    /// A read has its fields where a write has them, and zeroes in place of the notification.
    fn as_transfer(&self) -> WriteCommand {
        let mut raw = WriteCommand::command();
        raw.length = self.length.into();
        raw.local_address = self.local.address.into();
        raw.local_key = self.local.key.0.into();
        raw.local_segment = self.local.segment.0.into();
        raw.remote_address = self.remote.memory.address.into();
        raw.remote_key = self.remote.memory.key.0.into();
        raw.remote_segment = self.remote.memory.segment.0.into();
        let notification = self.notification.filter(|_| self.opcode != READ);
        raw.notification = notification.unwrap_or(0).into();
        raw.handle = self.handle.into();
        raw
    }

    fn as_atomic(&self) -> AtomicCommand {
        let mut raw = AtomicCommand::command();
        raw.remote_address = self.remote.memory.address.into();
        raw.remote_key = self.remote.memory.key.0.into();
        raw.remote_segment = self.remote.memory.segment.0.into();
        raw.operands = self.operands.map(Into::into);
        raw.length = (self.length as u32).into();
        raw.function = self.function.into();
        raw.record = self.record.into();
        raw.handle = self.handle.into();
        raw
    }
}

/// An entry of a command queue.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    words: [u64; COMMAND_BYTES / 8],
    used: usize,
}

impl Entry {
    /// The entry with this descriptor and payload.
    ///
    /// # Panics
    /// If there is no room for the payload.
    pub fn new(descriptor: &Descriptor, payload: &[u8]) -> Self {
        let mut words = [0; COMMAND_BYTES / 8];
        let (front, rest) = words.as_mut_bytes().split_at_mut(DESCRIPTOR_BYTES);
        front.copy_from_slice(descriptor.as_bytes());
        rest[..payload.len()].copy_from_slice(payload);
        Entry {
            words: words.map(u64::from_le),
            used: (DESCRIPTOR_BYTES + payload.len()).div_ceil(8),
        }
    }

    /// Its words, up to the end of the payload.
    pub fn words(&self) -> &[u64] {
        &self.words[..self.used]
    }
}
