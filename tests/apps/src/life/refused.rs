//! Memory that cannot be exported, and the text that the user gets.

use std::os::fd::AsRawFd;

use anyhow::{ensure, Context, Result};
use qnic::provider::Registration;
use qnic::{Access, Nic, Segment, SegmentName, Status};
use qnic_abi::PAGE_SIZE;

use super::{held, refused, text_of, Stage};
use crate::mapping::{self, export_foreign, Mapping, READ_WRITE};
use qnic_apps::demo::options::START_LIMIT;

/// Every kind is refused at export, with a text that names it.
pub(super) fn steps(stage: &Stage) -> Result<()> {
    let bytes = 4 * PAGE_SIZE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protected = |protection| Mapping::new(bytes, protection, private, None);
    let hole = Mapping::private(bytes)?;
    let half = Mapping::private(bytes)?;
    half.protect_part(PAGE_SIZE, PAGE_SIZE, libc::PROT_READ)?;
    let secret = mapping::secret_file(bytes).context("memfd_secret")?;
    let fd = Some(secret.as_raw_fd());
    let secret = Mapping::new(bytes, READ_WRITE, libc::MAP_SHARED, fd)?;
    let served = Mapping::private(bytes)?;
    let _program = mapping::serve_by_program(&served).context("userfaultfd")?;
    let kinds = [
        ("write", Status::ReadOnlyMemory, protected(libc::PROT_READ)?),
        ("write", Status::ReadOnlyMemory, half),
        (
            "read",
            Status::UnreadableMemory,
            protected(libc::PROT_NONE)?,
        ),
        ("secret", Status::SecretMemory, secret),
        ("userfaultfd", Status::UserFaultMemory, served),
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
    for access in [Access::READ, Access::all()] {
        let exported = export_foreign(&stage.exporter, SegmentName(81), window, PAGE_SIZE, access);
        is_refused(exported, "device", Status::DeviceMemory)?;
    }
    Ok(())
}

fn overlapping(stage: &Stage) -> Result<()> {
    let memory = Mapping::private(4 * PAGE_SIZE)?;
    let _first = memory.export(&stage.exporter, SegmentName(82), Access::READ)?;
    let second = (memory.address() + PAGE_SIZE) as *mut u8;
    let name = SegmentName(83);
    let exported = export_foreign(&stage.exporter, name, second, PAGE_SIZE, Access::all());
    is_refused(exported, "", Status::Overlapping)?;
    objects_in_one_page(stage)
}

/// Two objects in one page, each with access of its own (N2).
fn objects_in_one_page(stage: &Stage) -> Result<()> {
    const LENGTH: usize = 512;
    let memory = Mapping::private(PAGE_SIZE)?;
    let export = |index: usize, access| {
        let (name, address) = (84 + index as u64, memory.address() + index * LENGTH);
        let (exporter, name) = (&stage.exporter, SegmentName(name));
        let segment = export_foreign(exporter, name, address as *mut u8, LENGTH, access)?;
        let (node, port) = (exporter.node(), exporter.port());
        let remote = stage.peer.import(node, port, name, START_LIMIT)?;
        anyhow::Ok((segment, remote))
    };
    let (first, readable) = export(0, Access::READ)?;
    let (_second, writable) = export(1, Access::WRITE)?;
    let word = |value: u64| value.to_le_bytes();
    stage.peer.write(&writable, 0, &word(1)).fenced()?;
    let denied = stage.peer.write(&readable, 0, &word(2)).fenced();
    let text = refused(denied, Status::AccessDenied)?.to_string();
    drop(first);
    stage.peer.write(&writable, 8, &word(3)).fenced()?;
    let words = [0, LENGTH / 8, LENGTH / 8 + 1].map(|index| memory.load(index));
    ensure!(words == [0, 1, 3], "the page has {words:?}");
    held("objects in one page have access of their own", text)
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
