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
//! The state machine is asked under the lock for a few pieces of work at a time; they
//! are done without the lock, because the port has a lock of its own, and a user may call again with the
//! next request. Only making and ending them sleeps or allocates.
//!
//! # Stack
//! Reads and writes may come from a thread that pages out, whose stack is nearly used up. So
//! they only leave a request, and have the port's deadline served at once; the work is done
//! there. [`BATCH`] bounds what is on the stack meanwhile.
//!
//! # Pages
//! A page to be read in is posted as a steered buffer before the request is sent. So the
//! page lands in its place, without a copy. Only if another packet takes that buffer, the page
//! comes in one of the port's buffers and is copied ([`VolumeStatus::pages_copied`]). A page that is
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
