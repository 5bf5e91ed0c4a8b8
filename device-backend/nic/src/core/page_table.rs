//! The NIC's side of the shadow page table: lockPage, unlockPage, unlockPageDirty
//! (N4, N6, N7; protocol in [`qnic_abi::page_table`]).
//!
//! A page is locked within one call of an entry point, while it is the source of a frame that is
//! being sent, or the destination of one that is being copied. Locks nest, as a process may write
//! from a page to the same page: the guard remembers the count that it found and restores it; the
//! last lock is released first. Only the source of a frame that a wire keeps stays locked beyond the
//! call. Such locks end in any order, so each lowers the count that it finds.
//!
//! A lookup says what the page is wanted for: a page that the driver has entered for reading only is
//! absent to a lookup for writing.
//!
//! A guest can write anything into its SRAM. So an entry is checked against the number of frames
//! before it indexes an array, and the memory that it names is always memory of that same guest
//! ([`crate::env::HostMemory`] checks it).
//!
//! Pages of physical segments (N25) are in no table, and are not locked.

use qnic_abi::header::Geometry;
use qnic_abi::page_table::{named_mapping, PageAccess, Tag, LOCKS, ROW_ENTRIES, USE};
use qnic_abi::shared::Ordering;
use qnic_abi::{Key, SharedMemory, PAGE_SHIFT};

/// A page that the driver will not take away until it is unlocked.
#[derive(Debug)]
#[must_use = "a page that is locked must be unlocked"]
pub struct LockedPage {
    frame: u32,
    /// The one under which it was found.
    mapping: u32,
    /// The lock word that was there before; `None`: it is pinned, not locked.
    previous: Option<u32>,
}

impl LockedPage {
    /// The page that holds a guest-physical address, which its owner keeps in
    /// place; `None` if there is no such frame.
    pub(crate) fn pinned(address: u64) -> Option<Self> {
        Some(LockedPage {
            frame: u32::try_from(address >> PAGE_SHIFT).ok()?,
            mapping: 0,
            previous: None,
        })
    }

    /// Guest-physical address of the page.
    pub fn address(&self) -> u64 {
        u64::from(self.frame) << PAGE_SHIFT
    }
}

/// Why a page is not locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// It is not in the table, or not for this access.
    Absent,
    /// It was there and the driver was taking it away: the driver has won (N6).
    Lost,
}

/// Finds the frame of a page and locks it; `None` if the page is absent, or not for this
/// access.
#[inline]
pub fn lock_page<S: SharedMemory>(
    sram: &S,
    geometry: &Geometry,
    tag: Tag,
    access: PageAccess,
) -> Option<LockedPage> {
    try_lock_page(sram, geometry, tag, access).ok()
}

/// [`lock_page`] that tells why there is no page.
///
/// # Errors
/// [`Missed`]: the page is to be treated as absent.
#[inline]
pub fn try_lock_page<S: SharedMemory>(
    sram: &S,
    geometry: &Geometry,
    tag: Tag,
    access: PageAccess,
) -> Result<LockedPage, Missed> {
    let mut missed = Missed::Absent;
    let row = tag.row(geometry.rows);
    for entry in 0..ROW_ENTRIES {
        // Pairs with the driver's release store of the entry: the frame's key
        // and reverse mapping are there.
        let word = sram.load_u32(geometry.entry_offset(row, entry), Ordering::Acquire);
        let Some((mapping, frame)) = mapping_of(geometry, word) else {
            continue;
        };
        // A first look without the lock: locks on other pages' frames would only
        // make the driver believe that they are in use.
        let found = sram.load_u64(geometry.vpn_word(mapping), Ordering::Relaxed);
        if !tag.permits(found, access) {
            continue;
        }
        let lock = geometry.lock_word(frame);
        let previous = sram.load_u32(lock, Ordering::Relaxed);
        sram.store_u32(lock, previous.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the fence in the driver's unmapPage, between its store to
        // the reverse mapping and its load of the lock.
        sram.fence();
        // Acquire pairs with the driver's release store of the reverse mapping.
        let found = sram.load_u64(geometry.vpn_word(mapping), Ordering::Acquire);
        if tag.permits(found, access) {
            return Ok(LockedPage {
                frame,
                mapping,
                previous: Some(previous),
            });
        }
        // Relaxed: the page was not touched, and the fence releases what was before.
        sram.store_u32(lock, previous, Ordering::Relaxed);
        missed = Missed::Lost;
    }
    Err(missed)
}

/// The mapping that an entry of a row names, and its frame.
#[inline]
fn mapping_of(geometry: &Geometry, word: u32) -> Option<(u32, u32)> {
    let mapping = named_mapping(word)?;
    Some((mapping, geometry.frame(mapping)?))
}

/// The mapping that a page seems to have, and its frame, by a look without the lock.
fn candidate<S: SharedMemory>(
    sram: &S,
    geometry: &Geometry,
    tag: Tag,
    access: PageAccess,
) -> Option<(u32, u32)> {
    let row = tag.row(geometry.rows);
    (0..ROW_ENTRIES).find_map(|entry| {
        // As in lock_page.
        let word = sram.load_u32(geometry.entry_offset(row, entry), Ordering::Acquire);
        let (mapping, frame) = mapping_of(geometry, word)?;
        let found = sram.load_u64(geometry.vpn_word(mapping), Ordering::Relaxed);
        tag.permits(found, access).then_some((mapping, frame))
    })
}

/// How many pages, from the first on, seem to be there: a look without locks and
/// fences, which promises nothing.
pub fn count_present<S: SharedMemory>(
    sram: &S,
    geometry: &Geometry,
    tags: impl Iterator<Item = Tag>,
    access: PageAccess,
) -> usize {
    tags.take_while(|tag| candidate(sram, geometry, *tag, access).is_some())
        .count()
}

/// Locks several pages with one fence: sets all lock words, then looks at all
/// reverse mappings. Returns how many, from the first on, are locked; the rest of
/// `pages` is `None`. Pages are frames of their own: a run ends where one would
/// come twice.
pub fn lock_pages<S: SharedMemory>(
    sram: &S,
    geometry: &Geometry,
    tags: impl Iterator<Item = Tag> + Clone,
    access: PageAccess,
    pages: &mut [Option<LockedPage>],
) -> usize {
    let mut marked = 0;
    for tag in tags.clone().take(pages.len()) {
        let Some((mapping, frame)) = candidate(sram, geometry, tag, access) else {
            break;
        };
        if pages[..marked]
            .iter()
            .flatten()
            .any(|page| page.frame == frame)
        {
            break;
        }
        let lock = geometry.lock_word(frame);
        let previous = sram.load_u32(lock, Ordering::Relaxed);
        sram.store_u32(lock, previous.wrapping_add(1), Ordering::Relaxed);
        pages[marked] = Some(LockedPage {
            frame,
            mapping,
            previous: Some(previous),
        });
        marked += 1;
    }
    // Pairs, for each page, as the fence of lock_page does.
    sram.fence();
    let mut locked = 0;
    for (tag, page) in tags.zip(pages[..marked].iter()) {
        let mapping = page.as_ref().map_or(0, |page| page.mapping);
        // Acquire: as in lock_page.
        let found = sram.load_u64(geometry.vpn_word(mapping), Ordering::Acquire);
        if !tag.permits(found, access) {
            break;
        }
        locked += 1;
    }
    for page in pages[locked..marked].iter_mut().filter_map(Option::take) {
        unlock_page(sram, geometry, page);
    }
    locked
}

/// The protection key of a locked page.
pub fn page_key<S: SharedMemory>(sram: &S, geometry: &Geometry, page: &LockedPage) -> Key {
    Key(sram.load_u64(geometry.key_word(page.mapping), Ordering::Relaxed))
}

/// Lets the driver have the page again.
#[inline]
pub fn unlock_page<S: SharedMemory>(sram: &S, geometry: &Geometry, page: LockedPage) {
    let Some(previous) = page.previous else {
        return;
    };
    let used = previous.wrapping_add(USE);
    // Release pairs with the driver's acquire load of the lock: every access to
    // the page is over when it sees the lock gone.
    sram.store_u32(geometry.lock_word(page.frame), used, Ordering::Release);
}

/// Lets the driver have a page again that was locked in an earlier call of an entry point: other
/// locks on it may have begun since, and ended.
pub fn release_page<S: SharedMemory>(sram: &S, geometry: &Geometry, page: LockedPage) {
    if page.previous.is_none() {
        return;
    }
    let lock = geometry.lock_word(page.frame);
    // Relaxed: only the NIC writes to it. What a guest writes here harms itself alone.
    let word = sram.load_u32(lock, Ordering::Relaxed);
    let held = u32::from(word & LOCKS != 0);
    // Release: as in unlock_page.
    sram.store_u32(lock, (word - held).wrapping_add(USE), Ordering::Release);
}

/// Lets the driver have a page again that was written to: marks it dirty first (N7).
#[inline]
pub fn unlock_page_dirty<S: SharedMemory>(sram: &S, geometry: &Geometry, page: LockedPage) {
    if page.previous.is_none() {
        return;
    }
    let bit = 1 << (page.frame % 32);
    // Relaxed, this one and the store: the driver changes the bit only while the page
    // is not locked. lockPage has acquired it, and unlockPage releases ours.
    let driver = sram.load_u32(geometry.dirty_driver_word(page.frame), Ordering::Relaxed);
    let own = geometry.dirty_nic_word(page.frame);
    let before = sram.load_u32(own, Ordering::Relaxed);
    let after = before & !bit | driver & bit;
    if after != before {
        sram.store_u32(own, after, Ordering::Relaxed);
    }
    unlock_page(sram, geometry, page);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Sram;
    use qnic_abi::page_table::entry_of;
    use qnic_abi::{NodeId, VniId};

    const WRITE: PageAccess = PageAccess::Write;

    fn table() -> (Sram, Geometry) {
        let geometry = Geometry::new(NodeId(1), 64, 4, 2).unwrap();
        (Sram::new(geometry.sram_bytes as usize), geometry)
    }

    fn insert(sram: &Sram, geometry: &Geometry, tag: Tag, frame: u32, entry: usize) {
        sram.store_u64(geometry.key_word(frame), 77, Ordering::Release);
        let word = tag.word(PageAccess::Write);
        sram.store_u64(geometry.vpn_word(frame), word, Ordering::Release);
        let row = tag.row(geometry.rows);
        sram.store_u32(
            geometry.entry_offset(row, entry),
            entry_of(frame),
            Ordering::Release,
        );
    }

    fn locks(sram: &Sram, geometry: &Geometry, frame: u32) -> u32 {
        sram.load_u32(geometry.lock_word(frame), Ordering::Relaxed) & LOCKS
    }

    fn dirty(sram: &Sram, geometry: &Geometry, frame: u32) -> bool {
        let driver = sram.load_u32(geometry.dirty_driver_word(frame), Ordering::Relaxed);
        let nic = sram.load_u32(geometry.dirty_nic_word(frame), Ordering::Relaxed);
        (driver ^ nic) >> (frame % 32) & 1 == 0
    }

    #[test]
    fn a_mapped_page_is_found_in_any_entry_and_locks_nest() {
        let (sram, geometry) = table();
        for entry in 0..ROW_ENTRIES {
            let tag = Tag::new(VniId(2), (0x7000 + entry as u64) << PAGE_SHIFT);
            let frame = 40 + entry as u32;
            insert(&sram, &geometry, tag, frame, entry);
            let outer = lock_page(&sram, &geometry, tag, WRITE).unwrap();
            let inner = lock_page(&sram, &geometry, tag, WRITE).unwrap();
            assert_eq!(outer.address(), u64::from(frame) << PAGE_SHIFT);
            assert_eq!(page_key(&sram, &geometry, &inner), Key(77));
            assert_eq!(locks(&sram, &geometry, frame), 2);
            unlock_page(&sram, &geometry, inner);
            assert_eq!(locks(&sram, &geometry, frame), 1);
            unlock_page(&sram, &geometry, outer);
            assert_eq!(locks(&sram, &geometry, frame), 0);
        }
    }

    #[test]
    fn absent_foreign_and_impossible_entries_are_not_found() {
        let (sram, geometry) = table();
        let tag = Tag::new(VniId(0), 0x5000);
        let missed = try_lock_page(&sram, &geometry, tag, WRITE).unwrap_err();
        assert_eq!(missed, Missed::Absent);
        let row = tag.row(geometry.rows);
        for (entry, word) in [u32::MAX, 65, 64, 1].into_iter().enumerate() {
            sram.store_u32(geometry.entry_offset(row, entry), word, Ordering::Relaxed);
        }
        sram.store_u64(
            geometry.vpn_word(63),
            tag.word(WRITE) + 1,
            Ordering::Relaxed,
        );
        assert!(lock_page(&sram, &geometry, tag, WRITE).is_none());
        sram.store_u64(geometry.vpn_word(63), tag.word(WRITE), Ordering::Relaxed);
        let page = lock_page(&sram, &geometry, tag, WRITE).unwrap();
        assert_eq!(page.address(), 63 << PAGE_SHIFT);
        unlock_page(&sram, &geometry, page);
    }

    /// The driver takes the page away between the NIC's first look and its lock.
    struct Race<'a>(&'a Sram, usize);

    impl SharedMemory for Race<'_> {
        fn size(&self) -> usize {
            self.0.size()
        }
        fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
            self.0.load_u32(offset, order)
        }
        fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
            self.0.store_u32(offset, value, order);
        }
        fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
            self.0.load_u64(offset, order)
        }
        fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
            self.0.store_u64(offset, value, order);
        }
        fn fence(&self) {
            self.0.store_u64(self.1, 0, Ordering::Relaxed);
            self.0.fence();
        }
    }

    #[test]
    fn a_lookup_that_the_driver_wins_is_told_from_an_absent_page() {
        let (sram, geometry) = table();
        let tag = Tag::new(VniId(3), 0xa000);
        insert(&sram, &geometry, tag, 12, 1);
        let race = Race(&sram, geometry.vpn_word(12));
        let missed = try_lock_page(&race, &geometry, tag, WRITE).unwrap_err();
        assert_eq!(missed, Missed::Lost);
        let lock = sram.load_u32(geometry.lock_word(12), Ordering::Relaxed);
        assert_eq!(lock, 0, "let go again, and not used");
        let missed = try_lock_page(&race, &geometry, tag, WRITE).unwrap_err();
        assert_eq!(missed, Missed::Absent);
    }

    #[test]
    fn a_read_only_page_is_found_for_reading_alone() {
        let (sram, geometry) = table();
        let tag = |page: u64| Tag::new(VniId(1), page << PAGE_SHIFT);
        for page in 20..22 {
            insert(&sram, &geometry, tag(page), page as u32, 2);
        }
        let word = tag(21).word(PageAccess::Read);
        sram.store_u64(geometry.vpn_word(21), word, Ordering::Release);
        let missed = try_lock_page(&sram, &geometry, tag(21), WRITE).unwrap_err();
        assert_eq!(missed, Missed::Absent);
        let page = lock_page(&sram, &geometry, tag(21), PageAccess::Read).unwrap();
        assert_eq!(page.address(), 21 << PAGE_SHIFT);
        unlock_page(&sram, &geometry, page);
        for (access, there) in [(PageAccess::Read, 2), (WRITE, 1)] {
            let tags = (20..22).map(tag);
            let mut pages: [Option<LockedPage>; 2] = Default::default();
            let present = count_present(&sram, &geometry, tags.clone(), access);
            let locked = lock_pages(&sram, &geometry, tags, access, &mut pages);
            assert_eq!((present, locked), (there, there));
            for page in pages.into_iter().flatten() {
                unlock_page(&sram, &geometry, page);
            }
        }
        assert_eq!(locks(&sram, &geometry, 21), 0);
    }

    #[test]
    fn a_written_page_is_dirty_until_the_driver_cleans_it() {
        let (sram, geometry) = table();
        let tag = Tag::new(VniId(1), 0x9000);
        insert(&sram, &geometry, tag, 33, 0);
        let clean = |sram: &Sram| {
            let nic = sram.load_u32(geometry.dirty_nic_word(33), Ordering::Relaxed);
            let word = geometry.dirty_driver_word(33);
            let driver = sram.load_u32(word, Ordering::Relaxed);
            sram.store_u32(word, driver & !2 | !nic & 2, Ordering::Relaxed);
        };
        for _ in 0..3 {
            clean(&sram);
            assert!(!dirty(&sram, &geometry, 33));
            let page = lock_page(&sram, &geometry, tag, WRITE).unwrap();
            unlock_page(&sram, &geometry, page);
            assert!(!dirty(&sram, &geometry, 33));
            for _ in 0..2 {
                let page = lock_page(&sram, &geometry, tag, WRITE).unwrap();
                unlock_page_dirty(&sram, &geometry, page);
                assert!(dirty(&sram, &geometry, 33));
            }
        }
    }

    /// Each use changes the word, nested ones and those of kept frames too, and no lock stays.
    #[test]
    fn a_page_that_was_used_is_known() {
        let (sram, geometry) = table();
        let tag = Tag::new(VniId(1), 0x4000);
        insert(&sram, &geometry, tag, 9, 0);
        let word = || sram.load_u32(geometry.lock_word(9), Ordering::Relaxed);
        let lock = || lock_page(&sram, &geometry, tag, WRITE).unwrap();
        let mut seen = word();
        let mut was_used = || std::mem::replace(&mut seen, word()) != seen;
        assert!(!was_used());
        for _ in 0..600 {
            unlock_page(&sram, &geometry, lock());
            assert!(was_used() && !was_used());
        }
        let (outer, inner) = (lock(), lock());
        unlock_page_dirty(&sram, &geometry, inner);
        unlock_page(&sram, &geometry, outer);
        assert!(was_used() && !was_used());
        let kept = [lock(), lock()];
        for page in kept {
            release_page(&sram, &geometry, page);
        }
        assert!(was_used() && word() & LOCKS == 0);
    }

    #[test]
    fn a_run_of_pages_ends_at_the_first_that_is_not_there() {
        let (sram, geometry) = table();
        let tag = |page: u64| Tag::new(VniId(2), page << PAGE_SHIFT);
        for page in [10, 11, 13] {
            insert(&sram, &geometry, tag(page), page as u32, 0);
        }
        // Page 12 claims the frame of page 13.
        let row = tag(12).row(geometry.rows);
        let entry = geometry.entry_offset(row, 3);
        sram.store_u32(entry, entry_of(13), Ordering::Release);
        let mut pages: [Option<LockedPage>; 4] = Default::default();
        let locks = |frames: [u32; 4]| frames.map(|frame| locks(&sram, &geometry, frame));
        let tags = (10..14).map(tag);
        assert_eq!(count_present(&sram, &geometry, tags.clone(), WRITE), 2);
        assert_eq!(count_present(&sram, &geometry, (13..15).map(tag), WRITE), 1);
        assert_eq!(locks([10, 11, 12, 13]), [0; 4], "nothing is locked");
        assert_eq!(lock_pages(&sram, &geometry, tags, WRITE, &mut pages), 2);
        assert_eq!(locks([10, 11, 12, 13]), [1, 1, 0, 0]);
        for page in pages.iter_mut().filter_map(Option::take) {
            unlock_page(&sram, &geometry, page);
        }
        assert_eq!(locks([10, 11, 12, 13]), [0; 4]);
    }
}
