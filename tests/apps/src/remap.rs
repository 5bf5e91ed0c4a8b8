//! Memory that is taken away and mapped anew a million times while a peer writes to
//! it: no write may land in a frame that the kernel has given to something else
//! (N2, N5, N6, N8).
//!
//! ```text
//!   victim                                    writer (another node)
//!   ──────                                    ──────
//!   wait for two whole sweeps  ◄───────────── sweep: POISON over the whole range,
//!   look at the canary of the last round        as long writes and as single words;
//!   free the canary's frames                    count it if nothing was refused
//!   take the range away  ◄── race ──────────  …
//!   canary: touch as many pages, other content
//!   map the range anew
//! ```
//! The canary gets the frames that the range has just given up. A translation that
//! the NIC had kept would send the next sweep's writes into them: each page of the
//! range is written in each sweep, and the canary is looked at only after a sweep
//! that began later was whole. So a stale translation cannot stay unseen.
//!
//! The range is taken away in turn by munmap, by a mapping over it, and by
//! MADV_DONTNEED, the export staying as it is: writes are refused
//! (`PageUnavailable`) while nothing is mapped, and legal again afterwards. Every
//! so many rounds the segment is unexported before.

use std::time::Instant;

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::{Access, CounterSource, Endpoint, RemoteSegment, Segment, SegmentName, Status};
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::{RemapReport, RemapWriterReport};

use crate::mapping::Mapping;
use crate::proc_status;
use qnic_apps::demo::node::{register, say, take, Exported, Peer};
use qnic_apps::demo::options::{ANSWER_LIMIT, REQUEST, SOURCE, TARGET_PORT};

/// The range that comes and goes.
const RANGE: SegmentName = SegmentName(50);
/// One page of the victim: [`SWEEPS`] and [`STOP`].
const CONTROL: SegmentName = SegmentName(51);
/// Offset of the number of whole sweeps, which the writer stores.
const SWEEPS: usize = 0;
/// Offset of the word that is 1 when the writer is to end.
const STOP: usize = 8;
/// What the writer writes, word by word.
const POISON: u64 = 0x5a5a_5a5a_5a5a_5a5a;
/// Bytes of a long write.
const CHUNK: usize = 64 * PAGE_SIZE;
const PAGE_WORDS: usize = PAGE_SIZE / 8;
/// Rounds from one that unexports to the next.
const UNEXPORT_EVERY: u64 = 16;
/// Rounds from one that looks at frame numbers to the next.
const FRAMES_EVERY: u64 = 32;

/// Options of the victim.
#[derive(Args)]
pub(crate) struct Options {
    /// Port
    #[arg(long, default_value_t = TARGET_PORT.0)]
    port: u16,
    /// Pages of the range, a multiple of 64
    #[arg(long, default_value_t = 512)]
    pages: usize,
    /// Pages to take away in all
    #[arg(long, default_value_t = 1_000_000)]
    races: u64,
    /// Seed of the moments at which the range is taken away
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The victim: fails if a canary was touched.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        options.pages > 0 && options.pages % 64 == 0,
        "--pages is a multiple of 64"
    );
    let (nic, endpoint) = register(options.port)?;
    let control = Exported::new(&endpoint, CONTROL, PAGE_SIZE)?;
    let bytes = options.pages * PAGE_SIZE;
    let mut victim = Victim {
        endpoint: &endpoint,
        control: &control,
        range: Mapping::private(bytes).context("map the range")?,
        canary: Mapping::private(bytes).context("map the canary")?,
        segment: None,
        random: fastrand::Rng::with_seed(options.seed),
        report: RemapReport::default(),
    };
    victim.export()?;
    let (start, before) = (Instant::now(), nic.counters(CounterSource::Driver)?);
    say("exported", bytes)?;
    while victim.report.races < options.races {
        victim.round()?;
        let now = nic.counters(CounterSource::Driver)?;
        victim.report.races = now["pages_invalidated"] - before["pages_invalidated"];
        victim.report.lock_conflicts = now["lock_conflicts"] - before["lock_conflicts"];
    }
    victim.await_sweep()?;
    victim.check_canary()?;
    victim.report.sweeps = victim.sweeps()?;
    victim.report.seconds = start.elapsed().as_secs_f64();
    control.buffer.store_u64(STOP, 1)?;
    say("remapped", &victim.report)?;
    // The writer reads the word before it ends; until then it writes.
    take(
        &endpoint,
        REQUEST,
        ANSWER_LIMIT,
        "wait for the writer's end",
    )
}

struct Victim<'a> {
    endpoint: &'a Endpoint,
    control: &'a Exported,
    range: Mapping,
    canary: Mapping,
    segment: Option<Segment>,
    random: fastrand::Rng,
    report: RemapReport,
}

impl Victim<'_> {
    fn round(&mut self) -> Result<()> {
        self.await_sweep()?;
        self.check_canary()?;
        // Its frames go to where fresh ones come from, below those of the range.
        self.canary.advise(libc::MADV_DONTNEED)?;
        let round = self.report.rounds;
        let bytes = self.range.len();
        let frames = if round % FRAMES_EVERY == 0 {
            proc_status::frames(self.range.address(), bytes)?
        } else {
            Vec::new()
        };
        self.await_some_moment();
        let unexport = round % UNEXPORT_EVERY == UNEXPORT_EVERY - 1;
        if unexport {
            let segment = self.segment.take().context("the range is not exported")?;
            segment.unexport().context("unexport the range")?;
            self.report.unexported += 1;
        }
        let hole = round % 3 == 0;
        match round % 3 {
            0 => self.range.unmap()?,
            1 => self.range.map_anew(true)?,
            _ => self.range.advise(libc::MADV_DONTNEED)?,
        }
        self.report.rounds += 1;
        self.touch_canary();
        if !frames.is_empty() {
            let now = proc_status::frames(self.canary.address(), bytes)?;
            self.report.frames_compared += now.len() as u64;
            let reused = now.iter().filter(|frame| frames.contains(frame));
            self.report.frames_reused += reused.count() as u64;
        }
        if hole {
            self.range.map_anew(false).context("map into the hole")?;
        }
        if unexport {
            self.export()?;
        }
        Ok(())
    }

    fn export(&mut self) -> Result<()> {
        let segment = self.range.export(self.endpoint, RANGE, Access::WRITE);
        self.segment = Some(segment.context("export the range")?);
        Ok(())
    }

    fn sweeps(&self) -> Result<u64> {
        Ok(self.control.buffer.load_u64(SWEEPS)?)
    }

    /// Waits until a sweep that began after this call was whole: the one that runs
    /// now may have begun before.
    fn await_sweep(&self) -> Result<()> {
        let (first, start) = (self.sweeps()?, Instant::now());
        while self.sweeps()? < first + 2 {
            ensure!(
                start.elapsed() < ANSWER_LIMIT,
                "the writer makes no progress"
            );
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Lets a random part of a sweep go by.
    fn await_some_moment(&mut self) {
        for index in 0..self.random.u64(..4096) {
            std::hint::black_box(self.canary_value() + index);
        }
    }

    /// The first word of each page of the canary; the others are zero. Differs from
    /// round to round, and from what the writer writes.
    fn canary_value(&self) -> u64 {
        0xca00_0000_0000_0000 | self.report.rounds
    }

    fn touch_canary(&self) {
        for word in (0..self.canary.words()).step_by(PAGE_WORDS) {
            self.canary.store(word, self.canary_value());
        }
    }

    fn check_canary(&self) -> Result<()> {
        if self.report.rounds == 0 {
            return Ok(());
        }
        for word in 0..self.canary.words() {
            let wanted = match word % PAGE_WORDS {
                0 => self.canary_value(),
                _ => 0,
            };
            let found = self.canary.load(word);
            ensure!(
                found == wanted,
                "word {word} of the canary of round {} holds {found:#x}: a stale write",
                self.report.rounds
            );
        }
        // What was mapped over the range holds what the writer has written to
        // every word of it by now, from its first pages to its last.
        let first = self.report.rounds as usize % PAGE_WORDS;
        for word in (first..self.range.words()).step_by(PAGE_WORDS) {
            let found = self.range.load(word);
            ensure!(found == POISON, "word {word} of the range holds {found:#x}");
        }
        Ok(())
    }
}

/// The writer: sweeps until it is told to end.
pub(crate) fn run_writer(victim: &Peer) -> Result<()> {
    let (_nic, endpoint) = register(0)?;
    let control = victim.import(&endpoint, CONTROL)?;
    let memory = Exported::new(&endpoint, SOURCE, CHUNK + PAGE_SIZE)?;
    for word in 0..CHUNK / 8 {
        memory.buffer.store_u64(word * 8, POISON)?;
    }
    let mut range = victim.import(&endpoint, RANGE)?;
    let mut report = RemapWriterReport::default();
    loop {
        match sweep(&endpoint, &range, &memory, report.sweeps + report.refused) {
            Ok(()) => {
                report.sweeps += 1;
                report.bytes += range.len();
                endpoint
                    .write(&control, SWEEPS as u64, &report.sweeps.to_le_bytes()[..])
                    .fenced()?;
            }
            Err(error) => {
                report.refused += 1;
                if is_unexported(error)? {
                    range = victim.import(&endpoint, RANGE)?;
                    report.imports += 1;
                }
            }
        }
        endpoint
            .read(&control, STOP as u64, memory.part(CHUNK, 8))
            .fenced()?;
        if memory.buffer.load_u64(CHUNK)? == 1 {
            endpoint
                .write(&control, SWEEPS as u64, &[])
                .notify(REQUEST)
                .fenced()?;
            return say("wrote", report);
        }
    }
}

/// Says whether a sweep was refused because the segment is not exported any more,
/// not only because nothing was mapped; fails for any other error.
fn is_unexported(error: qnic::Error) -> Result<bool> {
    let qnic::Error::Transfer(errors) = &error else {
        return Err(error.into());
    };
    let mut unexported = false;
    for failure in &errors.failures {
        match failure.status {
            Status::PageUnavailable => (),
            Status::NoSuchSegment | Status::BadKey | Status::Aborted => unexported = true,
            _ => return Err(error).context("a write was refused in another way"),
        }
    }
    Ok(unexported)
}

/// Writes to every page of the range: words here and there, then all of it.
fn sweep(
    endpoint: &Endpoint,
    range: &RemoteSegment,
    memory: &Exported,
    number: u64,
) -> qnic::Result<()> {
    let pages = range.len() / PAGE_SIZE as u64;
    for step in 0..16 {
        let page = (number * 31 + step * 97) % pages;
        let word = page * PAGE_SIZE as u64 + (step * 8);
        endpoint
            .write(range, word, &POISON.to_le_bytes()[..])
            .post()?;
    }
    let chunks = range.len() / CHUNK as u64;
    for step in 0..chunks {
        let chunk = (number + step) % chunks;
        endpoint
            .write(range, chunk * CHUNK as u64, memory.part(0, CHUNK))
            .post()?;
    }
    endpoint.flush().writes().wait()
}
