//! Runs programs of the host and turns their failures into errors worth reading.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// Lines of a failed program's output that go into the error.
const TAIL_LINES: usize = 12;

/// What programs print when a file system is full.
const NO_SPACE: [&str; 2] = [
    "No space left on device",
    "You don't have enough free space",
];

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
    let mut child = command.spawn().map_err(|e| not_started(command, e))?;
    let mut stdout = String::new();
    if let Some(pipe) = child.stdout.take() {
        for line in BufReader::new(pipe).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            on_line(&line);
            stdout.push_str(&line);
            stdout.push('\n');
        }
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(stdout);
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
    let known = PROGRAMS.iter().find(|(name, ..)| *name == program);
    match known {
        Some((_, package, _)) if source.kind() == io::ErrorKind::NotFound => {
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
