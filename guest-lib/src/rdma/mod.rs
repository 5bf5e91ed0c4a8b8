//! Writes and reads of remote memory (N9, N10).

pub(crate) mod internal_writes;
pub mod physical;
pub(crate) mod ticket;
pub(crate) mod transfer;

pub use ticket::Ticket;
pub use transfer::Source;
