//! Command and frames of the echo protocol.

use qnic_abi::command::{CommandBody, CommandHeader, DESCRIPTOR_BYTES};
use qnic_abi::wire::{Body, Class};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Asks a node to send a value back.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct EchoCommand {
    pub(super) header: CommandHeader,
    pub(super) value: U64,
    pub(super) reserved: [U64; 6],
}

/// A value, on its way there or back.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Echo<const KIND: u8> {
    pub(super) value: U64,
}

pub(super) const REQUEST: u8 = Class::Unreliable.first_kind() | 0x3f;
pub(super) const RESPONSE: u8 = Class::Control.first_kind() | 0x3f;

const _: () = assert!(size_of::<EchoCommand>() == DESCRIPTOR_BYTES);

impl CommandBody for EchoCommand {
    const OPCODE: u8 = 0xff;
}

impl<const KIND: u8> Body for Echo<KIND> {
    const KIND: u8 = KIND;

    fn is_valid(&self) -> bool {
        true
    }
}
