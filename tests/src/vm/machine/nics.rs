//! Two guests, one of each kernel, with two NICs each on networks of their own: programs and machines
//! choose one by its name, and what happens to the other network is nothing to them (S7).

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ImpairmentChange, Links, NetworkSpec, NicSpec};

use super::{finished, Tool};
use crate::scenario;
use crate::vm::nodes::{on_spec, BOTH_KERNELS};
use crate::vm::shell::no_kernel_complains;
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::OnNic;

pub(super) fn two_networks() -> Result<()> {
    let mut spec = VmNodes::spec("nics", BOTH_KERNELS)?;
    spec.network = Some(NetworkSpec {
        peer_timeout: Some("2s".parse()?),
        ..NetworkSpec::default()
    });
    let disks = ("disks".to_owned(), NetworkSpec::default());
    spec.networks.extend([disks]);
    let nic = |name: &str, network: Option<&str>| NicSpec {
        name: name.to_owned(),
        network: network.map(str::to_owned),
    };
    for node in &mut spec.nodes {
        node.memory = super::MEMORY;
        node.nics = vec![nic("main", None), nic("disks", Some("disks"))];
    }
    on_spec(&spec, |nodes| {
        let cut = |partition| {
            let change = ImpairmentChange {
                partition: Some(partition),
                ..ImpairmentChange::default()
            };
            let links = Links::Between("n0".to_owned(), "n1".to_owned());
            nodes.cluster().set_links(&links, Some(&change))?;
            match partition {
                true => a_machine_goes_on(&Tool(nodes)),
                false => Ok(()),
            }
        };
        let cut: &dyn Fn(bool) -> Result<()> = &cut;
        scenario::one_network_is_partitioned_and_the_other_goes_on(nodes, "disks", cut)?;
        counters_are_apart(nodes)?;
        no_kernel_complains(nodes)
    })
}

/// Machines of the other NIC, whose programs use it in both ways.
fn a_machine_goes_on(lab: &Tool<'_>) -> Result<()> {
    let wrong = lab.call(&["create", "x", "--nodes", "n0,n1", "--nic", "disk"])?;
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    let expected = "node n0 has no NIC \"disk\": it has main, disks";
    ensure!(said.contains(expected), "{said}");
    for interface in ["qnic", "pool"] {
        let nodes = [
            "--nodes",
            "n0,n1",
            "--nic",
            "disks",
            "--interface",
            interface,
        ];
        lab.done(&[&["create", interface], &nodes[..]].concat())?;
        let game = "qnic-app game-of-life --rows 64 --columns 64 --generations 50";
        let program: Vec<_> = game.split_whitespace().collect();
        let run = [&["run", interface, "--timeout", "100", "--"], &program[..]].concat();
        let lines = finished(lab.start(&run)?).with_context(|| interface.to_owned())?;
        ensure!(
            lines.iter().any(|line| line.contains("\"ranks\":2")),
            "{lines:?}"
        );
        lab.done(&["rm", interface])?;
    }
    Ok(())
}

/// The files of NICs are theirs, whose counters are given by name.
fn counters_are_apart(nodes: &VmNodes) -> Result<()> {
    let files = shell(
        nodes,
        0,
        "readlink /dev/qnic/main; readlink /dev/qnic/disks",
    )?;
    ensure!(files == "../qnic0\n../qnic1\n", "{files:?}");
    let sent = |nic: &str| {
        let stats = nodes.cluster().nic_stats(nic)?;
        let sent = stats["counters"]["bytes_sent"].as_u64();
        let sent = sent.or_else(|| stats["statistics"]["bytes_sent"].as_u64());
        sent.with_context(|| format!("no bytes_sent of {nic}: {stats}"))
    };
    let before = [sent("n0.main")?, sent("n0.disks")?];
    scenario::demo_between(&OnNic(nodes, "disks"), [0, 1], "65537", 4096)?;
    let after = [sent("n0.main")?, sent("n0.disks")?];
    ensure!(
        after[0] == before[0] && after[1] > before[1],
        "{before:?} {after:?}"
    );
    Ok(())
}
