//! The jobs of a run of tests: processes that run side by side, as far as the machine has room.
//!
//! What a job prints is shown when it has ended, so it stands together and under its name. One
//! that does not end within its limit hangs: it is ended, with all that it has started.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{channel, Sender};
use std::time::{Duration, Instant};

use crate::interrupt::Interrupt;
use crate::schedule::{next, Load, Room};
use anyhow::{Context, Result};
use procfs::process::Process;
use qnic_cluster::{end_tree, spawn_bound};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

/// Time that a job may take before it counts as one that hangs: a multiple of what the slowest
/// takes on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_secs(20 * 60);

/// The same for cargo, which may have to download and build everything.
pub(super) const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);

/// Seconds that a job which hangs has to end what it has started.
const GRACE_SECONDS: u64 = 30;

/// A process of a run, and what it needs.
pub(super) struct Job {
    /// Its name, which stands above what it prints.
    pub(super) name: String,
    pub(super) load: Load,
    pub(super) command: Command,
    pub(super) kind: Kind,
    /// It is ended when it takes longer.
    pub(super) limit: Duration,
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
    Build {
        /// The check that it is: the compiler lints, too.
        lints: Option<&'static str>,
    },
}

/// A job that has ended.
pub(super) struct Done {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) status: ExitStatus,
    pub(super) took: Duration,
    /// Processor time of all that it has started and waited for.
    pub(super) busy: Duration,
    /// The limit, if it was ended by it.
    pub(super) hung: Option<Duration>,
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
        limit,
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
        let result = end_within(&mut child, limit).context("wait for a job");
        let took = start.elapsed();
        let done = result.and_then(|(status, busy, hung)| {
            Ok(Done {
                name,
                kind,
                status,
                took,
                busy,
                hung: hung.then_some(limit),
                output: read(&mut output)?,
            })
        });
        // The receiver is gone only if the run has failed.
        let _ = ended.send((number, done));
    };
    std::thread::Builder::new().spawn(wait)?;
    Ok(number)
}

/// Waits for a job, and ends it if it takes longer than `limit`. Returns its status, its
/// processor time, and whether it was ended.
fn end_within(child: &mut Child, limit: Duration) -> Result<(ExitStatus, Duration, bool)> {
    let number = child.id() as i32;
    let pid = Pid::from_raw(number).context("a job without a number")?;
    let end = pidfd_open(pid, PidfdFlags::empty()).context("open a job")?;
    let deadline = Instant::now() + limit;
    let hangs = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).context("a limit that long")?;
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => break ready? == 0,
        }
    };
    if hangs {
        end_tree(child, GRACE_SECONDS);
    }
    // It has ended, and stays to be asked until it is waited for.
    let busy = processor_time(number).unwrap_or_default();
    Ok((child.wait()?, busy, hangs))
}

/// Processor time of a process, and of the children that it has waited for.
fn processor_time(number: i32) -> Option<Duration> {
    let stat = Process::new(number).ok()?.stat().ok()?;
    let children = u64::try_from(stat.cutime.saturating_add(stat.cstime)).ok()?;
    let ticks = stat.utime + stat.stime + children;
    let seconds = ticks as f64 / procfs::ticks_per_second() as f64;
    Some(Duration::from_secs_f64(seconds))
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
    // Without a reader it is not missed.
    let _ = write!(to, "{heading}\n{output}{end}");
    let _ = to.flush();
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    use qnic_cluster::ProcessId;
    use rustix::process::Signal;

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
            limit: LIMIT,
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

    /// It never ends by itself, and a process that it has started stands in a session of its own.
    #[test]
    fn a_job_that_hangs_is_ended_with_what_it_started() {
        let script = "setsid tail -f /dev/null & echo $!; exec tail -f /dev/null";
        let Job { mut command, .. } = shell("hangs", 1, script);
        command.stdout(Stdio::piped());
        let mut child = spawn_bound(command).unwrap();
        let mut said = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut said).unwrap();
        let started = ProcessId::of(said.trim().parse().unwrap()).unwrap();
        let (status, _, hangs) = end_within(&mut child, Duration::ZERO).unwrap();
        assert!(hangs);
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
        assert!(!started.is_alive());
    }

    #[test]
    fn the_limit_of_a_job_holds_in_a_run() {
        let limit = Duration::from_millis(10);
        let hangs = Job {
            limit,
            ..shell("hangs", 1, "exec tail -f /dev/null")
        };
        let jobs = vec![hangs, shell("works", 1, "exit 0")];
        let interrupt = Interrupt::watch().unwrap();
        let mut ends = Vec::new();
        let keep = |done: Done| {
            ends.push((done.name, done.hung, done.status.success()));
            Ok(Vec::new())
        };
        run(jobs, ROOM, &interrupt, keep).unwrap();
        ends.sort();
        let expected = [("hangs", Some(limit), false), ("works", None, true)];
        assert_eq!(
            ends,
            expected.map(|(name, hung, well)| (name.to_owned(), hung, well))
        );
    }
}
