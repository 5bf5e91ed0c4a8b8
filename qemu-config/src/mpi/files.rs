//! What guests have for MPI: Open MPI and libfabric of the distribution, and the provider of this project.

use std::path::{Path, PathBuf};

use qnic_images::{GuestFile, Progress, Provisioner};

use crate::{programs, Cancel, ClusterSpec, Result};

/// Where libfabric of the distribution looks for providers.
const PROVIDER_PATH: &str = "/usr/lib/x86_64-linux-gnu/libfabric/libqnic-fi.so";

/// The provider: its package, and the name of its library.
pub const PROVIDER: (&str, &str) = ("qnic-fabric", "qnic_fi");

/// The files of guests with MPI, if the cluster has it.
pub(crate) fn files(
    spec: &ClusterSpec,
    provisioner: &Provisioner,
    progress: &dyn Progress,
    cancels: &[&Cancel],
) -> Result<Vec<GuestFile>> {
    if !spec.mpi {
        return Ok(Vec::new());
    }
    let provider = provider(progress, cancels)?;
    let mut files = provisioner.mpi_programs()?;
    files.push(file(PROVIDER_PATH, provider));
    Ok(files)
}

/// The library of the provider.
pub(crate) fn provider(progress: &dyn Progress, cancels: &[&Cancel]) -> Result<PathBuf> {
    let compiles = || progress.part("provider", "cargo builds it");
    let provider = programs::library(PROVIDER, cancels, &compiles)?;
    progress.part("provider", "there");
    Ok(provider)
}

fn file(guest_path: &str, host_path: PathBuf) -> GuestFile {
    GuestFile {
        guest_path: Path::new(guest_path).to_owned(),
        host_path,
        mode: 0o644,
        links: Vec::new(),
    }
}
