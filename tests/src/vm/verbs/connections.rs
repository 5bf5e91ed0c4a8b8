//! Connections by rdma_cm: programs of librdmacm find each other by the IP addresses of their Ethernet ports (X18).

use std::time::Instant;

use anyhow::{ensure, Context, Result};

use super::{is_used, with_all};
use crate::harness::is_long;
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, Nodes, Running, LIMIT};

/// A server, its client, and what stands in front of the server's address, by which both find the device.
type Pair = (&'static str, &'static str, &'static str);

const PROGRAMS: [Pair; 3] = [
    (
        "rping -s -C 10 -S 65535 -V",
        "rping -c -C 10 -S 65535 -V",
        "-a ",
    ),
    (
        "ucmatose -c 3 -C 4 -S 4096",
        "ucmatose -c 3 -C 4 -S 4096",
        "-s ",
    ),
    ("ib_send_bw -R -n 100", "ib_send_bw -R -n 100", ""),
];

/// Those that run with `--all`.
const MORE_PROGRAMS: [Pair; 4] = [
    ("rping -s -C 10 -S 23", "rping -c -C 10 -S 23", "-a "),
    (
        "ib_write_bw -R -q 2 -n 100",
        "ib_write_bw -R -q 2 -n 100",
        "",
    ),
    ("ib_read_lat -R -n 100", "ib_read_lat -R -n 100", ""),
    ("ib_atomic_lat -R -n 100", "ib_atomic_lat -R -n 100", ""),
];

/// A program of libibverbs names the second port and its address itself.
const BY_GID: &str = "ibv_rc_pingpong -d qnic0 -i 2 -g 1 -c -n 100";

/// Waits until a server of rdma_cm listens.
const LISTENS: &str = "until rdma resource show cm_id | grep -q 'state LISTEN'; do :; done";

/// Programs connect between both guests in both directions, and on one.
pub(super) fn pass(nodes: &VmNodes) -> Result<()> {
    let begun = Instant::now();
    for node in [0, 1] {
        has_addresses(nodes, node)?;
    }
    for (index, programs) in with_all(&PROGRAMS, &MORE_PROGRAMS).enumerate() {
        let on = index % 2;
        connect(nodes, (on, 1 - on), *programs)?;
    }
    if is_long() {
        connect_once(nodes, 1, 1).context("with itself")?;
    }
    super::both_run(nodes, 1, BY_GID)?;
    an_absent_server_refuses(nodes)?;
    println!("    connections: {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// A program connects with one on another node, and exchanges checked messages.
pub(crate) fn connect_once(nodes: &VmNodes, on: usize, from: usize) -> Result<()> {
    connect(nodes, (on, from), PROGRAMS[0])
}

/// Programs use the second port of both guests, and connect by it.
pub(super) fn by_second_port(nodes: &VmNodes) -> Result<()> {
    for node in [0, 1] {
        has_addresses(nodes, node)?;
        connect_once(nodes, node, 1 - node)?;
    }
    super::both_run(nodes, 1, BY_GID)
}

/// The second port is that of the Ethernet port, with its addresses.
fn has_addresses(nodes: &VmNodes, node: usize) -> Result<()> {
    until(LIMIT, || {
        let said = shell(nodes, node, "ibv_devinfo -v -i 2")?;
        let address = format!("::ffff:10.71.0.{}, RoCE v2", node + 1);
        let all = ["Ethernet", "PORT_ACTIVE", &address];
        let there = all.iter().all(|word| said.contains(word));
        Ok((!there).then_some(said))
    })
    .with_context(|| format!("the second port of node {node}"))
}

fn connect(
    nodes: &VmNodes,
    (on, from): (usize, usize),
    (server, client, address): Pair,
) -> Result<()> {
    let run = || {
        let mut serves = background(nodes, on, &format!("exec {server}"))?;
        shell(nodes, on, LISTENS)?;
        shell(
            nodes,
            from,
            &format!("{client} {address}10.71.0.{}", on + 1),
        )?;
        serves.succeed("its server", LIMIT)?;
        (0..nodes.count()).try_for_each(|node| is_used(nodes, node, false))
    };
    run().with_context(|| format!("{client}, the server on node {on}"))
}

/// The other guest's connection manager says that no program listens.
fn an_absent_server_refuses(nodes: &VmNodes) -> Result<()> {
    let said = shell(nodes, 0, "! rping -d -c -a 10.71.0.2 -C 1 2>&1")?;
    ensure!(
        said.contains("RDMA_CM_EVENT_REJECTED"),
        "rping said: {said}"
    );
    (0..nodes.count()).try_for_each(|node| is_used(nodes, node, false))
}

/// A connection that works until something ends it: its server on node 0, its client on node 1.
pub(super) fn endless(nodes: &VmNodes) -> Result<[Box<dyn Running>; 2]> {
    let server = background(nodes, 0, "exec rping -s")?;
    shell(nodes, 0, LISTENS)?;
    let client = background(nodes, 1, "exec rping -c -a 10.71.0.1")?;
    until(LIMIT, || {
        let said = shell(nodes, 1, "rdma resource show cm_id")?;
        Ok((!said.contains("state CONNECT")).then_some(said))
    })?;
    Ok([server, client])
}
