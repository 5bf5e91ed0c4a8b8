//! Events of the device for its driver, on the event virtqueue.
//!
//! The driver posts writable buffers of [`EVENT_BYTES`]; the device fills them
//! and raises the one interrupt. What does not fit into the buffers that are
//! posted stays pending in the NIC, bounded: one wake for each VNI, one error for
//! each VNI, one fault for each transfer that waits, of each object of verbs one event of each number, and one of
//! the port.

use zerocopy::little_endian::{U16, U32, U64};

/// Size of an event in bytes.
pub const EVENT_BYTES: usize = 32;

numbered! {
    /// What happened.
    pub enum Kind: u32 {
        /// Something changed in the host area of the VNI, and its process asked to be
        /// woken ([`crate::window::WAKE_REQUEST`]).
        Wake = 1,
        /// A transfer needs pages of the VNI's process that are not in the page table:
        /// `address` (page aligned), `pages`, and [`FAULT_WRITE`] in `flags` if it will
        /// write to them. Two faults that differ in `flags` alone are two faults. The
        /// driver brings in as many as it can, at least the first, and answers with
        /// [`crate::control::Opcode::FaultDone`] and the number of the fault (N13).
        PageFault = 2,
        /// The command queue of the VNI stopped; `status` says why.
        QueueFailed = 3,
        /// Something has happened to an object of verbs, or to the port: `address` is its token or zero, `flags`
        /// a `verbs::Event` (X18).
        Verbs = 4,
    }
}

/// Flag of a page fault: the NIC will write to the pages. What is in the table for
/// reading is not enough.
pub const FAULT_WRITE: u16 = 1;

/// Most pages that one fault event asks for.
pub const MAX_FAULT_PAGES: u32 = 64;

layouts! {
    /// An event.
    ///
    /// ```text
    ///      0        2        4                 8
    ///   0  | kind            | vni    | flags  |
    ///   8  | address                           |
    ///  16  | pages           | status          |
    ///  24  | fault                             |
    /// ```
    #[bytes(EVENT_BYTES)]
    pub struct Event {
        /// A [`Kind`].
        pub kind: U32,
        /// The VNI that it is about.
        pub vni: U16,
        /// Flags by kind.
        pub flags: U16,
        /// Address of a fault, token of an object of verbs, else zero.
        pub address: U64,
        /// Number of pages of a fault, else zero.
        pub pages: U32,
        /// [`crate::Status`] code of a failed queue, else zero.
        pub status: U32,
        /// Number of a fault, which no other fault of this NIC has, else zero.
        pub fault: U64,
    }
}
