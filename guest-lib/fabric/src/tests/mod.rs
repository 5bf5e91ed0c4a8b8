//! The provider, as a program uses it: by the tables of its objects, between two nodes in this process.

mod atomics;
mod closes;
mod collectives;
mod counters;
mod deliveries;
mod device_process;
mod fences;
mod foreign;
mod forks;
mod harness;
mod long;
mod many;
mod members;
mod memory;
mod messages;
mod objects;
mod peeks;
mod processes;
mod random;
mod refusals;
mod regions;
mod replies;
mod waits;
