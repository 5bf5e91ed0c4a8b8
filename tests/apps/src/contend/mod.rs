//! Many processes of all nodes contend for one lock, one semaphore and one bounded buffer
//! in a monitor (N21 to N24); then they wait for a semaphore and in a wait queue, in an
//! order that is known.
//!
//! ```text
//!   owner ([owner]): memory, and nothing else until the end
//!      ▲ objects, words, names of workers, logs ([layout])
//!      │
//!   sync workers ([worker]): enter their names; the last that comes, the leader, starts all
//!      each round: lock, semaphore, put into the buffer, take from it
//!      at the end: two FIFO queues, ordered by the leader ([fifo])
//! ```
//! What is checked, and where:
//!
//! | promise | check |
//! |---|---|
//! | one holder (N21) | holder: a word says that no other is in, and that no other came in |
//! | first come, first served (N21) | holder: its predecessor by the owner's order had the lock last |
//! | no more than the units (N24) | holder of a unit: a count of those that have one |
//! | no unit lost | owner: the value at the end |
//! | a bounded buffer (N23) | putter, taker: the slot is free, or filled; owner: its log has each item once, each producer's in order |
//! | first come, first served (N22, N24) | owner: the logs of the FIFO queues |
//! | no starvation | all workers get their rounds; a worker that waits for the lock is overtaken by none, so it waits for one turn of each other worker at most |
//!
//! Workers of one program are threads with a process's endpoint each, so that this runs in
//! host mode, where a node is one program.

mod fifo;
mod layout;
mod owner;
mod worker;

use anyhow::{bail, Context, Result};
use clap::Args;
use qnic::Nic;

use owner::Owner;
use worker::Worker;

use qnic_apps::demo::node::say;

#[derive(Args)]
pub(crate) struct Options {
    /// Node whose memory has what is contended for
    #[arg(long)]
    owner: u16,
    /// Be the owner as well, which checks everything at the end
    #[arg(long)]
    serve: bool,
    /// Sync workers of this program
    #[arg(long, default_value_t = 1)]
    workers: u64,
    /// Sync workers of all programs
    #[arg(long)]
    total: u64,
    /// Rounds of each
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Units of the semaphore
    #[arg(long, default_value_t = 3)]
    units: u32,
}

/// Runs the workers of this program; as the owner, until all workers are done.
pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let served = match options.serve {
        true => Some(Owner::new(&nic, options)?),
        false => None,
    };
    let contend = || -> Result<u64> {
        let worker = Worker::new(&nic, options)?;
        let what = || format!("worker {} on {}", worker.number, worker.endpoint.node());
        worker.run().with_context(what)
    };
    let mut counted = 0;
    std::thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..options.workers).map(|_| scope.spawn(contend)).collect();
        for worker in workers {
            let result = worker.join();
            counted = counted.max(result.unwrap_or_else(|_| bail!("a worker panicked"))?);
        }
        Ok(())
    })?;
    if options.workers > 0 {
        say("counted", counted)?;
    }
    served.map_or(Ok(()), |owner| owner.finish(options))
}
