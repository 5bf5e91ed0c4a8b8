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
//! `handle_frame` never sends: a NIC that received a frame must be polled, so that
//! its answers go out; unless only writes came whose sender has taken a receipt
//! ([`Nic::receipt`], [`Nic::is_undisturbed`]). Several NICs in one thread are polled in turn until all of
//! them are idle in one round.
//!
//! # The parts
//! ```text
//!   nic ──────┬─────────────┬────────────────────┐       entry points; joins the others
//!             ▼             ▼                    ▼
//!   protocols: rdma, atomic, directory           │       what commands and frames mean
//!             │             │                    │
//!             ▼             ▼                    ▼
//!   core: processes, queues, turns, pages    transport: sessions, numbers, windows
//! ```
//! Arrows of `use` point down. Core and transport do not know each other, nor kinds and
//! opcodes; protocols do not know each other. A test holds this against the source.
//!
//! # Path of a write
//! ```text
//!   window ─► core::queue ─► rdma ─► core::scheduler ─► rdma ─► nic::send ─► transport ─► wire
//!               ▲                                        │                       │
//!               │ completion                        core::pages                  ▼ (peer)
//!   host area ◄─┴──────────────── settled ◄── transport ◄── wire    nic::receive ─► rdma ─► core::pages
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `nic` | [`Nic`]: entry points, and what joins the parts |
//! | `core` | what every protocol stands on |
//! | `transport` | peers, sessions, windows, timers (N15, N18, U1 to U8) |
//! | `protocols` | one folder each (N3, N9 to N11, N20, N22, N24) |
//! | [`mod@env`], [`NicConfig`] | what the NIC needs from the world, and its bounds |
//! | `counters` | the table of all that a NIC counts |
//! | `budget`, `occupants`, `table` | reports for people: what a NIC keeps, for which processes and peers, and what it holds |
//! | `injection` | faults of queue pairs that are injected from outside |
//! | [`mod@stages`] | how long the parts of an operation's life take |
//! | [`mod@trace`] | what happens to single operations, while a trace is on |
//! | `ids`, `frame`, `control_reply` | names, frames that have arrived, bytes of replies |
#![forbid(unsafe_code)]

mod budget;
mod config;
mod control_reply;
mod core;
mod counters;
pub mod env;
mod frame;
mod ids;
mod injection;
mod letter;
mod nic;
mod occupants;
mod protocols;
pub mod stages;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
mod transport;
mod word;

pub use budget::Budget;
pub use config::{Limits, NicConfig, MAX_WINDOW, SMALLEST_WINDOW, STAGED_OVERHEAD};
pub use core::page_table;
pub use counters::Counters;
pub use env::{
    Channel, Host, HostMemory, Order, OutOfRange, Path, Payload, Receipt, Sent, Ticket, Time, Wire,
};
pub use injection::QueuePairFaults;
pub use nic::{Nic, Progress};
pub use occupants::{PeerReport, VniReport};
pub use protocols::order_of;
pub use table::{Table, TableKind, MAX_ROWS};
