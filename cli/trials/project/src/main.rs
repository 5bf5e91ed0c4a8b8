//! Two nodes exchange a message in each other's memory, round after round, and check it.
//!
//! `qnic exec` starts it on every node of the cluster, and says in `QNIC_NODE` which
//! one this is. Start from here: what this program returns is what the test returns.

use std::time::Duration;

use anyhow::ensure;
use qnic::{Access, Nic, NodeId, NotificationId, Port, SegmentName};

const PORT: Port = Port(7);
const INBOX: SegmentName = SegmentName(1);
const LETTER: NotificationId = NotificationId::new(1).unwrap();

const ROUNDS: u64 = 200;
const BYTES: usize = 64;
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let me: u16 = std::env::var("QNIC_NODE")?.parse()?;
    let peer = 1 - me;
    let endpoint = Nic::open()?.register(PORT)?;
    let inbox = endpoint.allocate(BYTES)?;
    let _segment = endpoint.export(INBOX, &inbox, Access::WRITE)?;
    let theirs = endpoint.import(NodeId(peer), PORT, INBOX, LIMIT)?;
    for round in 0..ROUNDS {
        if me == 0 {
            endpoint.write(&theirs, 0, &letter(me, round)).notify(LETTER).fenced()?;
        }
        endpoint.notification(LETTER).take(Some(LIMIT))?;
        let got = inbox.read_vec(0, BYTES)?;
        ensure!(
            got == letter(peer, round),
            "round {round}: wrong bytes from node {peer}: {got:?}"
        );
        if me == 1 {
            endpoint.write(&theirs, 0, &letter(me, round)).notify(LETTER).fenced()?;
        }
    }
    // The last letter has arrived before this node takes its inbox down.
    endpoint.flush().wait()?;
    println!("node {me}: {ROUNDS} letters, every byte right");
    Ok(())
}

/// What node `from` writes in a round.
fn letter(from: u16, round: u64) -> [u8; BYTES] {
    let first = round * 31 + u64::from(from);
    std::array::from_fn(|index| (first + index as u64) as u8)
}
