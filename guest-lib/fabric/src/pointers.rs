//! Pointers of a C program, as arguments of calls and in structures that these point to.
//!
//! # Invariants
//! - Values of these types come from C only. The program promises what libfabric's man pages say: each is
//!   null, or valid while the call runs; memory of a receive is valid until the receive has ended.
//! - What can be checked is checked: null, alignment, lengths that no object has.
//! - Safe code has no way to make one from a number, but in tests.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void, CStr};
use std::slice;

/// What a field of a structure of C may be: every pattern of bits is a value.
///
/// # Safety
/// That is so.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: integers and raw pointers have no invalid patterns.
            unsafe impl $crate::pointers::Plain for $type {}
        )*
    };
}
plain!(u8, i32, u32, u64, usize);

// SAFETY: pointers have no invalid patterns.
unsafe impl<T> Plain for *mut T {}
// SAFETY: as above.
unsafe impl<T> Plain for *const T {}

/// `const T *`: memory that a call reads.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

/// `T *`: memory that a call writes.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// An object of a provider, by the structure that the program knows.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Fid<F>(*mut F);

/// `void *` that a program gets back: nothing here looks at what it points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Context(*mut c_void);

// SAFETY: nothing here looks at what it points to.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

// SAFETY: memory of a receive is the provider's until that has ended, on whichever thread.
unsafe impl Send for Out<c_void> {}
// SAFETY: to share the pointer touches nothing; the calls below say what they ask for.
unsafe impl Sync for Out<c_void> {}

// Derives would ask for the same of what they point to.
macro_rules! copied {
    ($($name:ident),*) => {
        $(
            impl<T> Clone for $name<T> {
                fn clone(&self) -> Self {
                    *self
                }
            }
            impl<T> Copy for $name<T> {}
        )*
    };
}
copied!(In, Out, Fid);

// SAFETY: pointers have no invalid patterns.
unsafe impl<T> Plain for In<T> {}
// SAFETY: as above.
unsafe impl<T> Plain for Out<T> {}
// SAFETY: as above.
unsafe impl<F> Plain for Fid<F> {}
// SAFETY: as above.
unsafe impl Plain for Context {}

impl Context {
    pub(crate) const NULL: Self = Context(std::ptr::null_mut());

    /// An object, as events name it.
    pub(crate) fn of_object<F>(object: Fid<F>) -> Self {
        Context(object.0.cast())
    }
}

fn is_array<T>(address: *const T, length: usize) -> bool {
    let bytes = length.checked_mul(size_of::<T>());
    !address.is_null()
        && address.is_aligned()
        && bytes.is_some_and(|bytes| bytes <= isize::MAX as usize)
}

/// The same number of bytes of the provider, and of the program behind an offset.
fn spans(
    own: *mut u8,
    base: *mut c_void,
    offset: usize,
    length: usize,
) -> (libc::iovec, libc::iovec) {
    let span = |iov_base: *mut u8| libc::iovec {
        iov_base: iov_base.cast(),
        iov_len: length,
    };
    (span(own), span(base.cast::<u8>().wrapping_add(offset)))
}

/// The system lets no process copy so, not even its own memory.
fn is_denied() -> bool {
    let error = std::io::Error::last_os_error().raw_os_error();
    matches!(error, Some(libc::ENOSYS | libc::EPERM))
}

impl<T> In<T> {
    #[cfg(test)]
    pub(crate) const NULL: Self = In(std::ptr::null());

    /// A pointer of the program that stands in a structure as such.
    ///
    /// # Safety
    /// It is one, as the module says.
    pub(crate) unsafe fn of_program(pointer: *const T) -> Self {
        In(pointer)
    }

    /// Where it points to.
    pub(crate) fn pointer(self) -> *const T {
        self.0
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// A copy of what it points to; `None` if there is nothing.
    pub(crate) fn get(self) -> Option<T>
    where
        T: Plain,
    {
        // SAFETY: the program promises one, and it is aligned.
        is_array(self.0, 1).then(|| unsafe { self.0.read() })
    }

    /// So many elements, while the call runs; `None` if they cannot be there.
    pub(crate) fn items<'a>(self, count: usize) -> Option<&'a [T]>
    where
        T: Plain,
    {
        if count == 0 {
            return Some(&[]);
        }
        // SAFETY: the program promises so many while the call runs; callers keep them no longer.
        is_array(self.0, count).then(|| unsafe { slice::from_raw_parts(self.0, count) })
    }
}

impl In<c_void> {
    /// So many bytes, while the call runs; none may be at null.
    pub(crate) fn bytes<'a>(self, length: usize) -> Option<&'a [u8]> {
        In(self.0.cast::<u8>()).items(length)
    }

    /// The same memory, as completions name it.
    pub(crate) fn as_out(self) -> Out<c_void> {
        Out(self.0.cast_mut())
    }
}

impl In<c_char> {
    /// A text that ends with a zero byte; `None` if there is none, or it is not UTF-8.
    pub(crate) fn text<'a>(self) -> Option<&'a str> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the program promises a text that ends, while the call runs.
        unsafe { CStr::from_ptr(self.0) }.to_str().ok()
    }
}

impl<T> Out<T> {
    pub(crate) const NULL: Self = Out(std::ptr::null_mut());

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// A copy of what it points to; `None` if there is nothing.
    pub(crate) fn get(self) -> Option<T>
    where
        T: Plain,
    {
        In(self.0.cast_const()).get()
    }

    /// The same memory, which a call reads.
    pub(crate) fn as_in(self) -> In<T> {
        In(self.0.cast_const())
    }

    /// Stores a value; returns false if there is no place for it.
    pub(crate) fn set(self, value: T) -> bool
    where
        T: Plain,
    {
        self.set_item(0, value)
    }

    /// Stores the element of an index.
    pub(crate) fn set_item(self, index: usize, value: T) -> bool
    where
        T: Plain,
    {
        let is_there = index < usize::MAX && is_array(self.0, index + 1);
        if is_there {
            // SAFETY: the program promises an array with this index, and it is aligned.
            unsafe { self.0.add(index).write(value) };
        }
        is_there
    }
}

impl Out<c_void> {
    /// The memory behind so many bytes of it, as completions name it.
    pub(crate) fn behind(self, bytes: usize) -> Self {
        Out(self.0.wrapping_byte_add(bytes))
    }

    /// Where a text was written.
    pub(crate) fn text_pointer(self) -> *const c_char {
        self.0.cast_const().cast()
    }

    /// Copies bytes behind so many; returns false if there is no place for them.
    pub(crate) fn copy_in(self, offset: usize, bytes: &[u8]) -> bool {
        let end = offset.checked_add(bytes.len());
        let is_there = end.is_some_and(|end| end == 0 || is_array(self.0.cast::<u8>(), end));
        if is_there && !bytes.is_empty() {
            let from = bytes.as_ptr();
            // SAFETY: the program promises so many bytes; they are no memory of the provider.
            unsafe { self.0.cast::<u8>().add(offset).copy_from(from, bytes.len()) };
        }
        is_there
    }

    /// Copies bytes of memory that the program has registered: some of it may be absent. Returns false if some
    /// cannot be read.
    pub(crate) fn read_registered(self, offset: usize, bytes: &mut [u8]) -> bool {
        let (own, other) = spans(bytes.as_mut_ptr(), self.0, offset, bytes.len());
        // SAFETY: it writes the bytes of the slice alone; the kernel checks what it reads.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &own, 1, &other, 1, 0) };
        match usize::try_from(copied) {
            Ok(copied) => copied == bytes.len(),
            Err(_) if !is_denied() => false,
            // SAFETY: the program promises this memory; without the system call it is not checked.
            Err(_) => unsafe {
                bytes
                    .as_mut_ptr()
                    .copy_from(self.0.cast::<u8>().wrapping_add(offset), bytes.len());
                true
            },
        }
    }

    /// Copies bytes to memory that the program has registered. Returns false if some of it cannot be written.
    pub(crate) fn write_registered(self, offset: usize, bytes: &[u8]) -> bool {
        let (own, other) = spans(bytes.as_ptr().cast_mut(), self.0, offset, bytes.len());
        // SAFETY: it reads the bytes of the slice; the program has given the other memory for writing, and the
        // kernel checks whether it is there.
        let copied = unsafe { libc::process_vm_writev(libc::getpid(), &own, 1, &other, 1, 0) };
        match usize::try_from(copied) {
            Ok(copied) => copied == bytes.len(),
            Err(_) if !is_denied() => false,
            // SAFETY: the program promises this memory; without the system call it is not checked.
            Err(_) => unsafe {
                self.0
                    .cast::<u8>()
                    .wrapping_add(offset)
                    .copy_from(bytes.as_ptr(), bytes.len());
                true
            },
        }
    }

    /// Has the system make so many bytes of registered memory ready for a store. Returns false if some of them cannot
    /// be written, or if it is older than Linux 5.14 and does not know the call.
    pub(crate) fn populate(self, offset: usize, length: usize) -> bool {
        let place = self.0.cast::<u8>().wrapping_add(offset);
        // SAFETY: it tells a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
        let skipped = place.addr() % page.unwrap_or(1).max(1);
        let first = place.wrapping_sub(skipped).cast();
        let length = length.saturating_add(skipped);
        // SAFETY: no byte changes by it; the kernel checks what is there, and whether it can be written.
        unsafe { libc::madvise(first, length, libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Stores an element of 1, 2, 4 or 8 bytes in memory that the program has registered, of which
    /// [`Out::populate`] has just said that it can be written.
    /// At its natural place a thread that looks at it sees all of it or nothing; elsewhere, bytes.
    pub(crate) fn set_registered(self, offset: usize, bytes: &[u8]) -> bool {
        let place = self.0.cast::<u8>().wrapping_add(offset);
        macro_rules! store {
            ($($type:ty)*) => {
                $(if let Ok(bytes) = <[u8; size_of::<$type>()]>::try_from(bytes) {
                    let place = place.cast::<$type>();
                    if !place.is_null() && place.is_aligned() {
                        // SAFETY: it is aligned, and could be written a moment ago. The program promises not to
                        // unmap or protect it while it is registered; if it does so now, the store faults.
                        unsafe { place.write_volatile(<$type>::from_ne_bytes(bytes)) };
                        return true;
                    }
                })*
            };
        }
        store!(u8 u16 u32 u64);
        self.write_registered(offset, bytes)
    }

    /// Its address.
    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }

    /// So many bytes to write to, for the work alone; `None` if they cannot be there.
    pub(crate) fn with_bytes<R>(
        self,
        length: usize,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        if length == 0 {
            return Some(work(&mut []));
        }
        // SAFETY: the program promises so many bytes of memory that it has filled or allocated, and leaves
        // them alone until the operation has ended.
        is_array(self.0.cast::<u8>(), length)
            .then(|| work(unsafe { slice::from_raw_parts_mut(self.0.cast(), length) }))
    }
}

impl<F> Fid<F> {
    /// The object whose memory the provider has allocated.
    pub(crate) fn new(object: *mut F) -> Self {
        Fid(object)
    }

    /// Where it stands.
    pub(crate) fn pointer(self) -> *mut F {
        self.0
    }
}

#[cfg(test)]
pub(crate) mod test {
    //! Pointers to what a test has.

    use super::*;

    pub(crate) fn input<T>(value: &T) -> In<T> {
        In(value)
    }

    pub(crate) fn output<T>(value: &mut T) -> Out<T> {
        Out(value)
    }

    pub(crate) fn bytes(bytes: &[u8]) -> In<c_void> {
        In(bytes.as_ptr().cast())
    }

    pub(crate) fn room(bytes: &mut [u8]) -> Out<c_void> {
        Out(bytes.as_mut_ptr().cast())
    }

    pub(crate) fn context(number: usize) -> Context {
        Context(std::ptr::without_provenance_mut(number))
    }
}
