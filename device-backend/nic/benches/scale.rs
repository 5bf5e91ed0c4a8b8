//! How barriers and reductions grow with the number of nodes, in virtual time (Q15).
//!
//! `cargo bench -p qnic-nic --bench collectives` prints the time of a barrier and of an allreduce
//! of 8 bytes over 2 to 64 nodes, in ways of a frame from one node to another: a way takes a
//! millisecond, and NICs and processes no time. Each node is joined with each other one.

use std::collections::BTreeMap;

use qnic_abi::collective::{CollectiveCommand, Element, Operator};
use qnic_nic::testing::{LossyWire, Net, Party, Posting};

/// How long a way takes, in nanoseconds.
const WAY: u64 = 1_000_000;

fn poll_all(net: &Net, nodes: u16) {
    for node in 0..usize::from(nodes) {
        net.poll(node);
    }
}

/// Issues a call of each member, and returns how many ways it took until all were done.
fn ways<'a>(
    net: &Net,
    members: &'a [Party],
    call: impl Fn(usize) -> Posting<'a, CollectiveCommand>,
) -> f64 {
    let nodes = members.len() as u16;
    let start = net.cluster().now.0;
    (0..members.len()).for_each(|rank| call(rank).issue());
    let mut left = members.len();
    while left > 0 {
        net.advance(WAY / 50);
        poll_all(net, nodes);
        left -= members
            .iter()
            .map(|member| member.completions().len())
            .sum::<usize>();
    }
    (net.cluster().now.0 - start) as f64 / WAY as f64
}

/// Barrier and allreduce over so many nodes.
fn measure(nodes: u16) -> [f64; 2] {
    let net = Net::routed(nodes, LossyWire::steady(WAY), |_| BTreeMap::new());
    let places = 0..usize::from(nodes);
    let members: Vec<_> = places.map(|node| net.party(node, 1).present()).collect();
    for (rank, member) in (0..).zip(&members) {
        member.join(1, &members[0], 1, (rank, nodes.into()));
    }
    net.run();
    let joined = members
        .iter()
        .map(|member| member.completions()[0].immediate.get());
    let groups: Vec<u64> = joined.collect();
    let barrier = |rank: usize| members[rank].barrier(1, groups[rank]);
    let allreduce = |rank: usize| {
        let call = barrier(rank).allreduce(Operator::Sum, Element::U64);
        call.bytes(0, 8)
    };
    ways(&net, &members, barrier);
    [
        ways(&net, &members, barrier),
        ways(&net, &members, allreduce),
    ]
}

fn main() {
    println!("nodes  depth  barrier  allreduce of 8 bytes   (ways of a frame)");
    let mut points = Vec::new();
    for depth in 1..=6u32 {
        let [barrier, allreduce] = measure(1 << depth);
        println!(
            "{:5}  {depth:5}  {barrier:7.2}  {allreduce:20.2}",
            1 << depth
        );
        points.push((f64::from(depth), barrier));
    }
    let count = points.len() as f64;
    let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let over = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum::<f64>();
    let under = points
        .iter()
        .map(|point| (point.0 - x).powi(2))
        .sum::<f64>();
    let slope = over / under;
    println!(
        "fit: {:.2} + {slope:.2} for each level of the tree",
        y - slope * x
    );
}
