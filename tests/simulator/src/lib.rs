//! Deterministic simulation of qnic clusters (X3, U10): the real NIC
//! ([`qnic_nic`]), the real driver core ([`qnic_driver`]), the real emulators of
//! the links, and the library's own queue code, many nodes in one thread under virtual
//! time. Everything follows from one seed; a seed repeats a failure exactly.
//!
//! ```text
//!   worker (task) ─calls─► driver core ──Platform──► machine: kernel, memory, control queue
//!      │ window, host area                              ▲ │ requests, event buffers
//!      ▼                                                │ ▼
//!    SRAM ◄─────────────────── NIC, polled by the world ── wires: link emulators
//!                               │ each store to memory
//!                               ▼
//!                             oracle of its workload: checks at that moment
//! ```
//!
//! Arrows of `use` go one way, from the bottom of this table to its top:
//!
//! | module | holds |
//! |---|---|
//! | `schedule`, `task` | clock, event queue, chance, trace; tasks |
//! | `settings`, `routes`, `report` | what a seed makes of the options; routes that were disturbed; counts |
//! | `machine` | frames and what may touch them, address spaces, swap, reclaim, and the system under the driver core |
//! | `links` | the wires, frames that arrive late or once more, sessions |
//! | `common` | what the world and all tasks share: settings, slots, the phase |
//! | `process` | what a worker stands on: registration, queues, mapped memory; the life of a worker |
//! | `workload` | the traits: a workload is workers and their oracle |
//! | `workloads` | the workloads that there are, and the list of them; they do not import each other |
//! | `node`, `world` | a NIC as its device process drives it; one simulation |
//! | `mix` | which clusters the seeds of a campaign simulate |
//! | [`campaign`], [`throughput`] | many seeds, making a failure smaller; a stream of writes |
//!
//! # What holds
//! - The trace of a seed is the same bytes each time. All chance comes from the schedule; a workload
//!   draws its sizes from random numbers of its own, and an oracle draws none.
//! - An oracle learns of a command before the NIC can, and of a store of a NIC when it happens.
//! - A task runs only while the world waits for it, so nothing here is ever contended.
//!
//! # Calls that block
//! A driver call may wait: an import for a name, a fault worker for a page from the
//! disk, a process for a notification. Processes, fault workers and page reclaim
//! are *tasks*: stackful coroutines that run ordinary blocking code
//! (the module `task`). A wait of [`qnic_driver::Platform`] gives control back to the
//! world, which goes on with the next event; the reply, wake-up or time limit is an
//! event too. The request of a driver call is one event and its reply another, so
//! anything can happen between: eviction in the middle of an export, a reset in the
//! middle of an unexport. Exactly one thing runs at a time, so there is nothing
//! that could differ between two runs.
//!
//! Within one event a NIC, a driver or a process is not interrupted. Orders of
//! single loads and stores are the business of the loom models; everything coarser
//! is simulated here.
//!
//! What is checked and which planted bugs are found: `docs/simulation.md`.
#![forbid(unsafe_code)]

pub mod campaign;
mod common;
mod expected_bytes;
mod links;
mod machine;
mod mix;
mod node;
mod per_slot;
mod process;
mod report;
mod routes;
mod schedule;
mod settings;
mod task;
pub mod throughput;
mod workload;
mod workloads;
mod world;

pub use campaign::{run, run_traced, Failure};
pub use mix::{Mix, Mode};
pub use report::Report;
pub use settings::{Faults, Options};
