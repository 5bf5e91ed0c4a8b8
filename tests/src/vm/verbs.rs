//! Unmodified programs of libibverbs on the NIC (X18): the distribution's, with the library of Soft-RoCE.

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ByteSize, ClusterSpec, Links, NetworkSpec, OnOff, QueuePairFaults};

use super::nodes::{on_spec, BOTH_KERNELS};
use super::shell::no_kernel_complains;
use crate::harness::{cases, Case};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, Nodes, Running, LIMIT};

pub(crate) const CASES: &[Case] = cases! { "vm":
    programs_of_libibverbs_run_over_the_nics => on_spec(&spec()?, verbs),
};

/// How often messages go to and fro.
const ROUNDS: u32 = 100;

/// A guest of each kernel.
fn spec() -> Result<ClusterSpec> {
    let mut spec = VmNodes::spec("verbs", BOTH_KERNELS)?;
    spec.verbs = true;
    // Programs tell each other of their queue pairs over TCP.
    spec.ethernet = OnOff::on();
    spec.network = Some(NetworkSpec::default());
    for node in &mut spec.nodes {
        node.memory = ByteSize::mib(384);
    }
    Ok(spec)
}

fn verbs(nodes: &VmNodes) -> Result<()> {
    for node in [0, 1] {
        finds_device(nodes, node)?;
    }
    let pong = format!("ibv_rc_pingpong -d qnic0 -c -n {ROUNDS}");
    for (server, options) in [(0, "-s 1"), (1, "-s 65536"), (0, "-e"), (1, "-e -s 65536")] {
        both_run(nodes, server, &format!("{pong} {options}"))?;
    }
    for (server, program) in [
        (0, "ib_write_bw -s 65536"),
        (1, "ib_read_lat"),
        (0, "ib_atomic_lat"),
        (1, "ib_send_bw -e -q 2"),
        (0, "ib_write_lat -I 32"),
    ] {
        both_run(nodes, server, &format!("{program} -d qnic0 -n {ROUNDS}"))?;
    }
    on_bad_links(nodes, &pong).context("on bad links")?;
    faults_are_injected(nodes).context("injected faults")?;
    module_goes_under_traffic(nodes)?;
    for node in [0, 1] {
        module_goes(nodes, node).with_context(|| format!("node {node}"))?;
        device_goes(nodes, node).with_context(|| format!("node {node}"))?;
    }
    no_kernel_complains(nodes)
}

/// Links lose, reorder, duplicate and damage 5 % of the frames, those of TCP too.
fn on_bad_links(nodes: &VmNodes, pong: &str) -> Result<()> {
    nodes.make_links_bad(5)?;
    both_run(nodes, 0, &format!("{pong} -e -s 65536"))?;
    for program in ["ib_write_bw -s 65536", "ib_read_lat", "ib_atomic_lat"] {
        both_run(nodes, 1, &format!("{program} -d qnic0 -n {ROUNDS}"))?;
    }
    nodes.lost_frames(0)?;
    nodes.cluster().set_links(&Links::All, None)?;
    Ok(())
}

/// A program goes on when its messages find no receive, and ends when its queue pair fails.
fn faults_are_injected(nodes: &VmNodes) -> Result<()> {
    let pong = "ibv_rc_pingpong -d qnic0 -n 1000000000";
    let server = background(nodes, 0, &format!("exec {pong}"))?;
    let client = background(nodes, 1, &client(pong, 0))?;
    let cluster = nodes.cluster();
    let row = || -> Result<Option<Vec<String>>> {
        let table = cluster.nic_table("n0", "queue_pairs")?;
        let rows: Vec<Vec<String>> = serde_json::from_value(table["rows"].clone())?;
        Ok(rows.into_iter().find(|row| row[3] == "RTS"))
    };
    let mut number = None;
    until(LIMIT, || {
        number = row()?.and_then(|row| row[0].parse().ok());
        Ok(number.is_none().then(|| "no queue pair".to_owned()))
    })?;
    let number = number.context("the number of a queue pair")?;
    let not_ready = QueuePairFaults {
        not_ready: 3,
        ..QueuePairFaults::default()
    };
    cluster.inject("n0", number, &not_ready)?;
    until(LIMIT, || {
        let left = row()?.context("the queue pair has failed")?.pop();
        Ok((left.as_deref() != Some("-")).then(|| format!("{left:?}")))
    })?;
    let unknown = cluster.inject("n0", number + 1000, &not_ready);
    let error = unknown.err().map(|error| error.to_string());
    ensure!(
        error.is_some_and(|error| error.contains("no queue pair")),
        "a queue pair that is not there has faults"
    );
    let fails = QueuePairFaults {
        fails: true,
        ..QueuePairFaults::default()
    };
    cluster.inject("n0", number, &fails)?;
    (0..nodes.count()).try_for_each(|node| is_used(nodes, node, false))?;
    drop((server, client));
    Ok(())
}

/// `ibv_devinfo` shows the NIC.
fn finds_device(nodes: &VmNodes, node: usize) -> Result<()> {
    let said = shell(nodes, node, "ibv_devinfo -v")?;
    let words: Vec<_> = said.split_whitespace().collect();
    let lid = format!("{}", node + 1);
    for wanted in [
        ["hca_id:", "qnic0"],
        ["state:", "PORT_ACTIVE"],
        ["port_lid:", &lid],
        ["link_layer:", "InfiniBand"],
    ] {
        let found = words.windows(2).any(|pair| pair == wanted);
        ensure!(found, "ibv_devinfo on node {node} lacks {wanted:?}: {said}");
    }
    is_used(nodes, node, false)
}

/// The command of a program's client, which is refused until its server listens.
fn client(program: &str, server: usize) -> String {
    format!(
        "tries=100; until {program} n{server}; do tries=$((tries - 1)); [ $tries -gt 0 ] || exit; done"
    )
}

/// A program runs on both guests until it ends well, and leaves no object.
fn both_run(nodes: &VmNodes, server: usize, program: &str) -> Result<()> {
    let run = || {
        let mut serves = background(nodes, server, &format!("exec {program}"))?;
        shell(nodes, 1 - server, &client(program, server))?;
        serves.succeed("its server", LIMIT)?;
        (0..nodes.count()).try_for_each(|node| is_used(nodes, node, false))
    };
    run().with_context(|| format!("{program}, the server on node {server}"))
}

/// The module of the device can be unloaded while a queue pair works.
fn module_goes_under_traffic(nodes: &VmNodes) -> Result<()> {
    let pong = "ibv_rc_pingpong -d qnic0 -e -n 1000000000";
    let server = background(nodes, 0, &format!("exec {pong}"))?;
    let client = background(nodes, 1, &format!("{}; true", client(pong, 0)))?;
    is_used(nodes, 0, true)?;
    until(LIMIT, || {
        let said = shell(nodes, 1, "rdma resource show qp")?;
        Ok((!said.contains("state RTS")).then_some(said))
    })?;
    shell(
        nodes,
        1,
        "rmmod qnic_ib && ! ibv_devinfo && modprobe qnic_ib",
    )?;
    for node in [0, 1] {
        shell(nodes, node, "killall -q -9 ibv_rc_pingpong; true")?;
        is_used(nodes, node, false)?;
        finds_device(nodes, node)?;
    }
    drop((server, client));
    Ok(())
}

/// Checks whether a program has objects of the device.
fn is_used(nodes: &VmNodes, node: usize, wanted: bool) -> Result<()> {
    until(LIMIT, || {
        let said = shell(nodes, node, "rdma resource show qnic0")?;
        let mut words = said
            .split_whitespace()
            .skip_while(|word| *word != "qnic0:")
            .skip(1);
        let mut used = false;
        while let (Some(object), Some(count)) = (words.next(), words.next()) {
            // The count of connections of the kernel's own has no number here.
            used |= object != "cm_id" && count != "0";
        }
        Ok((used != wanted).then(|| format!("node {node}: {said}")))
    })
}

/// A program with an open context.
fn user(nodes: &VmNodes, node: usize) -> Result<Box<dyn Running>> {
    let user = background(nodes, node, "exec ibv_asyncwatch -d qnic0")?;
    is_used(nodes, node, true)?;
    Ok(user)
}

/// The module of the device can be unloaded while a program has it open, and be loaded again.
fn module_goes(nodes: &VmNodes, node: usize) -> Result<()> {
    let user = user(nodes, node)?;
    shell(nodes, node, "rmmod qnic_ib")?;
    ensure!(
        shell(nodes, node, "ibv_devinfo").is_err(),
        "there is a device without its module"
    );
    shell(nodes, node, "modprobe qnic_ib")?;
    finds_device(nodes, node)?;
    drop(user);
    shell(nodes, node, "killall -q ibv_asyncwatch; true").map(drop)
}

/// The device goes with its NIC, and comes with it.
fn device_goes(nodes: &VmNodes, node: usize) -> Result<()> {
    let user = user(nodes, node)?;
    let driver = "cd /sys/bus/virtio/drivers/qnic && name=$(echo virtio*)";
    let again = format!("{driver} && echo $name > unbind && ! ibv_devinfo && echo $name > bind");
    shell(nodes, node, &again)?;
    finds_device(nodes, node)?;
    drop(user);
    shell(nodes, node, "killall -q ibv_asyncwatch; true").map(drop)
}
