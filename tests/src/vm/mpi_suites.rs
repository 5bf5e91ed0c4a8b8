//! Test programs of others as ranks in four guests, over the NICs (X15): the HPC Challenge, and ScaLAPACK's.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ByteSize, ClusterSpec, GuestCommand, Links, MpiTransport, NetworkSpec, OnOff};
use qnic_images::{Cache, Provisioner, Silent};
use serde_json::json;

use super::nodes::on_spec;
use super::remote_memory::{specs, LIMIT};
use super::shell::no_kernel_complains;
use crate::harness::{cases, Case};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;

pub(crate) const CASES: &[Case] = cases! { "vm":
    hpcc_and_scalapack_pass_over_the_nics: 2 => on_spec(&spec()?, suites),
};

/// Where libraries are that the distribution's alternatives choose from.
const LIBRARIES: &str =
    "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack";

/// Input of `hpcc`: as the distribution's example, but for the sizes, which emulation can do.
const HPCC: &str = include_str!("hpccinf.txt");

/// ScaLAPACK's programs that run on good links, and on those that lose frames: four guests on two processors take
/// three minutes for the first one.
const SCALAPACK: [&[&str]; 2] = [&["xdlu", "xdinv"], &["xdinv"]];

fn spec() -> Result<ClusterSpec> {
    let mut spec = VmNodes::spec("suites", &["stable", "backports", "stable", "backports"])?;
    spec.mpi = true;
    spec.ethernet = OnOff::on();
    spec.network = Some(NetworkSpec::default());
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    let files = specs(provisioner.mpi_tests()?);
    for node in &mut spec.nodes {
        node.memory = ByteSize::mib(512);
        node.files = files.clone();
    }
    Ok(spec)
}

fn suites(nodes: &VmNodes) -> Result<()> {
    shell(
        nodes,
        0,
        &format!("mkdir /tmp/hpcc && printf '%s' '{HPCC}' > /tmp/hpcc/hpccinf.txt"),
    )?;
    for (impairments, programs) in [json!({}), json!({"loss": "2%"})]
        .into_iter()
        .zip(SCALAPACK)
    {
        let change = serde_json::from_value(impairments.clone())?;
        nodes.cluster().set_links(&Links::All, Some(&change))?;
        let all = || -> Result<()> {
            hpcc(nodes).context("hpcc")?;
            let mut programs = programs.iter().copied();
            programs.try_for_each(|name| scalapack(nodes, name).context(name))
        };
        all().with_context(|| format!("on links with {impairments}"))?;
    }
    nodes.lost_frames(0)?;
    no_kernel_complains(nodes)
}

/// Runs four ranks of a program in a directory; what rank 0 has printed.
fn run(nodes: &VmNodes, directory: &str, program: &str) -> Result<String> {
    let four = NonZero::new(4).context("no ranks")?;
    let script = format!("cd {directory} && {LIBRARIES} exec {program}");
    let command = nodes.cluster().mpi()?;
    let command = command.command(four, MpiTransport::Nic, &[], &GuestCommand::shell(&script));
    let began = Instant::now();
    let ended = nodes.spawn(0, &command)?.succeed(program, LIMIT)?;
    println!("    {program}: {:.1} s", began.elapsed().as_secs_f64());
    Ok(ended.lines.join("\n"))
}

/// All of its benchmarks check their results.
fn hpcc(nodes: &VmNodes) -> Result<()> {
    run(
        nodes,
        "/tmp",
        "sh -c 'mkdir -p hpcc && cd hpcc && exec hpcc'",
    )?;
    let said = shell(
        nodes,
        0,
        "cat /tmp/hpcc/hpccoutf.txt && rm /tmp/hpcc/hpccoutf.txt",
    )?;
    for holds in [
        "Success=1",
        "MPIRandomAccess_ErrorsFraction=0\n",
        "MPIRandomAccess_LCG_ErrorsFraction=0\n",
        "End of HPC Challenge tests.",
    ] {
        ensure!(
            said.contains(holds),
            "{holds:?} is not in its results: {said}"
        );
    }
    ensure!(!said.contains("FAILED"), "{said}");
    Ok(())
}

/// No test fails, and some have passed.
fn scalapack(nodes: &VmNodes, name: &str) -> Result<()> {
    let program = format!("/usr/lib/x86_64-linux-gnu/scalapack/openmpi-tests/{name}");
    let said = run(nodes, "/usr/share/scalapack", &program)?;
    let count = |what: &str| {
        let line = said.lines().find(|line| line.contains(what))?;
        line.split_whitespace().next()?.parse::<u32>().ok()
    };
    let passed = count("tests completed and passed residual checks");
    let failed = count("tests completed and failed residual checks");
    println!("    {name}: {passed:?} tests have passed, {failed:?} failed");
    ensure!(passed > Some(0) && failed == Some(0), "{said}");
    Ok(())
}
