//! Options of `qnic top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Options of `qnic top`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic top                       the only cluster that runs
  cargo qnic top pair --interval 0.2
  cargo qnic top --once                figures of one second, as text
  cargo qnic top --once --json | jq '.[].operations_per_second'
  cargo qnic top --once --json | jq '.[] | {node, busiest: .by_process[0]}'

Keys: q quits, up and down choose the node whose stages, processes or peers are shown, tab
chooses which of them, page up and page down scroll, left and right choose by what nodes are
sorted. docs/observing.md says what the figures are.

Exit status: 0, 1 if no cluster runs or no device process answers, 2 for a wrong command
line, 130 if interrupted.")]
pub struct Options {
    /// The cluster; needed if several run
    pub cluster: Option<String>,
    /// Ask the device process with this control socket instead of a cluster's
    #[arg(long, value_name = "PATH", conflicts_with = "cluster")]
    pub socket: Option<PathBuf>,
    /// Time between two looks, in seconds; fractions are fine
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// Look twice, print, and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON: a list with an object for each node
    #[arg(long, requires = "once")]
    pub json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let bad = || "a number of seconds from 0.05 to 3600".to_owned();
    let seconds: f64 = text.parse().map_err(|_| bad())?;
    match (0.05..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(seconds("0.2"), Ok(Duration::from_millis(200)));
        for wrong in ["", "0", "-1", "NaN", "inf", "3601", "1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
