//! What collectives of the NICs cost, beside a tree of the library's own writes between the same
//! processes, in turns.
//!
//! | operation | |
//! |---|---|
//! | `barrier`, `allreduce` | by the group: the NICs do it |
//! | `barrier_by_writes`, `allreduce_by_writes` | notifying writes along a binomial tree: each process on the way is woken, and passes it on |

use std::time::Instant;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::group::{Application, Operator};
use qnic::{Endpoint, NotificationId, Port, RemoteSegment};
use qnic_apps::report::{BenchRow, Latency};

use qnic_apps::demo::node::{import, register, say_line, take, Exported};
use qnic_apps::demo::options::{notification, ANSWER_LIMIT, DATA, START_LIMIT};

const PORT: Port = Port(15);
/// Signalled by the child of that place, and by the parent.
const UP: u32 = 1;
const DOWN: NotificationId = notification(40);
/// Words of the segment: those of children, and behind them that of the parent.
const PARENT_WORD: usize = 32;
const WORDS: usize = PARENT_WORD + 1;
/// Operations of a round.
const OPERATIONS: u64 = 200;

#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of all nodes, one process on each, such as 0,1,2
    #[arg(long, value_name = "NODE,…", value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    /// Rounds; the first warms up beside them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Runs all rounds; process 0 prints one [`BenchRow`] for each operation, whose size is the number
/// of nodes.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (_nic, endpoint) = register(PORT.0)?;
    let nodes = &options.nodes;
    let own = endpoint.node().0;
    let rank = nodes.iter().position(|node| *node == own);
    let rank = rank.context("this node is not among --nodes")?;
    let size = nodes.len() as u32;
    let application = Application::join(&endpoint, "bench", rank as u32, size, START_LIMIT);
    let group = application.context("join the application")?;
    let tree = Tree::new(&endpoint, nodes, rank)?;
    let result = Exported::new(&endpoint, qnic::SegmentName(2), 8)?;
    let names = [
        "barrier",
        "barrier_by_writes",
        "allreduce",
        "allreduce_by_writes",
    ];
    let mut rows = names.map(|name| BenchRow::new(name, nodes.len()));
    for round in 0..=options.rounds {
        let times = [
            timed(&group, |_| {
                Ok(group.barrier().timeout(ANSWER_LIMIT).wait()?)
            })?,
            timed(&group, |number| tree.allreduce(number).map(drop))?,
            timed(&group, |number| {
                let own = rank as u64 + number;
                result.buffer.write(0, &own.to_le_bytes())?;
                group
                    .allreduce::<u64>(result.part(0, 8), Operator::Sum)
                    .timeout(ANSWER_LIMIT)
                    .wait()?;
                let mut sum = [0; 8];
                result.buffer.read(0, &mut sum)?;
                check(u64::from_le_bytes(sum), nodes.len(), number)
            })?,
            timed(&group, |number| {
                let sum = tree.allreduce(rank as u64 + number)?;
                check(sum, nodes.len(), number)
            })?,
        ];
        if round > 0 {
            for (row, time) in rows.iter_mut().zip(times) {
                row.latency.extend(time);
            }
        }
    }
    group
        .barrier()
        .timeout(ANSWER_LIMIT)
        .wait()
        .context("the last barrier")?;
    if rank == 0 {
        rows.iter().try_for_each(say_line)?;
    }
    Ok(())
}

fn check(sum: u64, size: usize, number: u64) -> Result<()> {
    let size = size as u64;
    let expected = size * (size - 1) / 2 + size * number;
    ensure!(sum == expected, "the sum is {sum}, not {expected}");
    Ok(())
}

/// Times operations that all processes begin together.
fn timed(
    group: &Application<'_>,
    operation: impl Fn(u64) -> Result<()>,
) -> Result<Option<Latency>> {
    group.barrier().timeout(ANSWER_LIMIT).wait()?;
    let mut times = Vec::new();
    for number in 0..OPERATIONS {
        let start = Instant::now();
        operation(number)?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    Ok(Latency::from_ns(times))
}

/// The place of this process in a binomial tree, and its neighbours' memory.
struct Tree<'a> {
    endpoint: &'a Endpoint,
    memory: Exported,
    /// Memory of the parent, and the place among its children.
    parent: Option<(RemoteSegment, usize)>,
    children: Vec<RemoteSegment>,
}

impl<'a> Tree<'a> {
    fn new(endpoint: &'a Endpoint, nodes: &[u16], rank: usize) -> Result<Self> {
        let memory = Exported::new(endpoint, DATA, WORDS * 8)?;
        let segment = |rank: usize| import(endpoint, nodes[rank], PORT, DATA);
        // Without its lowest bit set it is its parent.
        let place = rank.trailing_zeros() as usize;
        let parent = match rank {
            0 => None,
            _ => Some((segment(rank & (rank - 1))?, place)),
        };
        let most = if rank == 0 {
            usize::BITS as usize
        } else {
            place
        };
        let below = (0..most).map(|place| rank | 1 << place);
        let below = below.take_while(|child| *child < nodes.len());
        let children = below.map(segment).collect::<Result<_>>()?;
        Ok(Tree {
            endpoint,
            memory,
            parent,
            children,
        })
    }

    fn word(&self, index: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        self.memory.buffer.read(index * 8, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The sum of what all have; a barrier, too.
    fn allreduce(&self, own: u64) -> Result<u64> {
        let mut sum = own;
        for place in 0..self.children.len() {
            let id = notification(UP + place as u32);
            take(self.endpoint, id, ANSWER_LIMIT, "a child")?;
            sum = sum.wrapping_add(self.word(place)?);
        }
        if let Some((parent, place)) = &self.parent {
            let id = notification(UP + *place as u32);
            let (offset, bytes) = (*place as u64 * 8, sum.to_le_bytes());
            self.endpoint
                .write(parent, offset, &bytes[..])
                .notify(id)
                .post()?;
            take(self.endpoint, DOWN, ANSWER_LIMIT, "the parent")?;
            sum = self.word(PARENT_WORD)?;
        }
        for child in &self.children {
            let (offset, bytes) = (PARENT_WORD as u64 * 8, sum.to_le_bytes());
            self.endpoint
                .write(child, offset, &bytes[..])
                .notify(DOWN)
                .post()?;
        }
        Ok(sum)
    }
}
