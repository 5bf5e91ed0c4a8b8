//! C programs on one node, and Rust programs on another: the examples, and what C may do wrong (X10).
//!
//! They are compiled with the system's C compiler and AddressSanitizer, and run in host mode. Without
//! a compiler these tests are ignored, which the suite counts as skipped.

#![cfg_attr(not(has_asan), allow(dead_code, unused_imports))]

mod breadth;
mod cluster;
mod examples;
mod installed;
mod mistakes;
