//! The character device `/dev/qnic0`: what the library asks of the driver.
//!
//! One open file is one process of the NIC: [`Register`] gives it a VNI, closing the file (or the
//! process's end) ends everything that it has there. The host-mode driver takes the same structs by
//! function call.
//!
//! # ioctl
//! The request number is `_IOWR('Q', n, struct)`: [`ioctl_number`]. A call that reaches driver or
//! NIC returns 0, and the first field of its struct is a [`crate::Status`] code, which says whether
//! it was carried out. Negative results are the kernel's: `EFAULT`, `EINVAL` (reserved field not
//! zero), `ENOTTY`, `EINTR`, `ENOMEM`, `ENODEV` (the device is gone or was found broken), `EBADFD`
//! (not registered yet, or twice), `ETIMEDOUT` ([`Wait`] only).
//!
//! # mmap
//! | offset | length | protection | what |
//! |---|---|---|---|
//! | [`MMAP_WINDOW`] | [`crate::window::WINDOW_BYTES`] | read, write; shared | the window |
//! | [`MMAP_DOORBELL`] | one page | write; shared | the doorbell: a 16-bit store of [`Register::doorbell_value`] at [`Register::doorbell_offset`] rings it |
//! | [`MMAP_HOST_AREA`] | [`crate::host_area::READ_ONLY_PAGES`] pages | read; shared | the host area |
//! | [`MMAP_POOL`] | [`crate::host_area::WRITABLE_PAGES`] pages | read, write; shared | the rest of it: doorbells of contexts, buffer pool |
//!
//! Nothing else can be mapped, and nothing before [`Register`] (Q1). A file that has pools instead
//! maps those only ([`crate::pool`]).
//!
//! # poll
//! The file is readable (`POLLIN`) while its wake generation differs from the one
//! that the last [`Wait`] with [`WAIT_SEEN`] returned, and readable and in error
//! (`POLLERR`) when the device is gone. As before any other way to block, a thread
//! that polls asks for a wake event first ([`crate::host_area`], "Blocking"). Threads
//! that block in [`Wait`] do not disturb one that polls; of several that poll, one
//! can take the event of another.

use alloc::collections::BTreeMap;
use alloc::string::String;

use zerocopy::little_endian::{I64, U16, U32, U64};

use crate::counters::{self, CounterPage, CounterSource};
use crate::export::ExportOptions;
use crate::header::Counts;
use crate::ids::Secret;

/// mmap offset of the window.
pub const MMAP_WINDOW: u64 = 0;
/// mmap offset of the doorbell page.
pub const MMAP_DOORBELL: u64 = 1 << 24;
/// mmap offset of the host area.
pub const MMAP_HOST_AREA: u64 = 2 << 24;
/// mmap offset of the writable pages of the host area.
pub const MMAP_POOL: u64 = 3 << 24;

/// Type byte of the ioctl numbers.
pub const IOCTL_TYPE: u8 = b'Q';

/// Number of a call with an argument of `size` bytes that is read and written:
/// Linux's `_IOWR('Q', number, size)`.
pub const fn ioctl_number(number: u8, size: usize) -> u32 {
    3 << 30 | (size as u32) << 16 | (IOCTL_TYPE as u32) << 8 | number as u32
}

/// ioctl number of [`Register`].
pub const REGISTER: u32 = ioctl_number(1, size_of::<Register>());
/// ioctl number of [`Export`].
pub const EXPORT: u32 = ioctl_number(2, size_of::<Export>());
/// ioctl number of [`Unexport`].
pub const UNEXPORT: u32 = ioctl_number(3, size_of::<Unexport>());
/// ioctl number of [`Import`].
pub const IMPORT: u32 = ioctl_number(4, size_of::<Import>());
/// ioctl number of [`Wait`].
pub const WAIT: u32 = ioctl_number(5, size_of::<Wait>());
/// ioctl number of [`ResetQueue`].
pub const RESET_QUEUE: u32 = ioctl_number(6, size_of::<ResetQueue>());
/// ioctl number of [`Info`]; allowed before [`Register`].
pub const INFO: u32 = ioctl_number(7, size_of::<Info>());

/// ioctl number of [`Wake`].
pub const WAKE: u32 = ioctl_number(8, size_of::<Wake>());

/// ioctl number of [`Path`].
pub const PATH: u32 = ioctl_number(9, size_of::<Path>());

/// ioctl number of [`Counters`]; allowed before [`Register`].
pub const COUNTERS: u32 = ioctl_number(16, size_of::<Counters>());

/// Flag of [`Register`] and [`Export`]: physical addresses (N25).
pub const PHYSICAL: u32 = 1;

/// Flag of [`Export`]: the range may overlap those of other segments.
pub const OVERLAPPING: u32 = 2;

layouts! {
    /// Registers the calling process (N1).
    ///
    /// Fails with `PortInUse`, `Exhausted`, and `AccessDenied` with [`PHYSICAL`] from a
    /// process without privilege (in Linux: `CAP_SYS_RAWIO`).
    #[bytes(36)]
    pub struct Register {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: wanted port, or 0 for any free one. Out: the port.
        pub port: U16,
        /// Out: node number.
        pub node: U16,
        /// Out: VNI.
        pub vni: U16,
        /// Out: value to store to ring the doorbell.
        pub doorbell_value: U16,
        /// Out: offset of the doorbell within its page.
        pub doorbell_offset: U32,
        /// Out: longest inline payload in bytes (N10).
        pub inline_max: U32,
        /// In: 0, or [`PHYSICAL`] to be allowed physical exports.
        pub flags: U32,
        /// Out: after how many milliseconds of silence the NIC gives up another one (U10).
        pub peer_timeout_ms: U32,
        /// Out: entries of the command queue (N of Q2).
        pub command_entries: U16,
        /// Out: contexts of each direction (M of Q4).
        pub contexts: U16,
        /// Out: page descriptors in the region of a context (K of Q5).
        pub context_pages: U16,
        /// Out: pages of the buffer pool (Q of Q7).
        pub pool_pages: U16,
    }

    /// Exports a range of the calling process's memory (N2).
    ///
    /// The range may be any ordinary memory that the process can read, and can write if `access`
    /// grants writing. Fails with `NameExists`, `Exhausted`, `BadLength` (zero), `BadAddress`
    /// (wraps around, or no address of a process), `Overlapping`, and for other memory with
    /// `NotMapped`, `SramTooSmall`, `UnreadableMemory`, `ReadOnlyMemory`, `SecretMemory`, `DaxMemory`,
    /// `UserFaultMemory` or `DeviceMemory`.
    ///
    /// Without [`OVERLAPPING`] the export fails with `Overlapping` if the range overlaps that of
    /// another segment without being the same. Several segments may lie in one page.
    ///
    /// A segment is a range of addresses, not of pages: ordinary memory that is mapped there later
    /// takes the place of what was there before. While no memory is mapped there, transfers of
    /// peers fail with `PageUnavailable`, and those of this process with `OwnPageUnavailable`.
    /// Transfers that would write where the process cannot write, its own reads included, fail with
    /// `ReadOnlyMemory`.
    ///
    /// With [`PHYSICAL`] the range is pinned until it is unexported, `address` comes
    /// back as its guest-physical address, and transfers name that. It must be
    /// physically contiguous (`BadAddress`), and the process registered with
    /// [`PHYSICAL`] (`AccessDenied`).
    #[bytes(208)]
    pub struct Export {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: [`crate::Access`] granted to peers.
        pub access: U32,
        /// In: name of the segment.
        pub name: U64,
        /// In: first address; any alignment. Out: the address that transfers name.
        pub address: U64,
        /// In: length in bytes.
        pub length: U64,
        /// Out: its key.
        pub key: U64,
        /// Out: its index.
        pub segment: U16,
        /// Zero.
        pub reserved: U16,
        /// In: [`PHYSICAL`], [`OVERLAPPING`]; physical ranges always may overlap.
        pub flags: U32,
        /// In: which processes may import it, and what its writers may signal.
        pub options: ExportOptions,
    }

    /// Revokes a segment (N2). When the call returns no transfer touches it any more.
    ///
    /// Fails with `NoSuchSegment`.
    #[bytes(8)]
    pub struct Unexport {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: its index.
        pub segment: U16,
        /// Zero.
        pub reserved: U16,
    }

    /// Asks for a segment of another process, perhaps on another node (N3).
    ///
    /// Fails with `NameNotFound`, `ImportRefused`, `NoSuchNode`, `Exhausted`, `PeerGone`, `Aborted`.
    #[bytes(72)]
    pub struct Import {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: node that exports.
        pub node: U16,
        /// In: port of the process that exports.
        pub port: U16,
        /// In: name of the segment.
        pub name: U64,
        /// In: how long to wait for it to appear, in milliseconds.
        pub wait_ms: U32,
        /// Out: [`crate::Access`] that it grants.
        pub access: U32,
        /// Out: first address in the process that exports.
        pub address: U64,
        /// Out: length in bytes.
        pub length: U64,
        /// Out: its key.
        pub key: U64,
        /// Out: its index.
        pub segment: U16,
        /// Zero.
        pub reserved: [U16; 3],
        /// In: what the exporter may ask for; zero: nothing.
        pub secret: Secret,
    }
}

/// Flag of [`Wait`]: do not block; to poll, the present generation counts as seen from now on.
pub const WAIT_SEEN: u32 = 1;

layouts! {
    /// Blocks until the wake generation differs from `generation`
    /// ([`crate::host_area::WAKE_GENERATION`]), or with [`WAIT_SEEN`] not at all.
    #[bytes(24)]
    pub struct Wait {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: 0 or [`WAIT_SEEN`].
        pub flags: U32,
        /// In: the generation that the caller has seen. Out: the present one.
        pub generation: U64,
        /// In: longest time to block, in nanoseconds; negative: no limit.
        pub timeout_ns: I64,
    }

    /// Starts the command queue again after an error
    /// ([`crate::control::Opcode::ResetQueue`]).
    #[bytes(8)]
    pub struct ResetQueue {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// Ends all [`Wait`]s of this process that are under way, and those of threads that
    /// have read the wake generation before: what the NIC's wake event does, done by the
    /// process itself.
    #[bytes(8)]
    pub struct Wake {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// Zero.
        pub reserved: U32,
    }

    /// What the route to a node is like ([`crate::control::Opcode::QueryPath`], U8).
    ///
    /// Fails with `NoSuchNode` if the two NICs have no session: there is no route, or
    /// nothing has been sent yet.
    #[bytes(32)]
    pub struct Path {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: node number.
        pub node: U16,
        /// Zero.
        pub reserved: U16,
        /// Out: the answer.
        pub path: crate::control::PathInfo,
    }

    /// Describes driver and NIC. The layout has no room for counters; these are [`Counters`].
    #[bytes(32)]
    pub struct Info {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// Out: [`crate::ABI_VERSION`] of driver and NIC.
        pub abi_version: U32,
        /// Out: node number.
        pub node: U16,
        /// Zero.
        pub reserved0: U16,
        /// Out: windows of the NIC.
        pub windows: U32,
        /// Out: size of the SRAM in bytes.
        pub sram_bytes: U64,
        /// Out: frames that the physical map covers.
        pub frames: U64,
    }

    /// A page of counters ([`mod@crate::counters`]).
    #[bytes(504)]
    pub struct Counters {
        /// Out: a [`crate::Status`] code.
        pub status: U32,
        /// In: a [`crate::counters::CounterSource`].
        pub source: U32,
        /// In: number of the first counter of the page.
        pub first: U32,
        /// Zero.
        pub reserved: U32,
        /// Out: the counters.
        pub page: CounterPage,
    }
}

impl Counters {
    /// Reads a whole table with calls of the driver ([`counters::read`]).
    ///
    /// # Errors
    /// Those of `call`.
    pub fn read<E>(
        source: CounterSource,
        mut call: impl FnMut(&mut Counters) -> Result<(), E>,
    ) -> Result<BTreeMap<String, u64>, E> {
        counters::read(|first| {
            let mut counters = Counters {
                source: (source as u32).into(),
                first: first.into(),
                ..Counters::default()
            };
            call(&mut counters)?;
            Ok(counters.page)
        })
    }
}

impl Register {
    /// The counts of the NIC, not checked.
    pub fn counts(&self) -> Counts {
        Counts {
            command_entries: self.command_entries.get().into(),
            contexts: self.contexts.get().into(),
            context_pages: self.context_pages.get().into(),
            pool_pages: self.pool_pages.get().into(),
        }
    }

    /// The answer with these counts, which are checked.
    pub fn with_counts(self, counts: Counts) -> Self {
        Register {
            command_entries: (counts.command_entries as u16).into(),
            contexts: (counts.contexts as u16).into(),
            context_pages: (counts.context_pages as u16).into(),
            pool_pages: (counts.pool_pages as u16).into(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_numbers_are_linux_iowr() {
        // _IOWR('Q', 1, 28 bytes) of <asm-generic/ioctl.h>
        assert_eq!(REGISTER, 0xc024_5101);
        assert_eq!(INFO, 0xc020_5107);
        assert_eq!(COUNTERS, 0xc1f8_5110);
    }
}
