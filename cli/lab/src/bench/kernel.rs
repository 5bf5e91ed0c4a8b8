//! What the kernel's own path costs, between two guests: streams and datagram sockets over shared
//! pools (S1 to S6), beside TCP and UDP over a virtio network device of the same guests. Within a
//! round all take turns.

use anyhow::Result;
use qnic_apps::report::PoolLine;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

use super::figures::bytes;
use super::guest_network::{address, GuestNetwork};
use super::point_to_point::said;
use super::remote_memory;
use super::tables::Tables;

const CALLS: &str = "calls";

/// Bytes of a page.
const PAGE: f64 = 4096.0;

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let network = GuestNetwork::new()?;
    let arguments = [0, 1].map(|node| network.arguments(node));
    let nodes = VmNodes::boot_with("bench", &["stable"; 2], &arguments)?;
    network.set_up(&nodes, "eth0")?;
    let mut server = nodes.start_until(1, "pool-server --internet", "serving")?;
    let arguments = format!("pool-bench --peer 1 --address {}", address(1));
    for name in ["TCP", "UDP", "datagram socket", "stream"] {
        tables.row(CALLS, name, bytes(8));
    }
    // Bytes that drivers have copied, and that were moved, in all rounds.
    let (mut all_copied, mut all_moved) = (0, 0);
    tables.rounds(rounds, "", false, |round| {
        for line in said(nodes.start(0, &arguments)?, "the client")? {
            add(line, round, (&mut all_copied, &mut all_moved));
        }
        Ok(())
    })?;
    server.kill()?;
    // Data that is not copied goes from the writer's frame to the reader's; process and NIC copy it
    // into the first, from one to the other, and out of it.
    let copied = all_copied as f64 / (all_moved as f64 / PAGE);
    tables.add("copies", "stream", "driver [bytes]", copied);
    remote_memory::measure(rounds, tables)
}

fn add(line: PoolLine, tables: &mut Tables, (all_copied, all_moved): (&mut u64, &mut u64)) {
    match line {
        PoolLine::Transfer(row) => {
            tables.add_split("latency", "bandwidth", &row);
            if !row.mb_s.is_empty() {
                let to = tables.row("bandwidth", &row.operation, bytes(row.size));
                to.add("writes [MB/s]", row.mb_s);
            }
        }
        PoolLine::Messages(row) => {
            let each = |calls: u64| calls as f64 / row.messages as f64;
            let to = tables.row(CALLS, &row.operation, bytes(8));
            to.add("sender's calls [each]", [each(row.sender_calls)]);
            to.add("of these kicks [each]", row.sender_kicks.map(each));
            to.add("receiver's [each]", row.receiver_calls.map(each));
            to.add("time [µs]", [row.message_us]);
        }
        PoolLine::Copied { copied, moved } => {
            *all_copied += copied;
            *all_moved += moved;
        }
    }
}

#[cfg(test)]
mod tests {
    use qnic_apps::report::MessagesRow;

    use super::*;

    #[test]
    fn calls_are_those_of_each_message() {
        let row = MessagesRow {
            operation: "stream".into(),
            messages: 1000,
            sender_calls: 20,
            sender_kicks: Some(10),
            receiver_calls: None,
            message_us: 0.5,
        };
        let mut tables = Tables::default();
        add(PoolLine::Messages(row), &mut tables, (&mut 0, &mut 0));
        let samples = |figure| tables.samples(CALLS, "stream", bytes(8), figure);
        assert_eq!(samples("sender's calls [each]"), [0.02]);
        assert_eq!(samples("of these kicks [each]"), [0.01]);
        assert_eq!(samples("receiver's [each]"), [0.0; 0]);
    }
}
