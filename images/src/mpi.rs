//! The distribution's Open MPI on this machine: programs in C that are compiled for it, and run in guests or, by its
//! mpirun, here.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::command::{command, run};
use crate::context::Context;
use crate::distribution::STABLE;
use crate::error::Result;
use crate::guest::MPI;
use crate::root::{PackageSet, Root, LIBRARIES};

/// Headers and libraries of Open MPI and its OpenSHMEM. The compilers that the package asks for are not used.
const LIBRARY: PackageSet<'static> = PackageSet {
    kind: "mpi-dev",
    label: "Open MPI's headers",
    suite: STABLE,
    names: "libopenmpi-dev",
    keep: &|package| ["libopenmpi-dev", "libopenmpi40"].contains(&package),
    skip: &[],
};

/// The library needs a newer C library than this machine may have: the guests have it.
const UNRESOLVED: &str = "-Wl,--unresolved-symbols=ignore-in-shared-libs";

/// Compiles `source` to `program`, which links those of both that it uses.
pub(crate) fn compile(cx: Context<'_>, source: &Path, program: &Path) -> Result<()> {
    let root = Root::of_packages(cx, &LIBRARY, |_| Ok(()))?;
    let libraries = root.dir.join(LIBRARIES);
    let mut compile = command("cc");
    compile.args(["-O2", "-o"]).arg(program).arg(source);
    compile.arg("-I").arg(libraries.join("openmpi/include"));
    compile.arg("-Wl,--as-needed");
    compile.args(["libmpi.so.40", "liboshmem.so.40"].map(|name| libraries.join(name)));
    compile.args(["-lm", UNRESOLVED]);
    let what = format!("compile {} with cc", source.display());
    run(&what, &mut compile).map(drop)
}

/// The distribution's Open MPI, which runs on this machine as it is in its packages.
#[derive(Clone, Debug)]
pub struct HostMpi {
    root: Root,
}

impl HostMpi {
    pub(crate) fn provision(cx: Context<'_>) -> Result<Self> {
        let root = MPI.root(cx)?;
        Ok(HostMpi { root })
    }

    /// mpirun. The caller adds its arguments, among them [`HostMpi::rank`] for each program.
    pub fn command(&self) -> Command {
        let usr = self.root.dir.join("usr");
        let mut command = self.root.command("usr/bin/prterun", "prterun");
        command
            .env("OPAL_PREFIX", &usr)
            .env("PRTE_PREFIX", &usr)
            .env("PMIX_PREFIX", self.root.dir.join(LIBRARIES).join("pmix2"))
            .env("PMIX_MCA_pcompress_base_silence_warning", "1");
        for refusal in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
            command.env(refusal, "1");
            command.env(format!("{refusal}_CONFIRM"), "1");
        }
        command
    }

    /// The words with which a rank of a program begins that was compiled for this Open MPI.
    pub fn rank(&self, program: &Path) -> Vec<OsString> {
        vec![
            self.root.loader().into(),
            "--library-path".into(),
            self.root.dir.join(LIBRARIES).into(),
            program.into(),
        ]
    }
}
