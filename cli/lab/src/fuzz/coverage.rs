//! `qnic fuzz --coverage`: which share of the lines of each crate the kept inputs reach (X8).
//!
//! ```text
//!   corpora, regressions ──► replay TARGET ──► TARGET.profraw ──► llvm-profdata ──┐
//!   (instrumented by rustc)                                                       ▼
//!   table per crate ◄── report ◄── llvm-cov export, once for each target, and for all
//! ```
//!
//! One program has all targets, so all shares are of the same lines: those of the crates that it
//! links. A device process that a target starts is threads of the replay, and is counted with it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{ensure, Context, Result};
use qnic_fuzz::{Target, TARGETS};

use self::report::{Crates, Report};
use self::tools::Tools;
use super::{cargo, host, rustc};
use qnic_cli::ui;

mod report;
mod tools;

/// What makes rustc count; with one unit for each crate, nothing of a crate that is linked is
/// left out.
const FLAGS: &str = "-Cinstrument-coverage -Ccodegen-units=1";

/// Replays what is kept for `only`, or for all targets, and prints the table; writes it to `json`,
/// too.
pub(super) fn run(root: &Path, only: Option<&Target>, json: Option<&Path>) -> Result<ExitCode> {
    let folder = root.join("target/fuzz-coverage");
    std::fs::create_dir_all(&folder)?;
    let tools = match Tools::find(&folder)? {
        Ok(tools) => tools,
        Err(missing) => {
            eprintln!("qnic: {missing}");
            return Ok(ExitCode::from(ui::WRONG_INPUT));
        }
    };
    let crates = Crates::of(&metadata(root)?)?;
    let program = build(root, &folder)?;
    let mut profiles = Vec::new();
    let mut report = Report::default();
    let mut failed = false;
    for target in TARGETS
        .iter()
        .filter(|one| only.is_none_or(|it| it.name == one.name))
    {
        let profile = folder.join(target.name).with_extension("profraw");
        failed |= !replay(root, &program, target, &profile)?;
        let merged = tools.merge(&[&profile], &folder.join(target.name))?;
        report.add(target.name, crates.sum(&tools.export(&program, &merged)?)?);
        profiles.push(profile);
    }
    let profiles: Vec<&Path> = profiles.iter().map(PathBuf::as_path).collect();
    let merged = tools.merge(&profiles, &folder.join("all"))?;
    report.all(crates.sum(&tools.export(&program, &merged)?)?);
    print!("\n{}", report.table());
    if let Some(file) = json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(match failed {
        false => ExitCode::SUCCESS,
        true => ExitCode::FAILURE,
    })
}

/// Builds the program that replays; returns its path.
fn build(root: &Path, folder: &Path) -> Result<PathBuf> {
    let host = host()?;
    // With a target named, the flags are not those of build scripts and macros.
    let status = Command::new(cargo())
        .args(["build", "--target", &host, "--package", "qnic-fuzz"])
        .args(["--bin", "replay", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(folder)
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_PROFILE_DEV_DEBUG", "none")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stdin(Stdio::null())
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "the replay cannot be built, see above");
    Ok(folder.join(host).join("debug/replay"))
}

/// Runs what is kept for `target`; returns true if all passed.
fn replay(root: &Path, program: &Path, target: &Target, profile: &Path) -> Result<bool> {
    let fuzzed = root.join("target/fuzz/corpus").join(target.name);
    let output = Command::new(program)
        .arg(target.name)
        .args([target.corpus(), target.regressions(), fuzzed])
        .env("LLVM_PROFILE_FILE", profile)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("start {}", program.display()))?;
    let name = target.name;
    let code = output.status.code();
    ensure!(
        matches!(code, Some(0 | 1)),
        "the replay of {name} ended with {}",
        output.status
    );
    let inputs = String::from_utf8_lossy(&output.stdout);
    println!("{name}: {} inputs", inputs.trim());
    Ok(code == Some(0))
}

/// What cargo says of the workspace.
fn metadata(root: &Path) -> Result<String> {
    let mut command = Command::new(cargo());
    command
        .args(["metadata", "--no-deps", "--format-version=1"])
        .arg("--manifest-path")
        .arg(root.join("Cargo.toml"));
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.context("start cargo")?;
    ensure!(output.status.success(), "cargo does not know the workspace");
    String::from_utf8(output.stdout).context("cargo metadata is not text")
}

/// The first line that `command` prints, on whichever output.
fn first_line(command: impl AsRef<OsStr>, arguments: &[&str]) -> Option<String> {
    let output = Command::new(command).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_owned())
}
