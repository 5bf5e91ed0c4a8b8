//! The shadow page table and physical map in SRAM (N4 to N7; NetVM §4.3, §4.4).
//!
//! A hash table of *m* rows by [`ROW_ENTRIES`] entries leads from a virtual page
//! to candidates for its physical frame; the physical map confirms one of them. Each array
//! has a single writer and all accesses are plain loads and stores.
//!
//! ```text
//!   Tag (VNI, virtual page) ── row_of ──► row: | m0 | m1 | m2 | m3 |   (mapping + 1, or 0)
//!                                                  │
//!   physical map, mapping m1: vpn[m1] == tag ?  key[m1]
//!                             driver           driver
//!     its frame f:                              lock[f]    dirty bits
//!                                               NIC        one array each
//! ```
//!
//! # Mappings
//! Several pages can have one frame: those of processes that share memory. A frame *f* has
//! [`MAPPINGS`] mappings, each with a reverse mapping and a key: *f*, *f* + frames, *f* + 2 · frames, …
//! (M:1 of NetVM §4.3.2). Lock word and dirty bits are those of the frame, for all of its mappings: a
//! page that the NIC uses under one tag is locked, and dirty, under the others. To clean a page, the
//! driver makes all mappings of its frame absent for that time. When it unmaps a page by force that the
//! NIC holds, all mappings of the frame leave, because otherwise new locks by other tags could keep the
//! frame locked without end; faults bring them back.
//!
//! # Access
//! The word `vpn[f]` says with one bit, [`WRITABLE`], whether the NIC may write to the
//! page. A page without it is found by a lookup for reading only; for a lookup for
//! writing it is absent, and the fault asks the driver for a page that can be written
//! ([`crate::event::FAULT_WRITE`]). The driver gives the right with one store to `vpn[f]`,
//! and takes it away only with unmapPage: so a page that was locked for writing stays
//! writable until it is unlocked.
//!
//! # Insertion (driver)
//! dirty bit clean, key, then vpn, then the entry in the row, each with release:
//! the NIC that finds an entry finds all of its frame's words.
//!
//! # lockPage (NIC)
//! For each non-zero entry of the row: `lock[f]` = lock count + 1; full fence; load
//! `vpn[f]`. If it is the wanted tag, with the wanted access, the page is locked; else restore
//! `lock[f]` and try the next entry.
//!
//! # unmapPage (driver)
//! `vpn[f]` = 0; full fence; load `lock[f]`. If it is zero the page is unmapped (then
//! the row's entry is cleared). If not, either restore `vpn[f]` and report LOCKED,
//! or (forced) leave it invalid and wait for the lock to become zero; until then
//! `vpn[f]` says [`LEAVING`], and the frame gets no other tag. At most one
//! of the two sides wins; it may be neither, and then the NIC treats the page as
//! absent (NetVM §4.4, figure 13).
//!
//! # Dirty bits
//! A frame is dirty when its bits in the two arrays are equal. The NIC marks a
//! frame by copying the driver's bit into its own; the driver cleans it by
//! storing the complement of the NIC's bit (NetVM §4.3.2.1).
//!
//! # Uses
//! The upper bits of `lock[f]` count the uses of the page: the NIC adds [`USE`] when it unlocks a page.
//! The driver remembers what it has seen, and so finds out whether the page was used since: what
//! the kernel asks before it reclaims a page (N7). A multiple of 256 uses looks like none.

use crate::{VniId, PAGE_SHIFT};

/// Entries in a row of the page table (*d* in the source).
pub const ROW_ENTRIES: usize = 4;

/// Mappings of a frame, at most: pages of one or several processes. A further mapping replaces one
/// of these.
pub const MAPPINGS: u32 = 4;

/// Size of a row in bytes; an entry is a `u32`: number of a mapping + 1, or 0.
pub const ROW_BYTES: usize = ROW_ENTRIES * 4;

/// Bits of a tag that hold the virtual page number; the VNI stands above [`WRITABLE`].
const VPN_BITS: u32 = 47;

/// Where the VNI begins in a tag.
const VNI_SHIFT: u32 = 48;

/// Bit of a reverse mapping: the NIC may write to the page.
pub const WRITABLE: u64 = 1 << 47;

/// Reverse mapping of a frame that is not mapped.
pub const UNMAPPED: u64 = 0;

/// Reverse mapping of a frame that the driver has unmapped by force while the NIC held it, until
/// the driver has seen that the NIC holds it no more. It has no valid bit, so it is no tag to the
/// NIC.
pub const LEAVING: u64 = 1;

/// The bits of a lock word that count the NIC's locks.
pub const LOCKS: u32 = USE - 1;

/// What the NIC adds to a lock word for each use of the page.
pub const USE: u32 = 1 << 24;

/// What the NIC may do with a page, or wants to. The number of a variant is its bit in a reverse
/// mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u64)]
pub enum PageAccess {
    /// Read it.
    Read = 0,
    /// Read it and write to it.
    Write = WRITABLE,
}

impl PageAccess {
    /// The access that a word of the physical map gives, if its frame is mapped.
    pub const fn of_word(word: u64) -> Self {
        match word & WRITABLE {
            0 => PageAccess::Read,
            _ => PageAccess::Write,
        }
    }
}

/// Identifies a page: valid bit (63), VNI (62 to 48), virtual page number (46 to 0). In the reverse
/// mapping of a frame the [`WRITABLE`] bit (47) is added. Without the valid bit the frame is not
/// mapped: [`UNMAPPED`] or [`LEAVING`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u64);

impl Tag {
    /// The tag of the page that holds `address` in the process of `vni`.
    pub const fn new(vni: VniId, address: u64) -> Self {
        let page = (address >> PAGE_SHIFT) & ((1 << VPN_BITS) - 1);
        Tag(1 << 63 | ((vni.0 & 0x7fff) as u64) << VNI_SHIFT | page)
    }

    /// The word that stands in the physical map for a page that the NIC may access so.
    pub const fn word(self, access: PageAccess) -> u64 {
        self.0 | access as u64
    }

    /// Returns true if a word of the physical map is this page's, and gives at least
    /// this access.
    pub const fn permits(self, word: u64, wanted: PageAccess) -> bool {
        let unused = WRITABLE ^ wanted as u64;
        word | unused == self.0 | WRITABLE
    }

    /// Reads a word of the physical map; `None` if the frame is not mapped.
    pub const fn from_word(word: u64) -> Option<Self> {
        if word >> 63 == 1 {
            Some(Tag(word & !WRITABLE))
        } else {
            None
        }
    }

    /// Row of a page table of `rows` rows (a power of two) in which this page's
    /// frame is entered: the upper bits of a multiplicative hash.
    pub const fn row(self, rows: u64) -> u64 {
        let mixed = self.0 ^ (self.0 >> 29);
        let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed ^ (mixed >> 32)) & (rows - 1)
    }
}

/// The value of a row's entry that names a mapping. The first mapping of a frame has the number of
/// the frame.
pub const fn entry_of(mapping: u32) -> u32 {
    mapping + 1
}

/// The mapping that a row's entry names, if any.
pub const fn named_mapping(entry: u32) -> Option<u32> {
    entry.checked_sub(1)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    #[test]
    fn tags_keep_vni_and_page_apart() {
        let tag = Tag::new(VniId(5), 0x7fff_ffff_f123);
        let word = 1 << 63 | 5 << 48 | 0x7_ffff_ffff;
        assert_eq!(tag.word(PageAccess::Read), word);
        assert_eq!(tag.word(PageAccess::Write), word | 1 << 47);
        assert_ne!(tag, Tag::new(VniId(6), 0x7fff_ffff_f123));
        assert_eq!(tag, Tag::new(VniId(5), 0x7fff_ffff_f000));
        assert_eq!(Tag::from_word(word), Some(tag));
        assert_eq!(Tag::from_word(word | WRITABLE), Some(tag));
        assert_eq!(Tag::from_word(UNMAPPED), None);
        assert_eq!(Tag::from_word(LEAVING), None);
    }

    #[test]
    fn a_read_only_page_permits_no_write() {
        let (read, write) = (PageAccess::Read, PageAccess::Write);
        let tag = Tag::new(VniId(0x7fff), u64::MAX);
        for entered in [read, write] {
            let word = tag.word(entered);
            assert_eq!(PageAccess::of_word(word), entered);
            assert!(tag.permits(word, read));
            assert_eq!(tag.permits(word, write), entered == write);
        }
        let other = Tag::new(VniId(0x7fff), 0);
        for wanted in [read, write] {
            assert!(!tag.permits(other.word(write), wanted));
            assert!(!tag.permits(UNMAPPED, wanted) && !tag.permits(LEAVING, wanted));
        }
    }

    /// A full table of sequential pages overflows a row about as often as NetVM's
    /// balls-into-bins formula says (§4.3.1.1): P(more than 4) = 0.00366 at load 1.
    #[test]
    fn sequential_pages_spread_like_random_ones() {
        let rows = 1u64 << 16;
        let mut load = vec![0u32; rows as usize];
        for page in 0..rows {
            let vni = VniId((page >> 14) as u16);
            load[Tag::new(vni, (page + 0x5_5555) << 12).row(rows) as usize] += 1;
        }
        let over = load.iter().filter(|n| **n > 4).count() as f64 / rows as f64;
        assert!((0.0025..0.0050).contains(&over), "{over}");
    }
}
