//! Tagged messages between processes (Q3, Q4, Q11 to Q13).

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use crate::nodes::{wait_until_all_empty, Nodes, LIMIT};

/// Longest time for programs that run under emulation on a busy machine.
const TRAFFIC_LIMIT: Duration = Duration::from_secs(240);

/// How long the survivor may take to learn of a death. The peer timeout is 5 s; many times that,
/// as both may be emulated.
const FOUND_OUT: Duration = Duration::from_secs(60);

/// Processes of every node send each other random messages, short and long, which are received by
/// exact patterns and by wildcards; each is checked. Nothing is left in any NIC.
pub fn random_messages(nodes: &dyn Nodes, programs: usize, count: usize, seed: u64) -> Result<()> {
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
pub fn the_peer_of_a_killed_process_stops_waiting(
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
