//! The qnic driver core on an ordinary process: host mode, without any VM (X2), and what VFIO has in
//! common with it (X11).
//!
//! ```text
//!   process                                        device process
//!   ┌──────────────────────────────┐  vhost-user   ┌──────────────┐
//!   │ library ── HostNode          ├───(socket)───►│              │
//!   │    │         │ driver core   │               │     NIC      │
//!   │    │ window  │ vrings        │   eventfds    │              │
//!   │  SRAM ◄──────┼───────────────┼─(SHMEM_MAP)───┤ SRAM memfd   │
//!   │  arena ──────┴───────────────┼─(memory table)►  DMA         │
//!   └──────────────────────────────┘               └──────────────┘
//! ```
//!
//! In a guest the kernel manages virtual memory; here there is one arena instead: a sealed memfd that
//! this process maps and the device reaches. Only memory in it can be exported.
//!
//! A node is brought up on an [`Attachment`], and reaches its device by a [`Transport`] from then on.
//! Those of host mode are a vhost-user session; crate `qnic-vfio` has those of a PCI function. All
//! else is the same for both.
//!
//! | module | knows |
//! |---|---|
//! | `arena`, `device_memory` | the arena and its pages, also as the NIC sees them |
//! | `ring` | the driver's side of a virtqueue |
//! | `control`, `events` | the two queues of the driver |
//! | `transport` | what a node asks of its device |
//! | `front_end` | the vhost-user session |
//! | `platform` | this process as the platform of the driver core |
//! | `threads`, `timer` | interrupts, datagrams and page faults |
//! | `node`, `pools`, `calls` | the interface of the crate |

mod arena;
mod calls;
mod control;
mod device_memory;
mod error;
mod events;
mod front_end;
mod node;
mod platform;
mod pools;
mod ring;
mod threads;
mod timer;
mod transport;

pub use device_memory::HostMemory;
pub use error::{ConnectError, HostError};
pub use node::{HostNode, HostProcess, WeakNode, MIN_ARENA};
pub use platform::HostPlatform;
pub use pools::HostPools;
pub use qnic_driver::Config;
pub use qnic_driver::{datagram, platform::DeviceMemory, remote_memory, CallError};
pub use qnic_shared::region::SharedRegion;
pub use transport::{Addresses, Attachment, Transport, Virtqueue};
