//! A volume whose servers are killed (H9).

use anyhow::{ensure, Context, Result};
use serde_json::Value;

use qnic_trials::nodes::{Nodes, Running, LIMIT};

/// The program on a node that gives memory.
const SERVER: &str = "remote-memory-server";

/// Kills each server in turn, while a client on the last node writes and reads: nothing is lost,
/// and the pages are copied anew each time. The servers come back empty.
pub(crate) fn servers_of_a_volume_are_killed_in_turn(nodes: &dyn Nodes) -> Result<()> {
    let client = nodes.count() - 1;
    let start = |node| nodes.start_until(node, SERVER, "serving");
    let mut servers: Vec<_> = (0..client).map(start).collect::<Result<_>>()?;
    let names: Vec<_> = (0..client).map(|node| node.to_string()).collect();
    let arguments = format!(
        "remote-memory-client --replicas 2 --servers {}",
        names.join(",")
    );
    let mut program = nodes.start_until(client, &arguments, "attached")?;
    let mut copied = until_whole(&mut *program, client)?;
    for (node, server) in servers.iter_mut().enumerate() {
        server.kill()?;
        server.wait(LIMIT)?;
        let now = until_whole(&mut *program, client - 1);
        let now = now.with_context(|| format!("node {node} is killed"))?;
        ensure!(now > copied, "node {node} is killed and nothing is copied");
        *server = start(node)?;
        copied = until_whole(&mut *program, client)?;
    }
    Ok(())
}

/// Waits until the client knows so many live servers and has as many copies of each block as it
/// is to have; returns how many pages it has copied to others so far.
fn until_whole(program: &mut dyn Running, live: usize) -> Result<u64> {
    let start = std::time::Instant::now();
    loop {
        let line = program.line(LIMIT)?;
        let Some(line) = line else {
            let ended = program.wait(LIMIT)?;
            ended.success("the client")?;
            anyhow::bail!("the client has ended");
        };
        let said: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        if said["live"] == live && said["whole"] == true {
            return said["copied"].as_u64().context("copied");
        }
        ensure!(
            start.elapsed() < LIMIT,
            "not whole with {live} servers: {said}"
        );
    }
}
