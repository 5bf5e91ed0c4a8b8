//! Programs of this project that a cluster needs, on the host and in guests.
//!
//! In a checkout, cargo is asked each time: what runs is what the sources say.
//! Elsewhere the program beside the running one is taken.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Error, Result};

/// The only platform of guests.
const GUEST_TARGET: &str = "x86_64-unknown-linux-gnu";

/// A program that cargo makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program<'a> {
    package: &'a str,
    /// Cargo's option for its kind.
    option: &'a str,
    name: &'a str,
}

/// The device process.
pub const DEVICE: Program<'static> = Program::bin("qnic-device", "qnic-device");
/// The program of demo, tests and benchmarks, which is in every guest with a NIC.
pub const APP: Program<'static> = Program::bin("qnic-apps", "qnic-app");
/// Where [`APP`] is in a guest.
pub const APP_PATH: &str = "/usr/bin/qnic-app";
/// The tool for remote memory, which is there as well.
pub(crate) const REMOTE_MEMORY: Program<'static> = Program::bin("qnic-apps", "qnic-rmem");
/// Where [`REMOTE_MEMORY`] is in a guest.
pub(crate) const REMOTE_MEMORY_PATH: &str = "/usr/bin/qnic-rmem";
/// What keeps the logs of a cluster small.
pub const LOG_KEEPER: Program<'static> = Program::bin("qnic-log-keeper", "qnic-log-keeper");
/// The helper that runs commands in guests.
pub(crate) const EXEC: Program<'static> = Program::bin("qnic-exec", "qnic-exec");

impl<'a> Program<'a> {
    /// Binary `name` of `package`.
    pub const fn bin(package: &'a str, name: &'a str) -> Self {
        let option = "--bin";
        Self {
            package,
            option,
            name,
        }
    }

    /// Example `name` of `package`.
    pub const fn example(package: &'a str, name: &'a str) -> Self {
        Self {
            option: "--example",
            ..Self::bin(package, name)
        }
    }
}

/// The checkout that this crate was built from, if it is still there.
pub fn repository() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    root.join("Cargo.lock").is_file().then(|| root.to_owned())
}

/// A program for the host, built with optimization.
///
/// # Errors
/// [`Error::Build`] with the end of what cargo said.
pub fn host_program(program: Program<'_>) -> Result<PathBuf> {
    match repository() {
        Some(root) => build(program, &root, false),
        None => beside_us(program.name),
    }
}

/// A program for guests: linked statically, so that it runs whatever C library the
/// guest has.
///
/// # Errors
/// [`Error::Build`] with the end of what cargo said.
pub fn guest_program(program: Program<'_>) -> Result<PathBuf> {
    match repository() {
        Some(root) => build(program, &root, true),
        None => beside_us(&format!("guest/{}", program.name)),
    }
}

fn beside_us(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe();
    let own = own.map_err(Error::io("find", Path::new("the running program")))?;
    let found = own.with_file_name(name);
    if found.is_file() {
        return Ok(found);
    }
    let message = format!(
        "it is not beside {}, and the sources are not there to build it",
        own.display()
    );
    Err(Error::Build {
        what: name.to_owned(),
        message,
    })
}

fn build(program: Program<'_>, root: &Path, for_guest: bool) -> Result<PathBuf> {
    let failed = |message: String| Error::Build {
        what: program.name.to_owned(),
        message,
    };
    let cannot = "cargo cannot be started";
    let output = command(program, root, for_guest).output();
    let output =
        output.map_err(|error| failed(format!("{cannot}: {error}; install it with rustup")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = said.lines().collect();
        let last = &lines[lines.len().saturating_sub(40)..];
        return Err(failed(last.join("\n")));
    }
    executable_in(&output.stdout, program.name)
        .ok_or_else(|| failed("cargo did not say where it put the program".to_owned()))
}

fn command(program: Program<'_>, root: &Path, for_guest: bool) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).stdin(Stdio::null());
    let options = "--quiet --release --message-format=json-render-diagnostics";
    command.arg("build").args(options.split(' '));
    command.args(["--package", program.package, program.option, program.name]);
    if for_guest {
        let flags = "-Ctarget-feature=+crt-static";
        command.args(["--target", GUEST_TARGET]);
        command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", flags);
        // A guest has its image in memory twice while it boots: a program of 20 MB is one of 5.
        command.env("CARGO_PROFILE_RELEASE_DEBUG", "false");
        command.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
        // These would replace the flags above.
        command
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
    }
    command
}

/// The path that cargo reports for executable `name` in its messages.
fn executable_in(messages: &[u8], name: &str) -> Option<PathBuf> {
    messages.split(|byte| *byte == b'\n').find_map(|line| {
        let message: serde_json::Value = serde_json::from_slice(line).ok()?;
        let ours = message["reason"] == "compiler-artifact" && message["target"]["name"] == name;
        ours.then(|| message["executable"].as_str().map(PathBuf::from))?
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
    fn the_repository_is_the_one_with_this_crate() {
        let root = repository().unwrap();
        assert!(root.join("qemu-config/src/programs.rs").is_file());
    }
}
