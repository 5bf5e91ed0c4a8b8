//! What a stream keeps beside writes of the same endpoint to a node on a slow link (N15, U6).
//!
//! ```text
//!   node 0 ── 16 KiB, 16 under way ──► node 1    no bound
//!          ── 16 KiB, 32 under way ──► node 2    100 Mbit/s
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use qnic::provider::host::Node;
use qnic::{Access, Endpoint, Nic, NodeId, Port, RemoteSegment, Segment, SegmentName, Ticket};
use qnic_trials::nodes::host::HostNodes;

use crate::bench::limits::MEMORY;
use crate::bench::tables::Tables;

const SLOW_LINK: &str = "[network]\n[[network.link]]\nfrom = 0\nto = 2\n\
                         impairments = { rate = \"100Mbit\" }\n";

const SIZE: usize = 16 << 10;

/// Writes under way to the node that is measured, and to the one on the slow link.
const FAST_DEPTH: usize = 16;
const SLOW_DEPTH: usize = 32;

/// How many slow ones have ended before a round is timed: the link is full.
const FIRST: u64 = 4;

/// Time in which writes of a round are counted.
const SPAN: Duration = Duration::from_millis(500);

/// Longest time until the link is full.
const LIMIT: Duration = Duration::from_secs(20);

const NAME: SegmentName = SegmentName(0x6e);
const PORT: Port = Port(7);

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let nodes = HostNodes::start_with(3, SLOW_LINK)?;
    let register = |node: usize| -> Result<(Endpoint, Segment)> {
        let socket = nodes.socket(node);
        let node = Node::connect(&socket, MEMORY).context("become a node")?;
        let endpoint = Nic::with_provider(Arc::new(node), socket).register(PORT)?;
        let buffer = endpoint.allocate(SIZE)?;
        let segment = endpoint.export(NAME, &buffer, Access::READ | Access::WRITE)?;
        Ok((endpoint, segment))
    };
    let (endpoint, source) = register(0)?;
    let _others = [register(1)?, register(2)?];
    let import = |node| endpoint.import(NodeId(node), PORT, NAME, LIMIT);
    let (fast, slow) = (import(1)?, import(2)?);
    let stream = |to: &RemoteSegment, depth, goes_on: &dyn Fn(u64) -> bool| -> Result<f64> {
        let (start, mut ended, mut under_way) = (Instant::now(), 0, VecDeque::new());
        while goes_on(ended) {
            while under_way.len() < depth {
                under_way.push_back(endpoint.write(to, 0, source.part(0, SIZE)).post()?);
            }
            under_way.pop_front().map_or(Ok(()), Ticket::wait)?;
            ended += 1;
        }
        let rate = (ended * SIZE as u64) as f64 / 1e6 / start.elapsed().as_secs_f64();
        under_way.into_iter().try_for_each(Ticket::wait)?;
        Ok(rate)
    };
    let span = || {
        let begun = Instant::now();
        move |_: u64| begun.elapsed() < SPAN
    };
    // The first round finds out what the link takes, and is not counted.
    tables.rounds(rounds, ", beside a slow link", true, |round| {
        let alone = stream(&fast, FAST_DEPTH, &span())?;
        let slow_ended = AtomicU64::new(0);
        const STOP: u64 = u64::MAX;
        let (beside, at_slow) = std::thread::scope(|scope| -> Result<_> {
            let other = scope.spawn(|| {
                stream(&slow, SLOW_DEPTH, &|ended| {
                    slow_ended.fetch_max(ended, Ordering::Relaxed) != STOP
                })
            });
            let begun = Instant::now();
            while slow_ended.load(Ordering::Relaxed) < FIRST && !other.is_finished() {
                ensure!(begun.elapsed() < LIMIT, "nothing passes the slow link");
                std::thread::yield_now();
            }
            let beside = stream(&fast, FAST_DEPTH, &span());
            slow_ended.store(STOP, Ordering::Relaxed);
            let other = other
                .join()
                .map_err(|_| anyhow!("the slow stream panicked"))?;
            Ok((beside?, other.context("the slow stream")?))
        })?;
        let row = round.row("beside-slow", "16 KiB", None);
        row.add("alone [MB/s]", [alone])
            .add("beside [MB/s]", [beside])
            .add("slow link [MB/s]", [at_slow]);
        Ok(())
    })
}
