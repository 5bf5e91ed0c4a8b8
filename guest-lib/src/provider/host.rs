//! In host mode: a node in this very process, which speaks to the device process
//! itself (X2).

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use qnic_abi::{uapi, Status};
use qnic_host::{ConnectError, HostError, HostNode, HostProcess};

use super::{CallError, Memory, Process, Provider, Registration};
use crate::core::wait::{cores, SPIN};

/// Memory of a host-mode node unless told otherwise, in bytes.
pub const DEFAULT_MEMORY: usize = 128 << 20;

/// A host-mode node.
#[derive(Debug)]
pub struct Node(HostNode);

impl Node {
    /// Becomes the node behind the device process's socket, with `memory` bytes
    /// that buffers can be allocated from.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn connect(socket: impl AsRef<Path>, memory: usize) -> Result<Self, ConnectError> {
        HostNode::connect(socket, memory).map(Node)
    }

    /// The node itself, for what only host mode can do.
    pub fn node(&self) -> &HostNode {
        &self.0
    }
}

impl From<HostError> for CallError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Call(qnic_host::CallError::NoDevice) => CallError::Gone,
            HostError::Call(qnic_host::CallError::TimedOut) => CallError::TimedOut,
            HostError::Call(qnic_host::CallError::Interrupted) => CallError::Interrupted,
            other => CallError::System(std::io::Error::other(other)),
        }
    }
}

impl Provider for Node {
    fn register(&self, port: u16, flags: u32) -> Result<Registration, CallError> {
        let mut call = uapi::Register {
            port: port.into(),
            flags: flags.into(),
            ..Default::default()
        };
        match self.0.register(&mut call)? {
            Some(process) => Ok(Registration::Done(Box::new(process))),
            None => {
                let status = Status::try_from(call.status.get());
                Ok(Registration::Refused(status.unwrap_or(Status::Malformed)))
            }
        }
    }

    fn allocate(&self, length: usize) -> Result<Arc<dyn Memory>, CallError> {
        Ok(Arc::new(self.0.allocate(length)?))
    }

    fn info(&self) -> Result<uapi::Info, CallError> {
        let mut info = uapi::Info::default();
        self.0.info(&mut info)?;
        Ok(info)
    }

    /// The device process needs a core too: on a single one nobody spins.
    fn spin_budget(&self, spinners: usize) -> Duration {
        let cores = cores();
        if cores > 1 && spinners < cores {
            SPIN
        } else {
            Duration::ZERO
        }
    }
}

impl Process for HostProcess {
    fn registration(&self) -> &uapi::Register {
        HostProcess::registration(self)
    }

    fn window(&self) -> &dyn Memory {
        HostProcess::window(self)
    }

    fn host_area(&self) -> &dyn Memory {
        HostProcess::host_area(self)
    }

    fn ring_doorbell(&self) {
        HostProcess::ring_doorbell(self);
    }

    fn export(&self, call: &mut uapi::Export) -> Result<(), CallError> {
        Ok(HostProcess::export(self, call)?)
    }

    fn unexport(&self, call: &mut uapi::Unexport) -> Result<(), CallError> {
        Ok(HostProcess::unexport(self, call)?)
    }

    fn import(&self, call: &mut uapi::Import) -> Result<(), CallError> {
        Ok(HostProcess::import(self, call)?)
    }

    fn wait(&self, call: &mut uapi::Wait) -> Result<(), CallError> {
        Ok(HostProcess::wait(self, call)?)
    }

    fn wake(&self, call: &mut uapi::Wake) -> Result<(), CallError> {
        Ok(HostProcess::wake(self, call)?)
    }

    fn event(&self) -> Result<BorrowedFd<'_>, CallError> {
        Ok(HostProcess::event(self)?)
    }

    fn reset_queue(&self, call: &mut uapi::ResetQueue) -> Result<(), CallError> {
        Ok(HostProcess::reset_queue(self, call)?)
    }
}
