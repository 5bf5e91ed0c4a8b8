//! Verbs (X18; docs/verbs.md): queue pairs, completion queues and registered memory of programs that use
//! libibverbs.
//!
//! The distribution's library for Soft-RoCE (librxe) writes work requests to rings and polls rings, by
//! an ABI of the kernel that does not change (`rdma_user_rxe.h`). A module of the kernel makes the rings,
//! and the NIC works on them: it reads work requests and writes completions by itself.
//!
//! ```text
//!   program, librxe            module and driver                NIC                      peer NIC
//!   ring: work request
//!   post_send ───────────────► VerbsSend, in the window ──────► reads the ring
//!                                                               VerbsRequest ──────────► its ring: receive
//!                                                               VerbsReply   ◄────────── completion
//!   ring: completion ◄───────────────────────────────────────── work completion
//!   req_notify ──────────────► VerbsArm, in the window ───────► event, once ──► ibv_get_cq_event
//!   create, modify, register ► requests ([`requests`]) ───────► tables of the process
//! ```
//! | module | memory it describes | written by | read by |
//! |---|---|---|---|
//! | [`rings`] | header and entries of the rings | program; NIC: one index of each, completions | NIC; program |
//! | [`requests`] | requests of the driver on the control queue | driver | NIC |
//! | [`commands`] | commands of the driver in the window of the process | driver | NIC |
//! | [`frames`] | frames between NICs | NIC | peer NIC |
//!
//! # Objects
//! A context of libibverbs is a process of its NIC (N1): it has a VNI, a port that the driver chooses, a
//! window that only the driver writes to, a host area and exports. All objects belong to it, and end with it.
//!
//! | object | named by | table | bound |
//! |---|---|---|---|
//! | queue pair | 24 bits, unique for the NIC, not soon used again | NIC's heap | [`QUEUE_PAIRS`] of the NIC |
//! | completion queue | a number of its process | NIC's heap | [`COMPLETION_QUEUES`] of the NIC |
//! | shared receive queue | a number of its process | NIC's heap | [`SHARED_RECEIVE_QUEUES`] of the NIC |
//! | registered memory | a key of 32 bits: `segment << 16`, and 16 bits that are not zero | with the segment | as segments of the process |
//! | protection domain | a number of its process | none: the NIC compares it | the driver's |
//! | address handle | [`PathAddress`], 32 bits | none: the work request carries it | the driver's |
//!
//! The driver chooses all numbers. It also gives each object a *token*, which no other object of the NIC
//! has until the reset; events carry it ([`Event`]). Rings are pages of the kernel, charged to the
//! process that creates the object. The NIC learns their addresses once, and uses them until the answer to
//! [`crate::control::Opcode::DestroyObject`] or `DeleteProcess`.
//!
//! # Registered memory
//! It is a segment of the process, exported with a list of importers that is empty. So nothing is
//! pinned, and all rules of exports hold. [`requests::RegisterMemory`] adds what verbs need: key,
//! protection domain, rights, and the address by which peers name the first byte. `Unexport` ends both.

pub mod commands;
pub mod frames;
pub mod requests;
pub mod rings;

use bitflags::bitflags;

/// Queue pairs of a NIC, at most.
pub const QUEUE_PAIRS: usize = 4096;
/// Queue pairs of a process, at most: nearly half of those of its NIC. All of them can have work under way, as one has
/// an operation then ([`crate::message::SENDS`]), and there is one to spare, so that no command
/// waits for one.
pub const QUEUE_PAIRS_OF_PROCESS: usize = QUEUE_PAIRS / 2 - 1;
/// Completion queues of a NIC, at most; a process has half of them at most.
pub const COMPLETION_QUEUES: usize = 4096;
/// Shared receive queues of a NIC, at most; likewise.
pub const SHARED_RECEIVE_QUEUES: usize = 1024;

const _: () = assert!(QUEUE_PAIRS_OF_PROCESS < crate::message::SENDS as usize);

/// Numbers of queue pairs are from here on: 0 and 1 are those of management.
pub const FIRST_QUEUE_PAIR: u32 = 2;
/// Numbers of queue pairs, and numbers of messages, are below this.
pub const NUMBERS: u32 = 1 << 24;

/// Pieces of memory in one work request, at most.
pub const MAX_SGES: usize = 16;
/// Bytes that stand in a work request itself, at most.
pub const MAX_INLINE: usize = 512;
/// Longest message of a connected queue pair, in bytes.
pub const MAX_MESSAGE: u64 = 1 << 31;
/// Longest message of an unconnected queue pair, in bytes.
pub const MAX_DATAGRAM: usize = 4096;
/// Reads and atomic operations of a queue pair that are under way in one direction, at most.
pub const MAX_READS: u8 = 16;
/// Bytes in front of a datagram that arrives: a global route header.
pub const ROUTE_HEADER_BYTES: usize = 40;

numbered! {
    /// How a queue pair is connected. The numbers are those of `enum ib_qp_type`.
    pub enum Transport: u8 {
        /// Reliable, with one peer (RC).
        Reliable = 2,
        /// Unreliable, with one peer (UC).
        Unreliable = 3,
        /// Datagrams to any peer (UD).
        Datagram = 4,
    }
}

numbered! {
    /// State of a queue pair. The numbers are those of `enum ib_qp_state`.
    pub enum State: u8 {
        /// It takes nothing.
        Reset = 0,
        /// Receives can be posted.
        Init = 1,
        /// Ready to receive.
        ReadyToReceive = 2,
        /// Ready to send, too.
        ReadyToSend = 3,
        /// The send queue is emptied.
        Draining = 4,
        /// The send queue has failed (UC, UD).
        SendError = 5,
        /// All that is posted ends with [`Outcome::Flushed`].
        Failed = 6,
    }
}

bitflags! {
    /// What memory may be used for, or what a queue pair lets its peer do. The bits are those of
    /// `enum ib_access_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Rights: u32 {
        /// The process's own receives and reads may end there.
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 2;
        /// Peers may read.
        const REMOTE_READ = 4;
        /// Peers may change words atomically.
        const REMOTE_ATOMIC = 8;
    }
}

numbered! {
    /// What a work request asks for. The numbers are those of `enum ib_uverbs_wr_opcode`.
    pub enum Request: u8 {
        /// Write to memory of the peer.
        Write = 0,
        /// The same, and a receive of the peer ends.
        WriteImmediate = 1,
        /// A message, for a receive of the peer.
        Send = 2,
        /// The same, with four bytes for its completion.
        SendImmediate = 3,
        /// Read memory of the peer.
        Read = 4,
        /// Compare a word of 64 bits with another, and replace it if they are equal.
        CompareSwap = 5,
        /// Add to a word of 64 bits.
        FetchAdd = 6,
    }
}

numbered! {
    /// How a work request has ended. The numbers are those of `enum ib_wc_status`.
    pub enum Outcome: u32 {
        /// It is done.
        Success = 0,
        /// The message is longer than the receive, or than a message can be.
        LocalLength = 1,
        /// The work request is malformed, or this queue pair cannot do it.
        LocalOperation = 2,
        /// A key of its own is not good for the memory that it names.
        LocalProtection = 4,
        /// The queue pair has failed before.
        Flushed = 5,
        /// The peer cannot do what it was asked for.
        RemoteInvalidRequest = 9,
        /// The peer does not allow it.
        RemoteAccess = 10,
        /// The peer has failed.
        RemoteOperation = 11,
        /// The peer does not answer, or has no such queue pair.
        RetriesExceeded = 12,
        /// The peer has posted no receive in time.
        ReceiverNotReady = 13,
        /// The NIC was reset.
        Fatal = 19,
    }
}

numbered! {
    /// What a completion is of. The numbers are those of `enum ib_wc_opcode`.
    pub enum Completed: u32 {
        /// A Send, with an immediate or not.
        Send = 0,
        /// A write, with an immediate or not.
        Write = 1,
        /// A read.
        Read = 2,
        /// A compare-and-swap.
        CompareSwap = 3,
        /// A fetch-and-add.
        FetchAdd = 4,
        /// A receive that a message has ended.
        Receive = 128,
        /// A receive that a write has ended.
        ReceiveWrite = 129,
    }
}

numbered! {
    /// What an event of kind [`crate::event::Kind::Verbs`] says (its `flags`). Of each object at
    /// most one of a number waits for the driver.
    pub enum Event: u16 {
        /// An armed completion queue has a new entry.
        Completion = 1,
        /// A completion queue has overrun, or its ring cannot be used: it takes nothing more.
        CompletionQueueError = 2,
        /// A queue pair is in [`State::Failed`]: its own side has failed.
        Fatal = 3,
        /// The same: the peer has asked for what it may not.
        AccessError = 4,
        /// The same: the peer has asked for what cannot be.
        RequestError = 5,
        /// A queue pair that is ready to receive, and no more, has received something.
        Established = 6,
        /// The send queue of a draining queue pair is empty.
        Drained = 7,
        /// A queue pair that has failed takes no more of its shared receive queue.
        LastReceive = 8,
        /// A shared receive queue has fewer receives than its limit.
        LimitReached = 9,
        /// Of no object, so with token 0: all links of the node are cut.
        PortDown = 10,
        /// Likewise: one of them is there again.
        PortUp = 11,
    }
}

/// A destination of datagrams, and where a connected queue pair sends: what the driver gives out as number
/// of an address handle. A program can make one up: it is an address, and grants nothing.
///
/// ```text
///   31       24 23     20  19   18   17 16              0
///   | reserved | service | reserved |grh| node + 1       |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathAddress(pub u32);

impl PathAddress {
    const ROUTE_HEADER: u32 = 1 << 17;
    const SERVICE_SHIFT: u32 = 20;
    const RESERVED: u32 = 0xff0c_0000;

    /// That of a node, at a service level below 16. With `route_header` the datagram says so at its
    /// destination.
    pub const fn new(node: crate::NodeId, service_level: u8, route_header: bool) -> Self {
        let service = ((service_level & 0xf) as u32) << Self::SERVICE_SHIFT;
        let flag = if route_header { Self::ROUTE_HEADER } else { 0 };
        PathAddress((node.0 as u32 + 1) | service | flag)
    }

    /// The node; `None`: it names none.
    pub const fn node(self) -> Option<crate::NodeId> {
        match self.0 & (Self::ROUTE_HEADER - 1) {
            place @ 1..=0x1_0000 if self.0 & Self::RESERVED == 0 => {
                Some(crate::NodeId((place - 1) as u16))
            }
            _ => None,
        }
    }

    /// The service level, below 16.
    pub const fn service_level(self) -> u8 {
        ((self.0 >> Self::SERVICE_SHIFT) & 0xf) as u8
    }

    /// Returns true if its datagrams have a global route header.
    pub const fn has_route_header(self) -> bool {
        self.0 & Self::ROUTE_HEADER != 0
    }
}

/// The identifier (GID) of a node: that of the port of its device, and the address in a global route header.
pub fn global_identifier(node: crate::NodeId) -> [u8; 16] {
    // A prefix of the link, and a locally administered address.
    let low = 0x0200_5100_0000_0000 | u128::from(node.0);
    (0xfe80 << 112 | low).to_be_bytes()
}

/// The global route header of a datagram of so many bytes.
///
/// ```text
///   0  | version 6, class, flow   | length | 27 | hops |
///   8  | source identifier                            | … 24
///  24  | destination identifier                       | … 40
/// ```
pub fn route_header(
    source: crate::NodeId,
    destination: crate::NodeId,
    length: u16,
) -> [u8; ROUTE_HEADER_BYTES] {
    const BEHIND: u8 = 27;
    // Two headers and a checksum, which a network would have around the datagram.
    let length = length.saturating_add(24).to_be_bytes();
    let mut header = [0; ROUTE_HEADER_BYTES];
    header[0] = 6 << 4;
    header[4..6].copy_from_slice(&length);
    header[6..8].copy_from_slice(&[BEHIND, 1]);
    header[8..24].copy_from_slice(&global_identifier(source));
    header[24..].copy_from_slice(&global_identifier(destination));
    header
}

/// How long a receiver asks its peer to wait for a receive, in nanoseconds: the code of five bits that
/// `min_rnr_timer` is.
pub const fn receiver_not_ready_ns(code: u8) -> u64 {
    // In units of 10 us: 0 is the longest, and each second one doubles what was two before.
    const TENS: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    TENS[(code & 31) as usize] * 10_000
}

/// How long a queue pair waits for an answer before it asks again, in nanoseconds: the code of five bits that
/// `timeout` is. `None`: for ever.
pub const fn answer_timeout_ns(code: u8) -> Option<u64> {
    match code & 31 {
        0 => None,
        code => Some(4096 << code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    #[test]
    fn a_path_address_says_what_it_was_made_of() {
        for (node, level, header) in [(0, 0, false), (5, 15, true), (u16::MAX, 3, false)] {
            let address = PathAddress::new(NodeId(node), level, header);
            assert_eq!(address.node(), Some(NodeId(node)));
            assert_eq!(address.service_level(), level);
            assert_eq!(address.has_route_header(), header);
        }
        for made_up in [0, 1 << 17, 0x1_0001, 1 << 18 | 1, 1 << 24 | 1, u32::MAX] {
            assert_eq!(PathAddress(made_up).node(), None, "{made_up:#x}");
        }
    }

    #[test]
    fn a_route_header_names_both_ends() {
        let header = route_header(NodeId(0x0102), NodeId(3), 100);
        assert_eq!(header[..8], [0x60, 0, 0, 0, 0, 124, 27, 1]);
        let prefix = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0x51, 0, 0, 0];
        assert_eq!(
            (&header[8..22], &header[22..24]),
            (&prefix[..], &[1, 2][..])
        );
        assert_eq!(header[24..38], prefix);
        assert_eq!(header[38..], [0, 3]);
    }

    #[test]
    fn times_are_those_of_the_specification() {
        let micros = [0, 1, 2, 12, 31].map(|code| receiver_not_ready_ns(code) / 1000);
        assert_eq!(micros, [655_360, 10, 20, 640, 491_520]);
        assert_eq!(answer_timeout_ns(0), None);
        assert_eq!(answer_timeout_ns(14), Some(67_108_864));
    }
}
