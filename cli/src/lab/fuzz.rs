//! Options of `qnic fuzz`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Args;

/// Options of `qnic fuzz`.
#[derive(Args, Debug)]
#[command(after_help = "\
Targets: frames, commands, control, verbs, cluster_file, udp, ring, vhost_user, ethernet.

Examples:
  cargo qnic fuzz                       each target for a minute
  cargo qnic fuzz frames --minutes 30
  cargo qnic fuzz frames --minutes 30 --keep
                                        then renew tests/fuzz/corpus/frames
  cargo qnic fuzz udp --input FILE      run one input again, without libFuzzer
  cargo qnic fuzz --coverage            what is kept reaches so much of each crate

A C++ compiler is needed for libFuzzer, llvm-profdata and llvm-cov for --coverage. An input
that breaks a promise is written to tests/fuzz/regressions/TARGET, where cargo test finds it.

Exit status: 0 if nothing was found, 1 if something was, 2 for a wrong command line, or
if a tool for --coverage is missing.")]
pub struct Options {
    /// Fuzz this target; all in turn if none is named
    #[arg(value_parser = target)]
    pub target: Option<String>,
    /// Minutes for each target; fractions are fine
    #[arg(long, value_name = "N", default_value = "1", value_parser = minutes)]
    pub minutes: Duration,
    /// Run this one input again, and nothing else
    #[arg(long, value_name = "FILE", requires = "target")]
    pub input: Option<PathBuf>,
    /// Keep in tests/fuzz/corpus the fewest inputs that reach all the code that was reached
    #[arg(long)]
    pub keep: bool,
    /// Build with AddressSanitizer
    #[arg(long)]
    pub asan: bool,
    /// Run what is kept, and what libFuzzer has left in target/fuzz/corpus, and tell which share
    /// of each crate it reaches
    #[arg(long, conflicts_with_all = ["minutes", "input", "keep", "asan"])]
    pub coverage: bool,
    /// Write these shares to a file, too
    #[arg(long, value_name = "FILE", requires = "coverage")]
    pub json: Option<PathBuf>,
}

/// The fuzz targets.
pub const TARGETS: [&str; 9] = [
    "frames",
    "commands",
    "control",
    "verbs",
    "cluster_file",
    "udp",
    "ring",
    "vhost_user",
    "ethernet",
];

fn target(name: &str) -> Result<String> {
    let names = TARGETS.join(", ");
    ensure!(
        TARGETS.contains(&name),
        "there is no such target; there are {names}"
    );
    Ok(name.to_owned())
}

/// A time in minutes, up to some years.
fn minutes(text: &str) -> Result<Duration> {
    let minutes: f64 = text.parse().context("not a number")?;
    ensure!(
        (0.0..=1e6).contains(&minutes),
        "not between 0 and 1,000,000 minutes"
    );
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_finite_and_targets_are_known() {
        assert_eq!(minutes("0.5").unwrap(), Duration::from_secs(30));
        assert!(minutes("nan").is_err() && minutes("-1").is_err());
        assert!(target("frames").is_ok());
        let error = target("x").unwrap_err().to_string();
        assert!(error.contains("frames, commands"), "{error}");
    }
}
