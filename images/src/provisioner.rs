//! The one entrance: asks for an artefact, gets it from the cache or makes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::guest::{self, GuestFile, GuestImage};
use crate::kernel::{self, Kernel};
use crate::kernel_series::KernelSeries;
use crate::module;
use crate::program::Program;
use crate::progress::Progress;
use crate::qemu::{self, HostQemu, Qemu};
use crate::{iperf3, tshark};

/// Makes artefacts, or finds them in the cache.
///
/// Every method may be called from several threads and processes at once: one
/// makes the artefact, the others wait for it.
pub struct Provisioner {
    cache: Cache,
    progress: Arc<dyn Progress>,
}

impl Provisioner {
    /// A provisioner that keeps its artefacts in `cache` and reports to `progress`.
    pub fn new(cache: Cache, progress: Arc<dyn Progress>) -> Self {
        Self { cache, progress }
    }

    /// The cache in use.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// A QEMU of version 11 or newer with the generic vhost-user device: the
    /// host's own if it is good enough, else the distribution's.
    ///
    /// # Errors
    /// Whatever keeps a mirror's packages from being chosen, fetched or unpacked.
    pub fn qemu(&self) -> Result<Qemu> {
        host_architecture()?;
        match qemu::host_qemu() {
            HostQemu::Good(qemu) => Ok(qemu),
            _ => qemu::provision(&self.cache, self.progress.as_ref()),
        }
    }

    /// A tshark that runs scripts in Lua: the host's own, else the distribution's.
    ///
    /// # Errors
    /// Whatever keeps a mirror's packages from being chosen, fetched or unpacked.
    pub fn tshark(&self) -> Result<Program> {
        host_architecture()?;
        match tshark::host_tshark() {
            Some(tshark) => Ok(tshark),
            None => tshark::provision(&self.cache, self.progress.as_ref()),
        }
    }

    /// An iperf3: the host's own, else the distribution's.
    ///
    /// # Errors
    /// As [`Provisioner::tshark`].
    pub fn iperf3(&self) -> Result<Program> {
        host_architecture()?;
        match iperf3::host_iperf3() {
            Some(iperf3) => Ok(iperf3),
            None => iperf3::provision(&self.cache, self.progress.as_ref()),
        }
    }

    /// The newest stock kernel of `series`.
    ///
    /// # Errors
    /// Whatever keeps a mirror's packages from being chosen, fetched or unpacked.
    pub fn kernel(&self, series: KernelSeries) -> Result<Kernel> {
        self.with_kernels(|progress| {
            let (kernel, _) = kernel::provision(&self.cache, progress, series)?;
            Ok(kernel)
        })
    }

    /// `qnic.ko`, built from the sources in `repo` for the kernel of `series`.
    ///
    /// # Errors
    /// [`Error::MissingSource`], [`Error::NamespaceRefused`], [`Error::Command`] with
    /// what the compilers said, and those of [`Self::kernel`].
    pub fn module(&self, series: KernelSeries, repo: &Path) -> Result<PathBuf> {
        self.with_kernels(|progress| module::provision(&self.cache, progress, series, repo))
    }

    /// A guest image for the kernel of `series`, with `module` (loaded at boot)
    /// and the files of `extra` in it.
    ///
    /// Ask for the module first: should the mirror have dropped the kernel that was
    /// chosen before, both are then for the same new one.
    ///
    /// # Errors
    /// [`Error::BadGuestFile`], and those of [`Self::kernel`].
    pub fn guest_image(
        &self,
        series: KernelSeries,
        module: Option<&Path>,
        extra: &[GuestFile],
    ) -> Result<GuestImage> {
        self.with_kernels(|progress| guest::provision(&self.cache, progress, series, module, extra))
    }

    /// Does `work`; if the mirror no longer has a kernel that was chosen earlier,
    /// once more with the newest ones.
    fn with_kernels<T>(&self, work: impl Fn(&dyn Progress) -> Result<T>) -> Result<T> {
        host_architecture()?;
        let progress = self.progress.as_ref();
        match work(progress) {
            Err(Error::IncompleteMirror { .. }) if kernel::forget_releases(&self.cache)? => {
                progress.step("the mirror has newer kernels");
                work(progress)
            }
            other => other,
        }
    }
}

/// The architecture of this machine, if it is the one that guests have.
pub(crate) fn host_architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("x86_64"),
        host => Err(Error::WrongArchitecture { host }),
    }
}
