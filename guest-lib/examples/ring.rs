//! A ring of nodes: they pass a token round, and every node adds its number to it.
//!
//! Start it on every node with the same list, the nodes in the order of the ring:
//!
//! ```sh
//! ring 0 1 2 3            # on each of the nodes 0, 1, 2 and 3
//! ```
//!
//! The first node of the list sends the token round and checks the sum. The
//! environment variable `LAPS` chooses how often (default 100). In host mode each
//! node is a process with its own `QNIC_HOST_SOCKET` (see `ping_pong`).

use std::time::{Duration, Instant};

use anyhow::{ensure, Context};
use qnic::{
    Access, Buffer, Endpoint, Nic, NodeId, NotificationId, Port, RemoteSegment, SegmentName,
};

/// The port that this program uses on every node.
const PORT: Port = Port(101);

/// The segment in which a node receives the token.
const INBOX: SegmentName = SegmentName(0x696e_626f_7800);

/// What the predecessor signals when the token is there.
const TOKEN: NotificationId = NotificationId::new(1).unwrap();

/// How long to wait for a neighbour.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The token: two little-endian words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Token {
    lap: u64,
    sum: u64,
}

const LAP: usize = 0;
const SUM: usize = 8;
const TOKEN_BYTES: usize = 16;

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
    let successor = ring[(index + 1) % ring.len()];

    let inbox = endpoint.allocate(TOKEN_BYTES)?;
    let _segment = endpoint.export(INBOX, &inbox, Access::WRITE)?;
    let next = endpoint
        .import(successor, PORT, INBOX, TIMEOUT)
        .with_context(|| format!("is ring running on {successor}?"))?;

    let start = Instant::now();
    let own = u64::from(me.0);
    if index == 0 {
        let once: u64 = ring.iter().map(|node| u64::from(node.0)).sum();
        let mut sum = 0;
        for lap in 0..laps {
            let token = Token {
                lap,
                sum: sum + own,
            };
            pass(&endpoint, &next, token)?;
            sum += once;
            let token = receive(&endpoint, &inbox)?;
            ensure!(
                token == Token { lap, sum },
                "lap {lap}: {token:?} came back, the sum should be {sum}"
            );
        }
        println!(
            "{me}: {laps} laps over {} nodes, sum {sum}, {:?} a hop",
            ring.len(),
            start.elapsed() / u32::try_from(laps * ring.len() as u64)?
        );
    } else {
        for lap in 0..laps {
            let token = receive(&endpoint, &inbox)?;
            ensure!(token.lap == lap, "lap {lap}: {token:?} came");
            let sum = token.sum + own;
            pass(&endpoint, &next, Token { lap, sum })?;
        }
        println!("{me}: passed the token {laps} times");
    }
    Ok(())
}

/// Passes the token on. It is short enough to travel in the command itself, so nothing has
/// to be exported. The fence reports a successor that is gone.
fn pass(endpoint: &Endpoint, next: &RemoteSegment, token: Token) -> anyhow::Result<()> {
    let mut bytes = [0; TOKEN_BYTES];
    bytes[LAP..][..8].copy_from_slice(&token.lap.to_le_bytes());
    bytes[SUM..][..8].copy_from_slice(&token.sum.to_le_bytes());
    endpoint
        .write(next, 0, &bytes)
        .notify(TOKEN)
        .fenced()
        .context("the token could not be passed on")
}

/// Waits for the token. The predecessor writes the next one only after this node
/// has passed this one on, so nothing changes while it is read.
fn receive(endpoint: &Endpoint, inbox: &Buffer) -> anyhow::Result<Token> {
    endpoint
        .notification(TOKEN)
        .take(Some(TIMEOUT))
        .context("the token did not come")?;
    Ok(Token {
        lap: inbox.load_u64(LAP)?,
        sum: inbox.load_u64(SUM)?,
    })
}

fn arguments() -> anyhow::Result<Vec<NodeId>> {
    let usage = "usage: ring NODE NODE…, the same on every node";
    let nodes = std::env::args().skip(1);
    let numbers: Result<Vec<u16>, _> = nodes.map(|node| node.parse()).collect();
    let ring: Vec<_> = numbers.context(usage)?.into_iter().map(NodeId).collect();
    ensure!(ring.len() >= 2, "{usage}");
    Ok(ring)
}
