//! Groups and collectives of processes of all nodes (Q14, Q15, N26).

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use crate::nodes::{wait_until_all_empty, Nodes, LIMIT};

/// Longest time for programs that run under emulation on a busy machine.
const LONGEST: Duration = Duration::from_secs(240);

/// How long the others may take to learn of a death. The peer timeout is 5 s; many times that, as
/// all may be emulated.
const FOUND_OUT: Duration = Duration::from_secs(60);

/// What each program is to do.
#[derive(Debug, Clone, Copy)]
pub struct Together {
    /// Programs of each node.
    pub programs: usize,
    /// Rounds of each collective, and barriers behind them.
    pub rounds: usize,
    /// Barriers.
    pub barriers: usize,
    /// Bytes of each collective.
    pub bytes: usize,
}

fn arguments(nodes: &dyn Nodes, each: &Together, program: usize) -> String {
    let all: Vec<_> = (0..nodes.count()).map(|node| node.to_string()).collect();
    let list = all.join(",");
    let Together {
        programs,
        rounds,
        barriers,
        bytes,
    } = each;
    format!(
        "collectives --nodes {list} --programs {programs} --program {program} \
         --rounds {rounds} --barriers {barriers} --bytes {bytes}"
    )
}

/// Processes of every node form a group; all get what they should of each collective, and
/// nothing is left in any NIC.
pub fn collectives(nodes: &dyn Nodes, each: Together) -> Result<()> {
    let all = (0..nodes.count()).flat_map(|node| (0..each.programs).map(move |it| (node, it)));
    let programs = all.map(|(node, program)| (node, arguments(nodes, &each, program)));
    let programs: Vec<_> = programs.collect();
    nodes.run_all(&programs, LONGEST)?;
    wait_until_all_empty(nodes)
}

/// A member is killed with signal 9 in each collective: all others get an error that says so, and
/// names its node.
pub fn members_of_a_killed_process_learn_of_it(nodes: &dyn Nodes, victim: usize) -> Result<()> {
    for collective in ["barrier", "broadcast", "reduce", "allreduce"] {
        a_member_is_killed_in(nodes, victim, collective).context(collective)?;
    }
    Ok(())
}

fn a_member_is_killed_in(nodes: &dyn Nodes, victim: usize, collective: &str) -> Result<()> {
    let endless = Together {
        programs: 1,
        rounds: 0,
        barriers: 0,
        bytes: 40_000,
    };
    let words = arguments(nodes, &endless, 0) + " --only " + collective;
    let start = |node| nodes.start(node, &words);
    let mut running: Vec<_> = (0..nodes.count()).map(start).collect::<Result<_>>()?;
    for program in &mut running {
        program.expect("taking_part", LIMIT)?;
    }
    let mut killed = running.remove(victim);
    killed.kill()?;
    let start = Instant::now();
    for program in &mut running {
        let failed = program.expect("failed", FOUND_OUT).context("a survivor")?;
        let message = failed.as_str().unwrap_or_default();
        let named = message.contains(&format!("(node {victim}"));
        ensure!(
            named,
            "the message does not name node {victim}: {message:?}"
        );
        let status = program.wait(LIMIT)?.status;
        ensure!(status == 3, "a survivor ended with status {status}");
    }
    println!(
        "    {collective}: the survivors knew after {:.2} s",
        start.elapsed().as_secs_f64()
    );
    killed.wait(LIMIT).context("the killed process")?;
    wait_until_all_empty(nodes)
}
