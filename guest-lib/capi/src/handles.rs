//! The handles that C holds: numbers in the shape of pointers, never dereferenced.
//!
//! ```text
//!   struct qnic_endpoint *  ──►  table: generation, place ──►  Arc<qnic_endpoint>
//!      index and generation       stale? an error               a call holds a clone
//! ```
//! A handle names a place in one table of the process and the generation of its content. So a handle
//! that was closed, one of another type and a number that never was one are errors
//! (`QNIC_E_HANDLE`), and nothing is read that is gone.
//!
//! # Invariants
//! - Each handle is closed once. A call that uses it meanwhile keeps its object: then the close is
//!   refused as busy, and the handle stays.
//! - What was made from an object keeps it alive, so handles may be closed in any order.
//! - The table is locked only to look up, to enter and to take out: no object is dropped, and no call
//!   waits, under the lock.

use std::any::Any;
use std::ffi::c_int;
use std::sync::{Arc, PoisonError, RwLock};

use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use crate::border::{call, Out};
use crate::failure::{Failure, Result};

type Table = SlotMap<DefaultKey, Arc<dyn Any + Send + Sync>>;

/// A handle is as wide as a key of the table.
const _: () = assert!(size_of::<*mut u8>() == size_of::<u64>());

static TABLE: RwLock<Option<Table>> = RwLock::new(None);

fn key<T>(handle: *mut T) -> DefaultKey {
    KeyData::from_ffi(handle as u64).into()
}

/// The object of a handle.
///
/// # Errors
/// [`QNIC_E_HANDLE`](crate::codes::QNIC_E_HANDLE)
pub(crate) fn get<T: Any + Send + Sync>(handle: *mut T) -> Result<Arc<T>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let found = table.as_ref().and_then(|table| table.get(key(handle)));
    let found = found.cloned().and_then(|object| object.downcast().ok());
    found.ok_or_else(|| Failure::handle(handle.is_null()))
}

/// Enters what a call makes, and stores its handle.
pub(crate) fn open<T: Any + Send + Sync>(
    handle: Out<*mut T>,
    make: impl FnOnce() -> Result<T>,
) -> c_int {
    call(|| {
        handle.check()?;
        enter(handle, make()?)
    })
}

/// The same, where a null pointer asks for no handle: the object is dropped.
pub(crate) fn open_if_wanted<T: Any + Send + Sync>(
    handle: Out<*mut T>,
    make: impl FnOnce() -> Result<T>,
) -> c_int {
    if handle.is_null() {
        return call(|| make().map(drop));
    }
    open(handle, make)
}

/// Enters an object, and stores its handle.
pub(crate) fn enter<T: Any + Send + Sync>(handle: Out<*mut T>, object: T) -> Result<()> {
    handle.check()?;
    let object = Arc::new(object);
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let key = table.get_or_insert_default().insert(object);
    drop(table);
    handle.set(key.data().as_ffi() as *mut T)
}

/// Takes an object out of the table; `None` for a null handle.
///
/// # Errors
/// [`QNIC_E_HANDLE`](crate::codes::QNIC_E_HANDLE); [`QNIC_E_BUSY`](crate::codes::QNIC_E_BUSY): a call
/// uses it.
pub(crate) fn take<T: Any + Send + Sync>(handle: *mut T) -> Result<Option<T>> {
    if handle.is_null() {
        return Ok(None);
    }
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let entry = table.as_mut().and_then(|table| table.get(key(handle)));
    let object = entry.filter(|object| object.is::<T>());
    match object.map(Arc::strong_count) {
        None => return Err(Failure::handle(false)),
        Some(1) => {}
        Some(_) => return Err(Failure::busy()),
    }
    let object = table.as_mut().and_then(|table| table.remove(key(handle)));
    drop(table);
    let object = object.and_then(|object| object.downcast().ok());
    Ok(object.and_then(Arc::into_inner))
}

/// Closes a handle; null is closed already.
pub(crate) fn close<T: Any + Send + Sync>(handle: *mut T) -> c_int {
    call(|| take(handle).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::{QNIC_E_BUSY, QNIC_E_HANDLE};
    use crate::failure::Failure;

    fn opened(value: String) -> *mut String {
        let mut handle = std::ptr::null_mut();
        assert_eq!(open(Out::new(&raw mut handle), || Ok(value)), 0);
        handle
    }

    fn code<T>(result: Result<T>) -> Option<c_int> {
        result.err().as_ref().map(Failure::code)
    }

    #[test]
    fn a_handle_is_closed_once_and_its_number_does_not_come_back() {
        let handle = opened("one".into());
        assert_eq!(*get(handle).unwrap(), "one");
        assert_eq!(code(get(handle.cast::<u32>())), Some(QNIC_E_HANDLE));
        assert_eq!(close(handle.cast::<u32>()), QNIC_E_HANDLE);
        assert_eq!(close(handle), 0);
        let other = opened("two".into());
        assert_ne!(handle, other);
        assert_eq!(code(get(handle)), Some(QNIC_E_HANDLE));
        assert_eq!(close(handle), QNIC_E_HANDLE);
        assert_eq!(close(std::ptr::null_mut::<String>()), 0);
        assert_eq!(take(other).unwrap().as_deref(), Some("two"));
    }

    #[test]
    fn a_handle_that_a_call_uses_stays() {
        let handle = opened("used".into());
        let used = get(handle).unwrap();
        assert_eq!(close(handle), QNIC_E_BUSY);
        assert_eq!(*used, "used");
        drop(used);
        assert_eq!(close(handle), 0);
    }
}
