//! The registered memory of a domain, by keys.
//!
//! # Invariants
//! - When a region is closed, no byte of it is read or written for a peer any more.
//! - Two regions never have the same key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use crate::cntr::Cntr;
use crate::errno::{Errno, Result};
use crate::memory::Memory;
use crate::sys::FI_ENOKEY;

/// No such key, to the peer that has named it.
const REJECTED: Errno = Errno(libc::EKEYREJECTED);
/// The region is not registered for that, or does not have these bytes.
pub(crate) const DENIED: Errno = Errno(libc::EACCES);

/// The registered memory of a domain.
#[derive(Debug)]
pub(crate) struct Regions {
    table: Mutex<Table>,
    /// How many there are.
    count: AtomicUsize,
    /// FI_MR_BASIC: keys are the provider's, and regions begin at their address.
    is_basic: bool,
}

#[derive(Debug, Default)]
struct Table {
    regions: HashMap<u64, Arc<Region>>,
    /// Keys of the provider count.
    given: u64,
}

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Memory,
    /// How peers name its first byte.
    first: u64,
    access: u64,
    is_open: RwLock<bool>,
    /// What counts writes of peers.
    counter: Mutex<Weak<Cntr>>,
}

impl Regions {
    pub(crate) fn new(is_basic: bool) -> Self {
        Regions {
            table: Mutex::default(),
            count: AtomicUsize::new(0),
            is_basic,
        }
    }

    /// The region of a key.
    ///
    /// # Errors
    /// -FI_EKEYREJECTED: none has it.
    pub(crate) fn find(&self, key: u64) -> Result<Arc<Region>> {
        let region = lock(&self.table).regions.get(&key).cloned();
        region.ok_or(REJECTED)
    }

    /// Gives a region its key: that which is requested, or one of the provider.
    ///
    /// # Errors
    /// -FI_ENOKEY: another one has it.
    pub(crate) fn insert(&self, requested: u64, region: Arc<Region>) -> Result<u64> {
        let mut table = lock(&self.table);
        let key = match self.is_basic {
            true => table.given + 1,
            false => requested,
        };
        if table.regions.contains_key(&key) {
            return Err(Errno(FI_ENOKEY));
        }
        table.given = key;
        table.regions.insert(key, region);
        // Relaxed: a hint whether it is worth to look for requests.
        self.count.store(table.regions.len(), Ordering::Relaxed);
        Ok(key)
    }

    /// Takes a region out, and closes it: waits until nothing of it is copied.
    pub(crate) fn close(&self, key: u64) {
        let mut table = lock(&self.table);
        let region = table.regions.remove(&key);
        self.count.store(table.regions.len(), Ordering::Relaxed);
        drop(table);
        if let Some(region) = region {
            region.close();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Peers name bytes by their addresses.
    pub(crate) fn is_basic(&self) -> bool {
        self.is_basic
    }
}

impl Region {
    /// Memory, and how peers name its first byte.
    pub(crate) fn new(memory: Memory, first: u64, access: u64) -> Self {
        Region {
            memory,
            first,
            access,
            is_open: RwLock::new(true),
            counter: Mutex::default(),
        }
    }

    /// Has a counter count the writes of peers.
    pub(crate) fn bind(&self, counter: &Arc<Cntr>) {
        *lock(&self.counter) = Arc::downgrade(counter);
    }

    /// Works on the memory behind an offset, which is where peers say that the range begins.
    ///
    /// # Errors
    /// -FI_EACCES: it is not registered for this access, or does not have all of these bytes; -FI_EKEYREJECTED: it
    /// was closed. Those of `work`.
    pub(crate) fn with<R>(
        &self,
        (offset, length): (u64, usize),
        access: u64,
        work: impl FnOnce(&Memory, usize) -> Result<R>,
    ) -> Result<R> {
        let is_open = self.is_open.read().unwrap_or_else(PoisonError::into_inner);
        if !*is_open {
            return Err(REJECTED);
        }
        let at = offset
            .checked_sub(self.first)
            .and_then(|at| usize::try_from(at).ok());
        let at = at.filter(|at| {
            let end = at.checked_add(length);
            end.is_some_and(|end| end <= self.memory.len())
        });
        if access & !self.access != 0 {
            return Err(DENIED);
        }
        work(&self.memory, at.ok_or(DENIED)?)
    }

    /// Counts a write of a peer.
    pub(crate) fn count(&self) {
        if let Some(counter) = lock(&self.counter).upgrade() {
            counter.count(false);
        }
    }

    /// Waits until nothing is copied, and lets nothing be copied from then on.
    fn close(&self) {
        *self.is_open.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
