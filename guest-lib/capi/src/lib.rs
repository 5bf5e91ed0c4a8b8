//! The C interface of the library [`qnic`] (X10): `qnic.h`, and a shared and a static library.
//!
//! ```text
//!   C program ── qnic.h ──► families: nic, endpoint, memory, transfer, message, …    safe code
//!                              │ arguments        │ handles
//!                              ▼                  ▼
//!                           border: pointers   handles: table        ──►  crate qnic
//! ```
//!
//! # Purpose
//! Every capability of the library, for programs that are not written in Rust. The interface adds no
//! behaviour: what order, completion, failure and timeouts mean stands in the documentation of the
//! library, and a call here does what the call of the same name does there.
//!
//! # What owns what
//! A handle ([`handles`]) is opened by one call and closed by one. What was made from an object keeps
//! it alive: an endpoint stays registered until it and all that was made from it are closed, in any
//! order. Memory of the program stays the program's. Memory that peers or the NIC access is exported,
//! and may be freed once its segment is closed. Local memory is named by its address: the endpoint
//! finds the segment that holds it.
//!
//! # Threads
//! Every function may be called from every thread. Most objects serve many threads at once. Those that
//! take turns by `&mut` in Rust (requests, locks, channels) serve one call at a time, and a second one
//! ends with `QNIC_E_BUSY`. A handle that a call uses is not closed: `QNIC_E_BUSY`. Functions of the
//! program are called on the threads that their documentation names.
//!
//! # Versions
//! Structures begin with their size, and zeros are defaults: so they can grow. A program that was
//! compiled with an older header runs with a newer library; one that uses a field that the library does
//! not know gets `QNIC_E_NEWER_PROGRAM`. Symbols have the version of the release that added them
//! (`qnic.map`).
//!
//! # Invariants
//! - No panic crosses the border: each function does its work in `border::call`.
//! - `unsafe` blocks stand in [`border`] alone; a test checks that.
//! - A function that fails has stored no handle.

#![allow(non_camel_case_types)]

pub mod atomic;
pub mod border;
pub mod channel;
pub mod codes;
pub mod datagram;
pub mod endpoint;
pub mod error;
mod export_range;
pub mod failure;
pub mod group;
pub mod handles;
pub mod machine;
pub mod memory;
pub mod message;
pub mod names;
pub mod nic;
pub mod notification;
mod owned;
pub mod probe;
pub mod request;
pub mod stream;
pub mod sync;
pub mod transfer;
