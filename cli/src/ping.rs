//! `qnic ping`: checks that two nodes can talk, and what their route is like (U8).

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use clap::Args;
use qnic_cluster::{Cancel, Cluster, GuestCommand, APP_PATH};
use serde_json::{json, Value};

use crate::ui::{self, ClusterOption};

/// What the guest may take beyond the time limit: to start a program under emulation takes a second.
const GRACE: Duration = Duration::from_secs(30);

/// Options of `qnic ping`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic ping a b                      round trip, MTU and window between two nodes
  cargo qnic ping a b --json | jq .mtu
  cargo qnic ping a b --timeout 60         on links that lose nearly all
  cargo qnic ping a.disks b.disks          between NICs with a name

Node A sends probes, and the NIC of node B answers: no program and no driver of B takes part.
The round trip is the least of four, MTU is the most bytes of a transfer in one frame. In
host mode, \"qnic-app ping NUMBER\" does the same from the node that it runs on.

Exit status: 0 if they can talk, 1 if they cannot (both are named) or there is no such node,
2 for a wrong command line.")]
pub(crate) struct Options {
    /// The node that asks
    a: String,
    /// The node whose NIC answers
    b: String,
    /// Give up after this many seconds
    #[arg(long, short, value_name = "SECONDS", default_value = "5", value_parser = crate::run::seconds)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterOption,
    /// Print one JSON object: from, to, round_trip_ns, mtu, window, lossless
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cancel = Cancel::on_signals()?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let answer = ask(&cluster, options)?;
    ui::show(options.json, &answer, text)?;
    Ok(ExitCode::SUCCESS)
}

/// What node A says.
fn ask(cluster: &Cluster, options: &Options) -> Result<Value> {
    let (a, b) = (&options.a, &options.b);
    let (node, nic) = match a.split_once('.') {
        Some((node, nic)) => (node, Some(nic)),
        None => (a.as_str(), None),
    };
    let guest = cluster.guest(node)?;
    let number = cluster.number_for(a, b)?;
    let command = nic
        .iter()
        .fold(GuestCommand::new(APP_PATH), |command, nic| {
            command.env("QNIC_NIC", nic)
        });
    let command = command
        .arg("ping")
        .arg(number.to_string())
        .args(["--timeout", &options.timeout.as_secs_f64().to_string()]);
    let limit = options.timeout.saturating_add(GRACE);
    let output = guest.run(&command, limit);
    let output = output.with_context(|| format!("cannot ask node {a} about node {b}"))?;
    if !output.exit.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("Error: ");
        bail!("node {a:?} cannot reach node {b:?}, which is node {number}: {said}");
    }
    let mut answer: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("node {a} says {:?}", output.text()))?;
    answer["from"] = json!(a);
    answer["to"] = json!(b);
    Ok(answer)
}

fn text(answer: &Value) -> String {
    let name = |key: &str| answer[key].as_str().unwrap_or_default();
    let number = |key: &str| answer[key].as_u64().unwrap_or(0);
    let lossless = match answer["lossless"].as_bool() {
        Some(true) => ", lossless",
        _ => "",
    };
    format!(
        "{} to {}: round trip {:?}, MTU {} bytes, window of {} fragments{lossless}\n",
        name("from"),
        name("to"),
        Duration::from_nanos(number("round_trip_ns")),
        number("mtu"),
        number("window"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_line() {
        let mut answer = json!({"from": "a", "to": "b", "round_trip_ns": 12_300, "mtu": 4096,
            "window": 4096, "lossless": true});
        let line = "a to b: round trip 12.3µs, MTU 4096 bytes, window of 4096 fragments";
        assert_eq!(text(&answer), format!("{line}, lossless\n"));
        answer["lossless"] = json!(false);
        assert_eq!(text(&answer), format!("{line}\n"));
    }
}
