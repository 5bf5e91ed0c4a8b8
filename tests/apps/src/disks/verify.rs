//! Writes pages, changes some anywhere, reads all of them, and compares. They are in a file, on a
//! block device, or in memory of this process, which the kernel swaps out if it is more than the
//! guest has.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;

use anyhow::{bail, Context, Result};
use clap::Args;
use qnic_config::ByteSize;
use rustix::fs::{fadvise, Advice};

use qnic_apps::demo::node::say;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Words of a page.
const WORDS: usize = PAGE / 8;
/// Pages between two lines of output.
const STEP: usize = 4096;

#[derive(Args)]
pub(crate) struct Options {
    /// A file, or a block device whose content is lost; memory of this process if left out
    #[arg(long)]
    path: Option<PathBuf>,
    /// How much is written
    #[arg(long)]
    size: ByteSize,
    /// Pages that are looked at or written again, anywhere, before all are read
    #[arg(long, default_value_t = 4096)]
    changes: usize,
    /// Threads, each with a part of it
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

/// Says `{"written":N}` and `{"read":N}` for each 16 MiB of a thread: pages of its part; between
/// them `{"changed":N}`; and `{"whole":N}` when all pages are what was written last.
pub(crate) fn run(options: &Options) -> Result<()> {
    let pages = usize::try_from(options.size.0)? / PAGE;
    let (threads, each) = (options.threads, pages.checked_div(options.threads));
    let each = each.filter(|each| *each > 0);
    let each = each.context("there is at least a page for each of the threads, and a thread")?;
    let part = |thread: usize| -> Result<()> {
        let place: Box<dyn Place> = match &options.path {
            Some(path) => Box::new(InFile::open(path, thread * each)?),
            None => Box::new(InMemory(vec![0; each * WORDS])),
        };
        Verified::new(place, each).run(options.changes / threads)
    };
    std::thread::scope(|scope| {
        let part = &part;
        let all: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || part(thread)))
            .collect();
        let mut ended = all.into_iter().map(ScopedJoinHandle::join);
        ended.try_for_each(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    say("whole", threads * each)
}

/// Where the pages are.
trait Place {
    fn write(&mut self, index: usize, page: &[u64; WORDS]) -> Result<()>;
    fn read(&mut self, index: usize, page: &mut [u64; WORDS]) -> Result<()>;
    /// What is read from here on is read from where it was written to.
    fn forget(&mut self) -> Result<()>;
}

struct InMemory(Vec<u64>);

impl Place for InMemory {
    fn write(&mut self, index: usize, page: &[u64; WORDS]) -> Result<()> {
        self.0[index * WORDS..][..WORDS].copy_from_slice(page);
        Ok(())
    }

    fn read(&mut self, index: usize, page: &mut [u64; WORDS]) -> Result<()> {
        page.copy_from_slice(&self.0[index * WORDS..][..WORDS]);
        Ok(())
    }

    fn forget(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A file, from some page on.
struct InFile {
    file: File,
    first: usize,
}

impl InFile {
    fn open(path: &Path, first: usize) -> Result<Self> {
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true);
        let file = open.open(path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        Ok(InFile { file, first })
    }

    fn offset(&self, index: usize) -> u64 {
        ((self.first + index) * PAGE) as u64
    }
}

impl Place for InFile {
    fn write(&mut self, index: usize, page: &[u64; WORDS]) -> Result<()> {
        let mut bytes = [0; PAGE];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(page) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(self.file.write_all_at(&bytes, self.offset(index))?)
    }

    fn read(&mut self, index: usize, page: &mut [u64; WORDS]) -> Result<()> {
        let mut bytes = [0; PAGE];
        self.file.read_exact_at(&mut bytes, self.offset(index))?;
        for (word, bytes) in page.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(std::array::from_fn(|at| bytes[at]));
        }
        Ok(())
    }

    fn forget(&mut self) -> Result<()> {
        self.file.sync_all().context("write everything back")?;
        fadvise(&self.file, 0, None, Advice::DontNeed).context("drop what is cached")
    }
}

struct Verified {
    place: Box<dyn Place>,
    /// How often each page was written.
    versions: Vec<u32>,
}

impl Verified {
    fn new(place: Box<dyn Place>, pages: usize) -> Self {
        Verified {
            place,
            versions: vec![0; pages],
        }
    }

    fn run(&mut self, changes: usize) -> Result<()> {
        let pages = self.versions.len();
        for index in 0..pages {
            self.write(index)?;
            if (index + 1) % STEP == 0 {
                say("written", index + 1)?;
            }
        }
        let mut chance = fastrand::Rng::with_seed(pages as u64);
        for _ in 0..changes {
            let index = chance.usize(..pages);
            match chance.bool() {
                true => self.write(index)?,
                false => self.compare(index)?,
            }
        }
        say("changed", changes)?;
        self.place.forget()?;
        for index in 0..pages {
            self.compare(index)?;
            if (index + 1) % STEP == 0 {
                say("read", index + 1)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, index: usize) -> Result<()> {
        self.versions[index] += 1;
        let page = content(index, self.versions[index]);
        let written = self.place.write(index, &page);
        written.with_context(|| format!("write page {index}"))
    }

    fn compare(&mut self, index: usize) -> Result<()> {
        let mut page = [0; WORDS];
        let read = self.place.read(index, &mut page);
        read.with_context(|| format!("read page {index}"))?;
        let version = self.versions[index];
        let wrong = page.iter().zip(content(index, version));
        let wrong = wrong.enumerate().find(|(_, (there, word))| *there != word);
        if let Some((at, (there, word))) = wrong {
            bail!("word {at} of page {index} is {there:#x}, not {word:#x} of version {version}");
        }
        Ok(())
    }
}

/// A page after so many writes: no two have a word in common.
fn content(index: usize, version: u32) -> [u64; WORDS] {
    let first = (index as u64) << 32 | u64::from(version) << 9;
    // Multiplied by an odd number, different words stay different.
    std::array::from_fn(|at| (first | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verified(place: impl Place + 'static, pages: usize) -> Verified {
        Verified::new(Box::new(place), pages)
    }

    #[test]
    fn what_was_written_is_found_in_memory_and_in_a_file() {
        verified(InMemory(vec![0; 9 * WORDS]), 9).run(50).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        for first in [9, 0] {
            let place = InFile::open(file.path(), first).unwrap();
            verified(place, 9).run(50).unwrap();
        }
        assert_eq!(file.path().metadata().unwrap().len(), 18 * PAGE as u64);
    }

    /// Loses each write to one page but the first.
    struct Stale(InMemory, bool);

    impl Place for Stale {
        fn write(&mut self, index: usize, page: &[u64; WORDS]) -> Result<()> {
            match index == 3 && std::mem::replace(&mut self.1, true) {
                true => Ok(()),
                false => self.0.write(index, page),
            }
        }

        fn read(&mut self, index: usize, page: &mut [u64; WORDS]) -> Result<()> {
            self.0.read(index, page)
        }

        fn forget(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn old_pages_and_changed_words_are_noticed() {
        let mut stale = verified(Stale(InMemory(vec![0; 4 * WORDS]), false), 4);
        for _ in 0..2 {
            (0..4).for_each(|index| stale.write(index).unwrap());
        }
        stale.compare(2).unwrap();
        stale.compare(3).unwrap_err();
        let mut one = verified(InMemory(vec![0; WORDS]), 1);
        one.write(0).unwrap();
        one.place.write(0, &content(1, 1)).unwrap();
        one.compare(0).unwrap_err();
    }
}
