//! Commands of datagrams with all their fields in the open, and records read out: the driver's side
//! for tests.

use alloc::vec::Vec;

use crate::command::{CommandBody, Descriptor};
use crate::datagram::{
    Datagram, DatagramPostCommand, DatagramSendCommand, DatagramWithdrawCommand, WithdrawFlags,
    RECORD_BYTES,
};
use zerocopy::{FromBytes, IntoBytes};

/// A packet that is to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packet {
    /// That its completion has.
    pub handle: u64,
    /// Node that it goes to.
    pub node: u16,
    /// Datagram port there.
    pub port: u16,
    /// Datagram port that sends.
    pub source_port: u16,
    /// Guest-physical address of its data.
    pub address: u64,
    /// Bytes of its data.
    pub length: u16,
    /// Handle of the steered buffer that it is for, or zero.
    pub target: u64,
    /// Number of its message.
    pub sequence: u32,
    /// Number of the fragment.
    pub fragment: u16,
    /// [`crate::datagram::PacketFlags`].
    pub flags: u8,
    /// Its header, which stands in the entry behind the command.
    pub header: Vec<u8>,
}

impl Packet {
    /// The command; its payload in the entry is [`Packet::header`].
    pub fn descriptor(&self) -> Descriptor {
        let mut command = DatagramSendCommand {
            handle: self.handle.into(),
            address: self.address.into(),
            target: self.target.into(),
            sequence: self.sequence.into(),
            fragment: self.fragment.into(),
            flags: self.flags,
            length: self.length.into(),
            source_port: self.source_port.into(),
            ..DatagramSendCommand::command()
        };
        command.header.inline_length = self.header.len() as u8;
        command.header.remote_node = self.node.into();
        command.header.remote_port = self.port.into();
        command.descriptor()
    }
}

/// A receive buffer that is to be posted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Its name.
    pub handle: u64,
    /// Guest-physical address of its first byte.
    pub address: u64,
    /// Guest-physical address of its record.
    pub record: u64,
    /// Its size in bytes.
    pub length: u16,
    /// Datagram port that it receives for.
    pub port: u16,
    /// [`crate::datagram::PostFlags`].
    pub flags: u16,
}

impl Buffer {
    /// The command.
    pub fn descriptor(&self) -> Descriptor {
        DatagramPostCommand {
            handle: self.handle.into(),
            address: self.address.into(),
            record: self.record.into(),
            length: self.length.into(),
            port: self.port.into(),
            flags: self.flags.into(),
            ..DatagramPostCommand::command()
        }
        .descriptor()
    }
}

/// The command that takes one buffer of a port back.
pub fn withdraw(port: u16, handle: u64) -> Descriptor {
    DatagramWithdrawCommand {
        handle: handle.into(),
        port: port.into(),
        ..DatagramWithdrawCommand::command()
    }
    .descriptor()
}

/// The command that takes all buffers of a port back.
pub fn withdraw_all(port: u16) -> Descriptor {
    DatagramWithdrawCommand {
        port: port.into(),
        flags: WithdrawFlags::ALL.bits().into(),
        ..DatagramWithdrawCommand::command()
    }
    .descriptor()
}

/// What the record of a buffer says of the packet that is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Handle of the steered buffer that it was for, or zero.
    pub target: u64,
    /// Number of its message.
    pub sequence: u32,
    /// Number of the fragment.
    pub fragment: u16,
    /// [`crate::datagram::PacketFlags`].
    pub flags: u8,
    /// Its header.
    pub header: Vec<u8>,
}

impl Record {
    /// The record in these bytes; `None` if its header is longer than there is room for.
    pub fn read(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let (body, _) = Datagram::read_from_prefix(bytes).ok()?;
        let header = body.header.as_bytes();
        Some(Record {
            target: body.target.get(),
            sequence: body.sequence.get(),
            fragment: body.fragment.get(),
            flags: body.flags,
            header: header.get(..body.header_length.into())?.to_vec(),
        })
    }
}
