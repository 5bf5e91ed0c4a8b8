//! Remote memory: a volume whose blocks live in the memory of other nodes (H9;
//! docs/remote-memory.md).
//!
//! Two state machines without a clock, a thread or a socket. Calls bring in messages and times,
//! and take out messages and results; nothing happens in between:
//!
//! ```text
//!        read, write                                          pages of its memory
//!            │   ▲ poll_completion                                    │
//!   ┌────────▼───┴──┐  poll_transmit ─► datagrams ─► handle_message ┌─▼──────────┐
//!   │    Client     │                                               │   Server   │
//!   │ versions,     │  handle_message ◄─ datagrams ◄─ poll_transmit │ pages by   │
//!   │ holders       │                                               │ client and │
//!   └───────▲───────┘                                               │ block      │
//!           │ tick at deadline()                                    └────────────┘
//! ```
//!
//! The *client* decides everything: it alone knows the newest version of each block, and which servers
//! have acknowledged it. A *server* only answers: for each client and block, it keeps the newest
//! version that it has received.
//!
//! | module | knows |
//! |---|---|
//! | `wire` | messages on their way in and out |
//! | `client` | a volume: requests, replicas, repair |
//! | `server` | a store of pages: clients, quotas, leaving |
//! | `upper` | both on ports for datagrams ([`crate::datagram`]) |
//! | `calls` | both as calls of the character device ([`qnic_abi::volume`]) |
//!
//! # Pages
//! `P` is a handle of a page, which is moved and not copied: its holder owns the page. The page of
//! a write belongs to the block request, and is lent to each transmission ([`Transmit::data`])
//! until its [`Ticket`] comes back. A server keeps the very page that a write has arrived in. The
//! code here never reads a page.
//!
//! # Allocation
//! [`Client::new`] and [`Server::new`] allocate all memory. No other call
//! allocates, because paging out must not need memory. `tests/remote_memory` counts allocations.

pub(crate) mod calls;
mod client;
mod histogram;
mod queue;
mod server;
mod upper;
mod wire;

pub use client::{
    AttachRefusal, Client, ClientCounters, ClientState, Completion, Config as ClientConfig,
    ConfigError, Done, Failure, Limits, Refusal, Repair, ServerState, ServerStatus, MAX_REPLICAS,
    MAX_SERVERS,
};
pub use histogram::{Histogram, LATENCY_CLASSES};
pub use server::{Config as ServerConfig, Server, ServerConfigError, ServerCounters, MAX_CLIENTS};
pub use upper::{AttachError, Memory, MemoryStatus, ServeError, Volume, VolumeStatus, VolumeUser};
pub use wire::{Arrival, Ticket, Transmit};
