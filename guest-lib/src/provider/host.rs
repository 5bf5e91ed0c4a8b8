//! A node in this process: host mode, where it speaks to the device process itself (X2), or on VFIO,
//! where it drives the NIC of its guest (X11).

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

/// Memory of a node on VFIO unless told otherwise, in bytes; it is pinned.
#[cfg(feature = "vfio")]
pub const DEFAULT_PINNED_MEMORY: usize = 64 << 20;

/// A node in this process.
#[derive(Debug)]
pub struct Node {
    node: HostNode,
    spinning: Spinning,
}

/// What a thread that spins takes into account.
#[derive(Debug, Clone, Copy)]
struct Spinning {
    /// Processors without which no thread spins.
    processors: usize,
    /// Looks between two readings of the clock.
    looks: u32,
}

impl Spinning {
    /// The device process needs a processor too, and the clock is fast.
    const ON_HOST: Self = Spinning {
        processors: 2,
        looks: 4,
    };
    /// The NIC does not run on this guest's processors, and the clock may be slow.
    #[cfg(feature = "vfio")]
    const IN_GUEST: Self = Spinning {
        processors: 1,
        looks: 256,
    };
}

impl Node {
    /// Becomes the node behind the device process's socket, with `memory` bytes
    /// that buffers can be allocated from.
    pub fn connect(socket: impl AsRef<Path>, memory: usize) -> Result<Self, ConnectError> {
        let node = HostNode::connect(socket, memory)?;
        let spinning = Spinning::ON_HOST;
        Ok(Node { node, spinning })
    }

    /// Becomes the node behind a PCI function that vfio-pci drives, with `memory` bytes that buffers can
    /// be allocated from, pinned.
    #[cfg(feature = "vfio")]
    pub fn open_vfio(function: impl AsRef<Path>, memory: usize) -> Result<Self, ConnectError> {
        let node = qnic_vfio::open(function.as_ref(), memory)?;
        let spinning = Spinning::IN_GUEST;
        Ok(Node { node, spinning })
    }

    /// The node itself, for what only a node in a process can do.
    pub fn node(&self) -> &HostNode {
        &self.node
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
        match self.node.register(&mut call)? {
            Some(process) => Ok(Registration::Done(Box::new(process))),
            None => Ok(Registration::refused(&call)),
        }
    }

    fn allocate(&self, length: usize) -> Result<Arc<dyn Memory>, CallError> {
        Ok(Arc::new(self.node.allocate(length)?))
    }

    fn open_pools(&self, call: &mut OpenPools) -> Result<Option<Box<dyn Pools>>, CallError> {
        let pools = self.node.open_pools(call)?;
        Ok(pools.map(|pools| Box::new(pools) as Box<dyn Pools>))
    }

    fn info(&self) -> Result<uapi::Info, CallError> {
        let mut info = uapi::Info::default();
        self.node.info(&mut info)?;
        Ok(info)
    }

    fn counters(&self, call: &mut uapi::Counters) -> Result<(), CallError> {
        Ok(self.node.counters(call)?)
    }

    fn spin_budget(&self, spinners: usize) -> Duration {
        spin::budget(spinners, self.spinning.processors)
    }

    fn looks(&self) -> u32 {
        self.spinning.looks
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
