//! Programs of libibverbs that register more memory than their guests have (X18): a NIC that pins refuses it.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::{ByteSize, ClusterSpec, OnOff};

use super::{is_used, programs, LISTENS};
use crate::vm::nodes::BOTH_KERNELS;
use crate::vm::shell::no_kernel_complains;
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Running;

/// RAM of a guest, and what its program registers.
const RAM_MIB: u64 = 256;
const REGISTERED_MIB: u64 = RAM_MIB / 2 * 3;

/// Longest time of the transfers: the disks of both guests turn all that is registered over, some times.
const LIMIT: Duration = Duration::from_secs(900);

/// What the kernel keeps free for code that cannot wait, such as the driver of the swap disk.
const RESERVE_KIB: u64 = 8192;

/// A guest of each kernel, with swap.
pub(super) fn spec() -> Result<ClusterSpec> {
    let mut spec = VmNodes::spec("beyond-ram", BOTH_KERNELS)?;
    spec.verbs = true;
    // The programs tell each other of their queue pairs over TCP.
    spec.ethernet = OnOff::on();
    for node in &mut spec.nodes {
        node.memory = ByteSize::mib(RAM_MIB);
        node.swap = Some(ByteSize::mib(4 * RAM_MIB));
    }
    Ok(spec)
}

/// Each takes its turn as the one whose memory is written and read.
pub(super) fn is_written(nodes: &VmNodes) -> Result<()> {
    programs::put(nodes, "beyond_ram")?;
    for node in [0, 1] {
        let reserve = format!("echo {RESERVE_KIB} > /proc/sys/vm/min_free_kbytes");
        shell(nodes, node, &reserve)?;
    }
    for server in [0, 1] {
        let began = Instant::now();
        let program = format!("exec /root/beyond_ram {REGISTERED_MIB}");
        let mut serves = background(nodes, server, &program)?;
        shell(nodes, server, LISTENS)?;
        let client = 1 - server;
        let mut reaches = background(nodes, client, &format!("{program} n{server}"))?;
        for (node, running) in [(client, &mut reaches), (server, &mut serves)] {
            nothing_is_pinned(running.as_mut()).with_context(|| format!("node {node}"))?;
        }
        println!(
            "    server {server}: {:.1} s",
            began.elapsed().as_secs_f64()
        );
        [0, 1]
            .into_iter()
            .try_for_each(|node| is_used(nodes, node, false))?;
    }
    no_kernel_complains(nodes)
}

/// A program ends well; some of its memory was swapped out then, and none pinned.
fn nothing_is_pinned(program: &mut dyn Running) -> Result<()> {
    let said = program.succeed("the program", LIMIT)?.lines.join("\n");
    println!("    {said}");
    let words: Vec<_> = said.split_whitespace().collect();
    let ["swapped", swapped, "pinned", "0", "locked", "0"] = words[..] else {
        bail!("memory is pinned: {said}");
    };
    ensure!(
        swapped.parse::<u64>()? > 0,
        "nothing was swapped out: {said}"
    );
    Ok(())
}
