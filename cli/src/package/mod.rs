//! `qnic package`: writes what is installed on machines without a clone, and in guests.
//!
//! ```text
//!            ┌ programs, statically linked ┐
//!   clone ──▶│ modules, for their kernels  │──▶ host.rs ──▶ tree ─┬─▶ qnic-VERSION-x86_64.tar.gz
//!            │ sources, as for DKMS        │                      └─▶ qnic_VERSION_amd64.deb
//!            └ library, provider           ┘──▶ guest.rs ─▶ tree ───▶ qnic-guest_VERSION_amd64.deb
//! ```
//!
//! Invariant: what a tree has depends on the clone and the distribution's packages alone, and its times are those of the
//! last commit.

mod archive;
mod debian;
mod guest;
mod host;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{ensure, Context, Result};
use clap::{Args, Command};
use qnic_images::{Cache, Provisioner};

use crate::ui;

/// The version of the packages: that of the workspace.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Options of `qnic package`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic package packages
  sudo apt install ./packages/qnic_*.deb             the command, on Debian without Rust and gcc
  tar -xf packages/qnic-*.tar.gz -C ~/.local --strip-components=1     the same, without root
  sudo apt install ./packages/qnic-guest_*.deb       in a guest: module by DKMS, library, qnic-rmem

It takes gcc, make, strip and dpkg-deb besides what qnic takes. docs/install.md has more.

Exit status: 0 when they are written, 1 if they cannot be; nothing is left then.")]
pub(crate) struct Options {
    /// The directory to make
    dir: PathBuf,
}

/// Writes the packages of this clone; `command` is that of the tool, for its man pages.
pub(crate) fn run(options: &Options, command: Command) -> Result<ExitCode> {
    let dir = &options.dir;
    let clone = qnic_cluster::repository().context(
        "packages are made in a clone of qnic: run \"git clone\", and there \"cargo qnic package\"",
    )?;
    let taken = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    ensure!(
        !taken && !dir.is_file(),
        "{} is there already: name a directory that is not, or an empty one",
        dir.display()
    );
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let written =
        write(&clone, dir, command).inspect_err(|_| drop(std::fs::remove_dir_all(dir)))?;
    for file in written {
        println!("{}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes all packages into `dir`. Returns the files.
fn write(clone: &Path, dir: &Path, command: Command) -> Result<Vec<PathBuf>> {
    let progress = ui::progress();
    let stage = tempfile::tempdir_in(dir).context("make a directory")?;
    let epoch = archive::epoch(clone)?;
    let provisioner = Provisioner::new(Cache::of_user()?, progress.clone());
    let sources = stage.path().join("source");
    provisioner.dkms_package(clone, &sources)?;

    let name = format!("qnic-{VERSION}-x86_64");
    let tree = stage.path().join(&name);
    progress.step("building the programs of the package");
    host::fill(&tree, &sources, clone, command)?;
    progress.step("building modules for the package");
    let modules = provisioner.prebuild(&sources, &host::installed(&tree))?;
    progress.step("writing the packages");
    tree::normalize(&tree)?;
    let mut written = vec![archive::tar(&tree, dir, epoch)?];
    let root = stage.path().join("host");
    std::fs::create_dir(&root)?;
    std::fs::rename(&tree, root.join("usr"))?;
    written.push(debian::build(&root, &host::control(&modules), dir, epoch)?);

    progress.step("building the package of guests");
    let root = stage.path().join("guest");
    let control = guest::fill(&root, &sources, clone)?;
    progress.step("writing the package of guests");
    tree::normalize(&root)?;
    written.push(debian::build(&root, &control, dir, epoch)?);
    written.push(archive::sums(&written, dir)?);
    Ok(written)
}
