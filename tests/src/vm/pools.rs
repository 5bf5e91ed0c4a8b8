//! Shared pools, datagram sockets and streams in guests with both stock kernels (S1 to S6).

use anyhow::{ensure, Context, Result};
use qnic_cluster::{Links, NetworkSpec};
use serde_json::{json, Value};

use super::nodes::{on_spec, BOTH_KERNELS};
use super::shell::{no_kernel_complains, number};
use crate::harness::{cases, is_long, Case};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{Nodes, Running, LIMIT};

pub(crate) const CASES: &[Case] = cases! { "vm":
    streams_and_sockets_of_both_kernels_on_bad_links: 0 => {
        let mut spec = VmNodes::spec("pools", BOTH_KERNELS)?;
        spec.network = Some(NetworkSpec::default());
        on_spec(&spec, streams_and_sockets)
    },
};

/// Bytes of the stream on bad links; and in a run with `--all`.
const STREAM: u64 = 64 << 20;
const STREAM_LONG: u64 = 1 << 30;

/// Processes with the largest pools that are killed: together they have more memory than a guest.
const KILLED: u64 = 40;

/// Memory that a guest may have less afterwards, in KiB: less than four of them had.
const SLACK_KIB: u64 = 32 << 10;

/// Streams and sockets between the kernels, on good links and on bad ones; ends that are killed;
/// and no kernel has anything to complain about.
fn streams_and_sockets(nodes: &VmNodes) -> Result<()> {
    let mut server = nodes.start_until(1, "pool-server", "serving")?;
    on_good_links(nodes).context("on good links")?;
    a_killed_client_leaves_nothing(nodes, &mut *server).context("a client is killed")?;
    killed_processes_give_their_pages_back(nodes).context("pools of killed processes")?;
    on_bad_links(nodes).context("on bad links")?;
    peers_of_a_killed_server_learn_of_it(nodes, server).context("the server is killed")?;
    no_kernel_complains(nodes)
}

/// Nothing is lost on good links, and the calls of a stream are few.
fn on_good_links(nodes: &VmNodes) -> Result<()> {
    let mut client = client(nodes, "--bytes 33554432 --messages 100")?;
    let stream = client.expect("checked", LIMIT)?;
    let calls = of(&stream, "calls")? as f64 / of(&stream, "frames")? as f64;
    println!("    on good links: {stream}, {calls:.3} calls for each frame");
    let echoed = client.expect("echoed", LIMIT)?;
    client.succeed("the client", LIMIT)?;
    ensure!(
        echoed == json!({"messages": 100, "attempts": 100}),
        "messages were lost: {echoed}"
    );
    Ok(())
}

/// A long stream, and messages of up to 64 KiB, at 5 % loss, reordering and duplication. The client
/// says how far the stream is, so that its limit is for a part of it and not for the whole.
fn on_bad_links(nodes: &VmNodes) -> Result<()> {
    let faults = json!({"loss": "5%", "reorder": "5%", "duplicate": "5%"});
    let faults = serde_json::from_value(faults)?;
    nodes.cluster().set_links(&Links::All, Some(&faults))?;
    let bytes = if is_long() { STREAM_LONG } else { STREAM };
    let arguments = format!("--bytes {bytes} --messages 20 --patience 300");
    let mut client = client(nodes, &arguments)?;
    let stream = client.expect("checked", LIMIT)?;
    let frames = of(&stream, "data_frames")?;
    println!("    at 5 % loss: {stream}");
    // Each twentieth is lost at least once; hardly more is sent again than that.
    let resent = of(&stream, "resent")?;
    ensure!(
        (frames / 40..frames / 8).contains(&resent),
        "{resent} of {frames} frames were sent again"
    );
    let echoed = client.expect("echoed", LIMIT)?;
    println!("    at 5 % loss: {echoed}");
    client.succeed("the client", LIMIT)?;
    nodes.cluster().set_links(&Links::All, None)?;
    Ok(())
}

/// A client is killed in the middle of a stream: the server learns of it, and the client's port is
/// free.
fn a_killed_client_leaves_nothing(nodes: &VmNodes, server: &mut dyn Running) -> Result<()> {
    let arguments = "pool-client --peer 1 --port 2003 --forever";
    let mut client = nodes.start_until(0, arguments, "streaming")?;
    let taken = nodes.start(0, arguments)?.wait(LIMIT)?;
    ensure!(
        taken.status == 1 && taken.errors.contains("holds that port"),
        "a second process on the port: {taken:?}"
    );
    client.kill()?;
    client.wait(LIMIT)?;
    server.expect("failed", LIMIT).context("the server")?;
    let mut client = self::client(nodes, "--port 2003 --bytes 65536")?;
    client.succeed("a client on the same port", LIMIT)?;
    Ok(())
}

/// Processes with the largest pools are killed, one after the other, more of them than there is
/// memory for: their pages are free again, and so is their port.
fn killed_processes_give_their_pages_back(nodes: &VmNodes) -> Result<()> {
    let available = || number(nodes, 0, "awk '/^MemAvailable/ { print $2 }' /proc/meminfo");
    let script = format!(
        "for i in $(seq {KILLED}); do rm -f /tmp/held; \
           qnic-app pool-holder > /tmp/held & held=$!; \
           until grep -qs holding /tmp/held; do kill -0 $held || exit 1; done; \
           kill -9 $held; wait $held; \
         done; cat /tmp/held; rm /tmp/held"
    );
    let before = available()?;
    let said = shell(nodes, 0, &script)?;
    let after = available()?;
    let holding: Value = serde_json::from_str(said.trim()).context(said.clone())?;
    let all_kib = KILLED * of(&holding, "holding")? / 1024;
    let total = number(nodes, 0, "awk '/^MemTotal/ { print $2 }' /proc/meminfo")?;
    ensure!(all_kib > total, "{all_kib} KiB are less than {total}");
    println!(
        "    {all_kib} KiB in pools of killed processes; {before} KiB available, then {after}"
    );
    ensure!(
        after + SLACK_KIB > before,
        "{before} KiB were available, and {after} are"
    );
    Ok(())
}

/// The server is killed in the middle of a stream: the client learns of it.
fn peers_of_a_killed_server_learn_of_it(
    nodes: &VmNodes,
    mut server: Box<dyn Running>,
) -> Result<()> {
    let mut client = nodes.start_until(0, "pool-client --peer 1 --forever", "streaming")?;
    server.kill()?;
    server.wait(LIMIT)?;
    let message = client.expect("failed", LIMIT)?;
    println!("    the client of a killed server: {message}");
    let status = client.wait(LIMIT)?.status;
    ensure!(status == 3, "the client ended with status {status}");
    // Its ports are free.
    nodes.start_until(1, "pool-server", "serving")?.kill()
}

/// A client on node 0 of the server on node 1.
fn client(nodes: &VmNodes, arguments: &str) -> Result<Box<dyn Running>> {
    nodes.start(0, &format!("pool-client --peer 1 {arguments}"))
}

/// A number that a program has said.
fn of(said: &Value, name: &str) -> Result<u64> {
    let value = said[name].as_u64();
    value.with_context(|| format!("no {name} in {said}"))
}
