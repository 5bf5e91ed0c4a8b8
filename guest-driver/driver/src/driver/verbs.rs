//! How a context of libibverbs is opened (X18).

use alloc::sync::Arc;
use core::ops::Deref;

use qnic_abi::uapi;

use super::handle::Process;
use super::lifecycle::Driver;
use crate::error::{CallError, Failure};
use crate::memory::MemoryManager;
use crate::verbs::Context;

/// A context that is open; dropping it closes it. The platform destroys its objects first.
pub struct VerbsContext<P: MemoryManager> {
    context: Context<P>,
    /// Ends with it.
    _process: Process<P>,
}

impl<P: MemoryManager> Driver<P> {
    /// Opens a context for a process (N1). All contexts are closed before [`Driver::detach`].
    ///
    /// # Errors
    /// `Refused` with Exhausted; `NoDevice`, `NoMemory`.
    pub fn open_verbs(
        self: &Arc<Self>,
        space: P::AddressSpace,
        pid: u32,
    ) -> Result<VerbsContext<P>, Failure> {
        if !self.is_alive() {
            return Err(CallError::NoDevice.into());
        }
        // Any port.
        let mut call = uapi::Register::default();
        let process = self.try_register(space, pid, &mut call)?;
        let doorbell = process.doorbell_queue();
        let context = Context::new(&self.device, &process.state, &self.verbs, doorbell)?;
        Ok(VerbsContext {
            context,
            _process: process,
        })
    }
}

impl<P: MemoryManager> Deref for VerbsContext<P> {
    type Target = Context<P>;

    fn deref(&self) -> &Context<P> {
        &self.context
    }
}
