//! The cases that boot virtual machines: they run programs (X1), attack (X8), and
//! processes, guests and device processes end (X9).

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::{ClusterSpec, Links, NetworkSpec, NodeSpec, Runtime};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::json;

use super::shell::{cpu_ticks, info, number, private_kib, shell};
use super::VmNodes;
use crate::harness::{Case, Verdict};
use crate::net::FEW;
use crate::nodes::{counter, wait_until_empty, Nodes};
use crate::scenario;

const LIMIT: Duration = Duration::from_secs(120);

/// All of them.
pub(crate) const CASES: &[Case] = &[
    Case {
        name: "vm::demo",
        run: demo,
    },
    Case {
        name: "vm::demo_and_exchange_on_bad_links",
        run: bad_links,
    },
    Case {
        name: "vm::both_stock_kernels_exchange",
        run: both_kernels,
    },
    Case {
        name: "vm::all_pairs_of_four_guests_exchange",
        run: four_guests,
    },
    Case {
        name: "vm::processes_cannot_touch_each_other",
        run: isolation,
    },
    Case {
        name: "vm::a_killed_process_leaves_nothing",
        run: killed_process,
    },
    Case {
        name: "vm::notifications_of_every_kind",
        run: notifications,
    },
    Case {
        name: "vm::a_scribbler_harms_nobody",
        run: scribbler,
    },
    Case {
        name: "vm::the_module_unloads_and_reloads",
        run: module_reload,
    },
    Case {
        name: "vm::a_guest_reboots_and_rejoins",
        run: reboot,
    },
    Case {
        name: "vm::a_paused_guest_is_served_and_goes_on",
        run: paused,
    },
    Case {
        name: "vm::a_guest_is_powered_off_during_transfers",
        run: power_off,
    },
    Case {
        name: "vm::the_device_process_is_killed",
        run: device_killed,
    },
    Case {
        name: "vm::the_device_is_visible_and_pins_nothing",
        run: visible,
    },
    Case {
        name: "vm::idle_guests_cost_nothing",
        run: idle,
    },
];

fn demo() -> Result<Verdict> {
    let nodes = VmNodes::boot("demo", &["stable", "stable"])?.watched();
    scenario::demo_pair(&nodes, "1,8,96,97,4096,65536,1048576,16777216", 4 << 20)?;
    wait_until_empty(&nodes, 0, LIMIT)?;
    nodes.passed()
}

/// The demo and an exchange on links that lose, reorder, duplicate and damage 1, 5 and
/// 20 % of the frames: they are made worse, and good again, while the guests run.
fn bad_links() -> Result<Verdict> {
    let bad = |percent: u32| {
        let part = format!("{percent}%");
        json!({
            "loss": part, "reorder": part, "duplicate": part, "corrupt": part,
            "delay": "50us"
        })
    };
    let mut spec = ClusterSpec::new(format!("lossy-{}", std::process::id()))
        .with(NodeSpec::new("n0"))
        .with(NodeSpec::new("n1"));
    spec.network = Some(NetworkSpec::default());
    let nodes = VmNodes::boot_spec(&spec)?.watched();
    let mut before = 0;
    for percent in [1, 5, 20] {
        let links = serde_json::from_value(bad(percent))?;
        let changed = nodes.cluster().set_links(&Links::All, Some(&links))?;
        ensure!(changed == 2, "{changed} directions of links were changed");
        scenario::demo_pair(&nodes, "1,97,4095,65537,1048576", FEW)
            .with_context(|| format!("the demo at {percent} %"))?;
        scenario::all_pairs_exchange(&nodes, 5)
            .with_context(|| format!("the exchange at {percent} %"))?;
        let stats = nodes.device_stats()?;
        let lost = stats["network"]["links"][0]["counters"]["lost"].as_u64();
        let lost = lost.context("no count of lost frames")?;
        ensure!(lost > before, "nothing was lost: {}", stats["network"]);
        before = lost;
    }
    nodes.cluster().set_links(&Links::All, None)?;
    scenario::all_pairs_exchange(&nodes, 20)?;
    nodes.passed()
}

fn both_kernels() -> Result<Verdict> {
    let nodes = VmNodes::boot("kernels", &["stable", "backports"])?.watched();
    let releases = [shell(&nodes, 0, "uname -r")?, shell(&nodes, 1, "uname -r")?];
    ensure!(releases[0] != releases[1], "one kernel only: {releases:?}");
    scenario::all_pairs_exchange(&nodes, 30)?;
    scenario::demo_pair(&nodes, "1,97,4096,1048576", 1 << 20)?;
    nodes.passed()
}

fn four_guests() -> Result<Verdict> {
    let nodes = VmNodes::boot("four", &["stable"; 4])?.watched();
    scenario::all_pairs_exchange(&nodes, 30)?;
    for node in 0..nodes.count() {
        wait_until_empty(&nodes, node, LIMIT)?;
    }
    nodes.passed()
}

/// Two processes on each of two guests: neither the one beside it nor the one on
/// the other guest reaches what is not exported to it.
fn isolation() -> Result<Verdict> {
    let nodes = VmNodes::boot("isolation", &["stable", "backports"])?.watched();
    let device = Some("/dev/qnic0");
    for (from, to) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        scenario::intruder_is_refused(&nodes, from, to, device)
            .with_context(|| format!("from node {from} to node {to}"))?;
    }
    for (from, to) in [(0, 1), (1, 0)] {
        scenario::keys_are_checked_at_both_ends(&nodes, from, to)?;
    }
    nodes.passed()
}

fn killed_process() -> Result<Verdict> {
    let nodes = VmNodes::boot("killed", &["stable", "backports"])?.watched();
    for (from, to) in [(0, 1), (1, 0)] {
        scenario::a_killed_process_leaves_nothing(&nodes, from, to)?;
        scenario::peers_of_a_killed_process_learn_of_it(&nodes, from, to)?;
        for node in [from, to] {
            let left = info(&nodes, node, "pages_mapped")?;
            ensure!(left == 0, "node {node} still maps {left} pages");
        }
    }
    nodes.passed()
}

/// Queue, handlers, poll and channels between both stock kernels; then either end of
/// a channel is killed.
fn notifications() -> Result<Verdict> {
    let nodes = VmNodes::boot("signals", &["stable", "backports"])?.watched();
    scenario::notifications_of_every_kind(&nodes, 300)?;
    for receiver_dies in [false, true] {
        scenario::the_end_of_a_channel_is_killed(&nodes, receiver_dies)?;
    }
    for node in [0, 1] {
        wait_until_empty(&nodes, node, LIMIT)?;
    }
    nodes.passed()
}

fn scribbler() -> Result<Verdict> {
    let nodes = VmNodes::boot("scribbler", &["stable", "stable"])?.watched();
    scenario::scribbler_harms_nobody(&nodes, 0, 2)?;
    nodes.passed()
}

fn module_reload() -> Result<Verdict> {
    let nodes = VmNodes::boot("reload", &["stable", "backports"])?.watched();
    let find = "find /lib/modules/$(uname -r) -name 'qnic.ko*' | head -n 1";
    for node in [0, 1] {
        let mut holder = nodes.start(node, &["memory-server"])?;
        holder.expect("serving", LIMIT)?;
        ensure!(
            shell(&nodes, node, "rmmod qnic").is_err(),
            "the module was unloaded while a process used it"
        );
        holder.kill()?;
        holder.wait(LIMIT)?;
        for _ in 0..3 {
            shell(&nodes, node, "rmmod qnic && ! test -e /dev/qnic0")?;
            shell(
                &nodes,
                node,
                &format!("insmod $({find}) && test -c /dev/qnic0"),
            )?;
        }
    }
    scenario::all_pairs_exchange(&nodes, 10)?;
    nodes.passed()
}

/// A guest is reset while transfers run: who wrote to it gets an error, it comes
/// back, and works as before.
fn reboot() -> Result<Verdict> {
    let nodes = VmNodes::boot("reboot", &["stable", "stable"])?.watched();
    for _ in 0..2 {
        let mut holder = nodes.start(1, &["memory-server"])?;
        holder.expect("serving", LIMIT)?;
        let mut load = nodes.start(0, &["load", "--peer", "1"])?;
        load.expect("loading", LIMIT)?;
        let boots = nodes.node(1)?.reset()?;
        load.expect("failed", LIMIT).context("the writer")?;
        ensure!(load.wait(LIMIT)?.status == 3, "the writer ended otherwise");
        drop(holder);
        nodes.node(1)?.wait_ready(boots, LIMIT)?;
        scenario::all_pairs_exchange(&nodes, 10)?;
    }
    nodes.passed()
}

/// A guest is paused while another writes to it: its NIC takes what comes; then it
/// goes on, and its driver finds everything as it was. A reset is still a reset.
fn paused() -> Result<Verdict> {
    let nodes = VmNodes::boot("paused", &["stable", "backports"])?.watched();
    let resets = || counter(&nodes.device_stats()?, 1, "resets");
    let receive = |what: &str| {
        let received = || counter(&nodes.device_stats()?, 1, "bytes_received");
        let (start, before) = (Instant::now(), received()?);
        while received()? < before + (4 << 20) {
            let stats = || nodes.device_stats().unwrap_or_default();
            ensure!(start.elapsed() < LIMIT, "{what}: {}", stats());
        }
        Ok(())
    };
    let mut holder = nodes.start(1, &["memory-server"])?;
    holder.expect("serving", LIMIT)?;
    let mut load = nodes.start(0, &["load", "--peer", "1"])?;
    load.expect("loading", LIMIT)?;
    let before = resets()?;
    for _ in 0..3 {
        // All pages are in the NIC's table then.
        receive("a running guest gets no data")?;
        nodes.cluster().pause("n1")?;
        receive("a paused guest gets no data")?;
        nodes.cluster().resume("n1")?;
        shell(&nodes, 1, "true").context("the guest does not go on")?;
    }
    ensure!(resets()? == before, "a pause has reset the NIC");
    load.kill()?;
    holder.kill()?;
    scenario::all_pairs_exchange(&nodes, 10)?;
    // Unannounced, stopped queues are a reset.
    shell(&nodes, 1, "rmmod qnic")?;
    let stats = nodes.device_stats()?;
    ensure!(stats["nics"][1]["state"] == "down", "{stats}");
    ensure!(resets()? == before + 1, "{stats}");
    nodes.passed()
}

fn power_off() -> Result<Verdict> {
    let nodes = VmNodes::boot("poweroff", &["stable"; 3])?.watched();
    let mut holder = nodes.start(2, &["memory-server"])?;
    holder.expect("serving", LIMIT)?;
    let mut load = nodes.start(0, &["load", "--peer", "2"])?;
    load.expect("loading", LIMIT)?;
    nodes.node(2)?.power_off()?;
    let message = load.expect("failed", LIMIT).context("the writer")?;
    ensure!(
        message.as_str().is_some_and(|text| !text.is_empty()),
        "no message: {message}"
    );
    drop(holder);
    scenario::all_pairs_exchange(&crate::nodes::FirstNodes(&nodes, 2), 10)?;
    nodes.passed()
}

/// QEMU and guests outlive the device process; a transfer fails with an error
/// that says so; ending the cluster leaves nothing behind.
fn device_killed() -> Result<Verdict> {
    let nodes = VmNodes::boot("devkill", &["stable", "stable"])?.watched();
    let mut holder = nodes.start(1, &["memory-server"])?;
    holder.expect("serving", LIMIT)?;
    let mut load = nodes.start(0, &["load", "--peer", "1"])?;
    load.expect("loading", LIMIT)?;
    let device = nodes.cluster().device().context("no device process")?;
    let pid = Pid::from_raw(device.pid).context("a device process without a number")?;
    kill_process(pid, Signal::KILL)?;
    let start = Instant::now();
    let message = load.expect("failed", LIMIT).context("the writer")?;
    ensure!(
        message.as_str().is_some_and(|text| text.contains("gone")),
        "the message does not say what happened: {message}"
    );
    println!(
        "    the writer knew after {:.1} s",
        start.elapsed().as_secs_f64()
    );
    for node in 0..2 {
        shell(&nodes, node, "true").context("the guest does not live on")?;
    }
    drop((load, holder));
    let name = nodes.cluster().name().to_owned();
    let verdict = nodes.passed()?;
    ensure!(
        !Runtime::from_env()?.names().contains(&name),
        "the cluster left its files behind"
    );
    Ok(verdict)
}

/// `lspci` shows the device, its interrupt counts, and a process that exports has
/// nothing locked or pinned.
fn visible() -> Result<Verdict> {
    let nodes = VmNodes::boot("visible", &["stable", "backports"])?.watched();
    let interrupts = "awk '/qnic|virtio/ { for (i = 2; i <= NF && $i ~ /^[0-9]+$/; i++) n += $i } END { print n + 0 }' /proc/interrupts";
    for node in [0, 1] {
        let pci = shell(&nodes, node, "lspci -n")?;
        ensure!(
            pci.contains("1af4:1067"),
            "lspci shows no 1af4:1067:\n{pci}"
        );
        let before = number(&nodes, node, interrupts)?;
        scenario::all_pairs_exchange(&nodes, 5)?;
        let after = number(&nodes, node, interrupts)?;
        ensure!(after > before, "no interrupts: {before}, then {after}");
        let mut holder = nodes.start(node, &["memory-server", "--size", "33554432"])?;
        let holding = holder.expect("serving", LIMIT)?;
        for kind in ["locked_kib", "pinned_kib"] {
            ensure!(holding[kind] == 0, "{kind} is not 0: {holding}");
        }
        let pid = holding["pid"].as_u64().context("no pid")?;
        let status = shell(
            &nodes,
            node,
            &format!("grep -E 'VmLck|VmPin' /proc/{pid}/status"),
        )?;
        ensure!(
            status.lines().count() == 2 && status.lines().all(|line| line.ends_with(" 0 kB")),
            "memory is locked or pinned:\n{status}"
        );
    }
    nodes.passed()
}

/// While guests are idle the device process uses under 1 % of a core; beyond
/// shared memory it holds under 64 MiB for four NICs.
fn idle() -> Result<Verdict> {
    const SECONDS: u64 = 10;
    let nodes = VmNodes::boot("idle", &["stable"; 4])?.watched();
    scenario::all_pairs_exchange(&nodes, 5)?;
    let pid = nodes.cluster().device().context("no device process")?.pid;
    let before = cpu_ticks(pid)?;
    let start = Instant::now();
    shell(&nodes, 0, &format!("sleep {SECONDS}"))?;
    let ticks = cpu_ticks(pid)? - before;
    let part = ticks as f64 / 100.0 / start.elapsed().as_secs_f64();
    let private = private_kib(pid)?;
    println!("    {:.2} % of a core, {private} KiB", part * 100.0);
    if part >= 0.01 {
        bail!(
            "the idle device process used {:.1} % of a core",
            part * 100.0
        );
    }
    ensure!(
        private < 64 * 1024,
        "the device process holds {private} KiB"
    );
    nodes.passed()
}
