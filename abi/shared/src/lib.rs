//! Code that more than one side runs: NIC, driver, library, simulator.
//!
//! | module | |
//! |---|---|
//! | [`window`] | the process's side of its command queue: commands, doorbell, wake request |
//! | [`pool`] | both sides of the queues of shared pools (S1 to S4) |
//! | `region` | memory that a process maps and shares with its NIC or with peers (feature `region`) |
//! | [`timing`] | timer wheel, round-trip estimator and congestion control of all protocols that repeat what is lost |
//!
//! The layouts stand in `qnic-abi`, which has no behaviour. The queues are written against
//! [`qnic_abi::SharedMemory`]: a mapping in a kernel, a mapping in a process, loom's atomics in the
//! models, simulated memory.
#![no_std]
#![cfg_attr(not(feature = "region"), forbid(unsafe_code))]

extern crate alloc;
#[cfg(any(test, feature = "region"))]
extern crate std;

pub mod pool;
#[cfg(feature = "region")]
pub mod region;
pub mod timing;
pub mod window;
