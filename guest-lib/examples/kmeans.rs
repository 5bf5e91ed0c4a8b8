//! k-means on many nodes: each has its own points, and all agree on the centres by an allreduce
//! in the NICs.
//!
//! Start it on every node with the same arguments:
//!
//! ```sh
//! kmeans 10000 4 0 1 2    # points of each node; centres; the nodes
//! ```
//!
//! ```text
//!   own points ──► nearest centre of each ──► sums and counts by centre
//!                          ▲                        │ allreduce: sums of all nodes
//!                          └──── new centres ◄──────┘ the same on every node, to the last bit
//! ```

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic::group::{Group, Membership, Operator};
use qnic::{Access, Buffer, Nic, NodeId, Port, Segment, SegmentName};

/// The port that this program uses on every node.
const PORT: Port = Port(105);

/// What is summed up.
const SUMS: SegmentName = SegmentName(0x6b6d_6561_6e73);

/// How long to wait for the other nodes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Most steps, if the centres go on moving.
const STEPS: usize = 200;

type Point = [f64; 2];

/// Sums of x and y and the number of points, for each centre.
const WORDS: usize = 3;

fn distance(a: Point, b: Point) -> f64 {
    (a[0] - b[0]).powi(2) + (a[1] - b[1]).powi(2)
}

fn nearest(point: Point, centres: &[Point]) -> usize {
    let distances = centres.iter().map(|centre| distance(point, *centre));
    let least = distances.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
    least.map_or(0, |(index, _)| index)
}

/// Points around as many places as there are centres, by a seed.
fn points(seed: u64, count: usize, places: usize) -> Vec<Point> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let place = |index: usize| {
        [
            (index % places) as f64 * 10.0,
            (index % places % 2) as f64 * 10.0,
        ]
    };
    let point = |index: usize| place(index).map(|middle| middle + random() - 0.5);
    (0..count).map(point).collect()
}

/// Memory in which the NICs sum up.
struct Sums {
    memory: Segment,
    buffer: Buffer,
    bytes: usize,
}

impl Sums {
    /// Replaces numbers by their sums over all nodes.
    fn over_all_nodes(&self, group: &Group<'_>, numbers: &mut [f64]) -> Result<()> {
        let bytes: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        self.buffer.write(0, &bytes)?;
        group
            .allreduce::<f64>(self.memory.part(0, self.bytes), Operator::Sum)
            .timeout(TIMEOUT)
            .wait()?;
        let bytes = self.buffer.read_vec(0, self.bytes)?;
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = f64::from_le_bytes(bytes.try_into()?);
        }
        Ok(())
    }
}

/// Moves the centres until they stay; returns them and the number of steps.
fn settle(
    group: &Group<'_>,
    sums: &Sums,
    points: &[Point],
    mut centres: Vec<Point>,
) -> Result<(Vec<Point>, usize)> {
    for step in 1..=STEPS {
        let mut numbers = vec![0.0; centres.len() * WORDS];
        for point in points {
            let of = &mut numbers[nearest(*point, &centres) * WORDS..][..WORDS];
            of[0] += point[0];
            of[1] += point[1];
            of[2] += 1.0;
        }
        sums.over_all_nodes(group, &mut numbers)?;
        let before = centres.clone();
        for (centre, of) in centres.iter_mut().zip(numbers.chunks_exact(WORDS)) {
            if of[2] > 0.0 {
                *centre = [of[0] / of[2], of[1] / of[2]];
            }
        }
        if centres == before {
            return Ok((centres, step));
        }
    }
    Ok((centres, STEPS))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [count, centres, nodes @ ..] = &arguments[..] else {
        anyhow::bail!("usage: kmeans POINTS CENTRES NODE…");
    };
    let count: usize = count.parse().context("the points are a number")?;
    let places: usize = centres.parse().context("the centres are a number")?;
    ensure!(
        places > 0 && count >= places,
        "a point for each centre at least"
    );
    let parse = |node: &String| node.parse().map(NodeId).context("nodes are numbers");
    let nodes = nodes.iter().map(parse).collect::<Result<Vec<_>>>()?;

    let endpoint = Nic::open()?.register(PORT)?;
    let me = nodes.iter().position(|node| *node == endpoint.node());
    let me = me.context("this node is not in the list")?;
    let bytes = places * WORDS * 8;
    let buffer = endpoint.allocate(bytes)?;
    let sums = Sums {
        memory: endpoint.export(SUMS, &buffer, Access::READ)?,
        buffer,
        bytes,
    };
    let membership = Membership::new((nodes[0], PORT), me as u32, nodes.len() as u32);
    let group = Group::join(&endpoint, &membership, TIMEOUT)?;

    let start = Instant::now();
    let own = points(me as u64 + 1, count, places);
    // The first node chooses where to begin: it alone has numbers that are not zero.
    let mut first = vec![0.0; places * WORDS];
    if me == 0 {
        for (of, point) in first.chunks_exact_mut(WORDS).zip(&own) {
            of[..2].copy_from_slice(point);
        }
    }
    sums.over_all_nodes(&group, &mut first)?;
    let begin = first.chunks_exact(WORDS).map(|of| [of[0], of[1]]).collect();
    let (centres, steps) = settle(&group, &sums, &own, begin)?;
    // No process leaves before all are done: a group ends with its first member.
    group.barrier().timeout(TIMEOUT).wait()?;

    let far = own
        .iter()
        .map(|point| distance(*point, centres[nearest(*point, &centres)]));
    ensure!(
        far.fold(0.0, f64::max) < 1.0,
        "a point is far from its centre"
    );
    let taken = start.elapsed().as_secs_f64() * 1e3;
    println!(
        "{places} centres of {} points after {steps} steps in {taken:.1} ms",
        count * nodes.len()
    );
    for [x, y] in centres {
        println!("  {x:.17} {y:.17}");
    }
    Ok(())
}
