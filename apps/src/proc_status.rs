//! What the kernel says about this process.

use anyhow::{Context, Result};

/// A line of `/proc/self/status` that holds kibibytes, such as `VmLck`.
pub(crate) fn kibibytes(name: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .with_context(|| format!("/proc/self/status has no line {name}"))?;
    let number = line.trim().trim_end_matches("kB").trim();
    number
        .parse()
        .with_context(|| format!("{name} is {line:?} in /proc/self/status"))
}
