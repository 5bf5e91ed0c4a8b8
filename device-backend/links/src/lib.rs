//! Wires between NICs.
//!
//! | module | wire |
//! |---|---|
//! | [`fabric`] | between the NICs of one process: a function call, perfect and in order |
//!
//! A wire knows no more of the protocol than the frame header.
#![forbid(unsafe_code)]

pub mod fabric;

pub use fabric::{DuplicateNode, Fabric, LocalWire};
