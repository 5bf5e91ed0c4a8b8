//! The cases that boot virtual machines: they run programs (X1), attack (X8), and
//! processes, guests and device processes end (X9).

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use qnic_cluster::{Cluster, Links, NodeState, Runtime};
use serde_json::Value;

use super::clock::Clocks;
use super::nodes::{kill_device, on, on_network, on_spec, on_torus, on_two_engines, BOTH_KERNELS};
use super::remote_memory::swap_on_links_that_delay;
use super::shell::{cpu_ticks, info, number, private_kib};
use super::silent::{a_stuck_kernel_is_given_up, while_a_kernel_is_stuck};
use crate::harness::{cases, is_long, Case};
use crate::net::FEW;
use crate::scenario::{self, Load, Together};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{
    counter, until, until_grown, wait_until_all_empty, wait_until_empty, FirstNodes, Nodes, LIMIT,
};

pub(crate) const CASES: &[Case] = cases! { "vm":
    demo => on("demo", &["stable"; 2], |nodes| {
        let sizes = "1,8,96,97,4096,65536,1048576,16777216";
        scenario::demo_between(nodes, [0, 1], sizes, 4 << 20)?;
        wait_until_empty(nodes, 0)
    }),
    demo_and_exchange_on_bad_links => on_network("lossy", 2, bad_links),
    both_stock_kernels_exchange => on_two_engines("kernels", both_kernels),
    four_guests_on_a_torus_exchange_and_take_part => on_torus("four", 4, four_guests),
    processes_cannot_touch_each_other => on("isolation", BOTH_KERNELS, isolation),
    a_killed_process_leaves_nothing => on("killed", BOTH_KERNELS, killed_process),
    notifications_of_every_kind => on("signals", BOTH_KERNELS, notifications),
    a_queue_fuzzer_harms_nobody => on("fuzzer", &["stable"; 2], |nodes| {
        scenario::queue_fuzzer_harms_nobody(nodes, 0, 2)
    }),
    the_module_unloads_and_reloads => on("reload", BOTH_KERNELS, module_reload),
    a_guest_reboots_and_rejoins => on("reboot", &["stable"; 2], reboot),
    a_paused_guest_is_served_and_goes_on => on("paused", BOTH_KERNELS, paused),
    a_panicked_guest_and_a_hung_one_are_not_called_ready => {
        on("panicked", &["stable"; 3], panicked)
    },
    a_guest_is_powered_off_during_transfers => on("poweroff", &["stable"; 3], power_off),
    the_device_process_is_killed: 0 => device_killed(),
    the_device_is_visible_and_pins_nothing => on("visible", BOTH_KERNELS, visible),
    idle_guests_cost_nothing => on("idle", &["stable"; 4], idle),
};

/// The demo and an exchange on links that lose, reorder, duplicate and damage 1, 5 and
/// 20 % of the frames: they are made worse, and good again, while the guests run. In the end,
/// with `--all`, the kernel of one guest gets stuck.
fn bad_links(nodes: &VmNodes) -> Result<()> {
    let mut before = 0;
    for percent in [1, 5, 20] {
        let changed = nodes.make_links_bad(percent)?;
        ensure!(changed == 2, "{changed} directions of links were changed");
        scenario::demo_between(nodes, [0, 1], "1,97,4095,65537,1048576", FEW)
            .with_context(|| format!("the demo at {percent} %"))?;
        scenario::all_pairs_exchange(nodes, 5)
            .with_context(|| format!("the exchange at {percent} %"))?;
        before = nodes.lost_frames(before)?;
    }
    nodes.cluster().set_links(&Links::All, None)?;
    scenario::all_pairs_exchange(nodes, 20)?;
    if !is_long() {
        return Ok(());
    }
    nodes.make_links_bad(1)?;
    a_stuck_kernel_is_given_up(nodes, [0, 1], (nodes, 1))
}

/// Guests exchange data, messages and collectives; on good links, on links that lose 5 % of the
/// frames, when a member is killed, when the guest of one stands still, and beside a process that
/// receives nothing. In the end one swaps to the others, on links that delay, until these vanish.
fn four_guests(nodes: &VmNodes) -> Result<()> {
    scenario::all_pairs_exchange(nodes, 30)?;
    wait_until_all_empty(nodes)?;
    let each = Together {
        programs: 2,
        rounds: 2,
        barriers: 1000,
        bytes: 1 << 20,
    };
    scenario::collectives(nodes, each).context("on good links")?;
    scenario::members_of_a_killed_process_learn_of_it(nodes, 2)?;
    // Node 3 is behind it.
    scenario::members_wait_for_one_that_stands_still(nodes, 1, &|_, still| {
        let pause_or_resume = if still {
            Cluster::pause
        } else {
            Cluster::resume
        };
        Ok(pause_or_resume(nodes.cluster(), "n1")?)
    })?;
    scenario::random_messages_beside_a_slow_receiver(nodes, 4, 0, 60)?;
    nodes.make_links_bad(5)?;
    scenario::random_messages(nodes, 2, 100, 3).context("on bad links")?;
    let each = Together {
        barriers: 100,
        bytes: 200_000,
        ..each
    };
    scenario::collectives(nodes, each).context("on bad links")?;
    swap_on_links_that_delay(nodes, 0).context("swap on links that delay")
}

/// They exchange data, each with its NIC in another engine, and their clocks go on as the host's does.
fn both_kernels(nodes: &VmNodes) -> Result<()> {
    let clocks = Clocks::read(nodes)?;
    let releases = [shell(nodes, 0, "uname -r")?, shell(nodes, 1, "uname -r")?];
    ensure!(releases[0] != releases[1], "one kernel only: {releases:?}");
    scenario::all_pairs_exchange(nodes, 30)?;
    scenario::demo_between(nodes, [0, 1], "1,97,4096,65536,1048576", 4 << 20)?;
    clocks.have_kept_time(nodes)
}

/// Two processes on each of two guests: neither the one beside it nor the one on
/// the other guest reaches what is not exported to it.
fn isolation(nodes: &VmNodes) -> Result<()> {
    let device = Some("/dev/qnic0");
    for (from, to) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        scenario::isolation_probe_is_refused(nodes, [from, to], device)
            .with_context(|| format!("from node {from} to node {to}"))?;
    }
    for (from, to) in [(0, 1), (1, 0)] {
        scenario::keys_are_checked_at_both_ends(nodes, [from, to])?;
    }
    Ok(())
}

fn killed_process(nodes: &VmNodes) -> Result<()> {
    for (from, to) in [(0, 1), (1, 0)] {
        scenario::a_killed_process_leaves_nothing(nodes, [from, to])?;
        scenario::peers_of_a_killed_process_learn_of_it(nodes, [from, to])?;
        scenario::requests_are_told_once(nodes, [from, to])?;
        for node in [from, to] {
            let left = info(nodes, node, "pages_mapped")?;
            ensure!(left == 0, "node {node} still maps {left} pages");
        }
    }
    Ok(())
}

/// Queue, handlers, poll and channels between both stock kernels; then either end of
/// a channel is killed.
fn notifications(nodes: &VmNodes) -> Result<()> {
    scenario::notifications_of_every_kind(nodes, 300)?;
    for receiver_dies in [false, true] {
        scenario::the_end_of_a_channel_is_killed(nodes, receiver_dies)?;
    }
    wait_until_all_empty(nodes)
}

fn module_reload(nodes: &VmNodes) -> Result<()> {
    let find = "find /lib/modules/$(uname -r) -name 'qnic.ko*' | head -n 1";
    for node in [0, 1] {
        let mut server = nodes.start_until(node, "memory-server", "serving")?;
        ensure!(
            shell(nodes, node, "rmmod qnic").is_err(),
            "the module was unloaded while a process used it"
        );
        server.kill()?;
        server.wait(LIMIT)?;
        for _ in 0..3 {
            shell(nodes, node, "rmmod qnic && ! test -e /dev/qnic0")?;
            let load = format!("insmod $({find}) && test -c /dev/qnic0");
            shell(nodes, node, &load)?;
        }
    }
    scenario::all_pairs_exchange(nodes, 10)
}

/// A guest is reset while transfers run: a process that wrote to it gets an error, it comes
/// back, and works as before.
fn reboot(nodes: &VmNodes) -> Result<()> {
    for _ in 0..2 {
        let mut load = Load::start(nodes, [0, 1])?;
        let boots = nodes.node(1)?.reset()?;
        load.ends_with_failure()?;
        drop(load);
        nodes.node(1)?.wait_ready(boots, LIMIT)?;
        scenario::all_pairs_exchange(nodes, 10)?;
    }
    Ok(())
}

/// A guest is paused while another writes to it: its NIC takes what comes; then it
/// goes on, and its driver finds everything as it was. A reset is still a reset.
fn paused(nodes: &VmNodes) -> Result<()> {
    let resets = || counter(&nodes.device_stats()?, 1, "resets");
    let receive = || until_grown(nodes, 1, "bytes_received", 4 << 20);
    let mut load = Load::start(nodes, [0, 1])?;
    let before = resets()?;
    for _ in 0..3 {
        // All pages are in the NIC's table then.
        receive().context("to a running guest")?;
        nodes.cluster().pause("n1")?;
        receive().context("to a paused guest")?;
        nodes.cluster().resume("n1")?;
        shell(nodes, 1, "true").context("the guest does not go on")?;
    }
    load.writer.kill()?;
    load.server.kill()?;
    paused_from_outside(nodes)?;
    ensure!(resets()? == before, "a pause has reset the NIC");
    scenario::all_pairs_exchange(nodes, 10)?;
    rebound(nodes)?;
    ensure!(resets()? == before + 1, "a rebind has not reset the NIC");
    shell(nodes, 1, "rmmod qnic")?;
    // The driver says that this is no pause, as QEMU does not.
    wait_for_state(nodes, "down")
}

/// A machine is stopped as a debugger or virsh does it, without an announcement, while verified
/// data goes both ways: its NIC stands still, and then all goes on.
fn paused_from_outside(nodes: &VmNodes) -> Result<()> {
    let pauses = || counter(&nodes.device_stats()?, 1, "pauses");
    let before = pauses()?;
    let exchange = "exchange --nodes 0,1 --rounds 200";
    let mut programs = [nodes.start(0, exchange)?, nodes.start(1, exchange)?];
    for round in 1..=3 {
        until_grown(nodes, 1, "bytes_received", 1 << 20).context("before a pause")?;
        nodes.node(1)?.stop_cpus()?;
        wait_for_state(nodes, "suspended")?;
        nodes.node(1)?.continue_cpus()?;
        wait_for_state(nodes, "running")?;
        ensure!(pauses()? == before + round, "no pause was counted");
    }
    for program in &mut programs {
        program.succeed("an exchange around pauses", LIMIT)?;
    }
    Ok(())
}

/// The driver is taken from the device under a process, and comes back: the process learns
/// that what it had is lost, and a new one works.
fn rebound(nodes: &VmNodes) -> Result<()> {
    let mut load = Load::start(nodes, [1, 0])?;
    until_grown(nodes, 0, "bytes_received", 1 << 20)?;
    let driver = "/sys/bus/virtio/drivers/qnic";
    let device = shell(nodes, 1, &format!("cd {driver} && echo virtio*"))?;
    let device = device.trim();
    shell(nodes, 1, &format!("echo {device} > {driver}/unbind"))?;
    let message = load.ends_with_failure()?;
    ensure!(message.contains("gone or was reset"), "it says {message:?}");
    drop(load);
    shell(nodes, 1, &format!("echo {device} > {driver}/bind"))?;
    scenario::all_pairs_exchange(nodes, 10)
}

/// Waits until the device process says that the NIC of node 1 is in a state.
fn wait_for_state(nodes: &VmNodes, expected: &str) -> Result<()> {
    until(LIMIT, || {
        let state = nodes.device_stats()?["nics"][1]["state"].take();
        Ok((state != expected).then(|| format!("the NIC is {state}, not {expected}")))
    })
}

/// The kernel of one guest panics, that of another is stuck: `qnic ps` says so, in text, JSON
/// and by its status, and calls only the third ready. A process that writes to the stuck one is told, and so is what
/// waits for a command in the one that panicked.
fn panicked(nodes: &VmNodes) -> Result<()> {
    // Within a device process nothing but the fault timeout ends such a wait.
    while_a_kernel_is_stuck(nodes, [0, 1], (nodes, 1), || another_panics(nodes))
}

fn another_panics(nodes: &VmNodes) -> Result<()> {
    let mut panics = background(nodes, 2, "echo c > /proc/sysrq-trigger")?;
    let node = nodes.node(2)?;
    until(LIMIT, || {
        let state = node.state();
        Ok((state != NodeState::Panicked).then(|| format!("{} is {state}", node.name())))
    })?;
    let qnic = std::env::current_exe().context("find this program")?;
    // Each asks the stuck guest for as long as one may take to answer: both do so at once.
    let ps = |arguments: &[&str]| {
        let mut ps = Command::new(&qnic);
        let ps = ps.arg("ps").args(arguments).stdout(Stdio::piped());
        ps.spawn().context("start qnic ps")
    };
    let said = |ps: Child| {
        let output = ps.wait_with_output().context("wait for qnic ps")?;
        let status = output.status;
        ensure!(status.code() == Some(1), "qnic ps ended with {status}");
        anyhow::Ok(String::from_utf8(output.stdout)?)
    };
    let name = nodes.cluster().name();
    let (text, json) = (ps(&[])?, ps(&["--json"])?);
    let (text, json) = (said(text)?, said(json)?);
    let json: Value = serde_json::from_str(&json)?;
    let clusters = json.as_array().context("no list of clusters")?;
    let ours = clusters.iter().find(|cluster| cluster["name"] == name);
    let shown = &ours.context("ps does not show the cluster")?["nodes"];
    for (node, state) in ["ready", "not answering", "panicked"].iter().enumerate() {
        ensure!(shown[node]["state"] == *state, "{shown}");
        let line = format!("{name} (attached)  n{node}");
        let line = text.lines().find(|shown| shown.starts_with(&line));
        ensure!(line.is_some_and(|line| line.contains(state)), "{text}");
    }
    let ended = panics.wait(LIMIT);
    let said = ended.err().map(|error| format!("{error:#}"));
    let is_told = said
        .as_ref()
        .is_some_and(|said| said.contains("kernel has panicked"));
    ensure!(is_told, "the command in the guest ended by {said:?}");
    Ok(())
}

fn power_off(nodes: &VmNodes) -> Result<()> {
    let mut load = Load::start(nodes, [0, 2])?;
    nodes.node(2)?.power_off()?;
    load.failure()?;
    drop(load);
    scenario::all_pairs_exchange(&FirstNodes(nodes, 2), 10)
}

/// QEMU and guests outlive the device process; a transfer fails with an error
/// that says so; ending the cluster leaves nothing behind.
fn device_killed() -> Result<()> {
    let spec = VmNodes::spec("devkill", &["stable"; 2])?;
    on_spec(&spec, guests_outlive_the_device_process)?;
    ensure!(
        !Runtime::from_env()?.names().contains(&spec.name),
        "the cluster left its files behind"
    );
    Ok(())
}

fn guests_outlive_the_device_process(nodes: &VmNodes) -> Result<()> {
    let mut load = Load::start(nodes, [0, 1])?;
    kill_device(&nodes.cluster().device().context("no device process")?)?;
    let start = Instant::now();
    let message = load.failure()?;
    ensure!(
        message.contains("gone"),
        "the message does not say what happened: {message}"
    );
    let took = start.elapsed().as_secs_f64();
    println!("    the writer knew after {took:.1} s");
    for node in 0..2 {
        shell(nodes, node, "true").context("the guest does not live on")?;
    }
    Ok(())
}

/// `lspci` shows the device, its interrupt counts, and a process that exports has
/// nothing locked or pinned.
fn visible(nodes: &VmNodes) -> Result<()> {
    let interrupts = "awk '/qnic|virtio/ { for (i = 2; i <= NF && $i ~ /^[0-9]+$/; i++) n += $i } END { print n + 0 }' /proc/interrupts";
    for node in [0, 1] {
        let pci = shell(nodes, node, "lspci -n")?;
        ensure!(
            pci.contains("1af4:1067"),
            "lspci shows no 1af4:1067:\n{pci}"
        );
        let before = number(nodes, node, interrupts)?;
        scenario::all_pairs_exchange(nodes, 5)?;
        let after = number(nodes, node, interrupts)?;
        ensure!(after > before, "no interrupts: {before}, then {after}");
        let mut server = nodes.start(node, "memory-server --size 33554432")?;
        let serving = server.expect("serving", LIMIT)?;
        for kind in ["locked_kib", "pinned_kib"] {
            ensure!(serving[kind] == 0, "{kind} is not 0: {serving}");
        }
        let pid = serving["pid"].as_u64().context("no pid")?;
        let find = format!("grep -E 'VmLck|VmPin' /proc/{pid}/status");
        let status = shell(nodes, node, &find)?;
        ensure!(
            status.lines().count() == 2 && status.lines().all(|line| line.ends_with(" 0 kB")),
            "memory is locked or pinned:\n{status}"
        );
    }
    Ok(())
}

/// While guests are idle the device process uses under 1 % of a core; beyond
/// shared memory it holds under 64 MiB for four NICs.
fn idle(nodes: &VmNodes) -> Result<()> {
    const SECONDS: u64 = 10;
    scenario::all_pairs_exchange(nodes, 5)?;
    let pid = nodes.cluster().device().context("no device process")?.pid;
    let before = cpu_ticks(pid)?;
    let start = Instant::now();
    shell(nodes, 0, &format!("sleep {SECONDS}"))?;
    let ticks = cpu_ticks(pid)? - before;
    let percent = ticks as f64 / start.elapsed().as_secs_f64();
    let private = private_kib(pid)?;
    println!("    {percent:.2} % of a core, {private} KiB");
    ensure!(
        percent < 1.0,
        "the idle device process used {percent:.1} % of a core"
    );
    ensure!(
        private < 64 * 1024,
        "the device process holds {private} KiB"
    );
    Ok(())
}
