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

/// A guest: its cluster, its place there, and its name.
pub(super) type Guest<'a> = (&'a VmNodes, usize, &'a str);

/// Two guests reach each other, by packets of which several carry one, and by a stream.
pub(super) fn reach(a: Guest<'_>, b: Guest<'_>) -> Result<()> {
    for (from, to) in [(a, b), (b, a)] {
        ping(from, to, "-c 3 -W 5 -s 20000")?;
    }
    stream(a, b, SHORT)
}

fn talk(nodes: &VmNodes) -> Result<()> {
    let (a, b) = ((nodes, 0, "n0"), (nodes, 1, "n1"));
    let ping = |options: &str| {
        ping(a, b, options)?;
        ping(b, a, options)
    };
    ping("-c 20 -i 0.01 -W 5")?;
    // Several fragments of IP; a name.
    ping("-c 3 -W 5 -s 20000")?;
    stream(a, b, LONG)?;
    links(
        nodes,
        &json!({"loss": "5%", "delay": "1ms", "reorder": "5%"}),
    )?;
    stream(a, b, SHORT)?;
    links(nodes, &json!({"partition": true}))?;
    let cut = shell(nodes, 0, "ping -c 2 -i 0.2 -W 1 n1 > /dev/null; echo $?")?;
    ensure!(cut.trim() == "1", "a ping through a partition: {cut}");
    nodes.cluster().set_links(&Links::All, None)?;
    ping("-c 3 -W 5")?;
    // A pause stops the queues of the port, and they go on where they were.
    nodes.cluster().pause("n1")?;
    nodes.cluster().resume("n1")?;
    ping("-c 3 -W 5")?;
    // The port needs neither driver nor NIC.
    shell(nodes, 1, "rmmod qnic && ! [ -e /dev/qnic0 ]")?;
    ping("-c 3 -W 5")?;
    stream(a, b, SHORT)?;
    shell(nodes, 1, "modprobe qnic")?;
    no_kernel_complains(nodes)
}

fn links(nodes: &VmNodes, faults: &serde_json::Value) -> Result<()> {
    let faults = serde_json::from_value(faults.clone())?;
    nodes.cluster().set_links(&Links::All, Some(&faults))?;
    Ok(())
}

/// A guest reaches another one by its name, and no answer is lost.
fn ping((nodes, node, name): Guest<'_>, (_, _, peer): Guest<'_>, options: &str) -> Result<()> {
    let said = shell(nodes, node, &format!("ping {options} {peer}"))?;
    ensure!(said.contains(" 0% packet loss"), "{name}: {said}");
    let times = said.lines().last().unwrap_or_default();
    println!("    ping {options}, from {name} to {peer}: {times}");
    Ok(())
}

/// A guest sends bytes to another one over TCP, and all of them arrive as they were.
fn stream(from: Guest<'_>, to: Guest<'_>, bytes: u64) -> Result<()> {
    let ((nodes, node, _), (others, other, peer)) = (from, to);
    // Its input stays open: it ends the connection when that ends.
    let listen = "rm -f /tmp/received; (tail -f /dev/null | nc -l -p 5000 > /tmp/received) & \
                  until netstat -ltn | grep -q ':5000 '; do :; done";
    shell(others, other, listen)?;
    let send = format!(
        "head -c {bytes} /dev/urandom > /tmp/sent; \
         before=$(cut -d ' ' -f 1 /proc/uptime); \
         nc {peer} 5000 < /tmp/sent; \
         after=$(cut -d ' ' -f 1 /proc/uptime); \
         echo $before $after | awk '{{ printf \"%d\\n\", ($2 - $1) * 1000 }}'"
    );
    let milliseconds = number(nodes, node, &send)?;
    // The listener may still have to write what it has received; then it is not needed any more.
    let received = format!(
        "until [ $(stat -c %s /tmp/received) = {bytes} ]; do pidof nc > /dev/null || break; done; \
         kill $(pidof nc tail); sha256sum < /tmp/received"
    );
    let (sent, received) = (
        shell(nodes, node, "sha256sum < /tmp/sent; rm /tmp/sent")?,
        shell(others, other, &received)?,
    );
    ensure!(sent == received, "{bytes} bytes were changed on the way");
    println!("    {bytes} bytes over TCP in {milliseconds} ms");
    Ok(())
}
