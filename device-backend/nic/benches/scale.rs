//! How what all nodes of a cluster do together grows with their number, in virtual time (Q14, Q15, X16).
//!
//! `cargo bench -p qnic-nic --bench scale` has 2 to 64 nodes, and with `-- 1024` up to 1,024. A row of its table has
//! these, each over all nodes with a process on each of them:
//!
//! ```text
//!   names      each process registers a name and looks up those of two others
//!   join       all processes form one group
//!   barrier    and an allreduce of 8 bytes, of that group
//!   split      a barrier while no frame goes between the halves, until each member knows that a peer is gone
//!   again      the halves are joined, and all processes form another group
//! ```
//! Times are in ways of a frame from one node to another, that of a split in seconds: a way takes a millisecond, and
//! NICs and processes no time. Each node is joined with each other one. The last two columns are what the simulation
//! itself takes: seconds of this machine, and KiB of memory by which a node has grown since it was started.

use std::time::Instant;

use qnic_abi::collective::{CollectiveCommand, Element, Operator};
use qnic_abi::host_area::CompletionEntry;
use qnic_abi::Status;
use qnic_nic::testing::{status, LossyWire, Net, Party, Posting, PAGE};
use qnic_nic::Limits;

/// How long a way takes, in nanoseconds.
const WAY: u64 = 1_000_000;

/// Pages of memory of each node.
const FRAMES: u64 = 128;

/// The nodes of a row, a process on each.
struct Row {
    net: Net,
    members: Vec<Party>,
}

impl Row {
    fn new(nodes: u16) -> Self {
        let net = Net::new(nodes, FRAMES, 8, &Limits::default());
        net.cluster().set_lossy_wire(LossyWire::steady(WAY), 1);
        let places = 0..usize::from(nodes);
        let members = places.map(|node| net.party(node, 1).present()).collect();
        Row { net, members }
    }

    /// Runs until so many completions of each member have come, in steps of `step` nanoseconds. Returns the time that
    /// it took, and the completions of each.
    fn wait(&self, each: usize, step: u64) -> (u64, Vec<Vec<CompletionEntry>>) {
        let start = self.net.cluster().now.0;
        let mut ends = vec![Vec::new(); self.members.len()];
        while ends.iter().any(|ends: &Vec<_>| ends.len() < each) {
            self.net.advance(step);
            for (node, ends) in ends.iter_mut().enumerate() {
                self.net.poll(node);
                ends.extend(self.members[node].completions());
            }
        }
        (self.net.cluster().now.0 - start, ends)
    }

    /// The same for what has to end well, in ways.
    fn ways(&self, each: usize) -> (f64, Vec<Vec<CompletionEntry>>) {
        let (took, ends) = self.wait(each, WAY / 50);
        let all_well = ends.iter().flatten().all(|end| status(end) == Status::Ok);
        assert!(all_well, "a member failed");
        (took as f64 / WAY as f64, ends)
    }

    fn names(&self) -> f64 {
        let nodes = self.members.len();
        for (node, member) in self.members.iter().enumerate() {
            member.register_name(1, ("scale", node as u32));
            for other in [(node + 1) % nodes, (node + nodes / 2) % nodes] {
                member.look_up(2, ("scale", other as u32), 60_000);
            }
        }
        self.ways(3).0
    }

    /// Forms a group. Returns the ways that it took, and what each member calls it.
    fn join(&self, group: u64) -> (f64, Vec<u64>) {
        let size = self.members.len() as u32;
        for (rank, member) in (0..).zip(&self.members) {
            member.join(1, &self.members[0], group, (rank, size));
        }
        let (ways, ends) = self.ways(1);
        let groups = ends.iter().map(|ends| ends[0].immediate.get());
        (ways, groups.collect())
    }

    fn together<'a>(&'a self, call: impl Fn(usize) -> Posting<'a, CollectiveCommand>) -> f64 {
        (0..self.members.len()).for_each(|rank| call(rank).issue());
        self.ways(1).0
    }

    /// A barrier of halves that do not hear of each other. Returns the seconds until all members know.
    fn split(&self, groups: &[u64]) -> f64 {
        self.net.cluster().border = Some(self.members.len() as u16 / 2);
        for (member, group) in self.members.iter().zip(groups) {
            member.barrier(1, *group).issue();
        }
        let (took, ends) = self.wait(1, 10 * WAY);
        let know = ends.iter().flatten();
        assert!(know.map(status).all(|status| status == Status::PeerGone));
        self.net.cluster().border = None;
        took as f64 / 1e9
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages = statm.split(' ').nth(1).expect("a second field");
    pages.parse::<u64>().expect("a number") * PAGE
}

fn measure(nodes: u16) -> String {
    let begin = Instant::now();
    let row = Row::new(nodes);
    let started = resident();
    let names = row.names();
    let (join, groups) = row.join(1);
    let barrier = |rank: usize| row.members[rank].barrier(1, groups[rank]);
    let allreduce = |rank: usize| {
        let call = barrier(rank).allreduce(Operator::Sum, Element::U64);
        call.bytes(0, 8)
    };
    // The first one meets windows that are small yet.
    row.together(barrier);
    let (barrier, allreduce) = (row.together(barrier), row.together(allreduce));
    let split = row.split(&groups);
    let (again, _) = row.join(2);
    let taken = (resident().saturating_sub(started) / u64::from(nodes)) >> 10;
    let seconds = begin.elapsed().as_secs_f64();
    format!(
        "{nodes:5} {names:8.2} {join:8.2} {barrier:8.2} {allreduce:10.2} {split:8.2} {again:8.2} {seconds:9.2} {taken:9}"
    )
}

fn main() {
    let most = std::env::args().find_map(|word| word.parse().ok());
    println!("nodes    names     join  barrier  allreduce    split    again   seconds  KiB/node");
    for depth in (1..=10).filter(|depth| 1 << depth <= most.unwrap_or(64)) {
        println!("{}", measure(1 << depth));
    }
}
