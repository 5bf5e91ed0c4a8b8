//! Notifications and channels between processes.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use qnic_trials::nodes::Nodes;

/// Longest time for programs that run under emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// How long the survivor of a channel may take to say so. Documented are 250 ms and a round
/// trip; many times that, as the ends share their processors with others and may be
/// emulated.
const FOUND_OUT: Duration = Duration::from_secs(5);

/// Two nodes use every kind of notification, and channels both ways.
pub(crate) fn notifications_of_every_kind(nodes: &dyn Nodes, rounds: u32) -> Result<()> {
    let side = |node: usize| format!("signals --peer {} --rounds {rounds}", 1 - node);
    nodes.run_all(&[(0, side(0)), (1, side(1))], LIMIT)
}

/// One end of a channel is killed with signal 9: the other gets the error for that.
pub(crate) fn the_end_of_a_channel_is_killed(nodes: &dyn Nodes, receiver_dies: bool) -> Result<()> {
    let mut receiver = nodes.start_until(1, "stream", "listening")?;
    let sender = nodes.start(0, "stream --to 1")?;
    receiver.expect("streaming", LIMIT)?;
    let (mut victim, mut survivor) = match receiver_dies {
        true => (receiver, sender),
        false => (sender, receiver),
    };
    victim.kill()?;
    let start = Instant::now();
    let ended = survivor
        .expect("ended", FOUND_OUT)
        .context("the survivor")?;
    let took = start.elapsed();
    println!("    the survivor knew after {:.2} s", took.as_secs_f64());
    ensure!(took < FOUND_OUT, "it knew after {took:?}");
    let status = survivor.wait(LIMIT)?.status;
    ensure!(status == 3, "the survivor exited with {status}");
    ensure!(
        ended["lost"] == true,
        "the channel ended otherwise: {ended}"
    );
    Ok(())
}
