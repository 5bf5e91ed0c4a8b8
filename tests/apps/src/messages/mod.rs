//! Tagged messages: random traffic of many processes with every kind of receive, also beside a
//! process that receives nothing for long, an echo that is there to be killed, and what messages
//! cost.

mod bench;
mod echo;
mod plan;
mod slow;
mod traffic;

pub(crate) use bench::{bench, BenchOptions};
pub(crate) use echo::{echo, EchoOptions};
pub(crate) use slow::{prompt, PromptOptions};
pub(crate) use traffic::{traffic, TrafficOptions};
