//! How a process is registered (N1).

use alloc::sync::Arc;
use core::sync::atomic::AtomicBool;

use qnic_abi::control::{self, Opcode, PROCESS_PHYSICAL};
use qnic_abi::{uapi, Port, Status, VniId};

use super::handle::Process;
use super::lifecycle::Driver;
use crate::device::control_queue::Request;
use crate::device::Wake;
use crate::directory::export::Exports;
use crate::directory::import::Imports;
use crate::error::{CallError, Failure};
use crate::memory::MemoryManager;
use crate::platform::{HostArea, Lock};
use crate::process::state::ProcessState;

impl<P: MemoryManager> Driver<P> {
    /// Registers a process (N1). Returns `Ok(None)` if it was refused; the call's status has the
    /// reason.
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`, `NoMemory`.
    pub fn register(
        self: &Arc<Self>,
        space: P::AddressSpace,
        pid: u32,
        call: &mut uapi::Register,
    ) -> Result<Option<Process<P>>, CallError> {
        if call.flags.get() & !uapi::PHYSICAL != 0 {
            return Err(CallError::Invalid);
        }
        if !self.is_alive() {
            return Err(CallError::NoDevice);
        }
        let result = self.try_register(space, pid, call);
        Failure::conclude(result, &mut call.status)
    }

    pub(super) fn try_register(
        self: &Arc<Self>,
        space: P::AddressSpace,
        pid: u32,
        call: &mut uapi::Register,
    ) -> Result<Process<P>, Failure> {
        let physical = call.flags.get() & uapi::PHYSICAL != 0;
        if physical && !self.platform().may_use_physical() {
            return Err(Status::AccessDenied.into());
        }
        let wanted = Port(call.port.get());
        let (vni, port) = self.slots.with(|slots| slots.reserve(wanted))?;
        let created = self.create(vni, port, pid, physical, space);
        if created.is_err() {
            self.slots.with(|slots| slots.release(vni));
        }
        let process = Process {
            driver: self.clone(),
            state: created?,
        };
        let queue = process.doorbell_queue();
        *call = uapi::Register {
            port: port.0.into(),
            node: self.device.geometry.node.0.into(),
            vni: vni.0.into(),
            doorbell_value: queue.into(),
            doorbell_offset: self.platform().doorbell_offset(queue).into(),
            inline_max: self.device.announced.inline_max.into(),
            peer_timeout_ms: self.device.announced.peer_timeout_ms.into(),
            ..call.with_counts(self.device.geometry.counts)
        };
        Ok(process)
    }

    /// Makes the state of a process and announces the process to the NIC.
    fn create(
        &self,
        vni: VniId,
        port: Port,
        pid: u32,
        physical: bool,
        space: P::AddressSpace,
    ) -> Result<Arc<ProcessState<P>>, Failure> {
        let state = Arc::new(ProcessState {
            vni,
            wake: Wake::new(self.platform())?,
            exports: Exports::new(self.page_table.clone(), vni, space, physical)?,
            imports: Imports::default(),
            open: AtomicBool::new(true),
        });
        self.device.zero_window(vni)?;
        let body = control::NewProcess {
            port: port.0.into(),
            flags: if physical { PROCESS_PHYSICAL } else { 0 }.into(),
            pid: pid.into(),
            host_area: state.wake.host_area.addresses().map(Into::into),
        };
        // Events may come as soon as the NIC knows the process.
        self.publish(state.clone());
        let called = self
            .device
            .call(&Request::new(Opcode::NewProcess, vni, &body));
        let accepted = called.map_err(Failure::from);
        let accepted = accepted.and_then(|(status, _)| Failure::check(status));
        if accepted.is_err() {
            self.retire(vni);
        }
        accepted.map(|()| state)
    }
}
