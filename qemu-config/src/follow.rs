//! Reads a file that another process appends to, as it grows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use qnic_exec::log::next_data;
use rustix::event::PollFlags;
use rustix::fs::inotify;

use crate::wait::Deadline;

/// Most bytes given back at once.
const CHUNK: usize = 64 << 10;

/// A file being followed.
#[derive(Debug)]
pub(crate) struct Follow {
    file: File,
    changes: OwnedFd,
    /// Bytes that were dropped before they were read.
    dropped: u64,
}

impl AsFd for Follow {
    /// Readable when the file has changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

/// What a wait for growth ended with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// New bytes.
    Bytes(Vec<u8>),
    /// The `index`th of the other descriptors became readable first.
    Other(usize),
}

impl Follow {
    /// Follows `path` from its beginning.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let changes = inotify::init(flags)?;
        inotify::add_watch(&changes, path, inotify::WatchFlags::MODIFY)?;
        Ok(Self {
            file: File::open(path)?,
            changes,
            dropped: 0,
        })
    }

    /// What has been appended and not been read; empty if nothing.
    pub(crate) fn available(&mut self) -> io::Result<Vec<u8>> {
        let (bytes, dropped) = chunk(&mut self.file)?;
        self.dropped += dropped;
        Ok(bytes)
    }

    /// The number of bytes that were dropped before what was read last, and since the last call.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Waits for bytes, or for one of `others` to become readable. What is in the
    /// file is given back before anything else is looked at.
    pub(crate) fn next(
        &mut self,
        others: &[BorrowedFd<'_>],
        deadline: &Deadline,
    ) -> io::Result<Growth> {
        loop {
            let bytes = self.available()?;
            if !bytes.is_empty() {
                return Ok(Growth::Bytes(bytes));
            }
            let mut watched = vec![(self.changes.as_fd(), PollFlags::IN)];
            watched.extend(others.iter().map(|fd| (*fd, PollFlags::IN)));
            match deadline.first_ready(&watched)? {
                0 => self.forget_changes(),
                index => {
                    let last = self.available()?;
                    return Ok(match last.is_empty() {
                        true => Growth::Other(index - 1),
                        false => Growth::Bytes(last),
                    });
                }
            }
        }
    }

    /// Forgets that the file has changed, so that the next change is noticed.
    pub(crate) fn forget_changes(&self) {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.changes, &mut buffer);
        while events.next().is_ok() {}
    }
}

/// The next bytes of a log, empty at its end, and how many were dropped before them.
fn chunk(file: &mut File) -> io::Result<(Vec<u8>, u64)> {
    let dropped = next_data(file)?;
    let mut bytes = Vec::new();
    file.take(CHUNK as u64).read_to_end(&mut bytes)?;
    Ok((bytes, dropped))
}

/// What is left of the log at `path`.
pub(crate) fn read_log(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut all = Vec::new();
    loop {
        let (bytes, _) = chunk(&mut file)?;
        if bytes.is_empty() {
            return Ok(all);
        }
        all.extend(bytes);
    }
}

/// The end of the file at `path` as readable text: at most `lines` lines, or more if a kernel
/// panicked before them: from the line on that says why.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    const MOST: u64 = 16 << 10;
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MOST)))?;
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = readable(&read().unwrap_or_default());
    let trimmed = text.lines().map(str::trim_end);
    let all: Vec<_> = trimmed.filter(|line| !line.is_empty()).collect();
    let end = all.len().saturating_sub(lines);
    let panic = all.iter().rposition(|line| begins_panic(line));
    all[panic.map_or(end, |panic| end.min(panic))..].join("\n")
}

/// Returns true if `line` of a console says why a kernel panicked. The last line of a panic, which
/// repeats it, does not count.
fn begins_panic(line: &str) -> bool {
    line.contains("Kernel panic - not syncing") && !line.contains("end Kernel panic")
}

/// `bytes` as text that cannot drive a terminal: control characters but line ends and
/// tabs are left out.
pub(crate) fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .filter(|c| matches!(c, '\n' | '\t') || !c.is_control())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::{stop_in, Stop};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn growth_is_seen_and_other_descriptors_too() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"one").unwrap();
        let mut follow = Follow::open(file.path()).unwrap();
        let deadline = Deadline::seconds(30);
        let bytes = |text: &str| Growth::Bytes(text.into());
        assert_eq!(follow.next(&[], &deadline).unwrap(), bytes("one"));
        let writer = std::thread::spawn(move || {
            file.write_all(b"two").unwrap();
            file
        });
        assert_eq!(follow.next(&[], &deadline).unwrap(), bytes("two"));
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let next = follow.next(&[ours.as_fd()], &deadline);
        assert_eq!(next.unwrap(), Growth::Other(0));
        let late = follow.next(&[], &Deadline::seconds(0)).unwrap_err();
        assert_eq!(stop_in(&late), Some(Stop::Timeout));
        drop(writer.join().unwrap());
    }

    #[test]
    fn what_was_dropped_is_passed_over_and_counted() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let (hole, page) = (1 << 20, [b'x'; 1 << 16]);
        file.write_all(&page).unwrap();
        file.seek(SeekFrom::Start(hole)).unwrap();
        file.write_all(b"end").unwrap();
        let left = [&page[..], b"end"].concat();
        assert_eq!(read_log(file.path()).unwrap(), left);
        let mut follow = Follow::open(file.path()).unwrap();
        assert_eq!(follow.available().unwrap(), page);
        assert_eq!(follow.take_dropped(), 0);
        assert_eq!(follow.available().unwrap(), b"end");
        assert_eq!(follow.take_dropped(), hole - page.len() as u64);
        assert_eq!(follow.take_dropped(), 0);
        assert_eq!(tail(file.path(), 1), "end");
    }

    #[test]
    fn the_tail_is_the_last_lines_without_control_characters() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"one\r\ntwo\x1b[2J\r\n\r\nthree\r\n")
            .unwrap();
        assert_eq!(tail(file.path(), 2), "two[2J\nthree");
        assert_eq!(tail(Path::new("/nowhere"), 2), "");
    }

    #[test]
    fn the_tail_says_why_a_kernel_panicked_however_long_its_trace_is() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let panic = "[ 5.5] Kernel panic - not syncing: sysrq triggered crash";
        let trace = "[ 5.5]  ? do_fault+0x31a/0x550\n".repeat(60);
        let last = "[ 5.6] ---[ end Kernel panic - not syncing: sysrq triggered crash ]---";
        let all = [panic, "\n", &trace, last].concat();
        write!(file, "[ 1.0] booting\n{all}").unwrap();
        let lines = |text: &str| text.lines().map(str::trim_end).map(str::to_owned).collect();
        let (told, all): (Vec<String>, Vec<String>) = (lines(&tail(file.path(), 40)), lines(&all));
        assert_eq!(told, all);
    }
}
