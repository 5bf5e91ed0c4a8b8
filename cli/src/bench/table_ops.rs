//! What the operations on the shadow page table cost: the code of driver and NIC
//! on one core, over plain memory, caches warm; and what pinning costs beside it.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use memmap2::MmapMut;
use qnic_abi::header::Geometry;
use qnic_abi::page_table::Tag;
use qnic_abi::{NodeId, VniId, PAGE_SHIFT, PAGE_SIZE};
use qnic_driver::shadow::{Dirty, Inserted, Table, Unmapped};
use qnic_host::SharedRegion;
use qnic_nic::page_table::{lock_page, lock_pages, unlock_page, unlock_page_dirty, LockedPage};

use super::memory::Series;
use super::netvm;

/// Pages that each operation is done to, one after the other; the mean is a value.
const PAGES: u32 = 1024;

/// Frames of the table: so many that no row gets full.
const FRAMES: u64 = 1 << 16;

/// Pages that the NIC locks behind one fence when it streams.
const BURST: usize = 8;

/// The table, and its pages.
struct Bench {
    geometry: Geometry,
    sram: SharedRegion,
    table: Table,
    tags: Vec<Tag>,
}

/// Runs all rounds: a series for each operation of table 24, and of table 25.
pub(super) fn measure(rounds: usize) -> Result<(Vec<Series>, Vec<Series>)> {
    let mut bench = Bench::new()?;
    let mut operations = Operations::new();
    let mut pinning = Pinning::new()?;
    // The first round warms caches and branch predictors, and is not counted.
    bench.round(&mut Operations::new())?;
    for _ in 0..rounds {
        bench.round(&mut operations)?;
        pinning.round()?;
    }
    let series = operations.0.into();
    Ok((series, pinning.series))
}

/// The operations, in the order of [`Bench::round`].
struct Operations([Series; 10]);

impl Operations {
    fn new() -> Self {
        Operations([
            Series::new("mapPage", Some(netvm::MAP_PAGE)),
            Series::new("unmapPage", Some(netvm::UNMAP_PAGE)),
            Series::new("unmapPage (LOCKED)", Some(netvm::UNMAP_PAGE_LOCKED)),
            Series::new("isPageDirty (CLEAN)", Some(netvm::IS_PAGE_DIRTY_CLEAN)),
            Series::new("isPageDirty (DIRTY)", Some(netvm::IS_PAGE_DIRTY_DIRTY)),
            Series::new("lockPage", Some(netvm::LOCK_PAGE)),
            Series::new("lockPage (absent)", Some(netvm::LOCK_PAGE_NOT_MAPPED)),
            Series::new("unlockPage", Some(netvm::UNLOCK_PAGE)),
            Series::new("unlockPageDirty", Some(netvm::UNLOCK_PAGE_DIRTY)),
            Series::new("lockPage, eight at a time", None),
        ])
    }
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
        lock_page(&self.sram, &self.geometry, self.tag(frame))
    }

    fn lock_into(&self, locked: &mut [Option<LockedPage>], frame: u32) -> bool {
        let place = &mut locked[frame as usize];
        *place = self.lock(frame);
        place.is_some()
    }

    fn round(&mut self, operations: &mut Operations) -> Result<()> {
        let [map, unmap, unmap_locked, clean, dirty, lock, absent, unlock, unlock_dirty, burst] =
            &mut operations.0;
        absent.push(time(PAGES, |frame| self.lock(frame).is_none())?);
        map.push(time(PAGES, |frame| {
            let tag = self.tag(frame);
            let inserted = self.table.insert(&self.sram, tag, frame, 1);
            matches!(inserted, Inserted::Done { evicted: None, .. })
        })?);
        let mut locked: Vec<Option<LockedPage>> = (0..PAGES).map(|_| None).collect();
        lock.push(time(PAGES, |frame| self.lock_into(&mut locked, frame))?);
        unlock.push(time(PAGES, |frame| {
            let page = locked[frame as usize].take();
            page.map(|page| unlock_page(&self.sram, &self.geometry, page))
                .is_some()
        })?);
        clean.push(self.ask(Dirty::Clean)?);
        time(PAGES, |frame| self.lock_into(&mut locked, frame))?;
        unlock_dirty.push(time(PAGES, |frame| {
            let page = locked[frame as usize].take();
            page.map(|page| unlock_page_dirty(&self.sram, &self.geometry, page))
                .is_some()
        })?);
        dirty.push(self.ask(Dirty::Cleaned)?);
        burst.push(self.burst()?);
        time(PAGES, |frame| self.lock_into(&mut locked, frame))?;
        unmap_locked.push(self.take_out(|outcome| outcome == Unmapped::Locked)?);
        for page in locked.into_iter().flatten() {
            unlock_page(&self.sram, &self.geometry, page);
        }
        unmap.push(self.take_out(|outcome| matches!(outcome, Unmapped::Done(_)))?);
        Ok(())
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

    /// Time for each page of [`BURST`] that are locked at once.
    fn burst(&self) -> Result<f64> {
        let bursts = PAGES / BURST as u32;
        let mut locked: Vec<[Option<LockedPage>; BURST]> =
            (0..bursts).map(|_| Default::default()).collect();
        let each = time(bursts, |burst| {
            let burst = burst as usize;
            let tags = self.tags[burst * BURST..][..BURST].iter().copied();
            let pages = &mut locked[burst];
            lock_pages(&self.sram, &self.geometry, tags, pages) == BURST
        })?;
        for page in locked.into_iter().flatten().flatten() {
            unlock_page(&self.sram, &self.geometry, page);
        }
        Ok(each / BURST as f64)
    }
}

/// What other systems do instead: pin a cluster of pages, and unpin it.
struct Pinning {
    clusters: Vec<MmapMut>,
    series: Vec<Series>,
}

impl Pinning {
    fn new() -> Result<Self> {
        let mut clusters = Vec::new();
        let mut series = Vec::new();
        for (pages, source) in netvm::PINNING {
            let mut memory = MmapMut::map_anon(pages * PAGE_SIZE).context("get memory")?;
            memory.fill(1);
            clusters.push(memory);
            let name = format!("mlock + munlock, {pages} at a time");
            series.push(Series::new(&name, Some(source)));
        }
        Ok(Pinning { clusters, series })
    }

    /// Time for each page of a cluster.
    fn round(&mut self) -> Result<()> {
        for (memory, series) in self.clusters.iter().zip(&mut self.series) {
            let each = time(PAGES / 8, |_| {
                memory.lock().is_ok() && memory.unlock().is_ok()
            })
            .context("pin memory (RLIMIT_MEMLOCK must allow 32 KiB)")?;
            series.push(each / (memory.len() / PAGE_SIZE) as f64);
        }
        Ok(())
    }
}
