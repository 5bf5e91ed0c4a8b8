//! UCX of the distribution over the device of libibverbs, and on it Open MPI and OpenSHMEM (X18).

use std::num::NonZero;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use qnic_cluster::{GuestCommand, MpiTransport};

use super::{both_run, is_used, with_all};
use crate::vm::mpi::put_program;
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{Nodes, LIMIT};

/// UCX's transports over libibverbs, by reliable queue pairs and by datagrams.
const TRANSPORTS: [&str; 2] = ["rc_verbs", "ud_verbs"];

/// Variables of UCX for ranks: reliable queue pairs, which it connects by datagrams; the device; and fences that need
/// no flush of the other side's memory, which UCX has for no device of this kind.
const VARIABLES: [&str; 6] = [
    "-x",
    "UCX_TLS=rc_v,self",
    "-x",
    "UCX_NET_DEVICES=qnic0:1",
    "-x",
    "UCX_FENCE_MODE=weak",
];

/// What `ucx_perftest` is asked for over one transport alone (`-x`), and over UCX's choice of protocols on transports.
const MEASURES: [&str; 3] = [
    "-x rc_verbs -t put_bw -s 65536 -D zcopy",
    "-x ud_verbs -t am_bw -s 1024 -D bcopy",
    "rc_v -t tag_bw -s 1048576",
];

/// The same, with `--all`.
const MORE_MEASURES: [&str; 5] = [
    "-x rc_verbs -t am_lat -s 8",
    "-x rc_verbs -t get -s 8192 -D zcopy",
    "-x rc_verbs -t fadd",
    "rc_v -t tag_lat -s 8",
    "ud_v -t ucp_get -s 8192",
];

/// A program of ranks: source, place in guests, a parameter of Open MPI, and what rank 0 says at its end.
type RankProgram = (&'static str, &'static str, [&'static str; 2], &'static str);

const PROGRAM: RankProgram = (
    "examples/mpi/exchange.c",
    "/root/exchange",
    ["osc", "ucx"],
    "2 ranks have exchanged checked data",
);

/// Those that run with `--all`.
const MORE_PROGRAMS: [RankProgram; 2] = [
    (
        "examples/mpi/one-sided.c",
        "/root/one-sided",
        ["osc", "ucx"],
        "2 ranks have found checked data in each other's memory",
    ),
    (
        "examples/mpi/symmetric.c",
        "/root/symmetric",
        ["spml", "ucx"],
        "2 elements have found checked data in each other's memory",
    ),
];

/// Runs all of them between two nodes.
pub(super) fn pass(nodes: &VmNodes) -> Result<()> {
    let began = Instant::now();
    for node in [0, 1] {
        let said = shell(nodes, node, "ucx_info -d")?;
        for transport in TRANSPORTS {
            let line = format!("Transport: {transport}");
            ensure!(said.contains(&line), "no {line} on node {node}: {said}");
        }
    }
    measures(nodes)?;
    for program in with_all(&[PROGRAM], &MORE_PROGRAMS) {
        rank_program(nodes, *program).context(program.1)?;
    }
    println!("    UCX: {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Runs the measurements between two nodes.
pub(super) fn measures(nodes: &VmNodes) -> Result<()> {
    let mut all = with_all(&MEASURES, &MORE_MEASURES).enumerate();
    all.try_for_each(|(server, measure)| both_run(nodes, server % 2, &perftest(measure)))
}

/// The command of a measurement, on the device of libibverbs.
fn perftest(measure: &str) -> String {
    // Debian's would be a rank of MPI.
    let perftest = "ucx_perftest -P 0 -n 100 -w 10";
    match measure.split_once(' ') {
        Some((transport, words)) if transport != "-x" => {
            format!("env UCX_TLS={transport},self UCX_NET_DEVICES=qnic0:1 {perftest} {words}")
        }
        _ => format!("{perftest} -d qnic0:1 {measure}"),
    }
}

/// Two ranks, whose messages and memory go over reliable queue pairs alone.
fn rank_program(nodes: &VmNodes, (source, place, [name, value], says): RankProgram) -> Result<()> {
    put_program(nodes, source, place)?;
    let two = NonZero::new(2).context("no ranks")?;
    let options = ["--mca", "pml", "ucx", "--mca", name, value].into_iter();
    let options: Vec<_> = options.chain(VARIABLES).map(str::to_owned).collect();
    let mpi = nodes.cluster().mpi()?;
    let words = GuestCommand::new(place);
    let command = mpi.command(two, MpiTransport::Nic, &options, &words);
    let ended = nodes.spawn(0, &command)?.succeed("mpirun", LIMIT)?;
    let said = ended.lines.join("\n");
    ensure!(said.contains(says), "{said}");
    (0..nodes.count()).try_for_each(|node| is_used(nodes, node, false))
}
