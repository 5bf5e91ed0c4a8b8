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
use crate::error::CallError;
use crate::memory::MemoryManager;
use crate::platform::{HostArea, Lock};
use crate::process::state::ProcessState;

impl<P: MemoryManager> Driver<P> {
    /// Registers a process (N1). `Ok(None)` if it was refused: the call's status says
    /// why.
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`, `NoMemory`.
    pub fn register(
        self: &Arc<Self>,
        space: P::AddressSpace,
        pid: u32,
        call: &mut uapi::Register,
    ) -> Result<Option<Process<P>>, CallError> {
        let flags = call.flags.get();
        if flags & !uapi::PHYSICAL != 0 {
            return Err(CallError::Invalid);
        }
        if !self.is_alive() {
            return Err(CallError::NoDevice);
        }
        let physical = flags & uapi::PHYSICAL != 0;
        if physical && !self.platform().may_use_physical() {
            call.status = Status::AccessDenied.code().into();
            return Ok(None);
        }
        let wanted = Port(call.port.get());
        let (vni, port) = match self.slots.with(|slots| slots.reserve(wanted)) {
            Ok(slot) => slot,
            Err(status) => {
                call.status = status.code().into();
                return Ok(None);
            }
        };
        let created = self.create(vni, port, pid, physical, space);
        if !matches!(created, Ok(Ok(_))) {
            self.slots.with(|slots| slots.release(vni));
        }
        Ok(match created? {
            Ok(state) => {
                let process = Process::new(self.clone(), state);
                let queue = process.doorbell_queue();
                *call = uapi::Register {
                    status: Status::Ok.code().into(),
                    port: port.0.into(),
                    node: self.device.geometry.node.0.into(),
                    vni: vni.0.into(),
                    doorbell_value: queue.into(),
                    doorbell_offset: self.platform().doorbell_offset(queue).into(),
                    inline_max: self.device.inline_max.into(),
                    flags: flags.into(),
                };
                Some(process)
            }
            Err(status) => {
                call.status = status.code().into();
                None
            }
        })
    }

    /// Makes the state of a process and tells the NIC about it.
    fn create(
        &self,
        vni: VniId,
        port: Port,
        pid: u32,
        physical: bool,
        space: P::AddressSpace,
    ) -> Result<Result<Arc<ProcessState<P>>, Status>, CallError> {
        let state = Arc::new(ProcessState {
            vni,
            port,
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
        let request = Request::new(Opcode::NewProcess, vni, &body);
        let called = self.device.call(&request);
        if let Ok((Status::Ok, _)) = called {
            return Ok(Ok(state));
        }
        self.retire(vni);
        called.map(|(refused, _)| Err(refused))
    }
}
