//! What programs print: onto a screen, into files, and the end of it into reports.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Most bytes of one output that are kept in a file.
const MAX_FILE: u64 = 64 << 20;

/// Bytes of the end of the outputs of a program that are in a report.
const TAIL: usize = 16 << 10;

/// Bytes of a line above which it is shown in several lines: a program that never ends its line
/// fills no memory.
const MAX_LINE: usize = 64 << 10;

/// One of a program's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Shows what programs print, as they do.
pub trait Screen: Sync {
    /// The program on `node` has printed `bytes`.
    fn show(&self, node: &str, stream: Stream, bytes: &[u8]);

    /// No more comes.
    fn finish(&self) {}
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Screen for Quiet {
    fn show(&self, _node: &str, _stream: Stream, _bytes: &[u8]) {}
}

/// Standard output and standard error of this program. With prefixes, each line is preceded by
/// the node's name.
#[derive(Debug, Default)]
pub struct Terminal {
    prefixed: bool,
    lines: Mutex<HashMap<(String, Stream), Lines>>,
}

impl Terminal {
    /// With or without prefixes.
    pub fn new(prefixed: bool) -> Self {
        Self {
            prefixed,
            lines: Mutex::default(),
        }
    }
}

fn to_stream(stream: Stream, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
    // A reader that has gone, as head does, is no reason to end a trial.
    let _ = match stream {
        Stream::Out => write(&mut io::stdout().lock()),
        Stream::Err => write(&mut io::stderr().lock()),
    };
}

impl Screen for Terminal {
    fn show(&self, node: &str, stream: Stream, bytes: &[u8]) {
        let mut all = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = all.entry((node.to_owned(), stream)).or_insert_with(|| {
            Lines::new(match self.prefixed {
                true => format!("{node} | "),
                false => String::new(),
            })
        });
        to_stream(stream, |to| lines.write(bytes, to));
    }

    fn finish(&self) {
        let mut all = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for ((_, stream), mut lines) in all.drain() {
            to_stream(stream, |to| lines.finish(to));
        }
    }
}

/// Output of one node. With a prefix, only whole lines are written, so that those of
/// several nodes do not mix.
#[derive(Debug)]
pub struct Lines {
    prefix: String,
    partial: Vec<u8>,
}

impl Lines {
    /// Each line begins with `prefix`.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            partial: Vec::new(),
        }
    }

    /// Writes what can be written of `bytes` to `to`.
    ///
    /// # Errors
    /// Returns what the system says.
    pub fn write(&mut self, bytes: &[u8], to: &mut dyn Write) -> io::Result<()> {
        if self.prefix.is_empty() {
            to.write_all(bytes)?;
            return to.flush();
        }
        let (mut whole, prefix) = (Vec::new(), self.prefix.clone());
        self.each(bytes, &mut |line| {
            whole.extend_from_slice(prefix.as_bytes());
            whole.extend_from_slice(line);
        });
        to.write_all(&whole)?;
        to.flush()
    }

    /// Gives the lines that `bytes` complete to `take`, each with its end and without a prefix.
    /// One of more than 128 KiB comes
    /// in several, and a smaller one may from 64 KiB on.
    pub fn each(&mut self, bytes: &[u8], take: &mut dyn FnMut(&[u8])) {
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        for part in lines.flat_map(|line| line.chunks(MAX_LINE)) {
            let whole = part.ends_with(b"\n");
            if !whole && self.partial.len() + part.len() > MAX_LINE {
                self.partial.push(b'\n');
                take(&std::mem::take(&mut self.partial));
            }
            self.partial.extend_from_slice(part);
            if whole {
                take(&std::mem::take(&mut self.partial));
            }
        }
    }

    /// Returns true if something has come that is no whole line.
    pub fn is_partial(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Writes a last line that has no end.
    ///
    /// # Errors
    /// Returns what the system says.
    pub fn finish(&mut self, to: &mut dyn Write) -> io::Result<()> {
        if !self.is_partial() {
            return Ok(());
        }
        self.write(b"\n", to)
    }
}

/// The end of what was written to it.
#[derive(Debug, Default)]
pub(crate) struct Tail(VecDeque<u8>);

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(TAIL)..];
        self.0.extend(kept);
        let surplus = self.0.len().saturating_sub(TAIL);
        self.0.drain(..surplus);
    }

    pub(crate) fn text(&self) -> String {
        let bytes: Vec<_> = self.0.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A file that takes a limited number of bytes and says at its end how many are missing.
#[derive(Debug)]
pub(crate) struct BoundedFile {
    file: File,
    left: u64,
    dropped: u64,
}

impl BoundedFile {
    pub(crate) fn new(file: File) -> Self {
        Self {
            file,
            left: MAX_FILE,
            dropped: 0,
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fits = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        self.left -= fits as u64;
        self.dropped += (bytes.len() - fits) as u64;
        self.file.write_all(&bytes[..fits])
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        if self.dropped > 0 {
            let dropped = self.dropped;
            writeln!(self.file, "\n[qnic: {dropped} more bytes were not kept]")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(prefix: &str, parts: &[&[u8]]) -> Vec<u8> {
        let mut to = Vec::new();
        let mut lines = Lines::new(prefix);
        for part in parts {
            lines.write(part, &mut to).unwrap();
        }
        lines.finish(&mut to).unwrap();
        to
    }

    #[test]
    fn whole_lines_are_prefixed_and_the_last_is_completed() {
        assert_eq!(
            written("a | ", &[b"one\ntw", b"o\nthree"]),
            b"a | one\na | two\na | three\n"
        );
    }

    #[test]
    fn a_line_without_an_end_is_not_kept() {
        let mut lines = Lines::new("");
        let (mut bytes, mut longest) = (0, 0);
        for _ in 0..100 {
            lines.each(&[b'x'; 50_000], &mut |line| {
                bytes += line.len() - 1;
                longest = longest.max(line.len());
            });
        }
        assert!(lines.partial.len() <= MAX_LINE && longest <= MAX_LINE + 1);
        assert_eq!(bytes + lines.partial.len(), 5_000_000);
    }

    #[test]
    fn without_a_prefix_bytes_pass_unchanged() {
        assert_eq!(written("", &[b"\0\xff", b"x"]), b"\0\xffx");
    }

    #[test]
    fn a_tail_keeps_the_end() {
        let mut tail = Tail::default();
        tail.push(b"begin");
        tail.push(&[b'x'; TAIL]);
        tail.push(b"end");
        let text = tail.text();
        assert_eq!(text.len(), TAIL);
        assert!(text.starts_with('x') && text.ends_with("xend"));
    }

    #[test]
    fn a_bounded_file_says_what_is_missing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut bounded = BoundedFile::new(file.reopen().unwrap());
        bounded.left = 4;
        bounded.write(b"123").unwrap();
        bounded.write(b"456").unwrap();
        bounded.finish().unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text, "1234\n[qnic: 2 more bytes were not kept]\n");
    }
}
