//! Names of processes, which every NIC knows (Q14; docs/names.md): commands and frames.
//!
//! | opcode | command | its end |
//! |---|---|---|
//! | [`Opcode::Name`] | [`NameCommand`], with a [`NameAction`] | a completion of kind Name |
//!
//! No counter counts these commands.
//!
//! | kind | class | sent by | body | payload |
//! |---|---|---|---|---|
//! | [`kind::NAMES`] | Windowed | node of the processes | [`Names`] | [`NameEntry`] each |
//! | [`kind::NAMES_SEEN`] | Control | the other | [`NamesSeen`] | none: from now on silence is noticed |

use zerocopy::little_endian::{U16, U32, U64};

use crate::command::{CommandBody, CommandHeader, DESCRIPTOR_BYTES};
use crate::wire::{Body, Empty};

/// Bytes of the name of an application.
pub const APPLICATION_BYTES: usize = 16;
/// Longest time that a command may wait, in milliseconds.
pub const MAX_TIMEOUT_MS: u32 = 600_000;
/// In [`Names::flags`]: what was said before counts no more.
pub const NAMES_FIRST: u32 = 1;
/// In [`NameEntry::flags`]: no process of the node has the name any more.
pub const NAME_WITHDRAWN: u16 = 1;

numbered! {
    /// Opcodes of this protocol.
    pub enum Opcode: u8 {
        /// Do something with a name.
        Name = 12,
    }
}

numbered! {
    /// What a [`NameCommand`] does.
    pub enum NameAction: u8 {
        /// Gives the process a name; waits until no other one has it.
        Register = 1,
        /// Takes it back.
        Withdraw = 2,
        /// Finds the process of a name; waits until there is one.
        LookUp = 3,
    }
}

/// Kinds of frames of this protocol.
pub mod kind {
    /// [`super::Names`].
    pub const NAMES: u8 = 0x58;
    /// [`super::NamesSeen`].
    pub const NAMES_SEEN: u8 = 0xb8;
}

layouts! {
    /// The name of a process: an application, and a process of it (QNIX: the pair that is known
    /// to every NIC).
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | application                       | … 16
    ///  16  | process         | reserved        |
    /// ```
    #[bytes(24)]
    pub struct ProcessName {
        /// UTF-8, zeros behind it; not empty.
        pub application: [u8; APPLICATION_BYTES],
        /// Number of the process in the application.
        pub process: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// Registers a name, withdraws it, or looks it up.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | handle                            |
    ///  16  | name                              | … 40
    ///  40  | timeout_ms      |act.|reserved0   |
    ///  48  | reserved1                         | … 64
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct NameCommand {
        /// With [`Opcode::Name`].
        pub header: CommandHeader,
        /// Of the process: the completion carries it.
        pub handle: U64,
        /// Which name.
        pub name: ProcessName,
        /// How long a lookup waits for the name, and a registration until it is free, up to
        /// [`MAX_TIMEOUT_MS`] milliseconds; 0: not at all. Zero for a withdrawal.
        pub timeout_ms: U32,
        /// A [`NameAction`].
        pub action: u8,
        /// Zero.
        pub reserved0: [u8; 3],
        /// Zero.
        pub reserved1: [U64; 2],
    }

    /// Body of [`kind::NAMES`]: what has changed since the frame before.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | flags           | reserved        |
    /// ```
    #[bytes(8)]
    pub struct Names {
        /// [`NAMES_FIRST`], in the first of a session at least.
        pub flags: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// Payload of [`kind::NAMES`].
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | application                       | … 16
    ///  16  | process         | port   | flags  |
    /// ```
    #[bytes(24)]
    pub struct NameEntry {
        /// As in the name.
        pub application: [u8; APPLICATION_BYTES],
        /// As in the name.
        pub process: U32,
        /// Of the process.
        pub port: U16,
        /// 0 or [`NAME_WITHDRAWN`].
        pub flags: U16,
    }
}

/// Body of [`kind::NAMES_SEEN`].
pub type NamesSeen = Empty<{ kind::NAMES_SEEN }>;

impl ProcessName {
    /// The name of a process of an application. `None` if that has no name, a longer one than
    /// [`APPLICATION_BYTES`], or one with a zero in it.
    pub fn new(application: &str, process: u32) -> Option<Self> {
        let text = application.as_bytes();
        let mut name = ProcessName {
            process: process.into(),
            ..ProcessName::default()
        };
        name.application
            .get_mut(..text.len())?
            .copy_from_slice(text);
        name.is_valid().then_some(name)
    }

    /// Returns true if it is as the format says.
    pub fn is_valid(&self) -> bool {
        let mut bytes = self.application.iter().skip_while(|byte| **byte != 0);
        let padded = bytes.all(|byte| *byte == 0);
        let text = core::str::from_utf8(&self.application).is_ok();
        self.application[0] != 0 && padded && text && self.reserved.get() == 0
    }

    /// The application, as text.
    pub fn application(&self) -> &str {
        let text = core::str::from_utf8(&self.application).unwrap_or_default();
        text.trim_end_matches('\0')
    }
}

impl NameEntry {
    /// The name that it is about.
    pub fn name(&self) -> ProcessName {
        ProcessName {
            application: self.application,
            process: self.process,
            reserved: 0.into(),
        }
    }

    /// Returns true if it is as the format says.
    pub fn is_valid(&self) -> bool {
        self.name().is_valid() && self.flags.get() & !NAME_WITHDRAWN == 0
    }
}

impl CommandBody for NameCommand {
    const OPCODE: u8 = Opcode::Name as u8;
}

impl Body for Names {
    const KIND: u8 = kind::NAMES;

    fn is_valid(&self) -> bool {
        self.flags.get() & !NAMES_FIRST == 0 && self.reserved.get() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_of_up_to_sixteen_bytes() {
        for good in ["a", "sixteen bytes ok", "grün"] {
            let name = ProcessName::new(good, 7).unwrap();
            assert_eq!((name.application(), name.process.get()), (good, 7));
        }
        for bad in ["", "seventeen bytes !", "zero\0inside", "\0"] {
            assert_eq!(ProcessName::new(bad, 0), None, "{bad:?}");
        }
        let mut half = ProcessName::new("grün", 0).unwrap();
        half.application[3..].fill(0);
        assert!(!half.is_valid(), "half a character");
    }
}
