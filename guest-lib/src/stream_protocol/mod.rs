//! Reliable, in-order streams over datagrams (S6; docs/streams.md): the protocol alone.
//!
//! ```text
//!   program                       Endpoint                            pools
//!   connect, accept,  ──────────►   ├─ connections: sender, receiver
//!   write, read, finish             │                 ◄── handle_frame(now, from, frame)
//!   poll_changed  ◄────────────     │                 ──► poll_transmit(now)
//!                                   └─ timers         ◄── tick(now), ──► deadline()
//! ```
//! Sans-IO: no clock, thread, socket or source of random numbers. After each call that takes
//! input, the caller sends all frames that are to be sent, tells the program of changed connections, and
//! waits until the deadline at the latest.
//!
//! # Frames
//! The memory of frames belongs to the caller ([`SendFrame`], [`ReceivedFrame`]). Bytes are copied once
//! from the program into the frame that is sent, and once from the frame that came. A sent frame is kept,
//! to be sent again, until the peer has it; a received frame is kept until it is read.
//!
//! # Modules
//! Arrows of `use` point up this table.
//!
//! | module | |
//! |---|---|
//! | [`Address`], [`Error`], [`Failure`] | names, and the ways in which connections end |
//! | `buffer` | the interface to frames |
//! | [`Config`] | bounds and times |
//! | `budget` | frames that all connections share |
//! | `receiver`, `sender` | the two halves of a connection |
//! | `connection` | both, its timers, its stage of life |
//! | `endpoint` | all connections, and the calls |

mod address;
mod budget;
mod buffer;
mod config;
mod connection;
mod endpoint;
mod receiver;
mod sender;

pub use address::{Address, ConnectionId, Error, Failure};
pub use buffer::{ReceivedFrame, SendFrame};
pub use config::{BadConfig, Config, MAX_CONNECTIONS};
pub use endpoint::{Changed, Counters, Endpoint, Transmit};
