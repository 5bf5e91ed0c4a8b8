//! The SRAM words and the memory that the models share, and the NIC's use of a
//! page.
//!
//! A frame's content is a loom cell. The owner of the page writes to it: the NIC
//! while it has the page locked, the driver (as the kernel that reuses it) while the
//! page is not mapped. Two owners at once are a data race, which loom reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use loom::sync::Arc;
use qnic_abi::header::Geometry;
use qnic_abi::page_table::{PageAccess, Tag, ROW_ENTRIES};
use qnic_abi::{NodeId, SharedMemory, VniId, PAGE_SHIFT};
use qnic_driver::shadow::{Inserted, Removed, Table, Unmapped};
use qnic_nic::page_table::{lock_page, page_key, unlock_page_dirty, LockedPage};

/// Frames of the model, enough to fill a row and one more.
pub(crate) const FRAMES: u32 = 5;

/// The row that all pages of the models share.
const ROW: u64 = 3;

pub(crate) fn geometry() -> Geometry {
    Geometry::new(NodeId(0), FRAMES.into(), 1, 1).unwrap()
}

/// The `index`th page whose frame is mapped in [`ROW`].
pub(crate) fn tag(index: usize) -> Tag {
    (0u64..)
        .map(|page| Tag::new(VniId(0), page << PAGE_SHIFT))
        .filter(|tag| tag.row(geometry().rows) == ROW)
        .nth(index)
        .unwrap()
}

/// The key under which a page is mapped for the first time.
pub(crate) fn key(index: usize) -> u64 {
    70 + index as u64
}

/// The words of an SRAM that belong to [`ROW`] and to the frames, and the frames.
pub(crate) struct World {
    pub(crate) geometry: Geometry,
    words32: BTreeMap<usize, AtomicU32>,
    words64: BTreeMap<usize, AtomicU64>,
    /// Content of each frame: the key of the page that is in it, 0 while the
    /// kernel has it.
    contents: Vec<UnsafeCell<u64>>,
}

impl World {
    pub(crate) fn new() -> Self {
        let g = geometry();
        let entries = (0..ROW_ENTRIES).map(|entry| g.entry_offset(ROW, entry));
        let locks = (0..FRAMES).map(|frame| g.lock_word(frame));
        let dirty = [g.dirty_driver_word(0), g.dirty_nic_word(0)];
        let mappings = (0..FRAMES).flat_map(|frame| g.mappings(frame));
        let maps = mappings.flat_map(|mapping| [g.vpn_word(mapping), g.key_word(mapping)]);
        World {
            words32: entries
                .chain(locks)
                .chain(dirty)
                .map(|offset| (offset, AtomicU32::new(0)))
                .collect(),
            words64: maps.map(|offset| (offset, AtomicU64::new(0))).collect(),
            contents: (0..FRAMES).map(|_| UnsafeCell::new(0)).collect(),
            geometry: g,
        }
    }

    /// Changes the content of a frame as its owner.
    #[allow(unsafe_code, reason = "a loom cell is how loom detects two owners")]
    fn use_frame(&self, frame: u32, change: impl FnOnce(&mut u64)) {
        // SAFETY: what the models show; loom reports a race otherwise.
        self.contents[frame as usize].with_mut(|content| change(unsafe { &mut *content }));
    }

    /// Reads the content of a frame, as others may do at the same time.
    #[allow(unsafe_code, reason = "a loom cell is how loom detects a writer")]
    pub(crate) fn look(&self, frame: u32, check: impl FnOnce(u64)) {
        // SAFETY: what the models show; loom reports a race otherwise.
        self.contents[frame as usize].with(|content| check(unsafe { *content }));
    }

    /// The kernel has a frame to itself.
    pub(crate) fn reuse(&self, frame: u32) {
        self.use_frame(frame, |content| *content = 0);
    }

    /// An entry of the row, as a relaxed load returns it.
    pub(crate) fn entry(&self, entry: usize) -> u32 {
        self.load_u32(self.geometry.entry_offset(ROW, entry), Ordering::Relaxed)
    }
}

impl SharedMemory for World {
    fn size(&self) -> usize {
        self.geometry.sram_bytes as usize
    }
    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.words32[&offset].load(order)
    }
    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.words32[&offset].store(value, order);
    }
    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.words64[&offset].load(order)
    }
    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.words64[&offset].store(value, order);
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The kernel puts a page into a frame, and the driver inserts it.
pub(crate) fn insert(world: &World, table: &mut Table, tag: Tag, frame: u32, key: u64) -> Inserted {
    world.use_frame(frame, |content| *content = key);
    table.insert(world, tag, frame, (key, PageAccess::Write))
}

/// A world in which page `i` is mapped in frame `i` with its key, clean, for each
/// `i` below `pages`; `seed` decides which victims leave first.
pub(crate) fn mapped(pages: usize, seed: u64) -> (Arc<World>, Table) {
    mapped_for(PageAccess::Write, pages, seed)
}

/// The same, with this access for the NIC.
pub(crate) fn mapped_for(access: PageAccess, pages: usize, seed: u64) -> (Arc<World>, Table) {
    let world = Arc::new(World::new());
    let mut table = Table::new(geometry(), seed);
    for index in 0..pages {
        let (frame, key) = (index as u32, key(index));
        world.use_frame(frame, |content| *content = key);
        let inserted = table.insert(&*world, tag(index), frame, (key, access));
        assert!(matches!(
            inserted,
            Inserted::Done {
                evicted: None,
                replaced: None
            }
        ));
    }
    (world, table)
}

/// Unmaps a page unless the NIC holds it; the kernel then has its frame to itself.
pub(crate) fn take_out(world: &World, table: &mut Table, tag: Tag, frame: u32) -> Option<Removed> {
    match table.try_unmap(world, tag, frame) {
        Unmapped::Done(removed) => {
            world.reuse(frame);
            Some(removed)
        }
        Unmapped::Locked => None,
        Unmapped::Absent => panic!("no other side unmaps it"),
    }
}

/// Unmaps a page with force: its mapping stays invalid, and the driver waits for the NIC.
/// The kernel then has its frame to itself.
pub(crate) fn force_out(world: &World, table: &mut Table, tag: Tag, frame: u32) -> Removed {
    let removed = match table.begin_unmap(world, tag, frame) {
        Unmapped::Done(removed) => removed,
        Unmapped::Locked => loop {
            loom::thread::yield_now();
            if let Unmapped::Done(removed) = table.finish_unmap(world, frame) {
                break removed;
            }
        },
        Unmapped::Absent => panic!("no other side unmaps it"),
    };
    world.reuse(frame);
    removed
}

/// Frame of a locked page.
pub(crate) fn frame(page: &LockedPage) -> u32 {
    (page.address() >> PAGE_SHIFT) as u32
}

/// Uses a locked page: its content belongs to its key. Returns the key.
pub(crate) fn use_locked(world: &World, page: &LockedPage) -> u64 {
    let key = page_key(world, &world.geometry, page).0;
    world.use_frame(frame(page), |content| assert_eq!(*content, key));
    key
}

/// The NIC's side: locks a page, writes to it, unlocks it. Returns the key under
/// which the page was mapped.
pub(crate) fn nic_writes(world: &World, tag: Tag) -> Option<u64> {
    let page = lock_page(world, &world.geometry, tag, PageAccess::Write)?;
    let key = use_locked(world, &page);
    unlock_page_dirty(world, &world.geometry, page);
    Some(key)
}

/// Runs a model in every interleaving. Returns all results.
pub(crate) fn outcomes<T: Ord + Send + 'static>(
    model: impl Fn() -> T + Sync + Send + 'static,
) -> BTreeSet<T> {
    let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
    let all = seen.clone();
    loom::model(move || {
        let outcome = model();
        all.lock().unwrap().insert(outcome);
    });
    let mut seen = seen.lock().unwrap();
    std::mem::take(&mut *seen)
}

/// Runs the NIC and the driver concurrently; returns the driver's result and the NIC's.
pub(crate) fn concurrently<N: 'static, D>(
    world: &Arc<World>,
    nic: impl FnOnce(&World) -> N + 'static,
    driver: impl FnOnce(&World) -> D,
) -> (D, N) {
    let thread = {
        let world = world.clone();
        loom::thread::spawn(move || nic(&world))
    };
    let done = driver(world);
    (done, thread.join().unwrap())
}
