//! Unreliable datagrams for upper modules of the kernel (HSN; H1 to H8).
//!
//! ```text
//!   upper modules    remote memory │ pools │ third-party modules    each with a port
//!                    ─────────────────────────────────────────
//!   this             engine ─┬─ bound ─┬─ receives   own buffers kept posted, steered ones
//!                            │         ├─ sends      messages that wait, send slots
//!                            │         └─ fragments  incomplete messages, with a timer
//!                            └─ queue                the driver's window and host area
//!                    ─────────────────────────────────────────
//!   NIC              protocol datagram
//! ```
//! # For upper modules
//! ```text
//!   let port = driver.bind_datagrams(number, &config, upper)?;     Binding: dropping it closes
//!   port.fill()?;                                                  pages to receive in
//!   port.wait_posted();                                            the NIC has them
//!   port.send(&[address], Outgoing { header, data, target, token })   ──► Upper::sent
//!                                                 a message comes     ──► Upper::received
//!   let handle = port.expect(page, None)?;  the answer with this target lands in the page
//!   port.withdraw(handle)                                             ──► Upper::withdrawn
//!   port.set_deadline(Some(port.now_ns() + …))                        ──► Upper::deadline
//! ```
//! A message is a [`Header`] of up to 40 bytes and [`Data`]: nothing, up to a page, or up to two
//! pages (H6). It may be lost, come twice, or come before an earlier one; a message that comes is
//! complete. [`Upper::sent`] means that the data belongs to the upper module again, not that it was
//! received.
//!
//! Calls of a [`Port`] are atomic and allocate nothing, because the memory of a port is allocated when
//! it is bound. So they may be made from a path that must
//! not wait for memory. An upper module is also
//! called in an atomic context, one call at a time, without a lock. It may call its port from
//! there.
//!
//! # Bounds
//! | table | bound | full |
//! |---|---|---|
//! | ports | 64 for each NIC | [`BindError::Exhausted`] |
//! | messages that wait or are under way | [`PortConfig::messages`] | [`SendError::Full`], counted |
//! | packets under way | 256 for each NIC and 64 for each port; ports take turns | messages wait |
//! | packets under way to a node | no more than its port has slots left, and no more than half of the slots that the NIC has left | messages to it wait, others pass them |
//! | receive buffers | [`PortConfig::receives`], `steered`; the memory is the port's | the NIC drops and counts packets of that port |
//! | incomplete messages | 32 for each port, in half of its own buffers, for one second | the oldest is dropped, counted |
//! | calls for one interrupt (H5) | 64, ports take turns | the rest waits for the next turn |
//!
//! # Copies
//! Data lands at the start of a buffer. A message of two pages stays in the two buffers that it
//! came in. Only where the route carries less than a page, fragments are copied behind the first
//! one of their page, which is counted (`counters`). Such fragments come in the port's own buffers,
//! and a steered buffer goes on waiting.

mod bound;
mod buffer;
mod config;
mod counters;
mod deliver;
mod engine;
mod fragments;
mod join;
mod look;
mod message;
mod peers;
mod places;
mod port;
mod queue;
mod receives;
mod routes;
mod sends;
#[cfg(test)]
mod tests;

pub use buffer::Buffer;
pub use config::{BindError, PortConfig, SendError, LAST_KERNEL_PORT};
pub(crate) use counters::Counters;
pub use message::{
    Address, Data, Handle, Header, Message, Outgoing, Sent, MAX_DESTINATIONS, MAX_MESSAGE,
};
pub use port::{Binding, Port, Upper};

pub(crate) use port::{bind, Engine};
