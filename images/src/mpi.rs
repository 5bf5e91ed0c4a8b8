//! Programs in C that are compiled on this machine, and run in guests as ranks of the distribution's Open MPI.

use std::path::Path;

use crate::command::{command, run};
use crate::context::Context;
use crate::distribution::STABLE;
use crate::error::Result;
use crate::root::{PackageSet, Root, LIBRARIES};

/// Headers and library of Open MPI. The compilers that the package asks for are not used.
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

/// Compiles `source` to `program`.
pub(crate) fn compile(cx: Context<'_>, source: &Path, program: &Path) -> Result<()> {
    let root = Root::of_packages(cx, &LIBRARY, |_| Ok(()))?;
    let libraries = root.dir.join(LIBRARIES);
    let mut compile = command("cc");
    compile.args(["-O2", "-o"]).arg(program).arg(source);
    compile.arg("-I").arg(libraries.join("openmpi/include"));
    compile.arg(libraries.join("libmpi.so.40"));
    compile.args(["-lm", UNRESOLVED]);
    let what = format!("compile {} with cc", source.display());
    run(&what, &mut compile).map(drop)
}
