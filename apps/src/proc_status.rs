//! What the kernel says about this process and this machine.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use qnic_abi::PAGE_SIZE;
use qnic_apps::pattern;

/// A line of `/proc/self/status` that holds kibibytes, such as `VmLck`.
pub(crate) fn kibibytes(name: &str) -> Result<u64> {
    field("/proc/self/status", name)
}

/// A line of `/proc/meminfo`, in kibibytes, such as `MemTotal`.
pub(crate) fn machine_kibibytes(name: &str) -> Result<u64> {
    field("/proc/meminfo", name)
}

/// A counter of `/proc/vmstat`, such as `pswpin`.
pub(crate) fn vmstat(name: &str) -> Result<u64> {
    field("/proc/vmstat", name)
}

/// The number behind `name` in a file of such lines.
fn field(path: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let mut values = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let found = words.next()?.trim_end_matches(':') == name;
        found.then(|| words.next()).flatten()
    });
    let value = values
        .next()
        .with_context(|| format!("{path} has no line {name}"))?;
    value
        .parse()
        .with_context(|| format!("{name} is {value:?} in {path}"))
}

/// A line of `/proc/self/smaps` for the mappings from the one that holds `address`
/// on up to the next that is not adjacent, summed up, in kibibytes.
pub(crate) fn smaps_kibibytes(address: usize, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps").context("read /proc/self/smaps")?;
    let (mut next, mut inside, mut sum) = (address, false, 0);
    for line in text.lines() {
        if let Some((start, end)) = mapping_of(line) {
            inside = start <= next && next < end;
            if inside {
                next = end;
            }
        } else if inside && line.split(':').next() == Some(name) {
            let value = line.split_whitespace().nth(1);
            sum += value
                .and_then(|value| value.parse::<u64>().ok())
                .with_context(|| format!("a line of smaps: {line:?}"))?;
        }
    }
    Ok(sum)
}

/// The addresses in the first line of a mapping in smaps.
fn mapping_of(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}

/// Frames of the pages in a range of this process that are in its page table, in the
/// order of their addresses; zeroes unless this process is root's.
pub(crate) fn frames(address: usize, bytes: usize) -> Result<Vec<u64>> {
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    let file = File::open("/proc/self/pagemap").context("open /proc/self/pagemap")?;
    let mut entries = vec![0; bytes / PAGE_SIZE * 8];
    file.read_exact_at(&mut entries, (address / PAGE_SIZE * 8) as u64)
        .context("read /proc/self/pagemap")?;
    let present = pattern::words(&entries).filter(|entry| entry & PRESENT != 0);
    Ok(present.map(|entry| entry & FRAME).collect())
}
