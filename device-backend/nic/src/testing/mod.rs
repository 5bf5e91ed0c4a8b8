//! Simulated nodes, for tests of this crate and of others: memory, SRAM, a
//! driver that maps pages, processes that issue commands, and a cluster of NICs
//! under virtual time. One thread; nothing here depends on a clock or on chance.
//!
//! ```text
//!   Cluster ── nodes: SimNode ── nic: Nic
//!      │                   ├──── host: SimHost (Sram, Memory)
//!      │                   └──── driver: SimDriver (pages, faults, replies)
//!      └── now: virtual time
//!   SimProcess: the library's side of one process: issues commands, looks at
//!               its host area, reads and writes its virtual memory
//! ```

mod cluster;
mod driver;
mod lossy_wire;
mod memory;
mod process;

pub use cluster::{Cluster, SimNode};
pub use driver::SimDriver;
pub use lossy_wire::LossyWire;
pub use memory::{Memory, SimHost, Sram};
pub use process::{SimProcess, SimSegment};
