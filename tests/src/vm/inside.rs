//! What authors of drivers have: a debugger on the kernel of a guest, a dump of its memory, and a directory of
//! the host in it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::{NodeState, ShareSpec};

use super::nodes::{on_spec, BOTH_KERNELS};
use super::shell::no_kernel_complains;
use crate::harness::{cases, Case};
use crate::scenario;
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;

pub(crate) const CASES: &[Case] = cases! { "vm":
    authors_of_drivers_look_into_guests => {
        let host = tempfile::tempdir()?;
        let mut spec = VmNodes::spec("inside", BOTH_KERNELS)?;
        let share = ShareSpec::new(host.path());
        spec.nodes[0].share = Some(share.clone());
        spec.nodes[1].share = Some(ShareSpec {
            at: "/data".into(),
            writable: true,
            ..share
        });
        on_spec(&spec, |nodes| look_into(nodes, host.path()))
    },
};

/// Node 0 may read a directory of the host, node 1 may change it.
fn look_into(nodes: &VmNodes, host: &Path) -> Result<()> {
    shared(nodes, host).context("a directory of the host")?;
    for node in [0, 1] {
        debugged(nodes, node).with_context(|| format!("a debugger on node {node}"))?;
        dumped(nodes, node).with_context(|| format!("a dump of node {node}"))?;
        // The kernel's virtiofs cannot sleep. The NIC may have been put to sleep before it.
        let slept = shell(nodes, node, "echo freeze > /sys/power/state");
        ensure!(
            slept.is_err(),
            "a guest with a directory of the host sleeps"
        );
    }
    scenario::all_pairs_exchange(nodes, 5)?;
    no_kernel_complains(nodes)
}

/// Both see at once what the host and the other one write; node 0 writes nothing, nor does it reach what is
/// beside the directory.
fn shared(nodes: &VmNodes, host: &Path) -> Result<()> {
    fs::write(host.join("given"), "by the host")?;
    for (node, at) in ["/mnt/share", "/data"].iter().enumerate() {
        let given = shell(nodes, node, &format!("cat {at}/given"))?;
        ensure!(given == "by the host", "node {node} reads {given:?}");
    }
    shell(nodes, 1, "echo by a guest > /data/made")?;
    ensure!(fs::read_to_string(host.join("made"))? == "by a guest\n");
    shell(nodes, 0, "grep guest /mnt/share/made")?;
    for change in [
        "echo x > /mnt/share/x",
        "rm /mnt/share/given",
        "echo x >> /mnt/share/made",
    ] {
        ensure!(shell(nodes, 0, change).is_err(), "{change:?} was allowed");
    }
    let link = host.join("beside");
    std::os::unix::fs::symlink("../..", &link)?;
    let seen = shell(nodes, 1, "echo mine > /run/mark; cat /data/beside/run/mark")?;
    ensure!(seen == "mine\n", "a link leads to {seen:?}");
    Ok(())
}

/// Longest time for QEMU to answer a debugger.
const LIMIT: Duration = Duration::from_secs(120);

/// The debugger finds the guest, and functions of kernel and module by the addresses that the guest says; then
/// the guest goes on.
fn debugged(nodes: &VmNodes, node: usize) -> Result<()> {
    let machine = nodes.node(node)?;
    // The second time, the first one is still listening.
    machine.debugger()?;
    let debugger = machine.debugger()?;
    ensure!(debugger.without_symbols.is_none(), "{debugger:?}");
    let script = fs::read_to_string(&debugger.script)?;
    let words = |start: &str| {
        let line = script.lines().find_map(|line| line.strip_prefix(start));
        line.map(str::to_owned).with_context(|| script.clone())
    };
    let symbols = words("add-symbol-file ")?;
    let (symbols, _) = symbols.split_once(' ').context("no address")?;
    ensure!(fs::metadata(symbols)?.len() > 1 << 20, "few symbols");
    stop_reason(&words("target remote ")?)?;
    shell(nodes, node, "true").context("it does not go on")?;
    let probe = shell(
        nodes,
        node,
        "awk '$3 == \"qnic_probe\" { print $1 }' /proc/kallsyms",
    )?;
    match Command::new("gdb")
        .args(["-q", "-batch", "-x"])
        .arg(&debugger.script)
        .args([
            "-ex",
            "info address qnic_probe",
            "-ex",
            "x/s (char*)&linux_banner",
        ])
        .output()
    {
        Ok(gdb) => {
            let said = String::from_utf8_lossy(&gdb.stdout).into_owned();
            let found =
                said.contains(&format!("0x{}", probe.trim())) && said.contains("Linux version");
            ensure!(found, "gdb says {said}");
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("    there is no gdb here: its commands were not carried out");
        }
        Err(error) => bail!("start gdb: {error}"),
    }
    machine.end_debugger()?;
    drop(debugger);
    shell(nodes, node, "true").context("it does not go on")?;
    debugged_while_paused(nodes, node).context("while it is paused")
}

/// A guest that is paused stays so, though the stub lets it go on; a second debugger is refused meanwhile.
fn debugged_while_paused(nodes: &VmNodes, node: usize) -> Result<()> {
    let (cluster, machine) = (nodes.cluster(), nodes.node(node)?);
    cluster.pause(machine.name())?;
    let attached = cluster.debug(machine.name(), |debugger| {
        let script = fs::read_to_string(&debugger.script)?;
        let mut lines = script.lines();
        let socket = lines.find_map(|line| line.strip_prefix("target remote "));
        stop_reason(socket.context("no socket")?)?;
        let second = machine.debugger().err().context("a second debugger")?;
        ensure!(second.to_string().contains("attached"), "{second}");
        Ok(())
    });
    attached??;
    let state = machine.state();
    ensure!(state == NodeState::Paused, "it is {state}");
    cluster.resume(machine.name())?;
    shell(nodes, node, "true").context("it does not go on")?;
    Ok(())
}

/// What a debugger says first: it asks why the guest stands still, and is told; then it lets the guest go on.
fn stop_reason(socket: &str) -> Result<()> {
    let mut stub = UnixStream::connect(socket).context("connect to the stub")?;
    stub.set_read_timeout(Some(LIMIT))?;
    stub.write_all(b"+$?#3f")?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while answer.last() != Some(&b'#') {
        stub.read_exact(&mut byte).context("read its answer")?;
        answer.push(byte[0]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    ensure!(answer.contains("$T05"), "the stub says {answer:?}");
    stub.write_all(b"+$D#44")?;
    stub.read_exact(&mut byte).context("detach")?;
    Ok(())
}

/// The dump is a core file of x86-64 with all of the guest's memory, in which a word of a process is found; no
/// file is overwritten, and a place where QEMU cannot write is named.
fn dumped(nodes: &VmNodes, node: usize) -> Result<()> {
    let machine = nodes.node(node)?;
    let place = tempfile::tempdir()?;
    let file = place.path().join("guest.core");
    let mark = format!("a mark of node {node}, and no other: ");
    shell(
        nodes,
        node,
        &format!("yes '{mark}' | head -n 100 > /dev/shm/mark"),
    )?;
    let mut told = (0, 0);
    machine.dump(&file, |done, all| told = (done, all))?;
    let dump = fs::read(&file)?;
    ensure!(
        told.0 == told.1 && told.0 >= machine.spec().memory.0,
        "{told:?}"
    );
    // ET_CORE, EM_X86_64.
    ensure!(
        dump.starts_with(b"\x7fELF\x02\x01\x01") && dump[16..20] == [4, 0, 62, 0],
        "no core file"
    );
    ensure!(
        dump.windows(mark.len()).any(|part| part == mark.as_bytes()),
        "the mark is not in it"
    );
    let again = machine
        .dump(&file, |_, _| {})
        .err()
        .context("overwritten")?;
    ensure!(again.to_string().contains("already"), "{again}");
    let nowhere = machine.dump("/nowhere/x".as_ref(), |_, _| {});
    let nowhere = nowhere
        .err()
        .context("written to a directory that is none")?;
    ensure!(nowhere.to_string().contains("/nowhere/x"), "{nowhere}");
    shell(nodes, node, "rm /dev/shm/mark").context("it does not go on")?;
    Ok(())
}
