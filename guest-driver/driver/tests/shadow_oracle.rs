//! The shadow page table against an oracle (N5, N6, N7): pages are inserted, evicted,
//! unmapped, forced out, locked, written to and cleaned, in any order and with the real
//! unmapped, forced out, locked, written to and cleaned, in any order and with the real
//! mapped, with their own frames and keys, and every page that was written to is
//! reported dirty once.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;
use qnic_abi::header::Geometry;
use qnic_abi::page_table::{frame_of, PageAccess, Tag, LOCKS, ROW_ENTRIES};
use qnic_abi::shared::Ordering;
use qnic_abi::{Key, NodeId, SharedMemory, VniId, PAGE_SHIFT};
use qnic_driver::shadow::{Dirty, Inserted, Removed, Table, Unmapped};
use qnic_nic::page_table::{
    lock_page, lock_pages, page_key, unlock_page, unlock_page_dirty, LockedPage,
};
use qnic_nic::testing::Sram;

const FRAMES: u64 = 16;

const WRITE: PageAccess = PageAccess::Write;

/// Pages of the test: eight that share a row of four entries, four of another row.
const ROWS: [(u64, usize); 2] = [(5, 8), (6, 4)];

/// Longest page span that the NIC locks behind one fence.
const SPAN: usize = 4;

/// An operation on a page, with a frame where it needs one.
#[derive(Debug, Clone)]
enum Operation {
    Insert { key: u64, access: PageAccess },
    Unmap { forced: bool },
    Finish,
    IsDirty,
    Lock { access: PageAccess },
    LockSpan { length: usize, access: PageAccess },
    Unlock { dirty: bool },
}

fn access() -> impl Strategy<Value = PageAccess> {
    prop_oneof![Just(PageAccess::Read), Just(PageAccess::Write)]
}

/// An operation, the index of its page, and its frame: up to two more than the table covers.
fn operation() -> impl Strategy<Value = (Operation, usize, u32)> {
    let operation = prop_oneof![
        8 => (1..3u64, access()).prop_map(|(key, access)| Operation::Insert { key, access }),
        4 => any::<bool>().prop_map(|forced| Operation::Unmap { forced }),
        2 => Just(Operation::Finish),
        2 => Just(Operation::IsDirty),
        4 => access().prop_map(|access| Operation::Lock { access }),
        1 => (1..=SPAN, access())
            .prop_map(|(length, access)| Operation::LockSpan { length, access }),
        6 => any::<bool>().prop_map(|dirty| Operation::Unlock { dirty }),
    ];
    (operation, 0..12usize, 0..FRAMES as u32 + 2)
}

/// A mapped page, as the oracle knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    tag: Tag,
    key: u64,
    access: PageAccess,
    dirty: bool,
}

struct World {
    geometry: Geometry,
    sram: Sram,
    table: Table,
    tags: Vec<Tag>,
    /// Entered pages by frame.
    mapped: BTreeMap<u32, Page>,
    /// Pages that were forced out while the NIC held them, by frame.
    leaving: BTreeMap<u32, Page>,
    /// Pages that the NIC holds, the last locked one last.
    held: Vec<(LockedPage, PageAccess)>,
}

fn frame_number(page: &LockedPage) -> u32 {
    (page.address() >> PAGE_SHIFT) as u32
}

impl World {
    fn new(seed: u64) -> Self {
        let geometry = Geometry::new(NodeId(0), FRAMES, 4, 1).unwrap();
        let of_row = |(row, count): (u64, usize)| {
            (0u64..)
                .map(|page| Tag::new(VniId((page % 3) as u16), page << PAGE_SHIFT))
                .filter(move |tag| tag.row(geometry.rows) == row)
                .take(count)
        };
        World {
            sram: Sram::new(geometry.sram_bytes as usize),
            table: Table::new(geometry, seed),
            geometry,
            tags: ROWS.into_iter().flat_map(of_row).collect(),
            mapped: BTreeMap::new(),
            leaving: BTreeMap::new(),
            held: Vec::new(),
        }
    }

    fn is_held(&self, frame: u32) -> bool {
        self.held.iter().any(|held| frame_number(&held.0) == frame)
    }

    /// The frame of a page, if the NIC may access it in this way.
    fn found(&self, tag: Tag, access: PageAccess) -> Option<u32> {
        let frame = self.frame_of(tag)?;
        (self.mapped[&frame].access >= access).then_some(frame)
    }

    /// The frame of a page, if it is mapped.
    fn frame_of(&self, tag: Tag) -> Option<u32> {
        let mut found = self.mapped.iter().filter(|(_, page)| page.tag == tag);
        found.next().map(|(frame, _)| *frame)
    }

    /// Frames mapped in the row of a page.
    fn row_of(&self, tag: Tag) -> Vec<u32> {
        let row = tag.row(self.geometry.rows);
        let same = |page: &Page| page.tag.row(self.geometry.rows) == row;
        let frames = self.mapped.iter().filter(|(_, page)| same(page));
        frames.map(|(frame, _)| *frame).collect()
    }

    fn left(&mut self, removed: Removed) {
        assert!(!self.is_held(removed.frame));
        let page = self.mapped.remove(&removed.frame);
        assert_eq!(page.map(|page| page.dirty), Some(removed.dirty));
    }

    fn insert(&mut self, tag: Tag, frame: u32, (key, access): (u64, PageAccess)) {
        let before = self.mapped.get(&frame).copied();
        let held = self.is_held(frame);
        let mut others = self.row_of(tag);
        others.retain(|other| *other != frame);
        let row_is_full = others.len() == ROW_ENTRIES;
        match self.table.insert(&self.sram, tag, frame, (key, access)) {
            Inserted::OutOfRange => assert!(u64::from(frame) >= FRAMES),
            Inserted::Already => {
                assert_eq!(before.map(|p| (p.tag, p.key)), Some((tag, key)));
                let page = self.mapped.get_mut(&frame).unwrap();
                page.access = page.access.max(access);
            }
            Inserted::Busy { replaced } => {
                let stuck = row_is_full && others.iter().all(|other| self.is_held(*other));
                assert!(held || stuck || self.leaving.contains_key(&frame));
                assert_eq!(replaced.is_some(), before.is_some() && !held);
                replaced.into_iter().for_each(|removed| self.left(removed));
            }
            Inserted::Done { evicted, replaced } => {
                assert!(!held && !self.leaving.contains_key(&frame));
                assert_eq!(replaced.map(|r| r.frame), before.map(|_| frame));
                assert_eq!(evicted.is_some(), row_is_full);
                let left = [replaced, evicted].into_iter().flatten();
                left.for_each(|removed| self.left(removed));
                let page = Page {
                    tag,
                    key,
                    access,
                    dirty: false,
                };
                self.mapped.insert(frame, page);
            }
        }
    }

    fn unmap(&mut self, tag: Tag, frame: u32, forced: bool) {
        let known = self.mapped.get(&frame).is_some_and(|page| page.tag == tag);
        let outcome = if forced {
            self.table.begin_unmap(&self.sram, tag, frame)
        } else {
            self.table.try_unmap(&self.sram, tag, frame)
        };
        match outcome {
            Unmapped::Absent => assert!(!known),
            Unmapped::Done(removed) => {
                assert!(known);
                self.left(removed);
            }
            Unmapped::Locked => {
                assert!(known && self.is_held(frame));
                if forced {
                    let page = self.mapped.remove(&frame).unwrap();
                    self.leaving.insert(frame, page);
                }
            }
        }
    }

    /// Finishes all forced unmaps that the NIC permits.
    fn finish(&mut self) {
        for (frame, page) in self.leaving.clone() {
            let removed = self.table.finish_unmap(&self.sram, frame);
            assert_eq!(removed.is_none(), self.is_held(frame));
            if let Some(removed) = removed {
                let dirty = page.dirty;
                assert_eq!(removed, Removed { frame, dirty });
                self.leaving.remove(&frame);
            }
        }
    }

    fn is_dirty(&mut self, tag: Tag, frame: u32) {
        let held = self.is_held(frame);
        let page = self.mapped.get_mut(&frame).filter(|page| page.tag == tag);
        let expected = match &page {
            None => Dirty::Absent,
            Some(page) if !page.dirty => Dirty::Clean,
            Some(_) if held => Dirty::Locked,
            Some(_) => Dirty::Cleaned,
        };
        let found = self.table.is_page_dirty(&self.sram, tag, frame);
        assert_eq!(found, expected);
        if let (Dirty::Cleaned, Some(page)) = (found, page) {
            page.dirty = false;
        }
    }

    fn lock(&mut self, tag: Tag, access: PageAccess) {
        let page = lock_page(&self.sram, &self.geometry, tag, access);
        assert_eq!(page.as_ref().map(frame_number), self.found(tag, access));
        if let Some(page) = page {
            self.locked(page, access);
        }
    }

    fn locked(&mut self, page: LockedPage, access: PageAccess) {
        let key = page_key(&self.sram, &self.geometry, &page);
        let mapped = self.mapped[&frame_number(&page)];
        assert_eq!(key, Key(mapped.key));
        self.held.push((page, access));
    }

    fn lock_span(&mut self, first: usize, length: usize, access: PageAccess) {
        let tags: Vec<_> = self.tags.iter().copied().skip(first).take(length).collect();
        let frames = tags.iter().map_while(|tag| self.found(*tag, access));
        let expected: Vec<_> = frames.collect();
        let mut pages: [Option<LockedPage>; SPAN] = Default::default();
        let (sram, span) = (&self.sram, &mut pages[..length]);
        let count = lock_pages(sram, &self.geometry, tags.into_iter(), access, span);
        assert_eq!(count, expected.len());
        let found: Vec<_> = pages.iter().flatten().map(frame_number).collect();
        assert_eq!(found, expected);
        for page in pages.into_iter().flatten() {
            self.locked(page, access);
        }
    }

    fn unlock(&mut self, dirty: bool) {
        let Some((page, access)) = self.held.pop() else {
            return;
        };
        let frame = frame_number(&page);
        // A page that was locked for reading is not written to.
        if !dirty || access == PageAccess::Read {
            return unlock_page(&self.sram, &self.geometry, page);
        }
        unlock_page_dirty(&self.sram, &self.geometry, page);
        let page = self.mapped.get_mut(&frame);
        let page = page.or_else(|| self.leaving.get_mut(&frame));
        page.expect("a held frame changes hands").dirty = true;
    }

    fn apply(&mut self, (operation, index, frame): (Operation, usize, u32)) {
        let tag = self.tags[index];
        match operation {
            Operation::Insert { key, access } => {
                // The driver takes a page out before it enters it in another frame.
                if self.frame_of(tag).is_none_or(|known| known == frame) {
                    self.insert(tag, frame, (key, access));
                }
            }
            Operation::Unmap { forced } => self.unmap(tag, frame, forced),
            Operation::Finish => self.finish(),
            Operation::IsDirty => self.is_dirty(tag, frame),
            Operation::Lock { access } => self.lock(tag, access),
            Operation::LockSpan { length, access } => self.lock_span(index, length, access),
            Operation::Unlock { dirty } => self.unlock(dirty),
        }
    }

    /// Checks that the table agrees with the oracle.
    fn check(&self) {
        let mut found = BTreeMap::new();
        for row in 0..self.geometry.rows {
            for index in 0..ROW_ENTRIES {
                let entry = self.geometry.entry_offset(row, index);
                let Some(frame) = frame_of(self.sram.load_u32(entry, Ordering::Relaxed)) else {
                    continue;
                };
                let word = self.geometry.vpn_word(frame);
                let mapping = self.sram.load_u64(word, Ordering::Relaxed);
                let tag = Tag::from_word(mapping).unwrap();
                assert_eq!(tag.row(self.geometry.rows), row);
                let word = self.geometry.key_word(frame);
                let key = self.sram.load_u64(word, Ordering::Relaxed);
                let twice = found.insert(frame, (tag, key, PageAccess::of_word(mapping)));
                assert_eq!(twice, None, "frame {frame} is mapped twice");
            }
        }
        let known = self.mapped.iter();
        let known = known.map(|(frame, page)| (*frame, (page.tag, page.key, page.access)));
        assert_eq!(found, known.collect());
        for frame in 0..FRAMES as u32 {
            let word = self.geometry.vpn_word(frame);
            let tag = Tag::from_word(self.sram.load_u64(word, Ordering::Relaxed));
            assert_eq!(tag.is_some(), self.mapped.contains_key(&frame));
            let lock = self.geometry.lock_word(frame);
            let locks = self
                .held
                .iter()
                .filter(|held| frame_number(&held.0) == frame);
            let (count, word) = (locks.count(), self.sram.load_u32(lock, Ordering::Relaxed));
            assert_eq!((word & LOCKS) as usize, count);
        }
    }

    /// Unlocks and unmaps everything: nothing is left.
    fn wind_up(&mut self) {
        while !self.held.is_empty() {
            self.unlock(false);
        }
        self.finish();
        for (frame, page) in self.mapped.clone() {
            self.unmap(page.tag, frame, false);
        }
        assert!(self.mapped.is_empty() && self.leaving.is_empty());
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        ..ProptestConfig::with_failure_persistence(WithSource("proptest-regressions"))
    })]
    #[test]
    fn the_nic_finds_what_was_mapped(
        seed in any::<u64>(),
        operations in prop::collection::vec(operation(), 1..160),
    ) {
        let mut world = World::new(seed);
        for operation in operations {
            world.apply(operation);
            world.check();
        }
        world.wind_up();
    }
}

/// Victims are chosen at random: every entry of a full row leaves sooner or later.
#[test]
fn a_full_row_loses_any_of_its_pages() {
    let mut victims = BTreeMap::new();
    for seed in 0..64 {
        let mut world = World::new(seed * 0x1234_5678_9abc);
        for (frame, tag) in world.tags.clone().into_iter().take(5).enumerate() {
            world.insert(tag, frame as u32, (1, WRITE));
        }
        world.check();
        assert_eq!(world.mapped.len(), 4);
        let gone = (0..5).find(|frame| !world.mapped.contains_key(frame));
        *victims.entry(gone).or_insert(0) += 1;
    }
    assert_eq!(victims.len(), 4, "{victims:?}");
    assert!(!victims.contains_key(&Some(4)));
}

/// The dirty bit of a page survives when its frame is wanted for another page: while
/// the page leaves by force, and when the other page finds no room.
#[test]
fn a_frame_that_is_wanted_elsewhere_keeps_its_dirty_bit() {
    let mut world = World::new(1);
    let (row, other_row) = (world.tags[..4].to_vec(), world.tags[8]);
    world.insert(other_row, 0, (1, WRITE));
    world.lock(other_row, WRITE);
    world.unmap(other_row, 0, true);
    world.insert(row[0], 0, (1, WRITE));
    world.unlock(true);
    world.insert(row[0], 0, (1, WRITE));
    world.finish();
    assert!(world.leaving.is_empty() && world.mapped.is_empty());

    world.insert(other_row, 9, (1, WRITE));
    world.lock(other_row, WRITE);
    world.unlock(true);
    for (frame, tag) in row.into_iter().enumerate() {
        world.insert(tag, frame as u32, (1, WRITE));
        world.lock(tag, WRITE);
    }
    world.insert(world.tags[4], 9, (1, WRITE));
    assert_eq!(world.frame_of(other_row), None);
    world.wind_up();
}

/// Nonsense that a broken device writes into the table does no harm.
#[test]
fn entries_beyond_the_frames_are_harmless() {
    let mut world = World::new(1);
    for index in 0..ROW_ENTRIES {
        let (entry, frame) = (
            world.geometry.entry_offset(5, index),
            u32::MAX - index as u32,
        );
        world.sram.store_u32(entry, frame, Ordering::Relaxed);
    }
    let tag = world.tags[0];
    let inserted = world.table.insert(&world.sram, tag, 3, (9, WRITE));
    assert!(matches!(inserted, Inserted::Done { evicted: None, .. }));
    let unmapped = world.table.try_unmap(&world.sram, tag, u32::MAX);
    assert_eq!(unmapped, Unmapped::Absent);
    let dirty = world.table.is_page_dirty(&world.sram, tag, u32::MAX);
    assert_eq!(dirty, Dirty::Absent);
}
