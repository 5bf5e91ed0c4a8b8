//! Whether what a guest stores is visible to threads of the host before what it loads
//! behind a fence: without that, doorbells, wake-ups and interrupts are lost at times
//! (N12, N17). `qnic-app fences` is the guest's half.

use std::fs::File;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_abi::shared::Ordering;
use qnic_abi::{SharedMemory, PAGE_SIZE};
use qnic_apps::fences::{END, MINE, START, THEIRS};
use qnic_host::SharedRegion;

use super::nodes::on;
use crate::harness::{cases, Case};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

const LIMIT: Duration = Duration::from_secs(60);
/// Stores and loads of the guest for each kind of fence. Of a million of them, some ten
/// were out of order where the fence was none.
const ROUNDS: u32 = 2_000_000;
/// The host's turns that the guest must have seen, or they did not run side by side.
const SEEN: usize = 1_000;
/// How often they may try to. Beside other work they have one core together in most tries, and some
/// 50 turns are seen in each.
const TRIES: usize = 60;
/// Where the guest's process puts what it has seen.
const SEEN_FILE: &str = "/tmp/seen";

pub(crate) const CASES: &[Case] = cases! { "vm":
    fences_of_guests_hold_for_the_host => on("fences", &["stable"], fences),
};

/// Of a guest with one processor, which QEMU may emulate in a simpler way than others.
fn fences(nodes: &VmNodes) -> Result<()> {
    for fence in ["library", "exchange"] {
        let mut seen = 0;
        for _ in 0..TRIES {
            seen += side_by_side(nodes, fence).with_context(|| format!("fence: {fence}"))?;
            if seen >= SEEN {
                break;
            }
        }
        println!("    {fence}: the guest saw {seen} turns of the host, all in order");
        ensure!(
            seen >= SEEN,
            "guest and host did not run side by side: {seen}"
        );
    }
    Ok(())
}

/// Lets guest and host run; returns how many turns of the host the guest saw.
fn side_by_side(nodes: &VmNodes, fence: &str) -> Result<usize> {
    let arguments = format!("fences --fence {fence} --rounds {ROUNDS} --seen {SEEN_FILE}");
    let mut guest = nodes.start(0, &arguments)?;
    let address = guest.expect("page", LIMIT)?;
    let address = address.as_u64().context("no address")?;
    let memory = File::options()
        .read(true)
        .write(true)
        .open(memory_of(nodes)?)
        .context("open the guest's memory")?;
    // The guest has less memory than would be moved beyond 4 GiB.
    let page = SharedRegion::map_file(&memory, address, PAGE_SIZE, true)?;
    let turns = turns(&page)?;
    guest.succeed("the guest's process", LIMIT)?;

    let directory = tempfile::tempdir()?;
    let file = nodes
        .node(0)?
        .get(SEEN_FILE.as_ref(), directory.path(), &|_| {})?;
    let bytes = std::fs::read(file)?;
    let word = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes);
    let mut seen = 0;
    for pair in bytes.chunks_exact(8) {
        let (round, turn) = (word(&pair[..4])?, word(&pair[4..])?);
        if let Some(next) = turns.get(turn as usize + 1) {
            ensure!(
                *next >= round,
                "the guest stored {round} and then saw the host's turn {turn}, and the next turn \
                 saw {next}: the fence is none"
            );
            seen += 1;
        }
    }
    Ok(seen)
}

/// The host's half: what each turn saw of the guest.
fn turns(page: &SharedRegion) -> Result<Vec<u32>> {
    let mut seen = vec![0];
    page.store_u64(START, 1, Ordering::Release);
    while page.load_u64(END, Ordering::Acquire) == 0 {
        page.store_u64(THEIRS, seen.len() as u64, Ordering::Relaxed);
        page.fence();
        seen.push(page.load_u64(MINE, Ordering::Relaxed) as u32);
        ensure!(seen.len() < 1 << 27, "the guest does not end");
        for _ in 0..20 {
            std::hint::spin_loop();
        }
    }
    Ok(seen)
}

/// The file that is the guest's memory, as its QEMU has it open.
fn memory_of(nodes: &VmNodes) -> Result<std::path::PathBuf> {
    let qemu = nodes.node(0)?.qemu().context("no QEMU")?;
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", qemu.pid))?;
    for descriptor in descriptors {
        let path = descriptor?.path();
        let target = std::fs::read_link(&path).unwrap_or_default();
        if target.to_string_lossy().contains("memory-backend-memfd") {
            return Ok(path);
        }
    }
    anyhow::bail!("QEMU has no memfd open")
}
