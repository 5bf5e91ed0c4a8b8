//! Trials in guests (X19): how they end, what they keep, and that nothing of them stays.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ByteSize, Cancel, ClusterSpec, NodeSpec, Runtime, Silent};
use qnic_trials::matrix::{run as run_all, Matrix};
use qnic_trials::{Outcome, Program, Quiet, Trial, Verdict};
use serde_json::{json, Value};

use super::ci;
use super::nodes::on_network;
use crate::harness::{cases, Case};
use crate::scenario;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

pub(crate) const CASES: &[Case] = cases! { "vm":
    trials_end_as_their_programs_do_and_leave_nothing => ends(),
    a_matrix_finds_what_fails_and_its_command_repeats_it => matrix(),
    a_fresh_nic_has_nothing_of_the_last_test => on_network("fresh", 2, fresh_nic),
    steps_of_ci_run_in_a_clean_clone_of_a_new_project => ci::steps_of_ci(),
};

/// A cluster of so many small guests.
pub(super) fn spec(nodes: u32) -> ClusterSpec {
    let node = |number| NodeSpec {
        memory: ByteSize::mib(192),
        ..NodeSpec::new(format!("n{number}"))
    };
    (0..nodes).fold(ClusterSpec::new("trial"), |spec, number| {
        spec.with(node(number))
    })
}

/// A trial of `words` on `spec`.
pub(super) fn trial(spec: ClusterSpec, words: &[&str]) -> Result<Trial> {
    let words: Vec<_> = words.iter().map(OsString::from).collect();
    Ok(Trial {
        spec,
        settings: Vec::new(),
        program: Program::find(&words).map_err(anyhow::Error::msg)?,
        on: None,
        timeout: Duration::from_secs(120),
        boot_timeout: Duration::from_secs(180),
        artifacts: None,
        capture: false,
        cell: None,
        gate: None,
        host: false,
        runtime: Runtime::from_env()?,
        progress: Arc::new(Silent),
    })
}

pub(super) fn run(trial: &Trial) -> Result<Outcome> {
    let outcome = trial.run(&Cancel::on_signals()?, &Quiet);
    let ours = format!("trial-{}", std::process::id());
    let left = trial.runtime.names();
    let left = left.iter().find(|name| name.starts_with(&ours));
    ensure!(left.is_none(), "cluster {left:?} is left");
    Ok(outcome)
}

/// A status, a timeout and a panic have statuses of their own; the artifacts tell of each.
fn ends() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let kept = dir.path().join("kept");
    let script = "echo out; echo err >&2; exit 7";
    let mut failing = trial(spec(2), &["sh", "-c", script])?;
    failing.on = Some("n1".into());
    failing.artifacts = Some(kept.clone());
    failing.capture = true;
    let outcome = run(&failing)?;
    let expected = Verdict::Failed {
        node: "n1".into(),
        status: 7,
    };
    ensure!(outcome.verdict == expected, "{outcome:?}");
    let read = |name: &str| fs::read_to_string(kept.join(name)).context(name.to_owned());
    ensure!(read("n1/stdout.log")? == "out\n" && read("n1/stderr.log")? == "err\n");
    ensure!(!kept.join("n0/stdout.log").exists(), "n0 ran nothing");
    for node in ["n0", "n1"] {
        let dmesg = read(&format!("{node}/dmesg.log"))?;
        ensure!(dmesg.contains("qnic"), "no driver in {dmesg}");
        let nic: Value = serde_json::from_str(&read(&format!("{node}/nic.json"))?)?;
        ensure!(nic["state"] == "running", "{nic}");
    }
    let links: Value = serde_json::from_str(&read("links.json")?)?;
    ensure!(
        links["links"].as_array().map(Vec::len) == Some(2),
        "{links}"
    );
    let capture = fs::metadata(kept.join("capture.pcapng")).context("the capture")?;
    ensure!(capture.len() > 0, "the capture is empty");
    let result: Value = serde_json::from_str(&read("result.json")?)?;
    ensure!(result["status"] == 7, "{result}");

    let mut slow = trial(spec(1), &["sleep", "1000"])?;
    slow.timeout = Duration::from_secs(1);
    let outcome = run(&slow)?;
    ensure!(
        outcome.verdict == Verdict::TimedOut("n0".into()),
        "{outcome:?}"
    );

    let crash = "echo c > /proc/sysrq-trigger; sleep 1000";
    let outcome = run(&trial(spec(1), &["sh", "-c", crash])?)?;
    ensure!(
        outcome.verdict == Verdict::Panicked("n0".into()),
        "{outcome:?}"
    );
    let told = format!("{:?}", outcome.cases);
    ensure!(told.contains("Kernel panic"), "no console in {told}");
    Ok(())
}

/// A process, its segments and the faults of its links are gone, and all works as before.
fn fresh_nic(nodes: &VmNodes) -> Result<()> {
    let state = || -> Result<(Value, Value)> {
        let mut stats = nodes.cluster().device_stats()?;
        let link = stats["network"]["links"][0]["impairments"].take();
        Ok((stats["nics"][0]["statistics"]["segments"].take(), link))
    };
    let _server = nodes.start_until(0, "memory-server", "serving")?;
    nodes.make_links_bad(20)?;
    let (segments, link) = state()?;
    ensure!(
        segments.as_u64() > Some(0) && link != json!({}),
        "{segments} {link}"
    );
    nodes.cluster().renew_nic(nodes.node(0)?)?;
    let (segments, link) = state()?;
    ensure!(segments == 0 && link == json!({}), "{segments} {link}");
    scenario::all_pairs_exchange(nodes, 10)
}

/// Fails if much was sent again: on lossless links little is, however busy the machine.
const RESENT: &str = r#"#!/bin/sh
if [ "$QNIC_NODE" = 1 ]; then exec qnic-app demo-target; fi
qnic-app demo-initiator --peer 1 --sizes 4096 || exit 9
resent=$(qnic-app info | sed 's/.*"frames_resent":\([0-9]*\).*/\1/')
echo "resent: $resent"
[ "$resent" -lt 100 ]
"#;

/// A program that fails at 5 % loss passes without; the command that the matrix prints for
/// the failed cell fails each time.
fn matrix() -> Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let program = dir.path().join("resent");
    fs::write(&program, RESENT).context("write the program")?;
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).context("chmod")?;
    let file = dir.path().join("trial.toml");
    fs::write(&file, spec(2).to_toml()?).context("write the cluster file")?;
    let axes = vec!["loss=0,5%".parse().map_err(anyhow::Error::msg)?];
    let matrix = Matrix::new(&spec(2), axes, Vec::new(), 1, 1)?;
    let cells = matrix.cells();
    let path = program.to_str().context("a path that is no text")?;
    let mut trials = Vec::new();
    for (index, cell) in cells.iter().enumerate() {
        let mut one = trial(matrix.spec_of(&spec(2), cell)?, &[path])?;
        one.settings = matrix.settings_of(cell);
        one.cell = Some(index);
        trials.push(one);
    }
    let outcomes = run_all(&trials, 1, &Cancel::on_signals()?, &mut |_, _| {});
    let [Some(clear), Some(lossy)] = &outcomes[..] else {
        anyhow::bail!("not two outcomes: {outcomes:?}");
    };
    ensure!(clear.verdict.passed(), "{clear:?}");
    ensure!(lossy.verdict.status() == 1, "{lossy:?}");
    let own = std::env::current_exe().context("find this program")?;
    let before = [own.into(), "exec".into(), file.into()];
    let after = ["--".into(), program.clone().into()];
    let command = matrix.command(&cells[1], &before, &after);
    for _ in 0..3 {
        let status = shell(&command, Path::new("/"))?;
        ensure!(status == Some(1), "{command}: status {status:?}");
    }
    Ok(())
}

/// Runs `command` in `dir`; its status.
fn shell(command: &str, dir: &Path) -> Result<Option<i32>> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(dir);
    let status = shell.status().with_context(|| format!("start {command}"))?;
    Ok(status.code())
}
