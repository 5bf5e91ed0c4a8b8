//! Remote memory in guests (H9): a file system and swap in the memory of two others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic_cluster::{ByteSize, ClusterSpec, FileSpec, Links, NetworkSpec};
use qnic_images::{Cache, GuestFile, Provisioner, Silent};
use rustix::process::Signal;
use serde_json::json;

use super::nodes::on_spec;
use super::shell::{kernel_complaints, no_kernel_complains};
use crate::harness::{cases, is_long, Case};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{until, Ended, Nodes, Running};

pub(crate) const CASES: &[Case] = cases! { "vm":
    swap_and_files_outlive_their_servers => on_spec(&spec()?, outlive),
};

/// Longest time for repair, and between two lines of a program that swaps: several times what either
/// takes on a machine that builds beside it.
pub(super) const LIMIT: Duration = Duration::from_secs(480);
/// Memory of the guest that swaps.
const SMALL: ByteSize = ByteSize::mib(128);
/// Memory of the servers, and what each gives: the volumes of the tests, each of which reserves all it needs.
const SERVER: ByteSize = ByteSize::mib(1024);
const SERVE: &str = "qnic-rmem serve --size 640MiB --key 5ec2e7";
/// What a process writes that has no more than [`SMALL`]; and in a run with `--all`.
const WRITTEN: ByteSize = ByteSize::mib(280);
const WRITTEN_LONG: ByteSize = ByteSize::mib(600);
/// Its threads: while one waits for a page, others go on.
const THREADS: usize = 4;

/// A small guest, and two servers whose memory it uses.
fn spec() -> Result<ClusterSpec> {
    let mut spec = spec_of("memory", &["stable", "backports", "stable"])?;
    for node in &mut spec.nodes[1..] {
        node.memory = SERVER;
    }
    spec.nodes[0].memory = SMALL;
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    spec.nodes[1].files = specs(provisioner.fio()?);
    Ok(spec)
}

/// Guests on links that can be changed, of which the first one makes file systems.
pub(super) fn spec_of(name: &str, kernels: &[&str]) -> Result<ClusterSpec> {
    let mut spec = VmNodes::spec(name, kernels)?;
    spec.network = Some(NetworkSpec::default());
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    spec.nodes[0].files = specs(provisioner.ext4_programs()?);
    Ok(spec)
}

/// Files of packages, for the `files` of a node.
pub(super) fn specs(files: Vec<GuestFile>) -> Vec<FileSpec> {
    let spec = |file: GuestFile| FileSpec {
        from: file.host_path,
        to: file.guest_path,
        mode: file.mode,
    };
    files.into_iter().map(spec).collect()
}

/// Node 0 uses the memory of nodes 1 and 2, which are killed in turn and come back empty.
fn outlive(nodes: &VmNodes) -> Result<()> {
    let mut steps = Steps(Instant::now());
    for server in [1, 2] {
        shell(nodes, server, SERVE)?;
    }
    refusals(nodes)?;
    let attach = "qnic-rmem attach --size 608MiB --replicas 2 --servers 1,2 --key 5ec2e7";
    shell(nodes, 0, attach)?;
    steps.done("attached");
    files(nodes).context("a file system")?;
    steps.done("files");
    let loss = serde_json::from_value(json!({ "loss": "5%" }))?;
    nodes.cluster().set_links(&Links::All, Some(&loss))?;
    swap(nodes, &mut steps).context("swap")?;
    shell(nodes, 2, SERVE)?;
    fio(nodes).context("fio")?;
    steps.done("fio");
    nodes.lost_frames(0)?;
    nodes.cluster().set_links(&Links::All, None)?;
    let detach = "swapoff /dev/qnicmem0 && qnic-rmem detach && test ! -e /dev/qnicmem0";
    shell(nodes, 0, detach)?;
    for server in [1, 2] {
        shell(nodes, server, "qnic-rmem leave --timeout 30")?;
    }
    no_kernel_complains(nodes)?;
    steps.done("over");
    Ok(())
}

/// Where the time goes.
struct Steps(Instant);

impl Steps {
    fn done(&mut self, what: &str) {
        println!("    {what}: {:.1} s", self.0.elapsed().as_secs_f64());
        self.0 = Instant::now();
    }
}

/// fio writes blocks anywhere on a volume of node 2, on bad links, reads each again and compares its
/// checksum, also in a second run that only reads. Then a block is changed behind its back, and it
/// says so.
fn fio(nodes: &VmNodes) -> Result<()> {
    let attach = "qnic-rmem attach --size 32MiB --replicas 1 --servers 2 --key 5ec2e7";
    shell(nodes, 1, attach)?;
    // Each job has blocks of its own. The generator of offsets meets each block once.
    let verify = "fio --name=verify --filename=/dev/qnicmem0 --direct=1 --bs=4k --rw=randwrite \
                  --numjobs=4 --size=8m --offset_increment=8m --verify=crc32c --verify_fatal=1 \
                  --random_generator=lfsr --thread --group_reporting --output-format=terse";
    for engine in ["--ioengine=libaio --iodepth=16", "--ioengine=psync"] {
        let said = shell(nodes, 1, &format!("{verify} {engine}"));
        said.with_context(|| format!("fio with {engine}"))?;
    }
    let again = format!("{verify} --ioengine=psync --verify_only");
    shell(nodes, 1, &again).context("fio that only reads")?;
    let damage = "dd if=/dev/zero of=/dev/qnicmem0 bs=4k count=1 seek=2500 conv=fsync";
    shell(nodes, 1, damage)?;
    let found = shell(nodes, 1, &format!("! {again} 2>&1"))?;
    ensure!(found.contains("verify: bad"), "{found:?}");
    shell(nodes, 1, "qnic-rmem detach").map(drop)
}

/// What is wrong is said, and leaves nothing.
fn refusals(nodes: &VmNodes) -> Result<()> {
    for (script, says) in [
        (
            "qnic-rmem attach --size 1MiB --replicas 2 --servers 1",
            "2 replicas need at least as many servers",
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
    ensure!(status["volumes"] == json!([]), "{status}");
    Ok(())
}

/// A file system keeps what was written, also while a server dies, and is without fault afterwards.
/// Its volume cannot be detached meanwhile.
fn files(nodes: &VmNodes) -> Result<()> {
    let make = "/usr/sbin/mke2fs -q -t ext4 -b 4096 /dev/qnicmem0 128M && \
                mount -t ext4 /dev/qnicmem0 /mnt";
    shell(nodes, 0, make)?;
    let mut program = nodes.start(0, "disk-verify --path /mnt/data --size 64MiB")?;
    program.expect("written", LIMIT)?;
    kill(nodes, 1)?;
    let said = shell(nodes, 0, "qnic-rmem detach 2>&1; test $? = 1")?;
    ensure!(said.contains("mounted"), "{said:?}");
    program.succeed("disk-verify", LIMIT)?;
    shell(
        nodes,
        0,
        "umount /mnt && /usr/sbin/e2fsck -f -n /dev/qnicmem0",
    )?;
    come_back(nodes, 1, 1)
}

/// A process writes several times the memory of its guest, and finds it as it was, while servers
/// are killed in turn.
fn swap(nodes: &VmNodes, steps: &mut Steps) -> Result<()> {
    shell(nodes, 0, "mkswap /dev/qnicmem0 && swapon /dev/qnicmem0")?;
    let written = if is_long() { WRITTEN_LONG } else { WRITTEN };
    let arguments = format!("disk-verify --size {written} --threads {THREADS}");
    let mut program = nodes.start(0, &arguments)?;
    program.expect("written", LIMIT)?;
    for (server, killed) in [(2, 2), (1, 3)] {
        kill(nodes, server)?;
        steps.done("killed");
        come_back(nodes, server, killed)?;
        steps.done("back");
    }
    kill(nodes, 2)?;
    program.expect("whole", LIMIT)?;
    program.succeed("disk-verify", LIMIT)?;
    steps.done("whole");
    let status = status(nodes)?;
    println!("    {status}");
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

/// It is there again, empty, as the last of so many that were killed; until every block is on both
/// servers.
fn come_back(nodes: &VmNodes, server: usize, killed: u64) -> Result<()> {
    shell(nodes, server, SERVE)?;
    until(LIMIT, || {
        let status = match status(nodes) {
            Err(error) if is_busy(&error) => return Ok(Some(error.to_string())),
            status => status?,
        };
        let volume = &status["volumes"][0];
        let (servers, repair) = (&volume["servers"], &volume["repair"]);
        let live = (0..2).all(|server| servers[server]["state"] == "live");
        // Until the client notices, a server that was killed looks as before.
        let attached = volume["counters"]["attached"] == 2 + killed;
        let whole = repair["running"] == false && repair["missing"] == 0 && repair["lost"] == 0;
        Ok((!(live && attached && whole)).then(|| status.to_string()))
    })
}

/// A guest that has to page its programs in, on a machine that does much else, may take longer to start
/// one than a caller waits for that. One that restarted, or killed what was started, is not busy.
fn is_busy(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(qnic_cluster::Error::Guest { message, .. }) => message.contains("has not answered"),
        _ => false,
    }
}

/// What the tool says on node 0.
fn status(nodes: &VmNodes) -> Result<serde_json::Value> {
    let text = shell(nodes, 0, "qnic-rmem status --json || test $? = 3")?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

/// Memory that a process of a control group has, and what it writes.
const GROUP: &str = "12M";
const GROUP_WRITES: ByteSize = ByteSize::mib(24);
/// Longest time of a request, and after which a task that does not run counts as hung, in seconds.
const REQUEST: u64 = 10;
const HUNG: u64 = 30;

/// Swap on links with 10 ms of delay: a process finds what it has written. Then the links lose
/// everything: a process that needs its pages is told so in time, and reads nothing that was there before.
pub(super) fn swap_on_links_that_delay(nodes: &VmNodes, client: usize) -> Result<()> {
    let mut steps = Steps(Instant::now());
    let links = |faults| -> Result<()> {
        let faults = serde_json::from_value(faults)?;
        nodes.cluster().set_links(&Links::All, Some(&faults))?;
        Ok(())
    };
    nodes.cluster().set_links(&Links::All, None)?;
    links(json!({ "delay": "10ms" }))?;
    let servers: Vec<_> = (0..nodes.count()).filter(|node| *node != client).collect();
    for server in &servers {
        shell(nodes, *server, "qnic-rmem serve --size 64MiB")?;
    }
    let names: Vec<_> = servers.iter().map(ToString::to_string).collect();
    let prepare = format!(
        "echo {HUNG} > /proc/sys/kernel/hung_task_timeout_secs && \
         qnic-rmem attach --size 64MiB --replicas 2 --servers {} --timeout {REQUEST} && \
         mkswap /dev/qnicmem0 && swapon /dev/qnicmem0",
        names.join(",")
    );
    shell(nodes, client, &prepare).context("attach")?;
    limit_group(nodes, client)?;
    let mut program = swaps(nodes, client, GROUP_WRITES)?;
    program.expect("whole", LIMIT)?;
    program.succeed("disk-verify", LIMIT)?;
    let volume = status(nodes)?["volumes"][0].take();
    ensure!(volume["counters"]["failed"] == 0, "{volume}");
    steps.done("swap at 10 ms");

    let mut program = swaps(nodes, client, GROUP_WRITES)?;
    program.expect("changed", LIMIT)?;
    links(json!({ "loss": "100%" }))?;
    let ended = program.wait(LIMIT)?;
    lost_its_pages(&ended)?;
    steps.done("without servers");
    nodes.cluster().set_links(&Links::All, None)?;
    shell(nodes, client, "swapoff /dev/qnicmem0 && qnic-rmem detach")?;
    for server in servers {
        shell(nodes, server, "qnic-rmem leave --now")?;
    }
    let complaints = kernel_complaints(nodes, client)?;
    ensure!(complaints.is_empty(), "the kernel says: {complaints}");
    Ok(())
}

/// A process whose pages are in swap that fails was killed. SIGBUS: a page cannot be read; SIGKILL: none can be swapped
/// out; SIGSEGV: the stack on which the handler of SIGBUS runs (Rust's own) cannot be read either.
pub(super) fn lost_its_pages(ended: &Ended) -> Result<()> {
    let killed = [Signal::BUS, Signal::KILL, Signal::SEGV].map(|signal| 128 + signal.as_raw());
    ensure!(killed.contains(&ended.status), "{ended:?}");
    Ok(())
}

/// Makes a control group with [`GROUP`] of memory on a node.
pub(super) fn limit_group(nodes: &VmNodes, node: usize) -> Result<()> {
    let limit = format!(
        "echo +memory > /sys/fs/cgroup/cgroup.subtree_control && \
         mkdir /sys/fs/cgroup/small && echo {GROUP} > /sys/fs/cgroup/small/memory.max"
    );
    shell(nodes, node, &limit).map(drop)
}

/// A process of that group, which has less memory than it writes.
pub(super) fn swaps(nodes: &VmNodes, node: usize, size: ByteSize) -> Result<Box<dyn Running>> {
    let script = format!(
        "echo $$ > /sys/fs/cgroup/small/cgroup.procs && \
         exec qnic-app disk-verify --size {size} --threads 8 --changes 512"
    );
    background(nodes, node, &script)
}
