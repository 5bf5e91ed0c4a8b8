//! Memory that is not exported, and what the user is told.

use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{ensure, Context, Result};
use qnic::{Access, Nic, SegmentName, Status};
use qnic_abi::PAGE_SIZE;

use super::{held, text_of, Stage};
use crate::mapping::{Mapping, READ_WRITE};

/// Bytes of a hugetlb page.
const HUGE: usize = 2 << 20;

/// Every kind is refused at export, with a text that names it.
pub(super) fn steps(stage: &Stage) -> Result<()> {
    let bytes = 4 * PAGE_SIZE;
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open("/tmp/qnic-life")
        .context("make a file")?;
    file.set_len(bytes as u64)?;
    let fd = Some(file.as_raw_fd());
    let private = libc::MAP_PRIVATE;
    let anonymous = private | libc::MAP_ANONYMOUS;
    let shared = libc::MAP_SHARED;
    let hole = Mapping::private(bytes)?;
    let half = Mapping::private(bytes)?;
    half.protect_part(PAGE_SIZE, PAGE_SIZE, libc::PROT_READ)?;
    let kinds = [
        (
            "file",
            Status::FileMemory,
            Mapping::new(bytes, READ_WRITE, private, fd)?,
        ),
        (
            "shared",
            Status::SharedMemory,
            Mapping::new(bytes, READ_WRITE, shared, fd)?,
        ),
        (
            "shared",
            Status::SharedMemory,
            Mapping::new(bytes, READ_WRITE, shared | libc::MAP_ANONYMOUS, None)?,
        ),
        (
            "hugetlb",
            Status::HugetlbMemory,
            Mapping::new(HUGE, READ_WRITE, anonymous | libc::MAP_HUGETLB, None)
                .context("map a hugetlb page")?,
        ),
        (
            "write",
            Status::ReadOnlyMemory,
            Mapping::new(bytes, libc::PROT_READ, anonymous, None)?,
        ),
        (
            "write",
            Status::ReadOnlyMemory,
            Mapping::new(bytes, libc::PROT_NONE, anonymous, None)?,
        ),
        ("write", Status::ReadOnlyMemory, half),
        ("not mapped", Status::NotMapped, hole),
    ];
    for (word, status, memory) in &kinds {
        if *status == Status::NotMapped {
            memory.unmap()?;
        }
        let text = text_of(
            memory.export(&stage.exporter, SegmentName(80), Access::all()),
            *status,
        )?;
        ensure!(
            text.contains(word),
            "the text does not say {word:?}: {text}"
        );
        held(&format!("{status:?} is refused at export"), text)?;
    }
    device(stage)?;
    overlapping(stage)
}

/// The NIC's own window in this process.
fn device(stage: &Stage) -> Result<()> {
    let nic = Nic::open()?;
    let qnic::provider::Registration::Done(process) = nic.provider().register(0, 0)? else {
        anyhow::bail!("no window to try");
    };
    let window = process.window();
    let result = crate::mapping::export_foreign(
        &stage.exporter,
        SegmentName(81),
        window.address() as *mut u8,
        PAGE_SIZE,
    );
    let text = text_of(result, Status::DeviceMemory)?;
    ensure!(
        text.contains("device"),
        "the text does not say \"device\": {text}"
    );
    held("DeviceMemory is refused at export", text)
}

fn overlapping(stage: &Stage) -> Result<()> {
    let memory = Mapping::private(4 * PAGE_SIZE)?;
    let _first = memory.export(&stage.exporter, SegmentName(82), Access::READ)?;
    let part = crate::mapping::export_foreign(
        &stage.exporter,
        SegmentName(83),
        (memory.address() + PAGE_SIZE) as *mut u8,
        PAGE_SIZE,
    );
    let text = text_of(part, Status::Overlapping)?;
    held("Overlapping is refused at export", text)
}
