//! Client and server as upper modules of datagrams: each has a port, and a lock around its state
//! machine.
//!
//! ```text
//!   user ── read, write ──► Volume ─┐                     ┌─ Memory ◄── leave, status ── user
//!        ◄── VolumeUser ──          │ lock                │ lock
//!                             Client state machine   Server state machine
//!                                   │ Upper               │ Upper
//!                                   └────── datagrams ────┘
//! ```
//! Under the lock the state machine is asked what there is to do, a few things at a time; they
//! are done without it, since the port has a lock of its own, and a user may come back with the
//! next request. Neither sleeps nor allocates after it is made, but for being made and ended.
//!
//! # Stack
//! Reads and writes may come from a thread whose stack is nearly used up: one that pages out. So
//! they only leave a request, and have the port's deadline served at once; what follows is done
//! there. [`BATCH`] bounds what is on the stack meanwhile.
//!
//! # Pages
//! A page that is to be read in is posted as a steered buffer before the request is sent, so the
//! page lands where it is wanted, without a copy; only if somebody wastes that buffer, the page
//! comes in one of the port's and is copied ([`VolumeStatus::pages_copied`]). A page that is
//! written is sent from where it is. A server keeps the page that the data has come in, and gives
//! its port another one.

mod memory;
mod page;
mod requests;
mod volume;

pub use memory::{Memory, MemoryStatus, ServeError};
pub use volume::{AttachError, Volume, VolumeStatus, VolumeUser};

/// Messages and results that are taken from a state machine at a time.
const BATCH: usize = 4;
