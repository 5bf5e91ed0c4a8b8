//! Shared pools of frames (S1 to S5): datagrams without a copy, sent and received from memory
//! that this process and the driver share.
//!
//! ```text
//!   Pools::output ─► OutputFrame: write, send ─────────► driver ─► NIC
//!   Pools::receive ─► InputFrame: read, drop ◄────────── driver ◄─ NIC
//! ```
//! A process with pools reaches no register of the device. Receiving costs no system call while
//! packets are there, and sending costs none while the driver is at work; [`Statistics`] counts the
//! system calls that were made. Packets may be lost, repeated and reordered, as on any datagram
//! network: [`crate::stream`] makes reliable streams of them, [`crate::datagram`] messages that are
//! longer than a frame.
//!
//! | module | |
//! |---|---|
//! | `shared` | the state of the pools, which all handles share |
//! | `frame` | frames that this process owns |

mod frame;
mod shared;

pub use frame::{InputFrame, OutputFrame};
pub(crate) use shared::Shared;
pub use shared::Statistics;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use qnic_abi::pool::{events, OpenPools, PoolInfo, FIRST_POOL_PORT};
use qnic_abi::NodeId;

use crate::core::retry;
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::provider::Provider;

/// Size and number of the frames of pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolOptions {
    /// Bytes of a frame, 256 to 32,768. One that is longer than a page is one packet where the route
    /// carries it; else it is split and joined, for which a pool needs many frames.
    pub frame_bytes: usize,
    /// Frames that can be received into, 1 to 1024, and up to 8 MiB.
    pub inputs: usize,
    /// Frames that can be sent from, the same.
    pub outputs: usize,
}

impl PoolOptions {
    /// Pools of so many frames of this size.
    pub const fn new(frame_bytes: usize, inputs: usize, outputs: usize) -> Self {
        PoolOptions {
            frame_bytes,
            inputs,
            outputs,
        }
    }
}

impl Default for PoolOptions {
    /// 256 frames of 4,096 bytes for each direction.
    fn default() -> Self {
        PoolOptions::new(4096, 256, 256)
    }
}

/// Shared pools, on a datagram port of this node.
///
/// Clones stand for the same pools, which are closed with the last of them and the last frame.
#[derive(Debug, Clone)]
pub struct Pools(Arc<Shared>);

impl Nic {
    /// Opens pools on a datagram port from 1024 up, or 0 for any free one (S1). Once they are
    /// open the NIC has their input frames: a packet that is sent from then on finds one.
    ///
    /// # Errors
    /// [`Error::ReservedPort`]; [`Error::Refused`] with `PortInUse`, `BadLength` or `Exhausted`;
    /// [`Error::System`] where the driver has no pools.
    pub fn open_pools(&self, port: u16, options: PoolOptions) -> Result<Pools> {
        Pools::open(self.provider(), port, options)
    }
}

impl Pools {
    /// See [`Nic::open_pools`].
    pub(crate) fn open(
        provider: &Arc<dyn Provider>,
        port: u16,
        options: PoolOptions,
    ) -> Result<Self> {
        if (1..FIRST_POOL_PORT).contains(&port) {
            return Err(Error::ReservedPort(port));
        }
        let number = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let mut call = OpenPools {
            port: port.into(),
            frame_bytes: (options.frame_bytes.min(1 << 20) as u32).into(),
            inputs: number(options.inputs).into(),
            outputs: number(options.outputs).into(),
            ..OpenPools::default()
        };
        let what = || format!("open pools on port {port}");
        let pools = retry(what, || provider.open_pools(&mut call))?;
        Error::check(call.status.get(), what)?;
        let pools = pools.ok_or_else(|| Error::Incompatible(what()))?;
        let shared = Shared::new(pools, &call, provider.clone())?;
        Ok(Pools(Arc::new(shared)))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Their datagram port.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Bytes of a frame.
    pub fn frame_bytes(&self) -> usize {
        self.0.shape.frame_bytes()
    }

    /// A frame to fill and send; `None` if all are on their way.
    ///
    /// # Errors
    /// [`Error::Incompatible`] if the driver breaks the rules of the queues.
    pub fn output(&self) -> Result<Option<OutputFrame>> {
        OutputFrame::take(&self.0)
    }

    /// The next packet that has come; `None` if there is none now.
    ///
    /// # Errors
    /// [`Error::Incompatible`]
    pub fn receive(&self) -> Result<Option<InputFrame>> {
        InputFrame::take(&self.0)
    }

    /// Makes sure that the driver notices the frames that were sent or dropped. Waits do so by
    /// themselves.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::System`]
    pub fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    /// Blocks until a packet is there.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::DeviceGone`]
    pub fn wait_input(&self, timeout: Option<Duration>) -> Result<()> {
        self.0.wait(events::INPUT, timeout)
    }

    /// Blocks until a frame can be filled.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::DeviceGone`]
    pub fn wait_output(&self, timeout: Option<Duration>) -> Result<()> {
        self.0.wait(events::OUTPUT, timeout)
    }

    /// Asks to be woken for input, and returns a descriptor for poll or epoll; `None` if there is
    /// input already. Ask again each time before blocking.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::System`]
    pub fn poll_input(&self) -> Result<Option<BorrowedFd<'_>>> {
        self.0.poll(events::INPUT)
    }

    /// What this process has counted.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// What the driver has counted.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::System`]
    pub fn info(&self) -> Result<PoolInfo> {
        self.0.info()
    }
}
