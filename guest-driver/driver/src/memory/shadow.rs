//! The driver's side of the shadow page table in SRAM (N4 to N7).
//!
//! [`Table`] holds no lock: the caller with `&mut` is the only writer of
//! rows, reverse mappings, keys and the driver's dirty bits. In the driver that
//! is the spin lock of the page table; in the loom model it is one thread.
//!
//! ```text
//!             insert                             unmap
//!   dirty bit := complement of NIC's     vpn := 0
//!   key := page key                      full fence              (partner: NIC's
//!   vpn := tag          (release)        lock == 0?               fence in lockPage)
//!   entry := frame + 1  (release)          yes: entry := 0, done
//!                                          no:  try:    vpn := tag, Locked
//!                                               forced: vpn := leaving, entry := 0,
//!                                                       wait for lock == 0, vpn := 0
//! ```
//!
//! The map holds the tag together with the NIC's access. A page that is mapped
//! for reading becomes writable in place, by one store of its reverse mapping. Taking write access
//! away is an unmap: the driver waits for a NIC that has the page locked for writing.
//!
//! isPageDirty cleans a page that stays mapped. To do so it makes the page absent to the NIC for
//! a moment, so a page that the NIC is writing to never counts as
//! clean (N7).
//!
//! `docs/proofs.md` shows that each of these orders is needed: without any one of
//! them a model in `tests/page_lock` fails. Where a store is relaxed, a fence or
//! a later release orders it.
//!
//! # Invariants
//! - Each of the [`MAPPINGS`] of a frame has at most one tag, no two have the same, and a tag in
//!   the physical map is in exactly one entry of its row.
//! - A frame gets its first tag only while its lock word is zero. So a lock that was taken
//!   under an older tag never counts as one under the new tag. Further tags share locks and dirty
//!   bits with those that are there.
//! - A frame that is leaving by force gets no tag until its dirty bit was read. So the
//!   driver learns whether the NIC wrote under the old tag. All mappings leave together, and the caller
//!   that unmaps one of them waits for the NIC.
//!
//! Each frame number from the SRAM is checked against the geometry before it serves as
//! an index.

use core::sync::atomic::Ordering;

use qnic_abi::header::Geometry;
use qnic_abi::page_table::{
    entry_of, named_mapping, PageAccess, Tag, LEAVING, LOCKS, MAPPINGS, ROW_ENTRIES, UNMAPPED, USE,
};
use qnic_abi::SharedMemory;

/// Outcome of [`Table::insert`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Inserted {
    /// The page is mapped; another page of the row had to leave if `evicted`.
    Done {
        /// A page that left because the row was full.
        evicted: Option<Removed>,
        /// A page that left because it had another key, or because all mappings of the frame
        /// were taken.
        replaced: Option<Removed>,
    },
    /// It was mapped already. If it was mapped for reading and writing is wanted, it is
    /// writable from now on.
    Already,
    /// The NIC holds the frame, or every page of the row: try again.
    Busy {
        /// As of [`Inserted::Done`].
        replaced: Option<Removed>,
    },
    /// The physical map does not cover the frame.
    OutOfRange,
}

/// A page that was unmapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Its frame.
    pub frame: u32,
    /// The NIC has written to it since it was inserted.
    pub dirty: bool,
    /// How many of its mappings have left.
    pub mappings: u32,
}

/// Outcome of [`Table::try_unmap`] and [`Table::begin_unmap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Unmapped {
    /// The NIC will not touch the frame under this tag again.
    Done(Removed),
    /// The frame is not mapped under this tag (it was evicted before).
    Absent,
    /// The NIC holds the page, or has not let go of the frame since it left. After `try_unmap` it is as
    /// before; after `begin_unmap` it is out and the caller waits with [`Table::finish_unmap`].
    Locked,
}

/// Outcome of [`Table::is_page_dirty`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Dirty {
    /// The NIC has not written to the page since it was inserted or cleaned.
    Clean,
    /// It has. The page counts as clean from now on: everything that the NIC had
    /// written is visible to the caller.
    Cleaned,
    /// It has, and holds the page: the page still counts as dirty.
    Locked,
    /// The frame is not mapped under this tag.
    Absent,
}

/// The driver's side of the page table in an SRAM.
#[derive(Debug)]
pub struct Table {
    geometry: Geometry,
    /// State of the generator that chooses victims; not a secret.
    victim_seed: u64,
}

impl Table {
    /// A table in an SRAM of this geometry, which the NIC has zeroed.
    pub fn new(geometry: Geometry, seed: u64) -> Self {
        Table {
            geometry,
            victim_seed: seed | 1,
        }
    }

    /// Inserts `tag` → `frame` with `key` (N5), for this access, or for a wider access that the page
    /// already has. A full row loses a random page that the NIC does not hold.
    pub fn insert<M: SharedMemory>(
        &mut self,
        sram: &M,
        tag: Tag,
        frame: u32,
        (key, access): (u64, PageAccess),
    ) -> Inserted {
        if u64::from(frame) >= self.geometry.frames {
            return Inserted::OutOfRange;
        }
        let mut replaced = None;
        let (mut free, mut own, mut others) = (None, None, 0);
        for mapping in self.geometry.mappings(frame) {
            match sram.load_u64(self.geometry.vpn_word(mapping), Ordering::Relaxed) {
                LEAVING => return Inserted::Busy { replaced },
                word => match Tag::from_word(word) {
                    None => free = free.or(Some(mapping)),
                    Some(present) if present == tag => own = Some((mapping, word)),
                    Some(_) => others += 1,
                },
            }
        }
        if let Some((mapping, word)) = own {
            let present = sram.load_u64(self.geometry.key_word(mapping), Ordering::Relaxed);
            if present == key {
                if PageAccess::of_word(word) < access {
                    self.validate(sram, mapping, tag.word(access));
                }
                return Inserted::Already;
            }
        }
        let victim = own.map(|(mapping, _)| mapping).or(match free {
            None => Some(frame + self.random() as u32 % MAPPINGS * self.geometry.frames as u32),
            Some(_) => None,
        });
        if let Some(victim) = victim {
            match self.evict(sram, victim) {
                Unmapped::Done(removed) => replaced = Some(removed),
                Unmapped::Absent => {}
                Unmapped::Locked => return Inserted::Busy { replaced },
            }
            free = Some(victim);
        }
        let (Some(mapping), false) = (free, others == 0 && self.is_locked(sram, frame)) else {
            return Inserted::Busy { replaced };
        };
        let Some((entry, evicted)) = self.make_room(sram, tag) else {
            return Inserted::Busy { replaced };
        };
        // What is there keeps its dirty bit, and this page has the same.
        if !self.is_mapped(sram, frame) {
            self.clean(sram, frame);
        }
        // Relaxed, as in `clean`: validate releases both.
        sram.store_u64(self.geometry.key_word(mapping), key, Ordering::Relaxed);
        self.validate(sram, mapping, tag.word(access));
        // Release; partner: the NIC's acquire load of the row: with the entry it
        // finds reverse mapping, key and dirty bit of its frame.
        sram.store_u32(entry, entry_of(mapping), Ordering::Release);
        Inserted::Done { evicted, replaced }
    }

    /// Unmaps `tag` → `frame` unless the NIC holds the page (N6).
    pub fn try_unmap<M: SharedMemory>(&mut self, sram: &M, tag: Tag, frame: u32) -> Unmapped {
        match self.mapping(sram, tag, frame) {
            Some((mapping, _)) => self.evict(sram, mapping),
            None => self.absent(sram, frame),
        }
    }

    /// Unmaps `tag` → `frame` (N6). With [`Unmapped::Locked`] the NIC cannot
    /// lock the page again, but still holds it: all mappings of the frame are out.
    pub fn begin_unmap<M: SharedMemory>(&mut self, sram: &M, tag: Tag, frame: u32) -> Unmapped {
        let Some((mapping, _)) = self.mapping(sram, tag, frame) else {
            return self.absent(sram, frame);
        };
        self.invalidate(sram, mapping);
        let locked = self.is_locked(sram, frame);
        self.clear_entry(sram, tag, mapping);
        if !locked {
            return Unmapped::Done(self.removed(sram, frame, 1));
        }
        let word = self.geometry.vpn_word(mapping);
        sram.store_u64(word, LEAVING, Ordering::Relaxed);
        for other in self.geometry.mappings(frame) {
            let word = self.geometry.vpn_word(other);
            if let Some(tag) = Tag::from_word(sram.load_u64(word, Ordering::Relaxed)) {
                sram.store_u64(word, LEAVING, Ordering::Relaxed);
                self.clear_entry(sram, tag, other);
            }
        }
        // Partner: as in `invalidate`, for the other mappings: later looks at the lock see each lock
        // of a NIC that still finds one.
        sram.fence();
        Unmapped::Locked
    }

    /// Checks again after [`Table::begin_unmap`] returned Locked: Locked while the NIC
    /// holds the page, Absent if another caller has finished it.
    pub fn finish_unmap<M: SharedMemory>(&mut self, sram: &M, frame: u32) -> Unmapped {
        let outcome = self.absent(sram, frame);
        if outcome != Unmapped::Locked || self.is_locked(sram, frame) {
            return outcome;
        }
        let mut mappings = 0;
        for mapping in self.geometry.mappings(frame) {
            let word = self.geometry.vpn_word(mapping);
            if sram.load_u64(word, Ordering::Relaxed) == LEAVING {
                sram.store_u64(word, UNMAPPED, Ordering::Relaxed);
                mappings += 1;
            }
        }
        Unmapped::Done(self.removed(sram, frame, mappings))
    }

    /// isPageDirty (N7): finds out whether the NIC has written to a page, and cleans it.
    ///
    /// A dirty page is absent to the NIC while it is being cleaned, under all tags of its frame.
    pub fn is_page_dirty<M: SharedMemory>(&mut self, sram: &M, tag: Tag, frame: u32) -> Dirty {
        if self.mapping(sram, tag, frame).is_none() {
            return Dirty::Absent;
        }
        if !self.is_dirty(sram, frame) {
            return Dirty::Clean;
        }
        let mut words = [UNMAPPED; MAPPINGS as usize];
        for (mapping, kept) in self.geometry.mappings(frame).zip(&mut words) {
            let word = self.geometry.vpn_word(mapping);
            *kept = sram.load_u64(word, Ordering::Relaxed);
            if *kept != UNMAPPED {
                sram.store_u64(word, UNMAPPED, Ordering::Relaxed);
            }
        }
        // Partner: as in `invalidate`.
        sram.fence();
        let locked = self.is_locked(sram, frame);
        if !locked {
            self.clean(sram, frame);
        }
        for (mapping, kept) in self.geometry.mappings(frame).zip(words) {
            if kept != UNMAPPED {
                self.validate(sram, mapping, kept);
            }
        }
        if locked {
            Dirty::Locked
        } else {
            Dirty::Cleaned
        }
    }

    /// A number that changes with each use of a page by the NIC (N7), one of 256; `None` if the frame
    /// is not mapped under this tag.
    pub fn uses<M: SharedMemory>(&self, sram: &M, tag: Tag, frame: u32) -> Option<u8> {
        self.mapping(sram, tag, frame)?;
        // Relaxed: a use that is not seen yet is seen by the next look.
        let word = sram.load_u32(self.geometry.lock_word(frame), Ordering::Relaxed);
        Some((word / USE) as u8)
    }

    /// Returns true if a page would take a mapping of `frame` from another one, or would have to
    /// wait for the NIC.
    pub(crate) fn is_taken<M: SharedMemory>(&self, sram: &M, tag: Tag, frame: u32) -> bool {
        let (mut is_leaving, mut has_room) = (false, false);
        for mapping in self.geometry.mappings(frame) {
            let word = sram.load_u64(self.geometry.vpn_word(mapping), Ordering::Relaxed);
            is_leaving |= word == LEAVING;
            has_room |= Tag::from_word(word).is_none_or(|present| present == tag);
        }
        is_leaving || (!has_room && u64::from(frame) < self.geometry.frames)
    }

    /// The mapping of `frame` with this tag, and its word in the physical map.
    fn mapping<M: SharedMemory>(&self, sram: &M, tag: Tag, frame: u32) -> Option<(u32, u64)> {
        self.geometry.mappings(frame).find_map(|mapping| {
            let word = sram.load_u64(self.geometry.vpn_word(mapping), Ordering::Relaxed);
            (Tag::from_word(word) == Some(tag)).then_some((mapping, word))
        })
    }

    /// Returns true if the NIC may find a frame under any tag.
    fn is_mapped<M: SharedMemory>(&self, sram: &M, frame: u32) -> bool {
        self.geometry.mappings(frame).any(|mapping| {
            let word = sram.load_u64(self.geometry.vpn_word(mapping), Ordering::Relaxed);
            Tag::from_word(word).is_some()
        })
    }

    /// What a frame is that has no mapping with the wanted tag: the NIC may still hold it.
    fn absent<M: SharedMemory>(&self, sram: &M, frame: u32) -> Unmapped {
        let is_leaving = self.geometry.mappings(frame).any(|mapping| {
            let word = self.geometry.vpn_word(mapping);
            sram.load_u64(word, Ordering::Relaxed) == LEAVING
        });
        match is_leaving {
            true => Unmapped::Locked,
            false => Unmapped::Absent,
        }
    }

    /// First half of unmapPage: clears the reverse mapping, and fences.
    fn invalidate<M: SharedMemory>(&self, sram: &M, mapping: u32) {
        let word = self.geometry.vpn_word(mapping);
        // Relaxed: it publishes nothing, and the fence orders it.
        sram.store_u64(word, UNMAPPED, Ordering::Relaxed);
        // Partner: the fence in the NIC's lockPage, between its store of the lock
        // word and its load of the reverse mapping.
        sram.fence();
    }

    /// Makes `word` the reverse mapping of a mapping: the NIC may lock its frame. Release;
    /// partner: the NIC's acquire load in lockPage, behind which it finds key,
    /// dirty bit and content of the frame.
    fn validate<M: SharedMemory>(&self, sram: &M, mapping: u32, word: u64) {
        sram.store_u64(self.geometry.vpn_word(mapping), word, Ordering::Release);
    }

    /// Returns true if the NIC holds a frame. Acquire; partner: the NIC's release
    /// store in unlockPage: its accesses to the page are over.
    fn is_locked<M: SharedMemory>(&self, sram: &M, frame: u32) -> bool {
        sram.load_u32(self.geometry.lock_word(frame), Ordering::Acquire) & LOCKS != 0
    }

    fn removed<M: SharedMemory>(&self, sram: &M, frame: u32, mappings: u32) -> Removed {
        Removed {
            frame,
            dirty: self.is_dirty(sram, frame),
            mappings,
        }
    }

    /// Finds a free entry in the row of `tag`, or frees one.
    fn make_room<M: SharedMemory>(
        &mut self,
        sram: &M,
        tag: Tag,
    ) -> Option<(usize, Option<Removed>)> {
        let row = tag.row(self.geometry.rows);
        for index in 0..ROW_ENTRIES {
            let offset = self.geometry.entry_offset(row, index);
            if named_mapping(sram.load_u32(offset, Ordering::Relaxed)).is_none() {
                return Some((offset, None));
            }
        }
        let start = self.random() as usize;
        for step in 0..ROW_ENTRIES {
            let offset = self.geometry.entry_offset(row, start.wrapping_add(step));
            let Some(victim) = named_mapping(sram.load_u32(offset, Ordering::Relaxed)) else {
                return Some((offset, None));
            };
            match self.evict(sram, victim) {
                Unmapped::Done(removed) => return Some((offset, Some(removed))),
                Unmapped::Absent => return Some((offset, None)),
                Unmapped::Locked => {}
            }
        }
        None
    }

    /// Takes a mapping out, unless the NIC holds its frame.
    fn evict<M: SharedMemory>(&mut self, sram: &M, victim: u32) -> Unmapped {
        let Some(frame) = self.geometry.frame(victim) else {
            return Unmapped::Absent;
        };
        let word = sram.load_u64(self.geometry.vpn_word(victim), Ordering::Relaxed);
        let Some(tag) = Tag::from_word(word) else {
            return Unmapped::Absent;
        };
        self.invalidate(sram, victim);
        if self.is_locked(sram, frame) {
            self.validate(sram, victim, word);
            return Unmapped::Locked;
        }
        self.clear_entry(sram, tag, victim);
        Unmapped::Done(self.removed(sram, frame, 1))
    }

    fn clear_entry<M: SharedMemory>(&self, sram: &M, tag: Tag, mapping: u32) {
        let row = tag.row(self.geometry.rows);
        for index in 0..ROW_ENTRIES {
            let offset = self.geometry.entry_offset(row, index);
            if sram.load_u32(offset, Ordering::Relaxed) == entry_of(mapping) {
                // Relaxed: a NIC that still finds the entry trusts the reverse
                // mapping alone.
                sram.store_u32(offset, 0, Ordering::Relaxed);
            }
        }
    }

    /// Returns true if the NIC has written to a frame since it was cleaned (N7). Exact
    /// after [`Table::is_locked`], which acquires what the NIC has stored.
    fn is_dirty<M: SharedMemory>(&self, sram: &M, frame: u32) -> bool {
        let ours = sram.load_u32(self.geometry.dirty_driver_word(frame), Ordering::Relaxed);
        let nics = sram.load_u32(self.geometry.dirty_nic_word(frame), Ordering::Relaxed);
        (ours ^ nics) >> (frame % 32) & 1 == 0
    }

    /// Cleans a frame: its bit becomes the complement of the NIC's (N7). The driver
    /// owns the other bits of the word too. The frame is neither valid nor locked: the
    /// NIC's bit does not change, and the NIC sees this one once it sees the frame
    /// valid again.
    fn clean<M: SharedMemory>(&self, sram: &M, frame: u32) {
        let bit = 1u32 << (frame % 32);
        let nics = sram.load_u32(self.geometry.dirty_nic_word(frame), Ordering::Relaxed);
        let word = self.geometry.dirty_driver_word(frame);
        let ours = sram.load_u32(word, Ordering::Relaxed);
        let clean = (ours & !bit) | (!nics & bit);
        sram.store_u32(word, clean, Ordering::Relaxed);
    }

    /// xorshift64*: spreads victims. It need not be unpredictable.
    fn random(&mut self) -> u64 {
        self.victim_seed ^= self.victim_seed >> 12;
        self.victim_seed ^= self.victim_seed << 25;
        self.victim_seed ^= self.victim_seed >> 27;
        self.victim_seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }
}
