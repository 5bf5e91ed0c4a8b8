//! Processes named so that a recycled number is never mistaken for them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::wait::{Patience, Stop};

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

/// A process that is open: signals reach it or nobody.
#[derive(Debug)]
pub(crate) struct Process {
    fd: OwnedFd,
}

impl ProcessId {
    /// The process that has number `pid` now, unless there is none or it has ended.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = Stat::read(pid)?;
        (!matches!(stat.state, 'Z' | 'X')).then_some(Self {
            pid,
            start_ticks: stat.start_ticks,
        })
    }

    /// This process.
    pub fn own() -> Option<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Opens it, if it still runs.
    pub(crate) fn open(self) -> Option<Process> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // The descriptor names whatever had the number when it was opened. If the
        // process of our start time has the number after that, it had it then.
        self.is_alive().then_some(Process { fd })
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(self) -> Option<u64> {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.pid)).ok()?;
        let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
        self.is_alive()
            .then(|| pages * rustix::param::page_size() as u64)
    }

    /// Seconds since it started.
    pub fn age_seconds(self) -> Option<u64> {
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
        let started = self.start_ticks / rustix::param::clock_ticks_per_second();
        Some((uptime as u64).saturating_sub(started))
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
    /// Sends `signal`; one that has ended needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.fd, signal);
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&self, patience: &Patience) -> Result<(), Stop> {
        patience.readable(self.fd.as_fd())
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
pub(crate) fn end_all(mut processes: Vec<Process>, steps: &[(Option<Signal>, u64)]) -> usize {
    for (signal, seconds) in steps {
        if let Some(signal) = signal {
            processes.iter().for_each(|process| process.signal(*signal));
        }
        let patience = Patience::seconds(*seconds);
        // One deadline for all: those that have ended return at once.
        processes.retain(|process| process.wait(&patience).is_err());
        if processes.is_empty() {
            break;
        }
    }
    processes.len()
}

/// Every process that was started for the cluster whose state is in `dir`.
pub(crate) fn of_cluster(dir: &Path) -> Vec<ProcessId> {
    let mut wanted = MARKER.as_bytes().to_vec();
    wanted.push(b'=');
    wanted.extend_from_slice(dir.as_os_str().as_encoded_bytes());
    let marked = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == wanted)
    };
    all_pids()
        .unwrap_or_default()
        .into_iter()
        .filter(marked)
        .filter_map(ProcessId::of)
        .collect()
}

fn all_pids() -> io::Result<Vec<i32>> {
    let names =
        fs::read_dir("/proc")?.map(|entry| entry.map(|entry| PathBuf::from(entry.file_name())));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    Ok(names
        .iter()
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect())
}

/// The parts of `/proc/PID/stat` that matter here.
struct Stat {
    state: char,
    start_ticks: u64,
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, which may itself
        // contain spaces and parentheses; the fields after the last one are plain.
        let (_, plain) = text.rsplit_once(") ")?;
        let mut fields = plain.split(' ');
        let state = fields.next()?.chars().next()?;
        let start_ticks = fields.nth(18)?.parse().ok()?;
        Some(Self { state, start_ticks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn a_name_with_spaces_and_parentheses_does_not_confuse() {
        let text = "7 (a b) R 9 (c)) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 12345 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.state, stat.start_ticks), ('S', 12345));
    }

    #[test]
    fn a_recycled_number_is_somebody_else() {
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
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("pid");
        let own = ProcessId::own().unwrap();
        own.save(&file).unwrap();
        assert_eq!(ProcessId::load(&file), Some(own));
        fs::write(&file, "12").unwrap();
        assert_eq!(ProcessId::load(&file), None);
    }

    #[test]
    fn marked_processes_are_found_and_ended() {
        let home = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let (mut ours, mut foreign) = (dummy(home.path()), dummy(other.path()));
        let found = of_cluster(home.path());
        assert_eq!(found, [id_of(&ours)]);
        let open = found.iter().filter_map(|id| id.open()).collect();
        assert_eq!(end_all(open, &[(Some(Signal::TERM), 30)]), 0);
        assert!(!found[0].is_alive());
        ours.wait().unwrap();
        assert!(id_of(&foreign).is_alive());
        foreign.kill().unwrap();
        foreign.wait().unwrap();
    }

    #[test]
    fn a_process_that_ignores_a_signal_gets_the_next() {
        let mut child = Command::new("sh")
            .args(["-c", "trap '' TERM; echo; read forever"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let ready = child.stdout.take().unwrap();
        Patience::seconds(30).readable(ready.as_fd()).unwrap();
        let process = id_of(&child).open().unwrap();
        assert_eq!(
            end_all(
                vec![process],
                &[(Some(Signal::TERM), 0), (Some(Signal::KILL), 30)]
            ),
            0
        );
        child.wait().unwrap();
    }
}
