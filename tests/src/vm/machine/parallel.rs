//! Data-parallel programs on machines of guests (S7, S8): by both interfaces, between both kernels,
//! two machines at once.

use anyhow::{ensure, Context, Result};
use serde_json::Value;

use super::{finished, Tool};
use qnic_trials::nodes::shell::shell;

/// Machines of all four nodes, and what their ranks reach each other by.
const MACHINES: [(&str, &str); 2] = [("messages", "qnic"), ("flows", "pool")];

/// Ranks: two on each node.
const RANKS: u64 = 8;

const HEAT: &str = "qnic-app heat --rows 96 --columns 80 --steps 120";

/// Solver and life, whose reports have the serial run's result compared by themselves.
const SOLVER: &str = "qnic-app conjugate-gradient --rows 32 --columns 32";
const LIFE: &str = "qnic-app game-of-life --rows 64 --columns 64 --generations 80";

pub(super) fn programs(lab: &Tool<'_>) -> Result<()> {
    for (name, interface) in MACHINES {
        let nodes = "n0,n1,n2,n3";
        lab.done(&["create", name, "--nodes", nodes, "--interface", interface])?;
    }
    plate(lab).context("heat")?;
    two_at_once(lab).context("two programs at once")?;
    lab.nothing_runs()?;
    let mut names = MACHINES.iter().map(|(name, _)| name);
    names.try_for_each(|name| lab.done(&["rm", name]).map(drop))
}

/// The grid and its picture are those of a serial run, byte for byte.
fn plate(lab: &Tool<'_>) -> Result<()> {
    let alone = shell(
        lab.0,
        0,
        &format!("{HEAT} --serial --picture /tmp/alone.png"),
    )?;
    let serial: Value = serde_json::from_str(alone.trim()).context("the serial run")?;
    for (name, interface) in MACHINES {
        let command = format!("{HEAT} --picture /tmp/{name}.png");
        let report = result(&finished(start(lab, name, &command)?)?)?;
        ensure!(
            report["ranks"] == RANKS
                && report["interface"] == interface
                && report["difference"] == 0.0
                && report["crc32"] == serial["crc32"],
            "{report}, alone {serial}"
        );
        let same = format!("cmp /tmp/alone.png /tmp/{name}.png");
        shell(lab.0, 0, &same).context("the picture")?;
    }
    Ok(())
}

/// The solver on one machine and life on the other; their ranks 0 meet in a pipe before they
/// start.
fn two_at_once(lab: &Tool<'_>) -> Result<()> {
    shell(lab.0, 0, "mkfifo /run/begin")?;
    let after = |how: &str, program: &str| {
        format!("[ $QNIC_RANK != 0 ] || {how} /run/begin; exec {program}")
    };
    let (solver, life) = (after("cat", SOLVER), after("echo met >", LIFE));
    let [first, second] = MACHINES.map(|(name, _)| name);
    let solver = start_script(lab, first, &solver)?;
    let life = start_script(lab, second, &life)?;
    let (solver, life) = (finished(solver)?, finished(life)?);
    ensure!(solver.contains(&"0 | met".to_owned()), "{solver:?}");
    let (solver, life) = (result(&solver)?, result(&life)?);
    ensure!(
        solver["ranks"] == RANKS && solver["difference"].is_f64(),
        "{solver}"
    );
    ensure!(
        life["ranks"] == RANKS && life["difference"] == 0.0,
        "{life}"
    );
    Ok(())
}

fn start(lab: &Tool<'_>, name: &str, command: &str) -> Result<std::process::Child> {
    let ranks = RANKS.to_string();
    let words = ["run", name, "-n", &ranks, "--"];
    lab.start(
        &words
            .into_iter()
            .chain(command.split(' '))
            .collect::<Vec<_>>(),
    )
}

fn start_script(lab: &Tool<'_>, name: &str, script: &str) -> Result<std::process::Child> {
    let ranks = RANKS.to_string();
    lab.start(&["run", name, "-n", &ranks, "--", "sh", "-c", script])
}

/// The report of rank 0 among the lines of a run.
fn result(lines: &[String]) -> Result<Value> {
    let mut own = lines.iter().filter_map(|line| line.strip_prefix("0 | "));
    let found = own.find(|line| line.contains("crc32"));
    let found = found.with_context(|| format!("no report in {lines:?}"))?;
    Ok(serde_json::from_str(found)?)
}
