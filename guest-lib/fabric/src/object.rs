//! Objects of a provider in the memory of a C program.
//!
//! ```text
//!   Fid ──► ┌─────────────────────────────────┬───────────┐
//!           │ structure of its class          │ Arc<state>│
//!           │ class │ context │ tables │ …    │           │
//!           └─────────────────────────────────┴───────────┘
//! ```
//! The program knows the structure; behind it stands a reference to what the provider knows of the object.
//!
//! # Invariants
//! - A [`Fid`] that a program gives is null, or an object that some provider has opened and not closed: libfabric
//!   asks for that. Class and table of calls tell whether it is one of this provider and of the expected class.
//! - An object is freed when it is closed, once; its state lives on while others hold it.

#![allow(unsafe_code)]

use std::any::Any;
use std::sync::Arc;

use crate::errno::{Result, BUSY, INVALID};
use crate::pointers::{Fid, Out};
use crate::sys::{Head, Ops};

/// A class of objects, by its state.
///
/// # Safety
/// `Fid` is `repr(C)`, and begins with a [`Head`].
pub(crate) unsafe trait Class: Send + Sync + 'static {
    /// The structure that programs know.
    type Fid;
    /// Its number.
    const CLASS: usize;
    /// The calls that all objects have.
    const OPS: &'static Ops;
}

#[repr(C)]
struct Object<S: Class> {
    fid: S::Fid,
    state: Arc<S>,
}

/// What an object stands on: it is not closed before the object is.
pub(crate) type Parent = Arc<dyn Any + Send + Sync>;

/// Makes an object of its structure and its state.
pub(crate) fn open<S: Class>(fid: S::Fid, state: Arc<S>) -> Fid<S::Fid> {
    Fid::new(Box::into_raw(Box::new(Object { fid, state })).cast())
}

/// The object's state, by whichever of its structures.
///
/// # Errors
/// [`INVALID`]: it is no object of this class.
pub(crate) fn state<S: Class, F>(fid: Fid<F>) -> Result<Arc<S>> {
    let object = check::<S, F>(fid)?;
    // SAFETY: an open object of this class, whose memory `open` has allocated.
    Ok(unsafe { &*object }.state.clone())
}

/// The object's state for the length of a call of the program on it.
///
/// # Errors
/// Those of [`state`]
pub(crate) fn borrow<'call, S: Class, F>(fid: Fid<F>) -> Result<&'call S> {
    let object = check::<S, F>(fid)?;
    // SAFETY: as in `state`; the program closes no object during a call on it.
    Ok(unsafe { &*(*object).state })
}

/// Closes an object if its state lets it.
///
/// # Errors
/// [`INVALID`]: it is no object of this class. Those of `may_close`: it stays open.
pub(crate) fn close<S: Class>(
    fid: Fid<Head>,
    may_close: impl FnOnce(&Arc<S>) -> Result<()>,
) -> Result<()> {
    let object = check::<S, Head>(fid)?;
    // SAFETY: as in `state`.
    may_close(unsafe { &(*object).state })?;
    // SAFETY: `open` has allocated it; the program uses it no more after it has closed it.
    drop(unsafe { Box::from_raw(object) });
    Ok(())
}

/// The class of an object of any provider.
pub(crate) fn class<F>(fid: Fid<F>) -> Result<usize> {
    let head = fid.pointer().cast::<Head>();
    if head.is_null() || !head.is_aligned() {
        return Err(INVALID);
    }
    // SAFETY: each object begins with a head; the program promises that it is open.
    Ok(unsafe { &*head }.class)
}

fn check<S: Class, F>(fid: Fid<F>) -> Result<*mut Object<S>> {
    if class(fid)? != S::CLASS {
        return Err(INVALID);
    }
    let head = fid.pointer().cast::<Head>();
    // SAFETY: as in `class`.
    match std::ptr::eq(unsafe { &*head }.ops, S::OPS) {
        true => Ok(fid.pointer().cast()),
        false => Err(INVALID),
    }
}

/// Opens an object, and tells the program where it stands.
///
/// # Errors
/// [`INVALID`]: there is no place for that.
pub(crate) fn open_at<S: Class>(
    opened: Out<Fid<S::Fid>>,
    fid: S::Fid,
    state: Arc<S>,
) -> Result<()> {
    if opened.is_null() {
        return Err(INVALID);
    }
    match opened.set(open(fid, state)) {
        true => Ok(()),
        false => Err(INVALID),
    }
}

/// Returns an error unless the object alone holds its state.
///
/// # Errors
/// [`BUSY`]: other objects stand on it. Close them first.
pub(crate) fn unused<S>(state: &Arc<S>) -> Result<()> {
    match Arc::strong_count(state) {
        1 => Ok(()),
        _ => Err(BUSY),
    }
}

/// Makes a state the one of a class: its structure, its number, its table of calls.
macro_rules! object_class {
    ($state:ty, $fid:ty, $number:expr, $ops:expr) => {
        #[allow(unsafe_code)]
        // SAFETY: the structures of `sys` are those of C, and begin with a head; asserted below.
        unsafe impl $crate::object::Class for $state {
            type Fid = $fid;
            const CLASS: usize = $number;
            const OPS: &'static $crate::sys::Ops = {
                static OPS: $crate::sys::Ops = $ops;
                &OPS
            };
        }
        const _: () = assert!(std::mem::offset_of!($fid, head) == 0);
    };
}
pub(crate) use object_class;
