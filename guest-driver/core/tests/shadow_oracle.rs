//! The shadow page table against an oracle (N5): whatever is entered, evicted,
//! unmapped and held, in any order, the NIC finds exactly the pages that the
//! oracle says are entered, with their own frames and keys.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use qnic_abi::header::Geometry;
use qnic_abi::page_table::{frame_of, Tag, ROW_ENTRIES};
use qnic_abi::shared::Ordering;
use qnic_abi::{NodeId, SharedMemory, VniId};
use qnic_driver::shadow::{Inserted, Removed, Table, Unmapped};

const FRAMES: u64 = 16;

/// SRAM of one thread.
struct Sram(RefCell<Vec<u8>>);

impl SharedMemory for Sram {
    fn size(&self) -> usize {
        self.0.borrow().len()
    }
    fn load_u32(&self, offset: usize, _: Ordering) -> u32 {
        u32::from_le_bytes(self.0.borrow()[offset..offset + 4].try_into().unwrap())
    }
    fn store_u32(&self, offset: usize, value: u32, _: Ordering) {
        self.0.borrow_mut()[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }
    fn load_u64(&self, offset: usize, _: Ordering) -> u64 {
        u64::from_le_bytes(self.0.borrow()[offset..offset + 8].try_into().unwrap())
    }
    fn store_u64(&self, offset: usize, value: u64, _: Ordering) {
        self.0.borrow_mut()[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    fn fence(&self) {}
}

#[derive(Debug, Clone)]
enum Operation {
    Insert { tag: usize, frame: u32, key: u64 },
    Try { tag: usize, frame: u32 },
    Begin { tag: usize, frame: u32 },
    Hold { frame: u32 },
    LetGo { frame: u32 },
    Write { frame: u32 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let tag = 0..8usize;
    // Two frames more than the table covers.
    let frame = 0..FRAMES as u32 + 2;
    let known = 0..FRAMES as u32;
    prop_oneof![
        6 => (tag.clone(), frame.clone(), 1..3u64)
            .prop_map(|(tag, frame, key)| Operation::Insert { tag, frame, key }),
        2 => (tag.clone(), frame.clone()).prop_map(|(tag, frame)| Operation::Try { tag, frame }),
        2 => (tag, frame).prop_map(|(tag, frame)| Operation::Begin { tag, frame }),
        1 => known.clone().prop_map(|frame| Operation::Hold { frame }),
        1 => known.clone().prop_map(|frame| Operation::LetGo { frame }),
        1 => known.prop_map(|frame| Operation::Write { frame }),
    ]
}

/// An entered page, as the oracle knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    tag: Tag,
    key: u64,
    dirty: bool,
}

struct World {
    geometry: Geometry,
    sram: Sram,
    table: Table,
    tags: Vec<Tag>,
    /// Entered pages by frame.
    entered: BTreeMap<u32, Page>,
}

impl World {
    fn new(seed: u64) -> Self {
        let geometry = Geometry::new(NodeId(0), FRAMES, 4, 1).unwrap();
        // Eight pages that share one row of four entries.
        let tags = (0u64..)
            .map(|page| Tag::new(VniId((page % 3) as u16), page << 12))
            .filter(|tag| tag.row(geometry.rows) == 5)
            .take(8)
            .collect();
        World {
            sram: Sram(RefCell::new(vec![0; geometry.sram_bytes as usize])),
            table: Table::new(geometry, seed),
            geometry,
            tags,
            entered: BTreeMap::new(),
        }
    }

    fn held(&self, frame: u32) -> bool {
        let word = self.geometry.lock_word(frame);
        self.sram.load_u32(word, Ordering::Relaxed) != 0
    }

    fn left(&mut self, removed: Removed) {
        let page = self.entered.remove(&removed.frame);
        assert_eq!(page.map(|page| page.dirty), Some(removed.dirty));
    }

    fn insert(&mut self, tag: Tag, frame: u32, key: u64) {
        let before = self.entered.get(&frame).copied();
        let row_is_full = self.entered.len() == ROW_ENTRIES;
        match self.table.insert(&self.sram, tag, frame, key) {
            Inserted::OutOfRange => assert!(u64::from(frame) >= FRAMES),
            Inserted::Already => assert_eq!(before.map(|p| (p.tag, p.key)), Some((tag, key))),
            Inserted::Busy => {
                let others = self.entered.keys().filter(|other| **other != frame);
                let stuck = row_is_full && others.clone().all(|other| self.held(*other));
                assert!(self.held(frame) || stuck);
            }
            Inserted::Done { evicted, replaced } => {
                assert!(!self.held(frame));
                assert_eq!(replaced.map(|r| r.frame), before.map(|_| frame));
                assert_eq!(evicted.is_some(), row_is_full && before.is_none());
                for removed in [replaced, evicted].into_iter().flatten() {
                    assert!(!self.held(removed.frame));
                    self.left(removed);
                }
                let dirty = false;
                self.entered.insert(frame, Page { tag, key, dirty });
            }
        }
    }

    fn unmap(&mut self, tag: Tag, frame: u32, forced: bool) {
        let known = self.entered.get(&frame).is_some_and(|page| page.tag == tag);
        let outcome = if forced {
            self.table.begin_unmap(&self.sram, tag, frame)
        } else {
            self.table.try_unmap(&self.sram, tag, frame)
        };
        match outcome {
            Unmapped::Absent => assert!(!known),
            Unmapped::Done(removed) => {
                assert!(known && !self.held(frame));
                self.left(removed);
            }
            Unmapped::Locked => {
                assert!(known && self.held(frame));
                if forced {
                    assert_eq!(self.table.finish_unmap(&self.sram, frame), None);
                    self.hold(frame, 0);
                    let removed = self.table.finish_unmap(&self.sram, frame).unwrap();
                    self.left(removed);
                }
            }
        }
    }

    fn hold(&self, frame: u32, count: u32) {
        let word = self.geometry.lock_word(frame);
        self.sram.store_u32(word, count, Ordering::Relaxed);
    }

    /// unlockPageDirty: copies the driver's bit.
    fn write(&mut self, frame: u32) {
        let bit = 1 << (frame % 32);
        let driver = self.geometry.dirty_driver_word(frame);
        let nic = self.geometry.dirty_nic_word(frame);
        let ours = self.sram.load_u32(driver, Ordering::Relaxed);
        let before = self.sram.load_u32(nic, Ordering::Relaxed);
        self.sram
            .store_u32(nic, before & !bit | ours & bit, Ordering::Relaxed);
        if let Some(page) = self.entered.get_mut(&frame) {
            page.dirty = true;
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Insert { tag, frame, key } => {
                let tag = self.tags[tag];
                // The driver takes a page out before it enters it in another frame.
                let elsewhere = self
                    .entered
                    .iter()
                    .find(|(f, p)| **f != frame && p.tag == tag);
                if elsewhere.is_none() {
                    self.insert(tag, frame, key);
                }
            }
            Operation::Try { tag, frame } => self.unmap(self.tags[tag], frame, false),
            Operation::Begin { tag, frame } => self.unmap(self.tags[tag], frame, true),
            Operation::Hold { frame } => self.hold(frame, 1),
            Operation::LetGo { frame } => self.hold(frame, 0),
            Operation::Write { frame } => self.write(frame),
        }
    }

    /// What the NIC finds is what the oracle knows.
    fn check(&self) {
        let mut found = BTreeMap::new();
        for row in 0..self.geometry.rows {
            for place in 0..ROW_ENTRIES {
                let entry = self.geometry.entry_offset(row, place);
                let Some(frame) = frame_of(self.sram.load_u32(entry, Ordering::Relaxed)) else {
                    continue;
                };
                let word = self.geometry.vpn_word(frame);
                let tag = Tag::from_word(self.sram.load_u64(word, Ordering::Relaxed)).unwrap();
                assert_eq!(tag.row(self.geometry.rows), row);
                let word = self.geometry.key_word(frame);
                let key = self.sram.load_u64(word, Ordering::Relaxed);
                let twice = found.insert(frame, (tag, key));
                assert_eq!(twice, None, "frame {frame} is entered twice");
            }
        }
        let known: BTreeMap<_, _> = self
            .entered
            .iter()
            .map(|(frame, page)| (*frame, (page.tag, page.key)))
            .collect();
        assert_eq!(found, known);
        for frame in (0..FRAMES as u32).filter(|frame| !found.contains_key(frame)) {
            let word = self.geometry.vpn_word(frame);
            assert_eq!(self.sram.load_u64(word, Ordering::Relaxed), 0);
        }
    }
}

proptest! {
    #[test]
    fn the_nic_finds_what_was_entered(
        seed in any::<u64>(),
        operations in prop::collection::vec(operation(), 1..120),
    ) {
        let mut world = World::new(seed);
        for operation in operations {
            world.apply(operation);
            world.check();
        }
    }
}

/// Victims are chosen at random: every entry of a full row leaves sooner or later.
#[test]
fn a_full_row_loses_any_of_its_pages() {
    let mut victims = BTreeMap::new();
    for seed in 0..64 {
        let mut world = World::new(seed * 0x1234_5678_9abc);
        for (frame, tag) in world.tags.clone().into_iter().take(5).enumerate() {
            world.insert(tag, frame as u32, 1);
        }
        world.check();
        assert_eq!(world.entered.len(), 4);
        let gone = (0..5).find(|frame| !world.entered.contains_key(frame));
        *victims.entry(gone).or_insert(0) += 1;
    }
    assert_eq!(victims.len(), 4, "{victims:?}");
    assert!(!victims.contains_key(&Some(4)));
}

/// What a broken device writes into the table leads nowhere.
#[test]
fn entries_beyond_the_frames_are_harmless() {
    let mut world = World::new(1);
    for place in 0..ROW_ENTRIES {
        let entry = world.geometry.entry_offset(5, place);
        world
            .sram
            .store_u32(entry, u32::MAX - place as u32, Ordering::Relaxed);
    }
    let tag = world.tags[0];
    let inserted = world.table.insert(&world.sram, tag, 3, 9);
    assert!(matches!(inserted, Inserted::Done { evicted: None, .. }));
    let unmapped = world.table.try_unmap(&world.sram, tag, u32::MAX);
    assert_eq!(unmapped, Unmapped::Absent);
}
