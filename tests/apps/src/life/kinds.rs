//! Kinds of memory: constants and static data of a program, private and shared mappings of
//! files, shared memory, pages of hugetlbfs (N2, N7, N8).
//!
//! What is shared has a second mapping here, the *witness*: it sees what the NIC writes as
//! any other process that maps the file does.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{ensure, Context, Result};
use qnic::{Access, CounterSource, Nic, RemoteSegment, Segment, SegmentName, Status};
use qnic_abi::PAGE_SIZE;

use super::{content, held, holds, refused, set, Shared, Stage, PAGES};
use crate::mapping::{self, export_foreign, Mapping, READ_WRITE};
use qnic_apps::demo::options::{SOURCE, START_LIMIT};

/// Bytes of a hugetlb page.
const HUGE: usize = 2 << 20;
/// Words of the static arrays: they begin and end within pages.
const WORDS: usize = 2500;
const BYTES: usize = PAGES * PAGE_SIZE;
/// The pattern that is written last to two segments of one file.
const LAST: u64 = 141;

/// In the program's file, mapped for reading.
static CONSTANT: [u64; WORDS] = constant();
/// In its data, a private mapping of its file.
static DATA: [AtomicU64; WORDS] = [const { AtomicU64::new(77) }; WORDS];
/// Without initial values: anonymous memory.
static ZEROES: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

const fn constant() -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let mut index = 0;
    while index < WORDS {
        words[index] = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        index += 1;
    }
    words
}

/// All steps; files are made in `directory`.
pub(super) fn steps(stage: &Stage, directory: &Path) -> Result<()> {
    constants(stage).context("constants")?;
    for (name, data) in [("data", &DATA), ("zeroed data", &ZEROES)] {
        static_data(stage, data).with_context(|| format!("static {name}"))?;
    }
    let file = file(directory)?;
    private_file(stage, &file).context("a private mapping of a file")?;
    shared(stage, "a file", &file)?;
    shared(stage, "a memfd", &mapping::memory_file(BYTES, 0)?)?;
    shared_anonymous(stage).context("shared anonymous memory")?;
    write_back(stage, directory, &file).context("write-back")?;
    truncated(stage, &file).context("truncation")?;
    hugetlb(stage).context("hugetlb")
}

fn file(directory: &Path) -> Result<File> {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(true);
    let file = options.open(path(directory)).context("make a file")?;
    file.set_len(BYTES as u64)?;
    Ok(file)
}

fn path(directory: &Path) -> std::path::PathBuf {
    directory.join("qnic-life")
}

/// Exports static memory and imports it.
fn share_static(
    stage: &Stage,
    address: *const u64,
    access: Access,
) -> Result<(Segment, RemoteSegment)> {
    let (name, address) = (SegmentName(90), address.cast_mut().cast());
    let segment = export_foreign(&stage.exporter, name, address, WORDS * 8, access)?;
    let (node, port) = (stage.exporter.node(), stage.exporter.port());
    let remote = stage.peer.import(node, port, name, START_LIMIT)?;
    Ok((segment, remote))
}

/// They can be read, and sent from; nothing ever writes to them.
fn constants(stage: &Stage) -> Result<()> {
    let wanted: Vec<_> = CONSTANT
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let all = share_static(stage, CONSTANT.as_ptr(), Access::all());
    let error = all.err().context("writing to constants was granted")?;
    ensure!(format!("{error:#}").contains("cannot write"), "{error:#}");
    let (segment, remote) = share_static(stage, CONSTANT.as_ptr(), Access::READ)?;
    ensure!(stage.read(&remote)? == wanted, "the peer read other bytes");
    refused(stage.write(&remote, 1), Status::AccessDenied)?;
    // As the source of a write, and as the destination of a read.
    let (node, port) = (stage.peer.node(), stage.peer.port());
    let peers = stage.exporter.import(node, port, SOURCE, START_LIMIT)?;
    let from = segment.part(0, wanted.len());
    stage.exporter.write(&peers, 0, from).fenced()?;
    let arrived = stage.sent.buffer.read_vec(0, wanted.len())?;
    ensure!(arrived == wanted, "the peer got other bytes");
    let to = segment.part(0, wanted.len());
    let read = stage.exporter.read(&peers, 0, to).fenced();
    refused(read, Status::ReadOnlyMemory)?;
    ensure!(stage.read(&remote)? == wanted, "a constant has changed");
    held("constants are sent and read, and never written", "")
}

fn static_data(stage: &Stage, data: &[AtomicU64; WORDS]) -> Result<()> {
    let (_segment, remote) = share_static(stage, data.as_ptr().cast(), Access::all())?;
    let own = || {
        data.iter()
            .flat_map(|w| w.load(Ordering::Acquire).to_le_bytes())
    };
    ensure!(stage.read(&remote)? == own().collect::<Vec<_>>(), "read");
    for seed in [101, 102] {
        stage.write(&remote, seed)?;
        ensure!(own().eq(content(seed, WORDS * 8)), "a write is lost");
        data[seed as usize].store(seed, Ordering::Release);
        ensure!(stage.read(&remote)? == own().collect::<Vec<_>>(), "read");
    }
    held("static data is written and read", "")
}

/// What the file holds, as its readers see it.
fn file_holds(file: &File, seed: u64) -> Result<bool> {
    let mut bytes = vec![0; BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes == content(seed, BYTES))
}

/// The first write to a page makes a copy: the file does not change. After fork, the child
/// keeps what was there.
fn private_file(stage: &Stage, file: &File) -> Result<()> {
    file.write_all_at(&content(110, BYTES), 0)?;
    let fd = Some(file.as_raw_fd());
    let memory = Mapping::new(BYTES, READ_WRITE, libc::MAP_PRIVATE, fd)?;
    let shared = stage.share(memory)?;
    stage.expect(&shared.remote, 110)?;
    // It was read: its pages are those of the file, until now.
    stage.write_seen(&shared, 111)?;
    ensure!(file_holds(file, 110)?, "a write reached the file");
    file.write_all_at(&content(112, BYTES), 0)?;
    stage.expect(&shared.remote, 111)?;
    forked_copy(stage, &shared, 111)?;
    ensure!(file_holds(file, 112)?, "a write reached the file");
    held("a private mapping of a file is copied on write", "")
}

/// Memory that is the process's own holds `seed`: after fork the parent's alone changes.
fn forked_copy(stage: &Stage, shared: &Shared, seed: u64) -> Result<()> {
    let (mut child, mut parent) = UnixStream::pair()?;
    let forked = mapping::fork(|| {
        let first = holds(&shared.memory, seed);
        // The parent says when the peer has written.
        let written = child.read_exact(&mut [0]).is_ok();
        first && written && holds(&shared.memory, seed)
    })?;
    let write = stage.write_seen(shared, seed + 1000);
    parent.write_all(&[1])?;
    ensure!(forked.succeeded()?, "the child saw what it must not");
    write?;
    stage.expect(&shared.remote, seed + 1000)
}

/// Memory that every mapping of `file` shares.
fn shared(stage: &Stage, what: &str, file: &File) -> Result<()> {
    let fd = Some(file.as_raw_fd());
    let map = || Mapping::new(BYTES, READ_WRITE, libc::MAP_SHARED, fd);
    let (memory, witness) = (map()?, map()?);
    both_sides(stage, memory, &witness).with_context(|| what.to_owned())?;
    let wanted = content(123, BYTES);
    ensure!(file_holds(file, 123)? && wanted.len() == BYTES, "{what}");
    held(
        &format!("{what}, mapped shared: all sides see all writes"),
        "",
    )
}

/// The peer writes by `memory`, and by a segment over the witness, which has the same
/// frames; this process writes, and a child.
fn both_sides(stage: &Stage, memory: Mapping, witness: &Mapping) -> Result<()> {
    let shared = stage.share(memory)?;
    let (segment, second) = stage.share_as(witness, SegmentName(91), Access::all())?;
    for seed in [120, 121] {
        stage.write_seen(&shared, seed)?;
        ensure!(holds(witness, seed), "the witness does not see a write");
        stage.expect(&second, seed)?;
        set(witness, seed + 10);
        stage.expect(&shared.remote, seed + 10)?;
        stage.write(&second, seed + 20)?;
        stage.expect(&shared.remote, seed + 20)?;
    }
    alternately(stage, &shared.remote, &second)?;
    // From one segment to the other, page by page the same frame.
    let from = segment.part(0, BYTES);
    stage
        .exporter
        .write(&stage.own(SegmentName(70))?, 0, from)
        .fenced()?;
    ensure!(
        holds(witness, LAST),
        "a copy of a page to itself changed it"
    );
    let forked = mapping::fork(|| {
        set(witness, 122);
        holds(&shared.memory, 122)
    })?;
    ensure!(forked.succeeded()?, "the child");
    stage.expect(&shared.remote, 122)?;
    stage.write_seen(&shared, 123)
}

/// Segments that have the same frames do not take them from each other: once both were used, writes to
/// both fault no more (N2).
fn alternately(stage: &Stage, first: &RemoteSegment, second: &RemoteSegment) -> Result<()> {
    const ROUNDS: u64 = 20;
    let nic = Nic::open()?;
    let faults = || anyhow::Ok(nic.counters(CounterSource::Driver)?["faults_served"]);
    let mut before = 0;
    for round in 0..=ROUNDS {
        stage.write(first, LAST + 1)?;
        stage.write(second, LAST)?;
        if round == 0 {
            before = faults()?;
        }
    }
    let served = faults()? - before;
    // The kernel may take some pages meanwhile.
    ensure!(served < ROUNDS, "{served} faults in {ROUNDS} rounds");
    held(
        "two mappings of one frame fault once",
        format!("{served} faults"),
    )
}

fn shared_anonymous(stage: &Stage) -> Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let shared = stage.share(Mapping::new(BYTES, READ_WRITE, flags, None)?)?;
    stage.expect(&shared.remote, 0)?;
    stage.write_seen(&shared, 125)?;
    let forked = mapping::fork(|| {
        let seen = holds(&shared.memory, 125);
        set(&shared.memory, 126);
        seen
    })?;
    ensure!(forked.succeeded()?, "the child does not see a write");
    stage.expect(&shared.remote, 126)?;
    shared.memory.advise(libc::MADV_PAGEOUT)?;
    stage.expect(&shared.remote, 126)?;
    stage.write_seen(&shared, 127)?;
    held(
        "shared anonymous memory is shared with children and peers",
        "",
    )
}

/// What the peer writes reaches the disk: each write makes a page dirty again that the
/// write-back before it has cleaned. The disk is read past the page cache.
fn write_back(stage: &Stage, directory: &Path, file: &File) -> Result<()> {
    let fd = Some(file.as_raw_fd());
    let memory = Mapping::new(BYTES, READ_WRITE, libc::MAP_SHARED, fd)?;
    let shared = stage.share(memory)?;
    for seed in 140..146 {
        stage.write(&shared.remote, seed)?;
        if seed % 3 == 0 {
            // In and out of the cache by reclaim, too.
            shared.memory.advise(libc::MADV_PAGEOUT)?;
        }
        file.sync_all()?;
        ensure!(on_disk(directory)? == content(seed, BYTES), "lost: {seed}");
        stage.expect(&shared.remote, seed)?;
    }
    held("what peers write to a file is written back", "")
}

/// What the disk holds of the file, past the page cache.
fn on_disk(directory: &Path) -> Result<Vec<u8>> {
    let buffer = Mapping::private(BYTES)?;
    mapping::read_direct(&path(directory), &buffer)?;
    let words = (0..buffer.words()).map(|word| buffer.load(word));
    Ok(words.flat_map(u64::to_le_bytes).collect())
}

/// Beyond the end of the file there is nothing to write to, until it grows again.
fn truncated(stage: &Stage, file: &File) -> Result<()> {
    let fd = Some(file.as_raw_fd());
    let witness = Mapping::new(BYTES, READ_WRITE, libc::MAP_SHARED, fd)?;
    let memory = Mapping::new(BYTES, READ_WRITE, libc::MAP_SHARED, fd)?;
    let shared = stage.share(memory)?;
    stage.write_seen(&shared, 150)?;
    file.set_len(BYTES as u64 / 2)?;
    refused(stage.write(&shared.remote, 151), Status::PageUnavailable)?;
    refused(stage.read(&shared.remote), Status::PageUnavailable)?;
    let half = stage.got.part(0, BYTES / 2);
    stage.peer.read(&shared.remote, 0, half).fenced()?;
    let same = stage.got.buffer.read_vec(0, BYTES / 2)?;
    file.set_len(BYTES as u64)?;
    let read = stage.read(&shared.remote)?;
    let (first, second) = read.split_at(BYTES / 2);
    ensure!(same == first, "the first half changed");
    ensure!(second.iter().all(|byte| *byte == 0), "the end came back");
    stage.write_seen(&shared, 152)?;
    mapping::punch_hole(file, BYTES)?;
    stage.expect(&shared.remote, 0)?;
    stage.write_seen(&shared, 153)?;
    ensure!(holds(&witness, 153), "the witness does not see a write");
    held("a file that is truncated takes no write beyond its end", "")
}

fn hugetlb(stage: &Stage) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    {
        let memory = Mapping::new(HUGE, READ_WRITE, flags, None).context("map a hugetlb page")?;
        let shared = stage.share(memory)?;
        stage.write_seen(&shared, 160)?;
        stage.expect(&shared.remote, 160)?;
        forked_copy(stage, &shared, 160)?;
    }
    let file = mapping::memory_file(HUGE, libc::MFD_HUGETLB).context("a hugetlb memfd")?;
    let fd = Some(file.as_raw_fd());
    let map = || Mapping::new(HUGE, READ_WRITE, libc::MAP_SHARED, fd);
    let (memory, witness) = (map()?, map()?);
    let shared = stage.share(memory)?;
    stage.expect(&shared.remote, 0)?;
    stage.write_seen(&shared, 162)?;
    ensure!(holds(&witness, 162), "the witness does not see a write");
    set(&witness, 163);
    stage.expect(&shared.remote, 163)?;
    held("hugetlb pages, private and shared", "")
}
