//! A distributed sort: every node makes random numbers, sends each to the node whose range it is
//! in, and sorts what has come. The result lies sorted over the nodes, in the order of the list.
//!
//! Start it on every node with the same arguments:
//!
//! ```sh
//! sort 100000 0 1 2       # numbers of each node; the nodes
//! ```
//!
//! ```text
//!   numbers ──► a bucket for each node ──► one message to each ──► receives from any node,
//!               sort ◄───────────────────────────────────────────  posted before
//!   least, largest, count and sum ──► first node: compares them with what was made
//! ```

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic::message::{wait_all, Destination, Pattern, Source, Tag};
use qnic::{Access, Buffer, Endpoint, Nic, NodeId, Port, Segment, SegmentName};

/// The port that this program uses on every node.
const PORT: Port = Port(104);

/// Messages with numbers.
const NUMBERS: Tag = Tag(1);
/// Messages with a [`Share`].
const SHARES: Tag = Tag(2);

/// Where numbers come; that it is exported says that a node has started.
const INBOX: SegmentName = SegmentName(0x736f_7274_0001);
const OUTBOX: SegmentName = SegmentName(0x736f_7274_0002);

/// How long to wait for the other nodes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a node says of its part of the result: count, sum, least, largest, and sum of what it
/// had made itself.
type Share = [u64; 5];
const SHARE_BYTES: usize = size_of::<Share>();

struct Cluster {
    endpoint: Endpoint,
    nodes: Vec<NodeId>,
    me: usize,
}

impl Cluster {
    fn join(nodes: Vec<NodeId>) -> Result<Self> {
        let endpoint = Nic::open()?.register(PORT)?;
        let me = nodes.iter().position(|node| *node == endpoint.node());
        Ok(Cluster {
            me: me.context("this node is not in the list")?,
            endpoint,
            nodes,
        })
    }

    fn memory(&self, name: SegmentName, bytes: usize) -> Result<(Buffer, Segment)> {
        let buffer = self.endpoint.allocate(bytes)?;
        let segment = self.endpoint.export(name, &buffer, Access::READ)?;
        Ok((buffer, segment))
    }

    /// The node whose range a number is in.
    fn owner(&self, number: u64) -> usize {
        ((u128::from(number) * self.nodes.len() as u128) >> 64) as usize
    }

    /// Sends each bucket to its node; returns all numbers that came here.
    fn exchange(&self, buckets: &[Vec<u64>], room: usize) -> Result<Vec<u64>> {
        let endpoint = &self.endpoint;
        let count = self.nodes.len();
        let (inbox, into) = self.memory(INBOX, 8 * room * count)?;
        // Each message is in a part of its own, whichever process sends it.
        let pattern = Pattern::tagged(Source::Any, NUMBERS);
        let post = |index| {
            endpoint
                .receive(&pattern, into.part(8 * room * index, 8 * room))
                .post()
        };
        let mut receives = (0..count).map(post).collect::<qnic::Result<Vec<_>>>()?;
        for node in &self.nodes {
            let there = endpoint.import(*node, PORT, INBOX, TIMEOUT);
            there.with_context(|| format!("is sort running on {node}?"))?;
        }
        let all: usize = buckets.iter().map(Vec::len).sum();
        let (outbox, from) = self.memory(OUTBOX, 8 * all.max(1))?;
        let (mut sends, mut offset) = (Vec::new(), 0);
        for (node, bucket) in self.nodes.iter().zip(buckets) {
            let bytes: Vec<u8> = bucket.iter().flat_map(|it| it.to_le_bytes()).collect();
            outbox.write(offset, &bytes)?;
            let to = Destination::tagged(*node, PORT, NUMBERS);
            sends.push(endpoint.send(&to, from.part(offset, bytes.len())).post()?);
            offset += bytes.len();
        }
        let mut numbers = Vec::new();
        for (index, got) in (0..).zip(wait_all(&mut receives, Some(TIMEOUT))?) {
            ensure!(!got.truncated, "{} has sent too much", got.node);
            let bytes = inbox.read_vec(8 * room * index, got.length as usize)?;
            numbers.extend(words(&bytes));
        }
        wait_all(&mut sends, Some(TIMEOUT))?;
        Ok(numbers)
    }

    /// Gives every node's share to the first one, which gets all of them in their order.
    fn gather(&self, share: Share) -> Result<Vec<Share>> {
        let endpoint = &self.endpoint;
        let bytes: Vec<u8> = share.iter().flat_map(|it| it.to_le_bytes()).collect();
        let to = Destination::tagged(self.nodes[0], PORT, SHARES);
        let mut send = endpoint.send(&to, &bytes[..]).post()?;
        let mut shares = Vec::new();
        if self.me == 0 {
            let (buffer, into) = self.memory(SegmentName(3), SHARE_BYTES)?;
            for node in &self.nodes {
                let pattern = Pattern::tagged(Source::Process(*node, PORT), SHARES);
                endpoint
                    .receive(&pattern, into.part(0, SHARE_BYTES))
                    .timeout(TIMEOUT)
                    .wait()?;
                let got = words(&buffer.read_vec(0, SHARE_BYTES)?).collect::<Vec<_>>();
                shares.extend(Share::try_from(got));
            }
        }
        send.wait(Some(TIMEOUT))?;
        Ok(shares)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = bytes.chunks_exact(8);
    words.map(|word| u64::from_le_bytes(std::array::from_fn(|index| word[index])))
}

/// Numbers that look random (splitmix64).
fn numbers(node: NodeId, count: usize) -> impl Iterator<Item = u64> {
    let mut state = u64::from(node.0) << 40;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    })
    .take(count)
}

fn sum(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::wrapping_add)
}

/// Fails unless the shares follow one upon the other and have everything that was made.
fn check(shares: &[Share], made: usize) -> Result<()> {
    let mut before = 0;
    for [count, _, least, largest, _] in shares.iter().filter(|share| share[0] > 0) {
        ensure!(before <= *least && least <= largest, "{count} out of order");
        before = *largest;
    }
    let count = sum(shares.iter().map(|share| share[0]));
    ensure!(count == made as u64, "{count} of {made} numbers are there");
    let [there, own] = [1, 4].map(|at| sum(shares.iter().map(|share| share[at])));
    ensure!(there == own, "other numbers are there than were made");
    Ok(())
}

fn main() -> Result<()> {
    let usage = "usage: sort NUMBERS NODE…, the same on every node";
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().context(usage)?.parse().context(usage)?;
    let nodes: Result<Vec<u16>, _> = arguments.map(|node| node.parse()).collect();
    let nodes: Vec<_> = nodes.context(usage)?.into_iter().map(NodeId).collect();
    ensure!(!nodes.is_empty() && count > 0, "{usage}");

    let cluster = Cluster::join(nodes)?;
    let me = cluster.endpoint.node();
    let start = Instant::now();
    let mut buckets = vec![Vec::new(); cluster.nodes.len()];
    for number in numbers(me, count) {
        buckets[cluster.owner(number)].push(number);
    }
    let made = sum(buckets.iter().flatten().copied());
    // A bucket has all numbers at the most.
    let mut sorted = cluster.exchange(&buckets, count)?;
    sorted.sort_unstable();
    let ends = [sorted.first(), sorted.last()].map(|end| end.copied().unwrap_or(0));
    let total = sum(sorted.iter().copied());
    let share = [sorted.len() as u64, total, ends[0], ends[1], made];
    let shares = cluster.gather(share)?;
    if cluster.me == 0 {
        let made = count * cluster.nodes.len();
        check(&shares, made)?;
        println!("{me}: {made} numbers sorted in {:?}", start.elapsed());
    } else {
        println!("{me}: has {} of them", sorted.len());
    }
    Ok(())
}
