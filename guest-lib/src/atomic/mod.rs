//! Atomic operations on words of remote memory (N20), executed by the NIC of the
//! node that owns them.
//!
//! ```text
//!   thread: record ──► command ──► …  owner's NIC: change  … ──► record, completion
//! ```
//! Each incomplete command has a result record of its own. A thread has one command at a
//! time, and waits for it. A thread that stops waiting leaves the record to its command.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use qnic_abi::atomic::{AtomicCommand, Function, OPCODE};
use qnic_abi::command::{CommandBody, CommandFlags};
use qnic_abi::host_area::result_offset;
use qnic_abi::shared::Ordering;

use crate::core::tracker::Issued;
use crate::core::{Core, IssueOptions};
use crate::endpoint::Endpoint;
use crate::error::{Error, Operation, Result};
use crate::memory::RemoteSegment;
use crate::rdma::Ticket;

/// The memory of an atomic operation: where it is, and how many bytes.
#[derive(Debug, Clone)]
pub(crate) struct Operand {
    core: Arc<Core>,
    segment: RemoteSegment,
    offset: u64,
    length: u64,
    /// How long an operation is waited for.
    timeout: Option<Duration>,
}

impl Operand {
    pub(crate) fn new(
        core: &Arc<Core>,
        segment: &RemoteSegment,
        offset: u64,
        length: u64,
    ) -> Result<Self> {
        segment.check(offset, length)?;
        Error::check_alignment(segment.address() + offset, offset, length)?;
        Ok(Operand {
            core: core.clone(),
            segment: segment.clone(),
            offset,
            length,
            timeout: None,
        })
    }

    /// Executes one operation; returns value and detail.
    pub(crate) fn execute(&self, function: Function, operands: [u64; 2]) -> Result<(u64, u64)> {
        let (core, segment) = (&*self.core, &self.segment);
        let deadline = core.deadline(self.timeout);
        let has_ended = |issued: &Issued| core.is_complete(issued.mark).unwrap_or(true);
        let record = core.records.take(|| core.is_over(deadline), has_ended);
        let record = record.ok_or(Error::QueueFull)?;
        let (target, summary) = segment.describe(Operation::Atomic, self.offset, self.length)?;
        let mut command = AtomicCommand::command();
        command.header = target.header;
        command.header.opcode = OPCODE;
        command.header.flags = CommandFlags::PUBLISH.bits();
        command.remote_address = target.address.into();
        command.remote_key = target.key.into();
        command.remote_segment = target.segment.into();
        command.operands = operands.map(Into::into);
        command.length = (self.length as u32).into();
        command.function = (function as u16).into();
        command.record = record.number.into();
        let options = IssueOptions::CLAIMED.until(deadline);
        let issued = core.issue(&command.descriptor(), &[], summary, options)?;
        let waited = Ticket::new(core, issued).wait_until(deadline);
        if matches!(waited, Err(Error::TimedOut)) {
            record.make_late(issued);
            return Err(Error::TimedOut);
        }
        waited?;
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

    macro_rules! bits {
        ($($word:ty),*) => {
            $(impl Bits for $word {
                const BYTES: u64 = size_of::<$word>() as u64;
                fn widen(self) -> u64 {
                    self.into()
                }
                fn narrow(word: u64) -> Self {
                    word as $word
                }
            })*
        };
    }

    bits!(u32, u64);
}

/// A word in an imported segment that is changed atomically (N20).
///
/// Every method is one command and waits for its result. The NIC of the owner executes
/// it: exactly once if the method returns `Ok`, once or not at all after an error of the
/// transfer. All commands on one word take effect one after the other, those of each
/// process in the order of its calls.
///
/// A process uses this type for its own words too, by an import of its own segment. Its
/// plain aligned loads ([`crate::Buffer::load_u64`]) see each change whole.
///
/// An atomic operation does not wait for writes that were issued before it. A program
/// flushes them first if the operation announces them to others.
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

    /// The same word; each operation is waited for up to `timeout` in all.
    ///
    /// [`Error::QueueFull`]: it was not issued. [`Error::TimedOut`]: it goes on, and is
    /// executed once or not at all. Its result is lost; the next
    /// [`flush_reads`](Endpoint::flush_reads) waits for its end and reports its failure.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.operand.timeout = Some(timeout);
        self
    }

    fn call(&self, function: Function, operands: [u64; 2]) -> Result<T> {
        let (before, _) = self.operand.execute(function, operands)?;
        Ok(T::narrow(before))
    }

    /// Loads it.
    pub fn load(&self) -> Result<T> {
        self.call(Function::FetchAdd, [0, 0])
    }

    /// Sets it to one if it is zero; returns true if it did (testandset).
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
