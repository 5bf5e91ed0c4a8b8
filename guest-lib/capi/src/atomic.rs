//! Atomic operations on words of imported segments, executed once by the NIC of their owner.
//!
//! A word is an integer or a floating-point number of 32 or 64 bits, aligned. All operations on one
//! word take effect one after the other, those of each process in the order of its calls. An operation
//! does not wait for writes that were issued before it: flush them first, if it announces them.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::any::Any;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use qnic::message::Request;
use qnic::{AtomicOperation, Endpoint, Integer, RemoteWord, Word};

use crate::border::{call, head, timeout, In, Out};
use crate::endpoint::qnic_endpoint;
use crate::failure::{Failure, Result};
use crate::handles::{get, open_if_wanted};
use crate::memory::qnic_remote;
use crate::owned::Base;
use crate::request::qnic_request;

/// `uint32_t`.
pub const QNIC_U32: u32 = 1;
/// `uint64_t`.
pub const QNIC_U64: u32 = 2;
/// `int32_t`.
pub const QNIC_I32: u32 = 3;
/// `int64_t`.
pub const QNIC_I64: u32 = 4;
/// `float`.
pub const QNIC_F32: u32 = 5;
/// `double`.
pub const QNIC_F64: u32 = 6;

/// Loads the word.
pub const QNIC_ATOMIC_LOAD: u32 = 1;
/// Adds `value`; integers wrap around.
pub const QNIC_ATOMIC_ADD: u32 = 2;
/// The word becomes `value` if that is less.
pub const QNIC_ATOMIC_MIN: u32 = 3;
/// The word becomes `value` if that is greater.
pub const QNIC_ATOMIC_MAX: u32 = 4;
/// The word becomes `value`.
pub const QNIC_ATOMIC_SWAP: u32 = 5;
/// The word becomes `value` if it has the bits of `expected`.
pub const QNIC_ATOMIC_COMPARE_SWAP: u32 = 6;
/// Keeps the bits that are also in `value`. This and all below: integers only.
pub const QNIC_ATOMIC_AND: u32 = 7;
/// Sets the bits of `value`.
pub const QNIC_ATOMIC_OR: u32 = 8;
/// Flips the bits of `value`.
pub const QNIC_ATOMIC_XOR: u32 = 9;
/// The bits of `changed` become those of `value` if the bits of `compared` are those of `expected`.
pub const QNIC_ATOMIC_MASKED_COMPARE_SWAP: u32 = 10;
/// The word becomes 1 if it is 0; what it was is 0 then.
pub const QNIC_ATOMIC_TEST_AND_SET: u32 = 11;
/// Adds one, wraps around.
pub const QNIC_ATOMIC_INCREMENT: u32 = 12;
/// Subtracts one, wraps around.
pub const QNIC_ATOMIC_DECREMENT: u32 = 13;

/// An atomic operation. Values have the bits of the word's type; those of 32 bits stand in the lower
/// half.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_atomic_operation {
    /// Size of this structure.
    pub size: usize,
    /// `QNIC_ATOMIC_…`.
    pub function: u32,
    /// Type of the word: `QNIC_U32`, …
    pub word: u32,
    /// Offset of the word in the remote segment, in bytes.
    pub offset: u64,
    /// The operand.
    pub value: u64,
    /// What the word is compared with.
    pub expected: u64,
    /// Bits that are compared.
    pub compared: u64,
    /// Bits that are exchanged.
    pub changed: u64,
}

head!(qnic_atomic_operation {
    function,
    word,
    offset,
    value,
    expected,
    compared,
    changed
});

/// A word as C has its bits.
trait Bits: Word + Send + Sync + 'static {
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! bits {
    ($($type:ty: $from:expr, $to:expr;)*) => {
        $(impl Bits for $type {
            fn from_bits(bits: u64) -> Self {
                $from(bits)
            }

            fn bits(self) -> u64 {
                $to(self)
            }
        })*
    };
}

bits! {
    u32: |bits| bits as u32, u64::from;
    u64: |bits| bits, |word| word;
    i32: |bits| bits as i32, |word: i32| u64::from(word as u32);
    i64: |bits| bits as i64, |word| word as u64;
    f32: |bits| f32::from_bits(bits as u32), |word: f32| u64::from(word.to_bits());
    f64: f64::from_bits, f64::to_bits;
}

/// What is done with the description of an operation: it is executed, or begun.
trait Run<'w> {
    type Done;

    fn run<T: Bits>(&self, operation: AtomicOperation<'w, T>) -> Result<Self::Done>;

    /// Of a test-and-set, which tells whether the word was 0.
    fn run_test(&self, operation: AtomicOperation<'w, bool>) -> Result<Self::Done>;
}

/// Executes an operation: what the word was.
struct Execute(Option<Duration>);

impl<'w> Run<'w> for Execute {
    type Done = u64;

    fn run<T: Bits>(&self, operation: AtomicOperation<'w, T>) -> Result<u64> {
        Ok(operation.timeout(self.0).wait()?.bits())
    }

    fn run_test(&self, operation: AtomicOperation<'w, bool>) -> Result<u64> {
        let was_zero = operation.timeout(self.0).wait()?;
        Ok((!was_zero).into())
    }
}

/// Begins an operation.
struct Begin(Option<Duration>);

impl<'w> Run<'w> for Begin {
    type Done = Request<'w>;

    fn run<T: Bits>(&self, operation: AtomicOperation<'w, T>) -> Result<Request<'w>> {
        Ok(operation.timeout(self.0).begin()?)
    }

    fn run_test(&self, operation: AtomicOperation<'w, bool>) -> Result<Request<'w>> {
        Ok(operation.timeout(self.0).begin()?)
    }
}

fn no_function() -> Failure {
    Failure::argument("no such atomic operation on a word of this type")
}

/// Those of every type.
fn any<'w, T: Bits, R: Run<'w>>(
    word: &'w RemoteWord<T>,
    operation: &qnic_atomic_operation,
    run: &R,
) -> Result<R::Done> {
    let value = T::from_bits(operation.value);
    run.run(match operation.function {
        QNIC_ATOMIC_LOAD => word.load(),
        QNIC_ATOMIC_ADD => word.fetch_add(value),
        QNIC_ATOMIC_MIN => word.fetch_min(value),
        QNIC_ATOMIC_MAX => word.fetch_max(value),
        QNIC_ATOMIC_SWAP => word.swap(value),
        QNIC_ATOMIC_COMPARE_SWAP => word.compare_swap(T::from_bits(operation.expected), value),
        _ => return Err(no_function()),
    })
}

/// Those of integers.
fn integer<'w, T: Bits + Integer, R: Run<'w>>(
    word: &'w RemoteWord<T>,
    operation: &qnic_atomic_operation,
    run: &R,
) -> Result<R::Done> {
    let [value, expected, compared, changed] = [
        operation.value,
        operation.expected,
        operation.compared,
        operation.changed,
    ]
    .map(T::from_bits);
    run.run(match operation.function {
        QNIC_ATOMIC_AND => word.fetch_and(value),
        QNIC_ATOMIC_OR => word.fetch_or(value),
        QNIC_ATOMIC_XOR => word.fetch_xor(value),
        QNIC_ATOMIC_INCREMENT => word.increment(),
        QNIC_ATOMIC_DECREMENT => word.decrement(),
        QNIC_ATOMIC_MASKED_COMPARE_SWAP => {
            word.masked_compare_swap((expected, compared), (value, changed))
        }
        QNIC_ATOMIC_TEST_AND_SET => return run.run_test(word.test_and_set()),
        _ => return any(word, operation, run),
    })
}

/// A word of one of the types, kept while its operation runs.
fn word_of(
    endpoint: &Endpoint,
    remote: &qnic_remote,
    operation: &qnic_atomic_operation,
) -> Result<Box<dyn Any + Send + Sync>> {
    fn one<T: Bits>(
        endpoint: &Endpoint,
        remote: &qnic_remote,
        offset: u64,
    ) -> Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(endpoint.atomic::<T>(&remote.0, offset)?))
    }
    let make = match operation.word {
        QNIC_U32 => one::<u32>,
        QNIC_U64 => one::<u64>,
        QNIC_I32 => one::<i32>,
        QNIC_I64 => one::<i64>,
        QNIC_F32 => one::<f32>,
        QNIC_F64 => one::<f64>,
        _ => return Err(Failure::argument("no such type of a word")),
    };
    make(endpoint, remote, operation.offset)
}

fn run<'w, R: Run<'w>>(
    word: &'w (dyn Any + Send + Sync),
    operation: &qnic_atomic_operation,
    how: &R,
) -> Result<R::Done> {
    macro_rules! of {
        ($($type:ty: $function:ident),*) => {
            $(if let Some(word) = word.downcast_ref::<RemoteWord<$type>>() {
                return $function(word, operation, how);
            })*
        };
    }
    of!(u32: integer, u64: integer, i32: integer, i64: integer, f32: any, f64: any);
    Err(no_function())
}

/// Executes an atomic operation, waits for it up to `timeout_ns` nanoseconds, and stores what the word
/// was. `before` may be null.
///
/// Fails with `QNIC_E_QUEUE_FULL`: it was not issued; `QNIC_E_TIMED_OUT`: it is executed once or not at
/// all, and the next flush of reads waits for that; `QNIC_E_ACCESS_DENIED` unless the segment grants
/// reading and writing; `QNIC_E_MISALIGNED`, `QNIC_E_OUT_OF_RANGE`.
#[no_mangle]
pub extern "C" fn qnic_atomic(
    endpoint: *mut qnic_endpoint,
    remote: *mut qnic_remote,
    operation: In<qnic_atomic_operation>,
    timeout_ns: i64,
    before: Out<u64>,
) -> c_int {
    call(|| {
        let (endpoint, remote) = (get(endpoint)?, get(remote)?);
        let operation = operation.head()?;
        let word = word_of(&endpoint.0, &remote, &operation)?;
        before.set(run(&*word, &operation, &Execute(timeout(timeout_ns)))?)
    })
}

/// Begins an atomic operation with a completion of its own: `immediate` of that has what the word was.
///
/// Fails as `qnic_atomic` before it is issued.
#[no_mangle]
pub extern "C" fn qnic_atomic_begin(
    endpoint: *mut qnic_endpoint,
    remote: *mut qnic_remote,
    operation: In<qnic_atomic_operation>,
    timeout_ns: i64,
    request: Out<*mut qnic_request>,
) -> c_int {
    open_if_wanted(request, || {
        let (endpoint, remote) = (get(endpoint)?, get(remote)?);
        let operation = operation.head()?;
        let base = Base {
            word: Some(word_of(&endpoint.0, &remote, &operation)?),
            ..Base::new(&Arc::clone(&endpoint.0))
        };
        let limit = timeout(timeout_ns);
        qnic_request::new(base, |base| {
            let word = base.word.as_deref().ok_or_else(no_function)?;
            run(word, &operation, &Begin(limit))
        })
    })
}
