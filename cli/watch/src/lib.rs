//! What looks on at a cluster's NICs, by the control sockets of its device processes.
//!
//! | module | |
//! |---|---|
//! | [`top`] | the live view: rates, depths and times of stages (`qnic top`) |
//! | [`trace`] | the life of single operations on one time line (`qnic trace`) |
//!
//! The program `qnic-watch` is built when one of both is wanted, in some seconds: it needs neither
//! the simulator nor what fuzzes and measures.
#![forbid(unsafe_code)]

pub mod top;
pub mod trace;
