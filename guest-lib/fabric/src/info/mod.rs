//! What the provider offers: `getinfo`.
//!
//! ```text
//!   C: hints ──► exchange ──► Hints ─┐
//!   environment ──► nics ──► NICs ───┼──► select ──► Offers ──► exchange ──► C: list of fi_info
//!   version, node, flags ────────────┘       └── or the hint that was refused ──► the log
//! ```
//! [`select::select`] is a pure function; its neighbours read and write memory of the caller.
//!
//! # Invariants
//! - An info that was returned passes a second query as hints, and returns the same.
//! - A query without hints returns all that there is.
//! - Threads and progress are echoed as they were asked for: the provider serves any.

pub(crate) mod exchange;
pub(crate) mod nics;
pub(crate) mod offer;
pub(crate) mod select;
#[cfg(test)]
mod tests;
