//! The jobs of a run of tests: processes that run side by side, as far as the machine has room.
//!
//! What a job prints is shown when it has ended, so it stands together and under its name.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{channel, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use qnic_cluster::spawn_bound;
use qnic_tests::interrupt::Interrupt;
use qnic_tests::schedule::{next, Load, Room};

/// A process of a run, and what it needs.
pub(super) struct Job {
    /// Its name, which stands above what it prints.
    pub(super) name: String,
    pub(super) load: Load,
    pub(super) command: Command,
    pub(super) kind: Kind,
}

/// What a job is, so how its output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It holds if the process ends well.
    Check,
    /// A case of the suite, which says how it ended.
    Case,
    /// A program of tests, or several.
    Tests,
    /// Cargo builds such programs, and names them.
    Build,
}

/// A job that has ended.
pub(super) struct Done {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) status: ExitStatus,
    pub(super) took: Duration,
    /// What it printed, errors included.
    pub(super) output: String,
}

/// Runs `waiting` and what `done` returns as more jobs, which go first; until a signal comes.
///
/// # Errors
/// Returns an error if a process cannot be started, and what `done` returns.
pub(super) fn run(
    mut waiting: Vec<Job>,
    room: Room,
    interrupt: &Interrupt,
    mut done: impl FnMut(Done) -> Result<Vec<Job>>,
) -> Result<()> {
    let (ended, ends) = channel();
    let mut running: Vec<(u32, Load)> = Vec::new();
    loop {
        while let Some(place) = may_begin(&waiting, &running, room, interrupt) {
            let job = waiting.remove(place);
            let (name, load) = (job.name.clone(), job.load);
            let number = start(job, interrupt, ended.clone());
            let number = number.with_context(|| format!("start {name}"))?;
            running.push((number, load));
        }
        if running.is_empty() {
            return Ok(());
        }
        let (number, result): (u32, Result<Done>) = ends.recv().context("a job is lost")?;
        interrupt.ended(number);
        running.retain(|(running, _)| *running != number);
        waiting.splice(..0, done(result?)?);
    }
}

fn may_begin(
    waiting: &[Job],
    running: &[(u32, Load)],
    room: Room,
    interrupt: &Interrupt,
) -> Option<usize> {
    if interrupt.is_pulled() {
        return None;
    }
    let waiting: Vec<_> = waiting.iter().map(|job| job.load).collect();
    let running: Vec<_> = running.iter().map(|(_, load)| *load).collect();
    next(&waiting, &running, room)
}

/// Starts a job; its end is sent to `ended`. Returns its number.
fn start(job: Job, interrupt: &Interrupt, ended: Sender<(u32, Result<Done>)>) -> Result<u32> {
    let Job {
        name,
        mut command,
        kind,
        ..
    } = job;
    let mut output = tempfile::tempfile().context("make a file for its output")?;
    command.stdout(output.try_clone()?);
    command.stderr(output.try_clone()?);
    command.stdin(std::process::Stdio::null());
    println!("begins: {name}");
    let start = Instant::now();
    // A thread that outlives all jobs is its parent.
    let mut child = spawn_bound(command)?;
    let number = child.id();
    interrupt.started(&child)?;
    let wait = move || {
        let status = child.wait().context("wait for a job");
        let took = start.elapsed();
        let done = status.and_then(|status| {
            Ok(Done {
                name,
                kind,
                status,
                took,
                output: read(&mut output)?,
            })
        });
        // Nobody listens any more only if the run has failed.
        let _ = ended.send((number, done));
    };
    std::thread::Builder::new().spawn(wait)?;
    Ok(number)
}

/// All that was written to `output`.
fn read(output: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Prints what a job has printed, under a heading of its own.
pub(super) fn show(heading: &str, output: &str) {
    let mut to = std::io::stdout().lock();
    let end = if output.is_empty() || output.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    // Without a reader nobody misses it.
    let _ = write!(to, "{heading}\n{output}{end}");
    let _ = to.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room {
        processors: 2,
        mebibytes: 1000,
    };

    fn shell(name: &str, processors: usize, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            name: name.to_owned(),
            load: Load {
                processors,
                mebibytes: 1,
                lane: None,
            },
            command,
            kind: Kind::Check,
        }
    }

    /// Each waits for the other, so both run at once; what they print does not mix. What the first
    /// to end asks for runs, too.
    #[test]
    fn jobs_run_side_by_side_and_print_apart() {
        let dir = tempfile::tempdir().unwrap();
        // The opening of a pipe waits for its other end.
        let [to_a, to_b] = ["a", "b"].map(|name| dir.path().join(name));
        let made = Command::new("mkfifo").args([&to_a, &to_b]).status();
        assert!(made.unwrap().success());
        let (to_a, to_b) = (to_a.display(), to_b.display());
        let a = format!("echo a 1; echo to b > {to_b}; cat {to_a}; echo a 2 >&2");
        let b = format!("echo b 1; cat {to_b}; echo to a > {to_a}; echo b 2 >&2");
        let jobs = vec![shell("a", 1, &a), shell("b", 1, &b)];
        let interrupt = Interrupt::watch().unwrap();
        let mut outputs = Vec::new();
        let mut more = vec![shell("c", 2, "exit 3")];
        let keep = |done: Done| {
            outputs.push((done.name, done.status.code(), done.output));
            Ok(std::mem::take(&mut more))
        };
        run(jobs, ROOM, &interrupt, keep).unwrap();
        outputs.sort();
        let expected = [
            ("a", 0, "a 1\nto a\na 2\n"),
            ("b", 0, "b 1\nto b\nb 2\n"),
            ("c", 3, ""),
        ];
        let expected =
            expected.map(|(name, code, text)| (name.to_owned(), Some(code), text.to_owned()));
        assert_eq!(outputs, expected);
    }
}
