//! The services that the driver core needs of the system's memory management.

use alloc::sync::Arc;
use core::ops::Range;

use qnic_abi::page_table::PageAccess;

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

    /// Checks that the process of `space` has this access to all pages of `region`, and
    /// that the NIC can reach them. That may change at any time:
    /// [`MemoryManager::fault_in`] checks it again.
    ///
    /// # Errors
    /// [`MemoryError`].
    fn check(
        &self,
        space: &Self::AddressSpace,
        region: &Region<Self>,
        access: PageAccess,
    ) -> Result<(), MemoryError>;

    /// Registers a notifier for the pages of `region`: until the notifier is dropped, the
    /// platform calls [`Region::invalidate`] before the system changes or frees any of the
    /// pages, or takes away the right to write to it. The latter includes the moments
    /// when the system begins to write a page of a file back, and when it shares a page
    /// that is to be copied on the next write: the page leaves the table with its dirty
    /// state (N7), and is writable again after a fault. A platform whose system asks which pages
    /// are in use answers with [`Region::is_young`].
    ///
    /// # Errors
    /// [`MemoryError`].
    fn register_notifier(
        &self,
        space: &Self::AddressSpace,
        region: &Arc<Region<Self>>,
    ) -> Result<Self::Notifier, MemoryError>;

    /// Faults in pages of `region`, by index (at most [`qnic_abi::event::MAX_FAULT_PAGES`]),
    /// for this access, and gives them to [`Region::install`]. A fault for writing ends copies on write,
    /// and has the system note that a page of a file changes.
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
        pages: Range<usize>,
        access: PageAccess,
    ) -> Result<(), MemoryError>;

    /// Gives the resident pages among these pages of `region` to [`Region::install`], as they
    /// are; faults in none. Best effort.
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
