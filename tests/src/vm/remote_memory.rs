//! Remote memory in guests (H9): a file system and swap in the memory of two others.

use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::nodes::{on, VmNodes};
use super::shell::{kernel_complaints, shell};
use crate::harness::{cases, Case};
use crate::nodes::until;

pub(crate) const CASES: &[Case] = cases! { "vm":
    swap_and_files_outlive_their_servers => on("memory", &["stable", "backports", "stable"], outlive),
};

/// Longest time for repair.
const LIMIT: Duration = Duration::from_secs(120);
/// What a process in this control group keeps beyond its memory is swapped out.
const GROUP: &str = "echo +memory >/sys/fs/cgroup/cgroup.subtree_control && \
                     mkdir -p /sys/fs/cgroup/small && echo 16M >/sys/fs/cgroup/small/memory.max && \
                     echo $$ >/sys/fs/cgroup/small/cgroup.procs";

/// Node 0 uses the memory of nodes 1 and 2, which are killed in turn and come back empty.
fn outlive(nodes: &VmNodes) -> Result<()> {
    for server in [1, 2] {
        shell(nodes, server, "qnic-rmem serve --size 80MiB --key 5ec2e7")?;
    }
    refusals(nodes)?;
    let attach = "qnic-rmem attach --size 64MiB --replicas 2 --servers 1,2 --key 5ec2e7";
    shell(nodes, 0, attach)?;
    files(nodes)?;
    swap(nodes)?;
    shell(
        nodes,
        0,
        "swapoff /dev/qnicmem0 && qnic-rmem detach && test ! -e /dev/qnicmem0",
    )?;
    for server in [1, 2] {
        shell(nodes, server, "qnic-rmem leave --timeout 30")?;
    }
    for node in 0..3 {
        let complaints = kernel_complaints(nodes, node)?;
        ensure!(
            complaints.is_empty(),
            "the kernel of node {node}:\n{complaints}"
        );
    }
    Ok(())
}

/// What is wrong is said, and leaves nothing.
fn refusals(nodes: &VmNodes) -> Result<()> {
    for (script, says) in [
        (
            "qnic-rmem attach --size 1MiB --replicas 2 --servers 1",
            "at least as many servers",
        ),
        (
            "qnic-rmem attach --size 1MiB --replicas 1 --servers 1,1",
            "named once",
        ),
        ("qnic-rmem detach", "no volume is attached"),
        ("qnic-rmem detach 3", "no such volume"),
        ("qnic-rmem leave", "gives no memory"),
        ("qnic-rmem serve --size 64GiB", "memory"),
        (
            "qnic-rmem attach --size 1MiB --replicas 1 --servers 1 --key 1",
            "has another key",
        ),
    ] {
        let said = shell(nodes, 0, &format!("{script} 2>&1; test $? = 1"))?;
        ensure!(
            said.contains(says),
            "{script:?} says {said:?}, not {says:?}"
        );
    }
    let status = status(nodes)?;
    ensure!(status["volumes"] == serde_json::json!([]), "{status}");
    Ok(())
}

/// A file system keeps what was written, and its volume cannot be detached meanwhile.
fn files(nodes: &VmNodes) -> Result<()> {
    shell(
        nodes,
        0,
        "mke2fs -b 4096 /dev/qnicmem0 && mount -t ext4 /dev/qnicmem0 /mnt",
    )?;
    let write = "head -c 24m /dev/urandom | tee /mnt/data | sha256sum && sync";
    let sum = shell(nodes, 0, write)?;
    let said = shell(nodes, 0, "qnic-rmem detach 2>&1; test $? = 1")?;
    ensure!(said.contains("mounted"), "{said:?}");
    kill(nodes, 1)?;
    let read = "echo 3 >/proc/sys/vm/drop_caches && sha256sum </mnt/data";
    let again = shell(nodes, 0, read)?;
    ensure!(sum == again, "the file is {again}, it was {sum}");
    shell(nodes, 0, "umount /mnt")?;
    come_back(nodes, 1)
}

/// Memory that is swapped out comes back as it was, while servers are killed in turn.
fn swap(nodes: &VmNodes) -> Result<()> {
    shell(nodes, 0, "mkswap /dev/qnicmem0 && swapon /dev/qnicmem0")?;
    let write = format!("{GROUP} && head -c 40m /dev/urandom | tee /dev/shm/data | sha256sum");
    let sum = shell(nodes, 0, &write)?;
    let swapped = shell(nodes, 0, "cat /sys/fs/cgroup/small/memory.swap.current")?;
    let swapped: u64 = swapped.trim().parse().context("memory.swap.current")?;
    ensure!(swapped > 16 << 20, "only {swapped} bytes were swapped out");
    for server in [2, 1] {
        kill(nodes, server)?;
        let again = shell(nodes, 0, &format!("{GROUP} && sha256sum </dev/shm/data"))?;
        ensure!(sum == again, "the memory is {again}, it was {sum}");
        come_back(nodes, server)?;
    }
    shell(nodes, 0, "rm /dev/shm/data")?;
    let status = status(nodes)?;
    let volume = &status["volumes"][0];
    let repaired = volume["repair"]["copied"].as_u64().unwrap_or(0);
    ensure!(
        repaired > 0 && volume["counters"]["failed"] == 0,
        "{status}"
    );
    Ok(())
}

/// A server is gone, with all that it holds.
fn kill(nodes: &VmNodes, server: usize) -> Result<()> {
    shell(nodes, server, "qnic-rmem leave --now").map(drop)
}

/// It is there again, empty, until every block is on both servers.
fn come_back(nodes: &VmNodes, server: usize) -> Result<()> {
    shell(nodes, server, "qnic-rmem serve --size 80MiB --key 5ec2e7")?;
    until(LIMIT, || {
        let status = status(nodes)?;
        let volume = &status["volumes"][0];
        let (servers, repair) = (&volume["servers"], &volume["repair"]);
        let live = (0..2).all(|server| servers[server]["state"] == "live");
        let same = servers[0]["pages"] == servers[1]["pages"] && servers[0]["pages"] != 0;
        let whole = repair["running"] == false && repair["missing"] == 0 && repair["lost"] == 0;
        Ok((!(live && same && whole)).then(|| status.to_string()))
    })
}

/// What the tool says on node 0.
fn status(nodes: &VmNodes) -> Result<serde_json::Value> {
    let text = shell(nodes, 0, "qnic-rmem status --json")?;
    serde_json::from_str(&text).with_context(|| text.clone())
}
