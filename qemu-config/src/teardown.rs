//! Ends a cluster, whatever state it is in, and removes what it left.
//!
//! ```text
//!   ask each QEMU to quit ─▶ SIGTERM to all ─▶ SIGKILL to what is left ─▶ remove files
//! ```
//!
//! Which processes have to go is known from two sources: the numbers written down at start, and
//! the mark in each process's environment, which also finds what was started and
//! never written down.

use std::collections::HashSet;

use rustix::process::Signal;

use crate::dirs::{directories_in, ClusterDir};
use crate::lock::LockFile;
use crate::manifest::Mode;
use crate::monitor::Monitor;
use crate::process::{end_all, of_cluster, Process, ProcessId};
use crate::qmp::QUIT;
use crate::state::Runtime;
use crate::wait::Deadline;
use crate::{Error, Result};

/// The signals, and the seconds to wait after each. Each QEMU has been asked to quit before.
const STEPS: [(Signal, u64); 2] = [(Signal::TERM, 5), (Signal::KILL, 10)];

/// Ends the cluster `name`: its processes, sockets and files are gone afterwards.
/// Works on clusters that are whole, half booted or broken.
///
/// # Errors
/// [`Error::NoSuchCluster`]; [`Error::Owned`] while the program that booted it as its
/// own runs; [`Error::Host`] if a process cannot be ended.
pub fn down(runtime: &Runtime, name: &str) -> Result<()> {
    runtime.existing(name)?;
    let _making = runtime.lock()?;
    let dir = runtime.existing(name)?;
    match dir.try_lock()? {
        Some(lock) => end(runtime, name, &dir, lock),
        None => Err(Error::Owned {
            name: name.to_owned(),
            pid: dir.owner(),
        }),
    }
}

/// Removes what programs that died have left. Returns the names of those clusters. One that cannot
/// be removed is logged, and hinders no command about another cluster.
///
/// # Errors
/// Returns an error if the directory of all clusters cannot be locked.
pub fn sweep(runtime: &Runtime) -> Result<Vec<String>> {
    if runtime.names().is_empty() {
        return Ok(Vec::new());
    }
    let _making = runtime.lock()?;
    let mut swept = Vec::new();
    for name in runtime.names() {
        match sweep_one(runtime, &name) {
            Ok(true) => swept.push(name),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(cluster = name, %error, "cannot remove what is left of it")
            }
        }
    }
    Ok(swept)
}

/// Removes the cluster `name` if it was left behind. The caller has [`Runtime::lock`].
pub(crate) fn sweep_one(runtime: &Runtime, name: &str) -> Result<bool> {
    let dir = runtime.dir(name);
    if !dir.path().is_dir() {
        return Ok(false);
    }
    let detached = dir
        .read_manifest()
        .is_some_and(|manifest| manifest.mode == Mode::Detached);
    if detached && dir.is_booted() {
        return Ok(false);
    }
    match dir.try_lock()? {
        Some(lock) => end(runtime, name, &dir, lock).map(|()| true),
        None => Ok(false),
    }
}

/// Ends everything in `dir` and removes it. `_lock` shows that no other process does.
pub(crate) fn end(runtime: &Runtime, name: &str, dir: &ClusterDir, _lock: LockFile) -> Result<()> {
    let processes = processes_of(dir);
    ask_to_quit(dir);
    let left = end_all(processes, &STEPS);
    // A process may have been started during the search.
    let late = of_cluster(dir.path())
        .into_iter()
        .filter_map(ProcessId::open)
        .collect();
    let left = left.max(end_all(late, &[(Signal::KILL, 10)]));
    if left > 0 {
        let message =
            format!("{left} processes of cluster {name} do not end: they are stuck in the kernel");
        return Err(Error::Host(message));
    }
    runtime.remove(name)
}

fn processes_of(dir: &ClusterDir) -> Vec<Process> {
    let nodes = directories_in(&dir.nodes()).into_iter();
    let files = nodes.map(|node| dir.node(&node).qemu_pid());
    let files = files.chain(dir.device_pids());
    let written = files.filter_map(|file| ProcessId::load(&file));
    let all: HashSet<ProcessId> = written.chain(of_cluster(dir.path())).collect();
    all.into_iter().filter_map(ProcessId::open).collect()
}

fn ask_to_quit(dir: &ClusterDir) {
    std::thread::scope(|scope| {
        for node in directories_in(&dir.nodes()) {
            let node = dir.node(&node);
            scope.spawn(move || {
                // A QEMU that does not listen gets a signal next.
                if let Ok(mut monitor) = Monitor::connect(&node, Deadline::seconds(2)) {
                    let _ = monitor.execute(&QUIT);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{stubborn, TestDir};
    use std::process::{Command, Stdio};

    #[test]
    fn everything_goes_even_what_was_never_written_down() {
        let test = TestDir::new();
        drop(test.create(Mode::Detached).unwrap());
        test.dir.mark_booted().unwrap();
        let mut unrecorded = stubborn(test.dir.path());
        let mut recorded = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = ProcessId::of(recorded.id() as i32).unwrap();
        id.save(&test.dir.node("a").qemu_pid()).unwrap();
        down(&test.runtime, "c").unwrap();
        assert!(!unrecorded.wait().unwrap().success() && !recorded.wait().unwrap().success());
        assert!(!test.dir.path().exists() && !test.runtime.disks("c").exists());
        let again = down(&test.runtime, "c");
        assert!(matches!(again, Err(Error::NoSuchCluster { .. })));
    }

    #[test]
    fn a_recycled_number_is_left_alone() {
        let test = TestDir::new();
        drop(test.create(Mode::Detached).unwrap());
        let mut stranger = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = ProcessId::of(stranger.id() as i32).unwrap();
        let earlier = ProcessId {
            start_ticks: id.start_ticks - 1,
            ..id
        };
        earlier.save(&test.dir.device(None).pid()).unwrap();
        down(&test.runtime, "c").unwrap();
        assert!(id.is_alive());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    fn a_cluster_with_a_living_owner_is_not_taken_down_by_others() {
        let test = TestDir::new();
        let _owned = test.create(Mode::Attached).unwrap();
        let refused = down(&test.runtime, "c");
        assert!(matches!(refused, Err(Error::Owned { .. })));
        assert!(sweep(&test.runtime).unwrap().is_empty());
        assert!(test.dir.path().exists());
    }

    #[test]
    fn what_a_dead_owner_or_a_broken_boot_left_is_swept_and_a_booted_cluster_is_not() {
        for (mode, booted, swept) in [
            (Mode::Attached, true, true),
            (Mode::Detached, false, true),
            (Mode::Detached, true, false),
        ] {
            let test = TestDir::new();
            let owned = test.create(mode).unwrap();
            if booted {
                test.dir.mark_booted().unwrap();
            }
            drop(owned);
            let found = !sweep(&test.runtime).unwrap().is_empty();
            assert_eq!(found, swept, "{mode:?} {booted}");
            assert_eq!(!test.dir.path().exists(), swept);
        }
    }
}
