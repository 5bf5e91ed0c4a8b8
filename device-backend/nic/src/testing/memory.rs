//! Memory of a simulated node.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{fence, AtomicU64, Ordering};

use qnic_abi::SharedMemory;

use crate::env::{Change, Host, HostMemory, ModifyError, OutOfRange, Time, Width};

/// A simulated SRAM. For one thread: 32-bit stores are not atomic to their
/// 64-bit neighbours.
#[derive(Debug)]
pub struct Sram {
    words: Vec<AtomicU64>,
}

impl Sram {
    /// An SRAM of so many bytes, zeroed.
    pub fn new(bytes: usize) -> Self {
        Sram {
            words: (0..bytes / 8).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The first byte of the first word of 64 bits that has one of these bits, of those in a range.
    ///
    /// # Panics
    /// If the range does not begin at such a word, or leaves the SRAM.
    pub fn first_set(&self, range: Range<usize>, bits: u64) -> Option<usize> {
        assert!(range.start % 8 == 0, "misaligned access at {range:x?}");
        let mut words = self.words[range.start / 8..range.end.div_ceil(8)].iter();
        let index = words.position(|word| word.load(Ordering::Relaxed) & bits != 0)?;
        Some(range.start + index * 8)
    }
}

impl SharedMemory for Sram {
    fn size(&self) -> usize {
        self.words.len() * 8
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        assert!(offset % 4 == 0, "misaligned access at {offset:#x}");
        (self.words[offset / 8].load(order) >> (offset % 8 * 8)) as u32
    }

    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        assert!(offset % 4 == 0, "misaligned access at {offset:#x}");
        let word = &self.words[offset / 8];
        let shift = offset % 8 * 8;
        let others = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        word.store(others | u64::from(value) << shift, order);
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        assert!(offset % 8 == 0, "misaligned access at {offset:#x}");
        self.words[offset / 8].load(order)
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        assert!(offset % 8 == 0, "misaligned access at {offset:#x}");
        self.words[offset / 8].store(value, order);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Memory of a simulated node, from address 0. Clones are the same memory.
#[derive(Debug, Clone)]
pub struct Memory {
    bytes: Rc<RefCell<Vec<u8>>>,
}

impl Memory {
    /// Memory of so many bytes, zeroed.
    pub fn new(bytes: usize) -> Self {
        Memory {
            bytes: Rc::new(RefCell::new(vec![0; bytes])),
        }
    }

    /// The aligned 64-bit word at an address.
    ///
    /// # Panics
    /// If it lies outside.
    pub fn word(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).expect("within memory");
        u64::from_le_bytes(bytes)
    }

    fn range(&self, address: u64, length: usize) -> Result<std::ops::Range<usize>, OutOfRange> {
        let start = usize::try_from(address).map_err(|_| OutOfRange)?;
        let end = start.checked_add(length).ok_or(OutOfRange)?;
        match end <= self.bytes.borrow().len() {
            true => Ok(start..end),
            false => Err(OutOfRange),
        }
    }
}

impl HostMemory for Memory {
    fn contains(&self, address: u64, length: u64) -> bool {
        usize::try_from(length).is_ok_and(|length| self.range(address, length).is_ok())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        let range = self.range(address, bytes.len())?;
        bytes.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        let range = self.range(address, bytes.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(bytes);
        Ok(())
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
        match address % 8 {
            0 => self.write(address, &value.to_le_bytes()),
            _ => Err(OutOfRange),
        }
    }

    fn modify(&self, address: u64, width: Width, change: Change) -> Result<u64, ModifyError> {
        let range = self.range(address, width.bytes())?;
        if address % width.bytes() as u64 != 0 {
            return Err(ModifyError::OutOfRange);
        }
        Ok(change.apply(width, &mut self.bytes.borrow_mut()[range]))
    }

    fn copy_from(
        &self,
        address: u64,
        source: &Self,
        source_address: u64,
        length: usize,
    ) -> Result<(), OutOfRange> {
        let from = source.range(source_address, length)?;
        let to = self.range(address, length)?;
        if std::ptr::eq(self, source) {
            self.bytes.borrow_mut().copy_within(from, to.start);
        } else {
            self.bytes.borrow_mut()[to].copy_from_slice(&source.bytes.borrow()[from]);
        }
        Ok(())
    }
}

/// A simulated node.
#[derive(Debug)]
pub struct SimHost {
    /// Its NIC's SRAM.
    pub sram: Sram,
    /// Its memory.
    pub memory: Memory,
    /// What its clock shows.
    pub clock: Cell<Time>,
}

impl SimHost {
    /// A node whose clock stands at zero.
    pub fn new(sram: Sram, memory: Memory) -> Self {
        SimHost {
            sram,
            memory,
            clock: Cell::default(),
        }
    }
}

impl Host for SimHost {
    type Sram = Sram;
    type Memory = Memory;

    fn sram(&self) -> &Sram {
        &self.sram
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn clock(&self) -> Option<Time> {
        Some(self.clock.get())
    }
}
