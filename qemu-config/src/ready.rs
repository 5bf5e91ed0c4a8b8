//! Waits until a guest is ready, as its init says on the ready port.
//!
//! The port is a file that grows by one line at each boot: `ready <release>`, or
//! `failed <reason>`. QEMU's monitor tells of resets, its process of its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::dirs::NodeDir;
use crate::follow::{read_log, readable, tail, Follow, Growth};
use crate::monitor::{has_panicked, Events};
use crate::process::{Process, ProcessId};
use crate::qmp::Event;
use crate::wait::{stop_in, Deadline, Stop};
use crate::{ending, Error, Result};

/// Lines of a console in an error.
const TAIL_LINES: usize = 25;

/// Resets of a guest by itself in one wait above which it is taken to be in a loop.
const MAX_RESETS: usize = 2;

/// Longest line that is taken from a guest.
const MAX_LINE: usize = 4096;

/// The number of boots that `dir`'s guest has reported so far.
pub(crate) fn boots_reported(dir: &NodeDir) -> usize {
    let text = read_log(&dir.ready()).unwrap_or_default();
    text.iter().filter(|byte| **byte == b'\n').count()
}

/// The end of what QEMU and the guest's console said.
fn last_words(dir: &NodeDir) -> String {
    let logs = [dir.qemu_log(), dir.console()].map(|log| tail(&log, TAIL_LINES));
    let said: Vec<_> = logs.into_iter().filter(|log| !log.is_empty()).collect();
    said.join("\n")
}

/// The error for a node of which `what` is wrong.
pub(crate) fn failed(dir: &NodeDir, what: impl Into<String>) -> Error {
    Error::Failed {
        subject: format!("node {}", dir.name()),
        what: what.into(),
        log: last_words(dir),
    }
}

/// The error for a node whose QEMU has ended, with what is known of its end.
pub(crate) fn ended(dir: &NodeDir) -> Error {
    let how = ProcessId::load(&dir.qemu_pid()).map(ending::how);
    failed(
        dir,
        format!("its QEMU has ended{}", how.unwrap_or_default()),
    )
}

/// Waits for the report after the first `seen`. Returns the release of the kernel.
pub(crate) fn wait_ready(
    dir: &NodeDir,
    qemu: &Process,
    seen: usize,
    limit: Duration,
    deadline: &Deadline,
) -> Result<String> {
    let node = dir.name();
    let failed = |what: String| failed(dir, what);
    let unreadable = |error: io::Error| match stop_in(&error) {
        Some(Stop::Cancelled) => Error::Interrupted,
        Some(Stop::Timeout) => Error::Timeout {
            what: format!("node {node}: getting ready"),
            after: limit,
            log: last_words(dir),
        },
        _ => failed(format!("its ready port cannot be read: {error}")),
    };
    let mut follow = Follow::open(&dir.ready()).map_err(unreadable)?;
    let console = Follow::open(&dir.console()).map_err(unreadable)?;
    let mut resets = Resets::default();
    let mut lines = Lines::default();
    loop {
        resets.attach(dir);
        if resets.panicked {
            return Err(failed("its kernel has panicked".to_owned()));
        }
        if resets.count > MAX_RESETS {
            let count = resets.count;
            return Err(failed(format!(
                "the guest restarted itself {count} times without getting ready"
            )));
        }
        let mut others: Vec<BorrowedFd<'_>> = vec![qemu.as_fd(), console.as_fd()];
        others.extend(resets.events.as_ref().map(AsFd::as_fd));
        match follow.next(&others, deadline).map_err(unreadable)? {
            Growth::Bytes(bytes) => {
                if let Some(report) = lines.push(&bytes, seen) {
                    return report.map_err(|why| failed(format!("its init failed: {why}")));
                }
            }
            Growth::Other(0) => return Err(ended(dir)),
            Growth::Other(1) => console.forget_changes(),
            Growth::Other(_) => resets.take(),
        }
    }
}

/// Counts how often the guest resets itself, and notices a panic. A wait works without QEMU's
/// events, too: it then takes longer to notice a loop.
#[derive(Default)]
struct Resets {
    events: Option<Events>,
    attempted: bool,
    count: usize,
    panicked: bool,
}

impl Resets {
    /// Connects once QEMU listens, which it does when the guest's console shows something.
    fn attach(&mut self, dir: &NodeDir) {
        if self.attempted || !dir.events().exists() {
            return;
        }
        self.attempted = true;
        self.events = Events::connect(dir, Deadline::seconds(5)).ok();
        // Some events may have come together with the greeting.
        self.take();
        // A panic before this connection has left the guest stopped.
        self.panicked |= has_panicked(dir).unwrap_or(false);
    }

    /// Counts the resets among the events that have come, and looks for a panic.
    fn take(&mut self) {
        match self.events.as_mut().map(Events::take) {
            Some(Ok(found)) => {
                self.count += found.iter().filter(|event| is_own_reset(event)).count();
                self.panicked |= found.iter().any(is_panic);
            }
            _ => self.events = None,
        }
    }
}

fn is_own_reset(event: &Event) -> bool {
    matches!(event, Event::Reset { guest: true })
}

fn is_panic(event: &Event) -> bool {
    matches!(event, Event::GuestPanicked)
}

/// Counts the lines of the ready port, and understands the one that is waited for.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
    complete: usize,
}

impl Lines {
    /// The release of the kernel that is ready, or why it is not, once it is reported.
    fn push(&mut self, bytes: &[u8], seen: usize) -> Option<Result<String, String>> {
        for byte in bytes {
            if *byte != b'\n' {
                if self.partial.len() < MAX_LINE {
                    self.partial.push(*byte);
                }
                continue;
            }
            let line = readable(&std::mem::take(&mut self.partial));
            self.complete += 1;
            if self.complete > seen {
                return Some(report(line.trim_end()));
            }
        }
        None
    }
}

fn report(line: &str) -> Result<String, String> {
    match line.split_once(' ') {
        Some(("ready", release)) => Ok(release.to_owned()),
        Some(("failed", reason)) => Err(reason.to_owned()),
        _ => Err(format!("it reported \"{line}\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixListener;
    use std::process::{Child, Command, Stdio};

    struct Fixture {
        _dir: TestDir,
        dir: NodeDir,
        qemu: Child,
        process: Process,
    }

    impl Fixture {
        fn new(said: &str, console: &str) -> Self {
            let cluster = TestDir::new();
            let dir = cluster.node();
            std::fs::write(dir.ready(), said).unwrap();
            std::fs::write(dir.console(), console).unwrap();
            let qemu = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let id = ProcessId::of(qemu.id() as i32).unwrap();
            id.save(&dir.qemu_pid()).unwrap();
            let process = id.open().unwrap();
            Self {
                _dir: cluster,
                dir,
                qemu,
                process,
            }
        }

        fn wait(&mut self, seen: usize) -> Result<String> {
            let limit = Duration::from_secs(30);
            let deadline = Deadline::new(Some(limit), None);
            wait_ready(&self.dir, &self.process, seen, limit, &deadline)
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = self.qemu.kill();
            let _ = self.qemu.wait();
        }
    }

    #[test]
    fn the_report_after_those_seen_counts() {
        let mut fixture = Fixture::new("ready 6.12\nready 7.2\n", "");
        assert_eq!(boots_reported(&fixture.dir), 2);
        assert_eq!(fixture.wait(0).unwrap(), "6.12");
        assert_eq!(fixture.wait(1).unwrap(), "7.2");
    }

    #[test]
    fn a_failure_is_told_with_the_end_of_the_console() {
        let mut fixture = Fixture::new("failed no module\n", "line one\r\nBUG: here\r\n");
        let error = fixture.wait(0).unwrap_err().to_string();
        assert!(
            error.contains("node a: its init failed: no module"),
            "{error}"
        );
        assert!(error.contains("BUG: here"), "{error}");
    }

    #[test]
    fn the_end_of_qemu_ends_the_wait() {
        let mut fixture = Fixture::new("", "");
        drop(fixture.qemu.stdin.take());
        let error = fixture.wait(0).unwrap_err().to_string();
        assert!(
            error.contains("node a: its QEMU has ended (exit status 0)"),
            "{error}"
        );
    }

    /// As when a control group has no memory left.
    #[test]
    fn the_signal_that_has_ended_qemu_is_named() {
        let mut fixture = Fixture::new("", "");
        fixture.qemu.kill().unwrap();
        let error = fixture.wait(0).unwrap_err().to_string();
        let named = "node a: its QEMU has ended (signal 9, SIGKILL";
        assert!(error.contains(named), "{error}");
    }

    /// Speaks as QEMU's monitor does, and tells of `events`: names and data.
    fn tell_of(listener: &UnixListener, events: &[(&str, &str)]) {
        let (mut stream, _) = listener.accept().unwrap();
        let greeting = r#"{"QMP":{"version":{"qemu":{"micro":3,"minor":1,"major":11},"package":""},"capabilities":["oob"]}}"#;
        writeln!(stream, "{greeting}").unwrap();
        let mut asked = String::new();
        BufReader::new(stream.try_clone().unwrap())
            .read_line(&mut asked)
            .unwrap();
        assert!(asked.contains("qmp_capabilities"), "{asked}");
        let stamp = r#""timestamp":{"seconds":1,"microseconds":2}"#;
        writeln!(stream, r#"{{"return":{{}}}}"#).unwrap();
        writeln!(stream, r#"{{"event":"NEWER_THAN_US",{stamp}}}"#).unwrap();
        for (event, data) in events {
            writeln!(stream, r#"{{"event":"{event}","data":{data},{stamp}}}"#).unwrap();
        }
        // Stays open until the other side has enough.
        let _ = stream.read(&mut [0]);
    }

    #[test]
    fn a_guest_that_restarts_over_and_over_is_given_up() {
        let mut fixture = Fixture::new("", "Kernel panic\n");
        let listener = UnixListener::bind(fixture.dir.events()).unwrap();
        let reset = ("RESET", r#"{"guest":true,"reason":"guest-reset"}"#);
        let monitor = std::thread::spawn(move || tell_of(&listener, &[reset; MAX_RESETS + 1]));
        let error = fixture.wait(0).unwrap_err().to_string();
        assert!(error.contains("restarted itself 3 times"), "{error}");
        assert!(error.contains("Kernel panic"), "{error}");
        monitor.join().unwrap();
    }

    #[test]
    fn a_guest_that_panics_is_given_up_at_once() {
        let mut fixture = Fixture::new("", "Kernel panic - not syncing\n");
        let listener = UnixListener::bind(fixture.dir.events()).unwrap();
        let panic = ("GUEST_PANICKED", r#"{"action":"pause"}"#);
        let monitor = std::thread::spawn(move || tell_of(&listener, &[panic]));
        let error = fixture.wait(0).unwrap_err().to_string();
        assert!(error.contains("node a: its kernel has panicked"), "{error}");
        assert!(error.contains("not syncing"), "{error}");
        monitor.join().unwrap();
    }
}
