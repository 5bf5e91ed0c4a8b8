//! Platform-independent logic of the qnic guest driver.
//!
//! The driver gives processes their windows, keeps the shadow page table in SRAM
//! in step with the kernel's, brings in pages that the NIC misses, and wakes
//! processes. How memory is mapped, a page faulted in or a thread put to sleep is
//! the [`Platform`]'s business: the same core runs in a Linux module, in host
//! mode and in tests.
//!
//! # Calling order
//! ```text
//!   check_config(bytes)          before any queue exists
//!   (platform: queues up, SRAM mapped, device ready, replies are delivered)
//!   Driver::start(platform, config)
//!   ┌─► handle_event(event)       interrupt: each event, while event_room()
//!   │   serve_fault()             workers, several at once, until it returns false
//!   │   register(…) → Process     a process opens the device
//!   │     export, unexport, import, wait, reset_queue, close
//!   └── info(…), check_device()  every few seconds
//!   begin_removal()               the device goes away: everybody wakes and fails
//!   (platform: device reset; requests under way fail)
//!   detach()                      nothing touches the SRAM from here on
//! ```
//!
//! # Locks
//! Outermost first; a lock may be taken while those before it are held.
//!
//! | lock | kind | guards | held while calling the device |
//! |---|---|---|---|
//! | segments of a process | sleeping | its names, keys, regions (N2) | yes |
//! | pages of a region | sleeping | which frames it has entered; the one that invalidation takes (N8) | no |
//! | regions of a process | spin | list of regions, for the fault service | no |
//! | slots | spin | VNIs and ports | no |
//! | fault queue | spin | faults to serve | no |
//! | table | spin | rows, reverse mappings, keys, dirty bits in SRAM (N5) | no |
//!
//! No two spin locks are held at once, and nothing is allocated under one.
//!
//! Allocation: [`platform`]. Safety towards the user: every number that comes
//! from a process or the device is checked here; none leads to a panic.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bringup;
mod control;
mod counters;
mod driver;
mod error;
mod exports;
mod faults;
mod imports;
pub mod platform;
mod process;
mod region;
pub mod shadow;
mod slots;
#[cfg(test)]
mod testing;

pub use bringup::{check_config, Config};
pub use driver::{Driver, Handled};
pub use error::{CallError, StartError};
pub use platform::Platform;
pub use process::Process;
pub use region::{Installed, Region};
