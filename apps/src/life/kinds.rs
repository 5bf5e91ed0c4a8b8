//! Memory that cannot be exported, and the text that the user gets.

use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{ensure, Context, Result};
use qnic::provider::Registration;
use qnic::{Access, Nic, Segment, SegmentName, Status};
use qnic_abi::PAGE_SIZE;

use super::{held, text_of, Stage};
use crate::mapping::{export_foreign, Mapping, READ_WRITE};

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
    let (shared_anonymous, hugetlb) = (shared | libc::MAP_ANONYMOUS, anonymous | libc::MAP_HUGETLB);
    let map = |flags, fd| Mapping::new(bytes, READ_WRITE, flags, fd);
    let protected = |protection| Mapping::new(bytes, protection, anonymous, None);
    let huge = Mapping::new(HUGE, READ_WRITE, hugetlb, None).context("map a hugetlb page")?;
    let hole = Mapping::private(bytes)?;
    let half = Mapping::private(bytes)?;
    half.protect_part(PAGE_SIZE, PAGE_SIZE, libc::PROT_READ)?;
    let kinds = [
        ("file", Status::FileMemory, map(private, fd)?),
        ("shared", Status::SharedMemory, map(shared, fd)?),
        ("shared", Status::SharedMemory, map(shared_anonymous, None)?),
        ("hugetlb", Status::HugetlbMemory, huge),
        ("write", Status::ReadOnlyMemory, protected(libc::PROT_READ)?),
        ("write", Status::ReadOnlyMemory, protected(libc::PROT_NONE)?),
        ("write", Status::ReadOnlyMemory, half),
        ("not mapped", Status::NotMapped, hole),
    ];
    for (word, status, memory) in &kinds {
        if *status == Status::NotMapped {
            memory.unmap()?;
        }
        let exported = memory.export(&stage.exporter, SegmentName(80), Access::all());
        is_refused(exported, word, *status)?;
    }
    device(stage)?;
    overlapping(stage)
}

/// The NIC's own window in this process.
fn device(stage: &Stage) -> Result<()> {
    let nic = Nic::open()?;
    let Registration::Done(process) = nic.provider().register(0, 0)? else {
        anyhow::bail!("no window to try");
    };
    let window = process.window().address() as *mut u8;
    let exported = export_foreign(&stage.exporter, SegmentName(81), window, PAGE_SIZE);
    is_refused(exported, "device", Status::DeviceMemory)
}

fn overlapping(stage: &Stage) -> Result<()> {
    let memory = Mapping::private(4 * PAGE_SIZE)?;
    let _first = memory.export(&stage.exporter, SegmentName(82), Access::READ)?;
    let second = (memory.address() + PAGE_SIZE) as *mut u8;
    let exported = export_foreign(&stage.exporter, SegmentName(83), second, PAGE_SIZE);
    is_refused(exported, "", Status::Overlapping)
}

/// The refusal has this status, and a text with `word` in it.
fn is_refused(exported: qnic::Result<Segment>, word: &str, status: Status) -> Result<()> {
    let text = text_of(exported, status)?;
    ensure!(
        text.contains(word),
        "the text does not say {word:?}: {text}"
    );
    held(&format!("{status:?} is refused at export"), text)
}
