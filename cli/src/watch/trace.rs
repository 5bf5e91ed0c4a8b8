//! Options of `qnic trace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Options of `qnic trace`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic trace                           every operation of 5 seconds, to trace.json
  cargo qnic trace pair -o slow.json --for 30s --sample 61
  cargo qnic trace --on a,b --for 0.5
  cargo qnic trace --json | jq '.slowest[0]'

Open the file at https://ui.perfetto.dev: a process is a node, arrows lead from the sender of an
operation to the receiver. Ctrl-C ends a trace early, and the file is written all the same. Of
several hosts, each has a trace of its own nodes. Under load, let --sample be a prime: a NIC that
has no room for more events drops them, and the trace says how many. docs/tracing.md says more.

Exit status: 0, 1 if no cluster runs, a device process does not answer or traces already, or the
file cannot be written, 2 for a wrong command line.")]
pub struct Options {
    /// The cluster; needed if several run
    pub cluster: Option<String>,
    /// Ask device processes with these control sockets instead of a cluster's
    #[arg(long, value_name = "PATH", conflicts_with = "cluster")]
    pub socket: Vec<PathBuf>,
    /// The network of this name; without it, the one that all nodes have
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    pub network: Option<String>,
    /// Where to write
    #[arg(long, short, default_value = "trace.json")]
    pub output: PathBuf,
    /// For how long: seconds, or with a unit (5s, 200ms, 1m)
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = time)]
    pub time: Duration,
    /// These nodes only, with commas between them; may be given several times
    #[arg(long, value_name = "NODE,…", value_delimiter = ',', value_parser = node)]
    pub on: Vec<String>,
    /// Of every so many operations of a node, one
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: u32,
    /// Most events to keep; the trace ends when there are so many
    #[arg(long, value_name = "EVENTS", default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(1..=20_000_000))]
    pub limit: u64,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

fn node(text: &str) -> Result<String, String> {
    match text {
        "" => Err("names of nodes, such as a or a,b".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// Longest trace in seconds.
const LONGEST: f64 = 3600.0;

fn time(text: &str) -> Result<Duration, String> {
    let bad = || "a time from 1ms to 1h, such as 5s, 200ms or 0.5".to_owned();
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let with_unit = units
        .into_iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit) = with_unit.unwrap_or((text, 1.0));
    let number: f64 = number.parse().map_err(|_| bad())?;
    let seconds = number * unit;
    match (1e-3..=LONGEST).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn nodes_have_commas_or_options_of_their_own() {
        let parse = |words: &[&str]| {
            let words = ["trace"].iter().chain(words);
            let command = <Command as clap::Parser>::try_parse_from(words);
            command.map(|command| command.options.on)
        };
        assert_eq!(parse(&[]).unwrap(), [""; 0]);
        for words in [&["--on", "a,b"][..], &["--on", "a", "--on=b"]] {
            assert_eq!(parse(words).unwrap(), ["a", "b"], "{words:?}");
        }
        for words in [&["--on", ""][..], &["--on", "a,"], &["--on", "a,,b"]] {
            let error = parse(words).unwrap_err().to_string();
            assert!(error.contains("names of nodes"), "{error}");
        }
    }

    #[test]
    fn times_have_units_and_bounds() {
        for (text, milliseconds) in [
            ("5s", 5_000),
            ("0.5", 500),
            ("200ms", 200),
            ("1m", 60_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(
                time(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for wrong in ["", "s", "0", "-1s", "NaN", "infs", "2h", "1d", "0.1ms"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
