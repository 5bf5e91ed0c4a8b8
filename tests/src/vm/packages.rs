//! The library as programs outside of the repository have it: one in Rust depends on what `cargo
//! package` makes, one in C on what `make install` does, and on nothing else of this project.
//!
//! ```text
//!   cargo package ─► *.crate ─► unpacked ─► a program with a manifest of its own ─► two guests
//!   cargo build ─► libqnic_capi.a ─► make install ─► cc -static hello.c ──────────► two guests
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use qnic_trials::Verdict;
use serde_json::Value;

use super::trials::{run, spec, trial};
use crate::harness::{cases, testing_cargo, Case, Skip, FEATURES};

pub(crate) const CASES: &[Case] = cases! { "vm":
    a_program_of_packages_runs_in_guests => a_program_of_packages(),
    c_programs_run_in_guests => c_programs(),
};

/// The library and what it needs, in an order in which they can be published.
const PACKAGES: [&str; 7] = [
    "qnic-limits",
    "qnic-abi",
    "qnic-shared",
    "qnic-driver",
    "qnic-host",
    "qnic-vfio",
    "qnic",
];

/// What host mode needs, and no program of a guest.
const OF_HOST_MODE: [&str; 4] = ["qnic-host ", "qnic-driver ", "vhost ", "vfio-ioctls "];

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The packages are complete: a program of them is built, links nothing of host mode, and runs in
/// guests.
fn a_program_of_packages() -> Result<()> {
    let checkout = qnic_cluster::repository().context("the checkout is gone")?;
    let target = checkout.join("target/packaged");
    let scratch = tempfile::tempdir().context("make a directory")?;
    let dir = scratch.path();

    let mut package = qnic_cluster::cargo(&checkout);
    package.args([
        "package",
        "--quiet",
        "--offline",
        "--no-verify",
        "--allow-dirty",
    ]);
    package.arg("--target-dir").arg(&target);
    package.args(PACKAGES.iter().flat_map(|name| ["--package", name]));
    said(package)?;

    let manifest = unpacked(&checkout, &target, dir)?;
    manifest("")?;
    let all = tree(dir)?;
    let lacks = OF_HOST_MODE.iter().find(|name| !all.contains(**name));
    ensure!(lacks.is_none(), "by default there is no {lacks:?} in {all}");
    manifest(", default-features = false")?;
    let few = tree(dir)?;
    let has = OF_HOST_MODE.iter().find(|name| few.contains(**name));
    ensure!(has.is_none(), "without features there is {has:?} in {few}");

    let mut build = qnic_cluster::cargo(dir);
    build.args([
        "build",
        "--quiet",
        "--offline",
        "--target",
        TARGET,
        "--target-dir",
    ]);
    build.arg(&target).env(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
        "-Ctarget-feature=+crt-static",
    );
    said(build)?;
    let program = target.join(TARGET).join("debug/packaged");
    let program = program
        .to_str()
        .context("the checkout's path is not UTF-8")?;
    let outcome = run(&trial(spec(2), &[program])?)?;
    ensure!(outcome.verdict == Verdict::Passed, "{outcome:?}");
    Ok(())
}

/// A program in C runs in guests: it links the installed library, and nothing of the guests (X10).
fn c_programs() -> Result<()> {
    for tool in ["cc", "make"] {
        let found = Command::new(tool).arg("--version").output();
        found.context(Skip("no C compiler, or no make"))?;
    }
    let checkout = qnic_cluster::repository().context("the checkout is gone")?;
    let scratch = tempfile::tempdir().context("make a directory")?;
    let prefix = scratch.path();
    let sources = checkout.join("guest-lib/capi");
    let mut install = Command::new("make");
    install.args(["--quiet", "install"]).current_dir(&sources);
    install.arg(format!("PREFIX={}", prefix.display()));
    let library = static_library(&checkout)?;
    install.arg(format!("STATICLIB={}", library.display()));
    said(install)?;
    let program = prefix.join("hello");
    let mut compile = Command::new("cc");
    compile.args(["-static", "-s", "-o"]).arg(&program);
    compile.arg(sources.join("examples/hello.c"));
    compile.arg("-I").arg(prefix.join("include"));
    compile.arg(prefix.join("lib/libqnic.a")).arg("-lm");
    said(compile)?;
    let program = program.to_str().context("the path is not UTF-8")?;
    let outcome = run(&trial(spec(2), &[program])?)?;
    ensure!(outcome.verdict == Verdict::Passed, "{outcome:?}");
    Ok(())
}

/// The C library that stands beside the programs of its tests, built as "build of the tests" does: nothing is built
/// twice.
fn static_library(checkout: &Path) -> Result<PathBuf> {
    let (mut build, _) = testing_cargo(checkout);
    build.args(["test", "--quiet", "--no-run", "--offline"]);
    build.args(["--test", "interface", "--message-format=json"]);
    build.args(FEATURES.split(' '));
    let messages = said(build)?;
    let mut programs = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    let program = programs.next_back().context("cargo names no program")?;
    Ok(program.with_file_name("libqnic_capi.a"))
}

/// Unpacks the packages into `dir`, beside the sources of the program; what writes its manifest,
/// with some words on the features that it takes of the library.
fn unpacked<'a>(
    checkout: &Path,
    target: &Path,
    dir: &'a Path,
) -> Result<impl Fn(&str) -> std::io::Result<()> + 'a> {
    let version = env!("CARGO_PKG_VERSION");
    let mut patches = String::new();
    for name in PACKAGES {
        let mut unpack = Command::new("tar");
        let file = target.join(format!("package/{name}-{version}.crate"));
        // All files of a package have the same old time, by which cargo would take what was built
        // of an earlier one for its own: `m` gives them the time of now.
        unpack.arg("-xzmf").arg(file).arg("-C").arg(dir);
        said(unpack)?;
        patches += &format!("{name} = {{ path = \"{name}-{version}\" }}\n");
    }
    fs::create_dir(dir.join("src"))?;
    fs::copy(
        checkout.join("tests/packaged/main.rs"),
        dir.join("src/main.rs"),
    )?;
    fs::copy(checkout.join("Cargo.lock"), dir.join("Cargo.lock"))?;
    Ok(move |features: &str| {
        let text = format!(
            "[package]\nname = \"packaged\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
             [workspace]\n[dependencies]\nqnic = {{ version = \"{version}\"{features} }}\n\
             [patch.crates-io]\n{patches}"
        );
        fs::write(dir.join("Cargo.toml"), text)
    })
}

/// The packages that a program in `dir` links.
fn tree(dir: &Path) -> Result<String> {
    let mut tree = qnic_cluster::cargo(dir);
    tree.args([
        "tree",
        "--quiet",
        "--offline",
        "--edges",
        "normal",
        "--prefix",
        "none",
    ]);
    said(tree)
}

/// Runs a command; returns what it has printed.
fn said(mut command: Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let output = output.with_context(|| format!("start {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
