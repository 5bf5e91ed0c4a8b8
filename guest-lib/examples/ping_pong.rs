//! Ping-pong: two nodes write to each other in turn, and each checks what it got.
//!
//! Start it on both nodes with the number of the other one; the node with the
//! smaller number serves. In two guests with the kernel module loaded:
//!
//! ```sh
//! ping_pong 1        # on node 0
//! ping_pong 0        # on node 1
//! ```
//!
//! In host mode, beside a device process, in two terminals:
//!
//! ```sh
//! QNIC_HOST_SOCKET=/tmp/a.sock cargo run -p qnic --example ping_pong -- 1
//! QNIC_HOST_SOCKET=/tmp/b.sock cargo run -p qnic --example ping_pong -- 0
//! ```
//!
//! Two more arguments choose the number of rounds and the bytes of the ball:
//! `ping_pong PEER [ROUNDS [BYTES]]`.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context};
use qnic::{
    Access, Buffer, Endpoint, Nic, NodeId, NotificationId, Port, RemoteSegment, Segment,
    SegmentName,
};

/// The port that this program uses on every node.
const PORT: Port = Port(100);

/// The segment that receives the ball.
const COURT: SegmentName = SegmentName(0x636f_7572_7400);

/// What the writer signals when the ball has arrived.
const BALL: NotificationId = NotificationId::new(1).unwrap();

/// How long to wait for the other player.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let (peer, rounds, bytes) = arguments()?;

    // A guest's device file or a host-mode socket: the environment decides.
    let nic = Nic::open()?;
    let endpoint = nic.register(PORT)?;
    let me = endpoint.node();
    ensure!(
        me != peer,
        "this is {me}: give the number of the other node"
    );

    // The peer may write into our court; it need not read it.
    let court = endpoint.allocate(bytes)?;
    let _court_segment = endpoint.export(COURT, &court, Access::WRITE)?;

    // A ball of more than `inline_max` bytes is fetched by the NIC itself, from
    // exported memory; a smaller one travels in the command.
    let ball = endpoint.allocate(bytes)?;
    let ball_segment = endpoint.export(SegmentName(0), &ball, Access::READ)?;

    // Waits until the other player has exported its court.
    let their_court = endpoint
        .import(peer, PORT, COURT, TIMEOUT)
        .with_context(|| format!("is ping_pong running on {peer}?"))?;
    ensure!(
        their_court.len() == bytes as u64,
        "{peer} plays with {} bytes, this node with {bytes}",
        their_court.len()
    );

    let play = Play {
        endpoint: &endpoint,
        court: &court,
        their_court: &their_court,
        ball: &ball,
        ball_segment: &ball_segment,
    };
    let start = Instant::now();
    for round in 0..rounds {
        if me < peer {
            play.send(round)?;
            play.receive(round, peer)?;
        } else {
            play.receive(round, peer)?;
            play.send(round)?;
        }
    }
    // The last ball is delivered before this node takes its court down.
    endpoint.flush().wait()?;
    let half = start.elapsed() / u32::try_from(2 * rounds)?;
    println!("{me}: {rounds} rounds of {bytes} bytes, {half:?} each way, every byte right");
    Ok(())
}

/// What one player holds.
struct Play<'a> {
    endpoint: &'a Endpoint,
    court: &'a Buffer,
    their_court: &'a RemoteSegment,
    ball: &'a Buffer,
    ball_segment: &'a Segment,
}

impl Play<'_> {
    fn send(&self, round: u64) -> anyhow::Result<()> {
        // The NIC may still read the last ball: wait before painting it anew.
        self.endpoint.flush().writes().wait()?;
        self.ball
            .write(0, &pattern(self.endpoint.node(), round, self.ball.len()))?;
        let source = self.ball_segment.part(0, self.ball.len());
        self.endpoint
            .write(self.their_court, 0, source)
            .notify(BALL)
            .post()?;
        Ok(())
    }

    fn receive(&self, round: u64, peer: NodeId) -> anyhow::Result<()> {
        // Spins for a moment, then sleeps. After the signal, all of the ball is there.
        self.endpoint
            .notification(BALL)
            .take(Some(TIMEOUT))
            .with_context(|| format!("round {round}: no ball from {peer}"))?;
        let got = self.court.read_vec(0, self.court.len())?;
        let wanted = pattern(peer, round, self.court.len());
        let wrong = got
            .iter()
            .zip(&wanted)
            .position(|(got, wanted)| got != wanted);
        match wrong {
            None => Ok(()),
            Some(byte) => bail!("round {round}: byte {byte} of the ball from {peer} is wrong"),
        }
    }
}

/// A ball that looks different in each round and from each player.
fn pattern(node: NodeId, round: u64, bytes: usize) -> Vec<u8> {
    let seed = round.wrapping_mul(31).wrapping_add(u64::from(node.0));
    (seed..).map(|n| n as u8).take(bytes).collect()
}

/// The peer, the number of rounds and the bytes of the ball.
fn arguments() -> anyhow::Result<(NodeId, u64, usize)> {
    let mut arguments = std::env::args().skip(1);
    let peer = arguments.next();
    let peer = peer.context("usage: ping_pong PEER [ROUNDS [BYTES]]")?;
    let peer = NodeId(peer.parse().context("PEER is the number of a node")?);
    let mut number = |default: u64, what| match arguments.next() {
        None => Ok(default),
        Some(text) => text.parse().map(NonZeroU64::get).context(what),
    };
    let rounds = number(1000, "ROUNDS is a number, 1 at least")?;
    let bytes = number(8, "BYTES is a number, 1 at least")?;
    Ok((peer, rounds, usize::try_from(bytes)?))
}
