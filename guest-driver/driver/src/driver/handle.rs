//! The calls of one registered process: how it waits, exports, imports, ends.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use qnic_abi::attach::FIRST_DOORBELL;
use qnic_abi::control::Opcode;
use qnic_abi::{uapi, Status, VniId};

use super::lifecycle::Driver;
use crate::device::control_queue::Request;
use crate::error::CallError;
use crate::memory::MemoryManager;
use crate::platform::{Lock, Waited, Waiters};
use crate::process::state::ProcessState;

/// A registered process; dropping it closes it.
pub struct Process<P: MemoryManager> {
    pub(crate) driver: Arc<Driver<P>>,
    pub(crate) state: Arc<ProcessState<P>>,
}

impl<P: MemoryManager> Process<P> {
    /// Its VNI.
    pub fn vni(&self) -> VniId {
        self.state.vni
    }

    /// Its address space, as given at registration.
    pub fn space(&self) -> &P::AddressSpace {
        &self.state.exports.space
    }

    /// Its host area, to be mapped read-only into the process.
    pub fn host_area(&self) -> &P::HostArea {
        &self.state.wake.host_area
    }

    /// Its wait queue, for a platform on which threads also wait by its own means (poll).
    pub fn waiters(&self) -> &P::Waiters {
        &self.state.wake.waiters
    }

    /// Offset of its window in SRAM.
    pub fn window_offset(&self) -> usize {
        self.driver.geometry().window_offset(self.state.vni)
    }

    /// The virtqueue whose notification is its doorbell.
    pub fn doorbell_queue(&self) -> u16 {
        FIRST_DOORBELL as u16 + self.state.vni.0 % self.driver.geometry().doorbells.max(1) as u16
    }

    /// Returns true if calls reach the device: it is there, and the process is not closed.
    pub fn is_open(&self) -> bool {
        self.check_open().is_ok()
    }

    /// Returns true if the wake generation is not the one that was last marked as
    /// seen, or will not change any more: what poll reports as readable. Atomic.
    pub fn is_readable(&self) -> bool {
        self.state.wake.is_unseen() || !self.is_open()
    }

    fn check_open(&self) -> Result<(), CallError> {
        if !self.driver.is_alive() {
            Err(CallError::NoDevice)
        } else if !self.state.open.load(Ordering::Acquire) {
            Err(CallError::NotRegistered)
        } else {
            Ok(())
        }
    }

    /// Exports a range of the process's memory (N2). Resident pages are inserted into
    /// the page table at once, the others when the NIC asks for them.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`, `NoMemory`.
    pub fn export(&self, call: &mut uapi::Export) -> Result<(), CallError> {
        self.check_open()?;
        self.state.exports.export(call)
    }

    /// Revokes a segment (N2). When it returns, no transfer accesses it any more.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`.
    pub fn unexport(&self, call: &mut uapi::Unexport) -> Result<(), CallError> {
        self.check_open()?;
        self.state.exports.unexport(call)
    }

    /// Asks for a segment of another process (N3). Blocks; signals end the wait.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`, `Interrupted`.
    pub fn import(&self, call: &mut uapi::Import) -> Result<(), CallError> {
        self.check_open()?;
        let device = &self.driver.device;
        self.state.imports.import(device, self.state.vni, call)
    }

    /// Blocks until the wake generation differs from the given one (N17); with
    /// [`uapi::WAIT_SEEN`] marks the current one as seen instead.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`, `Interrupted`, `TimedOut`.
    pub fn wait(&self, call: &mut uapi::Wait) -> Result<(), CallError> {
        let flags = call.flags.get();
        if flags & !uapi::WAIT_SEEN != 0 {
            return Err(CallError::Invalid);
        }
        self.check_open()?;
        let wake = &self.state.wake;
        let now = if flags & uapi::WAIT_SEEN != 0 {
            wake.mark_seen()
        } else {
            let known = call.generation.get();
            let timeout = u64::try_from(call.timeout_ns.get()).ok();
            let ready = || wake.generation() != known || !self.is_open();
            let waited = wake.waiters.wait(&ready, timeout);
            self.check_open()?;
            let now = wake.generation();
            match waited {
                Waited::TimedOut if now == known => return Err(CallError::TimedOut),
                Waited::Interrupted if now == known => return Err(CallError::Interrupted),
                Waited::Ready | Waited::TimedOut | Waited::Interrupted => now,
            }
        };
        call.generation = now.into();
        call.status = Status::Ok.code().into();
        Ok(())
    }

    /// Ends the waits of this process, as a wake event does.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`.
    pub fn wake(&self, call: &mut uapi::Wake) -> Result<(), CallError> {
        if call.reserved.get() != 0 {
            return Err(CallError::Invalid);
        }
        self.check_open()?;
        self.driver.device.wakes.wake(self.state.vni);
        call.status = Status::Ok.code().into();
        Ok(())
    }

    /// Starts the command queue again after an error.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`.
    pub fn reset_queue(&self, call: &mut uapi::ResetQueue) -> Result<(), CallError> {
        if call.reserved.get() != 0 {
            return Err(CallError::Invalid);
        }
        self.check_open()?;
        let request = Request::bare(Opcode::ResetQueue, self.state.vni);
        let (status, _) = self.driver.device.call(&request)?;
        call.status = status.code().into();
        Ok(())
    }

    /// Queries the route to a node (U8).
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`.
    pub fn path(&self, call: &mut uapi::Path) -> Result<(), CallError> {
        self.check_open()?;
        self.driver.path(call)
    }

    /// Ends the process (N8): the NIC forgets it, its pages leave the table, its
    /// window and port become free. Only the first call has an effect; dropping the
    /// process calls it too. No other call of this process may be in progress.
    pub fn close(&self) {
        if !self.state.open.swap(false, Ordering::AcqRel) {
            return;
        }
        let vni = self.state.vni;
        self.state.wake.waiters.wake_all();
        self.driver.retire(vni);
        // An error means that the device is gone or stopped: either way it
        // accesses nothing of this process any more.
        let request = Request::bare(Opcode::DeleteProcess, vni);
        let _ = self.driver.device.call(&request);
        self.state.exports.close();
        self.driver.slots.with(|slots| slots.release(vni));
    }
}

impl<P: MemoryManager> Drop for Process<P> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
