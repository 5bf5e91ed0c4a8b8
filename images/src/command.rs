//! Runs programs of the host and turns their failures into errors worth reading.

use std::cell::RefCell;
use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::marker::PhantomData;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use command_fds::CommandFdExt as _;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

use crate::error::{Error, Result};

/// Lines of a failed program's output that go into the error.
const TAIL_LINES: usize = 12;

/// What programs print when a file system is full.
const NO_SPACE: [&str; 2] = [
    "No space left on device",
    "You don't have enough free space",
];

/// What cargo prints when it gets nothing from a registry.
const NO_REGISTRY: [&str; 5] = [
    "failed to download",
    "download of config.json failed",
    "failed to get `",
    "failed to query replaced source",
    "Unable to update registry",
];

/// Returns true if cargo complains of a registry that does not answer.
pub fn registry_is_unreachable(stderr: &str) -> bool {
    NO_REGISTRY.iter().any(|text| stderr.contains(text))
}

/// Programs of the host, with their packages and what they are for.
pub(crate) const PROGRAMS: [(&str, &str, &str); 6] = [
    ("apt-get", "apt", "chooses and downloads packages"),
    ("apt-cache", "apt", "finds the newest kernels"),
    ("dpkg", "dpkg", "unpacks packages"),
    ("tar", "tar", "unpacks packages"),
    ("unshare", "util-linux", "builds the kernel module"),
    ("cargo", "cargo", "fetches the crates of the kernel module"),
];

/// The program `name` in the host's `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

/// A command with a plain locale and nothing to read, so that its output can be parsed.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

thread_local! {
    /// Descriptors that end the programs of this thread when they are readable.
    static CANCELS: RefCell<Vec<OwnedFd>> = const { RefCell::new(Vec::new()) };
    /// Descriptors that are open in the programs of this thread, too: locks on what they work on.
    static SHARED: RefCell<Vec<OwnedFd>> = const { RefCell::new(Vec::new()) };
}

/// Makes `file` open in all programs that this thread starts until the result is dropped. So the
/// programs hold its lock as well: if this process is killed, the lock is free when the last of
/// them has ended.
pub(crate) fn share_with_programs(file: &impl AsFd) -> io::Result<Shared> {
    let fd = file.as_fd().try_clone_to_owned()?;
    let number = fd.as_raw_fd();
    SHARED.with_borrow_mut(|fds| fds.push(fd));
    Ok(Shared {
        number,
        of_this_thread: PhantomData,
    })
}

/// A file is open in the programs that this thread runs.
pub(crate) struct Shared {
    number: RawFd,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        SHARED.with_borrow_mut(|fds| fds.retain(|fd| fd.as_raw_fd() != self.number));
    }
}

/// Does `work`. Once one of `cancels` is readable, a program that this thread runs for it is
/// killed, with all that it has started, and `work` has [`Error::Cancelled`].
///
/// # Errors
/// Returns an error if the process has no descriptors left.
pub fn cancelled_by<T>(cancels: &[BorrowedFd<'_>], work: impl FnOnce() -> T) -> io::Result<T> {
    let cancels = cancels.iter().map(BorrowedFd::try_clone_to_owned);
    let cancels = cancels.collect::<io::Result<Vec<_>>>()?;
    let before = CANCELS.replace(cancels);
    let result = work();
    CANCELS.set(before);
    Ok(result)
}

/// What a thread gives to the programs that it runs.
pub(crate) struct Ties {
    /// Each ends the programs when it is readable.
    cancels: Vec<OwnedFd>,
    /// These are open in them.
    shared: Vec<OwnedFd>,
}

fn clones(fds: &[OwnedFd]) -> io::Result<Vec<OwnedFd>> {
    fds.iter().map(OwnedFd::try_clone).collect()
}

impl Ties {
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        Ok(Self {
            cancels: CANCELS.with_borrow(|fds| clones(fds))?,
            shared: SHARED.with_borrow(|fds| clones(fds))?,
        })
    }

    /// Gives the same to the programs of this thread, which works for the one that made this.
    pub(crate) fn of_that_thread_too(&self) -> io::Result<()> {
        CANCELS.set(clones(&self.cancels)?);
        SHARED.set(clones(&self.shared)?);
        Ok(())
    }

    fn is_pulled(&self) -> bool {
        let mut fds = self.polled();
        !fds.is_empty() && matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    fn polled(&self) -> Vec<PollFd<'_>> {
        let fds = self.cancels.iter();
        fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect()
    }

    /// Waits for the end of `child`, which leads a process group, and kills the group if it is
    /// cancelled before.
    fn watch(&self, child: &Child) {
        let Some(pid) = Pid::from_raw(child.id() as i32) else {
            return;
        };
        let Ok(ended) = pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        let mut fds = self.polled();
        fds.push(PollFd::new(&ended, PollFlags::IN));
        while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
        if self.is_pulled() {
            // No process has waited for it, so the number is still its own.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Runs `command` to its end and returns its standard output.
///
/// # Errors
/// [`Error::MissingProgram`], [`Error::DiskFull`] or [`Error::Command`].
pub(crate) fn run(what: &str, command: &mut Command) -> Result<String> {
    run_with(what, command, |_| {}, |_| None)
}

/// Like [`run`]. Gives each line of the standard output to `on_line` as it comes.
/// After a failure `explain` may turn the standard error into a telling error.
pub(crate) fn run_with(
    what: &str,
    command: &mut Command,
    mut on_line: impl FnMut(&str),
    explain: impl FnOnce(&str) -> Option<Error>,
) -> Result<String> {
    let mut errors = tempfile::tempfile()?;
    command.stdout(Stdio::piped()).stderr(errors.try_clone()?);
    let mut ties = Ties::of_this_thread()?;
    if ties.is_pulled() {
        return Err(Error::Cancelled);
    }
    command.preserved_fds(mem::take(&mut ties.shared));
    if !ties.cancels.is_empty() {
        // A terminal's Ctrl-C then reaches this process alone, which ends all of the group.
        command.process_group(0);
    }
    let mut child = command.spawn().map_err(|e| not_started(command, e))?;
    let pipe = child.stdout.take();
    let stdout = std::thread::scope(|scope| {
        if !ties.cancels.is_empty() {
            scope.spawn(|| ties.watch(&child));
        }
        read_lines(pipe, &mut on_line)
    })?;
    let status = child.wait()?;
    if status.success() {
        return Ok(stdout);
    }
    if ties.is_pulled() {
        return Err(Error::Cancelled);
    }
    let mut stderr = Vec::new();
    errors.rewind()?;
    errors.read_to_end(&mut stderr)?;
    let stderr = String::from_utf8_lossy(&stderr);
    if NO_SPACE.iter().any(|text| stderr.contains(text)) {
        return Err(Error::DiskFull(what.to_owned()));
    }
    Err(explain(&stderr).unwrap_or_else(|| Error::Command {
        what: what.to_owned(),
        program: name(command),
        status: status.to_string(),
        detail: tail(match stderr.trim() {
            "" => &stdout,
            text => text,
        }),
    }))
}

/// All that comes from `pipe`, of which each line is given to `on_line`.
fn read_lines(pipe: Option<impl Read>, on_line: &mut dyn FnMut(&str)) -> io::Result<String> {
    let mut all = String::new();
    let Some(pipe) = pipe else {
        return Ok(all);
    };
    for line in BufReader::new(pipe).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        on_line(&line);
        all.push_str(&line);
        all.push('\n');
    }
    Ok(all)
}

/// Runs `command`, which prints nothing; returns true if it succeeds.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    let status = command.status().map_err(|e| not_started(command, e))?;
    Ok(status.success())
}

/// The last lines of what a program printed.
pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

fn name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    name.to_string_lossy().into_owned()
}

fn not_started(command: &Command, source: io::Error) -> Error {
    let program = name(command);
    let known = PROGRAMS.iter().map(|(name, package, _)| (*name, *package));
    // Only some need a compiler.
    let mut known = known.chain([("cc", "gcc")]);
    match known.find(|(name, _)| *name == program) {
        Some((_, package)) if source.kind() == io::ErrorKind::NotFound => {
            Error::MissingProgram { program, package }
        }
        _ => Error::io("run", command.get_program().as_ref(), source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = command("sh");
        command.args(["-c", script]);
        command
    }

    /// The program and all that it has started are killed. The caller removes what it made.
    #[test]
    fn a_program_is_killed_with_all_that_it_started_when_it_is_cancelled() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut script = shell("sleep 1000 & echo $!; sleep 1000");
        let mut started = None;
        let on_line = |line: &str| {
            let pid = Pid::from_raw(line.parse().unwrap()).unwrap();
            started = Some(pidfd_open(pid, PidfdFlags::empty()).unwrap());
            io::Write::write_all(&mut &ours, b"x").unwrap();
        };
        let wait = || run_with("wait", &mut script, on_line, |_| None);
        let result = cancelled_by(&[std::os::fd::AsFd::as_fd(&theirs)], wait).unwrap();
        assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
        // A process that is killed closes its output before it has ended.
        let started = started.unwrap();
        let mut ends = [PollFd::new(&started, PollFlags::IN)];
        let minute = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut ends, Some(&minute)), Ok(1), "it runs on");
        // Nothing begins any more.
        let begin = || run("begin", &mut shell("true"));
        let result = cancelled_by(&[std::os::fd::AsFd::as_fd(&theirs)], begin).unwrap();
        assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    }

    #[test]
    fn output_is_returned_and_lines_are_passed_on() {
        let mut seen = Vec::new();
        let on_line = |line: &str| seen.push(line.to_owned());
        let stdout = run_with("count", &mut shell("echo one; echo two"), on_line, |_| None);
        assert_eq!(stdout.unwrap(), "one\ntwo\n");
        assert_eq!(seen, ["one", "two"]);
    }

    #[test]
    fn a_failure_quotes_the_end_of_what_was_printed_unless_it_is_explained() {
        let mut fails = shell("echo first >&2; echo why >&2; exit 3");
        let text = run("try", &mut fails).unwrap_err().to_string();
        assert!(text.contains("cannot try: sh ended with"), "{text}");
        assert!(text.ends_with("| first\n  | why"), "{text}");
        let explain = |stderr: &str| stderr.contains("why").then_some(Error::NoMirror);
        let error = run_with("try", &mut fails, |_| {}, explain).unwrap_err();
        assert!(matches!(error, Error::NoMirror));
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = run("unpack", &mut command("/nowhere/dpkg")).unwrap_err();
        let Error::MissingProgram { program, package } = error else {
            panic!("{error}");
        };
        assert_eq!((&*program, package), ("dpkg", "dpkg"));
        let error = run("try", &mut command("/nowhere/x")).unwrap_err();
        assert!(error.to_string().starts_with("cannot run /nowhere/x: "));
    }

    #[test]
    fn a_full_disk_is_recognised_in_what_a_program_prints() {
        let script = "echo 'tar: x: No space left on device' >&2; exit 2";
        let error = run("unpack x", &mut shell(script)).unwrap_err();
        assert!(matches!(error, Error::DiskFull(_)), "{error}");
    }

    #[test]
    fn programs_are_found_in_the_path() {
        assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program("no-such-program"), None);
    }
}
