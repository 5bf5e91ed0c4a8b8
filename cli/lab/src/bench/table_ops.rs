//! What the operations on the shadow page table cost: the code of driver and NIC on one
//! core, over plain memory, caches warm; and what pinning costs beside it.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use memmap2::MmapMut;
use qnic_abi::header::Geometry;
use qnic_abi::page_table::{PageAccess, Tag};
use qnic_abi::{NodeId, VniId, PAGE_SHIFT, PAGE_SIZE};
use qnic_driver::shadow::{Dirty, Inserted, Table, Unmapped};
use qnic_host::SharedRegion;
use qnic_nic::page_table::{lock_page, lock_pages, unlock_page, unlock_page_dirty, LockedPage};
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::{read, write};

use super::tables::{Tables, HERE};

pub(super) const PAGE_TABLE: &str = "page-table";
pub(super) const PINNING: &str = "pinning";

/// How the rows of [`PINNING`] begin.
pub(super) const PINNED: &str = "mlock + munlock";
pub(super) const PINNED_BY_INTERRUPT: &str = "interrupt + mlock + munlock";

/// Pages that each operation is done to, one after the other; the mean is a value.
const PAGES: u32 = 1024;

/// Frames of the table: so many that no row gets full.
const FRAMES: u64 = 1 << 16;

/// Pages that the NIC locks behind one fence when it streams.
const SPAN: usize = 8;

/// Pages of the clusters that are pinned at once.
const CLUSTERS: [usize; 4] = [1, 2, 4, 8];

struct Bench {
    geometry: Geometry,
    sram: SharedRegion,
    table: Table,
    tags: Vec<Tag>,
}

/// Measures each operation of table 24, and of table 25. The first round warms caches and branch predictors.
pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let mut bench = Bench::new()?;
    let mut clusters = Vec::new();
    for pages in CLUSTERS {
        let mut memory = MmapMut::map_anon(pages * PAGE_SIZE).context("get memory")?;
        memory.fill(1);
        clusters.push(memory);
    }
    tables.rounds(rounds, ", page table", true, |round| {
        bench.round(round)?;
        pin(&clusters, round)
    })
}

/// What other systems do instead: pin a cluster of pages, and unpin it. Time for each page; and with
/// what it takes to interrupt the host for that, the wake-up of a thread that sleeps.
fn pin(clusters: &[MmapMut], times: &mut Tables) -> Result<()> {
    let interrupt = interrupt().context("interrupt a thread")?;
    for (memory, pages) in clusters.iter().zip(CLUSTERS) {
        let pin = |_| memory.lock().is_ok() && memory.unlock().is_ok();
        let all = time(PAGES / 8, pin);
        let all = all.context("pin memory (RLIMIT_MEMLOCK must allow 32 KiB)")?;
        for (how, cost) in [(PINNED, all), (PINNED_BY_INTERRUPT, interrupt + all)] {
            let name = format!("{how}, {pages} at a time");
            times.add(PINNING, &name, HERE, cost / pages as f64);
        }
    }
    Ok(())
}

/// Mean time from the write to an eventfd, which is an interrupt of a host-mode NIC, until the thread
/// that sleeps at it runs, in nanoseconds: half of what two threads need that wake each other in turn.
fn interrupt() -> Result<f64> {
    let event = || eventfd(0, EventfdFlags::CLOEXEC);
    let (there, back) = (event()?, event()?);
    let wake = |event: &OwnedFd| write(event, &1u64.to_ne_bytes()).is_ok();
    let sleep = |event: &OwnedFd| read(event, &mut [0; 8]).is_ok();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| (0..PAGES).all(|_| sleep(&there) && wake(&back)));
        let both = time(PAGES, |_| wake(&there) && sleep(&back))?;
        ensure!(other.join().unwrap_or(false), "the other thread has failed");
        Ok(both / 2.0)
    })
}

/// Mean time of `count` calls, in nanoseconds.
fn time(count: u32, mut call: impl FnMut(u32) -> bool) -> Result<f64> {
    let mut all = true;
    let start = Instant::now();
    for index in 0..count {
        all &= black_box(call(black_box(index)));
    }
    let elapsed = start.elapsed();
    ensure!(all, "an operation did not end as it must");
    Ok(elapsed.as_nanos() as f64 / f64::from(count))
}

impl Bench {
    fn new() -> Result<Self> {
        let geometry = Geometry::new(NodeId(0), FRAMES, 1, 1)
            .map_err(|error| anyhow::anyhow!("no geometry: {error:?}"))?;
        let sram = SharedRegion::anonymous(geometry.sram_bytes as usize).context("get memory")?;
        let pages = 0..u64::from(PAGES);
        Ok(Bench {
            table: Table::new(geometry, 1),
            tags: pages
                .map(|page| Tag::new(VniId(0), page << PAGE_SHIFT))
                .collect(),
            geometry,
            sram,
        })
    }

    fn tag(&self, frame: u32) -> Tag {
        self.tags[frame as usize]
    }

    fn lock(&self, frame: u32) -> Option<LockedPage> {
        lock_page(
            &self.sram,
            &self.geometry,
            self.tag(frame),
            PageAccess::Write,
        )
    }

    fn lock_into(&self, locked: &mut [Option<LockedPage>], frame: u32) -> bool {
        let slot = &mut locked[frame as usize];
        *slot = self.lock(frame);
        slot.is_some()
    }

    /// Times each operation on all pages, one operation after the other.
    fn round(&mut self, times: &mut Tables) -> Result<()> {
        let absent = time(PAGES, |frame| self.lock(frame).is_none())?;
        let map = time(PAGES, |frame| {
            let tag = self.tag(frame);
            let inserted = self
                .table
                .insert(&self.sram, tag, frame, (1, PageAccess::Write));
            matches!(inserted, Inserted::Done { evicted: None, .. })
        })?;
        let mut locked: Vec<Option<LockedPage>> = (0..PAGES).map(|_| None).collect();
        let lock = time(PAGES, |frame| self.lock_into(&mut locked, frame))?;
        let unlock = self.unlock_all(&mut locked, unlock_page)?;
        let clean = self.ask(Dirty::Clean)?;
        time(PAGES, |frame| self.lock_into(&mut locked, frame))?;
        let unlock_dirty = self.unlock_all(&mut locked, unlock_page_dirty)?;
        let dirty = self.ask(Dirty::Cleaned)?;
        let lock_span = self.lock_spans()?;
        time(PAGES, |frame| self.lock_into(&mut locked, frame))?;
        let unmap_locked = self.take_out(|outcome| outcome == Unmapped::Locked)?;
        self.unlock_all(&mut locked, unlock_page)?;
        let unmap = self.take_out(|outcome| matches!(outcome, Unmapped::Done(_)))?;
        for (name, ns) in [
            ("mapPage", map),
            ("unmapPage", unmap),
            ("unmapPage (LOCKED)", unmap_locked),
            ("isPageDirty (CLEAN)", clean),
            ("isPageDirty (DIRTY)", dirty),
            ("lockPage", lock),
            ("lockPage (absent)", absent),
            ("unlockPage", unlock),
            ("unlockPageDirty", unlock_dirty),
            ("lockPage, eight at a time", lock_span),
        ] {
            times.add(PAGE_TABLE, name, HERE, ns);
        }
        Ok(())
    }

    fn unlock_all(
        &self,
        locked: &mut [Option<LockedPage>],
        unlock: fn(&SharedRegion, &Geometry, LockedPage),
    ) -> Result<f64> {
        time(PAGES, |frame| {
            let page = locked[frame as usize].take();
            page.map(|page| unlock(&self.sram, &self.geometry, page))
                .is_some()
        })
    }

    fn ask(&mut self, expected: Dirty) -> Result<f64> {
        time(PAGES, |frame| {
            let tag = self.tag(frame);
            self.table.is_page_dirty(&self.sram, tag, frame) == expected
        })
    }

    fn take_out(&mut self, expected: impl Fn(Unmapped) -> bool) -> Result<f64> {
        time(PAGES, |frame| {
            let tag = self.tag(frame);
            expected(self.table.try_unmap(&self.sram, tag, frame))
        })
    }

    /// Time for each page of [`SPAN`] that are locked at once.
    fn lock_spans(&self) -> Result<f64> {
        let spans = PAGES / SPAN as u32;
        let mut locked: Vec<[Option<LockedPage>; SPAN]> =
            (0..spans).map(|_| Default::default()).collect();
        let each = time(spans, |span| {
            let span = span as usize;
            let tags = self.tags[span * SPAN..][..SPAN].iter().copied();
            let pages = &mut locked[span];
            lock_pages(&self.sram, &self.geometry, tags, PageAccess::Write, pages) == SPAN
        })?;
        for page in locked.into_iter().flatten().flatten() {
            unlock_page(&self.sram, &self.geometry, page);
        }
        Ok(each / SPAN as f64)
    }
}
