//! The one entrance: asks for an artefact, gets it from the cache or makes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cache::Cache;
use crate::context::Context;
use crate::disk_image;
use crate::dkms;
use crate::error::{Error, Result};
use crate::guest::{self, GuestFile, GuestImage, Programs};
use crate::installed::Installed;
use crate::kernel;
use crate::kernel_series::KernelSeries;
use crate::library::Library;
use crate::mirror::find_mirror;
use crate::module;
use crate::mpi::{self, HostMpi};
use crate::prebuilt::Prebuilt;
use crate::program::{Program, Tool};
use crate::progress::Progress;
use crate::slurm::Slurm;
use crate::system_root;
use crate::tools::{
    FI_PINGPONG, IPERF3, QEMU, SSH_KEYGEN, TSHARK, UCX_PERFTEST, VIRTIOFSD, XORRISO,
};
use crate::verbs_tests;

/// Makes artefacts, or finds them in the cache.
///
/// Every method may be called from several threads and processes at once: one
/// makes the artefact, the others wait for it. Each returns an error for whatever keeps
/// a mirror's packages from being chosen, fetched or unpacked, and those that it names.
pub struct Provisioner {
    cache: Cache,
    progress: Arc<dyn Progress>,
    /// Those of an installed qnic.
    prebuilt: Option<Prebuilt>,
}

impl Provisioner {
    /// A provisioner that keeps its artefacts in `cache` and reports to `progress`.
    pub fn new(cache: Cache, progress: Arc<dyn Progress>) -> Self {
        let installed = Installed::of_this_program();
        Self {
            cache,
            progress,
            prebuilt: installed.map(|installed| Prebuilt::at(installed.modules())),
        }
    }

    /// A QEMU of version 11 or newer with the generic vhost-user device: the
    /// host's own if it is good enough, else the distribution's.
    ///
    /// `-name NAME,process=TITLE` among the caller's arguments gives the process a
    /// telling name; without it, a provisioned QEMU shows up as its dynamic loader.
    pub fn qemu(&self) -> Result<Program> {
        self.tool(&QEMU)
    }

    /// A virtiofsd, which serves a directory to a guest: the host's own, else the distribution's.
    pub fn virtiofsd(&self) -> Result<Program> {
        self.tool(&VIRTIOFSD)
    }

    /// An xorriso, which makes ISO 9660 images: the host's own, else the distribution's.
    pub fn xorriso(&self) -> Result<Program> {
        self.tool(&XORRISO)
    }

    /// An ssh-keygen: the host's own, else the distribution's.
    pub fn ssh_keygen(&self) -> Result<Program> {
        self.tool(&SSH_KEYGEN)
    }

    /// A tshark that runs scripts in Lua: the host's own, else the distribution's.
    pub fn tshark(&self) -> Result<Program> {
        self.tool(&TSHARK)
    }

    /// An iperf3: the host's own, else the distribution's.
    pub fn iperf3(&self) -> Result<Program> {
        self.tool(&IPERF3)
    }

    /// libfabric's `fi_pingpong`: the host's own, else the distribution's.
    pub fn fi_pingpong(&self) -> Result<Program> {
        self.tool(&FI_PINGPONG)
    }

    /// UCX's `ucx_perftest`: the host's own, else the distribution's.
    pub fn ucx_perftest(&self) -> Result<Program> {
        self.tool(&UCX_PERFTEST)
    }

    /// The distribution's libfabric with its headers, which programs in C are compiled against.
    pub fn libfabric(&self) -> Result<Library> {
        host_architecture()?;
        Library::libfabric(self.context())
    }

    /// The distribution's libibverbs and librdmacm with their headers, which programs are compiled against.
    pub fn libibverbs(&self) -> Result<Library> {
        host_architecture()?;
        Library::libibverbs(self.context())
    }

    fn tool(&self, tool: &Tool) -> Result<Program> {
        host_architecture()?;
        tool.provision(self.context())
    }

    fn context(&self) -> Context<'_> {
        Context {
            cache: &self.cache,
            progress: self.progress.as_ref(),
            prebuilt: self.prebuilt.as_ref(),
        }
    }

    /// `qnic.ko`, built from the sources in `repo` for the kernel of `series`: by now, or before this qnic was
    /// installed.
    ///
    /// # Errors
    /// [`Error::MissingSource`], [`Error::NamespaceRefused`], and [`Error::Command`] with
    /// what the compilers said.
    pub fn module(&self, series: KernelSeries, repo: &Path) -> Result<PathBuf> {
        self.with_kernels(|cx| module::provision(cx, series, repo))
    }

    /// The example of a module that uses the datagrams of `module`, which
    /// [`Provisioner::module`] has returned: `qnic_ping.ko`.
    pub fn example(&self, module: &Path) -> PathBuf {
        module::example(module)
    }

    /// Writes the sources of `qnic.ko` in `repo` to the directory `dir`, as a package for DKMS with all that
    /// building it takes besides compilers and headers. Makes `dir`, or takes an empty one.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::MissingSource`].
    pub fn dkms_package(&self, repo: &Path, dir: &Path) -> Result<()> {
        self.with_kernels(|cx| dkms::write(cx, repo, dir))
    }

    /// A root directory in which the distribution's essential packages are installed, with apt and its keys, and neither
    /// compilers nor Rust: to install packages in.
    pub fn clean_root(&self) -> Result<PathBuf> {
        self.with_kernels(system_root::clean)
    }

    /// The mirror that packages are taken from.
    ///
    /// # Errors
    /// [`Error::NoMirror`], [`Error::MissingProgram`].
    pub fn mirror(&self) -> Result<String> {
        find_mirror()
    }

    /// A disk image of the distribution's packages: the kernel of [`KernelSeries::Stable`], GRUB, systemd,
    /// cloud-init, an SSH server. It is raw, and has MBR and console for a machine with a BIOS and a serial port.
    pub fn disk_image(&self) -> Result<PathBuf> {
        self.with_kernels(disk_image::provision)
    }

    /// `qnic.ko` as DKMS builds it for [`Provisioner::disk_image`] from `package`, which
    /// [`Provisioner::dkms_package`] has written; compressed, perhaps.
    ///
    /// # Errors
    /// As [`Provisioner::module`].
    pub fn dkms_module(&self, package: &Path) -> Result<PathBuf> {
        self.with_kernels(|cx| disk_image::module(cx, package))
    }

    /// Runs `script` in the root of [`Provisioner::disk_image`] with compilers, headers and DKMS beneath it. It sees the
    /// directory `dir` as `/mnt`; what it writes elsewhere is gone when it ends, and lines that it prints are steps.
    ///
    /// # Errors
    /// [`Error::NamespaceRefused`], and [`Error::Command`] with the end of what it has said, if it fails.
    pub fn in_a_system_with_compilers(&self, dir: &Path, script: &str) -> Result<()> {
        self.with_kernels(|cx| disk_image::run(cx, dir, script))
    }

    /// A guest image for the kernel of `series`, with `module` (loaded at boot)
    /// and the files of `extra` in it.
    ///
    /// Ask for the module first: should the mirror have dropped the kernel that was
    /// chosen before, both are then for the same new one.
    ///
    /// # Errors
    /// [`Error::BadGuestFile`].
    pub fn guest_image(
        &self,
        series: KernelSeries,
        module: Option<&Path>,
        extra: &[GuestFile],
    ) -> Result<GuestImage> {
        self.with_kernels(|cx| guest::provision(cx, series, module, extra))
    }

    /// The distribution's `mke2fs` and `e2fsck`, with their libraries, for the `extra` of an image.
    pub fn ext4_programs(&self) -> Result<Vec<GuestFile>> {
        self.programs(&guest::EXT4)
    }

    /// The distribution's `fio`, in the same way.
    pub fn fio(&self) -> Result<Vec<GuestFile>> {
        self.programs(&guest::FIO)
    }

    /// The distribution's Open MPI and libfabric, in the same way, with a server and a client of SSH that start
    /// processes on other guests, and NetPIPE.
    pub fn mpi_programs(&self) -> Result<Vec<GuestFile>> {
        self.programs(&guest::MPI)
    }

    /// The distribution's programs of libibverbs, in the same way, with perftest and `rdma`. A guest that has them
    /// loads the device of libibverbs when it boots.
    pub fn verbs_programs(&self) -> Result<Vec<GuestFile>> {
        self.programs(&guest::VERBS)
    }

    /// The distribution's programs of UCX, in the same way, with its transports over libibverbs, and the library of
    /// OpenSHMEM: for guests that have both [`Provisioner::mpi_programs`] and [`Provisioner::verbs_programs`].
    pub fn ucx_programs(&self) -> Result<Vec<GuestFile>> {
        self.programs(&guest::UCX)
    }

    /// A directory with the tests that come with libibverbs, and a Python that runs them: `tests/run_tests.py`. A
    /// guest sees it as a directory of the host, and starts the directory's own loader.
    pub fn verbs_tests(&self) -> Result<PathBuf> {
        host_architecture()?;
        verbs_tests::provision(self.context())
    }

    /// Test programs that run on the distribution's Open MPI, for guests that have the files of
    /// [`Provisioner::mpi_programs`]: the HPC Challenge (`hpcc`), and ScaLAPACK's.
    pub fn mpi_tests(&self) -> Result<Vec<GuestFile>> {
        let there = self.mpi_programs()?;
        let mut files = self.programs(&guest::MPI_TESTS)?;
        files.retain(|file| there.iter().all(|it| it.guest_path != file.guest_path));
        Ok(files)
    }

    /// Compiles `source`, one file of C, to `program` with this machine's `cc`, for the same Open MPI: it runs in
    /// guests that have the files of [`Provisioner::mpi_programs`].
    ///
    /// # Errors
    /// [`Error::Command`] with what the compiler said.
    pub fn compile_mpi(&self, source: &Path, program: &Path) -> Result<()> {
        host_architecture()?;
        mpi::compile(self.context(), source, program)
    }

    /// The distribution's Slurm, whose daemons and commands run on this machine.
    pub fn slurm(&self) -> Result<Slurm> {
        host_architecture()?;
        Slurm::provision(self.context())
    }

    /// The same Open MPI, to run such programs on this machine.
    pub fn host_mpi(&self) -> Result<HostMpi> {
        host_architecture()?;
        HostMpi::provision(self.context())
    }

    fn programs(&self, programs: &Programs) -> Result<Vec<GuestFile>> {
        host_architecture()?;
        programs.files(self.context())
    }

    /// The distribution's programs that measure RDMA (over Soft-RoCE) and sockets, with their
    /// libraries, for the `extra` of an image: perftest's, qperf, iperf3, and `rdma`.
    pub fn network_programs(&self) -> Result<Vec<GuestFile>> {
        host_architecture()?;
        guest::NETWORK.files(self.context())
    }

    /// What [`Provisioner::module`] takes from the mirror for the kernel of `series`, made in
    /// advance.
    pub fn module_parts(&self, series: KernelSeries, repo: &Path) -> Result<()> {
        self.with_kernels(|cx| module::prepare(cx, series, repo))
    }

    /// Puts the modules of the sources in `repo` for the kernels of clusters into `installed`, whose qnic then
    /// builds none for them. Returns the releases of these kernels.
    ///
    /// # Errors
    /// As [`Provisioner::module`].
    pub fn prebuild(&self, repo: &Path, installed: &Installed) -> Result<Vec<String>> {
        self.with_kernels(|cx| {
            let into = Prebuilt::at(installed.modules());
            let usual = KernelSeries::USUAL.iter();
            usual
                .map(|series| module::prebuild(cx, *series, repo, &into))
                .collect()
        })
    }

    /// What [`Provisioner::guest_image`] takes from the mirror for the kernel of `series`, made
    /// in advance.
    pub fn guest_parts(&self, series: KernelSeries) -> Result<()> {
        self.with_kernels(|cx| guest::parts(cx, series).map(drop))
    }

    /// Does `work`; if the mirror no longer has a kernel that was chosen earlier,
    /// once more with the newest ones.
    fn with_kernels<T>(&self, work: impl Fn(Context<'_>) -> Result<T>) -> Result<T> {
        host_architecture()?;
        let cx = self.context();
        match work(cx) {
            Err(Error::IncompleteMirror { .. }) if kernel::forget_releases(cx.cache)? => {
                cx.progress.step("the mirror has newer kernels");
                work(cx)
            }
            other => other,
        }
    }
}

/// The architecture of this machine, if it is the one that guests have.
pub(crate) fn host_architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("x86_64"),
        host => Err(Error::WrongArchitecture(host)),
    }
}
