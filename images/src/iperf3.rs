//! iperf3, which bandwidth over a network is compared with: the host's own, else the
//! distribution's.

use crate::cache::Cache;
use crate::command::run;
use crate::distribution::STABLE;
use crate::error::Result;
use crate::program::Program;
use crate::progress::Progress;
use crate::root::{PackageSet, Root};

const PROGRAM: &str = "iperf3";

/// The host's iperf3, if it starts.
pub(crate) fn host_iperf3() -> Option<Program> {
    Program::of_host(PROGRAM).filter(|program| check(program).is_ok())
}

/// The distribution's iperf3, from the cache or the mirror.
pub(crate) fn provision(cache: &Cache, progress: &dyn Progress) -> Result<Program> {
    let packages = [PROGRAM.to_owned()];
    let set = PackageSet {
        kind: PROGRAM,
        label: PROGRAM,
        suite: STABLE,
        packages: &packages,
        keep: &|_| true,
    };
    let root = Root::of_packages(cache, progress, &set, |dir| {
        // A root that does not work is never put in place.
        check(&Program::in_root(&Root::at(dir), PROGRAM))
    })?;
    Ok(Program::in_root(&root, PROGRAM))
}

fn check(program: &Program) -> Result<()> {
    run(
        "ask iperf3 for its version",
        program.command().arg("--version"),
    )
    .map(|_| ())
}
