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
//!                             oracle: checks at that moment
//! ```
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
//! | module | holds |
//! |---|---|
//! | `schedule`, `task` | clock, event queue, chance; tasks |
//! | `memory`, `kernel` | frames and what may touch them; address spaces, swap, reclaim |
//! | `platform`, `device_memory` | the system under the driver core, and what it allocates for the NIC |
//! | `node`, `wire`, `late` | a NIC as its device process drives it; the wires; frames that arrive once more |
//! | `process`, `rdma_worker` | what a process stands on; processes that transfer |
//! | `sync_worker`, `mapping` | processes that synchronize: the library as it is, on a provider of its own |
//! | `oracle`, `expected_bytes`, `increments`, `sessions` | what must hold, checked as soon as it can be known |
//! | `checker` | the same for locks, semaphores and wait queues |
//! | `message_worker`, `message_oracle` | processes that send and receive messages; what must hold of these |
//! | `collective_worker`, `collective_oracle` | processes that form groups and take part in collectives; what must hold of these |
//! | `name_worker`, `name_oracle` | processes that use names of processes; what must hold of these |
//! | `datagram_worker`, `datagram_oracle` | drivers that send and receive datagrams; what must hold of these |
//! | `memory_worker` | servers and clients of remote memory; what reads may return |
//! | `stream_worker`, `stream_oracle` | processes with streams over shared pools; what must hold of these |
//! | `queue` | the command queue and the completion queue of a process |
//! | `watched` | a process as the oracles see it |
//! | `routes` | which routes were disturbed a short time ago |
//! | `settings`, `world` | what a seed makes of the options; one simulation |
//! | [`campaign`], [`throughput`] | many seeds, making a failure smaller; a stream of writes |
//!
//! What is checked and which planted bugs are found: `docs/simulation.md`.
#![forbid(unsafe_code)]

pub mod campaign;
mod common;
mod expected_bytes;
mod links;
mod machine;
mod node;
mod process;
mod routes;
mod schedule;
mod settings;
mod task;
pub mod throughput;
mod workloads;
mod world;

pub use campaign::{run, run_traced, Failure};
pub use settings::{Faults, Options};
pub use world::Report;
