//! The driver's side of a split virtqueue.
//!
//! Chains are fixed when the ring is made: each is a sequence of descriptors over
//! buffers that never move, so adding one means storing its number. The device may
//! write anything into the used ring: each returned number is checked.
//!
//! ```text
//!   descriptors  16 bytes each      driver writes once
//!   available    flags idx ring[]   driver writes
//!   used         flags idx ring[]   device writes
//! ```
//!
//! The queue of crate `virtio-drivers` cannot be used: its memory interface (`Hal`) is a
//! type without a value, one for the whole program, while a process has one arena for
//! each of its nodes. The mock of crate `virtio-queue` (feature `test-utils`)
//! only writes descriptors for tests of devices and never consumes the used ring.

use std::sync::Arc;

use qnic_abi::shared::Ordering;
use qnic_abi::{SharedMemory, PAGE_SIZE};
use qnic_shared::region::SharedRegion;

use crate::arena::Arena;
use crate::error::HostError;
use crate::transport::Virtqueue;

/// Descriptor flag: another one follows.
const NEXT: u16 = 1;
/// Descriptor flag: the device writes.
const WRITE: u16 = 2;
/// Flag of the used ring: the device wants no kick.
const NO_NOTIFY: u16 = 1;

const DESCRIPTOR_BYTES: usize = 16;

/// A buffer of a chain: one descriptor, with its length in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buffer {
    /// The device reads it.
    Read(usize),
    /// The device writes it.
    Written(usize),
}

/// The device returned a chain that was not available to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device returned chain {0}, which it does not hold")]
pub(crate) struct BadChain(pub(crate) u32);

/// A ring and the memory of its buffers.
#[derive(Debug)]
pub(crate) struct Ring {
    rings: SharedRegion,
    /// Memory of the buffers.
    pub(crate) buffers: SharedRegion,
    /// What the device is told of it.
    virtqueue: Virtqueue,
    /// Number of descriptors.
    size: u16,
    chain_length: u16,
    next_available: u16,
    last_used: u16,
    /// Chains that the device holds.
    held: Vec<bool>,
}

impl Ring {
    /// A ring of up to `chains` chains (a power of two) and `size_max` descriptors, each chain with the
    /// buffers of `chain` (one or two), whose lengths divide the page. All buffers are adjacent; the
    /// ring has a page of its own.
    pub(crate) fn new(
        arena: &Arc<Arena>,
        chains: u16,
        size_max: u16,
        chain: &[Buffer],
    ) -> Result<Self, HostError> {
        let bytes = chain.iter().map(|buffer| match buffer {
            Buffer::Read(length) | Buffer::Written(length) => length,
        });
        let chain_bytes: usize = bytes.sum();
        let chain_length = chain.len() as u16;
        let chains = chains.min(size_max / chain_length);
        let size = chains * chain_length;
        debug_assert!(size.is_power_of_two());
        debug_assert!(used_offset(size) + 4 + 8 * usize::from(size) <= PAGE_SIZE);
        let buffers = arena.allocate_for_good(usize::from(chains) * chain_bytes)?;
        let rings = arena.allocate_for_good(used_offset(size) + 4 + 8 * usize::from(size))?;
        let mut offset = 0;
        for number in 0..chains {
            for (index, buffer) in (0..).zip(chain) {
                let (length, access) = match *buffer {
                    Buffer::Read(length) => (length as u32, 0),
                    Buffer::Written(length) => (length as u32, WRITE),
                };
                let last = index + 1 == chain_length;
                let flags = access | if last { 0 } else { NEXT };
                let number = number * chain_length + index;
                let descriptor = usize::from(number) * DESCRIPTOR_BYTES;
                let address = arena.physical(&buffers.part(offset, length as usize));
                rings.store_u64(descriptor, address, Ordering::Relaxed);
                rings.store_u32(descriptor + 8, length, Ordering::Relaxed);
                rings.store_u16(descriptor + 12, flags, Ordering::Relaxed);
                let next = if last { 0 } else { number + 1 };
                rings.store_u16(descriptor + 14, next, Ordering::Relaxed);
                offset += length as usize;
            }
        }
        let base = arena.physical(&rings);
        let parts = [0, available_offset(size), used_offset(size)];
        let virtqueue = Virtqueue {
            size,
            addresses: parts.map(|offset| base + offset as u64),
            interrupts: true,
        };
        Ok(Ring {
            rings,
            virtqueue,
            buffers,
            size,
            chain_length,
            next_available: 0,
            last_used: 0,
            held: vec![false; usize::from(chains)],
        })
    }

    /// Number of chains.
    pub(crate) fn chains(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn virtqueue(&self) -> Virtqueue {
        self.virtqueue
    }

    /// Makes a chain available that the device does not hold. Returns true if the
    /// device wants a kick.
    pub(crate) fn add(&mut self, chain: usize) -> bool {
        self.held[chain] = true;
        let available = available_offset(self.size);
        let entry = available + 4 + usize::from(self.next_available % self.size) * 2;
        let head = chain as u16 * self.chain_length;
        self.rings.store_u16(entry, head, Ordering::Relaxed);
        self.next_available = self.next_available.wrapping_add(1);
        // Release: buffer and ring entry in front of the index (partner: the
        // device's acquire load of the index).
        let index = self.next_available;
        self.rings
            .store_u16(available + 2, index, Ordering::Release);
        // Partner: the device's fence between its store to the used flags and its
        // last load of the available index.
        self.rings.fence();
        let used = used_offset(self.size);
        self.rings.load_u16(used, Ordering::Relaxed) & NO_NOTIFY == 0
    }

    /// Takes the next chain from the used ring.
    ///
    /// # Errors
    /// [`BadChain`]: the device is broken, and the ring must not be used further.
    pub(crate) fn pop_used(&mut self) -> Result<Option<usize>, BadChain> {
        let used = used_offset(self.size);
        // Acquire: ring entry and buffer behind the index (partner: the device's
        // release store of the index).
        let index = self.rings.load_u16(used + 2, Ordering::Acquire);
        if index == self.last_used {
            return Ok(None);
        }
        let entry = used + 4 + usize::from(self.last_used % self.size) * 8;
        let head = self.rings.load_u32(entry, Ordering::Relaxed);
        self.last_used = self.last_used.wrapping_add(1);
        let length = u32::from(self.chain_length);
        let chain = (head / length) as usize;
        match self.held.get_mut(chain) {
            Some(held) if *held && head % length == 0 => {
                *held = false;
                Ok(Some(chain))
            }
            _ => Err(BadChain(head)),
        }
    }
}

fn available_offset(size: u16) -> usize {
    usize::from(size) * DESCRIPTOR_BYTES
}

fn used_offset(size: u16) -> usize {
    (available_offset(size) + 4 + 2 * usize::from(size)).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Addresses;
    use proptest::prelude::*;
    use virtio_queue::{Queue, QueueOwnedT, QueueT};
    use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

    const BUFFERS: [Buffer; 2] = [Buffer::Read(16), Buffer::Written(16)];

    /// The device's side of a ring, by crate `virtio-queue`.
    struct Device {
        memory: GuestMemoryMmap,
        queue: Queue,
    }

    impl Device {
        fn new(arena: &Arena, ring: &Ring) -> Self {
            let file = std::fs::File::from(arena.file.try_clone().unwrap());
            let file = vm_memory::FileOffset::new(file, 0);
            let range = (GuestAddress(0), arena.size(), Some(file));
            let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
            let mut queue = Queue::new(256).unwrap();
            queue.try_set_size(ring.size).unwrap();
            let [descriptors, available, used] = ring.virtqueue().addresses.map(GuestAddress);
            queue.try_set_desc_table_address(descriptors).unwrap();
            queue.try_set_avail_ring_address(available).unwrap();
            queue.try_set_used_ring_address(used).unwrap();
            queue.set_ready(true);
            assert!(queue.is_valid(&memory));
            Device { memory, queue }
        }

        /// Takes a chain and responds with its request, one added to every byte.
        fn take(&mut self) -> Option<u16> {
            let chain = self.queue.iter(&self.memory).unwrap().next()?;
            let head = chain.head_index();
            let buffers: Vec<_> = chain.collect();
            assert_eq!(buffers.len(), 2);
            assert!(!buffers[0].is_write_only() && buffers[1].is_write_only());
            let mut bytes = [0; 16];
            let memory = &self.memory;
            memory.read_slice(&mut bytes, buffers[0].addr()).unwrap();
            let response = bytes.map(|byte| byte.wrapping_add(1));
            memory.write_slice(&response, buffers[1].addr()).unwrap();
            Some(head)
        }

        fn complete(&mut self, head: u16) {
            self.queue.add_used(&self.memory, head, 16).unwrap();
        }
    }

    proptest! {
        /// Chains added, and used in any order, against an independent device.
        #[test]
        fn requests_get_their_responses(
            steps in proptest::collection::vec((any::<bool>(), any::<usize>()), 0..400),
        ) {
            let arena = Arena::new(16 * PAGE_SIZE, |_, _| Ok(Addresses::Offsets)).unwrap();
            let mut ring = Ring::new(&arena, 8, 256, &BUFFERS).unwrap();
            let mut device = Device::new(&arena, &ring);
            let mut free: Vec<usize> = (0..ring.chains()).collect();
            let (mut taken, mut number) = (Vec::new(), 0u8);
            let mut expected = [0u8; 8];
            for (add, pick) in steps {
                if add && !free.is_empty() {
                    let chain = free.swap_remove(pick % free.len());
                    number = number.wrapping_add(1);
                    ring.buffers.write_bytes(chain * 32, &[number; 16]);
                    expected[chain] = number.wrapping_add(1);
                    prop_assert!(ring.add(chain));
                } else {
                    taken.extend(device.take());
                    if !taken.is_empty() {
                        device.complete(taken.swap_remove(pick % taken.len()));
                        let chain = ring.pop_used().unwrap().unwrap();
                        let mut response = [0; 16];
                        ring.buffers.read_bytes(chain * 32 + 16, &mut response);
                        prop_assert_eq!(response, [expected[chain]; 16]);
                        free.push(chain);
                    }
                    prop_assert_eq!(ring.pop_used(), Ok(None));
                }
            }
        }
    }

    /// A device process finds the connection closed a while after the node has gone. Zeroes in the ring
    /// were more entries than the queue has.
    #[test]
    fn a_ring_outlives_its_driver_for_a_device_that_still_looks() {
        let arena = Arena::new(16 * PAGE_SIZE, |_, _| Ok(Addresses::Offsets)).unwrap();
        let mut ring = Ring::new(&arena, 8, 256, &BUFFERS).unwrap();
        let mut device = Device::new(&arena, &ring);
        (0..8).for_each(|chain| assert!(ring.add(chain)));
        (0..8).for_each(|_| assert!(device.take().is_some()));
        drop(ring);
        assert_eq!(device.take(), None);
    }

    #[test]
    fn kicks_are_left_out_when_the_device_says_so() {
        let arena = Arena::new(16 * PAGE_SIZE, |_, _| Ok(Addresses::Offsets)).unwrap();
        let mut ring = Ring::new(&arena, 8, 256, &BUFFERS).unwrap();
        let mut device = Device::new(&arena, &ring);
        device.queue.disable_notification(&device.memory).unwrap();
        assert!(!ring.add(0));
        device.queue.enable_notification(&device.memory).unwrap();
        assert!(ring.add(1));
    }

    #[test]
    fn a_device_that_returns_nonsense_is_detected() {
        for head in [2, 3, 16, u32::MAX] {
            let arena = Arena::new(16 * PAGE_SIZE, |_, _| Ok(Addresses::Offsets)).unwrap();
            let mut ring = Ring::new(&arena, 8, 256, &BUFFERS).unwrap();
            ring.add(0);
            let used = used_offset(ring.size);
            ring.rings.store_u32(used + 4, head, Ordering::Relaxed);
            ring.rings.store_u16(used + 2, 1, Ordering::Release);
            assert_eq!(ring.pop_used(), Err(BadChain(head)));
        }
    }
}
