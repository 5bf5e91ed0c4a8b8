//! The provider of libfabric in guests (X10), and Open MPI of the distribution on it (X15).

use std::num::NonZero;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ByteSize, ClusterSpec, GuestCommand, Links, MpiTransport, NetworkSpec, OnOff};
use qnic_images::{Cache, Provisioner, Silent};
use serde_json::json;

mod command;

use super::nodes::on_spec;
use super::shell::no_kernel_complains;
use crate::harness::{cases, is_long, Case};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, wait_until_empty, Running, LIMIT};

pub(crate) const CASES: &[Case] = cases! { "vm":
    mpi_programs_run_over_the_nics => on_spec(&spec()?, mpi),
};

/// A program of the ranks: its source, its place in guests, what mpirun is told beside, and what rank 0 of six says
/// at its end.
struct Program {
    source: &'static str,
    place: &'static str,
    options: &'static [&'static str],
    says: &'static str,
}

const MESSAGES: Program = Program {
    source: "examples/mpi/exchange.c",
    place: "/root/exchange",
    options: &[],
    says: "6 ranks have exchanged checked data",
};
const ONE_SIDED: Program = Program {
    source: "examples/mpi/one-sided.c",
    place: "/root/one-sided",
    options: &["--mca", "pml", "ob1"],
    says: "6 ranks have found checked data in each other's memory",
};
const THREADS: Program = Program {
    source: "examples/mpi/threads.c",
    place: "/root/threads",
    options: &[],
    says: "4 threads of 6 ranks have exchanged checked data",
};

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
    put_program(nodes, &MESSAGES)?;
    put_program(nodes, &ONE_SIDED)?;
    put_program(nodes, &THREADS)?;
    let lossy = json!({"loss": "2%"});
    for impairments in [json!({}), lossy] {
        let change = serde_json::from_value(impairments.clone())?;
        nodes.cluster().set_links(&Links::All, Some(&change))?;
        let is_lossy = impairments != json!({});
        if !is_lossy || is_long() {
            ping_pong(nodes).with_context(|| format!("fi_pingpong on links with {impairments}"))?;
        }
        // On good links they run below: the one by the command, the other after links were cut.
        if !is_lossy && !is_long() {
            continue;
        }
        for program in [&MESSAGES, &ONE_SIDED] {
            exchange(nodes, program)
                .with_context(|| format!("{} on links with {impairments}", program.place))?;
        }
    }
    nodes.lost_frames(0)?;
    nodes.cluster().set_links(&Links::All, None)?;
    // In host mode they always run.
    if is_long() {
        exchange(nodes, &THREADS).context("four threads of each rank")?;
    }
    collectives(nodes).context("collectives of libfabric")?;
    no_kernel_complains(nodes)?;
    command::statuses(nodes, &ALL).context("cargo qnic mpirun")?;
    ends(nodes, "a rank is killed", (&MESSAGES, &ALL), || {
        shell(nodes, 1, "killall -9 exchange").map(drop)
    })?;
    for program in [Some(&MESSAGES), is_long().then_some(&ONE_SIDED)]
        .into_iter()
        .flatten()
    {
        ends(nodes, "links are cut", (program, &ALL), || cut(nodes))?;
        nodes.cluster().set_links(&Links::All, None)?;
        // What is sent to a node that was given up fails until it answers again.
        until(LIMIT, || {
            let failed = exchange(nodes, program).err();
            Ok(failed.map(|error| format!("{error:#}")))
        })?;
    }
    command::a_node_stands_still(nodes).context("cargo qnic mpirun")?;
    command::first_node_stands_still(nodes).context("cargo qnic mpirun")?;
    nothing_is_left(nodes, "a job whose first node stood still", &ALL)?;
    // A program that is dropped is killed.
    let mut panics = None;
    ends(nodes, "a guest panics", (&MESSAGES, &[0, 1]), || {
        panics = Some(background(nodes, 2, "echo c > /proc/sysrq-trigger")?);
        Ok(())
    })
}

/// All nodes, by number.
const ALL: [usize; 3] = [0, 1, 2];

fn cut(nodes: &VmNodes) -> Result<()> {
    let cut = serde_json::from_value(json!({"partition": true}))?;
    nodes.cluster().set_links(&Links::All, Some(&cut))?;
    Ok(())
}

/// Compiles a program, and copies it to all nodes.
fn put_program(nodes: &VmNodes, program: &Program) -> Result<()> {
    let checkout = qnic_cluster::repository().context("the checkout is gone")?;
    let scratch = tempfile::tempdir().context("make a directory")?;
    let compiled = scratch.path().join("program");
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    provisioner.compile_mpi(&checkout.join(program.source), &compiled)?;
    let mut nodes = nodes.cluster().nodes().iter();
    nodes.try_for_each(|node| Ok(node.put(&compiled, program.place.as_ref(), &|_| {})?))
}

/// Processes of two guests call all collectives of libfabric, and check what they get; then one is killed.
fn collectives(nodes: &VmNodes) -> Result<()> {
    let checkout = qnic_cluster::repository().context("the checkout is gone")?;
    let source = checkout.join("guest-lib/fabric/tests/programs/collectives.c");
    let scratch = tempfile::tempdir().context("make a directory")?;
    let compiled = scratch.path().join("collectives");
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    provisioner.libfabric()?.compile(&source, &compiled)?;
    for node in &nodes.cluster().nodes()[..2] {
        node.put(&compiled, "/root/collectives".as_ref(), &|_| {})?;
    }
    let start = |node, place: &str| {
        let run =
            format!("exec env {place} FABRIC_PROVIDER=qnic FI_PROVIDER=qnic /root/collectives");
        background(nodes, node, &run)
    };
    let mut first = start(0, "FABRIC_LISTEN=7001")?;
    let mut second = start(1, "FABRIC_CONNECT=n0:7001")?;
    first.succeed("the first member", LIMIT)?;
    second.succeed("the second member", LIMIT)?;
    let mut lives = start(0, "FABRIC_HOLD=1 FABRIC_LISTEN=7001")?;
    let mut dies = start(1, "FABRIC_HOLD=1 FABRIC_CONNECT=n0:7001")?;
    for member in [&mut lives, &mut dies] {
        let said = member.line(LIMIT)?;
        ensure!(said.as_deref() == Some("joined"), "{said:?}");
    }
    dies.kill()?;
    let ended = lives.wait(LIMIT)?;
    ensure!(ended.status == 1, "its other member was killed: {ended:?}");
    nothing_is_left(nodes, "a member of a group is killed", &[0, 1])
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

/// Starts ranks of a program with `words`.
fn start(nodes: &VmNodes, program: &Program, words: &[&str]) -> Result<Box<dyn Running>> {
    let mpi = nodes.cluster().mpi()?;
    let ranks = NonZero::new(6).context("no ranks")?;
    let options = program.options.iter().map(|it| (*it).to_owned());
    let options: Vec<_> = options.collect();
    let words = GuestCommand::new(program.place).args(words);
    let command = mpi.command(ranks, MpiTransport::Nic, &options, &words);
    nodes.spawn(0, &command)
}

fn exchange(nodes: &VmNodes, program: &Program) -> Result<()> {
    let ended = start(nodes, program, &[])?.succeed("mpirun", LIMIT)?;
    let said = ended.lines.join("\n");
    ensure!(said.contains(program.says), "{said}");
    ensure!(said.contains("rank 5 of 6 on n2"), "{said}");
    Ok(())
}

/// While ranks of a program exchange data, something happens: mpirun ends with an error, and nothing of the job is
/// left on the nodes of these numbers.
fn ends(
    nodes: &VmNodes,
    what: &str,
    (program, left): (&Program, &[usize]),
    happens: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut job = start(nodes, program, &["hold"])?;
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
    nothing_is_left(nodes, what, left)
}

/// Waits until nothing of a job is left on nodes, and in their NICs.
fn nothing_is_left(nodes: &VmNodes, what: &str, left: &[usize]) -> Result<()> {
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
const GONE: &str = "! pidof exchange one-sided threads collectives prted prterun mpirun dbclient";

/// What of a job runs on some nodes, and what its threads wait for.
fn processes(nodes: &VmNodes, which: &[usize]) -> Result<String> {
    let show = "for p in $(pidof exchange one-sided threads collectives prted prterun mpirun dbclient); do \
                tr '\\0' ' ' </proc/$p/cmdline; grep State /proc/$p/status; \
                for t in /proc/$p/task/*; do echo \"$(cat $t/comm $t/wchan $t/syscall)\"; done; done; netstat -tn";
    let said = which.iter().map(|node| {
        let said = shell(nodes, *node, show)?;
        Ok(format!("node {node}:\n{said}"))
    });
    Ok(said.collect::<Result<Vec<_>>>()?.concat())
}
