//! What the programs on the nodes and the tools that start them agree on.
//!
//! The binary `qnic-app` of this package runs on the nodes, in guests and in host
//! mode alike. It prints its results as JSON lines on standard output, whose types
//! are those of `qnic-report`.
#![forbid(unsafe_code)]

pub mod fences;
pub mod walk;
