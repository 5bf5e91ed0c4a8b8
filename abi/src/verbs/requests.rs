//! Requests of the driver about objects of verbs, on the control queue ([`crate::control`]). The header of
//! each names the VNI of the process that the object belongs to.
//!
//! | opcode | body | reply body | fails with, beside Malformed and NoSuchVni |
//! |---|---|---|---|
//! | CreateCompletionQueue | [`CreateCompletionQueue`] | none | NameExists, Exhausted, BadAddress |
//! | CreateSharedReceiveQueue | [`CreateSharedReceiveQueue`] | none | NameExists, Exhausted, BadAddress |
//! | ModifySharedReceiveQueue | [`ModifySharedReceiveQueue`] | none | |
//! | CreateQueuePair | [`CreateQueuePair`] | none | NameExists, Exhausted, BadAddress |
//! | ModifyQueuePair | [`ModifyQueuePair`] | none | NoSuchNode |
//! | QueryQueuePair | [`QueryQueuePair`] | [`QueuePairInfo`] | |
//! | RegisterMemory | [`RegisterMemory`] | none | NoSuchSegment, NameExists, BadAddress |
//! | DestroyObject | [`DestroyObject`] | none | |
//!
//! An object that is not there is Malformed, as is a value that the documentation excludes. NameExists: the
//! number is in use. The driver destroys an object after those that use it: queue pairs, then
//! their queues. The NIC refuses nothing else for that, as all objects end with their process anyway.
//!
//! When the reply of DestroyObject is there, the NIC touches neither rings nor memory for the object, and
//! no event names its token any more but one that was in a buffer of the driver before.

use zerocopy::little_endian::{U16, U32, U64};

use crate::PAGE_SIZE;

/// Most pages of a ring behind the first: what one page of addresses names.
pub const RING_PAGES: usize = PAGE_SIZE / 8;
/// Most bytes of all entries of a ring.
pub const RING_BYTES: usize = RING_PAGES * PAGE_SIZE;
/// Least bytes of an entry.
pub const MIN_ENTRY_BYTES: u16 = 64;
/// Most bytes of an entry.
pub const MAX_ENTRY_BYTES: u16 = 1024;

/// Flag of [`CreateQueuePair`]: every work request of the send queue has a completion.
pub const SIGNAL_ALL: u8 = 1;

numbered! {
    /// What [`DestroyObject`] ends.
    pub enum Object: u32 {
        /// A completion queue, by its number.
        CompletionQueue = 1,
        /// A queue pair, by its number.
        QueuePair = 2,
        /// A shared receive queue, by its number.
        SharedReceiveQueue = 3,
        /// Registered memory, by its key. Its segment stays.
        Memory = 4,
    }
}

layouts! {
    /// Where a ring is ([`super::rings`]).
    ///
    /// ```text
    ///      0                 4        6        8
    ///   0  | first                             |
    ///   8  | list                              |
    ///  16  | entries         | bytes  | pages  |
    /// ```
    #[bytes(24)]
    pub struct Ring {
        /// Guest-physical address of the first page, which begins with the header.
        pub first: U64,
        /// Guest-physical address of a page with those of the other pages (u64 each), which the NIC
        /// reads while it handles the request; zero if there are none.
        pub list: U64,
        /// Number of entries, a power of two, at least 2.
        pub entries: U32,
        /// Bytes of an entry, a power of two, from [`MIN_ENTRY_BYTES`] to [`MAX_ENTRY_BYTES`].
        pub entry_bytes: U16,
        /// Pages behind the first, up to [`RING_PAGES`]; header and entries lie in all of them.
        pub pages: U16,
    }

    /// Body of [`crate::control::Opcode::CreateCompletionQueue`].
    #[bytes(40)]
    pub struct CreateCompletionQueue {
        /// Its number, not zero.
        pub cq: U32,
        /// Zero.
        pub reserved: U32,
        /// Its token.
        pub token: U64,
        /// Its ring: entries of 64 bytes.
        pub ring: Ring,
    }

    /// Body of [`crate::control::Opcode::CreateSharedReceiveQueue`].
    #[bytes(48)]
    pub struct CreateSharedReceiveQueue {
        /// Its number, not zero.
        pub srq: U32,
        /// Protection domain: that of the keys of its receives.
        pub domain: U32,
        /// Its token.
        pub token: U64,
        /// Its ring.
        pub ring: Ring,
        /// As of [`ModifySharedReceiveQueue`].
        pub limit: U32,
        /// Most pieces of a receive, up to [`super::MAX_SGES`].
        pub sges: U16,
        /// Zero.
        pub reserved: U16,
    }

    /// Body of [`crate::control::Opcode::ModifySharedReceiveQueue`].
    #[bytes(8)]
    pub struct ModifySharedReceiveQueue {
        /// Its number.
        pub srq: U32,
        /// When fewer receives are left, [`super::Event::LimitReached`] says so, once; zero: never.
        pub limit: U32,
    }

    /// Body of [`crate::control::Opcode::CreateQueuePair`]. The queue pair is in
    /// [`super::State::Reset`].
    ///
    /// ```text
    ///      0                 4        5        6        8
    ///   0  | qp              | transp.| flags  | inline |
    ///   8  | token                                      |
    ///  16  | domain          | srq                      |
    ///  24  | send_cq         | receive_cq               |
    ///  32  | send ring                                  | … 56
    ///  56  | receive ring                               | … 80
    ///  80  | s_sges        | r_sges | reserved      |
    /// ```
    #[bytes(88)]
    pub struct CreateQueuePair {
        /// Its number, from [`super::FIRST_QUEUE_PAIR`] and below [`super::NUMBERS`].
        pub qp: U32,
        /// A [`super::Transport`].
        pub transport: u8,
        /// [`SIGNAL_ALL`] or 0.
        pub flags: u8,
        /// Most inline bytes of a work request, up to [`super::MAX_INLINE`].
        pub inline: U16,
        /// Its token.
        pub token: U64,
        /// Protection domain: that of the keys of its work requests and of its peer's.
        pub domain: U32,
        /// Zero, or the shared receive queue that it uses.
        pub srq: U32,
        /// Completion queue of its send queue.
        pub send_cq: U32,
        /// Completion queue of its receives.
        pub receive_cq: U32,
        /// Ring of the send queue.
        pub send: Ring,
        /// Ring of the receive queue; zero with a shared one.
        pub receive: Ring,
        /// Most pieces of a work request of the send queue, up to [`super::MAX_SGES`].
        pub send_sges: U16,
        /// The same of a receive.
        pub receive_sges: U16,
        /// Zero.
        pub reserved: U32,
    }

    /// Body of [`crate::control::Opcode::ModifyQueuePair`]: state and attributes of a queue pair. They
    /// are complete: what no call has set is zero. The driver has checked that the change is one that the
    /// specification allows.
    ///
    /// ```text
    ///      0                 4        5        6        8
    ///   0  | qp              | state  | access | timeout| retries
    ///   8  | path            | peer_qp                  |
    ///  16  | send_psn        | receive_psn              |
    ///  24  | qkey            | mtu    | rnr_t. | rnr_r. | max_reads
    ///  32  |peer_r.| drain |  reserved                  |
    /// ```
    #[bytes(40)]
    pub struct ModifyQueuePair {
        /// Its number.
        pub qp: U32,
        /// The [`super::State`] that it is to have. Reset forgets all work, without completions;
        /// Failed ends it.
        pub state: u8,
        /// [`super::Rights`] of the peer.
        pub access: u8,
        /// Code of the time that it waits for an answer ([`super::answer_timeout_ns`]).
        pub timeout: u8,
        /// How often it asks again, up to 7.
        pub retries: u8,
        /// A [`super::PathAddress`], for a connected one from ReadyToReceive on.
        pub path: U32,
        /// Queue pair of the peer, likewise.
        pub peer_qp: U32,
        /// Number of its first message; taken when it becomes ReadyToSend.
        pub send_psn: U32,
        /// Number of the first message of the peer; taken when it becomes ReadyToReceive.
        pub receive_psn: U32,
        /// Key of datagrams.
        pub qkey: U32,
        /// Code of the longest packet, 1 to 5: 128 bytes shifted by it. Only datagrams are bounded
        /// by it.
        pub mtu: u8,
        /// Code of the time that it asks a peer to wait for a receive
        /// ([`super::receiver_not_ready_ns`]).
        pub not_ready_timer: u8,
        /// How often it sends again what had no receive, up to 6; 7: for ever.
        pub not_ready_retries: u8,
        /// Reads and atomic operations that it has under way, up to [`super::MAX_READS`].
        pub max_reads: u8,
        /// Those that it lets its peer have under way, up to [`super::MAX_READS`].
        pub max_peer_reads: u8,
        /// 1: an event says when a draining send queue is empty.
        pub drain_event: u8,
        /// Zero.
        pub reserved: [u8; 6],
    }

    /// Body of [`crate::control::Opcode::QueryQueuePair`].
    #[bytes(8)]
    pub struct QueryQueuePair {
        /// Its number.
        pub qp: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// Reply body of [`crate::control::Opcode::QueryQueuePair`].
    #[bytes(16)]
    pub struct QueuePairInfo {
        /// Its [`super::State`] now.
        pub state: u8,
        /// 1: its send queue is draining.
        pub draining: u8,
        /// Zero.
        pub reserved0: U16,
        /// Number of the next message that it sends.
        pub send_psn: U32,
        /// Number of the next message that it expects.
        pub receive_psn: U32,
        /// Zero.
        pub reserved1: U32,
    }

    /// Body of [`crate::control::Opcode::RegisterMemory`]: gives a segment a key for verbs. It has one
    /// at most.
    #[bytes(24)]
    pub struct RegisterMemory {
        /// The segment, whose access lets the NIC do what the rights say.
        pub segment: U16,
        /// [`super::Rights`].
        pub rights: U16,
        /// `segment << 16`, and 16 bits that are not zero.
        pub key: U32,
        /// Protection domain.
        pub domain: U32,
        /// Zero.
        pub reserved: U32,
        /// Address by which work requests name its first byte. The range does not wrap around.
        pub address: U64,
    }

    /// Body of [`crate::control::Opcode::DestroyObject`].
    #[bytes(8)]
    pub struct DestroyObject {
        /// An [`Object`].
        pub object: U32,
        /// Its number, or key.
        pub number: U32,
    }
}

const _: () = assert!(core::mem::offset_of!(CreateQueuePair, send) == 32);
const _: () = assert!(core::mem::offset_of!(CreateQueuePair, send_sges) == 80);
const _: () = assert!(core::mem::offset_of!(ModifyQueuePair, qkey) == 24);
const _: () = assert!(core::mem::offset_of!(RegisterMemory, address) == 16);

impl Ring {
    /// Returns true if entries and pages agree; says nothing of the addresses.
    pub fn is_valid(&self) -> bool {
        let (entries, bytes) = (self.entries.get() as usize, self.entry_bytes.get());
        let pages = usize::from(self.pages.get());
        let in_range = (MIN_ENTRY_BYTES..=MAX_ENTRY_BYTES).contains(&bytes);
        let powers = entries.is_power_of_two() && bytes.is_power_of_two() && entries >= 2;
        let size = entries
            .checked_mul(bytes.into())
            .filter(|_| powers && in_range);
        size.is_some_and(|size| {
            size <= RING_BYTES
                && pages == Self::pages_behind(size)
                && (pages > 0 || self.list.get() == 0)
        })
    }

    /// Pages behind the first of a ring whose entries have so many bytes, up to [`RING_BYTES`].
    pub const fn pages_behind(bytes: usize) -> usize {
        (super::rings::ENTRIES + bytes).div_ceil(PAGE_SIZE) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_pages_of_a_ring_have_to_agree() {
        let ring = |entries: u32, bytes: u16, pages: u16, list: u64| Ring {
            first: 0x5000.into(),
            list: list.into(),
            entries: entries.into(),
            entry_bytes: bytes.into(),
            pages: pages.into(),
        };
        for (entries, bytes, pages, list) in [
            (2, 64, 0, 0),
            (32, 64, 0, 0),
            (64, 64, 1, 0x6000),
            (1 << 15, 64, 512, 0x6000),
            (1 << 11, 1024, 512, 0x6000),
            // Frame 0 is memory as any other.
            (64, 64, 1, 0),
        ] {
            assert!(
                ring(entries, bytes, pages, list).is_valid(),
                "{entries} {bytes}"
            );
        }
        for (entries, bytes, pages, list) in [
            (0, 64, 0, 0),
            (1, 64, 0, 0),
            (3, 64, 0, 0),
            (2, 32, 0, 0),
            (2, 96, 0, 0),
            (2, 2048, 1, 0x6000),
            (64, 64, 0, 0),
            (64, 64, 2, 0x6000),
            (2, 64, 0, 0x6000),
            (1 << 16, 64, 1024, 0x6000),
            (1 << 31, 1024, u16::MAX, 0x6000),
        ] {
            assert!(
                !ring(entries, bytes, pages, list).is_valid(),
                "{entries} {bytes}"
            );
        }
    }
}
