//! Processes that are known by a variable in their environment.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use procfs::process::{all_processes, Process};
use rustix::process::{kill_process, Pid, Signal};

/// In the environment of everything that a run starts: a directory of this run.
pub(crate) const MARK: &str = "QNIC_TEST_MARK";

/// What runs with this mark.
pub(crate) fn processes(mark: &Path) -> Vec<Process> {
    let lives = |process: &Process| {
        let stat = process.stat();
        stat.is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'))
    };
    let ours = |process: &Process| {
        let environment = process.environ().unwrap_or_default();
        let found = environment.get(OsStr::new(MARK));
        found.is_some_and(|found| Path::new(found) == mark) && lives(process)
    };
    let all = all_processes().unwrap().flatten();
    all.filter(ours).collect()
}

/// The names of these processes.
pub(crate) fn names(mark: &Path) -> BTreeSet<String> {
    let processes = processes(mark).into_iter();
    let stats = processes.filter_map(|process| process.stat().ok());
    stats.map(|stat| stat.comm).collect()
}

/// Ends them: only a test that fails leaves any.
pub(crate) fn kill(mark: &Path) {
    for process in processes(mark) {
        let _ = Pid::from_raw(process.pid).map(|pid| kill_process(pid, Signal::KILL));
    }
}
