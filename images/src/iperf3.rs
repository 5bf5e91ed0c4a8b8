//! iperf3, which bandwidth over a network is compared with: the host's own, else the
//! distribution's.

use crate::cache::Cache;
use crate::command::run;
use crate::error::Result;
use crate::program::Program;
use crate::progress::Progress;

const PROGRAM: &str = "iperf3";

/// The host's iperf3, if it starts.
pub(crate) fn host_iperf3() -> Option<Program> {
    Program::of_host(PROGRAM).filter(|program| check(program).is_ok())
}

/// The distribution's iperf3, from the cache or the mirror.
pub(crate) fn provision(cache: &Cache, progress: &dyn Progress) -> Result<Program> {
    let root = Program::of_distribution(cache, progress, PROGRAM, |root| {
        check(&Program::in_root(root, PROGRAM))
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
