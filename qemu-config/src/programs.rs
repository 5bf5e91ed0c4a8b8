//! Programs of this project that a cluster needs, on the host and in guests.
//!
//! In a checkout, cargo is asked each time: what runs is what the sources say.
//! An installed tool takes the programs beside it, and asks no cargo.
//! `QNIC_PROGRAMS` names a directory from which all are taken as they are, also in a checkout: machines that have no
//! cargo get those that another has built.
//!
//! All but those that the tool becomes are linked statically, for one platform, and built by one
//! call of cargo. So their common crates are compiled once, and each program runs on the host and in
//! any guest, whatever C library that has.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use qnic_images::{registry_is_unreachable, Installed};
use rustix::process::{kill_process_group, Pid, Signal};

use crate::process::ProcessId;
use crate::spawn::spawn_bound;
use crate::wait::{Cancel, Deadline};
use crate::{Error, Result};

/// The only platform of guests.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The variable with the directory from which programs are taken as they are.
pub const PROGRAMS: &str = "QNIC_PROGRAMS";

/// The profile of the tool.
const TOOL: &str = "tool";

/// The variable with rustc's flags for that platform.
const FLAGS: &str = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS";

/// The flags: link statically.
const STATIC: &str = "-Ctarget-feature=+crt-static";

/// Prefixes of the variables with which `cargo run` describes the package of its program. Build
/// scripts of other packages read them: with other values, cargo would build these packages again.
const OF_PACKAGE: [&str; 5] = [
    "CARGO_BIN_",
    "CARGO_CRATE_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PRIMARY_",
];

/// A program that cargo makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program<'a> {
    package: &'a str,
    /// Cargo's option for its kind.
    option: &'a str,
    name: &'a str,
    /// Cargo's profile.
    profile: &'a str,
    /// The only feature of the package that it needs. Without: the default features.
    feature: Option<&'a str>,
    /// With a package: built together with it, for this machine. Without: linked statically, so
    /// that it runs in guests.
    with: Option<&'a str>,
}

/// The device process.
pub const DEVICE: Program<'static> = Program::bin("qnic-device", "qnic-device");
/// The program of demo, tests and benchmarks, which is in every guest with a NIC.
pub const APP: Program<'static> = Program::bin("qnic-apps", "qnic-app");
/// The program of the demo, a part of [`APP`] that is built in a third of the time.
pub const DEMO: Program<'static> = Program {
    feature: Some("demo"),
    ..Program::bin("qnic-apps", "qnic-demo")
};
/// The path of [`APP`], or of the program that takes its place, in a guest.
pub const APP_PATH: &str = "/usr/bin/qnic-app";
/// The path in a guest at which [`APP`] is the tool for remote memory.
pub(crate) const REMOTE_MEMORY_PATH: &str = "/usr/bin/qnic-rmem";
/// What keeps the logs of a cluster small.
pub const LOG_KEEPER: Program<'static> = Program::bin("qnic-exec", "qnic-log-keeper");
/// The helper that runs commands in guests.
pub const EXEC: Program<'static> = Program::bin("qnic-exec", "qnic-exec");

impl<'a> Program<'a> {
    /// Binary `name` of `package`.
    pub const fn bin(package: &'a str, name: &'a str) -> Self {
        let option = "--bin";
        Self {
            package,
            option,
            name,
            profile: "release",
            feature: None,
            with: None,
        }
    }

    /// The name of its file.
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// The same as `cargo run` builds `package` in the profile of the tool, with which it shares
    /// all that both stand on.
    pub const fn built_with(self, package: &'a str) -> Self {
        Self {
            profile: TOOL,
            with: Some(package),
            ..self
        }
    }

    /// The same in another of cargo's profiles.
    pub const fn in_profile(self, profile: &'a str) -> Self {
        Self { profile, ..self }
    }

    /// Example `name` of `package`.
    pub const fn example(package: &'a str, name: &'a str) -> Self {
        Self {
            option: "--example",
            ..Self::bin(package, name)
        }
    }
}

/// The checkout that this crate was built from, if it is still there. An installed program has none.
pub fn repository() -> Option<PathBuf> {
    if Installed::of_this_program().is_some() {
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    root.join("Cargo.lock").is_file().then(|| root.to_owned())
}

/// Where the sources of the kernel module are: those of the checkout, or those that an installed program has beside it.
///
/// # Errors
/// [`Error::Host`] without either.
pub fn module_sources() -> Result<PathBuf> {
    let installed = Installed::of_this_program().map(|installed| installed.source());
    let gone =
        "the sources of the kernel module are not there: run from a checkout, or install qnic";
    let sources = installed.or_else(repository);
    sources.ok_or_else(|| Error::Host(gone.to_owned()))
}

/// A program, built with optimization.
///
/// # Errors
/// [`Error::Build`] with the end of what cargo said.
pub fn program(program: Program<'_>) -> Result<PathBuf> {
    let [path] = programs([program])?;
    Ok(path)
}

/// A program; `compiles` is called once, at the first crate that has to be compiled for it, if one
/// has.
///
/// # Errors
/// As [`program`].
pub fn program_or_build(program: Program<'_>, compiles: &(dyn Fn() + Sync)) -> Result<PathBuf> {
    let found = provide(&[program], &[], compiles)?.into_iter().next();
    found.ok_or_else(|| failed(&[program], "it is missing".to_owned()))
}

/// Several programs of one profile, built side by side.
///
/// # Errors
/// As [`program`].
pub fn programs<const N: usize>(programs: [Program<'_>; N]) -> Result<[PathBuf; N]> {
    let paths = provide(&programs, &[], &|| {})?;
    paths
        .try_into()
        .map_err(|_| failed(&programs, "some are missing".to_owned()))
}

/// Several programs, in the same order, unless one of `cancels` is pulled. `compiles` is called
/// once, at the first crate that has to be compiled, if one has.
///
/// # Errors
/// As [`program`], and [`Error::Interrupted`].
pub(crate) fn provide(
    programs: &[Program<'_>],
    cancels: &[&Cancel],
    compiles: &(dyn Fn() + Sync),
) -> Result<Vec<PathBuf>> {
    if let Some(dir) = env::var_os(PROGRAMS) {
        return programs.iter().map(|one| made_in(&dir, one)).collect();
    }
    let Some(root) = repository() else {
        return programs.iter().map(beside_us).collect();
    };
    let said = run(command(programs, &root), programs, cancels, compiles)?;
    let found = programs.iter().map(|program| {
        let found = executable_in(&said, program.name);
        found.ok_or_else(|| failed(&[*program], SILENT.to_owned()))
    });
    found.collect()
}

/// The shared library `name` of `package` for programs that link the C library of this machine or a newer one,
/// unless one of `cancels` is pulled. `compiles` is called once, at the first crate that has to be compiled, if one has.
///
/// # Errors
/// As [`program`], and [`Error::Interrupted`].
pub fn library(
    (package, name): (&str, &str),
    cancels: &[&Cancel],
    compiles: &(dyn Fn() + Sync),
) -> Result<PathBuf> {
    let file = format!("lib{name}.so");
    let library = Program::bin(package, &file);
    if let Some(dir) = env::var_os(PROGRAMS) {
        return made_in(&dir, &library);
    }
    let Some(root) = repository() else {
        return beside_us(&library);
    };
    let mut command = cargo_build(&root);
    command.args(["--release", "--package", package, "--lib"]);
    let said = run(command, &[library], cancels, compiles)?;
    let found = library_in(&said, (name, &file));
    found.ok_or_else(|| failed(&[library], SILENT.to_owned()))
}

/// What is said if cargo ended well without a message of what it made.
const SILENT: &str = "cargo did not say where it put it";

/// Cargo in the checkout `root`, as it is when a shell starts it there.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if OF_PACKAGE.iter().any(|begin| text.starts_with(begin)) {
            command.env_remove(name);
        }
    }
    command
}

fn failed(programs: &[Program<'_>], mut message: String) -> Error {
    if registry_is_unreachable(&message) {
        message = format!(
            "the registry of crates cannot be reached: check the network and cargo's settings for \
             proxies and sources ($CARGO_HOME/config.toml), and try again\n{message}"
        );
    } else if message.contains("No space left on device") {
        message = format!(
            "no space is left: make room, or set CARGO_TARGET_DIR to a directory on another file \
             system (3 GB are enough)\n{message}"
        );
    }
    let names: Vec<_> = programs.iter().map(|program| program.name).collect();
    Error::Build {
        what: names.join(", "),
        message,
    }
}

/// The program in the directory that [`PROGRAMS`] names.
fn made_in(dir: &OsStr, program: &Program<'_>) -> Result<PathBuf> {
    let found = Path::new(dir).join(program.name);
    let message = format!(
        "{} is not there: {PROGRAMS} names its directory",
        found.display()
    );
    let is_there = found.is_file();
    is_there
        .then_some(found)
        .ok_or_else(|| failed(&[*program], message))
}

fn beside_us(program: &Program<'_>) -> Result<PathBuf> {
    let own = env::current_exe();
    let own = own.map_err(Error::io("find", Path::new("the running program")))?;
    let found = own.with_file_name(program.name);
    if found.is_file() {
        return Ok(found);
    }
    let message = format!(
        "it is not beside {}, and the sources are not there to build it: run the command from a clone of qnic, \
         or install the whole package",
        own.display()
    );
    Err(failed(&[*program], message))
}

/// A build whose messages can be read.
fn cargo_build(root: &Path) -> Command {
    let mut command = cargo(root);
    command.args(["build", "--message-format=json-render-diagnostics"]);
    command
        .env("CARGO_TERM_COLOR", "never")
        .env("CARGO_TERM_PROGRESS_WHEN", "never");
    command.env_remove("CARGO_TERM_QUIET");
    command
}

fn command(programs: &[Program<'_>], root: &Path) -> Command {
    let mut command = cargo_build(root);
    let profile = programs
        .first()
        .map_or("release", |program| program.profile);
    command.args(["--profile", profile]);
    if let [Program {
        package,
        option,
        name,
        with: Some(with),
        ..
    }] = programs
    {
        // The environment's flags hold for both packages.
        command.args(["--package", with, "--package", package, option, name]);
        return command;
    }
    command.args(["--target", TARGET]);
    command.env(FLAGS, STATIC);
    // Cargo builds shared crates with the features that the named packages ask for. The same
    // packages are always named, so no program is built again for another choice of programs.
    for program in [DEVICE, APP, EXEC] {
        command.args(["--package", program.package]);
    }
    for program in programs {
        command.args(["--package", program.package, program.option, program.name]);
        if let Some(feature) = program.feature {
            let feature = format!("{}/{feature}", program.package);
            command.args(["--no-default-features", "--features", &feature]);
        }
    }
    // These would replace the flags above.
    command
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

/// The word with which cargo says that it compiles a crate.
const COMPILING: &str = "Compiling";

/// Returns true if this is a line of cargo's about a step that went well.
fn is_step(line: &str) -> bool {
    let word = line.trim_start().split(' ').next();
    let steps = [
        COMPILING,
        "Finished",
        "Fresh",
        "Blocking",
        "Downloading",
        "Downloaded",
    ];
    word.is_some_and(|word| steps.contains(&word))
}

/// What cargo says on its standard error. Calls `compiles` when it begins to compile.
fn listen(said: impl Read, compiles: &dyn Fn()) -> Vec<u8> {
    let (mut all, mut began) = (Vec::new(), 0);
    let mut said = BufReader::new(said);
    let mut told = false;
    // What cannot be read is lost; the status of cargo is not.
    while said.read_until(b'\n', &mut all).is_ok_and(|read| read > 0) {
        let line = String::from_utf8_lossy(&all[began..]);
        if !told && line.trim_start().starts_with(COMPILING) {
            told = true;
            compiles();
        }
        began = all.len();
    }
    all
}

/// Runs a build to its end; its messages. `programs` are named if it fails.
fn run(
    command: Command,
    programs: &[Program<'_>],
    cancels: &[&Cancel],
    compiles: &(dyn Fn() + Sync),
) -> Result<Vec<u8>> {
    let output = output_of(command, programs, cancels, compiles)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = said.lines().filter(|line| !is_step(line));
    let lines: Vec<_> = lines.collect();
    let last = &lines[lines.len().saturating_sub(40)..];
    Err(failed(programs, last.join("\n")))
}

/// Runs `command` to its end. Ends it and its compilers when one of `cancels` is pulled, or when
/// this process ends.
fn output_of(
    mut command: Command,
    programs: &[Program<'_>],
    cancels: &[&Cancel],
    compiles: &(dyn Fn() + Sync),
) -> Result<Output> {
    let cannot = |error| format!("cargo cannot be started: {error}; install it with rustup");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // In a group of its own, so a terminal's Ctrl-C reaches this process alone, which ends it.
    let child = match cancels {
        [] => command.spawn(),
        _ => spawn_bound(command),
    };
    let mut child = child.map_err(|error| failed(programs, cannot(error)))?;
    let pid = child.id() as i32;
    let process = ProcessId::of(pid).and_then(ProcessId::open);
    let deadline = Deadline::new(None, cancels.iter().copied());
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            // A process that has ended needs no end.
            let Some(process) = process else { return };
            if process.wait(&deadline).is_err() {
                // Its number stays that of the group while any process of the group lives.
                let _ = Pid::from_raw(pid).map(|pid| kill_process_group(pid, Signal::TERM));
            }
        });
        let said = child.stderr.take();
        let said = said.map(|said| scope.spawn(|| listen(said, compiles)));
        let mut output = child.wait_with_output();
        if let (Ok(output), Some(said)) = (&mut output, said) {
            output.stderr = said.join().unwrap_or_default();
        }
        output
    });
    if cancels.iter().any(|cancel| cancel.is_cancelled()) {
        return Err(Error::Interrupted);
    }
    output.map_err(|error| failed(programs, cannot(error)))
}

/// The path that cargo reports for executable `name` in its messages.
fn executable_in(messages: &[u8], name: &str) -> Option<PathBuf> {
    let mut artifacts = artifacts_of(messages, name);
    artifacts.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// The path of the file `file` of library `name`, in the same way.
fn library_in(messages: &[u8], (name, file): (&str, &str)) -> Option<PathBuf> {
    let mut artifacts = artifacts_of(messages, name);
    artifacts.find_map(|message| {
        let mut files = message["filenames"].as_array()?.iter();
        let ours = |path: &serde_json::Value| {
            let path = Path::new(path.as_str()?);
            path.ends_with(file).then(|| path.to_owned())
        };
        files.find_map(ours)
    })
}

/// Cargo's messages that it has made target `name`.
fn artifacts_of<'a>(
    messages: &'a [u8],
    name: &'a str,
) -> impl Iterator<Item = serde_json::Value> + 'a {
    let messages = messages.split(|byte| *byte == b'\n');
    let messages = messages.filter_map(|line| serde_json::from_slice(line).ok());
    messages.filter(move |message: &serde_json::Value| {
        message["reason"] == "compiler-artifact" && message["target"]["name"] == name
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_among_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}"#,
            "\nnoise\n",
            r#"{"reason":"compiler-artifact","target":{"name":"x"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"x"},"executable":"/t/x"}"#,
        );
        assert_eq!(executable_in(messages.as_bytes(), "x"), Some("/t/x".into()));
        assert_eq!(executable_in(messages.as_bytes(), "y"), None);
    }

    #[test]
    fn a_library_is_found_among_all_files_of_its_package() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"x"},"filenames":["/t/deps/libx.rlib","/t/libx.so"]}"#,
            "\n",
        );
        let found = |name, file| library_in(messages.as_bytes(), (name, file));
        assert_eq!(found("x", "libx.so"), Some("/t/libx.so".into()));
        assert_eq!(found("x", "x.so"), None);
        assert_eq!(found("y", "libx.so"), None);
    }

    /// A program that runs for ever.
    fn endless() -> Command {
        let mut command = Command::new("tail");
        command.args(["-f", "/dev/null"]);
        command
    }

    #[test]
    fn a_build_ends_when_one_of_its_cancels_is_pulled() {
        let [never, soon] = [(), ()].map(|()| Cancel::new().unwrap());
        let error = std::thread::scope(|scope| {
            let build = scope.spawn(|| run(endless(), &[APP], &[&never, &soon], &|| {}));
            soon.cancel();
            build.join().unwrap().unwrap_err()
        });
        assert!(matches!(error, Error::Interrupted), "{error}");
    }

    /// A program that is there is not said to be built.
    #[test]
    fn a_build_is_told_when_something_is_compiled() {
        let fresh = "    Blocking waiting for file lock\n    Finished `release` profile\n";
        let stale = "   Compiling a v1\n   Compiling b v1\nerror: expected `;`\n   Finished\n";
        for (said, times) in [(fresh, 0), (stale, 1)] {
            let mut command = Command::new("sh");
            command.args([
                "-c",
                &format!("echo out; printf '{said}' | tr '`' \"'\" >&2"),
            ]);
            let told = std::sync::atomic::AtomicUsize::new(0);
            let count = || {
                told.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            };
            let output = output_of(command, &[APP], &[], &count).unwrap();
            assert_eq!(output.stdout, b"out\n");
            let caught = String::from_utf8(output.stderr).unwrap();
            assert_eq!(caught, said.replace('`', "'"));
            assert_eq!(told.into_inner(), times);
            let shown: Vec<_> = caught.lines().filter(|line| !is_step(line)).collect();
            assert!(shown.len() <= 1 && shown.iter().all(|it| it.starts_with("error")));
        }
    }

    #[test]
    fn all_programs_of_a_request_are_built_by_one_cargo() {
        let command = command(&[DEVICE, APP], Path::new("/"));
        let words: Vec<_> = command
            .get_args()
            .filter_map(|word| word.to_str())
            .collect();
        let expected = "--package qnic-device --bin qnic-device --package qnic-apps --bin qnic-app";
        assert!(words.join(" ").ends_with(expected), "{words:?}");
    }

    /// Otherwise tests in host mode and clusters would build each other's programs again.
    #[test]
    fn any_choice_of_programs_is_built_from_the_same_packages() {
        let packages = |programs: &[Program<'_>]| {
            let command = command(programs, Path::new("/"));
            let words: Vec<_> = command.get_args().map(|word| word.to_owned()).collect();
            let named = words.windows(2).filter(|pair| pair[0] == "--package");
            named
                .map(|pair| pair[1].clone())
                .collect::<std::collections::BTreeSet<_>>()
        };
        let all = packages(&[DEVICE, APP, EXEC, LOG_KEEPER]);
        for one in [DEVICE, APP, EXEC, LOG_KEEPER] {
            assert_eq!(packages(&[one]), all);
        }
    }

    #[test]
    fn the_repository_is_the_one_with_this_crate() {
        let root = repository().unwrap();
        assert!(root.join("qemu-config/src/programs.rs").is_file());
    }
}
