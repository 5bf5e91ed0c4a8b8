//! Logs that others write, and that stay small: their first and their last part (X8).
//!
//! A guest can write to its console without end, and have QEMU complain without end. Both write
//! to files that were opened for appending. What lies between the first and the last part of
//! such a file is given back to the file system, as a hole:
//!
//! ```text
//!   0        head                                       the end
//!   │ kept   │ hole ─────────────────────────► │ kept    │
//!                                               ├ tail ──┤ to tail + slack
//! ```
//! All logs of a cluster share [`ALL`], or half of their file system if that is less: each may take
//! an equal part, [`MOST`] at most. A log never takes the room of another one.
//!
//! The file keeps its length, so neither its writer nor a reader at some offset notices. A reader
//! passes over the hole with [`next_data`]. Where the file system makes no holes, the file begins
//! anew instead.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Seek};

use rustix::fs::{fallocate, seek, FallocateFlags, SeekFrom};
use rustix::io::Errno;

/// Bytes that all logs of a cluster take at most, unless they are so many that each takes
/// [`LEAST`].
pub const ALL: u64 = 64 << 20;
/// Bytes that a log takes at most.
pub const MOST: u64 = 8 << 20;
/// Bytes that a log may take, however many there are.
pub const LEAST: u64 = 8 * GRAIN;

/// Holes begin and end at multiples of this, which is one of the block size of file systems.
const GRAIN: u64 = 64 << 10;

/// A log that other processes write.
#[derive(Debug)]
pub struct Log {
    file: File,
    /// Bytes at its beginning that stay.
    head: u64,
    /// Bytes at its end that stay at least.
    tail: u64,
    /// How many more it has at its end before they are dropped.
    slack: u64,
    /// Where its last part begins.
    tail_at: u64,
}

/// What each of `count` logs may take in a file system of so many bytes.
pub fn share(count: usize, file_system: u64) -> u64 {
    let all = ALL.min(file_system / 2);
    (all / (count as u64).max(1)).clamp(LEAST, MOST)
}

impl Log {
    /// Takes a log over, which is open for writing, and may take so many bytes: an eighth for its
    /// beginning, three for its end, and half for what comes.
    pub fn new(file: File, bytes: u64) -> Self {
        let head = (bytes / 8).next_multiple_of(GRAIN);
        Log {
            file,
            head,
            tail: bytes * 3 / 8,
            slack: bytes / 2,
            tail_at: head,
        }
    }

    /// Drops the middle if that is worth it.
    ///
    /// # Errors
    /// Returns the error of the file system if it cannot be made smaller in any way.
    pub fn trim(&mut self) -> io::Result<()> {
        let end = self.file.metadata()?.len();
        if end < self.tail_at {
            // It has begun anew.
            self.tail_at = self.head;
        }
        if end < self.tail_at + self.tail + self.slack {
            return Ok(());
        }
        let tail_at = (end - self.tail) / GRAIN * GRAIN;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&self.file, hole, self.tail_at, tail_at - self.tail_at).is_err() {
            // Its writers append: they go on at the new end.
            self.file.set_len(0)?;
            self.tail_at = self.head;
            return Ok(());
        }
        self.tail_at = tail_at;
        Ok(())
    }
}

/// Goes on to the next byte that is there; returns how many were dropped before it. A file that
/// has begun anew is read from its beginning.
///
/// # Errors
/// Returns the error of the file system.
pub fn next_data(file: &mut File) -> io::Result<u64> {
    let at = file.stream_position()?;
    if file.metadata()?.len() < at {
        file.rewind()?;
        return Ok(0);
    }
    match seek(&*file, SeekFrom::Data(at)) {
        Ok(found) => Ok(found - at),
        // Nothing follows, or the file system knows no holes.
        Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::MetadataExt;

    /// A line of 16 bytes that says where it stands.
    fn line(number: u64) -> String {
        format!("{number:015}\n")
    }

    /// A log, and its writer.
    fn log() -> (tempfile::NamedTempFile, File, Log) {
        let named = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().append(true).open(named.path()).unwrap();
        let (writer, log) = (open(), Log::new(open(), MOST));
        (named, writer, log)
    }

    fn write(writer: &mut File, lines: std::ops::Range<u64>) {
        let text: String = lines.map(line).collect();
        writer.write_all(text.as_bytes()).unwrap();
    }

    /// What a reader finds, and how much it passes over.
    fn read(file: &mut File) -> (String, u64) {
        let (mut text, mut dropped) = (String::new(), 0);
        loop {
            dropped += next_data(file).unwrap();
            let mut part = Vec::new();
            Read::by_ref(file)
                .take(GRAIN)
                .read_to_end(&mut part)
                .unwrap();
            if part.is_empty() {
                return (text, dropped);
            }
            text.push_str(std::str::from_utf8(&part).unwrap());
        }
    }

    const MIB: u64 = (1 << 20) / 16;

    #[test]
    fn a_log_keeps_its_first_and_its_last_part_and_never_more() {
        let (named, mut writer, mut log) = log();
        for part in 0..40 {
            write(&mut writer, part * MIB..(part + 1) * MIB);
            log.trim().unwrap();
            let bytes = named.as_file().metadata().unwrap().blocks() * 512;
            assert!(bytes <= MOST + (1 << 20), "{bytes}");
        }
        let mut file = named.reopen().unwrap();
        assert_eq!(file.metadata().unwrap().len(), 40 << 20);
        let (text, dropped) = read(&mut file);
        assert!(dropped >= 40 * (1 << 20) - MOST, "{dropped}");
        assert_eq!(text.len() as u64 + dropped, 40 << 20);
        let lines: Vec<_> = text.split_inclusive('\n').collect();
        let (head, tail) = lines.split_at(MIB as usize);
        assert!(head.iter().zip(0..).all(|(found, n)| *found == line(n)));
        assert!(tail.len() as u64 >= 3 * MIB);
        let first = 40 * MIB - tail.len() as u64;
        assert!(tail.iter().zip(first..).all(|(found, n)| *found == line(n)));
    }

    #[test]
    fn the_logs_of_a_cluster_share_what_all_may_take() {
        assert_eq!(share(1, 1 << 40), MOST);
        assert_eq!(share(36, 1 << 40), ALL / 36);
        // One guest takes no more of a small directory than another one.
        assert_eq!(share(4, 12 << 20), 12 << 17);
        assert_eq!(share(1000, 1 << 40), LEAST);
        let (named, mut writer, _) = log();
        let mut log = Log::new(named.reopen().unwrap(), LEAST);
        for part in 0..400 {
            write(&mut writer, part * 1024..(part + 1) * 1024);
            log.trim().unwrap();
            let bytes = named.as_file().metadata().unwrap().blocks() * 512;
            assert!(bytes <= LEAST + GRAIN, "{bytes}");
        }
        let (text, dropped) = read(&mut named.reopen().unwrap());
        assert!(text.starts_with(&line(0)) && text.ends_with(&line(400 * 1024 - 1)));
        assert_eq!(text.len() as u64 + dropped, 400 << 14);
    }

    #[test]
    fn a_small_log_stays_whole() {
        let (named, mut writer, mut log) = log();
        write(&mut writer, 0..7 * MIB);
        log.trim().unwrap();
        let (text, dropped) = read(&mut named.reopen().unwrap());
        assert_eq!((text.len() as u64, dropped), (7 << 20, 0));
    }

    /// A reader in the middle of what is dropped goes on with what is left; what it has read does
    /// not come again.
    #[test]
    fn a_reader_goes_on_behind_the_hole() {
        let (named, mut writer, mut log) = log();
        write(&mut writer, 0..2 * MIB);
        let mut file = named.reopen().unwrap();
        assert_eq!(read(&mut file).1, 0);
        write(&mut writer, 2 * MIB..20 * MIB);
        log.trim().unwrap();
        let (text, dropped) = read(&mut file);
        assert_eq!((text.len() as u64 + dropped), 18 << 20);
        assert!(text.ends_with(&line(20 * MIB - 1)) && dropped > 0);
    }

    /// As where the file system makes no holes.
    #[test]
    fn a_log_that_begins_anew_is_read_and_bounded_again() {
        let (named, mut writer, mut log) = log();
        write(&mut writer, 0..20 * MIB);
        log.trim().unwrap();
        let mut file = named.reopen().unwrap();
        read(&mut file);
        named.as_file().set_len(0).unwrap();
        log.trim().unwrap();
        write(&mut writer, 0..10);
        let (text, dropped) = read(&mut file);
        assert_eq!((text, dropped), ((0..10).map(line).collect(), 0));
        write(&mut writer, 10..30 * MIB);
        log.trim().unwrap();
        let bytes = named.as_file().metadata().unwrap().blocks() * 512;
        assert!(bytes <= MOST, "{bytes}");
    }
}
