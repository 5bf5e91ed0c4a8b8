//! Options of `qnic sim`.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use qnic_trials::duration;

/// Options of `qnic sim`.
#[derive(Args, Debug)]
#[command(after_help = "\
Faults: loss, delay, reorder, duplicate, corrupt, partition, evict, unavailable, kill,
revoke, reset, crash, slow; all; none.

Examples:
  cargo qnic sim --seed 42                    one simulation; its trace on stdout,
                                              byte for byte the same each time
  cargo qnic sim --seeds 1000                 a campaign on all cores
  cargo qnic sim --for 8h --nodes 6           until morning
  cargo qnic sim --fresh --for 1h             seeds that no run has had: from the clock,
                                              4 to 12 nodes, in all modes
  cargo qnic sim --fresh --seeds 500 --nodes 2-6 --modes lossless,engines
                                              such seeds of small clusters on safe wires
  cargo qnic sim --seeds 200 --without crash  all faults but one
  cargo qnic sim --seeds 200 --lossless       the wire within one device process
  cargo qnic sim --seed 42 --faults evict,kill --shrink
                                              make a failure smaller

A failure prints its seed, what went wrong, and the command that repeats it.

Exit status: 0 if every promise was kept, 1 if one was broken, 2 for a wrong command
line.")]
pub struct Options {
    /// Run this seed alone, and print its trace
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "time", "fresh"])]
    pub seed: Option<u64>,
    /// Run so many seeds; 1000 without this and --for
    #[arg(long, value_name = "N")]
    pub seeds: Option<u64>,
    /// Run seeds for so long: seconds, or such as 1h; no more than --seeds says
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub time: Option<Duration>,
    /// Take the first seed from the clock, and have 4 to 12 nodes in all modes, where the other
    /// options do not say what to take
    #[arg(long)]
    pub fresh: bool,
    /// First seed of a campaign; 0 without this and --fresh
    #[arg(long, value_name = "N")]
    pub first: Option<u64>,
    /// Nodes of the cluster: a number, or such as 4-12, of which each seed chooses; 4 without this
    #[arg(long, value_name = "N", value_parser = nodes)]
    pub nodes: Option<RangeInclusive<usize>>,
    /// What lies between the nodes: lossy, lossless, engines, separated by commas, of which each
    /// seed chooses; all; lossy without this
    #[arg(long, value_name = "LIST", conflicts_with_all = ["lossless", "engines"])]
    pub modes: Option<String>,
    /// Transfers that each process issues
    #[arg(long, value_name = "N", default_value_t = 80)]
    pub operations: u32,
    /// Faults that happen, separated by commas
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub faults: String,
    /// Faults that do not happen after all, separated by commas
    #[arg(long, value_name = "LIST", default_value = "none")]
    pub without: String,
    /// The wire is the one within a device process: nothing is lost or late, and spans
    /// of pages travel in a frame; loss, delay, reorder, duplicate, corrupt, partition
    /// and crash do not happen
    #[arg(long)]
    pub lossless: bool,
    /// Each NIC has an engine of its own: frames arrive later, and lie in their senders' pages
    /// until then
    #[arg(long, requires = "lossless")]
    pub engines: bool,
    /// Look for a smaller simulation that fails, too
    #[arg(long)]
    pub shrink: bool,
    /// Go on after a failure, up to so many
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub failures: usize,
}

/// Numbers of nodes: one, or the first and the last.
fn nodes(text: &str) -> Result<RangeInclusive<usize>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.parse().ok().zip(last.parse().ok());
    let range = range.map(|(first, last)| first..=last);
    range
        .filter(|range| !range.is_empty() && *range.start() >= 2 && *range.end() <= 64)
        .ok_or_else(|| "expected a number from 2 to 64, or two such as 4-12".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_nodes_are_one_or_a_range() {
        assert_eq!(nodes("6"), Ok(6..=6));
        assert_eq!(nodes("4-12"), Ok(4..=12));
        for text in ["", "1", "65", "5-4", "4-", "-4", "x"] {
            assert!(nodes(text).is_err(), "{text}");
        }
    }
}
