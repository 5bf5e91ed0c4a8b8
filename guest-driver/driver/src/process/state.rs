//! The driver's record of one registered process.

use alloc::sync::Arc;
use core::sync::atomic::AtomicBool;

use qnic_abi::VniId;

use crate::device::Wake;
use crate::directory::export::Exports;
use crate::directory::import::Imports;
use crate::memory::MemoryManager;

/// The driver's record of a registered process.
pub(crate) struct ProcessState<P: MemoryManager> {
    pub(crate) vni: VniId,
    pub(crate) wake: Arc<Wake<P>>,
    pub(crate) exports: Exports<P>,
    pub(crate) imports: Imports,
    /// False once closed.
    pub(crate) open: AtomicBool,
}
