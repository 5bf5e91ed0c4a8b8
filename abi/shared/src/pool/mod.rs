//! Both sides of the queues of shared pools (S1 to S4; [`qnic_abi::pool`]).
//!
//! ```text
//!   ProcessSide                                     DriverSide
//!   take_output ◄──── output empty ──────────────── output_done
//!   send ──────────── output full ────────────────► next_output
//!   receive ◄──────── input full ────────────────── deliver
//!   give_back ─────── input empty ────────────────► next_input
//!
//!   must_kick  fence, BUSY?          against        rest      BUSY = 0, fence, look again
//!   want       WANT_WAKE, fence, look again  ag.    must_wake fence, WANT_WAKE?
//! ```
//! The driver core and the library run the same code on the same words. It is a crate of
//! its own because the library knows nothing of the driver core, and `abi` has no behaviour. The
//! code uses [`SharedMemory`]: a mapping in a kernel, a mapping in a process, or loom's atomics
//! in the models.
//!
//! # Owners
//! A frame is owned by one side. The side that owns it has a [`Frame`], a value that moves; handing
//! it over consumes it. A slot that the other side fills is checked: it makes a [`Frame`] only
//! if it names one that this side does not own. So whatever the other side writes, no frame has
//! two owners here, and no length exceeds a frame; other slots are [`Malformed`].
//!
//! Nothing here blocks, allocates or has a lock; a side is used by one thread at a time.

mod driver;
mod frame;
mod held;
#[cfg(test)]
mod model;
mod process;
mod queue;
mod share;
#[cfg(test)]
mod tests;

pub use driver::DriverSide;
pub use frame::{
    Frame, Input, InputFrame, Malformed, Occupied, Output, OutputFrame, Packet, Taken,
};
pub use process::ProcessSide;

#[cfg(doc)]
use qnic_abi::SharedMemory;
