//! Options of `qnic sim`.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Args;

/// Options of `qnic sim`.
#[derive(Args, Debug)]
#[command(after_help = "\
Faults: loss, delay, reorder, duplicate, corrupt, partition, evict, unavailable, kill,
revoke, reset, crash, slow; all; none.

Examples:
  cargo qnic sim --seed 42                    one simulation; its trace on stdout,
                                              byte for byte the same each time
  cargo qnic sim --seeds 1000                 a campaign on all cores
  cargo qnic sim --hours 8 --nodes 6          until morning
  cargo qnic sim --seeds 200 --without crash  all faults but one
  cargo qnic sim --seeds 200 --lossless       the wire within one device process
  cargo qnic sim --seed 42 --faults evict,kill --shrink
                                              make a failure smaller

A failure prints its seed, what went wrong, and the command that repeats it.

Exit status: 0 if every promise was kept, 1 if one was broken, 2 for a wrong command
line.")]
pub struct Options {
    /// Run this seed alone, and print its trace
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "hours"])]
    pub seed: Option<u64>,
    /// Run so many seeds
    #[arg(long, value_name = "N", conflicts_with = "hours")]
    pub seeds: Option<u64>,
    /// Run seeds for so long; fractions are fine
    #[arg(long, value_name = "HOURS", value_parser = hours)]
    pub hours: Option<Duration>,
    /// First seed of a campaign
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first: u64,
    /// Nodes of the cluster
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(2..=64))]
    pub nodes: u16,
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

/// A time in hours, up to a thousand years.
fn hours(text: &str) -> Result<Duration> {
    let hours: f64 = text.parse().context("not a number")?;
    ensure!(
        (0.0..=1e7).contains(&hours),
        "not between 0 and 10,000,000 hours"
    );
    Ok(Duration::from_secs_f64(hours * 3600.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_finite() {
        assert_eq!(hours("0.5").unwrap(), Duration::from_secs(1800));
        for text in ["nan", "inf", "-1", "1e8", "x"] {
            assert!(hours(text).is_err(), "{text}");
        }
    }
}
