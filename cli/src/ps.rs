//! `qnic ps`: lists the running clusters.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use indicatif::HumanBytes;
use qnic_cluster::{
    of_other_versions, overview, ClusterOverview, Mode, NodeOverview, ProcessOverview,
};

use crate::{slurm, ui};

/// Options of `qnic ps`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic ps
  cargo qnic ps --json | jq -r '.[].nodes[].name'

States: ready (the guest agent answers), booting, paused (its CPUs are stopped),
panicked (its kernel has, and is stopped; see \"logs\"), not answering (its agent has
not for 10 s), dead (its QEMU has ended), silent (its QEMU does not answer). IP is the
address of the Ethernet port; \"--json\" has its MAC address, too. MEMORY is
what the process uses now; the guest's memory is shared between QEMU and the device
process and counts in both.

A cluster's files (its logs, sockets, cluster file) are in $XDG_RUNTIME_DIR/qnic/CLUSTER, or
in /tmp/qnic-UID/CLUSTER without that variable; its disks in /var/tmp/qnic-UID/CLUSTER. \"--json\"
says where. They go with the cluster. A cluster that another version of qnic has booted is named
on standard error, and is not among the others.

Exit status: 0 if all nodes are ready, booting or paused and all device processes run,
1 if not.")]
pub(crate) struct Options {
    /// Print a JSON array of clusters
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let runtime = ui::runtime()?;
    for (name, version) in of_other_versions(&runtime) {
        eprintln!(
            "qnic: cluster {name} was booted by qnic {version}: \"qnic down {name}\" ends it"
        );
    }
    let clusters = overview(&runtime);
    ui::show(options.json, &clusters[..], table)?;
    let (on_slurm, well) = match options.json {
        true => (String::new(), true),
        false => slurm::ps()?,
    };
    print!("{on_slurm}");
    Ok(
        match well && clusters.iter().all(ClusterOverview::is_well) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
    )
}

fn table(clusters: &[ClusterOverview]) -> String {
    let head = [
        "CLUSTER", "NODE", "STATE", "KERNEL", "CPUS", "RAM", "IP", "PID", "UPTIME", "MEMORY",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for cluster in clusters {
        let mode = match cluster.mode {
            Mode::Attached => " (attached)",
            Mode::Detached => "",
        };
        let name = format!("{}{mode}", cluster.name);
        let mut add = |node: String, facts: [String; 5], used: Option<&ProcessOverview>| {
            let [state, kernel, cpus, ram, ip] = facts;
            let [pid, uptime, memory] = process(used);
            let cluster = name.clone();
            rows.push([
                cluster, node, state, kernel, cpus, ram, ip, pid, uptime, memory,
            ]);
        };
        for node in &cluster.nodes {
            let facts = [
                node.state.to_string(),
                node.kernel.to_owned(),
                format!("{} {}", node.cpus, cluster.accel),
                HumanBytes(node.memory_bytes).to_string(),
                ip_of(node),
            ];
            add(node.name.clone(), facts, node.qemu.as_ref());
        }
        for device in &cluster.devices {
            let state = if device.process.alive {
                "running"
            } else {
                "dead"
            };
            let facts = [state, "-", "-", "-", "-"].map(str::to_owned);
            add(format!("({})", device.name), facts, Some(&device.process));
        }
    }
    ui::aligned(&rows)
}

fn ip_of(node: &NodeOverview) -> String {
    let address = node.ethernet.map(|port| port.ip.address().to_string());
    address.unwrap_or_else(|| "-".to_owned())
}

fn process(process: Option<&ProcessOverview>) -> [String; 3] {
    match process {
        Some(process) if process.alive => [
            process.pid.to_string(),
            duration(process.uptime_seconds),
            HumanBytes(process.resident_bytes).to_string(),
        ],
        _ => ["-", "-", "-"].map(str::to_owned),
    }
}

fn duration(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds:02}s"),
        _ => format!("{hours}h{minutes:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_cluster::{Accel, EthernetPort, NodeState};

    /// A guest that panicked or hangs is never called ready, and the exit status says so.
    #[test]
    fn states_are_shown_in_words_and_told_by_the_exit_status() {
        let shown = |state: NodeState| {
            let cluster = ClusterOverview {
                name: "c".into(),
                directory: "/run/qnic/c".into(),
                mode: Mode::Detached,
                accel: Accel::Tcg,
                owner: None,
                age_seconds: 1,
                nodes: vec![NodeOverview {
                    name: "a".into(),
                    state,
                    kernel: "stable",
                    cpus: 1,
                    memory_bytes: 1 << 28,
                    ethernet: Some(EthernetPort {
                        mac: "52:54:00:71:00:00".parse().unwrap(),
                        ip: "10.71.0.1".parse().unwrap(),
                    }),
                    qemu: None,
                }],
                devices: Vec::new(),
                remote_memory: Vec::new(),
            };
            let well = cluster.is_well();
            let json = serde_json::to_value(&cluster).unwrap();
            (table(&[cluster]), json, well)
        };
        for (state, words, expected) in [
            (NodeState::Ready, "ready", true),
            (NodeState::Panicked, "panicked", false),
            (NodeState::NotAnswering, "not answering", false),
        ] {
            let (text, json, well) = shown(state);
            assert!(
                text.contains(&format!("c        a     {words}  ")),
                "{text}"
            );
            assert_eq!(json["directory"], "/run/qnic/c");
            assert!(text.contains("  10.71.0.1  -"), "{text}");
            let ethernet = &json["nodes"][0]["ethernet"];
            assert_eq!(ethernet["mac"], "52:54:00:71:00:00");
            assert_eq!(ethernet["ip"], "10.71.0.1/16");
            let json = json["nodes"][0]["state"].clone();
            assert_eq!((json, well), (words.into(), expected));
        }
    }

    #[test]
    fn durations_are_short() {
        assert_eq!([5, 65, 3700].map(duration), ["5s", "1m05s", "1h01m"]);
    }
}
