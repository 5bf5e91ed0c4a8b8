//! Reclaim: swap, lazily freed pages, control groups, huge pages; and that what the
//! NIC wrote is in the kernel's own dirty state (N7, N8).

use std::fs::File;
use std::io::ErrorKind::WouldBlock;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use qnic_abi::PAGE_SIZE;

use super::{held, holds, set, Stage};
use crate::mapping::{Mapping, READ_WRITE};
use crate::proc_status::{frames, huge_kibibytes, kibibytes, locked_and_pinned, pages_swapped};
use qnic_apps::demo::options::ANSWER_LIMIT;

/// Bytes of a transparent huge page.
const HUGE: usize = 2 << 20;
/// Memory that is exported beyond the control group's limit.
const BEYOND: usize = 24 << 20;

/// All steps that need swap and nothing else.
pub(super) fn steps(stage: &Stage) -> Result<()> {
    swapped(stage).context("MADV_PAGEOUT")?;
    dirty(stage).context("dirty state")?;
    lazily_freed(stage).context("MADV_FREE")?;
    collapsed(stage).context("MADV_COLLAPSE")
}

/// Pages out, and says how many pages really left. The kernel keeps pages whose last
/// write to swap still runs, however long the disk takes: it is asked until some leave.
fn page_out(memory: &Mapping) -> Result<usize> {
    let mapped = || Ok::<_, anyhow::Error>(frames(memory.address(), memory.len())?.len());
    let before = mapped()?;
    let start = Instant::now();
    loop {
        memory.advise(libc::MADV_PAGEOUT)?;
        let after = mapped()?;
        if after < before {
            return Ok(before - after);
        }
        let tried = start.elapsed();
        ensure!(
            tried < ANSWER_LIMIT,
            "no page left in {tried:?}: is there swap?"
        );
        std::thread::yield_now();
    }
}

fn swapped(stage: &Stage) -> Result<()> {
    let shared = stage.fresh(30)?;
    stage.write(&shared.remote, 31)?;
    let out = page_out(&shared.memory)?;
    stage.expect(&shared.remote, 31)?;
    page_out(&shared.memory)?;
    stage.write_seen(&shared, 32)?;
    let seen = format!("{out} pages out");
    held("pages in swap are read and written", seen)
}

/// A page that is in the swap cache and clean, as far as the kernel's tables say,
/// is written by the NIC alone, and paged out again: the copy in swap is old.
fn dirty(stage: &Stage) -> Result<()> {
    let shared = stage.fresh(33)?;
    let mut out = 0;
    for seed in 34..44 {
        out += page_out(&shared.memory)?;
        // Reading maps the pages again, clean.
        let kept = holds(&shared.memory, seed - 1);
        ensure!(kept, "the NIC's data is lost in swap");
        stage.write(&shared.remote, seed)?;
        // Again, without a look by the process in between.
        out += page_out(&shared.memory)?;
        stage.expect(&shared.remote, seed)?;
    }
    held(
        "what only the NIC wrote reaches swap and comes back",
        format!("{out} pages out"),
    )
}

/// Pages that the process gave up lazily and the NIC wrote to since are kept.
fn lazily_freed(stage: &Stage) -> Result<()> {
    let shared = stage.fresh(45)?;
    shared.memory.advise(libc::MADV_FREE)?;
    stage.write(&shared.remote, 46)?;
    shared.memory.advise(libc::MADV_PAGEOUT)?;
    ensure!(
        holds(&shared.memory, 46),
        "the kernel threw a written page away"
    );
    stage.expect(&shared.remote, 46)?;
    // Not written since: each page is old or zero, for process and peer alike.
    shared.memory.advise(libc::MADV_FREE)?;
    shared.memory.advise(libc::MADV_PAGEOUT)?;
    let words = (0..shared.memory.words()).map(|word| shared.memory.load(word));
    let bytes: Vec<_> = words.flat_map(u64::to_le_bytes).collect();
    let read = stage.read(&shared.remote)?;
    ensure!(read == bytes, "process and peer differ");
    held("MADV_FREE gives up no page that the NIC wrote since", "")
}

/// Collapses to huge pages; asks again while the kernel says that it cannot just now.
fn collapse(memory: &Mapping) -> Result<()> {
    let start = Instant::now();
    loop {
        match memory.advise(libc::MADV_COLLAPSE) {
            Err(error) if error.kind() == WouldBlock && start.elapsed() < ANSWER_LIMIT => {
                std::thread::yield_now();
            }
            done => return Ok(done?),
        }
    }
}

fn collapsed(stage: &Stage) -> Result<()> {
    let shared = stage.share(Mapping::aligned(2 * HUGE, HUGE)?)?;
    set(&shared.memory, 47);
    stage.expect(&shared.remote, 47)?;
    shared.memory.advise(libc::MADV_HUGEPAGE)?;
    collapse(&shared.memory)?;
    let huge = huge_kibibytes(shared.memory.address())?;
    ensure!(huge > 0, "nothing was collapsed");
    stage.expect(&shared.remote, 47)?;
    stage.write_seen(&shared, 48)?;
    let seen = format!("{huge} KiB huge");
    held("pages are collapsed to huge ones under an export", seen)
}

/// With transparent huge pages always on: transfers, fork, and what splits them.
pub(super) fn huge_pages(stage: &Stage) -> Result<()> {
    let shared = stage.share(Mapping::aligned(4 * HUGE, HUGE)?)?;
    // The NIC's own faults bring huge pages in.
    stage.write(&shared.remote, 50)?;
    let huge = huge_kibibytes(shared.memory.address())?;
    ensure!(
        huge > 0,
        "no huge page: transparent_hugepage is not \"always\""
    );
    ensure!(holds(&shared.memory, 50), "a write to a huge page is lost");
    let forked = crate::mapping::fork(|| {
        let first = holds(&shared.memory, 50);
        set(&shared.memory, 49);
        first && holds(&shared.memory, 49)
    })?;
    stage.write(&shared.remote, 51)?;
    ensure!(forked.succeeded()?, "the child saw wrong bytes");
    ensure!(holds(&shared.memory, 51), "a write after fork is lost");
    // One small page is protected: its huge page is split.
    for protection in [libc::PROT_READ, READ_WRITE] {
        let page = HUGE + PAGE_SIZE;
        shared.memory.protect_part(page, PAGE_SIZE, protection)?;
    }
    stage.expect(&shared.remote, 51)?;
    stage.write(&shared.remote, 52)?;
    page_out(&shared.memory)?;
    stage.expect(&shared.remote, 52)?;
    stage.write_seen(&shared, 53)?;
    let seen = format!("{huge} KiB huge at first");
    held("transparent huge pages", seen)
}

/// This process is in a control group that allows much less than is exported; files are
/// made in `directory`.
pub(super) fn beyond_the_limit(stage: &Stage, directory: &Path) -> Result<()> {
    anonymous_beyond(stage).context("anonymous memory")?;
    file_beyond(stage, directory).context("a file")
}

/// More of a file than the group may keep is written and read by a peer: its pages are
/// written back meanwhile and taken away.
fn file_beyond(stage: &Stage, directory: &Path) -> Result<()> {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(true);
    let file = options.open(directory.join("qnic-life-large"))?;
    file.set_len(BEYOND as u64)?;
    let fd = Some(file.as_raw_fd());
    let memory = Mapping::new(BEYOND, READ_WRITE, libc::MAP_SHARED, fd)?;
    let shared = stage.share(memory)?;
    for seed in [61, 62] {
        stage.write(&shared.remote, seed)?;
        let resident = kibibytes(|s| s.vmrss)?;
        ensure!(
            resident < (BEYOND / 1024) as u64,
            "{resident} KiB resident: is there a limit?"
        );
        stage.expect(&shared.remote, seed)?;
        ensure!(holds(&shared.memory, seed), "wrong bytes");
    }
    held("a control group's limit holds for files, too", "")
}

fn anonymous_beyond(stage: &Stage) -> Result<()> {
    let shared = stage.share(Mapping::private(BEYOND)?)?;
    let before = pages_swapped()?;
    stage.write(&shared.remote, 60)?;
    let (resident, in_swap) = (kibibytes(|s| s.vmrss)?, kibibytes(|s| s.vmswap)?);
    ensure!(
        resident < (BEYOND / 1024) as u64 && in_swap > 0,
        "{resident} KiB resident and {in_swap} KiB in swap: is there a limit?"
    );
    stage.expect(&shared.remote, 60)?;
    ensure!(holds(&shared.memory, 60), "wrong bytes");
    let [read, out] = pages_swapped()?;
    let (read, out) = (read - before[0], out - before[1]);
    ensure!(read > 0 && out > 0, "{read} pages in, {out} out");
    let (locked, pinned) = locked_and_pinned()?;
    ensure!(
        locked == 0 && pinned == 0,
        "{locked} KiB locked, {pinned} KiB pinned"
    );
    held(
        "a control group's limit holds for what the NIC brings in",
        format!("{read} pages in, {out} out"),
    )
}
