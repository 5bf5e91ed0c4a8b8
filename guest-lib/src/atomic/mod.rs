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

use crate::core::tracker::{Issued, Summary};
use crate::core::{Core, IssueOptions};
use crate::endpoint::Endpoint;
use crate::error::{Error, Operation, Result};
use crate::memory::RemoteSegment;
use crate::rdma::Ticket;
use crate::request::Request;

/// The memory of an atomic operation: where it is, and how many bytes.
#[derive(Debug, Clone)]
pub(crate) struct Operand {
    core: Arc<Core>,
    segment: RemoteSegment,
    offset: u64,
    length: u64,
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
        })
    }

    /// An operation as a command, and what is said of it if it fails.
    fn command(&self, function: Function, operands: [u64; 2]) -> Result<(AtomicCommand, Summary)> {
        let (segment, length) = (&self.segment, self.length);
        let (target, summary) = segment.describe(Operation::Atomic, self.offset, length)?;
        let mut command = AtomicCommand::command();
        command.header = target.header;
        command.header.opcode = OPCODE;
        command.remote_address = target.address.into();
        command.remote_key = target.key.into();
        command.remote_segment = target.segment.into();
        command.operands = operands.map(Into::into);
        command.length = (length as u32).into();
        command.function = (function as u16).into();
        Ok((command, summary))
    }

    /// Executes one operation; returns value and detail.
    pub(crate) fn execute(
        &self,
        function: Function,
        operands: [u64; 2],
        timeout: Option<Duration>,
    ) -> Result<(u64, u64)> {
        let (core, segment) = (&*self.core, &self.segment);
        let deadline = core.deadline(timeout);
        let has_ended = |issued: &Issued| core.is_complete(issued.mark).unwrap_or(true);
        let is_over = || core.is_over(deadline);
        let destination = (segment.node(), segment.port());
        let record = core.records.take(destination, is_over, has_ended);
        let record = record.ok_or(Error::QueueFull)?;
        let (mut command, summary) = self.command(function, operands)?;
        command.header.flags = CommandFlags::PUBLISH.bits();
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
pub trait Word: Copy + sealed::Bits + sealed::Value {}

impl Word for u32 {}
impl Word for u64 {}

mod sealed {
    /// An operand of the NIC.
    pub trait Bits {
        const BYTES: u64;
        fn widen(self) -> u64;
    }

    /// What a program gets of what a word was.
    pub trait Value {
        fn of(before: u64) -> Self;
    }

    macro_rules! words {
        ($($word:ty),*) => {
            $(impl Bits for $word {
                const BYTES: u64 = size_of::<$word>() as u64;
                fn widen(self) -> u64 {
                    self.into()
                }
            }

            impl Value for $word {
                fn of(before: u64) -> Self {
                    before as $word
                }
            })*
        };
    }

    words!(u32, u64);

    impl Value for bool {
        fn of(before: u64) -> Self {
            before == 0
        }
    }
}

/// A word in an imported segment that is changed atomically (N20).
///
/// Every method describes one operation, which is executed by [`AtomicOperation::wait`]. The NIC of
/// the owner executes it: exactly once if that returns `Ok`, once or not at all after an error of
/// the transfer. All operations on one word take effect one after the other, those of each process
/// in the order of its calls.
///
/// A process uses this type for its own words too, by an import of its own segment. Its
/// plain aligned loads ([`crate::Buffer::load_u64`]) see each change whole.
///
/// An atomic operation does not wait for writes that were issued before it. A program
/// flushes them first if the operation announces them to others.
#[derive(Debug, Clone)]
pub struct RemoteWord<T> {
    operand: Operand,
    word: PhantomData<fn() -> T>,
}

/// A remote word of 32 bits.
pub type RemoteU32 = RemoteWord<u32>;

/// A remote word of 64 bits.
pub type RemoteU64 = RemoteWord<u64>;

/// An operation on a [`RemoteWord`], which has not begun. `T` is what it returns.
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is executed before `wait`"]
pub struct AtomicOperation<'w, T> {
    operand: &'w Operand,
    function: Function,
    operands: [u64; 2],
    timeout: Option<Duration>,
    value: PhantomData<fn() -> T>,
}

impl<T: sealed::Value> AtomicOperation<'_, T> {
    /// Waits at most so long in all; `None`, as at first: as long as it takes.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        let timeout = timeout.into();
        AtomicOperation { timeout, ..self }
    }

    /// Executes it, and waits for its result.
    ///
    /// # Errors
    /// [`Error::Transfer`], with `AccessDenied` unless the segment grants reading and writing, and
    /// `PeerGone`, `NoSuchNode`, `NoSuchPort`, `NoSuchSegment`, `BadKey` or `Aborted` when the
    /// owner is; [`Error::DeviceGone`], [`Error::QueueFailed`], [`Error::QueueReset`].
    ///
    /// When the timeout is over, [`Error::QueueFull`]: it was not issued; [`Error::TimedOut`]: it
    /// goes on, and is executed once or not at all. Its result is lost; the next
    /// [`flush`](Endpoint::flush) of reads waits for its end and reports its failure.
    pub fn wait(self) -> Result<T> {
        let Self {
            function, operands, ..
        } = self;
        let (before, _) = self.operand.execute(function, operands, self.timeout)?;
        Ok(T::of(before))
    }
}

impl<'w, T: sealed::Value> AtomicOperation<'w, T> {
    /// Issues it, with a completion of its own: [`Completion::immediate`] has what the word was. Waits
    /// only for room in the command queue.
    ///
    /// # Errors
    /// [`Error::QueueFull`]: the timeout is over; [`Error::DeviceGone`], [`Error::QueueFailed`].
    ///
    /// [`Completion::immediate`]: crate::request::Completion::immediate
    pub fn begin(self) -> Result<Request<'w>> {
        let core = &*self.operand.core;
        let (command, summary) = self.operand.command(self.function, self.operands)?;
        let issued = core.issue_request(command, &[], summary, core.deadline(self.timeout))?;
        Ok(Request::transfer(core, issued, summary.failure))
    }
}

impl<T: Word> RemoteWord<T> {
    pub(crate) fn new(core: &Arc<Core>, segment: &RemoteSegment, offset: u64) -> Result<Self> {
        Ok(RemoteWord {
            operand: Operand::new(core, segment, offset, T::BYTES)?,
            word: PhantomData,
        })
    }

    fn call<V>(&self, function: Function, operands: [u64; 2]) -> AtomicOperation<'_, V> {
        AtomicOperation {
            operand: &self.operand,
            function,
            operands,
            timeout: None,
            value: PhantomData,
        }
    }

    /// Loads it.
    pub fn load(&self) -> AtomicOperation<'_, T> {
        self.call(Function::FetchAdd, [0, 0])
    }

    /// Sets it to one if it is zero; returns true if it did (testandset).
    pub fn test_and_set(&self) -> AtomicOperation<'_, bool> {
        self.call(Function::TestAndSet, [0, 0])
    }

    /// Adds one, wraps around, returns what it was (incr).
    pub fn increment(&self) -> AtomicOperation<'_, T> {
        self.call(Function::Increment, [0, 0])
    }

    /// Subtracts one, wraps around, returns what it was (decr).
    pub fn decrement(&self) -> AtomicOperation<'_, T> {
        self.call(Function::Decrement, [0, 0])
    }

    /// Adds, wraps around, returns what it was.
    pub fn fetch_add(&self, value: T) -> AtomicOperation<'_, T> {
        self.call(Function::FetchAdd, [value.widen(), 0])
    }

    /// Exchanges it, returns what it was (swap).
    pub fn swap(&self, new: T) -> AtomicOperation<'_, T> {
        self.call(Function::Swap, [new.widen(), 0])
    }

    /// Exchanges it if it is `expected`, returns what it was (cswap).
    pub fn compare_swap(&self, expected: T, new: T) -> AtomicOperation<'_, T> {
        self.call(Function::CompareSwap, [new.widen(), expected.widen()])
    }
}

/// # Atomic operations
impl Endpoint {
    /// A word of an imported segment at `offset`, in bytes: `u32` or `u64` (N20).
    ///
    /// ```no_run
    /// # fn f(endpoint: &qnic::Endpoint, theirs: &qnic::RemoteSegment) -> qnic::Result<()> {
    /// let tickets = endpoint.atomic::<u64>(theirs, 0)?;
    /// let mine = tickets.fetch_add(1).wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]
    pub fn atomic<T: Word>(&self, segment: &RemoteSegment, offset: u64) -> Result<RemoteWord<T>> {
        RemoteWord::new(self.core(), segment, offset)
    }
}
