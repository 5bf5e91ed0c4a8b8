//! A ring of nodes that pass a token round by tagged messages: `ring` without any memory of the
//! neighbours.
//!
//! Start it on every node with the same list, the nodes in the order of the ring:
//!
//! ```sh
//! token_ring 0 1 2 3      # on each of the nodes 0, 1, 2 and 3
//! ```
//!
//! The first node of the list sends the token round and checks the sum. The environment variable
//! `LAPS` chooses how often (default 100). The tag of a message is its lap, the token travels in
//! the 64 bits that come with each message: there are no other bytes.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context};
use qnic::message::{Destination, Pattern, Request, Source, Tag};
use qnic::{Access, Endpoint, Error, Nic, NodeId, Port, Segment, SegmentName, Status};

/// The port that this program uses on every node.
const PORT: Port = Port(103);

/// Memory of the receives, which are empty.
const NOTHING: SegmentName = SegmentName(0x746f_6b65_6e00);

/// How long to wait for a neighbour.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let ring = arguments()?;
    let laps: u64 = match std::env::var("LAPS") {
        Ok(laps) => laps.parse().context("LAPS is a number")?,
        Err(_) => 100,
    };
    let endpoint = Nic::open()?.register(PORT)?;
    let me = endpoint.node();
    let index = ring.iter().position(|node| *node == me);
    let index = index.with_context(|| format!("this is {me}, which is not in the list"))?;
    let next = ring[(index + 1) % ring.len()];
    let previous = ring[(index + ring.len() - 1) % ring.len()];
    let memory = endpoint.export(NOTHING, &endpoint.allocate(1)?, Access::READ)?;

    let start = Instant::now();
    let own = u64::from(me.0);
    let once: u64 = ring.iter().map(|node| u64::from(node.0)).sum();
    for lap in 0..laps {
        // Before the token can come: so it never waits in the memory of the NIC.
        let mut token = expect(&endpoint, &memory, previous, lap)?;
        if index == 0 {
            pass(&endpoint, next, lap, lap * once + own)?;
            let sum = token.wait(Some(TIMEOUT))?.immediate;
            ensure!(sum == (lap + 1) * once, "lap {lap}: {sum} came back");
        } else {
            let sum = token.wait(Some(TIMEOUT))?.immediate;
            pass(&endpoint, next, lap, sum + own)?;
        }
    }
    match index {
        0 => println!(
            "{me}: {laps} laps over {} nodes, sum {}, {:?} a hop",
            ring.len(),
            laps * once,
            start.elapsed() / u32::try_from(laps * ring.len() as u64)?
        ),
        _ => println!("{me}: passed the token {laps} times"),
    }
    Ok(())
}

/// Posts a receive for the token of a lap.
fn expect<'a>(
    endpoint: &'a Endpoint,
    memory: &'a Segment,
    previous: NodeId,
    lap: u64,
) -> qnic::Result<Request<'a>> {
    let pattern = Pattern::tagged(Source::Process(previous, PORT), Tag(lap));
    endpoint.receive(&pattern, memory.part(0, 0)).post()
}

/// Passes the token on; waits until the successor has started.
fn pass(endpoint: &Endpoint, next: NodeId, lap: u64, sum: u64) -> anyhow::Result<()> {
    let to = Destination::tagged(next, PORT, Tag(lap)).immediate(sum);
    let start = Instant::now();
    loop {
        match endpoint.send(&to, b"").timeout(TIMEOUT).wait() {
            Err(error) if not_there_yet(&error) && lap == 0 && start.elapsed() < TIMEOUT => {
                std::thread::yield_now();
            }
            sent => break sent.map(drop).context("the token could not be passed on"),
        }
    }
}

fn not_there_yet(error: &Error) -> bool {
    matches!(
        error.status(),
        Some(Status::NoSuchPort | Status::NoSuchNode)
    )
}

fn arguments() -> anyhow::Result<Vec<NodeId>> {
    let usage = "usage: token_ring NODE NODE…, the same on every node";
    let nodes = std::env::args().skip(1);
    let numbers: Result<Vec<u16>, _> = nodes.map(|node| node.parse()).collect();
    let ring: Vec<_> = numbers.context(usage)?.into_iter().map(NodeId).collect();
    ensure!(ring.len() >= 2, "{usage}");
    Ok(ring)
}
