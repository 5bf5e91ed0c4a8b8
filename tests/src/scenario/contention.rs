//! Processes of all nodes that contend for locks, semaphores and monitors.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde_json::Value;

use qnic_trials::nodes::{Nodes, Running};

/// Longest time for programs that run under emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// What contends on each node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contenders {
    /// Programs.
    pub programs: usize,
    /// Sync workers of each.
    pub workers: usize,
    /// Rounds of each worker.
    pub rounds: usize,
}

impl Contenders {
    /// Arguments of a program that takes part on so many nodes; node 0 is the owner.
    fn arguments(self, nodes: usize, workers: usize) -> String {
        let (total, rounds) = (self.programs * self.workers * nodes, self.rounds);
        format!("contend --owner 0 --total {total} --rounds {rounds} --workers {workers}")
    }

    /// Turns of the lock in all.
    fn turns(self, nodes: usize) -> usize {
        self.programs * self.workers * nodes * self.rounds
    }
}

/// Contenders on every node contend for one lock, one semaphore and one bounded buffer, and
/// wait for a semaphore and in a wait queue; the first program of the first node is the
/// owner of all that, and checks it (N21 to N24).
pub(crate) fn contention(nodes: &dyn Nodes, each: Contenders) -> Result<()> {
    let arguments = each.arguments(nodes.count(), each.workers);
    let mut owner = nodes.start(0, &format!("{arguments} --serve"))?;
    let mut others = Vec::new();
    for node in 0..nodes.count() {
        for _ in usize::from(node == 0)..each.programs {
            others.push((node, arguments.clone()));
        }
    }
    nodes.run_all(&others, LIMIT)?;
    ended_well(&mut *owner, each.turns(nodes.count()))
}

/// The same with contenders on all nodes but the first, while that one, whose memory has
/// everything, is stopped: from before the first round until after the last (N1).
pub(crate) fn contention_while_the_owner_is_stopped(
    nodes: &dyn Nodes,
    each: Contenders,
    stop: impl FnOnce() -> Result<()>,
    resume: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let around = nodes.count() - 1;
    let arguments = each.arguments(around, each.workers);
    let serve = format!("{} --serve", each.arguments(around, 0));
    let mut owner = nodes.start(0, &serve)?;
    owner.expect("serving", LIMIT)?;
    let mut others = Vec::new();
    for index in 1..each.programs * around {
        let mut program = nodes.start(1 + index % around, &arguments)?;
        for _ in 0..each.workers {
            program.expect("ready", LIMIT).context("a program")?;
        }
        others.push(program);
    }
    stop()?;
    // The last that comes starts the others.
    others.push(nodes.start(1, &arguments)?);
    let mut counted = 0;
    for program in &mut others {
        let what = "a program that contends around the stopped node";
        let seen = program.expect("counted", LIMIT).context(what)?;
        counted = counted.max(seen.as_u64().context("no count")?);
        program.succeed(what, LIMIT)?;
    }
    let turns = each.turns(around);
    ensure!(
        counted == turns as u64,
        "the lock was taken {counted} times while its node was stopped, not {turns}"
    );
    resume()?;
    ended_well(&mut *owner, turns)
}

/// The owner has found everything in order, and some worker had to wait.
fn ended_well(owner: &mut dyn Running, turns: usize) -> Result<()> {
    let ended = owner.succeed("the owner", LIMIT)?;
    let last = ended.lines.last().context("the owner says nothing")?;
    let said: Value = serde_json::from_str(last)?;
    ensure!(said["contended"] == turns, "the owner says {said}");
    let waited = said["waited"].as_u64().context("no count of waits")?;
    println!("    {turns} turns of the lock, {waited} of them after a wait");
    ensure!(waited > 0, "no worker had to wait: {said}");
    Ok(())
}
