//! Shared pools of a process (S1 to S5; [`qnic_abi::pool`]).
//!
//! ```text
//!   process ──── queues of the range ──── Shared ──── datagram port ──── NIC
//!                                           ▲
//!   open, kick, wait, poll, info ── Pools ──┘
//! ```
//! The pools of a file are one upper module of the datagrams: input frames are the receive buffers
//! of its port, output frames are sent from where they are. The process has no window, no doorbell
//! and no host area (S5).
//!
//! The pages and the port with its message slots are charged to the process; the driver keeps
//! nothing else for it. What the process writes into the range is read once and checked by
//! [`qnic_shared::pool`].

mod range;
mod shared;
#[cfg(test)]
mod tests;

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use qnic_abi::pool::{events, OpenPools, PoolInfo, PoolKick, PoolWait, Shape, FIRST_POOL_PORT};
use qnic_abi::{uapi, Status};

use crate::datagram::{BindError, Binding, PortConfig};
use crate::driver::Driver;
use crate::error::CallError;
use crate::memory::MemoryManager;
use crate::platform::{Waited, Waiters};
use shared::Shared;

/// How long a wait without a timeout polls the NIC, in nanoseconds. A process that goes on waiting
/// calls again, after it has served its own timers.
const LOOK_NS: u64 = 250_000;

/// How long pools that are being closed send frames that the process has handed over, in nanoseconds.
const LINGER_NS: u64 = 100_000_000;

/// Input frames of all pools of a NIC: three quarters of the receive buffers that it takes by default. The rest
/// are those of modules of the kernel, so no process can have the buffers of remote memory refused.
const MOST_FRAMES: u32 = 12_288;

/// A part of [`MOST_FRAMES`].
struct Frames<P: MemoryManager> {
    driver: Arc<Driver<P>>,
    count: u32,
}

impl<P: MemoryManager> Frames<P> {
    /// So many, if there are.
    fn take(driver: &Arc<Driver<P>>, count: u16) -> Option<Self> {
        let (all, count) = (&driver.pool_frames, u32::from(count));
        let more = |all: u32| all.checked_add(count).filter(|all| *all <= MOST_FRAMES);
        let taken = all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Frames {
            driver: driver.clone(),
            count,
        })
    }
}

impl<P: MemoryManager> Drop for Frames<P> {
    fn drop(&mut self) {
        let all = &self.driver.pool_frames;
        all.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// The pools of one process. Dropping them closes them. It may sleep: frames that the process has
/// handed over are sent first, for up to a tenth of a second.
pub struct Pools<P: MemoryManager> {
    /// Dropped first: after that the NIC has no page of the range.
    port: Binding<P>,
    shared: Arc<Shared<P>>,
    driver: Arc<Driver<P>>,
    /// Dropped behind the port.
    _frames: Frames<P>,
}

impl<P: MemoryManager> Drop for Pools<P> {
    /// What a process has sent before it ends is sent.
    fn drop(&mut self) {
        let sent = || !self.is_open() || self.shared.has_sent_all(&self.port);
        self.port.serve_until(&sent, LINGER_NS);
    }
}

impl<P: MemoryManager> Driver<P> {
    /// Opens pools (S1), and waits until the NIC has all their input frames
    /// ([`Port::wait_posted`]). Returns `Ok(None)` if that was refused; the call's status has the reason.
    ///
    /// [`Port::wait_posted`]: crate::datagram::Port::wait_posted
    ///
    /// # Errors
    /// `NoDevice`, `NoMemory`.
    pub fn open_pools(
        self: &Arc<Self>,
        call: &mut OpenPools,
    ) -> Result<Option<Pools<P>>, CallError> {
        let (inputs, outputs) = (call.inputs.get(), call.outputs.get());
        let frame_bytes = usize::try_from(call.frame_bytes.get()).unwrap_or(usize::MAX);
        let wanted = call.port.get();
        let Some(shape) = Shape::new(frame_bytes, inputs.into(), outputs.into()) else {
            call.status = Status::BadLength.code().into();
            return Ok(None);
        };
        if wanted != 0 && wanted < FIRST_POOL_PORT {
            call.status = Status::AccessDenied.code().into();
            return Ok(None);
        }
        let Some(frames) = Frames::take(self, inputs) else {
            call.status = Status::Exhausted.code().into();
            return Ok(None);
        };
        let shared = Arc::new(Shared::new(self.platform(), shape)?);
        let config = PortConfig {
            receives: inputs,
            steered: 0,
            messages: outputs,
        };
        let ports = match wanted {
            0 => FIRST_POOL_PORT..=u16::MAX,
            port => port..=port,
        };
        let mut bound = Err(BindError::InUse);
        for port in ports {
            bound = self.bind_datagrams(port, &config, shared.clone());
            if !matches!(bound, Err(BindError::InUse)) {
                break;
            }
        }
        let (status, port) = match bound {
            Ok(port) => (Status::Ok, Some(port)),
            Err(BindError::InUse) => (Status::PortInUse, None),
            Err(BindError::Exhausted | BindError::Invalid) => (Status::Exhausted, None),
            Err(BindError::NoDevice) => return Err(CallError::NoDevice),
            Err(BindError::NoMemory) => return Err(CallError::NoMemory),
        };
        call.status = status.code().into();
        let Some(port) = port else { return Ok(None) };
        shared.post_all(&port);
        // Other processes may send as soon as this process tells them the port.
        port.wait_posted();
        call.port = port.address().port.into();
        call.node = port.address().node.0.into();
        call.bytes = (shape.bytes() as u64).into();
        let driver = self.clone();
        Ok(Some(Pools {
            port,
            shared,
            driver,
            _frames: frames,
        }))
    }
}

impl<P: MemoryManager> Pools<P> {
    /// Makes the driver look at the queues (S4).
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`.
    pub fn kick(&self, call: &mut PoolKick) -> Result<(), CallError> {
        if call.reserved.get() != 0 {
            return Err(CallError::Invalid);
        }
        self.check()?;
        self.shared.kicked(self.port.now_ns());
        let platform = self.driver.platform();
        platform.undisturbed(&mut || self.shared.serve(&self.port));
        call.status = Status::Ok.code().into();
        Ok(())
    }

    /// Blocks until one of the events of the call is there (S3). Without a timeout it does not sleep,
    /// but polls the NIC for a while.
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`, `Interrupted`, `TimedOut`.
    pub fn wait(&self, call: &mut PoolWait) -> Result<(), CallError> {
        let wanted = call.events.get();
        if wanted == 0 || wanted & !(events::INPUT | events::OUTPUT) != 0 {
            return Err(CallError::Invalid);
        }
        self.check()?;
        if self.shared.waits() {
            let platform = self.driver.platform();
            platform.undisturbed(&mut || self.shared.serve(&self.port));
        }
        let timeout = u64::try_from(call.timeout_ns.get()).ok();
        let there = || self.shared.ready() & wanted;
        let ready = || there() != 0 || !self.is_open();
        let waited = match timeout {
            Some(0) => {
                self.port.look(&ready, LOOK_NS);
                Waited::TimedOut
            }
            timeout => {
                if wanted & events::OUTPUT != 0 {
                    self.port.await_sends();
                }
                self.shared.waiters.wait(&ready, timeout)
            }
        };
        self.check()?;
        let there = there();
        match waited {
            Waited::TimedOut if there == 0 => return Err(CallError::TimedOut),
            Waited::Interrupted if there == 0 => return Err(CallError::Interrupted),
            Waited::Ready | Waited::TimedOut | Waited::Interrupted => {}
        }
        call.events = there.into();
        call.status = Status::Ok.code().into();
        Ok(())
    }

    /// The driver's counters for these pools.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn info(&self, call: &mut PoolInfo) -> Result<(), CallError> {
        if call.reserved.get() != 0 {
            return Err(CallError::Invalid);
        }
        *call = self.shared.info();
        Ok(())
    }

    /// Queries the route to a node (U8).
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`.
    pub fn path(&self, call: &mut uapi::Path) -> Result<(), CallError> {
        self.driver.path(call)
    }

    /// A page of the range, to be mapped into the process; `None` behind its end.
    pub fn page(&self, index: usize) -> Option<P::Memory> {
        self.shared.range.page(index)
    }

    /// The wait queue, for platforms on which threads can also wait otherwise (poll).
    pub fn waiters(&self) -> &P::Waiters {
        &self.shared.waiters
    }

    /// Returns true if an event is there that the process has asked for, or the device is
    /// gone: poll reports this as readable. Atomic.
    pub fn is_readable(&self) -> bool {
        if self.shared.wanted() != 0 || !self.is_open() {
            return true;
        }
        // It sleeps. Frames that were sent since its look raise another event, which wakes it.
        if self.shared.wants(events::OUTPUT) {
            self.port.await_sends();
        }
        false
    }

    /// Returns true if the device is there and works. Atomic.
    pub fn is_open(&self) -> bool {
        self.driver.is_alive() && !self.shared.is_gone()
    }

    fn check(&self) -> Result<(), CallError> {
        self.is_open().then_some(()).ok_or(CallError::NoDevice)
    }

    /// Length of the range in bytes.
    pub fn bytes(&self) -> usize {
        use qnic_abi::SharedMemory;
        self.shared.range.size()
    }
}
