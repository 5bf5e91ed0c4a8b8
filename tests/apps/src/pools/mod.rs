//! Shared pools (S1 to S6): a server of streams and sockets, clients that check what they get back,
//! and what both cost beside TCP and UDP between the same machines.
//!
//! | role | |
//! |---|---|
//! | `pool-server` | streams that are checked, dropped or sent back; sockets that send back |
//! | `pool-client` | a stream and messages, compared with what was sent; or a stream without end |
//! | `pool-holder` | the largest pools, to be killed |
//! | `pool-bench` | latency, bandwidth and system calls |

mod bench;
mod client;
mod connection;
mod holder;
mod server;

pub(crate) use bench::{bench, BenchOptions};
pub(crate) use client::{client, ClientOptions};
pub(crate) use holder::{hold, HolderOptions};
pub(crate) use server::{serve, ServerOptions};

/// Datagram port on which the server accepts streams; its TCP port, too.
const STREAM_PORT: u16 = 2000;
/// Datagram port of the server's socket; its UDP port, too.
const SOCKET_PORT: u16 = 2001;
