//! What the kernel says about this process and this machine.

use anyhow::{Context, Result};
use procfs::process::{MemoryPageFlags, PageInfo, Process, Status};
use procfs::{Current, Meminfo};
use qnic_abi::PAGE_SIZE;

/// A size in `/proc/self/status`, in kibibytes.
pub(crate) fn kibibytes(pick: impl Fn(&Status) -> Option<u64>) -> Result<u64> {
    let status = Process::myself()?.status()?;
    pick(&status).context("the kernel does not say that of a process")
}

/// Locked and pinned memory of this process (`VmLck`, `VmPin`), in kibibytes.
pub(crate) fn locked_and_pinned() -> Result<(u64, u64)> {
    Ok((kibibytes(|s| s.vmlck)?, kibibytes(|s| s.vmpin)?))
}

/// RAM of this machine, in kibibytes.
pub(crate) fn machine_kibibytes() -> Result<u64> {
    Ok(Meminfo::current()?.mem_total / 1024)
}

/// Pages that this machine has read from swap, and written to it.
pub(crate) fn pages_swapped() -> Result<[u64; 2]> {
    let counters = procfs::vmstat()?;
    let counter = |name| counters.get(name).map(|count| *count as u64);
    let both = counter("pswpin").zip(counter("pswpout"));
    both.map(<[u64; 2]>::from).context("the kernel has no swap")
}

/// Pages of files that this machine had taken away and read again, and pages of any kind that it
/// has written to a disk.
pub(crate) fn pages_of_files() -> Result<[u64; 2]> {
    let counters = procfs::vmstat()?;
    let counter = |name| counters.get(name).map(|count| *count as u64);
    let both = counter("workingset_refault_file").zip(counter("nr_written"));
    both.map(<[u64; 2]>::from)
        .context("the kernel does not count pages of files")
}

/// Pages that this machine has looked at to move them, so that free memory is contiguous.
pub(crate) fn pages_compacted() -> Result<u64> {
    let counters = procfs::vmstat()?;
    let counter = counters.get("compact_migrate_scanned");
    let counter = counter.context("the kernel does not compact memory")?;
    Ok(*counter as u64)
}

/// Transparent huge pages in the mappings from the one that holds `address` on up to the
/// next that is not adjacent, in kibibytes.
pub(crate) fn huge_kibibytes(address: usize) -> Result<u64> {
    let (mut next, mut bytes) = (address as u64, 0);
    for map in Process::myself()?.smaps()? {
        let (start, end) = map.address;
        if start <= next && next < end {
            next = end;
            let huge = map.extension.map.get("AnonHugePages");
            bytes += huge.context("the kernel has no huge pages")?;
        }
    }
    Ok(bytes / 1024)
}

/// Frames of the pages in a range of this process that are in its page table, in the
/// order of their addresses; zeroes unless this process is root's.
pub(crate) fn frames(address: usize, bytes: usize) -> Result<Vec<u64>> {
    let (first, pages) = (address / PAGE_SIZE, bytes / PAGE_SIZE);
    let mut map = Process::myself()?.pagemap()?;
    let entries = map.get_range_info(first..first + pages)?;
    let frames = entries.iter().filter_map(|entry| match entry {
        PageInfo::MemoryPage(page) if page.contains(MemoryPageFlags::PRESENT) => {
            Some(page.get_page_frame_number().0)
        }
        _ => None,
    });
    Ok(frames.collect())
}
