//! The provider of libfabric in guests (X10), and Open MPI of the distribution on it (X15).

use std::num::NonZero;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ByteSize, ClusterSpec, GuestCommand, Links, MpiTransport, NetworkSpec, OnOff};
use qnic_images::{Cache, Provisioner, Silent};
use serde_json::json;

use super::nodes::on_spec;
use super::shell::no_kernel_complains;
use crate::harness::{cases, Case};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, wait_until_empty, Running, LIMIT};

pub(crate) const CASES: &[Case] = cases! { "vm":
    mpi_programs_run_over_the_nics => on_spec(&spec()?, mpi),
};

/// The program of the ranks, and its place in guests.
const SOURCE: &str = "examples/mpi/exchange.c";
const PROGRAM: &str = "/root/exchange";

/// A node that owes an answer and is silent for so long is given up.
const PEER_TIMEOUT: &str = "5s";

/// Guests of both kernels, on links that can be made bad.
fn spec() -> Result<ClusterSpec> {
    let mut spec = VmNodes::spec("mpi", &["stable", "backports", "stable"])?;
    spec.mpi = true;
    spec.ethernet = OnOff::on();
    spec.network = Some(NetworkSpec {
        peer_timeout: Some(PEER_TIMEOUT.parse()?),
        ..NetworkSpec::default()
    });
    for node in &mut spec.nodes {
        node.memory = ByteSize::mib(384);
    }
    Ok(spec)
}

fn mpi(nodes: &VmNodes) -> Result<()> {
    put_program(nodes)?;
    let lossy = json!({"loss": "2%"});
    for impairments in [json!({}), lossy] {
        let change = serde_json::from_value(impairments.clone())?;
        nodes.cluster().set_links(&Links::All, Some(&change))?;
        ping_pong(nodes).with_context(|| format!("fi_pingpong on links with {impairments}"))?;
        exchange(nodes).with_context(|| format!("six ranks on links with {impairments}"))?;
    }
    nodes.lost_frames(0)?;
    nodes.cluster().set_links(&Links::All, None)?;
    no_kernel_complains(nodes)?;
    ends(nodes, "a rank is killed", &[0, 1, 2], || {
        shell(nodes, 1, "killall -9 exchange").map(drop)
    })?;
    ends(nodes, "links are cut", &[0, 1, 2], || {
        let cut = serde_json::from_value(json!({"partition": true}))?;
        Ok(nodes
            .cluster()
            .set_links(&Links::All, Some(&cut))
            .map(drop)?)
    })?;
    nodes.cluster().set_links(&Links::All, None)?;
    // What is sent to a node that was given up fails until it answers again.
    until(LIMIT, || {
        Ok(exchange(nodes).err().map(|error| format!("{error:#}")))
    })?;
    // A program that is dropped is killed.
    let mut panics = None;
    ends(nodes, "a guest panics", &[0, 1], || {
        panics = Some(background(nodes, 2, "echo c > /proc/sysrq-trigger")?);
        Ok(())
    })
}

/// Compiles the program, and copies it to all nodes.
fn put_program(nodes: &VmNodes) -> Result<()> {
    let checkout = qnic_cluster::repository().context("the checkout is gone")?;
    let scratch = tempfile::tempdir().context("make a directory")?;
    let program = scratch.path().join("exchange");
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    provisioner.compile_mpi(&checkout.join(SOURCE), &program)?;
    let mut nodes = nodes.cluster().nodes().iter();
    nodes.try_for_each(|node| Ok(node.put(&program, PROGRAM.as_ref(), &|_| {})?))
}

/// Two guests exchange messages of all lengths of fi_pingpong, which checks them.
fn ping_pong(nodes: &VmNodes) -> Result<()> {
    for space in ["msg", "tagged"] {
        let pong = format!("fi_pingpong -p qnic -e rdm -c -I 20 -m {space}");
        let mut server = background(nodes, 0, &format!("exec {pong}"))?;
        // It is refused until the server listens.
        let client = format!(
            "tries=100; until {pong} n0; do tries=$((tries - 1)); [ $tries -gt 0 ] || exit; done"
        );
        let said = shell(nodes, 1, &client)?;
        ensure!(said.contains("1m"), "fi_pingpong has not sent all: {said}");
        server.succeed("the server of fi_pingpong", LIMIT)?;
    }
    Ok(())
}

/// Starts ranks of the program with `words`.
fn start(nodes: &VmNodes, words: &[&str]) -> Result<Box<dyn Running>> {
    let mpi = nodes.cluster().mpi()?;
    let ranks = NonZero::new(6).context("no ranks")?;
    let program = GuestCommand::new(PROGRAM).args(words);
    let command = mpi.command(ranks, MpiTransport::Nic, &[], &program);
    nodes.spawn(0, &command)
}

fn exchange(nodes: &VmNodes) -> Result<()> {
    let ended = start(nodes, &[])?.succeed("mpirun", LIMIT)?;
    let said = ended.lines.join("\n");
    ensure!(
        said.contains("6 ranks have exchanged checked data"),
        "{said}"
    );
    ensure!(said.contains("rank 5 of 6 on n2"), "{said}");
    Ok(())
}

/// While ranks exchange data, something happens: mpirun ends with an error, and nothing of the job is left on the
/// nodes of these numbers.
fn ends(
    nodes: &VmNodes,
    what: &str,
    left: &[usize],
    happens: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut job = start(nodes, &["hold"])?;
    for _ in 0..6 {
        let said = job.line(LIMIT)?;
        ensure!(
            said.is_some_and(|line| line.starts_with("rank ")),
            "{:?}",
            job.wait(LIMIT)?
        );
    }
    let began = Instant::now();
    happens().with_context(|| what.to_owned())?;
    let ended = match job.wait(LIMIT) {
        Ok(ended) => ended,
        Err(error) => return Err(error.context(format!("{what}: {}", processes(nodes, left)?))),
    };
    println!(
        "    {what}: mpirun ended after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    ensure!(ended.status != 0, "{what}: mpirun ended well: {ended:?}");
    until(LIMIT, || {
        let mut gone = left.iter().map(|node| shell(nodes, *node, GONE));
        Ok(gone.any(|gone| gone.is_err()).then(|| {
            let left = processes(nodes, left).unwrap_or_else(|error| error.to_string());
            format!("{what}: processes are left: {left}")
        }))
    })?;
    left.iter()
        .try_for_each(|node| wait_until_empty(nodes, *node))
}

/// Succeeds if nothing of a job runs.
const GONE: &str = "! pidof exchange prted prterun mpirun dbclient";

/// What of a job runs on some nodes, and what its threads wait for.
fn processes(nodes: &VmNodes, which: &[usize]) -> Result<String> {
    let show = "for p in $(pidof exchange prted prterun mpirun dbclient); do \
                tr '\\0' ' ' </proc/$p/cmdline; grep State /proc/$p/status; \
                for t in /proc/$p/task/*; do echo \"$(cat $t/comm $t/wchan $t/syscall)\"; done; done; netstat -tn";
    let said = which.iter().map(|node| {
        let said = shell(nodes, *node, show)?;
        Ok(format!("node {node}:\n{said}"))
    });
    Ok(said.collect::<Result<Vec<_>>>()?.concat())
}
