//! Whether the NIC runs commands of a process.

use std::sync::atomic::Ordering;

use qnic_abi::host_area::{GONE, WAKE_GENERATION};
use qnic_abi::{NodeId, Port, SharedMemory};
use qnic_shared::region::FORKED;

use super::{completion, Core};
use crate::error::{Error, Result};

impl Core {
    /// Where this process is, for the log.
    pub(super) fn place(&self) -> String {
        let registration = self.process.registration();
        let (node, port) = (registration.node.get(), registration.port.get());
        format!("{} of {}", Port(port), NodeId(node))
    }

    /// The error of a process that has lost its NIC, which the log has once.
    #[cold]
    pub(crate) fn lose_device(&self) -> Error {
        // Relaxed: it orders nothing.
        if !self.lost.swap(true, Ordering::Relaxed) {
            log::error!("{}: {}", self.place(), Error::DeviceGone);
        }
        Error::DeviceGone
    }

    /// A process that has lost its NIC learns of it here, without a call of the driver.
    pub(super) fn check_device(&self) -> Result<()> {
        let area = &self.area();
        // Acquire; partner: the driver's store, after which it answers no call.
        match area.load_u64(WAKE_GENERATION, Ordering::Acquire) {
            GONE => Err(self.lose_device()),
            FORKED => Err(Error::Forked),
            // Relaxed: what a call has said stays true.
            _ if self.lost.load(Ordering::Relaxed) => Err(Error::DeviceGone),
            _ => Ok(()),
        }
    }

    /// Returns an error in a forked child: what its memory says of its parent's operations may be of
    /// any time.
    pub(crate) fn check_own(&self) -> Result<()> {
        let area = &self.area();
        // Relaxed: the word is so from the child's beginning, or never.
        match area.load_u64(WAKE_GENERATION, Ordering::Relaxed) {
            FORKED => Err(Error::Forked),
            _ => Ok(()),
        }
    }

    pub(super) fn check_queue(&self, generation: u64) -> Result<()> {
        self.check_device()?;
        self.check_generation(generation)?;
        self.check_running()
    }

    /// Returns an error if the device is gone or the command queue has stopped.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.check_device()?;
        match completion::queue_failure(&self.area()) {
            None => Ok(()),
            Some(status) => Err(Error::QueueFailed(status)),
        }
    }
}
