//! IP between guests over their Ethernet ports (X17).

use anyhow::{ensure, Result};
use qnic_cluster::{Links, NetworkSpec, OnOff};
use serde_json::json;

use super::nodes::{on_spec, BOTH_KERNELS};
use super::shell::{no_kernel_complains, number};
use crate::harness::{cases, Case};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;

pub(crate) const CASES: &[Case] = cases! { "vm":
    guests_of_both_kernels_talk_over_ip => {
        let mut spec = VmNodes::spec("ethernet", BOTH_KERNELS)?;
        spec.network = Some(NetworkSpec::default());
        spec.ethernet = OnOff::on();
        on_spec(&spec, talk)
    },
};

/// Bytes of a stream on good links, and on bad ones.
const LONG: u64 = 64 << 20;
const SHORT: u64 = 2 << 20;

fn talk(nodes: &VmNodes) -> Result<()> {
    ping(nodes, "-c 20 -i 0.01 -W 5")?;
    // Several fragments of IP; a name.
    ping(nodes, "-c 3 -W 5 -s 20000")?;
    stream(nodes, LONG)?;
    links(
        nodes,
        &json!({"loss": "5%", "delay": "1ms", "reorder": "5%"}),
    )?;
    stream(nodes, SHORT)?;
    links(nodes, &json!({"partition": true}))?;
    let cut = shell(nodes, 0, "ping -c 2 -i 0.2 -W 1 n1 > /dev/null; echo $?")?;
    ensure!(cut.trim() == "1", "a ping through a partition: {cut}");
    nodes.cluster().set_links(&Links::All, None)?;
    ping(nodes, "-c 3 -W 5")?;
    // A pause stops the queues of the port, and they go on where they were.
    nodes.cluster().pause("n1")?;
    nodes.cluster().resume("n1")?;
    ping(nodes, "-c 3 -W 5")?;
    // The port needs neither driver nor NIC.
    shell(nodes, 1, "rmmod qnic && ! [ -e /dev/qnic0 ]")?;
    ping(nodes, "-c 3 -W 5")?;
    stream(nodes, SHORT)?;
    shell(nodes, 1, "modprobe qnic")?;
    no_kernel_complains(nodes)
}

fn links(nodes: &VmNodes, faults: &serde_json::Value) -> Result<()> {
    let faults = serde_json::from_value(faults.clone())?;
    nodes.cluster().set_links(&Links::All, Some(&faults))?;
    Ok(())
}

/// Each guest reaches the other one by its name, and no answer is lost.
fn ping(nodes: &VmNodes, options: &str) -> Result<()> {
    for node in 0..2 {
        let script = format!("ping {options} n{}", 1 - node);
        let said = shell(nodes, node, &script)?;
        ensure!(said.contains(" 0% packet loss"), "node {node}: {said}");
        let times = said.lines().last().unwrap_or_default();
        println!("    ping {options}, from node {node}: {times}");
    }
    Ok(())
}

/// Node 0 sends bytes to node 1 over TCP, and all of them arrive as they were.
fn stream(nodes: &VmNodes, bytes: u64) -> Result<()> {
    // Its input stays open: it ends the connection when that ends.
    let listen = "rm -f /tmp/received; (tail -f /dev/null | nc -l -p 5000 > /tmp/received) & \
                  until netstat -ltn | grep -q ':5000 '; do :; done";
    shell(nodes, 1, listen)?;
    let send = format!(
        "head -c {bytes} /dev/urandom > /tmp/sent; \
         before=$(cut -d ' ' -f 1 /proc/uptime); \
         nc n1 5000 < /tmp/sent; \
         after=$(cut -d ' ' -f 1 /proc/uptime); \
         echo $before $after | awk '{{ printf \"%d\\n\", ($2 - $1) * 1000 }}'"
    );
    let milliseconds = number(nodes, 0, &send)?;
    // The listener may still have to write what it has received; then it is not needed any more.
    let received = format!(
        "until [ $(stat -c %s /tmp/received) = {bytes} ]; do pidof nc > /dev/null || break; done; \
         kill $(pidof nc tail); sha256sum < /tmp/received"
    );
    let (sent, received) = (
        shell(nodes, 0, "sha256sum < /tmp/sent; rm /tmp/sent")?,
        shell(nodes, 1, &received)?,
    );
    ensure!(sent == received, "{bytes} bytes were changed on the way");
    println!("    {bytes} bytes over TCP in {milliseconds} ms");
    Ok(())
}
