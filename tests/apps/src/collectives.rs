//! Processes of an application on all nodes that take part in collectives, each checked. They
//! find each other by their names.
//!
//! ```text
//!   program ─── process: a thread, a member     rank: by node, then program, then process
//!   each round: barrier, allreduce, broadcast of another root, reduce
//! ```
//! A member that another one's end has left without a group says so and ends with status 3.

use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, ValueEnum};
use qnic::group::{Application, Group, Operator};
use qnic::{Error, Nic, Port, SegmentName};
use qnic_apps::demo::pattern;

use qnic_apps::demo::node::{say, say_line, Exported};
use qnic_apps::demo::options::{ANSWER_LIMIT, START_LIMIT};

/// Their application.
const APPLICATION: &str = "collectives";
/// Port of the first process of each node.
const FIRST_PORT: u16 = 20;
/// Rounds after which it is said that all take part.
const RUNNING: u64 = 3;
/// Exit status when a call failed.
const CALL_FAILED: i32 = 3;

#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of all nodes that take part, this one included, such as 0,1,2
    #[arg(long, value_name = "NODE,…", value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    /// Programs of each node
    #[arg(long, default_value_t = 1)]
    programs: u16,
    /// Which of them this is, from 0
    #[arg(long, default_value_t = 0)]
    program: u16,
    /// Processes of each program
    #[arg(long, default_value_t = 2)]
    processes: u16,
    /// Rounds; 0 for no end
    #[arg(long, default_value_t = 10)]
    rounds: u64,
    /// Barriers behind them
    #[arg(long, default_value_t = 0)]
    barriers: u64,
    /// Which collective a round has; without it, each after the other
    #[arg(long, value_enum)]
    only: Option<Kind>,
    /// Bytes of each collective: whole words of 8
    #[arg(long, default_value_t = 100_000)]
    bytes: usize,
    /// Longest time for a call, in seconds
    #[arg(long, default_value_t = ANSWER_LIMIT.as_secs())]
    timeout: u64,
    /// Each program says when it has done a round
    #[arg(long)]
    each_round: bool,
}

/// A collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Barrier,
    Broadcast,
    Reduce,
    Allreduce,
}

impl Options {
    /// Returns true if a round has that collective.
    fn has(&self, kind: Kind) -> bool {
        self.only.is_none_or(|only| only == kind)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    fn members(&self) -> u32 {
        let each = u32::from(self.programs) * u32::from(self.processes);
        self.nodes.len() as u32 * each
    }
}

/// Takes part until all rounds are done, or a call fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        options.bytes % 8 == 0 && options.program < options.programs,
        "--bytes: whole words of 8; --program below --programs"
    );
    let nic = Nic::open().context("open the NIC")?;
    let ends = std::thread::scope(|scope| {
        let first = options.program * options.processes;
        let nic = &nic;
        let member = |index: u16| scope.spawn(move || member(nic, options, index));
        let running: Vec<_> = (first..first + options.processes).map(member).collect();
        let ends = running.into_iter().map(|process| match process.join() {
            Ok(end) => end,
            Err(_) => bail!("a process panicked"),
        });
        ends.collect::<Result<Vec<_>>>()
    })?;
    match ends.into_iter().flatten().next() {
        None => say("rounds", options.rounds),
        Some(error) => {
            say_line(&serde_json::json!({"failed": error.to_string()}))?;
            std::process::exit(CALL_FAILED);
        }
    }
}

/// One process. Returns the error of a collective that has failed.
fn member(nic: &Nic, options: &Options, index: u16) -> Result<Option<Error>> {
    let endpoint = nic.register(Port(FIRST_PORT + index)).context("register")?;
    let own = endpoint.node().0;
    let place = options.nodes.iter().position(|node| *node == own);
    let place = place.context("this node is not among --nodes")? as u32;
    let each = u32::from(options.programs) * u32::from(options.processes);
    let memory = Exported::new(&endpoint, SegmentName(1), options.bytes.max(8))?;
    let rank = place * each + u32::from(index);
    let group = Application::join(&endpoint, APPLICATION, rank, options.members(), START_LIMIT);
    let group = group.context("join the application")?;
    let next = (rank + 1) % options.members();
    let (node, port) = group.find(next, START_LIMIT).context("find the next")?;
    let there = options.nodes[(next / each) as usize];
    ensure!(
        (node.0, u32::from(port.0)) == (there, u32::from(FIRST_PORT) + next % each),
        "process {next} was found on {node}, {port}"
    );
    let mut number = 0;
    while options.rounds == 0 || number < options.rounds {
        match round(&group, &memory, options, number) {
            Ok(()) => {}
            Err(error) => return error.downcast().map(Some),
        }
        number += 1;
        let speaks = index == options.program * options.processes;
        if speaks && number == RUNNING {
            say("taking_part", std::process::id())?;
        }
        if speaks && options.each_round {
            say("round", number)?;
        }
    }
    for _ in 0..options.barriers {
        group
            .barrier()
            .timeout(options.timeout())
            .wait()
            .context("a barrier")?;
    }
    group
        .barrier()
        .timeout(options.timeout())
        .wait()
        .context("the last barrier")?;
    Ok(None)
}

/// What a member has at first in a round.
fn own_bytes(rank: u32, round: u64, length: usize) -> Vec<u8> {
    pattern::bytes(u64::from(rank) << 32 | round, length)
}

/// What the words of all members are together.
fn combined(members: u32, round: u64, length: usize, combine: fn(u64, u64) -> u64) -> Vec<u8> {
    let words = |rank| -> Vec<u64> {
        let bytes = own_bytes(rank, round, length);
        let word = |word: &[u8]| {
            word.iter()
                .rev()
                .fold(0, |all, byte| all << 8 | u64::from(*byte))
        };
        bytes.chunks_exact(8).map(word).collect()
    };
    let all = (0..members).map(words).reduce(|mut all, more| {
        all.iter_mut()
            .zip(more)
            .for_each(|(word, other)| *word = combine(*word, other));
        all
    });
    all.unwrap_or_default()
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect()
}

fn check(memory: &Exported, expected: &[u8], what: &str, group: &Group<'_>) -> Result<()> {
    let found = memory.buffer.read_vec(0, expected.len())?;
    let rank = group.rank();
    ensure!(found == expected, "{what}: wrong bytes at rank {rank}");
    Ok(())
}

fn round(group: &Group<'_>, memory: &Exported, options: &Options, number: u64) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    let (root, length) = ((number % u64::from(size)) as u32, options.bytes);
    let part = || memory.part(0, length);
    let own = own_bytes(rank, number, length);
    let limit = options.timeout();
    if options.has(Kind::Barrier) {
        group.barrier().timeout(limit).wait()?;
    }
    if options.has(Kind::Allreduce) {
        memory.buffer.write(0, &own)?;
        group
            .allreduce::<u64>(part(), Operator::Sum)
            .timeout(limit)
            .wait()?;
        let sums = combined(size, number, length, u64::wrapping_add);
        check(memory, &sums, "allreduce", group)?;
    }
    if options.has(Kind::Broadcast) {
        memory.buffer.write(0, &own)?;
        group.broadcast(part(), root).timeout(limit).wait()?;
        check(memory, &own_bytes(root, number, length), "broadcast", group)?;
    }
    if options.has(Kind::Reduce) {
        memory.buffer.write(0, &own)?;
        group
            .reduce::<u64>(part(), Operator::Maximum, root)
            .timeout(limit)
            .wait()?;
        let greatest = combined(size, number, length, u64::max);
        let expected = if rank == root { &greatest } else { &own };
        check(memory, expected, "reduce", group)?;
    }
    Ok(())
}
