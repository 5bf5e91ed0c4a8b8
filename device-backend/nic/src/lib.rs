//! The NIC control program: what runs on the network interface.
//!
//! It is one state machine per NIC, sans-IO: memory, SRAM, wire and time come in
//! as arguments ([`mod@env`]), and it holds no thread, clock, socket or file. The
//! same inputs give the same outputs.
//!
//! # Calling order
//! ```text
//!   start(now, host)                       after each (re)start of the driver
//!   ┌─► handle_control(now, host, wire, …)  request from the control queue
//!   │   handle_doorbell(doorbell)           a kick
//!   │   handle_frame(now, host, …)          a frame from a peer
//!   │   poll(now, host, wire)               bounded work: fetch, schedule, send
//!   │   poll_reply(), poll_event()          until None (events: while the driver has buffers)
//!   └── poll returned Busy? again. Idle for a while? prepare_sleep(host): true = sleep
//!   reset(now, host, wire)                 virtio reset: nothing touches the node after it
//! ```
//! `handle_frame` never sends: a NIC that took a frame must be polled, so that
//! its answers go out. Several NICs in one thread are polled in turn until all of
//! them are idle in one round.
//!
//! # Path of a write
//! ```text
//!   window ─fetch─► command ─► operation ─scheduler─► write ─► transport ─► wire
//!                                  ▲                    │           │
//!                                  │ lifecycle     page_table       ▼ (peer)
//!     host_area ◄── publish ───────┘                           deliver ─► page_table
//!                                                                 └──► host_area
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `fetch` | hot set, command queues, publication, sleeping (Q2, N12, P9) |
//! | `command` | from a raw slot to a checked command |
//! | `operation`, `order` | what runs, and in which order it counts as done |
//! | `scheduler` | two-level round robin (Q10) |
//! | `write`, `deliver` | RDMA write at source and destination (N9 to N11, N13, N18) |
//! | `read` | RDMA read at both ends |
//! | `atomic`, `wait_queue` | atomic operations at both ends (N20, N22, N24) |
//! | [`page_table`] | lockPage, unlockPage, unlockPageDirty (N4, N6, N7) |
//! | `fault` | page faults and who waits for them |
//! | `bounce` | frames that wait for their page (N14, N15) |
//! | `segment`, `import`, `control` | what the driver sets up (N1 to N3, Q9) |
//! | `transport` | sessions, sequences, windows (N15, N18, U1 to U8) |
//! | `lifecycle` | how operations, processes, segments and peers end |
//! | `host_area`, `notification`, `event`, `counters` | what processes, the driver and people are told |
#![forbid(unsafe_code)]

mod atomic;
mod bounce;
mod command;
mod config;
mod control;
mod counters;
mod deliver;
pub mod env;
mod event;
mod fault;
mod fetch;
mod host_area;
mod import;
mod lifecycle;
mod nic;
mod notification;
mod operation;
mod order;
pub mod page_table;
mod process;
mod read;
mod run;
mod scheduler;
mod segment;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transport;
mod wait_queue;
mod write;

pub use config::{Limits, NicConfig};
pub use env::{Channel, Host, HostMemory, OutOfRange, Path, Payload, Time, Wire};
pub use nic::{Nic, Progress};
