//! Commands of the driver about rings, in the window of the process that they belong to. That process
//! has no other commands, and its window is not mapped into it.
//!
//! | opcode | command | its end |
//! |---|---|---|
//! | [`Opcode::VerbsSend`] | [`VerbsSendCommand`] | none: work requests have completions of their own |
//! | [`Opcode::VerbsArm`] | [`VerbsArmCommand`] | none: an event, when there is something to say |
//!
//! A command about an object that is not there has no effect, as it may have been under way when the
//! object ended.

use zerocopy::little_endian::{U32, U64};

use crate::command::{CommandBody, CommandHeader, DESCRIPTOR_BYTES};

numbered! {
    /// Opcodes of verbs.
    pub enum Opcode: u8 {
        /// Look at a send queue.
        VerbsSend = 20,
        /// Tell when a completion queue has something new.
        VerbsArm = 21,
    }
}

/// Flag of [`VerbsArmCommand`]: only a completion that its sender has marked as solicited, or one
/// that has failed, is told.
pub const SOLICITED_ONLY: u32 = 1;

layouts! {
    /// There may be new work requests in the send queue of a queue pair, or receives in the receive
    /// queue of one that has failed.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header                            |
    ///   8  | qp              | reserved        |
    ///  16  | reserved                          | … 64
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct VerbsSendCommand {
        /// With [`Opcode::VerbsSend`]; the node is that of the peer of a connected queue pair, else the own
        /// node; the port is zero.
        pub header: CommandHeader,
        /// The queue pair.
        pub qp: U32,
        /// Zero.
        pub reserved0: U32,
        /// Zero.
        pub reserved1: [U64; 6],
    }

    /// Has [`super::Event::Completion`] say once that a completion queue has an entry at or behind
    /// `seen`. If it has one already, the event comes at once. So nothing is missed between the call
    /// of a program and the command.
    ///
    /// ```text
    ///      0                 4                 8
    ///   0  | header, without a process         |
    ///   8  | cq              | flags           |
    ///  16  | seen            | reserved        |
    ///  24  | reserved                          | … 64
    /// ```
    #[bytes(DESCRIPTOR_BYTES)]
    pub struct VerbsArmCommand {
        /// With [`Opcode::VerbsArm`]; node and port are zero.
        pub header: CommandHeader,
        /// The completion queue.
        pub cq: U32,
        /// [`SOLICITED_ONLY`] or 0.
        pub flags: U32,
        /// Index of the producer in the ring, loaded before the command: the program looks at what is
        /// before it when the call has returned. Modulo the number of entries.
        pub seen: U32,
        /// Zero.
        pub reserved0: U32,
        /// Zero.
        pub reserved1: [U64; 5],
    }
}

const _: () = assert!(core::mem::offset_of!(VerbsSendCommand, qp) == 8);
const _: () = assert!(core::mem::offset_of!(VerbsArmCommand, seen) == 16);

impl CommandBody for VerbsSendCommand {
    const OPCODE: u8 = Opcode::VerbsSend as u8;
}

impl CommandBody for VerbsArmCommand {
    const OPCODE: u8 = Opcode::VerbsArm as u8;
}
