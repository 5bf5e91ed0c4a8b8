//! A node on VFIO (X11): the qnic driver core on a process of a guest that loads no module of ours.
//!
//! ```text
//!   guest                                             QEMU              device process
//!   ┌─────────────────────────────────────┐
//!   │ process                             │
//!   │  library ── HostNode (qnic-host)    │
//!   │    │          │ driver core, vrings │
//!   │    │ window   │                     │
//!   │  SRAM ◄───────┼── BAR 4 ────────────┼── shared-memory region ── NIC
//!   │  notify page ─┼── BAR 2 ────────────┼── ioeventfd ─────────────► "
//!   │  interrupt ◄──┼── MSI-X, eventfd ◄──┼── irqfd, IOMMU ◄────────── "
//!   │  arena ───────┴── pinned pages ─────┼── guest's memory ◄───DMA── "
//!   └──── vfio-pci, vfio_iommu_type1 ─────┘
//! ```
//! All but the way to the device is host mode's: crate [`qnic_host`].
//!
//! | module | knows |
//! |---|---|
//! | `find` | which PCI function it is |
//! | `capabilities` | where the function says that its registers are |
//! | `registers` | the common configuration of virtio, from reset to DRIVER_OK |
//! | `pinned` | how pages are pinned, and in which frames they are |
//! | `function` | the function that VFIO hands to this process, as the device of a node |
//! | `exit` | that a process exits which has not dropped its node |
//! | `error` | why that fails |
//!
//! # Invariants
//! - The device has guest-physical addresses: no IOMMU translates what it does. VFIO's mapping pins
//!   pages so that they stay in the frames that `/proc/self/pagemap` says.
//! - Pages are unpinned when the function is closed, and the kernel clears its bus mastering before
//!   that, however the process ends. QEMU stops the queues then, and the device process accesses no
//!   memory of the guest from there on (`nic_port.rs` of qnic-device).
//! - A function has one process: the kernel opens its group once.
//!
//! The transport of crate `virtio-drivers` cannot be used: its memory interface (`Hal`) is a type without
//! a value, and it has neither shared-memory regions nor pages that a process may map for notifications.

mod capabilities;
mod error;
mod exit;
mod find;
mod function;
mod pinned;
mod registers;

use std::path::Path;

use qnic_host::{ConnectError, HostNode};

pub use error::VfioError;
pub use find::{find, named};

/// Becomes the node behind the PCI function in `function`, a folder such as [`find`] returns, with
/// `memory` bytes that can be exported: a multiple of the page size, pinned as long as the node lives.
///
/// # Errors
/// [`ConnectError::Device`] with a [`VfioError`], and all others of a node.
pub fn open(function: &Path, memory: usize) -> Result<HostNode, ConnectError> {
    let node = HostNode::attach(function::Function::open(function, memory)?, memory)?;
    exit::leave_at_exit(&node);
    Ok(node)
}
