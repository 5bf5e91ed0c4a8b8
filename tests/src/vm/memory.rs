//! Memory that is exported and never pinned (N2, N4, N7, N8, N13): what its process
//! does with it, memory pressure, and memory that is taken away a million times.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_apps::report::{LifeStep, PressureReport, RemapReport, RemapWriterReport};
use qnic_cluster::ByteSize;

use super::nodes::{on, on_spec, BOTH_KERNELS};
use super::shell::kernel_complaints;
use crate::harness::{cases, Case};
use crate::scenario::a_process_forks_between_its_transfers;
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{counter, wait_until_empty, Nodes};

/// Longest time between two lines of a program that has much to do.
const LIMIT: Duration = Duration::from_secs(600);

/// The same for one that says every ten seconds how far it is, but may wait five minutes
/// for its peer at the end.
const SIGN_LIMIT: Duration = Duration::from_secs(330);

/// RAM of a guest in MiB.
const RAM_MIB: u64 = 256;
/// RAM of a guest under pressure, and what its processes export of it: to fill that and to compare
/// it at the end takes longer than the transfers.
const SMALL_RAM_MIB: u64 = 160;
const EXPORTED_MIB: u64 = 140;
/// Pages that are taken away while they are written to, in all.
const RACES: u64 = 1_000_000;

pub(crate) const CASES: &[Case] = cases! { "vm":
    memory_lives_as_its_process_wants => with_swap("life", RAM_MIB, life),
    memory_beyond_ram_under_pressure => with_swap("pressure", SMALL_RAM_MIB, pressure),
    files_beyond_ram_under_pressure => with_swap("files", SMALL_RAM_MIB, files),
    memory_remapped_a_million_times => on("remap", BOTH_KERNELS, remap),
};

/// What the kernel keeps free for code that cannot wait: the disk driver needs some of it
/// to swap out, and does not always get it of the 1.6 MiB that such small guests keep.
const RESERVE_KIB: u64 = 8192;

/// Size of a disk for files, and what makes a file system on it and mounts it.
const DISK_MIB: u64 = 512;
const MOUNT_DISK: &str = "d=$(grep -lx disk /sys/block/*/serial) && \
                          d=/dev/$(basename $(dirname $d)) && mkdir -p /mnt && \
                          mke2fs -b 4096 $d >/dev/null && mount -t ext4 $d /mnt";

/// Runs a case on guests of both kernels with swap on a disk; afterwards they are empty, and
/// their kernels have found nothing wrong.
fn with_swap(name: &str, ram_mib: u64, case: impl FnOnce(&VmNodes) -> Result<()>) -> Result<()> {
    let mut spec = VmNodes::spec(name, BOTH_KERNELS)?;
    for node in &mut spec.nodes {
        node.memory = ByteSize::mib(ram_mib);
        node.swap = Some(ByteSize::mib(4 * ram_mib));
        node.disk = Some(ByteSize::mib(DISK_MIB));
    }
    let script = format!(
        "test $(wc -l < /proc/swaps) = 2 && echo {RESERVE_KIB} > /proc/sys/vm/min_free_kbytes"
    );
    on_spec(&spec, |nodes| {
        for node in 0..nodes.count() {
            shell(nodes, node, &script).context("swap is on")?;
        }
        case(nodes)?;
        (0..nodes.count()).try_for_each(|node| is_left_in_order(nodes, node))
    })
}

/// fork, mremap, munmap, mprotect, madvise, exec, exit, swap, limits, huge pages and
/// all kinds of memory, on both kernels.
fn life(nodes: &VmNodes) -> Result<()> {
    for node in 0..nodes.count() {
        shell(nodes, node, "echo 2 > /proc/sys/vm/nr_hugepages")?;
        shell(nodes, node, MOUNT_DISK).context("make a file system")?;
        live(nodes, node, "qnic-app life --files /mnt")?;
        let group = "mkdir -p /sys/fs/cgroup && \
                     { test -e /sys/fs/cgroup/cgroup.controllers || mount -t cgroup2 none /sys/fs/cgroup; } && \
                     { echo +memory > /sys/fs/cgroup/cgroup.subtree_control; \
                       mkdir -p /sys/fs/cgroup/small && \
                       echo 16M > /sys/fs/cgroup/small/memory.max; }";
        shell(nodes, node, group).context("make a control group")?;
        let limited = "echo $$ > /sys/fs/cgroup/small/cgroup.procs && exec qnic-app life limited --files /mnt";
        live(nodes, node, limited)?;
        let killed = "grep -q '^oom_kill 0$' /sys/fs/cgroup/small/memory.events";
        shell(nodes, node, killed).context("a process was killed for want of memory")?;
        let always = "echo always > /sys/kernel/mm/transparent_hugepage/enabled";
        shell(nodes, node, always)?;
        live(nodes, node, "qnic-app life huge")?;
    }
    a_process_forks_between_its_transfers(nodes)
}

/// Runs an exporter, and prints the steps that held; fails unless all did, with what the kernel says of
/// it: that may have killed it.
fn live(nodes: &VmNodes, node: usize, command: &str) -> Result<()> {
    let mut program = background(nodes, node, command)?;
    let ended = program.succeed("the exporter", LIMIT).with_context(|| {
        let of_memory = "dmesg | grep -iE 'oom|out of memory|killed|segfault' | tail -n 20; \
                         cat /sys/fs/cgroup/small/memory.events";
        let said = shell(nodes, node, of_memory).unwrap_or_else(|error| error.to_string());
        format!("node {node}, {command:?}; its kernel says: {said}")
    })?;
    ensure!(!ended.lines.is_empty(), "no step was taken");
    for line in &ended.lines {
        let step: LifeStep = serde_json::from_str(line).with_context(|| line.clone())?;
        println!("    {} ({})", step.held, step.seen);
    }
    Ok(())
}

/// What only peers read stays. Then both export more than they have: alone; with compaction running all
/// the time on both; with exporters that fork.
fn pressure(nodes: &VmNodes) -> Result<()> {
    hot_set(nodes)?;
    press(
        nodes,
        "memory",
        None,
        &["plain=200", "compact=100", "fork=100"],
    )
}

/// Mappings of files on a disk, whose pages are written back and taken away, and of files in
/// memory, whose pages are swapped; both with exporters that fork and that truncate the file.
fn files(nodes: &VmNodes) -> Result<()> {
    for node in 0..nodes.count() {
        shell(nodes, node, MOUNT_DISK).context("make a file system")?;
    }
    press(nodes, "a file on a disk", Some(DISK_FILE), &["fork=100"])?;
    for node in 0..nodes.count() {
        let unmount = "rm /mnt/qnic-pressure && umount /mnt";
        shell(nodes, node, unmount).context("nothing holds the file")?;
    }
    press(nodes, "a file in memory", Some(MEMORY_FILE), &["fork=100"])
}

/// Options of `qnic-app pressure`.
const DISK_FILE: &str = "--files /mnt";
const MEMORY_FILE: &str = "--memory-file";

/// One run of `qnic-app pressure` on both nodes, in phases.
fn press(nodes: &VmNodes, what: &str, file: Option<&str>, phases: &[&str]) -> Result<()> {
    let start = |node: usize| {
        let (peer, file) = (1 - node, file.unwrap_or_default());
        let phases = phases.join(" --phase ");
        let arguments = format!("--megabytes {EXPORTED_MIB} --phase {phases} {file}");
        nodes.start(node, &format!("pressure --peer {peer} {arguments}"))
    };
    for (node, mut program) in [start(0)?, start(1)?].into_iter().enumerate() {
        for phase in phases {
            let context = || format!("{what}, node {node}, {phase}");
            let report = program.expect("phase", SIGN_LIMIT).with_context(context)?;
            let report: PressureReport = serde_json::from_value(report)?;
            println!("    {}: {report:?}", context());
            held(&report, file, phase).with_context(context)?;
        }
        let checked = program
            .expect("checked", SIGN_LIMIT)
            .context("at the end")?;
        program.succeed(what, LIMIT)?;
        println!("    {what}, node {node}: {checked} bytes were right at the end");
    }
    Ok(())
}

/// Fails unless a phase did what it is for, beyond what RAM there is.
fn held(r: &PressureReport, file: Option<&str>, phase: &str) -> Result<()> {
    let (forks, compacts) = (phase.starts_with("fork"), phase.starts_with("compact"));
    let truncates = file.is_some();
    // `VmSwap` is private memory alone; a file on a disk is not swapped at all.
    let taken_away = match file {
        Some(DISK_FILE) => [r.read_again, r.written_back, 1],
        Some(_) => [r.swapped_in, r.swapped_out, 1],
        None => [r.swapped_in, r.swapped_out, r.swap_peak_kib],
    };
    let moved = [r.writes, r.reads, r.owner_writes];
    for (holds, wrong) in [
        (r.exported_kib > r.ram_kib, "no pressure"),
        (!taken_away.contains(&0), "no page was taken away"),
        (!moved.contains(&0), "no progress"),
        (r.faults_served > 0 && r.bounces > 0, "no page was absent"),
        (r.locked_kib + r.pinned_kib == 0, "locked or pinned memory"),
        ((r.forks > 0) == forks, "forks"),
        (r.compacted > 0 || !compacts, "nothing was compacted"),
        ((r.truncations > 0) == truncates, "truncations"),
        ((r.refused > 0) == truncates, "writes beyond the end"),
    ] {
        ensure!(holds, "{wrong}: {r:?}");
    }
    Ok(())
}

/// Bytes that a peer reads all the time, and that no processor of their node touches.
const HOT_BYTES: u64 = 4 << 20;

/// Goes through more memory than there is, three times: a file in memory, most of it on the swap disk.
const PRESS: &str = "test -e /dev/shm/large || dd if=/dev/zero of=/dev/shm/large bs=1M count=140; \
                     for pass in 1 2 3; do cat /dev/shm/large > /dev/null || exit 1; done";

/// While a node is short of memory, a peer reads some of it without end. The kernel learns from the
/// NIC that it is in use: those pages are faulted in again ten times less often than without.
fn hot_set(nodes: &VmNodes) -> Result<()> {
    let server = format!("memory-server --size {HOT_BYTES}");
    let mut server = nodes.start_until(0, &server, "serving")?;
    let mount = "mkdir -p /dev/shm && { grep -q ' /dev/shm ' /proc/mounts || mount -t tmpfs none /dev/shm; } && \
                 mount -o remount,size=90% /dev/shm";
    shell(nodes, 0, mount)?;
    shell(nodes, 0, PRESS).context("fill the memory")?;
    let mut faults = Vec::new();
    for young in [0, 1] {
        let set = format!("echo {young} > /sys/module/qnic/parameters/young");
        shell(nodes, 0, &set)?;
        let load = format!("load --peer 0 --reads --size {HOT_BYTES}");
        let mut load = nodes.start_until(1, &load, "loading")?;
        let count = || counter(&nodes.device_stats()?, 0, "source_misses");
        let before = count()?;
        shell(nodes, 0, PRESS).context("go through the memory")?;
        faults.push(count()? - before);
        load.kill()?;
    }
    println!("    page faults of the hot set without and with the NIC's marks: {faults:?}");
    server.kill()?;
    shell(nodes, 0, "rm /dev/shm/large")?;
    ensure!(faults[0] >= 100, "the memory was not short: {faults:?}");
    ensure!(faults[0] >= 10 * faults[1], "{faults:?}");
    Ok(())
}

/// One million pages are taken away while a peer writes to them.
fn remap(nodes: &VmNodes) -> Result<()> {
    let remap = format!("remap --races {}", RACES / 2);
    for victim in 0..2 {
        let mut taking = nodes.start_until(victim, &remap, "exported")?;
        let mut writing = nodes.start(1 - victim, &format!("remap-writer --peer {victim}"))?;
        let report = taking.expect("remapped", LIMIT).context("the victim")?;
        let wrote = writing.expect("wrote", LIMIT).context("the writer")?;
        taking.succeed("the victim", LIMIT)?;
        writing.succeed("the writer", LIMIT)?;
        let report: RemapReport = serde_json::from_value(report)?;
        let wrote: RemapWriterReport = serde_json::from_value(wrote)?;
        println!("    node {victim}: {report:?}, {wrote:?}");
        ensure!(report.races >= RACES / 2, "too few: {report:?}");
        ensure!(report.unexported > 0 && wrote.imports > 0, "no unexport");
        ensure!(wrote.refused > 0, "no write met a hole");
        ensure!(
            report.frames_reused * 4 > report.frames_compared,
            "the canary does not get the frames: {report:?}"
        );
        is_left_in_order(nodes, victim)?;
    }
    Ok(())
}

/// Waits until the NIC of a node holds nothing; fails if its kernel has found anything wrong.
fn is_left_in_order(nodes: &VmNodes, node: usize) -> Result<()> {
    wait_until_empty(nodes, node)?;
    let complaints = kernel_complaints(nodes, node)?;
    ensure!(
        complaints.is_empty(),
        "the kernel of node {node} says:\n{complaints}"
    );
    Ok(())
}
