//! What crosses the border from C: pointers, texts, structures that grow, and panics that do not.
//!
//! Purpose: all `unsafe` of this package stands here. The families, one module each, take the types of
//! this module in the place of raw pointers, so that they can be safe code.
//!
//! # Invariants
//! - Values of [`In`], [`Out`] and [`Text`] that are read or written come from C only, as arguments or
//!   in structures that were given as arguments. The C program promises that each is null or valid
//!   while the call runs.
//! - What can be checked is checked: null, alignment, lengths that no object has, UTF-8, structures
//!   that are shorter than their first version.
//! - No panic leaves `call`.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::time::Duration;

use crate::failure::{self, Failure, Result};

/// Runs the work of a call, and tells its outcome as C does: 0, or a negative code.
pub(crate) fn call(work: impl FnOnce() -> Result<()>) -> c_int {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => failure::keep(failure),
        Err(panic) => failure::keep(Failure::panicked(panic)),
    }
}

/// `const T *`: memory that the call reads.
#[repr(transparent)]
pub struct In<T>(*const T);

/// `T *`: memory that the call writes.
#[repr(transparent)]
pub struct Out<T>(*mut T);

// Derives would ask for the same of what they point to.
impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}
impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

/// `const char *`: a text in UTF-8 that ends with a zero byte.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Text(*const c_char);

/// `void *` that a program gets back when its function is called.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Context(*mut c_void);

// SAFETY: nothing here looks at what it points to. The documentation of each function that takes one
// says on which threads the program gets it back.
unsafe impl Send for Context {}

impl Context {
    /// The pointer, for the call of the program's function.
    pub(crate) fn get(self) -> *mut c_void {
        self.0
    }
}

/// What a field of a structure of C may be: every pattern of bits is a value, zeros among them.
///
/// # Safety
/// That is so.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),*) => {
        $(
            // SAFETY: integers, floating-point numbers and pointers have no invalid patterns.
            unsafe impl Plain for $type {}
        )*
    };
}

plain!(u8, u16, u32, u64, usize, i32, i64, f64, Text, Context);

// SAFETY: pointers.
unsafe impl<T> Plain for In<T> {}
// SAFETY: pointers.
unsafe impl<T> Plain for Out<T> {}
// SAFETY: a handle is a number in the shape of a pointer.
unsafe impl<T> Plain for *mut T {}
// SAFETY: pointers.
unsafe impl<T> Plain for *const T {}
// SAFETY: so are its elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A structure that begins with its size, as the program was compiled with it. A later version has more
/// fields behind those of an earlier one; a field that is zero says nothing.
///
/// # Safety
/// All fields are [`Plain`], and the first is a `usize`: [`head!`] checks that.
pub(crate) unsafe trait Head: Plain {}

/// Makes a structure one that begins with its size. Names all other fields.
macro_rules! head {
    ($type:ident { $($field:ident),* $(,)? }) => {
        #[allow(unsafe_code)]
        const _: () = {
            #[allow(dead_code)]
            fn fields_are_plain(structure: $type) {
                fn plain<T: $crate::border::Plain>(_: T) {}
                let $type { size, $($field),* } = structure;
                let _: usize = size;
                $(plain($field);)*
            }
            // SAFETY: its fields are, as the function above shows.
            unsafe impl $crate::border::Plain for $type {}
            // SAFETY: as above; its first field is its size.
            unsafe impl $crate::border::Head for $type {}
            assert!(std::mem::offset_of!($type, size) == 0);
        };
    };
}
pub(crate) use head;

/// Makes a structure of fixed size one that can be read. Names all fields.
macro_rules! fixed {
    ($type:ident { $($field:ident),* $(,)? }) => {
        #[allow(unsafe_code)]
        const _: () = {
            #[allow(dead_code)]
            fn fields_are_plain(structure: $type) {
                fn plain<T: $crate::border::Plain>(_: T) {}
                let $type { $($field),* } = structure;
                $(plain($field);)*
            }
            // SAFETY: its fields are, as the function above shows.
            unsafe impl $crate::border::Plain for $type {}
        };
    };
}
pub(crate) use fixed;

/// The value of all zeros.
pub(crate) fn zeros<T: Plain>() -> T {
    // SAFETY: zeros are a value of every plain type.
    unsafe { std::mem::zeroed() }
}

fn check<T>(address: *const T, length: usize) -> Result<()> {
    if address.is_null() {
        return Err(Failure::argument("a pointer is null"));
    }
    if !address.is_aligned() {
        return Err(Failure::argument("a pointer is not aligned to its type"));
    }
    let bytes = length.checked_mul(size_of::<T>());
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::argument("a length is beyond all memory"));
    }
    Ok(())
}

impl<T> In<T> {
    /// Returns true if the program has given none.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Where it points to, as a number.
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// So many elements; none needs no memory.
    pub(crate) fn items<'a>(self, count: usize) -> Result<&'a [T]>
    where
        T: Plain,
    {
        if count == 0 {
            return Ok(&[]);
        }
        check(self.0, count)?;
        // SAFETY: the program promises so many elements, which are values whatever their bits are,
        // while the call runs; callers keep the result no longer.
        Ok(unsafe { slice::from_raw_parts(self.0, count) })
    }

    /// A structure that begins with its size; without one, all zeros.
    pub(crate) fn head(self) -> Result<T>
    where
        T: Head,
    {
        let mut structure = zeros::<T>();
        if self.is_null() {
            return Ok(structure);
        }
        let size = said_size(self.0)?;
        let known = size_of::<T>();
        // SAFETY: the program promises so many bytes.
        let bytes = unsafe { slice::from_raw_parts(self.0.cast::<u8>(), size) };
        if bytes.iter().skip(known).any(|byte| *byte != 0) {
            return Err(Failure::newer());
        }
        let to = std::ptr::from_mut(&mut structure).cast::<u8>();
        // SAFETY: so many bytes are there, and have room; every pattern is a value.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), size.min(known)) };
        Ok(structure)
    }
}

/// The size that a structure says: at least that of its head, at most a page, as no version is longer.
fn said_size<T: Head>(structure: *const T) -> Result<usize> {
    check(structure, 1)?;
    // SAFETY: it begins with its size, says the program, and is aligned.
    let size = unsafe { structure.cast::<usize>().read() };
    match size {
        0..8 => Err(Failure::argument(
            "a structure does not say its size: set its first field to sizeof",
        )),
        8..=4096 => Ok(size),
        _ => Err(Failure::argument("a structure says a size that none has")),
    }
}

impl In<c_void> {
    /// Bytes of the program, which do not change while the call runs.
    pub(crate) fn bytes<'a>(self, length: usize) -> Result<&'a [u8]> {
        In(self.0.cast::<u8>()).items(length)
    }

    /// Copies bytes of the program, which do not change while the call runs; false if they do not fit.
    pub(crate) fn copy_to(self, length: usize, room: &mut [u8]) -> Result<bool> {
        if length > room.len() {
            return Ok(false);
        }
        if length > 0 {
            check(self.0.cast::<u8>(), length)?;
            // SAFETY: the program promises so many bytes, and there is room.
            unsafe { std::ptr::copy(self.0.cast(), room.as_mut_ptr(), length) };
        }
        Ok(true)
    }
}

impl<T> Out<T> {
    /// A pointer that the program gets.
    pub(crate) fn new(pointer: *mut T) -> Self {
        Out(pointer)
    }

    /// Returns true if the program wants none.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Where it points to, as a number.
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// The same memory, which the call reads.
    pub(crate) fn as_in(self) -> In<T> {
        In(self.0)
    }

    /// Where it points to.
    pub(crate) fn pointer(self) -> *mut T {
        self.0
    }

    /// Returns an error unless something can be stored there.
    pub(crate) fn check(self) -> Result<()> {
        check(self.0, 1)
    }

    /// Stores a value; null drops it.
    pub(crate) fn set(self, value: T) -> Result<()>
    where
        T: Plain,
    {
        if self.is_null() {
            return Ok(());
        }
        self.check()?;
        // SAFETY: the program promises room for one, and it is aligned.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Stores as much of a structure as the program has room for, as the size in its head says, and
    /// leaves that size; null drops it.
    pub(crate) fn set_head(self, structure: T) -> Result<()>
    where
        T: Head,
    {
        if self.is_null() {
            return Ok(());
        }
        let size = said_size(self.0)?;
        let from = std::ptr::from_ref(&structure).cast::<u8>();
        let head = size_of::<usize>();
        let known = size.min(size_of::<T>());
        // SAFETY: the program promises `size` bytes; the structure has at least `known`.
        unsafe {
            let to = self.0.cast::<u8>();
            to.add(head)
                .copy_from_nonoverlapping(from.add(head), known - head);
            to.add(known).write_bytes(0, size - known);
        }
        Ok(())
    }

    /// Stores structures one behind the other. Each says its size, and all say the same.
    pub(crate) fn set_heads(self, structures: impl Iterator<Item = T>) -> Result<()>
    where
        T: Head,
    {
        if self.is_null() {
            return Ok(());
        }
        let size = said_size(self.0)?;
        let mut to = self.0.cast::<u8>();
        for structure in structures {
            Out(to.cast::<T>()).set_head(structure)?;
            to = to.wrapping_add(size);
        }
        Ok(())
    }

    /// Room for so many elements, which the call fills.
    pub(crate) fn items<'a>(self, count: usize) -> Result<&'a mut [T]>
    where
        T: Plain,
    {
        if count == 0 {
            return Ok(&mut []);
        }
        check(self.0, count)?;
        // SAFETY: the program promises so many elements, which nothing else uses while the call runs.
        Ok(unsafe { slice::from_raw_parts_mut(self.0, count) })
    }
}

impl Out<c_void> {
    /// Room for so many bytes.
    pub(crate) fn bytes<'a>(self, length: usize) -> Result<&'a mut [u8]> {
        Out(self.0.cast::<u8>()).items(length)
    }
}

impl Text {
    /// The text, if there is one.
    pub(crate) fn optional<'a>(self) -> Result<Option<&'a str>> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: the program promises a zero byte at its end, and that it does not change while the
        // call runs.
        let text = unsafe { CStr::from_ptr(self.0) };
        let text = text.to_str();
        text.map(Some)
            .map_err(|_| Failure::argument("a text is not UTF-8"))
    }

    /// The text.
    pub(crate) fn get<'a>(self) -> Result<&'a str> {
        self.optional()?
            .ok_or_else(|| Failure::argument("a text is null"))
    }
}

/// A time limit of C: nanoseconds, negative for none.
pub(crate) fn timeout(nanoseconds: i64) -> Option<Duration> {
    u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
}

/// The same, where the library takes a limit in any case: a year is none.
pub(crate) fn limit(nanoseconds: i64) -> Duration {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    timeout(nanoseconds).unwrap_or(YEAR).min(YEAR)
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::panic::resume_unwind;

    use super::*;
    use crate::codes::{QNIC_E_PANIC, QNIC_E_TIMED_OUT};
    use crate::failure::with_last;

    #[test]
    fn no_panic_crosses_the_border() {
        // As a panic does, but prints nothing.
        let panic = |what: Box<dyn Any + Send>| resume_unwind(what);
        let codes = [
            call(|| panic(Box::new("said"))),
            call(|| panic(Box::new(String::from("said")))),
            call(|| Err(qnic::Error::TimedOut.into())),
            call(|| panic(Box::new(7))),
            call(|| Ok(())),
        ];
        let caught = QNIC_E_PANIC;
        assert_eq!(codes, [caught, caught, QNIC_E_TIMED_OUT, caught, 0]);
        // What succeeds changes no detail.
        assert_eq!(
            with_last(|last| last.map(Failure::code)),
            Some(QNIC_E_PANIC)
        );
    }

    #[test]
    fn negative_time_limits_are_none() {
        assert_eq!(timeout(-1), None);
        assert_eq!(timeout(0), Some(Duration::ZERO));
        assert_eq!(timeout(5), Some(Duration::from_nanos(5)));
        assert!(limit(-1) > Duration::from_secs(1 << 24));
        assert_eq!(limit(i64::MAX), limit(-1));
    }
}
