//! Memory of a simulated node, and the check of each access of its NIC.
//!
//! Each frame has an owner. The NIC may touch
//! - host areas of processes, and pages of the driver core's own datagrams, until the driver
//!   frees them;
//! - a page of a process, while the NIC holds it locked *and* the reverse mapping in
//!   SRAM still names exactly that page of that process (N4, N6, N8), or the driver waits for its
//!   lock and it is only read;
//! - a page of a driver's datagrams, as far as the driver has lent it to the NIC, from the
//!   command that names it to the completion of that (H8).
//!
//! Anything else is a violation, at the moment it happens. A frame that is freed
//! is filled with [`POISON`], so a stale copy shows too.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use qnic::sync::OBJECT_BYTES;
use qnic_abi::header::Geometry;
use qnic_abi::page_table::{PageAccess, Tag, LEAVING, LOCKS};
use qnic_abi::{SharedMemory, VniId, PAGE_SHIFT, PAGE_SIZE};
use qnic_nic::env::{Change, ModifyError, Width};
use qnic_nic::testing::Sram;
use qnic_nic::{HostMemory, OutOfRange};

use crate::schedule::lock;

/// What stands in a frame without an owner.
const POISON: u8 = 0xdb;

/// The owner of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// None.
    Free,
    /// A page of the host area of the process in that slot.
    HostArea { slot: usize, page: usize },
    /// The datagram layer of the driver core: buffers, and the driver's own host area.
    Engine,
    /// A page of an address space.
    Page { space: u64, page: u64 },
    /// A page of a driver, for datagrams.
    Driver,
}

/// An object of [`qnic::sync`] as it lies in memory.
pub(crate) type Words = [u64; OBJECT / 8];

const OBJECT: usize = OBJECT_BYTES as usize;

pub(crate) fn words(bytes: &[u8]) -> Words {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    std::array::from_fn(|index| word(&bytes[8 * index..8 * index + 8]))
}

/// Where the objects of a process lie.
struct ObjectArea {
    slot: usize,
    space: u64,
    address: u64,
    objects: usize,
}

/// One of them, in memory.
struct Found {
    slot: usize,
    object: usize,
    range: std::ops::Range<usize>,
}

struct State {
    bytes: Vec<u8>,
    owners: Vec<Owner>,
    /// VNI by address space, once known.
    vnis: Vec<(u64, VniId)>,
    free: Vec<u32>,
    /// Frames from here on are for blocks only. Nothing else is taken from there: single frames that
    /// come and go would leave no block in between.
    blocks: u32,
    object_areas: Vec<ObjectArea>,
    /// What a driver has lent to the NIC: the end by the first address, and what for.
    loans: BTreeMap<u64, (u64, PageAccess)>,
}

impl State {
    /// The object that an address lies in.
    fn object_at(&self, address: usize) -> Option<Found> {
        let frame = address >> PAGE_SHIFT;
        let Owner::Page { space, page } = self.owners[frame] else {
            return None;
        };
        let area = self.object_areas.iter().find(|area| area.space == space)?;
        let offset = (page << PAGE_SHIFT) + (address % PAGE_SIZE) as u64;
        let offset = offset.checked_sub(area.address)? as usize;
        let start = address - offset % OBJECT;
        (offset < area.objects * OBJECT).then_some(Found {
            slot: area.slot,
            object: offset / OBJECT,
            range: start..start + OBJECT,
        })
    }

    fn words(&self, found: &Found) -> Words {
        words(&self.bytes[found.range.clone()])
    }
}

/// Learns what NICs do to memory, at that moment.
pub(crate) trait Observer: Send + Sync {
    /// A word of the host area of the process in a slot was stored.
    fn stored(&self, slot: usize, offset: usize, value: u64);

    /// An object of the process in a slot was changed.
    fn changed(&self, slot: usize, object: usize, before: &Words, after: &Words);
}

/// Memory of one node.
pub(crate) struct Memory {
    sram: Arc<Sram>,
    geometry: Geometry,
    state: Mutex<State>,
    observer: Weak<dyn Observer>,
}

impl Memory {
    /// Memory of as many frames as the geometry has, of which the last `blocks` are for blocks.
    pub(crate) fn new(
        geometry: Geometry,
        blocks: u64,
        sram: Arc<Sram>,
        observer: Weak<dyn Observer>,
    ) -> Self {
        let frames = geometry.frames as usize;
        let singles = (geometry.frames - blocks) as u32;
        Memory {
            sram,
            geometry,
            state: Mutex::new(State {
                bytes: vec![POISON; frames * PAGE_SIZE],
                owners: vec![Owner::Free; frames],
                vnis: Vec::new(),
                free: (0..singles).rev().collect(),
                blocks: singles,
                object_areas: Vec::new(),
                loans: BTreeMap::new(),
            }),
            observer,
        }
    }

    /// Takes a free frame, zeroed.
    pub(crate) fn allocate(&self, owner: Owner) -> Option<u32> {
        let mut state = lock(&self.state);
        let frame = state.free.pop()?;
        state.owners[frame as usize] = owner;
        state.bytes[range_of(frame)].fill(0);
        Some(frame)
    }

    /// Takes so many free frames, one behind the other, zeroed; returns the first. There may be none
    /// while others have what is for blocks.
    pub(crate) fn allocate_block(&self, count: usize, owner: Owner) -> Option<u32> {
        let mut state = lock(&self.state);
        let start = state.blocks as usize;
        let is_free = |owners: &[Owner]| owners.iter().all(|owner| *owner == Owner::Free);
        let first = start + state.owners[start..].windows(count).position(is_free)?;
        state.owners[first..first + count].fill(owner);
        state.bytes[first * PAGE_SIZE..(first + count) * PAGE_SIZE].fill(0);
        Some(first as u32)
    }

    pub(crate) fn release(&self, frame: u32) {
        let mut state = lock(&self.state);
        assert_ne!(state.owners[frame as usize], Owner::Free, "freed twice");
        state.owners[frame as usize] = Owner::Free;
        state.bytes[range_of(frame)].fill(POISON);
        let lent = |address: &u64| *address >> PAGE_SHIFT == u64::from(frame);
        state.loans.retain(|address, _| !lent(address));
        // The next owner is another one than the last: stale use shows soon.
        if frame < state.blocks {
            state.free.push(frame);
        }
    }

    pub(crate) fn free_frames(&self) -> usize {
        self.frames_of(Owner::Free)
    }

    /// How many frames pages of processes have, or can have.
    pub(crate) fn frames_for_pages(&self) -> usize {
        let state = lock(&self.state);
        let singles = &state.owners[..state.blocks as usize];
        let for_pages = |owner: &&Owner| matches!(owner, Owner::Free | Owner::Page { .. });
        singles.iter().filter(for_pages).count()
    }

    /// How many frames an owner has.
    pub(crate) fn frames_of(&self, owner: Owner) -> usize {
        let state = lock(&self.state);
        state.owners.iter().filter(|of| **of == owner).count()
    }

    pub(crate) fn owner(&self, frame: u32) -> Owner {
        lock(&self.state).owners[frame as usize]
    }

    /// Notes the VNI of an address space; `None` when the space ends.
    pub(crate) fn set_vni(&self, space: u64, vni: Option<VniId>) {
        let mut state = lock(&self.state);
        state.vnis.retain(|(other, _)| *other != space);
        state.vnis.extend(vni.map(|vni| (space, vni)));
    }

    /// Bytes of a frame as the processor sees them.
    pub(crate) fn load(&self, frame: u32, offset: usize, bytes: &mut [u8]) {
        let start = range_of(frame).start + offset;
        let state = lock(&self.state);
        bytes.copy_from_slice(&state.bytes[start..start + bytes.len()]);
    }

    /// The processor stores.
    pub(crate) fn store(&self, frame: u32, offset: usize, bytes: &[u8]) {
        let start = range_of(frame).start + offset;
        let mut state = lock(&self.state);
        state.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// The driver lends so many bytes to the NIC, to be read or written.
    ///
    /// # Panics
    /// If any of them is lent.
    pub(crate) fn lend(&self, address: u64, length: u64, access: PageAccess) {
        let mut state = lock(&self.state);
        let end = address + length;
        let mut before = state.loans.range(..end);
        let taken = before.next_back().is_some_and(|(_, loan)| loan.0 > address);
        assert!(!taken, "memory at {address:#x} is lent twice");
        state.loans.insert(address, (end, access));
    }

    /// The driver has memory at an address again.
    ///
    /// # Panics
    /// If it is not lent.
    pub(crate) fn take_back(&self, address: u64) {
        let loan = lock(&self.state).loans.remove(&address);
        assert!(loan.is_some(), "memory at {address:#x} is not lent");
    }

    /// From now on the observer learns of changes of the objects at an address.
    pub(crate) fn watch(&self, slot: usize, (space, address): (u64, u64), objects: usize) {
        let mut state = lock(&self.state);
        state.object_areas.retain(|area| area.slot != slot);
        state.object_areas.push(ObjectArea {
            slot,
            space,
            address,
            objects,
        });
    }

    /// The NIC changes memory.
    fn change<T>(
        &self,
        address: u64,
        length: usize,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, OutOfRange> {
        let mut state = lock(&self.state);
        let range = self.check(&state, address, length, PageAccess::Write)?;
        let found = match length {
            0 => None,
            _ => state.object_at(range.start),
        };
        let found = found.map(|found| (state.words(&found), found));
        let result = change(&mut state.bytes[range]);
        let Some((before, found)) = found else {
            return Ok(result);
        };
        let after = state.words(&found);
        drop(state);
        if let Some(observer) = self.observer.upgrade() {
            if before != after {
                observer.changed(found.slot, found.object, &before, &after);
            }
        }
        Ok(result)
    }

    /// Checks an access of the NIC, and finds the bytes.
    fn check(
        &self,
        state: &State,
        address: u64,
        length: usize,
        access: PageAccess,
    ) -> Result<std::ops::Range<usize>, OutOfRange> {
        let start = usize::try_from(address).map_err(|_| OutOfRange)?;
        let end = start.checked_add(length).ok_or(OutOfRange)?;
        if end > state.bytes.len() {
            return Err(OutOfRange);
        }
        if length > 0 {
            for frame in start >> PAGE_SHIFT..=(end - 1) >> PAGE_SHIFT {
                match state.owners[frame] {
                    Owner::Driver => check_loan(state, address, length as u64, access),
                    _ => self.check_frame(state, frame as u32, access),
                }
            }
        }
        Ok(start..end)
    }

    fn check_frame(&self, state: &State, frame: u32, access: PageAccess) {
        let (space, page) = match state.owners[frame as usize] {
            Owner::HostArea { .. } | Owner::Driver | Owner::Engine => return,
            Owner::Free => panic!("the NIC touches frame {frame}, which is free"),
            Owner::Page { space, page } => (space, page),
        };
        let vni = state.vnis.iter().find(|(other, _)| *other == space);
        let Some((_, vni)) = vni else {
            panic!("the NIC touches frame {frame} of a process that is not registered");
        };
        let expected = Tag::new(*vni, page << PAGE_SHIFT);
        let words = self.geometry.mappings(frame).map(|mapping| {
            let vpn = self.geometry.vpn_word(mapping);
            self.sram.load_u64(vpn, Ordering::Relaxed)
        });
        let permits = |access| words.clone().any(|word| expected.permits(word, access));
        let leaving = words.clone().any(|word| word == LEAVING) && access == PageAccess::Read;
        assert!(
            leaving || permits(PageAccess::Read),
            "the NIC touches frame {frame}, which is not mapped for its owner"
        );
        assert!(
            leaving || permits(access),
            "the NIC writes to frame {frame}, which is mapped for reading"
        );
        let lock_word = self.geometry.lock_word(frame);
        let locked = self.sram.load_u32(lock_word, Ordering::Relaxed) & LOCKS;
        assert_ne!(locked, 0, "the NIC touches frame {frame} without its lock");
    }
}

/// Checks that a driver has lent memory to the NIC.
fn check_loan(state: &State, address: u64, length: u64, access: PageAccess) {
    let mut before = state.loans.range(..=address);
    let loan = before.next_back().map(|(_, loan)| *loan);
    let lent = loan.is_some_and(|(end, lent)| address + length <= end && lent == access);
    assert!(
        lent,
        "the NIC touches {length} bytes at {address:#x} for {access:?}, which are not lent: {loan:?}"
    );
}

fn range_of(frame: u32) -> std::ops::Range<usize> {
    let start = frame as usize * PAGE_SIZE;
    start..start + PAGE_SIZE
}

impl HostMemory for Memory {
    fn contains(&self, address: u64, length: u64) -> bool {
        let size = lock(&self.state).bytes.len() as u64;
        address.checked_add(length).is_some_and(|end| end <= size)
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        let state = lock(&self.state);
        let range = self.check(&state, address, bytes.len(), PageAccess::Read)?;
        bytes.copy_from_slice(&state.bytes[range]);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.change(address, bytes.len(), |range| range.copy_from_slice(bytes))
    }

    fn load_u64(&self, address: u64) -> Result<u64, OutOfRange> {
        if address % 8 != 0 {
            return Err(OutOfRange);
        }
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store_u64(&self, address: u64, value: u64) -> Result<(), OutOfRange> {
        if address % 8 != 0 {
            return Err(OutOfRange);
        }
        self.write(address, &value.to_le_bytes())?;
        let frame = (address >> PAGE_SHIFT) as u32;
        let observer = self.observer.upgrade();
        if let (Owner::HostArea { slot, page }, Some(observer)) = (self.owner(frame), observer) {
            let offset = page * PAGE_SIZE + address as usize % PAGE_SIZE;
            observer.stored(slot, offset, value);
        }
        Ok(())
    }

    fn modify(&self, address: u64, width: Width, change: Change) -> Result<u64, ModifyError> {
        if address % width.bytes() as u64 != 0 {
            return Err(ModifyError::OutOfRange);
        }
        let changed = self.change(address, width.bytes(), |word| change.apply(width, word));
        Ok(changed?)
    }

    fn copy_from(
        &self,
        address: u64,
        source: &Self,
        source_address: u64,
        length: usize,
    ) -> Result<(), OutOfRange> {
        let mut bytes = vec![0; length];
        source.read(source_address, &mut bytes)?;
        self.write(address, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::NodeId;

    struct NoObserver;

    impl Observer for NoObserver {
        fn stored(&self, _: usize, _: usize, _: u64) {}
        fn changed(&self, _: usize, _: usize, _: &Words, _: &Words) {}
    }

    fn memory() -> Memory {
        let geometry = Geometry::new(NodeId(1), 8, 2, 1).unwrap();
        let sram = Arc::new(Sram::new(geometry.sram_bytes as usize));
        Memory::new(geometry, 4, sram, Weak::<NoObserver>::new())
    }

    /// What the check says of a write to a frame.
    fn violation(memory: &Memory, frame: u32) -> Option<String> {
        let write = std::panic::AssertUnwindSafe(|| {
            memory.write(u64::from(frame) << PAGE_SHIFT, &[1]).unwrap();
        });
        let cause = std::panic::catch_unwind(write).err()?;
        cause.downcast_ref::<String>().cloned()
    }

    #[test]
    fn only_what_is_mapped_and_locked_may_be_touched() {
        let memory = memory();
        let owner = Owner::Page { space: 5, page: 77 };
        let frame = memory.allocate(owner).unwrap();
        let is_refused = |reason| {
            let violation = violation(&memory, frame).unwrap();
            assert!(violation.contains(reason), "{violation}");
        };
        is_refused("not registered");
        memory.set_vni(5, Some(VniId(1)));
        is_refused("not mapped");
        let tag = Tag::new(VniId(1), 77 << PAGE_SHIFT);
        let vpn = memory.geometry.vpn_word(frame);
        memory
            .sram
            .store_u64(vpn, tag.word(PageAccess::Write), Ordering::Relaxed);
        is_refused("without its lock");
        let read_only = tag.word(PageAccess::Read);
        memory.sram.store_u64(vpn, read_only, Ordering::Relaxed);
        is_refused("for reading");
        let writable = tag.word(PageAccess::Write);
        memory.sram.store_u64(vpn, writable, Ordering::Relaxed);
        let locked = memory.geometry.lock_word(frame);
        memory.sram.store_u32(locked, 1, Ordering::Relaxed);
        assert_eq!(violation(&memory, frame), None);
        memory.release(frame);
        is_refused("free");
        assert_eq!(memory.write(8 << PAGE_SHIFT, &[1]), Err(OutOfRange));
    }

    #[test]
    fn blocks_are_contiguous_and_come_from_frames_of_their_own() {
        let memory = memory();
        let singles: Vec<_> = std::iter::from_fn(|| memory.allocate(Owner::Engine)).collect();
        assert_eq!(singles, [0, 1, 2, 3]);
        let block = memory.allocate_block(2, Owner::Engine).unwrap();
        assert_eq!(memory.allocate_block(2, Owner::Engine), Some(block + 2));
        assert_eq!(memory.allocate_block(1, Owner::Engine), None);
        assert_eq!(memory.free_frames(), 0);
        memory.release(block + 1);
        assert_eq!(memory.allocate(Owner::Engine), None);
        assert_eq!(memory.allocate_block(2, Owner::Engine), None);
        memory.release(block);
        assert_eq!(memory.allocate_block(2, Owner::Engine), Some(block));
    }

    #[test]
    fn only_what_is_lent_of_a_driver_may_be_touched() {
        let memory = memory();
        let frame = memory.allocate(Owner::Driver).unwrap();
        let address = u64::from(frame) << PAGE_SHIFT;
        let is_refused = || {
            let violation = violation(&memory, frame).unwrap();
            assert!(violation.contains("not lent"), "{violation}");
        };
        is_refused();
        memory.lend(address, 2, PageAccess::Read);
        assert_eq!(memory.read(address, &mut [0; 2]), Ok(()));
        is_refused();
        memory.take_back(address);
        memory.lend(address + 1, 8, PageAccess::Write);
        is_refused();
        assert_eq!(memory.write(address + 1, &[1; 8]), Ok(()));
        memory.lend(address, 1, PageAccess::Write);
        assert_eq!(violation(&memory, frame), None);
        memory.take_back(address);
        is_refused();
    }
}
