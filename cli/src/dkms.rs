//! `qnic dkms`: writes the kernel module as a source package for DKMS.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use qnic_images::{Cache, Provisioner};

use crate::ui;

/// Options of `qnic dkms`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic dkms qnic-dkms              then in the guest, as root, where the directory is:
  dkms install ./qnic-dkms               builds qnic.ko for the running kernel
  modprobe qnic

The guest needs dkms, gcc, make, the headers of its kernel (6.12 or later), and cargo, rustc and
rust-src, 1.85 or later; with Debian stable's it needs no network. docs/disk-images.md has more.

Exit status: 0 when it is written, 1 if it cannot be; nothing is left then.")]
pub(crate) struct Options {
    /// The directory to make
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let sources = qnic_cluster::module_sources()?;
    let provisioner = Provisioner::new(Cache::of_user()?, ui::progress());
    provisioner.dkms_package(&sources, &options.dir)?;
    println!("the sources of qnic.ko are in {}", options.dir.display());
    Ok(ExitCode::SUCCESS)
}
