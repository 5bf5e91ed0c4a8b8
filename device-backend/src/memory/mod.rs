//! The RAM of a guest, as the front end's memory table describes it.
//!
//! ```text
//!  SET_MEM_TABLE ──► [table]: checks, maps ──► [GuestMemory]: the engine's copy,
//!                                               bounds-checked accesses (DMA)
//! ```
//!
//! # Faults
//! An access of this process to a region does not fault, whatever the front end does with the file
//! behind it: a region is refused unless its file is a memfd that is sealed against shrinking
//! ([`table`]).
//!
//! # Copies
//! `vm-memory` copies more than 8 bytes with `memmove`, so the copy of a
//! transfer, [`HostMemory::copy_from`], runs at memory speed; up to 8 aligned bytes
//! of a `read` or `write` are one access. This module has no unsafe code.

pub(crate) mod table;

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use qnic_nic::env::{Change, HostMemory, ModifyError, OutOfRange, Width};
use vm_memory::{
    Bytes, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MemoryRegionAddress,
    VolatileMemory, VolatileMemoryError, VolatileSlice,
};

/// How often a change that no processor makes in one instruction is tried. A guest that stores to
/// the word all the time makes a try fail only by chance.
const MODIFY_TRIES: u32 = 1000;

// `modify` adds to little-endian words in place.
const _: () = assert!(cfg!(target_endian = "little"));

/// The RAM of one guest. It belongs to the engine thread; a clone is the same RAM, for a frame
/// that another engine of the process copies from it.
#[derive(Debug, Clone, Default)]
pub(crate) struct GuestMemory {
    /// All regions, for `virtio-queue`.
    ram: Arc<GuestMemoryMmap>,
    /// The same regions in the order of their addresses.
    regions: Arc<[Region]>,
    /// The region that the last access fell into: most accesses of a transfer
    /// fall into the same one.
    last: Cell<usize>,
}

#[derive(Debug, Clone)]
struct Region {
    start: u64,
    length: u64,
    map: Arc<GuestRegionMmap>,
}

impl GuestMemory {
    /// Puts mapped regions together. Fails if two of them overlap.
    pub(crate) fn new(mut maps: Vec<Arc<GuestRegionMmap>>) -> anyhow::Result<Self> {
        maps.sort_by_key(|map| map.start_addr());
        if maps.is_empty() {
            return Ok(Self::default());
        }
        let ram = GuestMemoryMmap::from_arc_regions(maps.clone())
            .map_err(|_| anyhow::Error::msg(table::OVERLAP))?;
        let region = |map: Arc<GuestRegionMmap>| Region {
            start: map.start_addr().0,
            length: map.len(),
            map,
        };
        Ok(GuestMemory {
            ram: Arc::new(ram),
            regions: maps.into_iter().map(region).collect(),
            last: Cell::new(0),
        })
    }

    /// The end of the memory below the first gap that ends at or above address `covered`, the end of what
    /// the page table of a NIC covers. Beyond it is memory that was added while the guest runs, which the
    /// driver does not export, or of other devices, which QEMU lists as if it were RAM, such as the SRAM
    /// of the guest's other NICs (S7). RAM from the start that exceeds `covered` begins below it, or the
    /// driver reports it.
    pub(crate) fn end_without_devices(&self, covered: u64) -> u64 {
        let mut end = 0;
        for region in self.regions.iter() {
            if region.start > end && region.start >= covered {
                break;
            }
            end = region.start + region.length;
        }
        end
    }

    /// The same memory for `virtio-queue`.
    pub(crate) fn ram(&self) -> &GuestMemoryMmap {
        &self.ram
    }

    /// One more than the highest guest-physical address.
    pub(crate) fn end(&self) -> u64 {
        self.regions
            .last()
            .map_or(0, |region| region.start + region.length)
    }

    /// The region that holds `address`, and the offset in it.
    fn find(&self, address: u64) -> Option<(&Region, u64)> {
        let hit = |index: usize| {
            let region = self.regions.get(index)?;
            let offset = address.wrapping_sub(region.start);
            (offset < region.length).then_some((region, offset))
        };
        hit(self.last.get()).or_else(|| {
            let index = (0..self.regions.len()).find(|index| hit(*index).is_some())?;
            self.last.set(index);
            hit(index)
        })
    }

    /// The first part of `address .. address + length` that lies in one region.
    fn piece(&self, address: u64, length: usize) -> Result<VolatileSlice<'_>, OutOfRange> {
        let (region, offset) = self.find(address).ok_or(OutOfRange)?;
        let count = (length as u64).min(region.length - offset) as usize;
        GuestMemoryRegion::get_slice(region.map.as_ref(), MemoryRegionAddress(offset), count)
            .map_err(|_| OutOfRange)
    }

    /// Calls `access` for each part of `address .. address + length` that lies in one
    /// region, with its offsets from `address`; for none if not all of it is memory.
    #[inline]
    fn by_piece(
        &self,
        address: u64,
        length: usize,
        mut access: impl FnMut(Range<usize>, VolatileSlice<'_>) -> Result<(), VolatileMemoryError>,
    ) -> Result<(), OutOfRange> {
        self.check(address, length)?;
        let mut done = 0;
        while done < length {
            let piece = self.piece(address + done as u64, length - done)?;
            let end = done + piece.len();
            access(done..end, piece).map_err(|_| OutOfRange)?;
            done = end;
        }
        Ok(())
    }

    /// Checks the whole range before the first byte of it is accessed.
    fn check(&self, address: u64, length: usize) -> Result<(), OutOfRange> {
        let inside = self.contains(address, length as u64);
        inside.then_some(()).ok_or(OutOfRange)
    }
}

impl HostMemory for GuestMemory {
    fn contains(&self, address: u64, length: u64) -> bool {
        let Some(end) = address.checked_add(length) else {
            return false;
        };
        let mut at = address;
        while at < end {
            let Some((region, offset)) = self.find(at) else {
                return false;
            };
            at += region.length - offset;
        }
        true
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        self.by_piece(address, bytes.len(), |range, piece| {
            piece.read_slice(&mut bytes[range], 0)
        })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.by_piece(address, bytes.len(), |range, piece| {
            piece.write_slice(&bytes[range], 0)
        })
    }

    /// Partner: the release store of the process that writes the word.
    fn load_u64(&self, address: u64) -> Result<u64, OutOfRange> {
        let piece = self.piece(address, size_of::<u64>())?;
        let word = piece.load::<u64>(0, Ordering::Acquire);
        word.map(u64::from_le).map_err(|_| OutOfRange)
    }

    /// Partner: the acquire load of the process that reads the word.
    fn store_u64(&self, address: u64, value: u64) -> Result<(), OutOfRange> {
        let piece = self.piece(address, size_of::<u64>())?;
        piece
            .store(value.to_le(), 0, Ordering::Release)
            .map_err(|_| OutOfRange)
    }

    fn store_words(&self, address: u64, words: &[u64]) -> Result<(), OutOfRange> {
        let piece = self.piece(address, size_of_val(words))?;
        for (index, word) in words.iter().enumerate() {
            piece
                .store(word.to_le(), index * size_of::<u64>(), Ordering::Relaxed)
                .map_err(|_| OutOfRange)?;
        }
        Ok(())
    }

    /// A change is one instruction where the processor has one, else a bounded number of tries:
    /// so a guest that writes to the word all the time does not hold up its NIC. Partner of release
    /// and acquire: any other access to the word, by a processor of the guest or its NIC.
    fn modify(&self, address: u64, width: Width, change: Change) -> Result<u64, ModifyError> {
        macro_rules! modify {
            ($atomic:ty, $word:ty) => {{
                let piece = self.piece(address, width.bytes())?;
                let word: &$atomic = piece.get_atomic_ref(0).map_err(|_| OutOfRange)?;
                let before = match change {
                    Change::Add(value) => word.fetch_add(value as $word, Ordering::AcqRel),
                    Change::Swap(new) => word.swap(new as $word, Ordering::AcqRel),
                    Change::CompareSwap { expected, new } => word
                        .compare_exchange(
                            expected as $word,
                            new as $word,
                            Ordering::AcqRel,
                            Ordering::Acquire,
                        )
                        .unwrap_or_else(|before| before),
                    computed => {
                        let after = |before: $word| computed.after(width, before.into()) as $word;
                        let mut before = word.load(Ordering::Acquire);
                        let mut tries = 0..MODIFY_TRIES;
                        while let Err(present) = word.compare_exchange(
                            before,
                            after(before),
                            Ordering::AcqRel,
                            Ordering::Acquire,
                        ) {
                            tries.next().ok_or(ModifyError::Contended)?;
                            before = present;
                        }
                        before
                    }
                };
                Ok(before.into())
            }};
        }
        match width {
            Width::Four => modify!(AtomicU32, u32),
            Width::Eight => modify!(AtomicU64, u64),
        }
    }

    fn copy_from(
        &self,
        address: u64,
        source: &Self,
        source_address: u64,
        length: usize,
    ) -> Result<(), OutOfRange> {
        self.check(address, length)?;
        source.check(source_address, length)?;
        let mut done = 0;
        while done < length {
            let from = source.piece(source_address + done as u64, length - done)?;
            let into = self.piece(address + done as u64, from.len())?;
            from.copy_to_volatile_slice(into);
            done += into.len().min(from.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qnic_nic::env::Number;
    use std::cmp;
    use vm_memory::GuestAddress;

    /// Two regions that touch, and one behind a hole.
    const LAYOUT: [(u64, usize); 3] = [(0x1000, 0x1000), (0x2000, 0x2000), (0x8000, 0x1000)];

    fn map((start, length): (u64, usize)) -> Arc<GuestRegionMmap> {
        Arc::new(GuestRegionMmap::from_range(GuestAddress(start), length, None).unwrap())
    }

    fn memory() -> GuestMemory {
        GuestMemory::new(LAYOUT.into_iter().rev().map(map).collect()).unwrap()
    }

    fn inside(address: u64, length: u64) -> bool {
        let end = u128::from(address) + u128::from(length);
        let byte = |at: u128| (0x1000..0x4000).contains(&at) || (0x8000..0x9000).contains(&at);
        length == 0
            || (byte(u128::from(address)) && byte(end - 1) && (end <= 0x4000 || address >= 0x8000))
    }

    #[test]
    fn overlapping_regions_are_refused() {
        let both = [(0, 0x2000), (0x1000, 0x2000)].map(map).into();
        let refused = GuestMemory::new(both).unwrap_err();
        assert_eq!(refused.to_string(), table::OVERLAP);
    }

    #[test]
    fn nothing_is_in_no_memory() {
        let none = GuestMemory::default();
        assert_eq!(none.end(), 0);
        assert!(!none.contains(0, 1));
        assert_eq!(none.store_u64(0, 1), Err(OutOfRange));
        assert_eq!(memory().end(), 0x9000);
    }

    #[test]
    fn a_copy_within_one_memory_may_overlap() {
        let memory = memory();
        memory.write(0x1f00, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
        memory.copy_from(0x1f02, &memory, 0x1f00, 9).unwrap();
        let mut seen = [0; 11];
        memory.read(0x1f00, &mut seen).unwrap();
        assert_eq!(seen, [1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn words_must_be_aligned_and_inside() {
        let memory = memory();
        assert_eq!(memory.store_u64(0x1008, 5), Ok(()));
        for address in [0x1004, 0x1001, 0xffc, 0x4000, 0x8ffc, u64::MAX - 6] {
            assert_eq!(
                memory.modify(address, Width::Eight, Change::Swap(5)),
                Err(ModifyError::OutOfRange),
            );
            assert_eq!(
                memory.store_u64(address, 5),
                Err(OutOfRange),
                "{address:#x}"
            );
        }
    }

    fn any_change() -> impl Strategy<Value = Change> {
        let small = || prop_oneof![0u64..3, any::<u64>()];
        prop_oneof![
            small().prop_map(Change::Add),
            small().prop_map(Change::Swap),
            (small(), small()).prop_map(|(expected, new)| Change::CompareSwap { expected, new }),
            ((small(), small()), (small(), small()))
                .prop_map(|(expected, new)| Change::MaskedCompareSwap { expected, new }),
            small().prop_map(Change::And),
            small().prop_map(Change::Xor),
            small().prop_map(|value| Change::Extreme(Number::Signed, cmp::Ordering::Less, value)),
            small().prop_map(Change::AddFloat),
        ]
    }

    /// Two threads change one word; none of the changes is lost.
    #[test]
    fn changes_are_atomic_to_other_processors() {
        const ROUNDS: u64 = 200_000;
        let ours = memory();
        // The engine's view and another one of the same memory.
        let map = ours.regions[0].map.clone();
        let other = std::thread::spawn(move || {
            let slice = map.get_slice(MemoryRegionAddress(64), 8).unwrap();
            let word: &AtomicU64 = slice.get_atomic_ref(0).unwrap();
            for _ in 0..ROUNDS {
                word.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..ROUNDS {
            ours.modify(0x1040, Width::Eight, Change::Add(1)).unwrap();
            // Computed, not one instruction: it is tried again, and given up if the other is always first.
            let flip = || ours.modify(0x1040, Width::Eight, Change::Xor(1 << 63));
            while flip() == Err(ModifyError::Contended) {}
        }
        other.join().unwrap();
        let total = ours.modify(0x1040, Width::Eight, Change::Add(0));
        assert_eq!(total, Ok(2 * ROUNDS));
    }

    proptest! {
        /// Changes agree with what they say of themselves, and touch no neighbour.
        #[test]
        fn changes_are_exact(
            changes in prop::collection::vec((any::<bool>(), 0u64..4, any_change()), 1..50),
        ) {
            let (memory, oracle) = (memory(), std::cell::RefCell::new([0u8; 32]));
            for (wide, index, change) in changes {
                let width = if wide { Width::Eight } else { Width::Four };
                let start = index as usize * width.bytes();
                let word = start..start + width.bytes();
                let before = change.apply(width, &mut oracle.borrow_mut()[word]);
                let address = 0x3fe0 + start as u64;
                prop_assert_eq!(memory.modify(address, width, change), Ok(before));
                let mut now = [0; 32];
                memory.read(0x3fe0, &mut now).unwrap();
                prop_assert_eq!(&now, &*oracle.borrow());
            }
        }

        /// An access succeeds exactly when all of its bytes are memory; what is
        /// written is what is read, across region borders too, and a refused
        /// write changes nothing.
        #[test]
        fn accesses_are_bounded(address in prop_oneof![0u64..0xa000, any::<u64>()], bytes in prop::collection::vec(any::<u8>(), 0..0x3000)) {
            let memory = memory();
            let length = bytes.len() as u64;
            prop_assert_eq!(memory.contains(address, length), inside(address, length));
            let written = memory.write(address, &bytes);
            prop_assert_eq!(written.is_ok(), inside(address, length));
            let mut back = vec![0; bytes.len()];
            prop_assert_eq!(memory.read(address, &mut back).is_ok(), written.is_ok());
            if written.is_ok() {
                prop_assert_eq!(&back, &bytes);
            } else {
                let mut all = [1; 0x1000];
                for page in [0x1000, 0x2000, 0x3000, 0x8000] {
                    memory.read(page, &mut all).unwrap();
                    prop_assert!(all.iter().all(|byte| *byte == 0));
                }
            }
        }

        /// Words of one page stand where they belong, little-endian; none is stored elsewhere.
        #[test]
        fn words_are_exact(page in 0u64..10, word in 0u64..=500, words in prop::collection::vec(any::<u64>(), 1..=12), off in 0u64..8) {
            let memory = memory();
            let address = page * 0x1000 + word * 8 + off;
            let length = words.len() as u64 * 8;
            let fits = off == 0 && inside(address, length);
            prop_assert_eq!(memory.store_words(address, &words).is_ok(), fits);
            if fits {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let mut around = vec![0; bytes.len() + 16];
                for (at, bytes) in (address - 8..).step_by(8).zip(around.chunks_mut(8)) {
                    prop_assert_eq!(memory.read(at, bytes).is_ok(), inside(at, 8));
                }
                prop_assert_eq!(&around[8..8 + bytes.len()], &bytes[..]);
                prop_assert!(around[..8].iter().chain(&around[8 + bytes.len()..]).all(|byte| *byte == 0));
            }
        }

        /// Guest to guest, any alignment, across borders of either side.
        #[test]
        fn copies_are_exact(from in 0xff0u64..0x4010, to in 0xff0u64..0x4010, length in 0usize..0x2100) {
            let (source, target) = (memory(), memory());
            let pattern: Vec<u8> = (0..0x3000u32).map(|n| (n % 251) as u8).collect();
            source.write(0x1000, &pattern).unwrap();
            let copied = target.copy_from(to, &source, from, length);
            let fits = inside(from, length as u64) && inside(to, length as u64);
            prop_assert_eq!(copied.is_ok(), fits);
            if fits {
                let mut seen = vec![0; length];
                target.read(to, &mut seen).unwrap();
                let start = (from - 0x1000) as usize;
                prop_assert_eq!(&seen[..], &pattern[start..start + length]);
            }
        }
    }
}
