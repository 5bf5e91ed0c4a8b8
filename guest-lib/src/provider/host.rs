//! Host mode: a node in this process, which speaks to the device process itself (X2).

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use qnic_abi::pool::{OpenPools, PoolInfo, PoolKick, PoolWait};
use qnic_abi::uapi;
use qnic_host::{ConnectError, HostError, HostNode, HostPools, HostProcess};

use super::{spin, CallError, Memory, Pools, Process, Provider, Registration};

/// Memory of a host-mode node unless told otherwise, in bytes.
pub const DEFAULT_MEMORY: usize = 128 << 20;

/// A host-mode node.
#[derive(Debug)]
pub struct Node(HostNode);

impl Node {
    /// Becomes the node behind the device process's socket, with `memory` bytes
    /// that buffers can be allocated from.
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
            HostError::Forked => CallError::Forked,
            other => CallError::System(std::io::Error::other(other)),
        }
    }
}

impl Provider for Node {
    fn register(&self, port: u16, flags: u32) -> Result<Registration, CallError> {
        let mut call = Registration::call(port, flags);
        match self.0.register(&mut call)? {
            Some(process) => Ok(Registration::Done(Box::new(process))),
            None => Ok(Registration::refused(&call)),
        }
    }

    fn allocate(&self, length: usize) -> Result<Arc<dyn Memory>, CallError> {
        Ok(Arc::new(self.0.allocate(length)?))
    }

    fn open_pools(&self, call: &mut OpenPools) -> Result<Option<Box<dyn Pools>>, CallError> {
        let pools = self.0.open_pools(call)?;
        Ok(pools.map(|pools| Box::new(pools) as Box<dyn Pools>))
    }

    fn info(&self) -> Result<uapi::Info, CallError> {
        let mut info = uapi::Info::default();
        self.0.info(&mut info)?;
        Ok(info)
    }

    fn counters(&self, call: &mut uapi::Counters) -> Result<(), CallError> {
        Ok(self.0.counters(call)?)
    }

    /// The device process needs a processor too: on a single one no thread spins.
    fn spin_budget(&self, spinners: usize) -> Duration {
        spin::budget(spinners, 2)
    }

    /// The clock is fast.
    fn looks(&self) -> u32 {
        4
    }
}

/// Methods that the type of host mode has under the same name.
macro_rules! forward {
    ($of:ident: $($name:ident($call:ty)),* $(,)?) => {
        $(fn $name(&self, call: &mut $call) -> Result<(), CallError> {
            Ok($of::$name(self, call)?)
        })*
    };
}

impl Pools for HostPools {
    forward! { HostPools:
        kick(PoolKick),
        wait(PoolWait),
        info(PoolInfo),
        path(uapi::Path),
    }

    fn range(&self) -> &dyn Memory {
        HostPools::range(self)
    }

    fn event(&self) -> Result<BorrowedFd<'_>, CallError> {
        Ok(HostPools::event(self)?)
    }

    fn clear_event(&self) {
        HostPools::clear_event(self);
    }
}

impl Process for HostProcess {
    forward! { HostProcess:
        export(uapi::Export),
        unexport(uapi::Unexport),
        import(uapi::Import),
        wait(uapi::Wait),
        wake(uapi::Wake),
        reset_queue(uapi::ResetQueue),
        path(uapi::Path),
    }

    fn registration(&self) -> &uapi::Register {
        HostProcess::registration(self)
    }

    fn window(&self) -> &dyn Memory {
        HostProcess::window(self)
    }

    fn host_area(&self) -> &dyn Memory {
        HostProcess::host_area(self)
    }

    fn pool(&self) -> &dyn Memory {
        HostProcess::pool(self)
    }

    fn ring_doorbell(&self) {
        HostProcess::ring_doorbell(self);
    }

    fn event(&self) -> Result<BorrowedFd<'_>, CallError> {
        Ok(HostProcess::event(self)?)
    }
}
