//! All pairs at once: every node writes verified data to every other node, from
//! one thread for each peer, and checks what the others write to it.

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic::{Endpoint, NotificationId, Port, RemoteSegment, SegmentName};
use qnic_apps::demo::pattern;

use qnic_apps::demo::node::{import, register, say, Exported};
use qnic_apps::demo::options::ANSWER_LIMIT;

/// Where peers write; one slot for each of them.
const INBOX: SegmentName = SegmentName(20);
/// Source of writes; one slot for each peer.
const OUTBOX: SegmentName = SegmentName(21);
/// Bytes of a slot: header, then data.
const SLOT: usize = 512 * 1024;
/// Bytes of a slot's header: round, seed, offset, length.
const HEADER: usize = 32;

#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of all nodes that take part, this one included, such as 0,1,2
    #[arg(long, value_name = "NODE,…", value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    /// Port of every process of this exchange
    #[arg(long, default_value_t = 20)]
    port: u16,
    /// Messages to each peer
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// Longest message, in bytes
    #[arg(long, default_value_t = 300_000)]
    max_size: usize,
}

struct Exchange<'a> {
    endpoint: Endpoint,
    inbox: Exported,
    outbox: Exported,
    options: &'a Options,
    me: usize,
}

/// Runs until every peer has sent everything; fails at the first wrong byte.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        options.max_size + HEADER + 8 <= SLOT,
        "--max-size is at most {}",
        SLOT - HEADER - 8
    );
    ensure!(
        (2..=200).contains(&options.nodes.len()),
        "--nodes: 2 to 200 nodes"
    );
    let (_nic, endpoint) = register(options.port)?;
    let me = options
        .nodes
        .iter()
        .position(|node| *node == endpoint.node().0)
        .with_context(|| format!("--nodes does not list this node, {}", endpoint.node().0))?;
    let exchange = Exchange {
        inbox: Exported::new(&endpoint, INBOX, SLOT * options.nodes.len())?,
        outbox: Exported::new(&endpoint, OUTBOX, SLOT * options.nodes.len())?,
        endpoint,
        options,
        me,
    };
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for peer in (0..options.nodes.len()).filter(|peer| *peer != me) {
            let exchange = &exchange;
            workers.push(scope.spawn(move || exchange.send_all(peer)));
            workers.push(scope.spawn(move || exchange.receive_all(peer)));
        }
        let mut result = Ok(());
        for worker in workers {
            let outcome = worker.join().unwrap_or_else(|_| bail!("a thread panicked"));
            result = result.and(outcome);
        }
        result
    })?;
    say(
        "exchanged",
        options.rounds * (options.nodes.len() as u64 - 1),
    )
}

/// Signalled at a receiver: a message of that sender waits.
fn message(sender: usize) -> NotificationId {
    qnic_apps::demo::options::notification(1 + sender as u32)
}

/// Signalled at a sender: that receiver is done with the message.
fn receipt(receiver: usize) -> NotificationId {
    qnic_apps::demo::options::notification(500 + receiver as u32)
}

impl Exchange<'_> {
    fn import(&self, peer: usize) -> Result<RemoteSegment> {
        let (node, port) = (self.options.nodes[peer], Port(self.options.port));
        import(&self.endpoint, node, port, INBOX)
    }

    fn send_all(&self, peer: usize) -> Result<()> {
        let inbox = self.import(peer)?;
        let remote_slot = (self.me * SLOT) as u64;
        let slot = peer * SLOT;
        for round in 1..=self.options.rounds {
            let seed = round << 32 | (self.me as u64) << 16 | peer as u64;
            let size = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize
                % (self.options.max_size + 1);
            let (from, to) = (HEADER + (seed % 7) as usize, HEADER + (round % 5) as usize);
            let bytes = pattern::bytes(seed, size);
            self.outbox.buffer.write(slot + from, &bytes)?;
            let data = self.outbox.part(slot + from, size);
            self.endpoint
                .write(&inbox, remote_slot + to as u64, data)
                .post()?;
            let header = [round, seed, to as u64, size as u64].map(u64::to_le_bytes);
            let header = header.as_flattened();
            self.endpoint
                .write(&inbox, remote_slot, header)
                .notify(message(self.me))
                .post()?;
            self.take(receipt(peer), "a receipt", peer, round)?;
        }
        self.finish().context("flush")
    }

    fn receive_all(&self, peer: usize) -> Result<()> {
        let inbox = self.import(peer)?;
        let slot = peer * SLOT;
        for round in 1..=self.options.rounds {
            self.take(message(peer), "a message", peer, round)?;
            let mut words = [0; 4];
            for (index, word) in words.iter_mut().enumerate() {
                *word = self.inbox.buffer.load_u64(slot + index * 8)?;
            }
            let [got_round, seed, at, size] = words;
            ensure!(
                got_round == round,
                "round {got_round} came in round {round}"
            );
            ensure!(
                size as usize <= self.options.max_size,
                "length {size} in round {round}"
            );
            let size = size as usize;
            let bytes = self.inbox.buffer.read_vec(slot + at as usize, size)?;
            ensure!(
                bytes == pattern::bytes(seed, size),
                "wrong bytes from peer {peer} in round {round}, {size} bytes"
            );
            self.endpoint
                .write(&inbox, 0, &[])
                .notify(receipt(self.me))
                .post()?;
        }
        // The last receipt may be lost on its way while this process ends.
        self.finish().context("flush the receipts")
    }

    /// Waits until everything that was sent has arrived. A peer that is gone has got it:
    /// it goes only then, or tells its own failure. It may take its node along, as in host
    /// mode, and then no NIC is left to acknowledge what it got.
    fn finish(&self) -> qnic::Result<()> {
        match self.endpoint.flush().writes().wait() {
            Err(error) if error.is_peer_gone() => Ok(()),
            flushed => flushed,
        }
    }

    fn take(&self, id: NotificationId, what: &str, peer: usize, round: u64) -> Result<()> {
        let taken = self.endpoint.notification(id).take(Some(ANSWER_LIMIT));
        let node = self.options.nodes[peer];
        taken.with_context(|| format!("wait for {what} of node {node} in round {round}"))
    }
}
