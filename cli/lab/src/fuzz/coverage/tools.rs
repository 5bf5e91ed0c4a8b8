//! llvm-profdata and llvm-cov: a pair that reads what this rustc writes.
//!
//! The format of profiles changes with LLVM, and that of a distribution is often older than
//! rustc's. So a program of one line is compiled, run, and given to each pair there is.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};

use super::{first_line, host, rustc};

const PROFDATA: &str = "llvm-profdata";
const COV: &str = "llvm-cov";

/// Both tools, of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tools {
    profdata: PathBuf,
    cov: PathBuf,
}

impl Tools {
    /// The first pair that reads the profiles of this rustc: that of the toolchain, or the newest
    /// in `PATH`. Otherwise what is missing, and how to get it. `folder` is for the probe.
    ///
    /// # Errors
    /// Returns an error if this rustc cannot write profiles.
    pub(super) fn find(folder: &Path) -> Result<Result<Self, String>> {
        let probe = Probe::make(folder)?;
        let mut found: Vec<Self> = toolchain().into_iter().collect();
        let path = std::env::var_os("PATH").unwrap_or_default();
        found.extend(installed(&std::env::split_paths(&path).collect::<Vec<_>>()));
        let mut tried = String::new();
        for tools in found {
            match probe.is_read_by(&tools) {
                Ok(()) => return Ok(Ok(tools)),
                Err(error) => {
                    let _ = write!(tried, "\n  {}: {error:#}", tools.profdata.display());
                }
            }
        }
        Ok(Err(missing(&tried)))
    }

    /// Merges `profiles` into one file, `name` with an ending.
    pub(super) fn merge(&self, profiles: &[&Path], name: &Path) -> Result<PathBuf> {
        let merged = name.with_extension("profdata");
        let mut command = Command::new(&self.profdata);
        command.args(["merge", "-sparse", "-o"]).arg(&merged);
        output(command.args(profiles))?;
        Ok(merged)
    }

    /// The share of each file of `program` that `profile` says was reached, as JSON.
    pub(super) fn export(&self, program: &Path, profile: &Path) -> Result<String> {
        let mut command = Command::new(&self.cov);
        command.args(["export", "-summary-only", "-instr-profile"]);
        let json = output(command.arg(profile).arg(program))?;
        String::from_utf8(json).context("llvm-cov does not write text")
    }
}

/// A program of one line that has run, and its profile.
struct Probe {
    program: PathBuf,
    profile: PathBuf,
}

impl Probe {
    fn make(folder: &Path) -> Result<Self> {
        let folder = folder.join("probe");
        std::fs::create_dir_all(&folder)?;
        let source = folder.join("probe.rs");
        std::fs::write(&source, "fn main() {}\n")?;
        let probe = Self {
            program: folder.join("probe"),
            profile: folder.join("probe.profraw"),
        };
        let mut compile = Command::new(rustc());
        compile.args(["-Cinstrument-coverage", "-o"]);
        output(compile.arg(&probe.program).arg(source)).context("this rustc cannot count")?;
        let mut run = Command::new(&probe.program);
        output(run.env("LLVM_PROFILE_FILE", &probe.profile))?;
        Ok(probe)
    }

    fn is_read_by(&self, tools: &Tools) -> Result<()> {
        let merged = tools.merge(&[&self.profile], &self.profile)?;
        let export = tools.export(&self.program, &merged)?;
        ensure!(export.contains("probe.rs"), "it finds nothing in a profile");
        Ok(())
    }
}

/// What `command` prints. Fails with what it complains of.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let program = PathBuf::from(command.get_program());
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("start {}", program.display()))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{}", complaint.lines().next().unwrap_or("it fails").trim());
    }
    Ok(output.stdout)
}

/// The pair that `rustup component add llvm-tools` puts beside rustc.
fn toolchain() -> Option<Tools> {
    let root = first_line(rustc(), &["--print", "sysroot"])?;
    let folder = Path::new(&root)
        .join("lib/rustlib")
        .join(host().ok()?)
        .join("bin");
    pair(&folder, "")
}

/// The pairs in `folders`: those with the highest version in their names first, those without one
/// last.
fn installed(folders: &[PathBuf]) -> Vec<Tools> {
    let mut found = Vec::new();
    for folder in folders {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(suffix) = name.to_str().and_then(|name| name.strip_prefix(PROFDATA)) else {
                continue;
            };
            let version = suffix
                .strip_prefix('-')
                .and_then(|it| it.parse::<u32>().ok());
            if version.is_some() || suffix.is_empty() {
                found.extend(pair(folder, suffix).map(|tools| (version, tools)));
            }
        }
    }
    found.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    found.into_iter().map(|(_, tools)| tools).collect()
}

fn pair(folder: &Path, suffix: &str) -> Option<Tools> {
    let tool = |name| Some(folder.join(format!("{name}{suffix}"))).filter(|path| path.is_file());
    Some(Tools {
        profdata: tool(PROFDATA)?,
        cov: tool(COV)?,
    })
}

/// What to say if no pair reads the profiles.
fn missing(tried: &str) -> String {
    let version = |prefix: &str| {
        let output = Command::new(rustc()).arg("-vV").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix(prefix));
        line.map(str::to_owned)
    };
    let rust = version("release: ").unwrap_or_default();
    let llvm = version("LLVM version: ").unwrap_or_default();
    let tried = match tried {
        "" => "\n  there is none",
        tried => tried,
    };
    format!(
        "no {PROFDATA} and {COV} read the profiles of rustc {rust} (LLVM {llvm}):{tried}\n\
         install them with \"rustup component add llvm-tools\", or from the distribution, \
         such as \"apt-get install llvm-19\" or newer; with or without a version in their \
         names, they are looked for in PATH"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn the_newest_pair_comes_first_and_half_a_pair_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path();
        let names = ["", "-9", "-14", "-19"].iter();
        for name in names.flat_map(|it| [format!("{PROFDATA}{it}"), format!("{COV}{it}")]) {
            std::fs::write(bin.join(name), "").unwrap();
        }
        for half in ["llvm-profdata-22", "llvm-profdata-x", "llvm-cov-x"] {
            std::fs::write(bin.join(half), "").unwrap();
        }
        let folders = [bin.join("absent"), bin.to_owned()];
        let found = installed(&folders);
        let names = found.iter().map(|tools| tools.cov.file_name().unwrap());
        let expected = ["llvm-cov-19", "llvm-cov-14", "llvm-cov-9", "llvm-cov"];
        assert!(names.eq(expected.map(OsStr::new)), "{found:?}");
    }

    /// What does not understand a profile is not taken, and its complaint is passed on.
    #[test]
    fn a_pair_that_reads_no_profile_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let probe = Probe {
            program: folder.path().join("probe"),
            profile: folder.path().join("probe.profraw"),
        };
        for (script, complaint) in [
            (
                "echo 'unsupported version' >&2; exit 1",
                "unsupported version",
            ),
            ("echo '{}'", "it finds nothing in a profile"),
        ] {
            for name in [PROFDATA, COV] {
                let tool = folder.path().join(name);
                std::fs::write(&tool, format!("#!/bin/sh\n{script}\n")).unwrap();
                std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
            }
            let tools = pair(folder.path(), "").unwrap();
            let error = probe.is_read_by(&tools).unwrap_err();
            assert_eq!(format!("{error}"), complaint);
        }
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_install() {
        let text = missing("\n  /usr/bin/llvm-profdata-14: unsupported");
        for part in [
            "rustup component add llvm-tools",
            "apt-get install llvm-",
            "-14: unsup",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(missing("").contains("there is none"));
    }
}
