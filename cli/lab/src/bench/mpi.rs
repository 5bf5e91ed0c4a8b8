//! Open MPI between two guests: NetPIPE over the NICs, by libfabric and the provider, and over TCP on the Ethernet
//! ports of the same guests (X15). Within a round both take turns.

use std::num::NonZero;

use anyhow::{Context, Result};
use qnic_cluster::{ByteSize, GuestCommand, MpiTransport, OnOff};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::LIMIT;

use super::figures::bytes;
use super::tables::{Tables, HALF, STREAM};

const LATENCY: &str = "latency";
const STREAMS: &str = "streams";

/// Lengths of messages, of a ping-pong and of a stream, and how many there are of each.
const SHORT: (usize, u32) = (8, 1000);
const LONG: (usize, u32) = (65_536, 500);

/// Bytes of NetPIPE's megabyte (2^20), in millions; and bits of a byte.
const MEBIBYTE_MB: f64 = 1.048576;
const BITS: f64 = 8.0;

const TRANSPORTS: [(&str, MpiTransport); 2] = [
    ("MPI over qnic", MpiTransport::Nic),
    ("MPI over TCP", MpiTransport::Tcp),
];

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let mut spec = VmNodes::spec("mpi-bench", &["stable"; 2])?;
    spec.mpi = true;
    spec.ethernet = OnOff::on();
    for node in &mut spec.nodes {
        node.memory = ByteSize::mib(384);
    }
    let nodes = VmNodes::boot_spec(&spec)?;
    tables.rounds(rounds, ", MPI", false, |round| {
        for (name, over) in TRANSPORTS {
            let latency = net_pipe(&nodes, over, SHORT, &[])?;
            let row = round.row(LATENCY, name, bytes(SHORT.0));
            row.add(HALF, [latency.microseconds]);
            let stream = net_pipe(&nodes, over, LONG, &["-s"])?;
            let row = round.row(STREAMS, name, bytes(LONG.0));
            row.add(STREAM, [stream.megabytes_s]);
        }
        Ok(())
    })
}

/// What NetPIPE says of messages of one length.
#[derive(Debug, PartialEq)]
struct Said {
    megabytes_s: f64,
    microseconds: f64,
}

fn net_pipe(
    nodes: &VmNodes,
    over: MpiTransport,
    (length, count): (usize, u32),
    words: &[&str],
) -> Result<Said> {
    let (length, count) = (length.to_string(), count.to_string());
    let program = GuestCommand::new("NPopenmpi")
        .args(["-p", "0", "-o", "/tmp/np.out", "-n", &count])
        .args(["-l", &length, "-u", &length])
        .args(words);
    let two = NonZero::new(2).context("no ranks")?;
    let command = nodes.cluster().mpi()?.command(two, over, &[], &program);
    let ended = nodes.spawn(0, &command)?.succeed("NetPIPE", LIMIT)?;
    let said = format!("{}\n{}", ended.lines.join("\n"), ended.errors);
    parse(&said).with_context(|| format!("NetPIPE says no figure: {said:?}"))
}

/// Reads `  0:       8 bytes   1000 times -->      0.47 Mbps in     129.11 usec`.
fn parse(said: &str) -> Option<Said> {
    let (_, figures) = said
        .lines()
        .find_map(|line| line.split_once(" times --> "))?;
    let words: Vec<_> = figures.split_whitespace().collect();
    let [rate, "Mbps", "in", microseconds, "usec"] = words[..] else {
        return None;
    };
    Some(Said {
        megabytes_s: rate.parse::<f64>().ok()? * MEBIBYTE_MB / BITS,
        microseconds: microseconds.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read() {
        let line = "  0:       8 bytes   1000 times -->      8.00 Mbps in     129.11 usec";
        let said = parse(&format!("0: n0\n{line}\n")).unwrap();
        assert_eq!((said.megabytes_s, said.microseconds), (1.048576, 129.11));
        for text in [
            "",
            "0: n0",
            "  0: 8 bytes 1 times --> 8.00 Mbps",
            "x times --> a Mbps in 1 usec",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
