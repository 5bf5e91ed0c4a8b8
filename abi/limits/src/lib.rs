//! What a configuration names and bounds of devices and NICs, as plain numbers and their defaults.
//!
//! | module | |
//! |---|---|
//! | `device` | numbers of nodes, the virtio identity, how many of each thing there can be: part of the ABI, and `qnic-abi` has all of it where it belongs |
//! | `nic` | [`Limits`]: bounds of everything in a NIC that could grow, and of its times |
//!
//! The cluster tool checks configurations with this crate. So it is built without layouts and
//! without a NIC.
#![no_std]
#![forbid(unsafe_code)]

mod device;
mod nic;

pub use device::*;
pub use nic::{Limits, MAX_WINDOW, SMALLEST_WINDOW, STAGED_OVERHEAD};
