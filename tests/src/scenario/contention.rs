//! Processes of all nodes that contend for locks, semaphores and monitors.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde_json::Value;

use crate::nodes::{Nodes, Running};

/// Longest time for programs that run under emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Who contends on each node.
#[derive(Debug, Clone, Copy)]
pub struct Crowd {
    /// Programs.
    pub programs: usize,
    /// Sync workers of each.
    pub workers: usize,
    /// Rounds of each worker.
    pub rounds: usize,
}

/// Its programs, as they are started.
struct Arguments {
    common: Vec<String>,
}

impl Arguments {
    /// For `crowd` on so many nodes; node 0 is the home.
    fn new(crowd: Crowd, nodes: usize) -> Self {
        let total = crowd.programs * crowd.workers * nodes;
        let words = ["contend", "--owner", "0", "--total"];
        let mut common: Vec<_> = words.map(str::to_owned).into();
        common.extend([
            total.to_string(),
            "--rounds".into(),
            crowd.rounds.to_string(),
        ]);
        Arguments { common }
    }

    fn start(
        &self,
        nodes: &dyn Nodes,
        node: usize,
        workers: usize,
        serve: bool,
    ) -> Result<Box<dyn Running>> {
        let workers = workers.to_string();
        let mut arguments: Vec<_> = self.common.iter().map(String::as_str).collect();
        arguments.extend(["--workers", &workers]);
        if serve {
            arguments.push("--serve");
        }
        nodes.start(node, &arguments)
    }
}

/// A crowd on every node contends for one lock, one semaphore and one bounded buffer, and
/// stands in line for a semaphore and in a wait queue; the first program of the first node
/// is the home of all that, and checks it (N21 to N24).
///
/// # Errors
/// A program failed, or a check.
pub fn contention(nodes: &dyn Nodes, crowd: Crowd) -> Result<()> {
    let arguments = Arguments::new(crowd, nodes.count());
    let mut home = arguments.start(nodes, 0, crowd.workers, true)?;
    let mut others = Vec::new();
    for node in 0..nodes.count() {
        for _ in usize::from(node == 0)..crowd.programs {
            others.push(arguments.start(nodes, node, crowd.workers, false)?);
        }
    }
    for program in &mut others {
        let ended = program.wait(LIMIT).context("a program that contends")?;
        ended.success("a program that contends")?;
    }
    ended_well(&mut *home, crowd, nodes.count())
}

/// The same with a crowd on all nodes but the first, while that one, whose memory has
/// everything, is stopped: from before the first round until after the last (N1).
///
/// # Errors
/// As [`contention`], and those of `stop` and `resume`.
pub fn contention_while_the_home_is_stopped(
    nodes: &dyn Nodes,
    crowd: Crowd,
    stop: impl FnOnce() -> Result<()>,
    resume: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let around = nodes.count() - 1;
    let arguments = Arguments::new(crowd, around);
    let total = crowd.programs * crowd.workers * around * crowd.rounds;
    let mut home = arguments.start(nodes, 0, 0, true)?;
    home.expect("serving", LIMIT)?;
    let mut others = Vec::new();
    for place in 1..crowd.programs * around {
        let mut program = arguments.start(nodes, 1 + place % around, crowd.workers, false)?;
        for _ in 0..crowd.workers {
            program.expect("ready", LIMIT).context("a program")?;
        }
        others.push(program);
    }
    stop()?;
    // Who comes last starts the others.
    others.push(arguments.start(nodes, 1, crowd.workers, false)?);
    let mut counted = 0;
    for program in &mut others {
        let what = "a program that contends around the stopped node";
        let seen = program.expect("counted", LIMIT).context(what)?;
        counted = counted.max(seen.as_u64().context("no count")?);
        program.wait(LIMIT).context(what)?.success(what)?;
    }
    ensure!(
        counted == total as u64,
        "the lock was taken {counted} times while its node was stopped, not {total}"
    );
    resume()?;
    ended_well(&mut *home, crowd, around)
}

/// The home has found everything in order, and somebody had to wait.
fn ended_well(home: &mut dyn Running, crowd: Crowd, nodes: usize) -> Result<()> {
    let ended = home.wait(LIMIT).context("the home")?.success("the home")?;
    let last = ended.lines.last().context("the home says nothing")?;
    let said: Value = serde_json::from_str(last)?;
    let total = crowd.programs * crowd.workers * nodes * crowd.rounds;
    ensure!(said["contended"] == total, "the home says {said}");
    let in_line = said["waited"].as_u64().context("no count of waits")?;
    println!("    {total} turns of the lock, {in_line} of them in line");
    ensure!(in_line > 0, "nobody had to wait: {said}");
    Ok(())
}
