//! The first page of SRAM: magic, version and geometry (Q1, Q17).
//!
//! The driver maps it; no process does. The NIC writes [`SramHeader::magic`]
//! last, so a driver that sees the magic sees all of the header.
//!
//! ```text
//!  SRAM     0 ┌───────────────────────────────┐
//!             │ header (one page)             │  NIC writes, driver reads
//!  windows.. ─├───────────────────────────────┤
//!             │ windows: one for each VNI     │  mapped into processes
//!  table.. ───├───────────────────────────────┤
//!             │ page table: rows of 4 entries │  driver writes, NIC reads
//!  vpn.. ─────├───────────────────────────────┤
//!             │ reverse mappings, u64 each    │  driver writes, NIC reads
//!  key.. ─────├───────────────────────────────┤
//!             │ protection keys, u64 each     │  driver writes, NIC reads
//!  lock.. ────├───────────────────────────────┤
//!             │ lock word        u32 a frame  │  NIC writes, driver reads
//!  dirty.. ───├───────────────────────────────┤
//!             │ dirty bits, driver's array    │  driver writes, NIC reads
//!             ├───────────────────────────────┤
//!             │ dirty bits, NIC's array       │  NIC writes, driver reads
//!             └───────────────────────────────┘
//! ```
//!
//! A frame has [`MAPPINGS`] reverse mappings and keys ([`crate::page_table`]).
//!
//! What only the NIC may touch (process table, segment table, windows of peers)
//! is not in SRAM at all but in the memory of the device process (Q17).

use zerocopy::little_endian::{U16, U32, U64};

use crate::page_table::{MAPPINGS, ROW_BYTES, ROW_ENTRIES};
use crate::window::WINDOW_BYTES;
use crate::{NodeId, PAGE_SIZE};

/// Value of [`SramHeader::magic`]: "qnicsram".
pub const SRAM_MAGIC: u64 = u64::from_le_bytes(*b"qnicsram");

/// Offset of the magic word in SRAM.
pub const MAGIC: usize = 0;

/// Offset of [`SramHeader::state`] in SRAM (u32, written by the NIC).
pub const STATE: usize = 16;

pub use qnic_limits::{Counts, DEFAULT_WINDOWS, MAX_WINDOWS};

/// Segments that one process can export at the same time.
pub const SEGMENTS_PER_PROCESS: u32 = 4096;

/// So many of them each process can have, whatever others do.
pub const SEGMENTS_OF_EACH: u32 = 256;

/// Segments beyond these that all processes of a NIC can have together.
pub const SEGMENTS_BEYOND: u32 = 16_384;

layouts! {
    /// The SRAM header.
    #[bytes(152)]
    pub struct SramHeader {
        /// [`SRAM_MAGIC`] once everything else is there; zero before.
        pub magic: U64,
        /// [`crate::ABI_VERSION`].
        pub abi_version: U32,
        /// Node number of this NIC.
        pub node: U16,
        /// Zero.
        pub reserved0: U16,
        /// A [`crate::Status`] code: `Ok`, or why this NIC cannot serve this guest.
        pub state: U32,
        /// Number of doorbells.
        pub doorbells: U32,
        /// Size of the SRAM in bytes.
        pub sram_bytes: U64,
        /// Offset of window 0; the others follow without a gap.
        pub windows_offset: U64,
        /// Number of windows.
        pub windows: U32,
        /// Size of a window in bytes.
        pub window_bytes: U32,
        /// Entries of a command queue (N of Q2).
        pub command_entries: U32,
        /// Size of an entry in bytes.
        pub command_bytes: U32,
        /// Longest inline payload in bytes (N10).
        pub inline_max: U32,
        /// Counted notifications of a process, number 0 included.
        pub signal_counters: U32,
        /// Pages of a process's host area.
        pub host_pages: U32,
        /// Segments that a process can export at the same time.
        pub segments_per_process: U32,
        /// Contexts of each direction in a window (M of Q4).
        pub contexts: U32,
        /// Page descriptors in the region of a context (K of Q5).
        pub context_pages: U32,
        /// Pages of the buffer pool of a process (Q of Q7).
        pub pool_pages: U32,
        /// After how many milliseconds of silence this NIC gives up another one (U10).
        pub peer_timeout_ms: U32,
        /// Offset of the page table.
        pub table_offset: U64,
        /// Rows of the page table; a power of two.
        pub table_rows: U64,
        /// Physical frames that the physical map covers: frame numbers 0 to this, exclusive.
        pub frames: U64,
        /// Offset of the reverse mappings.
        pub vpn_offset: U64,
        /// Offset of the protection keys.
        pub key_offset: U64,
        /// Offset of the lock words.
        pub lock_offset: U64,
        /// Offset of the driver's dirty bits.
        pub dirty_driver_offset: U64,
        /// Offset of the NIC's dirty bits.
        pub dirty_nic_offset: U64,
    }
}

const _: () = assert!(core::mem::offset_of!(SramHeader, state) == STATE);
const _: () = assert!(core::mem::offset_of!(SramHeader, sram_bytes) == 24);
const _: () = assert!(core::mem::offset_of!(SramHeader, table_offset) == 88);

/// What a [`Geometry`] cannot be made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GeometryError {
    /// No frames, or more than a page table entry can name.
    Frames(u64),
    /// No windows, or more than [`MAX_WINDOWS`].
    Windows(u32),
    /// The named one of the [`Counts`] is out of range.
    Count(&'static str),
    /// The header's own fields contradict each other: the named field is the first that does.
    Inconsistent(&'static str),
}

impl core::fmt::Display for GeometryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            GeometryError::Frames(frames) => write!(f, "{frames} page frames are out of range"),
            GeometryError::Windows(windows) => write!(f, "{windows} windows are out of range"),
            GeometryError::Count(name) => write!(f, "the number {name} is out of range"),
            GeometryError::Inconsistent(name) => write!(f, "{name} contradicts the other fields"),
        }
    }
}

/// Where everything is in an SRAM: a checked [`SramHeader`].
///
/// All offsets are within `sram_bytes`, aligned for their words, and do not
/// overlap; code may use them with [`crate::SharedMemory`] without further checks
/// as long as VNI < `windows`, row < `rows` and frame < `frames`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Node number of the NIC.
    pub node: NodeId,
    /// Number of doorbells.
    pub doorbells: u32,
    /// Size of the SRAM in bytes, a power of two (it is a PCI BAR).
    pub sram_bytes: u64,
    /// Number of windows.
    pub windows: u32,
    /// What each process has.
    pub counts: Counts,
    /// Offset of the page table.
    pub table_offset: usize,
    /// Rows of the page table, a power of two.
    pub rows: u64,
    /// Frames of the physical map.
    pub frames: u64,
    // As in the header.
    windows_offset: usize,
    vpn_offset: usize,
    key_offset: usize,
    lock_offset: usize,
    dirty_driver_offset: usize,
    dirty_nic_offset: usize,
}

const fn page_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_SIZE as u64)
}

/// A part of the SRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SramPart {
    /// What it is.
    pub name: &'static str,
    /// Its offset in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// The side that writes to it.
    pub writer: &'static str,
}

impl Geometry {
    /// The parts of the SRAM, in the order of their offsets (Q17).
    pub fn parts(&self) -> impl Iterator<Item = SramPart> + '_ {
        let parts = [
            ("header", 0, "NIC"),
            ("windows", self.windows_offset, "processes, each its own"),
            ("page table", self.table_offset, "driver"),
            ("reverse mappings", self.vpn_offset, "driver"),
            ("protection keys", self.key_offset, "driver"),
            ("lock words", self.lock_offset, "NIC"),
            (
                "dirty bits of the driver",
                self.dirty_driver_offset,
                "driver",
            ),
            ("dirty bits of the NIC", self.dirty_nic_offset, "NIC"),
        ];
        let dirty_bytes = self.dirty_nic_offset - self.dirty_driver_offset;
        let ends = parts.into_iter().skip(1).map(|(_, offset, _)| offset);
        let ends = ends.chain([self.dirty_nic_offset + dirty_bytes]);
        let parts = parts.into_iter().zip(ends);
        parts.map(|((name, offset, writer), end)| SramPart {
            name,
            offset,
            bytes: end - offset,
            writer,
        })
    }

    /// Lays out an SRAM for a guest whose highest physical frame number is below
    /// `frames` and which runs up to `windows` processes on the NIC.
    ///
    /// # Errors
    /// [`GeometryError::Frames`] or [`GeometryError::Windows`] when out of range.
    pub const fn new(
        node: NodeId,
        frames: u64,
        windows: u32,
        doorbells: u32,
    ) -> Result<Self, GeometryError> {
        if frames == 0 || frames >= (u32::MAX / MAPPINGS) as u64 {
            return Err(GeometryError::Frames(frames));
        }
        if windows == 0 || windows > MAX_WINDOWS {
            return Err(GeometryError::Windows(windows));
        }
        let rows = frames.next_power_of_two();
        let windows_offset = PAGE_SIZE as u64;
        let table = windows_offset + windows as u64 * WINDOW_BYTES as u64;
        let vpn = table + page_up(rows * ROW_BYTES as u64);
        let mappings = frames * MAPPINGS as u64;
        let key = vpn + page_up(mappings * 8);
        let lock = key + page_up(mappings * 8);
        let dirty_driver = lock + page_up(frames * 4);
        let dirty_bytes = page_up(frames.div_ceil(32) * 4);
        let dirty_nic = dirty_driver + dirty_bytes;
        Ok(Geometry {
            node,
            doorbells,
            sram_bytes: (dirty_nic + dirty_bytes).next_power_of_two(),
            windows,
            counts: Counts::MOST,
            windows_offset: windows_offset as usize,
            table_offset: table as usize,
            rows,
            frames,
            vpn_offset: vpn as usize,
            key_offset: key as usize,
            lock_offset: lock as usize,
            dirty_driver_offset: dirty_driver as usize,
            dirty_nic_offset: dirty_nic as usize,
        })
    }

    /// The same with other counts: offsets do not depend on them.
    ///
    /// # Errors
    /// [`GeometryError::Count`]
    pub fn with_counts(self, counts: Counts) -> Result<Self, GeometryError> {
        let counts = counts.check().map_err(GeometryError::Count)?;
        Ok(Geometry { counts, ..self })
    }

    /// The header that describes this geometry, magic included; the time is the NIC's to set.
    pub fn header(&self) -> SramHeader {
        SramHeader {
            magic: SRAM_MAGIC.into(),
            abi_version: crate::ABI_VERSION.into(),
            node: self.node.0.into(),
            reserved0: 0.into(),
            state: crate::Status::Ok.code().into(),
            doorbells: self.doorbells.into(),
            sram_bytes: self.sram_bytes.into(),
            windows_offset: (self.windows_offset as u64).into(),
            windows: self.windows.into(),
            window_bytes: (WINDOW_BYTES as u32).into(),
            command_entries: self.counts.command_entries.into(),
            command_bytes: (crate::command::COMMAND_BYTES as u32).into(),
            inline_max: (crate::command::DEFAULT_INLINE_MAX as u32).into(),
            signal_counters: crate::host_area::SIGNAL_COUNTERS.into(),
            host_pages: (crate::host_area::HOST_PAGES as u32).into(),
            segments_per_process: SEGMENTS_PER_PROCESS.into(),
            contexts: self.counts.contexts.into(),
            context_pages: self.counts.context_pages.into(),
            pool_pages: self.counts.pool_pages.into(),
            peer_timeout_ms: 0.into(),
            table_offset: (self.table_offset as u64).into(),
            table_rows: self.rows.into(),
            frames: self.frames.into(),
            vpn_offset: (self.vpn_offset as u64).into(),
            key_offset: (self.key_offset as u64).into(),
            lock_offset: (self.lock_offset as u64).into(),
            dirty_driver_offset: (self.dirty_driver_offset as u64).into(),
            dirty_nic_offset: (self.dirty_nic_offset as u64).into(),
        }
    }

    /// Checks a header read from an SRAM of `sram_bytes` bytes.
    ///
    /// # Errors
    /// [`GeometryError`] names the first field that is out of range or does not
    /// follow from the others. Magic, version and state are the caller's to check.
    pub fn from_header(header: &SramHeader, sram_bytes: u64) -> Result<Self, GeometryError> {
        let geometry = Self::new(
            NodeId(header.node.get()),
            header.frames.get(),
            header.windows.get(),
            header.doorbells.get(),
        )?;
        let geometry = geometry.with_counts(Counts {
            command_entries: header.command_entries.get(),
            contexts: header.contexts.get(),
            context_pages: header.context_pages.get(),
            pool_pages: header.pool_pages.get(),
        })?;
        let mut expected = geometry.header();
        expected.magic = header.magic;
        expected.abi_version = header.abi_version;
        expected.state = header.state;
        expected.inline_max = header.inline_max;
        expected.peer_timeout_ms = header.peer_timeout_ms;
        if geometry.sram_bytes > sram_bytes || header.sram_bytes != expected.sram_bytes {
            return Err(GeometryError::Inconsistent("sram_bytes"));
        }
        if header.inline_max.get() as usize > crate::command::INLINE_CAPACITY {
            return Err(GeometryError::Inconsistent("inline_max"));
        }
        if header.table_rows != expected.table_rows {
            return Err(GeometryError::Inconsistent("table_rows"));
        }
        if *header != expected {
            return Err(GeometryError::Inconsistent("an offset, size or count"));
        }
        Ok(geometry)
    }

    /// Offset of the window of VNI `vni`.
    pub const fn window_offset(&self, vni: crate::VniId) -> usize {
        self.windows_offset + vni.0 as usize * WINDOW_BYTES
    }

    /// Offset of entry `entry` of row `row` of the page table (u32).
    pub const fn entry_offset(&self, row: u64, entry: usize) -> usize {
        self.table_offset + row as usize * ROW_BYTES + (entry % ROW_ENTRIES) * 4
    }

    /// The mappings of a frame; none if it is beyond all.
    pub fn mappings(&self, frame: u32) -> impl Iterator<Item = u32> + Clone {
        let (frames, known) = (self.frames as u32, u64::from(frame) < self.frames);
        let count = if known { MAPPINGS } else { 0 };
        (0..count).map(move |index| frame + index * frames)
    }

    /// The frame of a mapping; `None` if it is beyond all.
    #[inline]
    pub fn frame(&self, mapping: u32) -> Option<u32> {
        match u64::from(mapping) < self.frames {
            true => Some(mapping),
            false => self.shared_frame(mapping),
        }
    }

    #[cold]
    fn shared_frame(&self, mapping: u32) -> Option<u32> {
        let mapping = u64::from(mapping);
        let known = mapping < self.frames * u64::from(MAPPINGS);
        known.then_some((mapping % self.frames) as u32)
    }

    /// Offset of the reverse mapping of a mapping (u64, a [`crate::page_table::Tag`]).
    pub const fn vpn_word(&self, mapping: u32) -> usize {
        self.vpn_offset + mapping as usize * 8
    }

    /// Offset of the protection key of a mapping (u64).
    pub const fn key_word(&self, mapping: u32) -> usize {
        self.key_offset + mapping as usize * 8
    }

    /// Offset of the lock word of a frame (u32).
    pub const fn lock_word(&self, frame: u32) -> usize {
        self.lock_offset + frame as usize * 4
    }

    /// Offset of the word (u32) of the driver's dirty bits that holds a frame's bit.
    pub const fn dirty_driver_word(&self, frame: u32) -> usize {
        self.dirty_driver_offset + frame as usize / 32 * 4
    }

    /// Offset of the word (u32) of the NIC's dirty bits that holds a frame's bit.
    pub const fn dirty_nic_word(&self, frame: u32) -> usize {
        self.dirty_nic_offset + frame as usize / 32 * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The map of SRAM (Q17).
    #[test]
    fn parts_do_not_overlap_and_fit() {
        for frames in [1, 31, 32, 33, 4096, 65_536, 262_144, 1_000_003] {
            let g = Geometry::new(NodeId(3), frames, 128, 14).unwrap();
            let dirty = frames.div_ceil(32) as usize * 4;
            let starts = [
                (0, PAGE_SIZE),
                (g.windows_offset, 128 * WINDOW_BYTES),
                (g.table_offset, g.rows as usize * ROW_BYTES),
                (g.vpn_offset, frames as usize * 32),
                (g.key_offset, frames as usize * 32),
                (g.lock_offset, frames as usize * 4),
                (g.dirty_driver_offset, dirty),
                (g.dirty_nic_offset, dirty),
                (g.sram_bytes as usize, 0),
            ];
            for pair in starts.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{frames}: {pair:?}");
            }
            assert!(g.rows >= frames && g.rows.is_power_of_two());
            assert_eq!(Geometry::from_header(&g.header(), g.sram_bytes), Ok(g));
        }
    }

    /// Another geometry is read from the header, and none that cannot be (Q1).
    #[test]
    fn counts_are_those_of_the_header() {
        let counts = Counts {
            command_entries: 16,
            contexts: 5,
            context_pages: 3,
            pool_pages: 2,
        };
        let g = Geometry::new(NodeId(0), 4096, 128, 14).unwrap();
        let few = g.with_counts(counts).unwrap();
        assert_eq!(Geometry::from_header(&few.header(), g.sram_bytes), Ok(few));
        type Set = fn(&mut SramHeader, u32);
        let fields: [(&str, Set, &[u32]); 4] = [
            (
                "contexts",
                |it, to| it.contexts = to.into(),
                &[0, 33, u32::MAX],
            ),
            (
                "command_entries",
                |it, to| it.command_entries = to.into(),
                &[0, 8, 48, 128, u32::MAX],
            ),
            (
                "context_pages",
                |it, to| it.context_pages = to.into(),
                &[0, 9, u32::MAX],
            ),
            (
                "pool_pages",
                |it, to| it.pool_pages = to.into(),
                &[0, 17, u32::MAX],
            ),
        ];
        for (name, set, values) in fields {
            for value in values {
                let mut header = few.header();
                set(&mut header, *value);
                let refused = Geometry::from_header(&header, g.sram_bytes);
                assert_eq!(refused, Err(GeometryError::Count(name)), "{value}");
            }
        }
        let mut header = few.header();
        header.contexts = 9.into();
        let refused = Geometry::from_header(&header, g.sram_bytes);
        assert_eq!(
            refused,
            Err(GeometryError::Count("command_entries")),
            "N ≥ 2M"
        );
    }

    #[test]
    fn a_gibibyte_of_guest_memory_needs_32_mebibytes() {
        let g = Geometry::new(NodeId(0), 1 << 18, DEFAULT_WINDOWS, 14).unwrap();
        assert_eq!(g.sram_bytes, 32 << 20);
        let last = g.mappings(7).last().unwrap();
        assert_eq!((g.frame(last), g.mappings(1 << 18).next()), (Some(7), None));
        assert_eq!(g.frame(4 << 18), None);
    }

    #[test]
    fn impossible_geometries_are_refused() {
        let empty = |frames, windows| Geometry::new(NodeId(0), frames, windows, 1);
        assert_eq!(empty(0, 1), Err(GeometryError::Frames(0)));
        assert_eq!(empty(1, 0), Err(GeometryError::Windows(0)));
        let g = Geometry::new(NodeId(0), 4096, 128, 14).unwrap();
        let mut header = g.header();
        header.lock_offset = (g.lock_offset as u64 + 4096).into();
        assert!(Geometry::from_header(&header, g.sram_bytes).is_err());
        assert!(Geometry::from_header(&g.header(), g.sram_bytes / 2).is_err());
        let mut header = g.header();
        header.inline_max = 129.into();
        let refused = Geometry::from_header(&header, g.sram_bytes);
        assert_eq!(refused, Err(GeometryError::Inconsistent("inline_max")));
    }
}
