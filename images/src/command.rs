//! Runs a program of the host and turns its failure into an error worth reading.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use crate::error::{Error, Result};

/// Lines of a failed program's output that go into the error.
const TAIL_LINES: usize = 12;

/// What a program printed, and how it ended.
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
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
    let outcome = run_to_end(what, command, |_| {})?;
    if outcome.status.success() {
        Ok(outcome.stdout)
    } else {
        Err(failure(what, command, &outcome))
    }
}

/// Runs `command` to its end with its standard output going to the file `out`.
pub(crate) fn run_into(what: &str, command: &mut Command, out: File) -> Result<()> {
    let output = command
        .stdout(out)
        .stderr(Stdio::piped())
        .output()
        .map_err(|source| not_started(command, source))?;
    let outcome = Outcome {
        status: output.status,
        stdout: String::new(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    tell_disk_full(what, outcome.status, &outcome.stderr)?;
    if outcome.status.success() {
        Ok(())
    } else {
        Err(failure(what, command, &outcome))
    }
}

/// Runs `command` to its end, whatever that is, giving each line of its standard
/// output to `on_line` as it comes.
pub(crate) fn run_to_end(
    what: &str,
    command: &mut Command,
    mut on_line: impl FnMut(&str),
) -> Result<Outcome> {
    let scratch = |source| Error::io("use", &std::env::temp_dir())(source);
    let mut errors = tempfile::tempfile().map_err(scratch)?;
    let stderr = errors.try_clone().map_err(scratch)?;
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .map_err(|source| not_started(command, source))?;
    let mut stdout = String::new();
    if let Some(pipe) = child.stdout.take() {
        for line in BufReader::new(pipe).split(b'\n') {
            let line = line.map_err(|source| not_started(command, source))?;
            let line = String::from_utf8_lossy(&line);
            on_line(&line);
            stdout.push_str(&line);
            stdout.push('\n');
        }
    }
    let status = child
        .wait()
        .map_err(|source| not_started(command, source))?;
    let mut stderr = Vec::new();
    errors.seek(SeekFrom::Start(0)).map_err(scratch)?;
    errors.read_to_end(&mut stderr).map_err(scratch)?;
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    tell_disk_full(what, status, &stderr)?;
    Ok(Outcome {
        status,
        stdout,
        stderr,
    })
}

/// The error for a program that ran and failed.
pub(crate) fn failure(what: &str, command: &Command, outcome: &Outcome) -> Error {
    let text = if outcome.stderr.trim().is_empty() {
        &outcome.stdout
    } else {
        &outcome.stderr
    };
    Error::Command {
        what: what.to_owned(),
        program: name(command),
        status: outcome.status.to_string(),
        detail: tail(text),
    }
}

/// The last lines of what a program printed.
pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

fn name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy()
        .into_owned()
}

fn not_started(command: &Command, source: io::Error) -> Error {
    let program = name(command);
    if source.kind() != io::ErrorKind::NotFound {
        return Error::io("run", Path::new(command.get_program()))(source);
    }
    let package = match program.as_str() {
        "apt-get" | "apt-cache" | "apt-config" => "apt",
        "unshare" => "util-linux",
        "cargo" => "cargo",
        _ => "dpkg",
    };
    Error::MissingProgram { program, package }
}

fn tell_disk_full(what: &str, status: ExitStatus, stderr: &str) -> Result<()> {
    let full = [
        "No space left on device",
        "You don't have enough free space",
    ];
    if !status.success() && full.iter().any(|text| stderr.contains(text)) {
        return Err(Error::DiskFull {
            what: what.to_owned(),
        });
    }
    Ok(())
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
        let outcome = run_to_end("count", &mut shell("echo one; echo two"), |line| {
            seen.push(line.to_owned());
        })
        .unwrap();
        assert_eq!(seen, ["one", "two"]);
        assert_eq!(outcome.stdout, "one\ntwo\n");
    }

    #[test]
    fn a_failure_quotes_the_end_of_what_was_printed() {
        let error = run("try", &mut shell("echo first >&2; echo why >&2; exit 3")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("cannot try: sh ended with"), "{text}");
        assert!(text.ends_with("| first\n  | why"), "{text}");
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = run("unpack", &mut command("/nowhere/dpkg")).unwrap_err();
        assert!(
            matches!(&error, Error::MissingProgram { program, package: "dpkg" } if program == "dpkg")
        );
    }

    #[test]
    fn a_full_disk_is_recognised_in_what_a_program_prints() {
        let script = "echo 'tar: x: No space left on device' >&2; exit 2";
        let error = run("unpack x", &mut shell(script)).unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    }
}
