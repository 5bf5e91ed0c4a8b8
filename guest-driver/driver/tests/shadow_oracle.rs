//! The shadow page table against an oracle (N5, N6, N7): pages are inserted, evicted,
//! unmapped, forced out, locked, written to and cleaned, in any order and with the real
//! unmapped, forced out, locked, written to and cleaned, in any order and with the real
//! mapped, with their own frames and keys, and every page that was written to is
//! reported dirty once.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;
use qnic_abi::header::Geometry;
use qnic_abi::page_table::{named_mapping, PageAccess, Tag, LOCKS, MAPPINGS, ROW_ENTRIES};
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
    frame: u32,
    key: u64,
    access: PageAccess,
}

struct World {
    geometry: Geometry,
    sram: Sram,
    table: Table,
    tags: Vec<Tag>,
    /// Entered pages.
    mapped: BTreeMap<Tag, Page>,
    /// Frames that were forced out while the NIC held them, with so many pages.
    leaving: BTreeMap<u32, u32>,
    /// Frames that the NIC has written to since they were cleaned.
    dirty: BTreeSet<u32>,
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
            dirty: BTreeSet::new(),
            held: Vec::new(),
        }
    }

    fn is_held(&self, frame: u32) -> bool {
        self.held.iter().any(|held| frame_number(&held.0) == frame)
    }

    /// The frame of a page, if the NIC may access it in this way.
    fn found(&self, tag: Tag, access: PageAccess) -> Option<u32> {
        let page = self.mapped.get(&tag)?;
        (page.access >= access).then_some(page.frame)
    }

    /// The frame of a page, if it is mapped.
    fn frame_of(&self, tag: Tag) -> Option<u32> {
        self.mapped.get(&tag).map(|page| page.frame)
    }

    /// Pages that have a frame.
    fn sharers(&self, frame: u32) -> usize {
        let pages = self.mapped.values();
        pages.filter(|page| page.frame == frame).count()
    }

    /// Frames of other pages that are mapped in the row of a page.
    fn others_in_row(&self, tag: Tag) -> Vec<u32> {
        let row = tag.row(self.geometry.rows);
        let same = |other: &Tag| *other != tag && other.row(self.geometry.rows) == row;
        let pages = self.mapped.iter().filter(|(other, _)| same(other));
        pages.map(|(_, page)| page.frame).collect()
    }

    /// Pages have left, as the table says, one each.
    fn left(&mut self, removed: impl Iterator<Item = Removed>) {
        for removed in removed {
            let Removed { frame, dirty, .. } = removed;
            assert!(!self.is_held(frame));
            assert_eq!((removed.mappings, dirty), (1, self.dirty.contains(&frame)));
            let mapped = self.mapped.iter();
            let gone =
                mapped.filter(|(tag, page)| page.frame == frame && !self.is_entered(**tag, frame));
            let gone = gone.map(|(tag, _)| *tag).next().expect("a page has left");
            self.mapped.remove(&gone);
        }
    }

    /// Returns true if the physical map has a page in that frame.
    fn is_entered(&self, tag: Tag, frame: u32) -> bool {
        self.geometry.mappings(frame).any(|mapping| {
            let word = self.geometry.vpn_word(mapping);
            Tag::from_word(self.sram.load_u64(word, Ordering::Relaxed)) == Some(tag)
        })
    }

    fn insert(&mut self, tag: Tag, frame: u32, (key, access): (u64, PageAccess)) {
        let before = self.mapped.get(&tag).copied();
        let held = self.is_held(frame);
        let is_leaving = self.leaving.contains_key(&frame);
        let others = self.others_in_row(tag);
        let row_is_full = others.len() == ROW_ENTRIES;
        let is_full = before.is_none() && self.sharers(frame) == MAPPINGS as usize;
        let changes = before.is_some_and(|page| page.key != key);
        match self.table.insert(&self.sram, tag, frame, (key, access)) {
            Inserted::OutOfRange => assert!(u64::from(frame) >= FRAMES),
            Inserted::Already => {
                assert_eq!(
                    before.map(|page| (page.frame, page.key)),
                    Some((frame, key))
                );
                let page = self.mapped.get_mut(&tag).unwrap();
                page.access = page.access.max(access);
            }
            Inserted::Busy { replaced } => {
                let stuck = row_is_full && others.iter().all(|other| self.is_held(*other));
                assert!(held || stuck || is_leaving);
                let leaves = (is_full || changes) && !held && !is_leaving;
                assert_eq!(replaced.is_some(), leaves);
                self.left(replaced.into_iter());
            }
            Inserted::Done { evicted, replaced } => {
                assert!(!is_leaving);
                assert_eq!(replaced.is_some(), is_full || changes);
                assert!(row_is_full || evicted.is_none());
                assert!(!row_is_full || evicted.is_some() || is_full);
                if changes {
                    // It has left, and is there again.
                    let dirty = self.dirty.contains(&frame);
                    let expected = Removed {
                        frame,
                        dirty,
                        mappings: 1,
                    };
                    assert_eq!(replaced, Some(expected));
                    self.mapped.remove(&tag);
                    self.left(evicted.into_iter());
                } else {
                    self.left([replaced, evicted].into_iter().flatten());
                }
                if self.sharers(frame) == 0 {
                    assert!(!held);
                    self.dirty.remove(&frame);
                }
                self.mapped.insert(tag, Page { frame, key, access });
            }
        }
    }

    fn unmap(&mut self, tag: Tag, frame: u32, forced: bool) {
        let known = self.frame_of(tag) == Some(frame);
        let is_leaving = self.leaving.contains_key(&frame);
        let outcome = if forced {
            self.table.begin_unmap(&self.sram, tag, frame)
        } else {
            self.table.try_unmap(&self.sram, tag, frame)
        };
        match outcome {
            Unmapped::Absent => assert!(!known && !is_leaving),
            Unmapped::Done(removed) => {
                assert!(known);
                self.left([removed].into_iter());
                assert_eq!(self.frame_of(tag), None);
            }
            Unmapped::Locked if known => {
                assert!(self.is_held(frame) && !is_leaving);
                if forced {
                    let pages = self.sharers(frame) as u32;
                    self.mapped.retain(|_, page| page.frame != frame);
                    self.leaving.insert(frame, pages);
                }
            }
            Unmapped::Locked => assert!(is_leaving),
        }
    }

    /// Finishes all forced unmaps that the NIC permits.
    fn finish(&mut self) {
        for (frame, mappings) in self.leaving.clone() {
            let outcome = self.table.finish_unmap(&self.sram, frame);
            if self.is_held(frame) {
                assert_eq!(outcome, Unmapped::Locked);
                continue;
            }
            let expected = Removed {
                frame,
                dirty: self.dirty.contains(&frame),
                mappings,
            };
            assert_eq!(outcome, Unmapped::Done(expected));
            let again = self.table.finish_unmap(&self.sram, frame);
            assert_eq!(again, Unmapped::Absent, "another caller");
            self.leaving.remove(&frame);
        }
    }

    fn is_dirty(&mut self, tag: Tag, frame: u32) {
        let expected = match self.frame_of(tag) == Some(frame) {
            false => Dirty::Absent,
            true if !self.dirty.contains(&frame) => Dirty::Clean,
            true if self.is_held(frame) => Dirty::Locked,
            true => Dirty::Cleaned,
        };
        let found = self.table.is_page_dirty(&self.sram, tag, frame);
        assert_eq!(found, expected);
        if found == Dirty::Cleaned {
            self.dirty.remove(&frame);
        }
    }

    fn lock(&mut self, tag: Tag, access: PageAccess) {
        let page = lock_page(&self.sram, &self.geometry, tag, access);
        assert_eq!(page.as_ref().map(frame_number), self.found(tag, access));
        if let Some(page) = page {
            self.locked(page, (tag, access));
        }
    }

    fn locked(&mut self, page: LockedPage, (tag, access): (Tag, PageAccess)) {
        let key = page_key(&self.sram, &self.geometry, &page);
        assert_eq!(key, Key(self.mapped[&tag].key));
        self.held.push((page, access));
    }

    fn lock_span(&mut self, first: usize, length: usize, access: PageAccess) {
        let tags: Vec<_> = self.tags.iter().copied().skip(first).take(length).collect();
        let mut expected = Vec::new();
        for frame in tags.iter().map_while(|tag| self.found(*tag, access)) {
            // A run ends where a frame would come twice.
            if expected.contains(&frame) {
                break;
            }
            expected.push(frame);
        }
        let mut pages: [Option<LockedPage>; SPAN] = Default::default();
        let (sram, span) = (&self.sram, &mut pages[..length]);
        let count = lock_pages(sram, &self.geometry, tags.iter().copied(), access, span);
        assert_eq!(count, expected.len());
        let found: Vec<_> = pages.iter().flatten().map(frame_number).collect();
        assert_eq!(found, expected);
        for (page, tag) in pages.into_iter().flatten().zip(tags) {
            self.locked(page, (tag, access));
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
        let known = self.sharers(frame) > 0 || self.leaving.contains_key(&frame);
        assert!(known, "a held frame changes hands");
        self.dirty.insert(frame);
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
                let Some(mapping) = named_mapping(self.sram.load_u32(entry, Ordering::Relaxed))
                else {
                    continue;
                };
                let word = self.geometry.vpn_word(mapping);
                let word = self.sram.load_u64(word, Ordering::Relaxed);
                let tag = Tag::from_word(word).unwrap();
                assert_eq!(tag.row(self.geometry.rows), row);
                let key = self.geometry.key_word(mapping);
                let page = Page {
                    frame: self.geometry.frame(mapping).unwrap(),
                    key: self.sram.load_u64(key, Ordering::Relaxed),
                    access: PageAccess::of_word(word),
                };
                let twice = found.insert(tag, page);
                assert_eq!(twice, None, "{tag:?} is mapped twice");
            }
        }
        assert_eq!(found, self.mapped);
        for frame in 0..FRAMES as u32 {
            let words = self.geometry.mappings(frame).map(|mapping| {
                let word = self.geometry.vpn_word(mapping);
                self.sram.load_u64(word, Ordering::Relaxed)
            });
            let tags = words.filter_map(Tag::from_word);
            assert_eq!(tags.count(), self.sharers(frame));
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
        for (tag, page) in self.mapped.clone() {
            self.unmap(tag, page.frame, false);
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

/// Pages that share a frame do not take it from each other: each is inserted once, and found from
/// then on (N2). What the NIC does under one tag is known under all.
#[test]
fn pages_that_share_a_frame_all_stay_mapped() {
    let mut world = World::new(3);
    let tags = world.tags[2..2 + MAPPINGS as usize].to_vec();
    for (key, tag) in (10..).zip(&tags) {
        world.insert(*tag, 6, (key, WRITE));
    }
    for _ in 0..100 {
        for tag in &tags {
            assert_eq!(world.found(*tag, WRITE), Some(6));
            world.lock(*tag, WRITE);
            world.unmap(tags[0], 6, false);
            world.unlock(true);
        }
    }
    world.is_dirty(tags[1], 6);
    world.is_dirty(tags[2], 6);
    // One more than there is room for takes the place of another.
    world.insert(world.tags[8], 6, (9, WRITE));
    assert_eq!(world.sharers(6), MAPPINGS as usize);
    world.check();
    // Once one leaves by force, all do, and come back.
    let tag = *world.mapped.keys().next().unwrap();
    world.lock(tag, WRITE);
    world.unmap(tag, 6, true);
    assert_eq!(world.sharers(6), 0);
    world.unlock(true);
    world.finish();
    world.insert(tag, 6, (1, WRITE));
    world.wind_up();
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
        let gone = (0..5).find(|frame| world.sharers(*frame) == 0);
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
    assert_eq!(world.frame_of(other_row), Some(9), "it need not leave");
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
