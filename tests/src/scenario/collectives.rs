//! Groups and collectives of processes of all nodes (Q14, Q15, N26).

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use qnic_trials::nodes::{wait_until_all_empty, Nodes, Running, LIMIT};

/// Longest time for programs that run under emulation on a busy machine.
const LONGEST: Duration = Duration::from_secs(240);

/// How long the others may take to learn of a death. The peer timeout is 5 s; many times that, as
/// all may be emulated.
const FOUND_OUT: Duration = Duration::from_secs(60);

/// What each program is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Together {
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
pub(crate) fn collectives(nodes: &dyn Nodes, each: Together) -> Result<()> {
    let all = (0..nodes.count()).flat_map(|node| (0..each.programs).map(move |it| (node, it)));
    let programs = all.map(|(node, program)| (node, arguments(nodes, &each, program)));
    let programs: Vec<_> = programs.collect();
    nodes.run_all(&programs, LONGEST)?;
    wait_until_all_empty(nodes)
}

/// A member is killed with signal 9 in each collective: all others get an error that says so, and
/// names its node.
pub(crate) fn members_of_a_killed_process_learn_of_it(
    nodes: &dyn Nodes,
    victim: usize,
) -> Result<()> {
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

/// How long nothing is said by programs that wait for one that stands still. If they are slower
/// than that, less is seen, and nothing fails.
const SILENT: Duration = Duration::from_secs(2);

/// Rounds around a member that stands still, more than pass while it begins to.
const ROUNDS: usize = 200;

/// Longest time of a call that is to end by it, in seconds: many times a round.
const CALL_SECONDS: u64 = 15;

/// Lets a node, on which that program runs, stand still, or go on again.
pub(crate) type StandStill<'a> = &'a dyn Fn(&mut dyn Running, bool) -> Result<()>;

/// A member stands still between two calls or within one, and others are behind it in the tree.
/// All wait for it, and go on with right results. If it stands still for longer than a call may
/// take, all learn that, and the name of the node that stands still.
pub(crate) fn members_wait_for_one_that_stands_still(
    nodes: &dyn Nodes,
    still: usize,
    stand_still: StandStill<'_>,
) -> Result<()> {
    they_go_on(nodes, still, stand_still).context("a member stands still for a while")?;
    their_time_is_over(nodes, still, stand_still).context("a member stands still for long")?;
    wait_until_all_empty(nodes)
}

fn start_all(nodes: &dyn Nodes, words: &str) -> Result<Vec<Box<dyn Running>>> {
    let running = (0..nodes.count()).map(|node| nodes.start(node, words));
    let mut running: Vec<_> = running.collect::<Result<_>>()?;
    for program in &mut running {
        program.expect("taking_part", LIMIT)?;
    }
    Ok(running)
}

fn around(rounds: usize) -> Together {
    Together {
        programs: 1,
        rounds,
        barriers: 0,
        bytes: 20_000,
    }
}

fn they_go_on(nodes: &dyn Nodes, still: usize, stand_still: StandStill<'_>) -> Result<()> {
    let words = arguments(nodes, &around(ROUNDS), 0) + " --each-round --timeout 500";
    let mut running = start_all(nodes, &words)?;
    stand_still(&mut *running[still], true)?;
    let others = running.iter_mut().enumerate().filter(|it| it.0 != still);
    for (node, program) in others {
        let mut last = String::new();
        // An error is a silence.
        while let Ok(line) = program.line(SILENT) {
            last = line.with_context(|| format!("node {node} does not wait: {last}"))?;
        }
        let done = last == format!("{{\"rounds\":{ROUNDS}}}");
        ensure!(!done, "node {node} does not wait");
    }
    stand_still(&mut *running[still], false)?;
    for (node, program) in running.iter_mut().enumerate() {
        program.succeed(&format!("the program on node {node}"), LONGEST)?;
    }
    wait_until_all_empty(nodes)
}

fn their_time_is_over(nodes: &dyn Nodes, still: usize, stand_still: StandStill<'_>) -> Result<()> {
    let words = arguments(nodes, &around(0), 0) + &format!(" --timeout {CALL_SECONDS}");
    let mut running = start_all(nodes, &words)?;
    stand_still(&mut *running[still], true)?;
    let check = |program: &mut dyn Running| -> Result<()> {
        let failed = program.expect("failed", FOUND_OUT)?;
        let message = failed.as_str().unwrap_or_default();
        ensure!(
            message.contains(&format!("(node {still}"))
                && message.contains("within the time that was given"),
            "the message does not name the node that stands still: {message:?}"
        );
        let status = program.wait(LIMIT)?.status;
        ensure!(status == 3, "it ended with status {status}");
        Ok(())
    };
    let others = running.iter_mut().enumerate().filter(|it| it.0 != still);
    for (node, program) in others {
        check(&mut **program).with_context(|| format!("node {node}"))?;
    }
    stand_still(&mut *running[still], false)?;
    check(&mut *running[still]).context("the member that goes on")
}
