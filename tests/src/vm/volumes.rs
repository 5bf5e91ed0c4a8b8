//! What a mounted volume of guests outlives while I/O runs (H9), and what it does not: its client is paused,
//! it is cut off, a server guest is switched off, its servers are full, its NIC is unbound. One cluster.

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::{ByteSize, Links};
use serde_json::{json, Value};

use super::nodes::on_spec;
use super::remote_memory::{limit_group, lost_its_pages, spec_of, swaps, LIMIT};
use super::shell::kernel_complaints;
use crate::harness::{cases, Case};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, Nodes, Running};

pub(crate) const CASES: &[Case] = cases! { "vm":
    a_mounted_volume_outlives_silences_and_full_servers: 0 => {
        on_spec(&spec_of("volumes", &["stable", "backports", "stable"])?, outlive)
    },
};

/// The client; the other two are servers.
const CLIENT: usize = 0;
/// How long the client is paused, and how long links lose everything, in seconds: longer than the leases
/// were that lost all of a volume, and a multiple of that.
const PAUSES: [u64; 2] = [20, 60];
const CUTS: [u64; 2] = [17, 40];
/// The volume, the file that a program writes to it, and what a server gives.
const VOLUME: &str = "64MiB";
const FILE: &str = "disk-verify --path /mnt/data --size 32MiB";
const SERVE: &str = "qnic-rmem serve --size 96MiB";
/// The pages of a server that the volume leaves, and those of a thin volume that finds no more.
const LEFT_PAGES: u64 = 8192;
const THIN: &str = "qnic-rmem attach --size 64MiB --replicas 1 --servers 1 --thin";
/// What a process writes that swaps to such a volume: more than it and its control group have.
const SWAPPED: ByteSize = ByteSize::mib(64);

/// All of it, on one volume with two copies of each block. The order is from what harms nothing to what ends it.
fn outlive(nodes: &VmNodes) -> Result<()> {
    for server in [1, 2] {
        shell(nodes, server, SERVE)?;
    }
    let attach = format!(
        "qnic-rmem attach --size {VOLUME} --replicas 2 --servers 1,2 --timeout 120 && \
         /usr/sbin/mke2fs -q -t ext4 -b 4096 /dev/qnicmem0 && mount -t ext4 /dev/qnicmem0 /mnt"
    );
    shell(nodes, CLIENT, &attach).context("attach")?;
    pauses(nodes).context("the client is paused")?;
    cuts(nodes).context("links are cut")?;
    full(nodes).context("a server is full")?;
    a_server_is_switched_off(nodes).context("a server is switched off")?;
    the_nic_is_unbound(nodes).context("the NIC is unbound")
}

/// The client's guest stands still while it writes, and goes on as if nothing had been.
fn pauses(nodes: &VmNodes) -> Result<()> {
    for seconds in PAUSES {
        let mut program = writing(nodes)?;
        nodes.cluster().pause("n0")?;
        pass(nodes, seconds)?;
        nodes.cluster().resume("n0")?;
        program.expect("whole", LIMIT)?;
        program.succeed("disk-verify", LIMIT)?;
        is_whole(nodes).with_context(|| format!("after {seconds} s"))?;
    }
    // The links have lost nothing, and hardly anything was sent again.
    let volume = volume(nodes, 0)?;
    println!("    after pauses: {volume}");
    let counted = |name: &str| volume["counters"][name].as_u64().unwrap_or(0);
    let (pages, again) = (
        counted("reads") + counted("writes"),
        counted("retransmissions"),
    );
    ensure!(pages > 0 && again <= pages / 10, "{volume}");
    Ok(())
}

/// Nothing goes through while a program writes; then all of it does.
fn cuts(nodes: &VmNodes) -> Result<()> {
    let all = serde_json::from_value(json!({ "loss": "100%" }))?;
    for seconds in CUTS {
        let mut program = writing(nodes)?;
        nodes.cluster().set_links(&Links::All, Some(&all))?;
        pass(nodes, seconds)?;
        nodes.cluster().set_links(&Links::All, None)?;
        program.expect("whole", LIMIT)?;
        program.succeed("disk-verify", LIMIT)?;
        is_whole(nodes).with_context(|| format!("after {seconds} s"))?;
    }
    Ok(())
}

/// What a monitor reads.
const SCRAPE: &str = "{ qnic-rmem status --prometheus || test $? = 3; }";

fn has_sample(said: &str, sample: &str) -> Result<()> {
    ensure!(
        said.lines().any(|line| line == sample),
        "no {sample} in {said}"
    );
    Ok(())
}

/// A thin volume gets what is left at its server, and then each write fails at once, without a storm of
/// messages. Swap on such a volume ends the program that needs more, and not the guest.
fn full(nodes: &VmNodes) -> Result<()> {
    let before = packets(nodes)?;
    let fill = format!(
        "{THIN} && dd if=/dev/zero of=/dev/qnicmem1 bs=1M oflag=direct 2>&1; qnic-rmem status; test $? = 3 && {SCRAPE}"
    );
    let said = shell(nodes, CLIENT, &fill)?;
    ensure!(
        said.contains("No space left on device") && said.contains("FULL"),
        "{said}"
    );
    has_sample(&said, "qnic_rmem_volume_full{volume=\"/dev/qnicmem1\"} 1")?;
    has_sample(&said, "qnic_rmem_volume_full{volume=\"/dev/qnicmem0\"} 0")?;
    let sent = packets(nodes)? - before;
    println!("    {sent} packets of the client until its server was full");
    ensure!(
        (LEFT_PAGES..2 * LEFT_PAGES).contains(&sent),
        "{sent} packets"
    );
    let swap =
        format!("qnic-rmem detach 1 && {THIN} && mkswap /dev/qnicmem1 && swapon /dev/qnicmem1");
    shell(nodes, CLIENT, &swap)?;
    limit_group(nodes, CLIENT)?;
    let ended = swaps(nodes, CLIENT, SWAPPED)?.wait(LIMIT)?;
    lost_its_pages(&ended)?;
    shell(nodes, CLIENT, "swapoff /dev/qnicmem1 && qnic-rmem detach 1")?;
    is_whole(nodes)
}

/// One of two servers goes without a word. What was written is read from the other one.
fn a_server_is_switched_off(nodes: &VmNodes) -> Result<()> {
    let mut program = writing(nodes)?;
    nodes.node(2)?.power_off()?;
    program.expect("whole", LIMIT)?;
    program.succeed("disk-verify", LIMIT)?;
    let said = shell(
        nodes,
        CLIENT,
        &format!("qnic-rmem status; test $? = 3 && {SCRAPE}"),
    )?;
    ensure!(said.contains("DEGRADED"), "{said}");
    let whole = "qnic_rmem_volume_degraded{volume=\"/dev/qnicmem0\"} 0\n";
    ensure!(
        said.contains("qnic_rmem_volume_degraded") && !said.contains(whole),
        "{said}"
    );
    let volume = volume(nodes, 0)?;
    ensure!(
        volume["counters"]["failed"] == 0 && volume["repair"]["lost"] == 0,
        "{volume}"
    );
    Ok(())
}

/// The NIC goes under a mounted file system: the program learns of it, and the guest is as good as new.
fn the_nic_is_unbound(nodes: &VmNodes) -> Result<()> {
    let mut program = writing(nodes)?;
    let driver = "cd /sys/bus/virtio/drivers/qnic";
    let device = shell(nodes, CLIENT, &format!("{driver} && echo virtio*"))?;
    let device = device.trim();
    shell(
        nodes,
        CLIENT,
        &format!("{driver} && echo {device} > unbind"),
    )?;
    let ended = program.wait(LIMIT)?;
    ensure!(ended.status == 1, "{ended:?}");
    shell(nodes, CLIENT, "umount /mnt && test ! -e /dev/qnicmem0")?;
    shell(nodes, CLIENT, &format!("{driver} && echo {device} > bind"))?;
    // The server has learned that the old client is gone, or does so now.
    until(LIMIT, || {
        let attach =
            format!("qnic-rmem attach --size {VOLUME} --replicas 1 --servers 1 2>&1; true");
        let said = shell(nodes, CLIENT, &attach)?;
        Ok((!said.contains("/dev/qnicmem0")).then_some(said))
    })?;
    shell(nodes, CLIENT, "qnic-rmem detach")?;
    for node in [CLIENT, 1] {
        let complaints = kernel_complaints(nodes, node)?;
        ensure!(
            complaints.is_empty(),
            "the kernel of node {node}: {complaints}"
        );
    }
    Ok(())
}

/// A program that has begun to write to the file system.
fn writing(nodes: &VmNodes) -> Result<Box<dyn Running>> {
    let mut program = nodes.start(CLIENT, FILE)?;
    program.expect("written", LIMIT)?;
    Ok(program)
}

/// Lets time pass, as the clock of a server sees it.
fn pass(nodes: &VmNodes, seconds: u64) -> Result<()> {
    shell(nodes, 1, &format!("sleep {seconds}")).map(drop)
}

/// Waits until each block of the volume has its copies, and checks that none was lost and no request failed.
fn is_whole(nodes: &VmNodes) -> Result<()> {
    until(LIMIT, || {
        let volume = volume(nodes, 0)?;
        let (repair, counters) = (&volume["repair"], &volume["counters"]);
        if repair["lost"] != 0 || counters["failed"] != 0 {
            bail!("{volume}");
        }
        let whole = repair["running"] == false && repair["missing"] == 0;
        Ok((!whole).then(|| volume.to_string()))
    })
}

/// What the tool says of a volume of the client.
fn volume(nodes: &VmNodes, number: usize) -> Result<Value> {
    let text = shell(nodes, CLIENT, "qnic-rmem status --json || test $? = 3")?;
    let mut status: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    Ok(status["volumes"][number].take())
}

/// Packets that the client has sent.
fn packets(nodes: &VmNodes) -> Result<u64> {
    let text = shell(nodes, CLIENT, "qnic-app info")?;
    let info: Value = serde_json::from_str(text.trim())?;
    let sent = info["datagrams"]["packets_sent"].as_u64();
    sent.with_context(|| text.clone())
}
