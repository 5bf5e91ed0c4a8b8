//! What a node asks of the device that it is brought up on.
//!
//! ```text
//!   node ─► Attachment   once, in this order: config, reach, transport, start
//!        └► Transport    from then on: notifications, an end, and what tells of the device's end
//! ```
//! There are two: the vhost-user session of host mode ([`crate::HostNode::connect`]), and a PCI function
//! behind VFIO (crate `qnic-vfio`).
//!
//! # Invariants
//! - Virtqueues are at the addresses that [`Attachment::reach`] has given for the arena's pages.
//! - After [`Transport::stop`] no request is sent, and the interrupt thread ends.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use qnic_abi::attach::CONFIG_SIZE;
use qnic_driver::Config;
use qnic_shared::region::SharedRegion;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EventFd;

use crate::error::ConnectError;

/// Where the device finds the pages of the arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addresses {
    /// At their offsets in it.
    Offsets,
    /// In these page frames; they stay there, pinned.
    Frames(Vec<u32>),
}

/// A virtqueue, as the device is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Virtqueue {
    /// Number of descriptors.
    pub size: u16,
    /// Where the device finds descriptors, available and used ring.
    pub addresses: [u64; 3],
    /// The device interrupts when it has used a buffer; without, the queue is a doorbell, which carries
    /// none.
    pub interrupts: bool,
}

/// A device that was found, and that a node is to be brought up on. It is kept until the node ends.
pub trait Attachment: Send + Sync + 'static {
    /// Reads the configuration space.
    ///
    /// # Errors
    /// [`ConnectError`]
    fn config(&mut self) -> Result<[u8; CONFIG_SIZE], ConnectError>;

    /// Most descriptors of a queue.
    ///
    /// # Errors
    /// [`ConnectError`]
    fn queue_size_max(&mut self) -> Result<u16, ConnectError>;

    /// Lets the device reach the arena, which is mapped as `arena` from `file`. The node keeps it
    /// mapped longer than it keeps this.
    ///
    /// # Errors
    /// [`ConnectError`]
    fn reach(&mut self, arena: &SharedRegion, file: &OwnedFd) -> Result<Addresses, ConnectError>;

    /// What the threads of the node use.
    ///
    /// # Errors
    /// [`ConnectError`]
    fn transport(&mut self, config: &Config) -> Result<Arc<dyn Transport>, ConnectError>;

    /// Starts the virtqueues, which interrupt by `interrupt`, and returns the SRAM, mapped. The threads
    /// of the node run by now.
    ///
    /// # Errors
    /// [`ConnectError`]
    fn start(
        &mut self,
        queues: &[Virtqueue],
        interrupt: &EventFd,
    ) -> Result<SharedRegion, ConnectError>;
}

/// The way to a device.
pub trait Transport: Send + Sync + 'static {
    /// Notifies the device of virtqueue `queue`, if there is such a one. Never blocks.
    fn notify(&self, queue: usize);

    /// Stops the device: when this returns, it accesses no memory of the node that anything else may
    /// have next. A second call does nothing.
    fn stop(&self);

    /// What the interrupt thread waits for besides interrupts: descriptors and their events.
    fn sources(&self) -> Vec<(RawFd, EventSet)>;

    /// Serves the source with this index. Returns false if the device is gone or was stopped.
    fn serve(&self, source: usize) -> bool;

    /// Returns true if the end of the device is seen only in its silence, so that the node has to ask
    /// it now and then.
    fn is_silent(&self) -> bool;
}
