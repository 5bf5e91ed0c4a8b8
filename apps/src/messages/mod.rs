//! Tagged messages: random traffic of many processes with every kind of receive, an echo that
//! is there to be killed, and what messages cost.

mod bench;
mod echo;
mod plan;
mod traffic;

pub(crate) use bench::{bench, BenchOptions};
pub(crate) use echo::{echo, EchoOptions};
pub(crate) use traffic::{traffic, TrafficOptions};
