//! A run of tests that is ended in the middle of a case leaves no process.

#[path = "../../cli/tests/marked/mod.rs"]
mod marked;

use std::collections::BTreeSet;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use procfs::process::Process;
use qnic_cluster::{programs, APP, DEVICE};
use rustix::process::{kill_process, Pid, Signal};

use marked::MARK;

/// Longest time for a run to get to its case, and to end.
const LIMIT: Duration = Duration::from_secs(120);

/// A case that takes long enough to be caught, however busy the machine is.
const ONE: &str = "host::demo_at_20_percent_loss";

/// Several, each in a process of its own; that one is among them.
const SEVERAL: &str = "host::demo_at_";

/// A run of the cases of some name.
struct Run {
    child: Child,
    dir: tempfile::TempDir,
}

impl Run {
    /// Starts it; what the case runs is built before.
    fn start(cases: &str) -> Self {
        programs([DEVICE, APP]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_qnic-suite"));
        command.args(["test", "--quick", "--only", cases]);
        command.env(MARK, dir.path()).env("TMPDIR", dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        Run { child, dir }
    }

    /// What runs and was started by this run, itself included.
    fn processes(&self) -> Vec<Process> {
        marked::processes(self.dir.path())
    }

    fn names(&self) -> BTreeSet<String> {
        marked::names(self.dir.path())
    }

    /// Waits until device process and programs of the case run; then stops the device process,
    /// so that the case cannot end by itself.
    fn hold_in_the_case(&mut self) {
        let start = Instant::now();
        while !self.names().contains("qnic-app") {
            assert_eq!(self.child.try_wait().unwrap(), None, "it ended early");
            assert!(start.elapsed() < LIMIT, "{:?}", self.names());
        }
        let is_device = |process: &Process| {
            let stat = process.stat();
            stat.is_ok_and(|stat| stat.comm == "qnic-device")
        };
        let device = self.processes().into_iter().find(is_device);
        signal(device.unwrap().pid, Signal::STOP);
    }

    fn wait_ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LIMIT, "{:?} run on", self.names());
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        marked::kill(self.dir.path());
        let _ = self.child.wait();
    }
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// TERM and INT: the run ends what it has started, and says so by its status.
#[test]
fn a_terminated_test_run_leaves_no_process() {
    let [term, int] = [Signal::TERM, Signal::INT];
    for (cases, by) in [(ONE, term), (ONE, int), (SEVERAL, term), (SEVERAL, int)] {
        let mut run = Run::start(cases);
        run.hold_in_the_case();
        signal(run.child.id() as i32, by);
        let status = run.wait_ended();
        assert_eq!(run.names(), BTreeSet::new(), "{cases} {by:?}");
        assert_eq!(status.code(), Some(130), "{cases} {by:?}");
        let left = std::fs::read_dir(run.dir.path()).unwrap().count();
        assert_eq!(left, 0, "{cases} {by:?}: files stay");
    }
}

/// KILL: nothing of the run is there to end them, so the kernel does.
#[test]
fn a_killed_test_run_leaves_no_process_of_its_case() {
    for cases in [ONE, SEVERAL] {
        let mut run = Run::start(cases);
        run.hold_in_the_case();
        signal(run.child.id() as i32, Signal::KILL);
        run.wait_ended();
        let start = Instant::now();
        while !run.names().is_empty() {
            assert!(start.elapsed() < LIMIT, "{:?} run on", run.names());
        }
    }
}
