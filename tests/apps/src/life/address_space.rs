//! fork, mremap, munmap, mprotect, madvise, and several names over one range.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::{ensure, Context, Result};
use qnic::{Access, SegmentName, Status};
use qnic_abi::PAGE_SIZE;

use super::{held, holds, refused, set, Stage, PAGES};
use crate::mapping::{self, Mapping, READ_WRITE};

/// All steps of this kind.
pub(super) fn steps(stage: &Stage) -> Result<()> {
    fork(stage).context("fork")?;
    moved(stage).context("mremap")?;
    unmapped(stage).context("munmap")?;
    protected(stage).context("mprotect")?;
    discarded(stage).context("madvise")?;
    names(stage).context("several names")
}

/// What is exported stays with the parent: the peer's writes go to its pages, the
/// child keeps what was there when it forked and shares nothing.
fn fork(stage: &Stage) -> Result<()> {
    let shared = stage.fresh(1)?;
    stage.write(&shared.remote, 2)?;
    let (mut parent, mut child) = UnixStream::pair()?;
    let forked = mapping::fork(|| {
        let first = holds(&shared.memory, 2);
        let sent = child.write_all(&[1]).is_ok();
        let go_on = child.read_exact(&mut [0]).is_ok();
        let second = holds(&shared.memory, 2);
        // Its own writes are its own; and it has no part in the parent's NIC.
        set(&shared.memory, 4);
        let foreign = stage
            .exporter
            .export(SegmentName(99), &stage.sent.buffer, Access::READ)
            .is_err();
        let sent_again = child.write_all(&[1]).is_ok();
        let end = child.read_exact(&mut [0]).is_ok();
        first && sent && go_on && second && foreign && sent_again && end && holds(&shared.memory, 4)
    })?;
    parent.read_exact(&mut [0])?;
    stage.write_seen(&shared, 3)?;
    parent.write_all(&[1])?;
    parent.read_exact(&mut [0])?;
    stage.expect(&shared.remote, 3)?;
    stage.write_seen(&shared, 5)?;
    parent.write_all(&[1])?;
    ensure!(forked.succeeded()?, "the child saw what it must not");
    stage.expect(&shared.remote, 5)?;
    held("after fork the export stays with the parent alone", "")
}

fn moved(stage: &Stage) -> Result<()> {
    let shared = stage.fresh(6)?;
    stage.write(&shared.remote, 7)?;
    let elsewhere = shared.memory.move_away()?;
    refused(stage.write(&shared.remote, 8), Status::PageUnavailable)?;
    refused(stage.read(&shared.remote), Status::PageUnavailable)?;
    ensure!(holds(&elsewhere, 7), "the moved pages changed");
    shared.memory.map_anew(false)?;
    stage.write_seen(&shared, 9)?;
    ensure!(holds(&elsewhere, 7), "wrong pages");
    held("mremap leaves the export at its addresses", "")
}

fn unmapped(stage: &Stage) -> Result<()> {
    let shared = stage.fresh(10)?;
    stage.write(&shared.remote, 11)?;
    shared.memory.unmap()?;
    refused(stage.write(&shared.remote, 12), Status::PageUnavailable)?;
    shared.memory.map_anew(false)?;
    stage.expect(&shared.remote, 0)?;
    stage.write_seen(&shared, 13)?;
    // Memory of another kind at the same addresses.
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    shared.memory.map_other(READ_WRITE, flags, None)?;
    stage.expect(&shared.remote, 0)?;
    stage.write_seen(&shared, 14)?;
    shared.memory.map_anew(true)?;
    stage.write_seen(&shared, 15)?;
    held(
        "munmap: refused while there is a hole, then the new pages",
        "",
    )
}

fn protected(stage: &Stage) -> Result<()> {
    let shared = stage.fresh(16)?;
    for (name, protection, status) in [
        ("PROT_READ", libc::PROT_READ, Status::ReadOnlyMemory),
        ("PROT_NONE", libc::PROT_NONE, Status::PageUnavailable),
    ] {
        stage.write(&shared.remote, 17)?;
        shared.memory.protect(protection)?;
        refused(stage.write(&shared.remote, 18), status).context(name)?;
        if protection == libc::PROT_READ {
            stage.expect(&shared.remote, 17).context(name)?;
        } else {
            refused(stage.read(&shared.remote), status).context(name)?;
        }
        shared.memory.protect(READ_WRITE)?;
        ensure!(holds(&shared.memory, 17), "{name} did not stop the peer");
        stage.write_seen(&shared, 18)?;
    }
    // One page of many: what lies before it is written, and nothing behind its start.
    stage.write(&shared.remote, 19)?;
    let page = 5;
    let memory = &shared.memory;
    let before = memory.load(page * 512);
    memory.protect_part(page * PAGE_SIZE, PAGE_SIZE, libc::PROT_READ)?;
    refused(stage.write(&shared.remote, 20), Status::ReadOnlyMemory)?;
    let after = memory.load(page * 512);
    ensure!(after == before, "the protected page changed");
    held("mprotect: peers do what the process may do", "")
}

fn discarded(stage: &Stage) -> Result<()> {
    let shared = stage.fresh(21)?;
    stage.write(&shared.remote, 22)?;
    shared.memory.advise(libc::MADV_DONTNEED)?;
    stage.expect(&shared.remote, 0)?;
    shared.memory.advise(libc::MADV_DONTNEED)?;
    stage.write_seen(&shared, 23)?;
    held("MADV_DONTNEED: zeroes, then what is written", "")
}

/// Names over one range with different rights: each grants its own, and unexport
/// of one leaves the other.
fn names(stage: &Stage) -> Result<()> {
    let memory = Mapping::private(PAGES * PAGE_SIZE)?;
    set(&memory, 24);
    let (_reader, readable) = stage.share_as(&memory, SegmentName(71), Access::READ)?;
    let (writer, writable) = stage.share_as(&memory, SegmentName(72), Access::WRITE)?;
    let (_both, both) = stage.share_as(&memory, SegmentName(73), Access::all())?;
    refused(stage.write(&readable, 25), Status::AccessDenied)?;
    refused(stage.read(&writable), Status::AccessDenied)?;
    ensure!(holds(&memory, 24), "a refused write landed");
    stage.write(&writable, 26)?;
    stage.expect(&readable, 26)?;
    stage.write(&both, 27)?;
    stage.expect(&both, 27)?;
    writer.unexport()?;
    refused(stage.write(&writable, 28), Status::NoSuchSegment)?;
    stage.expect(&readable, 27)?;
    stage.write(&both, 29)?;
    ensure!(holds(&memory, 29), "one name's end took another's rights");
    held("names over one range grant what each says", "")
}
