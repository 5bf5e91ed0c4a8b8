//! Many processes of all nodes contend for one lock, one semaphore and one bounded
//! buffer in a monitor (N21 to N24); then they stand in line for a semaphore and in a
//! wait queue, in an order that is known.
//!
//! ```text
//!   home ([home]): memory, and nothing else until the end
//!      ▲ objects, words, names of members, logs ([layout])
//!      │
//!   members ([member]): enter their names; the last that comes, the leader, starts all
//!      each round: lock, semaphore, put into the buffer, take from it
//!      at the end: two lines, ordered by the leader ([line])
//! ```
//! What is checked, and by whom:
//!
//! | promise | check |
//! |---|---|
//! | one holder (N21) | holder: a word says that nobody is in, and that nobody came in |
//! | first come, first served (N21) | holder: its predecessor by the home's order had the lock last |
//! | no more than the units (N24) | holder of a unit: a count of those who have one |
//! | no unit lost | home: the value at the end |
//! | a bounded buffer (N23) | putter, taker: the place is free, or filled; home: its log has each item once, each producer's in order |
//! | first come, first served (N22, N24) | home: the logs of the lines |
//! | no starvation | all members get their rounds; whoever stands in line for the lock is overtaken by nobody, so it waits for one turn of each other member at most |
//!
//! Members of one program are threads with a process's endpoint each, so that this
//! runs in host mode, where a node is one program.

mod home;
mod layout;
mod line;
mod member;

use anyhow::{bail, Context, Result};
use clap::Args;
use qnic::{Nic, NodeId};

use home::Home;
use member::Member;

/// Options of the contention.
#[derive(Args)]
pub(crate) struct Options {
    /// Node whose memory has what is contended for
    #[arg(long)]
    home: u16,
    /// Be the home as well, which checks everything at the end
    #[arg(long)]
    serve: bool,
    /// Members of this program
    #[arg(long, default_value_t = 1)]
    members: u64,
    /// Members of all programs
    #[arg(long)]
    total: u64,
    /// Rounds of each
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Units of the semaphore
    #[arg(long, default_value_t = 3)]
    units: u32,
}

/// Runs the members of this program; as the home, until all members are done.
pub(crate) fn run(options: &Options) -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let served = match options.serve {
        true => Some(Home::new(&nic, options)?),
        false => None,
    };
    let home = NodeId(options.home);
    let contend = || -> Result<u64> {
        let member = Member::new(&nic, home, options)?;
        let what = || format!("member {} on {}", member.number, member.endpoint.node());
        member.run().with_context(what)
    };
    let mut counted = 0;
    std::thread::scope(|scope| -> Result<()> {
        let members: Vec<_> = (0..options.members).map(|_| scope.spawn(contend)).collect();
        for member in members {
            let result = member.join();
            counted = counted.max(result.unwrap_or_else(|_| bail!("a member panicked"))?);
        }
        Ok(())
    })?;
    if options.members > 0 {
        println!("{}", serde_json::json!({ "counted": counted }));
    }
    match served {
        Some(served) => served.finish(options),
        None => Ok(()),
    }
}
