//! Unmodified programs of libibverbs on the NIC (X18): the distribution's, with the library of Soft-RoCE.

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ByteSize, ClusterSpec, Links, NetworkSpec, OnOff, QueuePairFaults, ShareSpec};
use serde_json::json;

mod bad_links;
mod beyond_ram;
mod ci_example;
mod connections;
mod crates;
mod ends;
mod own_mac;
mod programs;
mod soft_roce;
mod ucx;

pub(super) use self::connections::connect_once;
use super::nodes::{on_spec, BOTH_KERNELS};
use super::verbs_tests;
use crate::harness::{cases, is_long, Case};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, Nodes, Running, LIMIT};

pub(crate) const CASES: &[Case] = cases! { "vm":
    programs_of_libibverbs_run_over_the_nics => on_spec(&spec()?, verbs),
    soft_roce_works_beside_the_nics => on_spec(&soft_roce::spec()?, soft_roce::works_beside),
    programs_of_libibverbs_register_more_than_there_is => {
        on_spec(&beyond_ram::spec()?, beyond_ram::is_written)
    },
    a_node_with_a_mac_of_its_own_has_no_second_port => {
        on_spec(&own_mac::spec()?, own_mac::has_the_first_port)
    },
    the_example_of_ci_for_libibverbs_passes => ci_example::passes(),
};

/// How often messages go to and fro.
const ROUNDS: u32 = 100;

/// A guest of each kernel.
fn spec() -> Result<ClusterSpec> {
    let mut spec = VmNodes::spec("verbs", BOTH_KERNELS)?;
    spec.verbs = true;
    // With UCX, and what stands on it.
    spec.mpi = true;
    // Programs tell each other of their queue pairs over TCP.
    spec.ethernet = OnOff::on();
    spec.network = Some(NetworkSpec::default());
    for node in &mut spec.nodes {
        node.memory = ByteSize::mib(384);
    }
    spec.nodes[0].share = Some(ShareSpec {
        at: verbs_tests::PLACE.into(),
        ..ShareSpec::new(verbs_tests::directory()?)
    });
    Ok(spec)
}

fn verbs(nodes: &VmNodes) -> Result<()> {
    for node in [0, 1] {
        finds_device(nodes, node)?;
    }
    for (server, program) in with_all(&PONGS, &MORE_PONGS).enumerate() {
        let pong = format!("ibv_{program} -d qnic0 -c -n {ROUNDS}");
        both_run(nodes, server % 2, &pong)?;
    }
    for (server, program) in with_all(&MEASURES, &MORE_MEASURES).enumerate() {
        both_run(nodes, server % 2, &format!("{program} -d qnic0"))?;
    }
    for node in [0, 1] {
        let counts = "rdma statistic show link qnic0/1 | grep 'acknowledgements [1-9]'";
        shell(nodes, node, counts)?;
    }
    connections::pass(nodes).context("connections by rdma_cm")?;
    verbs_tests::pass(nodes, 0).context("the tests of libibverbs")?;
    ucx::pass(nodes).context("UCX")?;
    if is_long() {
        crates::pass(nodes).context("a Rust program")?;
    }
    programs::hear_of_their_objects(nodes).context("events")?;
    bad_links::pass(nodes).context("on bad links")?;
    faults_are_injected(nodes).context("injected faults")?;
    ports_go_down(nodes).context("ports go down")?;
    ends::pass(nodes).context("under traffic")
}

/// What always runs, and behind it what only runs with `--all`.
fn with_all<T>(always: &'static [T], more: &'static [T]) -> impl Iterator<Item = &'static T> {
    always.iter().chain(more.iter().filter(|_| is_long()))
}

/// Programs of rdma-core that send messages to and fro, and check what arrives: one of each transport.
const PONGS: [&str; 4] = [
    "rc_pingpong -s 65536",
    "uc_pingpong -e",
    "ud_pingpong -e -g 0",
    "srq_pingpong -e -q 4",
];

/// Those with other sizes, and other waits.
const MORE_PONGS: [&str; 6] = [
    "rc_pingpong -s 1",
    "rc_pingpong -e",
    "rc_pingpong -e -s 65536",
    "uc_pingpong -s 65536",
    "ud_pingpong -s 2048",
    "srq_pingpong -q 4",
];

/// Programs of perftest: one of each operation.
const MEASURES: [&str; 5] = [
    "ib_write_bw -s 65536 -n 100",
    "ib_read_lat -n 100",
    "ib_atomic_lat -n 100",
    "ib_send_bw -e -q 2 -n 100",
    "ib_send_lat -c UD -n 100",
];

/// The same with other sizes, transports and queues.
const MORE_MEASURES: [&str; 7] = [
    "ib_write_lat -I 32 -n 100",
    // From 2 bytes to 8 MiB.
    "ib_write_bw -a -q 2 -n 5",
    "ib_read_bw -s 1 -q 4 -n 100",
    "ib_send_bw -c UC -s 65536 -n 100",
    "ib_write_bw -c UC -q 2 -n 100",
    "ib_send_bw -c UD -s 4096 -n 100",
    "ib_send_bw --use-srq -q 3 -n 100",
];

/// A program goes on when its messages find no receive, and ends when its queue pair fails.
fn faults_are_injected(nodes: &VmNodes) -> Result<()> {
    let pong = "ibv_rc_pingpong -d qnic0 -n 1000000000";
    let server = background(nodes, 0, &format!("exec {pong}"))?;
    shell(nodes, 0, LISTENS)?;
    let client = background(nodes, 1, &format!("exec {pong} n0"))?;
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
    // The second time shows that messages come after the first.
    for _ in 0..2 {
        cluster.inject("n0", number, &not_ready)?;
        until(LIMIT, || {
            let left = row()?.context("the queue pair has failed")?.pop();
            Ok((left.as_deref() != Some("-")).then(|| format!("{left:?}")))
        })?;
    }
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

/// Waits until a server listens: on port 18515, or on 13337 if it is that of `ucx_perftest`.
const LISTENS: &str = "until cat /proc/net/tcp* | grep -q ':\\(4853\\|3419\\) .* 0A '; do :; done";

/// A program runs on the first two guests until it ends well, and leaves no object.
pub(super) fn both_run(nodes: &VmNodes, server: usize, program: &str) -> Result<()> {
    let run = || {
        let mut serves = background(nodes, server, &format!("exec {program}"))?;
        shell(nodes, server, LISTENS)?;
        shell(nodes, 1 - server, &format!("{program} n{server}"))?;
        serves.succeed("its server", LIMIT)?;
        [0, 1]
            .into_iter()
            .try_for_each(|node| is_used(nodes, node, false))
    };
    run().with_context(|| format!("{program}, the server on node {server}"))
}

/// A node that is cut off has both ports down, one without its Ethernet port the second one; programs hear of it.
fn ports_go_down(nodes: &VmNodes) -> Result<()> {
    let mend = || {
        nodes.cluster().set_links(&Links::All, None)?;
        Ok(())
    };
    programs_hear(nodes, || cut(nodes), mend).context("a partition")?;
    let ethernet = |state| {
        let set = format!("ip link set eth0 {state}");
        [0, 1]
            .into_iter()
            .try_for_each(|node| shell(nodes, node, &set).map(drop))
    };
    programs_hear(nodes, || ethernet("down"), || ethernet("up")).context("the Ethernet port")
}

/// Programs hear of a port that goes down and comes back.
fn programs_hear(
    nodes: &VmNodes,
    goes: impl FnOnce() -> Result<()>,
    comes: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let watches = "exec ibv_asyncwatch -d qnic0 > /tmp/events";
    let watches: Vec<_> = [0, 1]
        .into_iter()
        .map(|node| background(nodes, node, watches))
        .collect::<Result<_>>()?;
    [0, 1]
        .into_iter()
        .try_for_each(|node| is_used(nodes, node, true))?;
    goes()?;
    port_is(nodes, "PORT_DOWN", "IBV_EVENT_PORT_ERR")?;
    comes()?;
    port_is(nodes, "PORT_ACTIVE", "IBV_EVENT_PORT_ACTIVE")?;
    for node in [0, 1] {
        shell(nodes, node, "killall ibv_asyncwatch")?;
        is_used(nodes, node, false)?;
    }
    drop(watches);
    Ok(())
}

fn cut(nodes: &VmNodes) -> Result<()> {
    let cut = serde_json::from_value(json!({"partition": true}))?;
    nodes.cluster().set_links(&Links::All, Some(&cut))?;
    Ok(())
}

/// Waits until both nodes have their port in this state, and programs that watch have heard of it.
fn port_is(nodes: &VmNodes, state: &str, event: &str) -> Result<()> {
    [0, 1].into_iter().try_for_each(|node| {
        until(LIMIT, || {
            let said = shell(nodes, node, "cat /tmp/events; ibv_devinfo")?;
            let told = said.contains(event) && said.contains(state);
            Ok((!told).then_some(said))
        })
        .with_context(|| format!("{state} on node {node}"))
    })
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
            let count: u32 = count.parse().with_context(|| said.clone())?;
            // Those of the kernel's connection manager, for both ports.
            let own = if ["pd", "cq", "qp"].contains(&object) {
                2
            } else {
                0
            };
            used |= count != own;
        }
        Ok((used != wanted).then(|| format!("node {node}: {said}")))
    })
}

/// A program with an open context.
fn user(nodes: &VmNodes, node: usize) -> Result<Box<dyn Running>> {
    let user = background(nodes, node, "exec ibv_asyncwatch -d qnic0 > /tmp/events")?;
    is_used(nodes, node, true)?;
    Ok(user)
}

/// Waits until the program with an open context has heard that its device is gone.
fn hears_of_the_end(nodes: &VmNodes, node: usize) -> Result<()> {
    until(LIMIT, || {
        let said = shell(nodes, node, "cat /tmp/events")?;
        Ok((!said.contains("IBV_EVENT_DEVICE_FATAL")).then_some(said))
    })
}
