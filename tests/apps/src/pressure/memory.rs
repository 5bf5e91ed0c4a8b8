//! What is exported under pressure: memory of this process alone, or a shared mapping of a file,
//! which the kernel writes back and takes away, and which ends in an edge:
//!
//! ```text
//!   file:  unit 0 │ unit 1 │ … │ edge, which the file loses and gets back │
//! ```

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use qnic::{Access, Buffer, Endpoint, Part, Segment, SegmentName};
use qnic_abi::PAGE_SIZE;
use qnic_apps::demo::pattern;

use super::UNIT;
use crate::mapping::{self, Mapping, READ_WRITE};
use qnic_apps::demo::node::Exported;

/// Bytes of the edge of a file.
pub(super) const EDGE: usize = 512 * PAGE_SIZE;
/// What is written to each byte of the edge.
pub(super) const EDGE_BYTE: u8 = 0xed;
/// Units of a file that are compared at once.
const CHUNK_UNITS: usize = 64;

/// Memory that is exported, in units.
pub(super) struct Memory {
    bytes: Bytes,
    segment: Segment,
}

enum Bytes {
    Private(Buffer),
    File(Mapped),
}

struct Mapped {
    mapping: Mapping,
    file: File,
    /// Length without the edge.
    length: usize,
    /// Where it is, if it is on a disk.
    path: Option<PathBuf>,
}

impl Memory {
    /// Anonymous memory, private to this process.
    pub(super) fn private(endpoint: &Endpoint, name: SegmentName, length: usize) -> Result<Self> {
        let Exported { buffer, segment } = Exported::new(endpoint, name, length)?;
        Ok(Self {
            bytes: Bytes::Private(buffer),
            segment,
        })
    }

    /// A mapping of a new file in `directory`, or in memory.
    pub(super) fn file(
        endpoint: &Endpoint,
        name: SegmentName,
        length: usize,
        directory: Option<&Path>,
    ) -> Result<Self> {
        let path = directory.map(|directory| directory.join("qnic-pressure"));
        let file = match &path {
            None => mapping::memory_file(length + EDGE, 0)?,
            Some(path) => {
                let mut options = File::options();
                let options = options.read(true).write(true).create(true).truncate(true);
                let file = options.open(path).context("make a file")?;
                file.set_len((length + EDGE) as u64)?;
                file
            }
        };
        let fd = Some(file.as_raw_fd());
        let mapping = Mapping::new(length + EDGE, READ_WRITE, libc::MAP_SHARED, fd)?;
        // Pages that were not asked for, read with each that is missing, would take all the time.
        mapping.advise(libc::MADV_RANDOM)?;
        let segment = mapping.export(endpoint, name, Access::all())?;
        let mapped = Mapped {
            mapping,
            file,
            length,
            path,
        };
        Ok(Self {
            bytes: Bytes::File(mapped),
            segment,
        })
    }

    /// Returns true if a forked child shares it.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.bytes, Bytes::File(_))
    }

    pub(super) fn part(&self, offset: usize, length: usize) -> Part<'_> {
        self.segment.part(offset, length)
    }

    /// Of a file, whole words are read.
    pub(super) fn read(&self, offset: usize, length: usize) -> Result<Vec<u8>> {
        match &self.bytes {
            Bytes::Private(buffer) => Ok(buffer.read_vec(offset, length)?),
            Bytes::File(mapped) => Ok(load(&mapped.mapping, offset / 8..(offset + length) / 8)),
        }
    }

    /// Of a file, whole words are written.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        match &self.bytes {
            Bytes::Private(buffer) => buffer.write(offset, bytes)?,
            Bytes::File(mapped) => {
                for (word, value) in (offset / 8..).zip(pattern::words(bytes)) {
                    mapped.mapping.store(word, value);
                }
            }
        }
        Ok(())
    }

    /// Takes the edge away from the file. No process may access it until it is given back.
    pub(super) fn truncate(&self) -> Result<()> {
        match &self.bytes {
            Bytes::Private(_) => Ok(()),
            Bytes::File(mapped) => Ok(mapped.file.set_len(mapped.length as u64)?),
        }
    }

    /// Gives the edge back: it holds zeroes, and what peers have written since.
    pub(super) fn extend(&self) -> Result<()> {
        let Bytes::File(mapped) = &self.bytes else {
            return Ok(());
        };
        mapped.file.set_len((mapped.length + EDGE) as u64)?;
        for word in mapped.length / 8..mapped.mapping.words() {
            // Most are the one or the other as a whole.
            let found = mapped.mapping.load(word);
            if found == 0 || found == u64::from_le_bytes([EDGE_BYTE; 8]) {
                continue;
            }
            let found = found.to_le_bytes();
            let known = found.iter().all(|byte| [0, EDGE_BYTE].contains(byte));
            ensure!(known, "word {word} of the edge holds {found:?}");
        }
        Ok(())
    }

    /// Compares what the mapping shows with what reading the file gives, and what is on its disk.
    /// No process writes meanwhile. Returns how many bytes were compared.
    pub(super) fn compare_file(&self) -> Result<u64> {
        let Bytes::File(mapped) = &self.bytes else {
            return Ok(0);
        };
        mapped.file.sync_all().context("write the file back")?;
        let direct = match &mapped.path {
            None => None,
            Some(path) => {
                let mut options = File::options();
                let file = options.read(true).custom_flags(libc::O_DIRECT).open(path)?;
                Some((file, Mapping::private(CHUNK_UNITS * UNIT)?))
            }
        };
        let mut compared = 0;
        for start in (0..mapped.length).step_by(CHUNK_UNITS * UNIT) {
            let length = (CHUNK_UNITS * UNIT).min(mapped.length - start);
            let shown = self.read(start, length)?;
            let mut read = vec![0; length];
            mapped.file.read_exact_at(&mut read, start as u64)?;
            ensure!(read == shown, "read() differs from byte {start} on");
            compared += length as u64;
            if let Some((file, buffer)) = &direct {
                mapping::read_direct_at(file, start as u64, buffer, length)?;
                let on_disk = load(buffer, 0..length / 8);
                ensure!(on_disk == shown, "the disk differs from byte {start} on");
                compared += length as u64;
            }
        }
        Ok(compared)
    }
}

/// The bytes of whole words.
fn load(mapping: &Mapping, words: Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; 8 * words.len()];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&mapping.load(word).to_le_bytes());
    }
    bytes
}
