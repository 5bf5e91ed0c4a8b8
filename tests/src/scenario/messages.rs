//! Tagged messages between processes (Q3, Q4, Q11 to Q13).

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::{budget, counter, until, wait_until_all_empty, Nodes, LIMIT};

/// Longest time for programs that run under emulation on a busy machine.
const TRAFFIC_LIMIT: Duration = Duration::from_secs(240);

/// How long the survivor may take to learn of a death. The peer timeout is 5 s; many times that,
/// as both may be emulated.
const FOUND_OUT: Duration = Duration::from_secs(60);

/// Processes of every node send each other random messages, short and long, which are received by
/// exact patterns and by wildcards; each is checked. Nothing is left in any NIC.
pub(crate) fn random_messages(
    nodes: &dyn Nodes,
    programs: usize,
    count: usize,
    seed: u64,
) -> Result<()> {
    let all: Vec<_> = (0..nodes.count()).map(|node| node.to_string()).collect();
    let list = all.join(",");
    let mut started = Vec::new();
    for node in 0..nodes.count() {
        for program in 0..programs {
            let arguments = format!(
                "messages --nodes {list} --programs {programs} --program {program} \
                 --count {count} --seed {seed}"
            );
            started.push((node, arguments));
        }
    }
    nodes.run_all(&started, TRAFFIC_LIMIT)?;
    wait_until_all_empty(nodes)
}

/// A process that exchanges messages is killed with signal 9: the other one, which waits for a
/// message of it, gets an error that says so.
pub(crate) fn the_peer_of_a_killed_process_stops_waiting(
    nodes: &dyn Nodes,
    [server, client]: [usize; 2],
) -> Result<()> {
    const EXPECTED: [&str; 3] = ["no process", "process ended", "no such node"];
    let mut victim = nodes.start_until(server, "message-echo", "serving")?;
    let mut survivor = nodes.start(client, &format!("message-echo --peer {server}"))?;
    survivor.expect("talking", LIMIT)?;
    victim.kill()?;
    let start = Instant::now();
    let failed = survivor
        .expect("failed", FOUND_OUT)
        .context("the survivor")?;
    println!(
        "    the survivor knew after {:.2} s",
        start.elapsed().as_secs_f64()
    );
    let message = failed.as_str().unwrap_or_default();
    ensure!(
        EXPECTED.iter().any(|part| message.contains(part)),
        "the message does not say what happened: {message:?}"
    );
    let status = survivor.wait(LIMIT)?.status;
    ensure!(status == 3, "the survivor ended with status {status}");
    victim.wait(LIMIT).context("the killed process")?;
    wait_until_all_empty(nodes)
}

/// A process waits for a message of a process on another node, a while after the last frame between
/// them. Then that node falls silent, in whatever way `silence` says: the receive and the probe end,
/// although nothing is sent.
pub(crate) fn what_waits_for_a_silent_node_ends(
    nodes: &mut HostNodes,
    [server, client]: [usize; 2],
    silence: impl FnOnce(&mut HostNodes) -> Result<()>,
) -> Result<()> {
    let _server = nodes.start_until(server, "message-echo", "serving")?;
    let words = format!("message-echo --peer {server} --quiet");
    let mut survivor = nodes.start(client, &words)?;
    survivor.expect("talking", LIMIT)?;
    silence(nodes)?;
    let failed = survivor.expect("failed", FOUND_OUT)?;
    let message = failed.as_str().unwrap_or_default();
    ensure!(
        message.contains("process ended"),
        "the message does not say what happened: {message:?}"
    );
    let status = survivor.wait(LIMIT)?.status;
    ensure!(status == 3, "the survivor ended with status {status}");
    Ok(())
}

/// A multicast of one piece, for which the budget has room beside that of messages.
const LETTER: u64 = qnic_abi::multicast::MAX_KEPT_BYTES as u64 + 256;

/// Bytes that a message counts at most in staging memory: a page, and what is kept beside it.
const STAGED: u64 = 4096 + 256;

/// A process on node 0 receives nothing while a program of each of some nodes sends it more short
/// messages than it can stage: the rest stays at its source, and other processes of these nodes
/// exchange random messages meanwhile (Q11, Q12). Then it receives all of them, in the order in
/// which each sender has sent them. A program on node `control` says when what begins.
pub(crate) fn random_messages_beside_a_slow_receiver(
    nodes: &dyn Nodes,
    taking_part: usize,
    control: usize,
    count: usize,
) -> Result<()> {
    let all: Vec<_> = (0..taking_part).map(|node| node.to_string()).collect();
    let list = all.join(",");
    // Twice what can be staged of few senders: half of the memory is for the shares of all.
    let each = budget(&nodes.device_stats()?, 0, "staged_bytes_of_process")?[1]
        / (3000 * taking_part as u64);
    let words = format!("messages --nodes {list} --count {count} --seed 5 --slow {each}");
    let programs = (0..taking_part).map(|node| nodes.start(node, &words));
    let mut programs: Vec<_> = programs.collect::<Result<_>>()?;
    for program in &mut programs {
        program.expect("posted", LIMIT).context("a sender")?;
    }
    let missing = || -> Result<Option<String>> {
        let stats = nodes.device_stats()?;
        let [used, limit] = budget(&stats, 0, "staged_bytes_of_process")?;
        if used + STAGED < (limit - LETTER) / 2 {
            return Ok(Some(format!("{used} bytes are staged, of {limit}")));
        }
        // Which node's bytes are staged depends on which was faster.
        let mut left = 0;
        for node in 0..taking_part {
            left += counter(&stats, node, "operations")?;
        }
        let nothing = || "nothing is left at the sources".to_owned();
        Ok((left == 0).then(nothing))
    };
    until(LIMIT, missing).context("until staging memory is full")?;
    let prompt = |what: &str| {
        let mut program = nodes.start(control, &format!("message-prompt {what} --nodes {list}"))?;
        program.succeed(what, LIMIT).map(drop)
    };
    prompt("go")?;
    for program in &mut programs {
        program
            .expect("received", TRAFFIC_LIMIT)
            .context("beside a slow receiver")?;
    }
    if let Some(missing) = missing()? {
        bail!("the slow process has received something: {missing}");
    }
    prompt("release")?;
    let mut received = 0;
    for program in &mut programs {
        let slowly = program.expect("slowly", TRAFFIC_LIMIT)?;
        received += slowly.as_u64().context("no number of messages")?;
        program.succeed("a program beside a slow receiver", LIMIT)?;
    }
    println!("    {received} messages were received in the end");
    let sent = each * taking_part as u64;
    ensure!(received == sent, "{received} of {sent} messages came");
    wait_until_all_empty(nodes)
}
