//! Atomic operations on words of remote memory (N20), executed by the NIC of the
//! node that owns them.
//!
//! ```text
//!   thread: record ──► command ──► …  owner's NIC: change  … ──► record, completion
//! ```
//! Each incomplete command has a result record of its own. A thread has one command at a
//! time, and waits for it. A thread that stops waiting leaves the record to its command.

mod word;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use qnic_abi::atomic::{AtomicCommand, Function, OPCODE};
use qnic_abi::command::{CommandBody, CommandFlags, CommandHeader};
use qnic_abi::host_area::result_offset;
use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;

use crate::core::tracker::{Issued, Summary};
use crate::core::{Core, IssueOptions};
use crate::endpoint::Endpoint;
use crate::error::{Error, Operation, Result};
use crate::memory::RemoteSegment;
use crate::rdma::Ticket;
use crate::request::Request;
use word::sealed;
pub use word::{Integer, Word};

/// Operands `z` and `t` of a command.
type Masks = [[u8; 8]; 2];

/// The inline payload of a command: its masks, if its function has them.
fn payload<'m>(header: &CommandHeader, masks: &'m Masks) -> &'m [u8] {
    &masks.as_flattened()[..usize::from(header.inline_length)]
}

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

    /// An operation as a command with its masks, and what is said of it if it fails.
    fn command(
        &self,
        function: Function,
        [first, second, third, fourth]: [u64; 4],
    ) -> Result<(AtomicCommand, Masks, Summary)> {
        let (segment, length) = (&self.segment, self.length);
        let (target, summary) = segment.describe(Operation::Atomic, self.offset, length)?;
        let mut command = AtomicCommand::command();
        command.header = target.header;
        command.header.opcode = OPCODE;
        command.header.inline_length = function.inline_length();
        command.remote_address = target.address.into();
        command.remote_key = target.key.into();
        command.remote_segment = target.segment.into();
        command.operands = [first, second].map(Into::into);
        command.length = (length as u32).into();
        command.function = (function as u16).into();
        Ok((command, [third, fourth].map(u64::to_le_bytes), summary))
    }

    /// Executes one operation; returns value and detail.
    pub(crate) fn execute(
        &self,
        function: Function,
        operands: [u64; 2],
        timeout: Option<Duration>,
    ) -> Result<(u64, u64)> {
        let [first, second] = operands;
        self.run(function, [first, second, 0, 0], timeout)
    }

    fn run(
        &self,
        function: Function,
        operands: [u64; 4],
        timeout: Option<Duration>,
    ) -> Result<(u64, u64)> {
        let (core, segment) = (&*self.core, &self.segment);
        let deadline = core.deadline(timeout);
        let has_ended = |issued: &Issued| core.is_complete(issued.mark).unwrap_or(true);
        let is_over = || core.is_over(deadline);
        let destination = (segment.node(), segment.port());
        let record = core.records.take(destination, is_over, has_ended);
        let record = record.ok_or(Error::QueueFull)?;
        let (mut command, masks, summary) = self.command(function, operands)?;
        command.header.flags = CommandFlags::PUBLISH.bits();
        command.record = record.number.into();
        let options = IssueOptions::CLAIMED.until(deadline);
        let issued = core.issue(
            &command.descriptor(),
            payload(&command.header, &masks),
            summary,
            options,
        )?;
        let waited = Ticket::new(core, issued).wait_until(deadline);
        if matches!(waited, Err(Error::TimedOut)) {
            record.make_late(issued);
            return Err(Error::TimedOut);
        }
        waited?;
        // Relaxed: ordered behind the acquire load of the completion counter, whose
        // partner is the NIC's release store behind those of the record.
        let offset = result_offset(usize::from(record.number));
        let word = |at| core.area().load_u64(at, Ordering::Relaxed);
        Ok((word(offset), word(offset + 8)))
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
    operands: [u64; 4],
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
        let (before, _) = self.operand.run(function, operands, self.timeout)?;
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
        let (command, masks, summary) = self.operand.command(self.function, self.operands)?;
        let (masks, deadline) = (
            payload(&command.header, &masks),
            core.deadline(self.timeout),
        );
        let issued = core.issue_request(command, masks, summary, deadline)?;
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

    fn call<V>(&self, function: Function, [x, y]: [u64; 2]) -> AtomicOperation<'_, V> {
        AtomicOperation {
            operand: &self.operand,
            function,
            operands: [x, y, 0, 0],
            timeout: None,
            value: PhantomData,
        }
    }

    /// Loads it.
    pub fn load(&self) -> AtomicOperation<'_, T> {
        self.call(Function::FetchAdd, [0, 0])
    }

    /// Adds, returns what it was. Integers wrap around; a sum of floating-point numbers that is no
    /// number is the quiet NaN without sign.
    pub fn fetch_add(&self, value: T) -> AtomicOperation<'_, T> {
        self.call(T::ADD, [value.widen(), 0])
    }

    /// Becomes `value` if that is less, returns what it was. A floating-point number is less than a
    /// NaN, and a NaN changes nothing.
    pub fn fetch_min(&self, value: T) -> AtomicOperation<'_, T> {
        self.call(T::MIN, [value.widen(), 0])
    }

    /// Becomes `value` if that is greater, returns what it was. A floating-point number is greater
    /// than a NaN, and a NaN changes nothing.
    pub fn fetch_max(&self, value: T) -> AtomicOperation<'_, T> {
        self.call(T::MAX, [value.widen(), 0])
    }

    /// Exchanges it, returns what it was (swap).
    pub fn swap(&self, new: T) -> AtomicOperation<'_, T> {
        self.call(Function::Swap, [new.widen(), 0])
    }

    /// Exchanges it if it has the bits of `expected`, returns what it was (cswap).
    pub fn compare_swap(&self, expected: T, new: T) -> AtomicOperation<'_, T> {
        self.call(Function::CompareSwap, [new.widen(), expected.widen()])
    }
}

impl<T: Integer> RemoteWord<T> {
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

    /// Keeps the bits that are also in `bits`, returns what it was.
    pub fn fetch_and(&self, bits: T) -> AtomicOperation<'_, T> {
        self.call(Function::And, [bits.widen(), 0])
    }

    /// Sets bits, returns what it was.
    pub fn fetch_or(&self, bits: T) -> AtomicOperation<'_, T> {
        self.call(Function::Or, [bits.widen(), 0])
    }

    /// Flips bits, returns what it was.
    pub fn fetch_xor(&self, bits: T) -> AtomicOperation<'_, T> {
        self.call(Function::Xor, [bits.widen(), 0])
    }

    /// Exchanges the bits of `changed` for those of `new` if the bits of `compared` are those of
    /// `expected`; returns what it was. Fields of a word are exchanged on their own so, as verbs
    /// have it.
    pub fn masked_compare_swap(
        &self,
        (expected, compared): (T, T),
        (new, changed): (T, T),
    ) -> AtomicOperation<'_, T> {
        let call = self.call(Function::MaskedCompareSwap, [new.widen(), expected.widen()]);
        let [x, y, ..] = call.operands;
        AtomicOperation {
            operands: [x, y, compared.widen(), changed.widen()],
            ..call
        }
    }
}

/// # Atomic operations
impl Endpoint {
    /// A word of an imported segment at `offset`, in bytes: an integer or a floating-point number of
    /// 32 or 64 bits (N20).
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
