//! Processes named so that a recycled number is never mistaken for them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use procfs::process::all_processes;
use procfs::Current;
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::wait::{Deadline, Stop};

/// Variable in the environment of every process of a cluster: its state directory.
pub(crate) const MARKER: &str = "QNIC_CLUSTER_DIR";

/// A process: its number and when it started, in clock ticks since boot.
///
/// Numbers are used again, pairs are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process number.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

/// An open process. A signal reaches this process, or none if it has ended.
#[derive(Debug)]
pub(crate) struct Process {
    fd: OwnedFd,
}

impl ProcessId {
    /// The process that has number `pid` now, unless there is none or it has ended.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = procfs::process::Process::new(pid).ok()?.stat().ok()?;
        (!matches!(stat.state, 'Z' | 'X')).then_some(Self {
            pid,
            start_ticks: stat.starttime,
        })
    }

    /// This process.
    pub fn own() -> Option<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Returns true if it still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Opens it, if it still runs.
    pub(crate) fn open(self) -> Option<Process> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // The descriptor names the process that had the number when it was opened. That is ours if
        // ours still has the number afterwards.
        self.is_alive().then_some(Process { fd })
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(self) -> Option<u64> {
        let process = procfs::process::Process::new(self.pid).ok()?;
        let pages = process.statm().ok()?.resident;
        self.is_alive().then(|| pages * procfs::page_size())
    }

    /// Seconds since it started.
    pub fn age_seconds(self) -> Option<u64> {
        let uptime = procfs::Uptime::current().ok()?.uptime_duration().as_secs();
        Some(uptime.saturating_sub(self.start_ticks / procfs::ticks_per_second()))
    }

    /// What [`Self::save`] wrote to `file`.
    pub(crate) fn load(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        let (pid, start_ticks) = text.trim_end().split_once(' ')?;
        Some(Self {
            pid: pid.parse().ok()?,
            start_ticks: start_ticks.parse().ok()?,
        })
    }

    pub(crate) fn save(self, file: &Path) -> crate::Result<()> {
        let text = format!("{} {}\n", self.pid, self.start_ticks);
        fs::write(file, text).map_err(crate::Error::io("write", file))
    }
}

impl Process {
    /// Sends `signal`. A process that has ended needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.fd, signal);
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&self, deadline: &Deadline) -> Result<(), Stop> {
        deadline.readable(self.fd.as_fd())
    }
}

impl AsFd for Process {
    /// Readable once the process has ended.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Ends all `processes`: each of `steps` is a signal and the seconds to wait after
/// it. Returns how many are still there.
pub(crate) fn end_all(mut processes: Vec<Process>, steps: &[(Signal, u64)]) -> usize {
    for (signal, seconds) in steps {
        processes.iter().for_each(|process| process.signal(*signal));
        let deadline = Deadline::seconds(*seconds);
        // One deadline for all: a wait for a process that has ended returns at once.
        processes.retain(|process| process.wait(&deadline).is_err());
        if processes.is_empty() {
            break;
        }
    }
    processes.len()
}

/// Longest time that the kernel may need to give a process its new environment, in seconds.
const EXEC_LIMIT: u64 = 5;

/// Flag of a process that has not executed a program since it was forked (`PF_FORKNOEXEC`).
const FORKED: u32 = 0x40;

/// How far a process is with executing its program, as its environment depends on it.
#[derive(PartialEq)]
struct Phase {
    /// It was forked from this program and has not executed its own: the environment that the
    /// kernel shows is its parent's.
    forked: bool,
    /// Where its environment ends; 0 while it executes a program, where the kernel shows
    /// neither the old environment nor the new one.
    environment_end: Option<u64>,
    /// It has memory: it is no kernel thread, and has not ended.
    has_memory: bool,
}

impl Phase {
    fn of(process: &procfs::process::Process) -> Option<Self> {
        let stat = process.stat().ok()?;
        Some(Self {
            forked: stat.flags & FORKED != 0 && is_program(process),
            environment_end: stat.env_end,
            has_memory: stat.vsize > 0,
        })
    }

    fn is_settled(&self) -> bool {
        let executes = self.has_memory && self.environment_end == Some(0);
        !self.forked && !executes
    }
}

/// The environment of a process; empty if it has ended, or is another user's. It is read again
/// unless the process had executed its program before the reading, and executed none meanwhile.
fn environment(process: &procfs::process::Process) -> HashMap<OsString, OsString> {
    let deadline = Deadline::seconds(EXEC_LIMIT);
    loop {
        let before = Phase::of(process);
        let Ok(environment) = process.environ() else {
            return HashMap::new();
        };
        let is_settled = before.as_ref().is_none_or(Phase::is_settled);
        let counts = is_settled && before == Phase::of(process);
        if counts || deadline.left() == Some(Duration::ZERO) {
            return environment;
        }
        std::thread::yield_now();
    }
}

/// Returns true if a process runs the same program as this one.
fn is_program(process: &procfs::process::Process) -> bool {
    let own = std::env::current_exe();
    own.is_ok_and(|own| process.exe().is_ok_and(|exe| exe == own))
}

/// Every process that was started for the cluster whose state is in `dir`.
pub(crate) fn of_cluster(dir: &Path) -> Vec<ProcessId> {
    let marked = |process: &procfs::process::Process| {
        let marker = environment(process).remove(OsStr::new(MARKER));
        marker.is_some_and(|marker| marker == dir.as_os_str())
    };
    let all = all_processes().into_iter().flatten().flatten();
    let ours = all.filter(marked);
    ours.filter_map(|process| ProcessId::of(process.pid))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::stubborn;
    use std::process::{Command, Stdio};

    fn dummy(dir: &Path) -> std::process::Child {
        Command::new("cat")
            .env(MARKER, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn id_of(child: &std::process::Child) -> ProcessId {
        ProcessId::of(child.id() as i32).unwrap()
    }

    #[test]
    fn a_recycled_number_is_another_process() {
        let own = ProcessId::own().unwrap();
        assert!(own.is_alive() && own.open().is_some());
        let earlier = ProcessId {
            start_ticks: own.start_ticks - 1,
            ..own
        };
        assert!(!earlier.is_alive() && earlier.open().is_none());
    }

    #[test]
    fn ids_survive_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let own = ProcessId::own().unwrap();
        own.save(&file).unwrap();
        assert_eq!(ProcessId::load(&file), Some(own));
        fs::write(&file, "12").unwrap();
        assert_eq!(ProcessId::load(&file), None);
    }

    #[test]
    fn marked_processes_are_found_and_ended() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let (mut ours, mut foreign) = (dummy(dir.path()), dummy(other.path()));
        let found = of_cluster(dir.path());
        assert_eq!(found, [id_of(&ours)]);
        let open = found.iter().filter_map(|id| id.open()).collect();
        assert_eq!(end_all(open, &[(Signal::TERM, 30)]), 0);
        assert!(!found[0].is_alive());
        ours.wait().unwrap();
        assert!(id_of(&foreign).is_alive());
        foreign.kill().unwrap();
        foreign.wait().unwrap();
    }

    /// `spawn` returns while the kernel still gives the process its new environment.
    #[test]
    fn a_process_that_has_just_started_is_found() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..200 {
            let mut child = dummy(dir.path());
            let found = of_cluster(dir.path());
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found.len(), 1);
        }
    }

    #[test]
    fn a_process_that_ignores_a_signal_gets_the_next() {
        let mut child = stubborn(Path::new("/nowhere"));
        let process = id_of(&child).open().unwrap();
        let steps = [(Signal::TERM, 0), (Signal::KILL, 30)];
        assert_eq!(end_all(vec![process], &steps), 0);
        child.wait().unwrap();
    }
}
