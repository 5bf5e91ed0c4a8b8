//! What this process has started, and what that has started in turn.
//!
//! A child that starts processes itself (cargo, a test, a shell) may end before them. They then
//! become children of this process ([`adopt_orphans`]), so that a walk along parents finds all of
//! them, whatever their environment, session or process group.

use std::collections::{HashMap, HashSet};
use std::io;
use std::process::Child;

use procfs::process::all_processes;
use rustix::process::{getpid, kill_process_group, set_child_subreaper, Pid, Signal};

use crate::process::{end_all, Process, ProcessId};
use crate::wait::Deadline;

/// Searches in one call of [`end_descendants`]: a process that is being ended may just have started
/// another.
const ROUNDS: usize = 16;

/// Seconds that killed processes may take to end.
const KILL_SECONDS: u64 = 10;

/// Makes this process the parent of all descendants whose own parents end from now on. They are
/// reaped when this process ends.
///
/// # Errors
/// Returns an error if the kernel refuses.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills all descendants of this process, and waits until they have ended, for 10 s at most.
/// Returns how many are left: 0, unless one is stuck in the kernel, or others are started all
/// the time. Call [`adopt_orphans`] before they are started.
pub fn end_descendants() -> usize {
    let own = getpid();
    for _ in 0..ROUNDS {
        let found = open_descendants(own);
        if found.is_empty() {
            return 0;
        }
        let left = end_all(found, &[(Signal::KILL, KILL_SECONDS)]);
        if left > 0 {
            return left;
        }
    }
    open_descendants(own).len()
}

/// Ends `root`, which leads a process group, and all that it has started: the group is asked to
/// end, and what is left of all `seconds` later is killed. Returns how many are left: 0, unless
/// one is stuck in the kernel.
pub fn end_tree(root: &Child, seconds: u64) -> usize {
    // No process has waited for it: its number is still its own.
    let Some(number) = Pid::from_raw(root.id() as i32) else {
        return 0;
    };
    // What is found now is known even when its parent has ended.
    let mut tree = open_descendants(number);
    let _ = kill_process_group(number, Signal::TERM);
    // One that is stopped takes that signal when it goes on.
    let _ = kill_process_group(number, Signal::CONT);
    if let Some(root) = open(number) {
        let _ = root.wait(&Deadline::seconds(seconds));
    }
    tree.extend(open_descendants(number));
    tree.extend(open(number));
    end_all(tree, &[(Signal::KILL, KILL_SECONDS)])
}

fn open(number: Pid) -> Option<Process> {
    ProcessId::of(number.as_raw_nonzero().get())?.open()
}

fn open_descendants(root: Pid) -> Vec<Process> {
    let found = descendants(root).into_iter().filter_map(ProcessId::open);
    found.collect()
}

/// The living descendants of a process.
fn descendants(root: Pid) -> Vec<ProcessId> {
    let stats = all_processes().into_iter().flatten().flatten();
    let stats: Vec<_> = stats.filter_map(|process| process.stat().ok()).collect();
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for stat in &stats {
        children.entry(stat.ppid).or_default().push(stat.pid);
    }
    // A number that was used again while the list was read could close a circle.
    let mut seen = HashSet::new();
    let mut open = vec![root.as_raw_nonzero().get()];
    while let Some(parent) = open.pop() {
        let found = children.remove(&parent).unwrap_or_default();
        open.extend(found.into_iter().filter(|pid| seen.insert(*pid)));
    }
    seen.into_iter().filter_map(ProcessId::of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};

    /// Set for the process whose descendants are to end.
    const ANCESTOR: &str = "QNIC_TEST_ANCESTOR";

    /// Starts a shell that leaves an orphan in a session of its own and ends; prints the orphan.
    fn be_the_ancestor() {
        adopt_orphans().unwrap();
        let script = "setsid tail -f /dev/null & echo $!";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut pid = String::new();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut pid).unwrap();
        assert!(shell.wait().unwrap().success());
        println!("orphan {pid}");
        let mut go_on = [0];
        std::io::stdin().read_exact(&mut go_on).unwrap();
        assert_eq!(end_descendants(), 0);
    }

    /// Runs this very test in a process of its own: the other tests have children, too.
    #[test]
    fn an_orphan_in_another_session_ends_with_the_rest() {
        if std::env::var_os(ANCESTOR).is_some() {
            return be_the_ancestor();
        }
        let name = "descendants::tests::an_orphan_in_another_session_ends_with_the_rest";
        let mut ancestor = Command::new(std::env::current_exe().unwrap());
        ancestor.args(["--exact", name, "--nocapture"]);
        ancestor.env(ANCESTOR, "1").stdin(Stdio::piped());
        let mut ancestor = ancestor.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(ancestor.stdout.take().unwrap());
        let mut said = output.lines().map_while(Result::ok);
        let pid = said.find_map(|line| {
            let (_, pid) = line.split_once("orphan ")?;
            pid.trim().parse().ok()
        });
        let orphan = ProcessId::of(pid.unwrap()).unwrap();
        io::Write::write_all(&mut ancestor.stdin.take().unwrap(), &[1]).unwrap();
        let rest: Vec<_> = said.collect();
        assert!(ancestor.wait().unwrap().success(), "{rest:?}");
        assert!(!orphan.is_alive());
    }
}
