//! The logs of a cluster, printed and followed.

use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::event::PollFlags;

use crate::follow::Follow;
use crate::process::ProcessId;
use crate::wait::{Deadline, Stop};
use crate::{Cancel, Error, Result};

/// A log, and what to call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Such as `a console`.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// Gives what is in `logs` to `sink`, with the log's index.
///
/// # Errors
/// The first log that cannot be read.
pub fn print_logs(logs: &[Log], sink: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
    follow_logs(logs, None, None, sink)
}

/// Gives what is in `logs` to `sink`, and then what is appended, until `writer` has ended or
/// `cancel` is pulled.
///
/// # Errors
/// The first log that cannot be read.
pub fn follow_logs(
    logs: &[Log],
    writer: Option<ProcessId>,
    cancel: Option<&Cancel>,
    sink: &mut dyn FnMut(usize, &[u8]),
) -> Result<()> {
    let open = logs
        .iter()
        .map(|log| Follow::open(&log.path).map_err(Error::io("read", &log.path)));
    let mut open = open.collect::<Result<Vec<_>>>()?;
    let mut writer = writer.and_then(ProcessId::open);
    let deadline = Deadline::new(None, cancel);
    loop {
        for (index, (file, log)) in open.iter_mut().zip(logs).enumerate() {
            loop {
                let bytes = file.available().map_err(Error::io("read", &log.path))?;
                if bytes.is_empty() {
                    break;
                }
                let dropped = file.take_dropped();
                if dropped > 0 {
                    sink(index, dropped_note(dropped).as_bytes());
                }
                sink(index, &bytes);
            }
        }
        let Some(running) = &writer else {
            return Ok(());
        };
        let mut watched: Vec<_> = open
            .iter()
            .map(|log| (log.as_fd(), PollFlags::IN))
            .collect();
        watched.push((running.as_fd(), PollFlags::IN));
        match deadline.first_ready(&watched) {
            Ok(index) if index < open.len() => open[index].forget_changes(),
            // What the writer wrote last still goes to the sink.
            Ok(_) | Err(Stop::Timeout) => writer = None,
            Err(Stop::Cancelled) => return Ok(()),
        }
    }
}

/// What is shown in the place of bytes that were dropped.
fn dropped_note(bytes: u64) -> String {
    format!("\n[qnic: {bytes} bytes of this log were dropped]\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn what_was_dropped_is_told_in_its_place() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[b'x'; 1 << 16]).unwrap();
        file.seek(SeekFrom::Start(1 << 20)).unwrap();
        file.write_all(b"end").unwrap();
        let logs = [Log {
            name: "x".into(),
            path: file.path().into(),
        }];
        let mut printed = Vec::new();
        print_logs(&logs, &mut |_, bytes| printed.extend_from_slice(bytes)).unwrap();
        let note = "x\n[qnic: 983040 bytes of this log were dropped]\nend";
        assert!(printed.ends_with(note.as_bytes()));
        assert_eq!(printed.len(), (1 << 16) + note.len() - 1);
    }

    #[test]
    fn following_ends_with_the_writer_and_misses_nothing() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"before ").unwrap();
        let logs = [Log {
            name: "x".into(),
            path: file.path().into(),
        }];
        let append = format!("read go; printf after >> {}", file.path().display());
        let mut writer = Command::new("sh")
            .args(["-c", &append])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let id = ProcessId::of(writer.id() as i32).unwrap();
        let mut go = writer.stdin.take();
        let mut found = Vec::new();
        follow_logs(&logs, Some(id), None, &mut |_, bytes| {
            found.extend_from_slice(bytes);
            go = None;
        })
        .unwrap();
        writer.wait().unwrap();
        assert_eq!(found, b"before after");
        let mut printed = Vec::new();
        print_logs(&logs, &mut |index, bytes| {
            printed.push((index, bytes.to_vec()))
        })
        .unwrap();
        assert_eq!(printed, [(0, b"before after".to_vec())]);
    }
}
