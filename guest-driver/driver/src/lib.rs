//! Platform-independent logic of the qnic guest driver.
//!
//! The driver gives processes their windows, keeps the shadow page table in SRAM
//! consistent with the kernel's page tables, faults in pages that the NIC misses, and
//! wakes processes. The platform maps memory, faults pages in and puts threads to
//! sleep ([`Platform`], [`MemoryManager`]): the same core runs in a
//! Linux module, in host mode, in the simulator and in tests.
//!
//! # Modules
//! Arrows of `use` point up this table, never down; within a folder they are those
//! that the folder's documentation draws.
//!
//! | module | knows |
//! |---|---|
//! | [`platform`] | the services of the system beneath: locks, wait queues, time, control queue |
//! | `error`, `paged` | why bring-up or a call fails; words in several pages |
//! | `device` | the NIC: bring-up, requests and responses, wake generations, counters, loss |
//! | `memory` | [`shadow`] page table, regions, the [`MemoryManager`] |
//! | `directory` | what a process exports and imports, by name |
//! | [`datagram`] | unreliable datagrams of upper modules, over a VNI of the driver's own |
//! | `process` | a registered process, and the table of VNIs and ports |
//! | [`verbs`] | objects, rings and registered memory of contexts of libibverbs (X18) |
//! | [`remote_memory`] | a volume whose blocks are kept by other nodes, and the store that keeps such blocks (H9) |
//! | `driver` | the entry points: start and removal, events, registration, calls |
//! | `pool` | shared pools of processes, over datagrams |
//!
//! # Calling order
//! ```text
//!   check_config(bytes)          before any queue exists
//!   (platform: queues up, SRAM mapped, device ready, responses are delivered)
//!   Driver::start(platform, config)
//!   ┌─► handle_event(event)       interrupt: each event, while event_room()
//!   │   serve_fault()             workers, several at once, until it returns false
//!   │   serve_datagrams()         when Platform::schedule_datagrams has asked for it
//!   │   bind_datagrams(…) → Binding   an upper module of the kernel
//!   │   open_pools(…) → Pools     a process opens shared pools: kick, wait, info
//!   │   register(…) → Process     a process opens the device
//!   │     export, unexport, import, wait, reset_queue, close
//!   │   open_verbs(…) → VerbsContext  a program opens the device of libibverbs
//!   └── info(…), check_device()  every few seconds
//!   begin_removal()               the device goes away: all waiters wake and fail
//!   (platform: device reset; requests in flight fail)
//!   detach()                      nothing accesses the SRAM from here on
//! ```
//!
//! # Locks
//! Outermost first; a lock may be taken while those before it are held.
//!
//! | lock | kind | guards | held while calling the device |
//! |---|---|---|---|
//! | binding | sleeping | binding of datagram ports | yes |
//! | growth of verbs' table | sleeping | room for objects of verbs | no |
//! | commands of a context | sleeping | the command queue of a context of verbs | no |
//! | segments of a process | sleeping | its names, keys, regions (N2) | yes |
//! | pages of a region | sleeping | which frames it has inserted; the one that invalidation takes (N8) | no |
//! | windows | sleeping | stores to windows | no |
//! | regions of a process | spin | list of regions, for the fault service | no |
//! | slots | spin | VNIs and ports | no |
//! | wakes | spin | wake generations, by VNI | no |
//! | fault queue | spin | faults to serve | no |
//! | engine | spin | which engine datagrams have, if any | no |
//! | verbs objects | spin | objects by token; their events are handed up under it | no |
//! | pools | spin | which frames a process has, and the queues of its range | no |
//! | datagrams | spin | ports, buffers, messages, and the driver's own queues | no |
//! | page table | spin | rows, reverse mappings, keys, dirty bits in SRAM (N5) | no |
//!
//! No two spin locks are held at once, and nothing is allocated under one.
//!
//! Allocation: see [`platform`]. Safety against users: every number that comes from a process or
//! the device is checked here, and none can cause a panic.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod datagram;
mod device;
mod directory;
mod driver;
mod error;
mod memory;
mod paged;
pub mod platform;
mod pool;
mod process;
pub mod remote_memory;
#[cfg(test)]
mod testing;
pub mod verbs;

pub use device::{check_config, Config};
pub use driver::{Driver, Handled, Process, VerbsContext};
pub use error::{CallError, Failure, StartError};
pub use memory::{shadow, MemoryManager, Region, Resident};
pub use platform::Platform;
pub use pool::Pools;
