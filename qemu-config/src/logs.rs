//! The logs of a cluster, printed and followed.

use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::event::PollFlags;

use crate::follow::Follow;
use crate::process::{Process, ProcessId};
use crate::wait::{Deadline, Stop};
use crate::{Cancel, Error, Result};

/// A log, and what to call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Such as `a console`.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// The process that writes it; its end is shown.
    pub writer: Option<ProcessId>,
}

/// What is shown when the process that writes a log has ended.
const ENDED: &str = "[qnic: the process that writes this log has ended]\n";

/// Gives what is in `logs` to `sink`, with the log's index.
///
/// # Errors
/// The first log that cannot be read.
pub fn print_logs(logs: &[Log], sink: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
    follow_logs(logs, None, None, sink)
}

/// Gives what is in `logs` to `sink`, and then what is appended, until `until` has ended or
/// `cancel` is pulled. The end of a log's writer is a line of that log.
///
/// # Errors
/// The first log that cannot be read.
pub fn follow_logs(
    logs: &[Log],
    until: Option<ProcessId>,
    cancel: Option<&Cancel>,
    sink: &mut dyn FnMut(usize, &[u8]),
) -> Result<()> {
    let open = logs
        .iter()
        .map(|log| Follow::open(&log.path).map_err(Error::io("read", &log.path)));
    let mut open = open.collect::<Result<Vec<_>>>()?;
    let mut until = until.and_then(ProcessId::open);
    let mut writers: Vec<_> = logs.iter().map(Writer::of).collect();
    let deadline = Deadline::new(None, cancel);
    loop {
        for (index, (file, log)) in open.iter_mut().zip(logs).enumerate() {
            // It has written nothing behind what is read now.
            let has_ended = writers[index].has_ended();
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
            if has_ended {
                writers[index] = Writer::Told;
                sink(index, ENDED.as_bytes());
            }
        }
        let Some(running) = &until else {
            return Ok(());
        };
        let mut watched: Vec<_> = open
            .iter()
            .map(|log| (log.as_fd(), PollFlags::IN))
            .collect();
        watched.push((running.as_fd(), PollFlags::IN));
        let running = writers.iter().filter_map(Writer::running);
        watched.extend(running.map(|process| (process.as_fd(), PollFlags::IN)));
        match deadline.first_ready(&watched) {
            Ok(index) if index < open.len() => open[index].forget_changes(),
            // What was written last still goes to the sink.
            Ok(index) if index == open.len() => until = None,
            Err(Stop::Timeout) => until = None,
            // A writer has ended.
            Ok(_) => {}
            Err(Stop::Cancelled) => return Ok(()),
        }
    }
}

/// The process that writes a log.
enum Writer {
    Unknown,
    Runs(Process),
    Ended,
    /// Its end was shown.
    Told,
}

impl Writer {
    fn of(log: &Log) -> Self {
        match log.writer.map(ProcessId::open) {
            None => Writer::Unknown,
            Some(None) => Writer::Ended,
            Some(Some(process)) => Writer::Runs(process),
        }
    }

    fn running(&self) -> Option<&Process> {
        match self {
            Writer::Runs(process) => Some(process),
            _ => None,
        }
    }

    /// Returns true if it has ended, and its end was not shown.
    fn has_ended(&self) -> bool {
        match self {
            Writer::Runs(process) => process.wait(&Deadline::seconds(0)).is_ok(),
            other => matches!(other, Writer::Ended),
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
            writer: None,
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
            writer: None,
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

    /// A device process may end before the guest does.
    #[test]
    fn the_end_of_a_writer_is_a_line_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let cat = || {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).spawn().unwrap()
        };
        let id = |child: &std::process::Child| ProcessId::of(child.id() as i32);
        let (mut guest, mut device) = (cat(), cat());
        let (guest_id, device_id) = (id(&guest), id(&device));
        let logs = [("console", guest_id), ("device", device_id)].map(|(name, writer)| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("{name}\n")).unwrap();
            Log {
                name: name.into(),
                path,
                writer,
            }
        });
        let mut said: Vec<(usize, String)> = Vec::new();
        follow_logs(&logs, guest_id, None, &mut |index, bytes| {
            said.push((index, String::from_utf8_lossy(bytes).into_owned()));
            match said.len() {
                2 => drop(device.stdin.take()),
                3 => drop(guest.stdin.take()),
                _ => {}
            }
        })
        .unwrap();
        guest.wait().unwrap();
        device.wait().unwrap();
        let all = |index: usize| -> String {
            let of = said.iter().filter(|(log, _)| *log == index);
            of.map(|(_, text)| text.as_str()).collect()
        };
        assert_eq!(all(0), format!("console\n{ENDED}"));
        assert_eq!(all(1), format!("device\n{ENDED}"));
        let mut printed = Vec::new();
        print_logs(&logs[1..], &mut |_, bytes| printed.extend_from_slice(bytes)).unwrap();
        assert_eq!(printed, format!("device\n{ENDED}").as_bytes());
    }
}
