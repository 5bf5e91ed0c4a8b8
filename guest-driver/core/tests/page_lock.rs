//! The two-flag exclusion between the driver's unmapPage and the NIC's lockPage
//! (N6; NetVM §4.4, figure 13), and the order of insertion (N5), in every
//! interleaving: this crate's [`Table`] against the NIC's real `page_table`, over
//! loom's atomics.
//!
//! A page of memory is a loom cell. Whoever holds the page writes to it: the NIC
//! while it has it locked, the driver (as the kernel that reuses it) once it is
//! unmapped. Two that hold it at once are a data race, which loom reports.

use std::collections::BTreeSet;
use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use loom::sync::Arc;
use qnic_abi::header::Geometry;
use qnic_abi::page_table::{Tag, ROW_ENTRIES};
use qnic_abi::{Key, NodeId, SharedMemory, VniId};
use qnic_driver::shadow::{Inserted, Table, Unmapped};
use qnic_nic::page_table::{lock_page, page_key, unlock_page, unlock_page_dirty};

const FRAME: u32 = 1;

fn geometry() -> Geometry {
    Geometry::new(NodeId(0), 2, 1, 1).unwrap()
}

fn tag() -> Tag {
    Tag::new(VniId(0), 0x5000)
}

/// Those words of an SRAM that matter for one frame and one row, and the page
/// that is in the frame.
struct World {
    geometry: Geometry,
    row: u64,
    entries: [AtomicU32; ROW_ENTRIES],
    vpn: AtomicU64,
    key: AtomicU64,
    lock: AtomicU32,
    dirty_driver: AtomicU32,
    dirty_nic: AtomicU32,
    page: UnsafeCell<u32>,
}

impl World {
    fn new() -> Self {
        let geometry = geometry();
        World {
            row: tag().row(geometry.rows),
            geometry,
            entries: std::array::from_fn(|_| AtomicU32::new(0)),
            vpn: AtomicU64::new(0),
            key: AtomicU64::new(0),
            lock: AtomicU32::new(0),
            dirty_driver: AtomicU32::new(0),
            dirty_nic: AtomicU32::new(0),
            page: UnsafeCell::new(0),
        }
    }

    fn word32(&self, offset: usize) -> &AtomicU32 {
        let g = &self.geometry;
        let entry = (0..ROW_ENTRIES).find(|e| g.entry_offset(self.row, *e) == offset);
        match entry {
            Some(entry) => &self.entries[entry],
            None if offset == g.lock_word(FRAME) => &self.lock,
            None if offset == g.dirty_driver_word(FRAME) => &self.dirty_driver,
            None if offset == g.dirty_nic_word(FRAME) => &self.dirty_nic,
            None => panic!("no 32-bit word of the model at {offset:#x}"),
        }
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        match offset {
            o if o == self.geometry.vpn_word(FRAME) => &self.vpn,
            o if o == self.geometry.key_word(FRAME) => &self.key,
            _ => panic!("no 64-bit word of the model at {offset:#x}"),
        }
    }

    /// Uses the page as its only owner.
    #[allow(unsafe_code, reason = "a loom cell is how loom detects two owners")]
    fn use_page(&self) {
        // SAFETY: what the test proves; loom reports a race otherwise.
        self.page.with_mut(|page| unsafe { *page += 1 });
    }
}

impl SharedMemory for World {
    fn size(&self) -> usize {
        self.geometry.sram_bytes as usize
    }
    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.word32(offset).load(order)
    }
    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.word32(offset).store(value, order);
    }
    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.word64(offset).load(order)
    }
    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.word64(offset).store(value, order);
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// A world in which [`tag`] is entered in [`FRAME`] with key 7, clean.
fn entered() -> (Arc<World>, Table) {
    let world = Arc::new(World::new());
    let mut table = Table::new(geometry(), 1);
    let inserted = table.insert(&*world, tag(), FRAME, 7);
    assert!(matches!(inserted, Inserted::Done { .. }));
    (world, table)
}

/// The NIC's side: locks the page, uses it, unlocks it. Says whether it got it.
fn nic_writes(world: &World) -> bool {
    let Some(page) = lock_page(world, &world.geometry, tag()) else {
        return false;
    };
    assert_eq!(page.address(), u64::from(FRAME) << 12);
    assert_eq!(page_key(world, &world.geometry, &page), Key(7));
    world.use_page();
    unlock_page_dirty(world, &world.geometry, page);
    true
}

/// unmapPage without force: at most one side gets the page, and each of the three
/// outcomes of figure 13 occurs.
#[test]
fn a_page_is_never_both_locked_and_unmapped() {
    static OUTCOMES: Mutex<BTreeSet<(bool, bool)>> = Mutex::new(BTreeSet::new());
    loom::model(|| {
        let (world, mut table) = entered();
        let nic = {
            let world = world.clone();
            loom::thread::spawn(move || nic_writes(&world))
        };
        let unmapped = match table.try_unmap(&*world, tag(), FRAME) {
            Unmapped::Done(_) => {
                world.use_page();
                true
            }
            Unmapped::Locked => false,
            Unmapped::Absent => panic!("nobody else takes it out"),
        };
        let locked = nic.join().unwrap();
        OUTCOMES.lock().unwrap().insert((unmapped, locked));
        if !unmapped {
            // Still entered: the NIC finds it again.
            assert!(nic_writes(&world));
        }
    });
    let outcomes = OUTCOMES.lock().unwrap();
    assert!(
        outcomes.contains(&(true, false)),
        "(i) the host unmaps the page"
    );
    assert!(outcomes.contains(&(false, true)), "(ii) the NIC locks it");
    assert!(outcomes.contains(&(false, false)), "(iii) neither");
    // Both: one after the other, as the cell shows.
    assert!(outcomes.contains(&(true, true)));
}

/// unmapPage with force: when it is over, the NIC does not touch the page any
/// more, and a page that it wrote to is seen dirty (N7).
#[test]
fn a_forced_unmap_ends_with_the_page_to_itself() {
    loom::model(|| {
        let (world, mut table) = entered();
        let nic = {
            let world = world.clone();
            loom::thread::spawn(move || nic_writes(&world))
        };
        let mut outcome = table.begin_unmap(&*world, tag(), FRAME);
        while outcome == Unmapped::Locked {
            loom::thread::yield_now();
            if let Some(removed) = table.finish_unmap(&*world, FRAME) {
                outcome = Unmapped::Done(removed);
            }
        }
        let Unmapped::Done(removed) = outcome else {
            panic!("nobody else takes it out");
        };
        world.use_page();
        let wrote = nic.join().unwrap();
        assert_eq!(removed.dirty, wrote);
        assert!(!nic_writes(&world));
    });
}

/// The NIC finds an entry with all that belongs to it, or not at all.
#[test]
fn no_entry_is_seen_half_written() {
    loom::model(|| {
        let world = Arc::new(World::new());
        let nic = {
            let world = world.clone();
            loom::thread::spawn(move || nic_writes(&world))
        };
        let mut table = Table::new(geometry(), 1);
        // What the kernel did to the page before.
        world.use_page();
        let inserted = table.insert(&*world, tag(), FRAME, 7);
        assert!(matches!(inserted, Inserted::Done { .. }));
        nic.join().unwrap();
    });
}

/// A frame that passes from one page to another is never reached under the old
/// name with the new key, or the other way round.
#[test]
fn a_frame_that_changes_hands_keeps_name_and_key_together() {
    let first = tag();
    let second = (6..)
        .map(|page| Tag::new(VniId(0), page << 12))
        .find(|other| other.row(geometry().rows) == first.row(geometry().rows))
        .unwrap();
    loom::model(move || {
        let (world, mut table) = entered();
        let nic = {
            let world = world.clone();
            loom::thread::spawn(move || {
                for (tag, key) in [(first, 7), (second, 8)] {
                    if let Some(page) = lock_page(&*world, &world.geometry, tag) {
                        assert_eq!(page_key(&*world, &world.geometry, &page), Key(key));
                        world.use_page();
                        unlock_page(&*world, &world.geometry, page);
                    }
                }
            })
        };
        if let Unmapped::Done(_) = table.try_unmap(&*world, first, FRAME) {
            world.use_page();
            let _ = table.insert(&*world, second, FRAME, 8);
        }
        nic.join().unwrap();
    });
}
