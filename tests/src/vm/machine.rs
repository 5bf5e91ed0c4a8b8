//! Parallel machines (S7): two side by side, data-parallel programs on them (S8), a rank that
//! fails, a command that is killed; and remote memory that the cluster file names (H9). All in
//! guests with little memory.

mod nics;
mod parallel;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::{ByteSize, GuestCommand, RemoteMemorySpec, COMMAND_SLOTS};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

use super::nodes::on_spec;
use super::shell::no_kernel_complains;
use crate::harness::{cases, Case};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

pub(crate) const CASES: &[Case] = cases! { "vm":
    parallel_machines_run_side_by_side_and_leave_nothing => {
        let kernels = ["stable", "backports", "stable", "backports"];
        let mut spec = VmNodes::spec("machines", &kernels)?;
        for node in &mut spec.nodes {
            node.memory = MEMORY;
        }
        spec.remote_memory = vec![RemoteMemorySpec {
            on: "n0".into(),
            size: ByteSize::mib(8),
            replicas: 2,
            servers: vec!["n1".into(), "n2".into(), "n3".into()],
            serve: Some(ByteSize::mib(6)),
            lease: Some("2m".parse()?),
            thin: false,
            key: Some("5ec2e7".into()),
        }];
        on_spec(&spec, machines)
    },
    one_network_of_two_is_partitioned_and_the_other_goes_on => nics::two_networks(),
};

/// Little more than the image of a guest needs.
const MEMORY: ByteSize = ByteSize::mib(208);

/// Longest time for a guest to notice that a command has gone.
const LIMIT: Duration = Duration::from_secs(60);

/// Two machines of one cluster, the command as a user calls it.
fn machines(nodes: &VmNodes) -> Result<()> {
    remote_memory(nodes).context("remote memory of the cluster file")?;
    let lab = Tool(nodes);
    parallel::programs(&lab).context("data-parallel programs")?;
    lab.done(&["create", "wide", "--nodes", "n0,n1"])?;
    lab.done(&["create", "narrow", "--nodes", "n1", "--interface", "pool"])?;
    let refused = lab.call(&["create", "mine", "--nodes", "n1", "--exclusive"])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        refused.status.code() == Some(1) && said.contains("machine \"wide\" uses it"),
        "{said}"
    );
    side_by_side(&lab).context("side by side")?;
    a_failing_rank(&lab).context("a rank fails")?;
    killed_while_they_speak(nodes).context("commands that are killed while they speak")?;
    for signal in [Signal::TERM, Signal::KILL] {
        an_ended_command(&lab, signal).with_context(|| format!("{signal:?}"))?;
    }
    lab.done(&["rm", "wide"])?;
    lab.done(&["create", "mine", "--nodes", "n0", "--exclusive"])?;
    let listed = lab.done(&["ls", "--json"])?;
    let listed: Value = serde_json::from_str(&listed)?;
    ensure!(
        listed[0]["name"] == "narrow" && listed[1]["name"] == "mine" && listed[2].is_null(),
        "{listed}"
    );
    no_kernel_complains(nodes)
}

/// The device is there as soon as the cluster is, with all its servers, and keeps what is written.
fn remote_memory(nodes: &VmNodes) -> Result<()> {
    let write = "head -c 8m /dev/urandom >/tmp/data && dd if=/tmp/data of=/dev/qnicmem0 bs=1M \
                 oflag=direct 2>&1 && dd if=/dev/qnicmem0 bs=1M iflag=direct | cmp - /tmp/data && \
                 rm /tmp/data";
    let status: Value = serde_json::from_str(&shell(nodes, 0, "qnic-rmem status --json")?)?;
    let volume = &status["volumes"][0];
    let mib = |count: u64| count << 8;
    ensure!(
        volume["device"] == "/dev/qnicmem0"
            && volume["blocks"] == mib(8)
            && volume["replicas"] == 2
            && (0..3).all(|server| volume["servers"][server]["granted"].is_u64()),
        "{status}"
    );
    shell(nodes, 0, write)?;
    for node in 1..4 {
        let status: Value = serde_json::from_str(&shell(nodes, node, "qnic-rmem status --json")?)?;
        let used = status["memory"]["used"].as_u64();
        ensure!(
            status["memory"]["pages"] == mib(6) && used.is_some_and(|pages| pages > 0),
            "node {node}: {status}"
        );
    }
    Ok(())
}

/// The last words of such a command find its port closed, which must not keep the next command in that
/// port from starting.
fn killed_while_they_speak(nodes: &VmNodes) -> Result<()> {
    for _ in 0..3 * COMMAND_SLOTS {
        let mut speaking = background(nodes, 3, "while :; do echo; done")?;
        speaking.kill()?;
    }
    shell(nodes, 3, "true").map(drop)
}

/// Each machine waits for the other in a pipe of node n1: they end only if both run at once.
fn side_by_side(lab: &Tool<'_>) -> Result<()> {
    shell(lab.0, 1, "mkfifo /run/meet")?;
    let tell = "echo $QNIC_MACHINE $QNIC_SIZE $QNIC_MACHINE_NODES $QNIC_MACHINE_INTERFACE";
    let wide =
        format!("{tell}; echo port $QNIC_MACHINE_PORT; [ $QNIC_RANK != 1 ] || cat /run/meet");
    let narrow = format!("{tell}; echo port $QNIC_MACHINE_PORT; echo met $QNIC_RANK > /run/meet");
    let first = lab.start(&["run", "wide", "-n", "3", "--", "sh", "-c", &wide])?;
    let second = lab.start(&["run", "narrow", "--", "sh", "-c", &narrow])?;
    let (first, second) = (finished(first)?, finished(second)?);
    let rank = |rank, of: &'static str| format!("{rank} | {of}");
    for expected in [
        rank(0, "wide 3 0,1,0 qnic"),
        rank(1, "wide 3 0,1,0 qnic"),
        rank(2, "wide 3 0,1,0 qnic"),
        rank(1, "met 0"),
    ] {
        ensure!(first.contains(&expected), "no {expected:?} in {first:?}");
    }
    ensure!(first.len() == 7, "{first:?}");
    ensure!(second.contains(&rank(0, "narrow 1 1 pool")), "{second:?}");
    let port = |lines: &[String]| lines.iter().find(|line| line.contains("port")).cloned();
    ensure!(
        port(&first) != port(&second),
        "the same ports: {first:?} {second:?}"
    );
    lab.nothing_runs()
}

/// Ranks 0, 1 and 3 would run for long.
fn a_failing_rank(lab: &Tool<'_>) -> Result<()> {
    let program = "[ $QNIC_RANK = 2 ] && exit 7; exec sleep 1000";
    let ended = lab.call(&["run", "wide", "-n", "4", "--", "sh", "-c", program])?;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let expected = "rank 2 (node n0) returned 7";
    ensure!(
        ended.status.code() == Some(7) && said.contains(expected),
        "{:?}: {said}",
        ended.status
    );
    lab.nothing_runs()
}

/// A signal ends the command while its ranks run; each holds a pipe open, whose other end tells
/// when the last has gone.
fn an_ended_command(lab: &Tool<'_>, signal: Signal) -> Result<()> {
    let mut witnesses = Vec::new();
    for node in [0, 1] {
        shell(lab.0, node, "rm -f /run/held; mkfifo /run/held")?;
        let reader = GuestCommand::new("cat").arg("/run/held");
        witnesses.push(lab.0.spawn(node, &reader)?);
    }
    // The shell stays, and so does a process that it starts.
    let program = "exec 3> /run/held; echo up; sleep 1000; exit 0";
    let mut run = lab.start(&["run", "wide", "-n", "4", "--", "sh", "-c", program])?;
    let output = run.stdout.take().context("its output")?;
    let mut lines = BufReader::new(output).lines();
    for _ in 0..4 {
        let line = lines.next().context("it ended early")??;
        ensure!(line.ends_with("| up"), "{line:?}");
    }
    for node in [0, 1] {
        let found = lab.running(node)?;
        ensure!(
            found.contains("exec 3> /run/held"),
            "only {found:?} is seen to run"
        );
    }
    let pid = Pid::from_raw(run.id().try_into()?).context("a process without a number")?;
    kill_process(pid, signal).context("end the command")?;
    let status = run.wait().context("wait for the command")?;
    let orderly = status.code() == Some(130);
    ensure!(orderly == (signal == Signal::TERM), "{status}");
    for mut witness in witnesses {
        let ended = witness.wait(LIMIT)?;
        ensure!(ended.status == 0, "{}", ended.errors);
    }
    lab.nothing_runs()?;
    let listed: Value = serde_json::from_str(&lab.done(&["ls", "--json"])?)?;
    let runs = listed[0]["runs"].as_array().map(Vec::len);
    ensure!(runs == Some(0), "{listed}");
    Ok(())
}

/// `qnic machine` on the cluster of a case.
pub(super) struct Tool<'a>(pub(super) &'a VmNodes);

impl Tool<'_> {
    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let own = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(own);
        let (action, rest) = arguments.split_first().context("no action")?;
        command.args(["machine", action, "--cluster", self.0.cluster().name()]);
        command.args(rest).stdin(Stdio::null());
        Ok(command)
    }

    fn call(&self, arguments: &[&str]) -> Result<Output> {
        let output = self.command(arguments)?.output();
        output.with_context(|| format!("start {arguments:?}"))
    }

    /// Calls it, and returns what it prints.
    pub(super) fn done(&self, arguments: &[&str]) -> Result<String> {
        let output = self.call(arguments)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{arguments:?}: {errors}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(super) fn start(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = self.command(arguments)?;
        let started = command.stdout(Stdio::piped()).spawn();
        started.with_context(|| format!("start {arguments:?}"))
    }

    /// The command lines of processes of machines that run in the guest of a node.
    fn running(&self, node: usize) -> Result<String> {
        let list = "grep -l QNIC_MACHINE= /proc/[0-9]*/environ 2>/dev/null | while read f; do \
                    tr '\\0' ' ' < ${f%environ}cmdline; echo; done";
        shell(self.0, node, list)
    }

    pub(super) fn nothing_runs(&self) -> Result<()> {
        for node in 0..self.0.count() {
            let found = self.running(node)?;
            ensure!(found.trim().is_empty(), "node {node} runs {found:?}");
        }
        Ok(())
    }
}

/// The lines of a command that ends well.
pub(super) fn finished(child: Child) -> Result<Vec<String>> {
    let output = child.wait_with_output().context("wait for the command")?;
    let lines = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = lines.lines().map(str::to_owned).collect();
    match ExitStatus::success(&output.status) {
        true => Ok(lines),
        false => bail!("{}: {lines:?}", output.status),
    }
}
