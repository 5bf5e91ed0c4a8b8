//! Atomic operations on words of remote memory (N20), executed by the NIC of the
//! node that owns them.
//!
//! ```text
//!   thread: record ──► command ──► …  owner's NIC: change  … ──► record, completion
//! ```
//! Each command that is under way has a result record of its own; a thread has one
//! command under way at most, and waits for it.

use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex};

use qnic_abi::atomic::Function;
use qnic_abi::command::{CommandFlags, Opcode};
use qnic_abi::host_area::{result_offset, RESULT_RECORDS};
use qnic_abi::shared::Ordering;

use crate::core::{lock, Core};
use crate::endpoint::Endpoint;
use crate::error::{Error, Operation, Result};
use crate::memory::segment::RemoteSegment;
use crate::rdma::ticket::Ticket;
use crate::rdma::transfer::{remote, summary};

/// Result records that are free: bit *i* for record *i*.
#[derive(Debug)]
pub(crate) struct Records {
    free: Mutex<u64>,
    given_back: Condvar,
}

const _: () = assert!(RESULT_RECORDS == u64::BITS as usize);

/// A record that belongs to one command.
struct Record<'a> {
    records: &'a Records,
    number: u16,
}

impl Records {
    pub(crate) fn new() -> Self {
        Records {
            free: Mutex::new(u64::MAX),
            given_back: Condvar::new(),
        }
    }

    /// Takes a record; waits while commands of other threads have all of them.
    fn take(&self) -> Record<'_> {
        let mut free = lock(&self.free);
        while *free == 0 {
            let woken = self.given_back.wait(free);
            free = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        let number = free.trailing_zeros();
        *free &= !(1 << number);
        Record {
            records: self,
            number: number as u16,
        }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        *lock(&self.records.free) |= 1 << self.number;
        self.records.given_back.notify_one();
    }
}

/// Where an atomic operation works, and on how many bytes.
#[derive(Debug, Clone)]
pub(crate) struct Operand {
    core: Arc<Core>,
    segment: RemoteSegment,
    offset: u64,
    length: u64,
}

impl Operand {
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]
    pub(crate) fn new(
        core: &Arc<Core>,
        segment: &RemoteSegment,
        offset: u64,
        length: u64,
    ) -> Result<Self> {
        segment.check(offset, length)?;
        if segment.address().wrapping_add(offset) % length != 0 {
            return Err(Error::Misaligned {
                offset,
                width: length,
            });
        }
        Ok(Operand {
            core: core.clone(),
            segment: segment.clone(),
            offset,
            length,
        })
    }

    /// Executes one operation; returns value and detail.
    pub(crate) fn execute(&self, function: Function, operands: [u64; 2]) -> Result<(u64, u64)> {
        let core = &*self.core;
        let record = core.records.take();
        let mut descriptor = remote(&self.segment, self.offset, self.length)?;
        descriptor.opcode = Opcode::Atomic as u8;
        descriptor.flags = CommandFlags::PUBLISH.bits();
        descriptor.function = (function as u16).into();
        descriptor.local_address = operands[0].into();
        descriptor.local_key = operands[1].into();
        descriptor.local_segment = record.number.into();
        let summary = summary(Operation::Atomic, &self.segment, self.offset, self.length);
        let issued = core.issue(&descriptor, &[], summary, true)?;
        Ticket::new(core, issued).wait()?;
        // Relaxed: ordered behind the acquire load of the completion counter, whose
        // partner is the NIC's release store behind those of the record.
        let offset = result_offset(usize::from(record.number));
        let word = |at| core.process.host_area().load_u64(at, Ordering::Relaxed);
        Ok((word(offset), word(offset + 8)))
    }
}

/// An integer that a [`RemoteWord`] can hold: `u32` or `u64`.
pub trait Word: Copy + sealed::Bits {}

impl Word for u32 {}
impl Word for u64 {}

mod sealed {
    pub trait Bits {
        const BYTES: u64;
        fn widen(self) -> u64;
        fn narrow(word: u64) -> Self;
    }

    impl Bits for u32 {
        const BYTES: u64 = 4;
        fn widen(self) -> u64 {
            self.into()
        }
        fn narrow(word: u64) -> Self {
            word as u32
        }
    }

    impl Bits for u64 {
        const BYTES: u64 = 8;
        fn widen(self) -> u64 {
            self
        }
        fn narrow(word: u64) -> Self {
            word
        }
    }
}

/// A word in an imported segment that is changed atomically (N20).
///
/// Every method is one command and waits for its result. The NIC of the owner
/// executes it, exactly once if the method returns `Ok`; after an error of the
/// transfer, once or not at all. All commands on one word take effect one after the
/// other, each process's in the order of its calls. A process uses this type for
/// its own words too, by an import of its own segment; its plain aligned loads
/// ([`crate::Buffer::load_u64`]) see each change whole. An atomic operation does
/// not wait for writes that were issued before it: flush them first if it tells
/// others that they are there.
///
/// # Errors
/// Those of all methods: [`Error::Transfer`], with `AccessDenied` unless the segment
/// grants reading and writing, and `PeerGone`, `NoSuchNode`, `NoSuchPort`,
/// `NoSuchSegment`, `BadKey` or `Aborted` when the owner is; [`Error::DeviceGone`],
/// [`Error::QueueFailed`], [`Error::QueueReset`].
#[derive(Debug, Clone)]
pub struct RemoteWord<T> {
    operand: Operand,
    word: PhantomData<fn() -> T>,
}

/// A remote word of 32 bits.
pub type RemoteU32 = RemoteWord<u32>;

/// A remote word of 64 bits.
pub type RemoteU64 = RemoteWord<u64>;

#[allow(clippy::missing_errors_doc)] // in the documentation of the type
impl<T: Word> RemoteWord<T> {
    pub(crate) fn new(core: &Arc<Core>, segment: &RemoteSegment, offset: u64) -> Result<Self> {
        Ok(RemoteWord {
            operand: Operand::new(core, segment, offset, T::BYTES)?,
            word: PhantomData,
        })
    }

    fn call(&self, function: Function, operands: [u64; 2]) -> Result<T> {
        let (before, _) = self.operand.execute(function, operands)?;
        Ok(T::narrow(before))
    }

    /// Loads it.
    pub fn load(&self) -> Result<T> {
        self.call(Function::FetchAdd, [0, 0])
    }

    /// Sets it to one if it is zero; says whether it did (testandset).
    pub fn test_and_set(&self) -> Result<bool> {
        let before = self.call(Function::TestAndSet, [0, 0])?;
        Ok(before.widen() == 0)
    }

    /// Adds one, wraps around, returns what it was (incr).
    pub fn increment(&self) -> Result<T> {
        self.call(Function::Increment, [0, 0])
    }

    /// Subtracts one, wraps around, returns what it was (decr).
    pub fn decrement(&self) -> Result<T> {
        self.call(Function::Decrement, [0, 0])
    }

    /// Adds, wraps around, returns what it was.
    pub fn fetch_add(&self, value: T) -> Result<T> {
        self.call(Function::FetchAdd, [value.widen(), 0])
    }

    /// Exchanges it, returns what it was (swap).
    pub fn swap(&self, new: T) -> Result<T> {
        self.call(Function::Swap, [new.widen(), 0])
    }

    /// Exchanges it if it is `expected`, returns what it was (cswap).
    pub fn compare_swap(&self, expected: T, new: T) -> Result<T> {
        self.call(Function::CompareSwap, [new.widen(), expected.widen()])
    }
}

impl Endpoint {
    /// A word of 32 bits of an imported segment, for atomic operations (N20).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]
    pub fn atomic_u32(&self, segment: &RemoteSegment, offset: u64) -> Result<RemoteU32> {
        RemoteWord::new(self.core(), segment, offset)
    }

    /// A word of 64 bits of an imported segment, for atomic operations (N20).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]
    pub fn atomic_u64(&self, segment: &RemoteSegment, offset: u64) -> Result<RemoteU64> {
        RemoteWord::new(self.core(), segment, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_words_can_be_used_by_many_threads() {
        fn shared<T: Send + Sync + Clone>() {}
        shared::<RemoteU32>();
        shared::<RemoteU64>();
    }

    #[test]
    fn each_record_is_taken_once_and_who_finds_none_waits() {
        let records = Records::new();
        let mut taken: Vec<_> = (0..RESULT_RECORDS).map(|_| records.take()).collect();
        let numbers: Vec<_> = taken.iter().map(|record| record.number).collect();
        assert_eq!(numbers, (0..RESULT_RECORDS as u16).collect::<Vec<_>>());
        std::thread::scope(|scope| {
            let late = scope.spawn(|| records.take().number);
            taken.swap_remove(17);
            assert_eq!(late.join().unwrap(), 17);
        });
    }
}
