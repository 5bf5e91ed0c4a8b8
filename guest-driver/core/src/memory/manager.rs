//! What the driver core needs of the system's memory management.

use alloc::sync::Arc;

use super::region::Region;
use crate::platform::{MemoryError, Platform};

/// The system's memory management.
pub trait MemoryManager: Platform {
    /// A handle on the address space of a process. It does not keep the memory alive.
    type AddressSpace: Send + Sync;
    /// Notifies a region of changes to its pages; dropping it ends that, and waits
    /// for invalidations that are in progress.
    type Notifier: Send + Sync;
    /// Pinned memory; dropping it unpins the memory.
    type Pin: Send;

    /// Checks that all pages of `region` can be exported, and registers a notifier
    /// for them: until the notifier is dropped, the platform calls
    /// [`Region::invalidate`] before the system changes or frees any of the pages.
    ///
    /// # Errors
    /// [`MemoryError`].
    fn register_notifier(
        &self,
        space: &Self::AddressSpace,
        region: &Arc<Region<Self>>,
    ) -> Result<Self::Notifier, MemoryError>;

    /// Faults in up to `count` pages (at most [`qnic_abi::event::MAX_FAULT_PAGES`])
    /// of `region`, for writing, and gives them to [`Region::install`]. The first has
    /// index `first`; all are within the region.
    ///
    /// The frames must still be what the address space maps when they are installed:
    /// `install` asks that under the lock that `invalidate` takes.
    ///
    /// # Errors
    /// [`MemoryError`] if the first page could not be faulted in and installed.
    fn fault_in(
        &self,
        space: &Self::AddressSpace,
        notifier: &Self::Notifier,
        region: &Region<Self>,
        first: usize,
        count: usize,
    ) -> Result<(), MemoryError>;

    /// Gives those pages of `region` to [`Region::install`] that are resident and
    /// writable; faults in none. Best effort.
    fn install_resident(
        &self,
        space: &Self::AddressSpace,
        notifier: &Self::Notifier,
        region: &Region<Self>,
    );

    /// Returns true if the calling process may use physical addresses (N25): if the
    /// system lets it access all memory anyway.
    fn may_use_physical(&self) -> bool;

    /// Pins `length` bytes at `address`: no page of them moves or goes away until
    /// the pin is dropped. Returns it with the guest-physical address of the first
    /// byte.
    ///
    /// # Errors
    /// [`MemoryError`]; `NotExportable` if the pages are not physically contiguous.
    fn pin(
        &self,
        space: &Self::AddressSpace,
        address: u64,
        length: u64,
    ) -> Result<(Self::Pin, u64), MemoryError>;
}
