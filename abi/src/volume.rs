//! Remote memory of a Linux guest (H9; docs/remote-memory.md): calls of `/dev/qnic0` that make
//! block devices in the memory of other nodes, and give memory to others.
//!
//! | call | does | privilege |
//! |---|---|---|
//! | [`AttachVolume`] | makes `/dev/qnicmemN` | `CAP_SYS_ADMIN` |
//! | [`DetachVolume`] | removes it | `CAP_SYS_ADMIN` |
//! | [`VolumeInfo`], [`VolumeServer`], [`VolumeLatency`] | say how it is | |
//! | [`ServeMemory`] | gives memory to others | `CAP_SYS_ADMIN` |
//! | [`LeaveMemory`] | takes it back | `CAP_SYS_ADMIN` |
//! | [`MemoryInfo`] | says how it is | |
//!
//! All are allowed before [`crate::uapi::Register`], and none needs it. Results below zero are
//! those of [`crate::uapi`], and `EPERM`.

use zerocopy::little_endian::{U16, U32, U64};

use crate::ids::Secret;
use crate::layout::{numbers, Layout};
use crate::uapi::ioctl_number;

pub use qnic_limits::{MAX_SERVERS, MAX_VOLUMES};

/// Pages of a volume that are under way at the same time.
pub const MAX_PAGES_UNDER_WAY: usize = 1024;
/// Pages of one request of the block device.
pub const MAX_PAGES_OF_REQUEST: usize = 16;
/// Classes of [`VolumeLatency`].
pub const LATENCY_CLASSES: usize = 26;

/// Number of the first of these calls.
pub const FIRST_CALL: u8 = 20;
/// Number of the last one.
pub const LAST_CALL: u8 = 27;

/// ioctl number of [`AttachVolume`].
pub const ATTACH_VOLUME: u32 = ioctl_number(FIRST_CALL, size_of::<AttachVolume>());
/// ioctl number of [`DetachVolume`].
pub const DETACH_VOLUME: u32 = ioctl_number(21, size_of::<DetachVolume>());
/// ioctl number of [`VolumeInfo`].
pub const VOLUME_INFO: u32 = ioctl_number(22, size_of::<VolumeInfo>());
/// ioctl number of [`VolumeServer`].
pub const VOLUME_SERVER: u32 = ioctl_number(23, size_of::<VolumeServer>());
/// ioctl number of [`VolumeLatency`].
pub const VOLUME_LATENCY: u32 = ioctl_number(24, size_of::<VolumeLatency>());
/// ioctl number of [`ServeMemory`].
pub const SERVE_MEMORY: u32 = ioctl_number(25, size_of::<ServeMemory>());
/// ioctl number of [`LeaveMemory`].
pub const LEAVE_MEMORY: u32 = ioctl_number(26, size_of::<LeaveMemory>());
/// ioctl number of [`MemoryInfo`].
pub const MEMORY_INFO: u32 = ioctl_number(LAST_CALL, size_of::<MemoryInfo>());

/// Offset of the number of the volume in every call that names one.
pub const VOLUME_OFFSET: usize = core::mem::offset_of!(VolumeInfo, volume);
const _: () = {
    assert!(VOLUME_OFFSET == core::mem::offset_of!(AttachVolume, volume));
    assert!(VOLUME_OFFSET == core::mem::offset_of!(DetachVolume, volume));
    assert!(VOLUME_OFFSET == core::mem::offset_of!(VolumeServer, volume));
    assert!(VOLUME_OFFSET == core::mem::offset_of!(VolumeLatency, volume));
};

numbered! {
    /// How a server is, as a client sees it.
    pub enum ServerState: u16 {
        /// There is no session. The client asks for one.
        Detached = 1,
        /// It answers.
        Live = 2,
        /// It has not answered for a while. What it holds is not lost yet.
        Silent = 3,
        /// It leaves, and is needed no more.
        Dismissed = 4,
        /// Its session is over, and what it held is lost there.
        Gone = 5,
    }
}

/// Flag of [`VolumeInfo`]: requests are taken. Else the NIC is gone, and all requests fail.
pub const VOLUME_ACTIVE: u32 = 1;
/// Flag of [`VolumeInfo`]: repair is at work.
pub const VOLUME_REPAIRS: u32 = 2;
/// Flag of [`VolumeInfo`]: it takes room at its servers only as it is written.
pub const VOLUME_THIN: u32 = 4;
/// Flag of [`VolumeInfo`]: some written blocks have fewer live copies than they should.
pub const VOLUME_DEGRADED: u32 = 8;
/// Flag of [`VolumeInfo`]: no block can be written that was not written before.
pub const VOLUME_FULL: u32 = 16;
/// Flag of [`VolumeInfo`]: servers have taken back its memory, and with it the last copies of blocks. All
/// requests fail; detach it.
pub const VOLUME_TAKEN_BACK: u32 = 32;

/// Flag of [`AttachVolume`]: reserve nothing; the servers may hold less than the volume.
pub const ATTACH_THIN: u32 = 1;

/// Flag of [`VolumeServer`]: it wants to leave.
pub const SERVER_LEAVING: u16 = 1;
/// Flag of [`VolumeServer`]: it takes no page that it does not have already.
pub const SERVER_FULL: u16 = 2;

/// Flag of [`MemoryInfo`]: memory is given.
pub const MEMORY_SERVED: u32 = 1;
/// Flag of [`MemoryInfo`]: the server leaves.
pub const MEMORY_LEAVING: u32 = 2;

/// Flag of [`LeaveMemory`]: end at once, whatever clients have here.
pub const LEAVE_NOW: u32 = 1;

layouts! {
    /// Attaches a volume and makes its block device; waits until enough servers have answered.
    ///
    /// Fails with `BadLength` (size, replicas or list of servers beyond limits), `Exhausted`
    /// (volumes, or datagram ports), `TimedOut` (too few servers give memory: they have refused, have
    /// not answered in time, or cannot hold the volume).
    #[bytes(88)]
    pub struct AttachVolume {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// Out: N of `/dev/qnicmemN`; after `TimedOut` with a reason the node that has given it.
        pub volume: U32,
        /// In: blocks of a page each.
        pub blocks: U64,
        /// In: on how many servers each block is kept, 1 to 4.
        pub replicas: U16,
        /// In: how many servers there are.
        pub server_count: U16,
        /// Out: after `TimedOut` a [`crate::remote_memory::Reason`] that a server has given, or
        /// `NoRoom`; zero if none has answered.
        pub reason: U16,
        /// Zero.
        pub reserved0: U16,
        /// In: longest time of a request, in milliseconds; zero: 20 seconds.
        pub request_timeout_ms: U32,
        /// In: 0 or [`ATTACH_THIN`].
        pub flags: U32,
        /// Out: after `NoRoom` the pages of the volume that the servers can hold together, copies
        /// included.
        pub room: U64,
        /// In: what the servers ask for.
        pub key: Secret,
        /// In: their nodes; zero behind the last.
        pub servers: [U16; MAX_SERVERS],
    }

    /// Removes a block device that no process has open. What was on it is lost.
    ///
    /// Fails with `NoSuchVolume`, `VolumeInUse`.
    #[bytes(8)]
    pub struct DetachVolume {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: N of `/dev/qnicmemN`.
        pub volume: U32,
    }

    /// What has happened to a volume since it was attached.
    #[bytes(128)]
    pub struct VolumeCounters {
        /// Pages that were asked for.
        pub reads: U64,
        /// Pages that were brought.
        pub writes: U64,
        /// Pages whose request has ended with an error.
        pub failed: U64,
        /// Pages, copies to other servers included, whose time was over.
        pub timed_out: U64,
        /// Messages that were sent again, to the same server or to another.
        pub retransmissions: U64,
        /// Answers to no request under way: late ones, and repeated ones.
        pub stale_answers: U64,
        /// Answers of servers that contradict what the client knows.
        pub bad_answers: U64,
        /// Messages that are malformed, or of a node that is no server of it.
        pub foreign: U64,
        /// Pages that were copied to servers because others were lost or left.
        pub repaired: U64,
        /// Times that a server has attached the volume.
        pub attached: U64,
        /// Times that a server has fallen silent.
        pub silences: U64,
        /// Times that a silent server has answered again.
        pub returned: U64,
        /// Times that the memory of a server was lost, or given up.
        pub lost_servers: U64,
        /// Pages that were copied within this node, as they could not come where they were wanted.
        pub pages_copied: U64,
        /// Writes that have failed because servers are full.
        pub full: U64,
        /// Writes that have ended well with fewer copies than they should have, as servers were
        /// missing.
        pub degraded: U64,
    }

    /// How a volume is. Fails with `NoSuchVolume`.
    #[bytes(192)]
    pub struct VolumeInfo {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: N of `/dev/qnicmemN`.
        pub volume: U32,
        /// Out: [`VOLUME_ACTIVE`], [`VOLUME_REPAIRS`], [`VOLUME_THIN`], [`VOLUME_DEGRADED`],
        /// [`VOLUME_FULL`], [`VOLUME_TAKEN_BACK`].
        pub flags: U32,
        /// Out: on how many servers each block is kept.
        pub replicas: U16,
        /// Out: how many servers there are.
        pub server_count: U16,
        /// Out: blocks of a page each.
        pub blocks: U64,
        /// Out: blocks that repair has looked at.
        pub repair_position: U64,
        /// Out: blocks that have too few copies, and no server to copy to.
        pub missing: U64,
        /// Out: blocks of which no copy is left.
        pub lost: U64,
        /// Out: written blocks with fewer live copies than they should have.
        pub degraded: U64,
        /// Out: longest time of a request, in milliseconds.
        pub request_timeout_ms: U32,
        /// Zero.
        pub reserved: U32,
        /// Out: what has happened.
        pub counters: VolumeCounters,
    }

    /// How a server of a volume is. Fails with `NoSuchVolume`, `NoSuchNode` (no such server).
    #[bytes(56)]
    pub struct VolumeServer {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: N of `/dev/qnicmemN`.
        pub volume: U32,
        /// In: which server, in the order of [`AttachVolume::servers`].
        pub server: U16,
        /// Out: its node.
        pub node: U16,
        /// Out: a [`ServerState`].
        pub state: U16,
        /// Out: [`SERVER_LEAVING`], [`SERVER_FULL`].
        pub flags: U16,
        /// Out: blocks whose newest version it has.
        pub pages: U64,
        /// Out: pages that the volume may have there.
        pub granted: U64,
        /// Out: pages there that are reserved for it.
        pub reserved: U64,
        /// Out: a silence of the client of so many milliseconds ends its session there; zero before
        /// the first one.
        pub lease_ms: U64,
        /// Out: smoothed round trip in nanoseconds; zero before the first one.
        pub round_trip_ns: U64,
    }

    /// How long requests that succeeded took. Fails with `NoSuchVolume`.
    #[bytes(224)]
    pub struct VolumeLatency {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: N of `/dev/qnicmemN`.
        pub volume: U32,
        /// In: 0 for reads, 1 for writes.
        pub writes: U32,
        /// Zero.
        pub reserved: U32,
        /// Out: pages by the time that they took: class 0 below a microsecond, class n from 2ⁿ⁻¹
        /// to below 2ⁿ microseconds, the last one everything beyond.
        pub counts: [U64; LATENCY_CLASSES],
    }

    /// Gives memory to others; all of it is allocated at once.
    ///
    /// Fails with `BadLength` (pages, quota or clients beyond limits), `PortInUse` (memory is given
    /// already), `Exhausted` (datagram ports).
    #[bytes(48)]
    pub struct ServeMemory {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: clients at the same time, 1 to 64; zero: 16.
        pub clients: U32,
        /// In: pages for all clients together.
        pub pages: U64,
        /// In: pages for one client; zero: all.
        pub quota: U64,
        /// In: a client that has said nothing for so many milliseconds has lost its pages; zero:
        /// five minutes.
        pub lease_ms: U32,
        /// Zero.
        pub reserved: U32,
        /// In: what clients have to present.
        pub key: Secret,
    }

    /// Takes the memory back: waits until clients have moved their pages, takes no new ones
    /// meanwhile, and ends.
    ///
    /// Fails with `NotServing`, `TimedOut`: it goes on leaving, and serves its clients until then.
    #[bytes(16)]
    pub struct LeaveMemory {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: 0 or [`LEAVE_NOW`].
        pub flags: U32,
        /// In: longest time to wait, in milliseconds.
        pub timeout_ms: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// How the memory is that this node gives.
    #[bytes(104)]
    pub struct MemoryInfo {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// Out: [`MEMORY_SERVED`], [`MEMORY_LEAVING`].
        pub flags: U32,
        /// Out: pages for all clients together.
        pub pages: U64,
        /// Out: pages that clients have.
        pub used: U64,
        /// Out: clients that are attached.
        pub clients: U64,
        /// Out: what has happened.
        pub counters: MemoryCounters,
        /// Out: pages that clients have or that are reserved for them.
        pub committed: U64,
        /// Out: the lease, in milliseconds.
        pub lease_ms: U64,
    }

    /// What has happened since memory is given.
    #[bytes(56)]
    pub struct MemoryCounters {
        /// Pages that were sent.
        pub reads: U64,
        /// Pages that were stored.
        pub writes: U64,
        /// Writes that came again, or late.
        pub stale_writes: U64,
        /// Requests that were refused.
        pub refused: U64,
        /// Requests that were dropped because their client has too many under way.
        pub dropped: U64,
        /// Messages that are none of a client's.
        pub malformed: U64,
        /// Sessions that ended because the client has said nothing for too long.
        pub expired: U64,
    }
}

impl VolumeCounters {
    /// Every counter with its name.
    pub fn fields(&self) -> [(&'static str, u64); Self::FIELDS.len()] {
        numbers(self)
    }
}

impl MemoryCounters {
    /// Every counter with its name.
    pub fn fields(&self) -> [(&'static str, u64); Self::FIELDS.len()] {
        numbers(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_numbers_are_linux_iowr() {
        // _IOWR('Q', 20, 88 bytes) of <asm-generic/ioctl.h>
        assert_eq!(ATTACH_VOLUME, 0xc058_5114);
        assert_eq!(MEMORY_INFO, 0xc068_511b);
    }
}
