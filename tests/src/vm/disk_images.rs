//! A disk image of the distribution's packages in a cluster (X17): it joins by cloud-init, is reached by IP, by
//! commands and by SSH, and its NIC has the module that DKMS has built for it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{ensure, Context, Result};
use qnic_cluster::{FileSpec, NodeSpec, OnOff};
use qnic_images::{Cache, Provisioner, Silent};

use super::ethernet::ping;
use super::nodes::on_spec;
use super::shell::no_kernel_complains;
use crate::harness::{cases, Case};
use crate::scenario;
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;

pub(crate) const CASES: &[Case] = cases! { "vm":
    a_disk_image_joins_by_cloud_init_and_has_its_module_by_dkms => joins(),
};

/// Longest time for the image to boot.
const BOOT: Duration = Duration::from_secs(600);

/// Bytes of a stream.
const STREAM: u64 = 8 << 20;

fn joins() -> Result<()> {
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    let image = provisioner.disk_image()?;
    let before = changes(&image)?;
    let scratch = tempfile::tempdir()?;
    let package = scratch.path().join("package");
    let package_text = package.to_str().context("a path that is not UTF-8")?;
    let written = qnic(&["dkms", package_text])?;
    ensure!(written.status.success(), "qnic dkms: {written:?}");
    let module = provisioner.dkms_module(&package)?;

    let mut spec = VmNodes::spec("disk", &["stable"])?;
    spec.ethernet = OnOff::on();
    let name = module.file_name().unwrap_or_default().to_string_lossy();
    let verbs_name = name.replace("qnic.ko", "qnic_ib.ko");
    let verbs = module.with_file_name(&verbs_name);
    ensure!(verbs.is_file(), "DKMS has not built {}", verbs.display());
    let file = |from: &Path, name: &str| FileSpec {
        from: from.to_owned(),
        to: format!("/opt/from dkms/{name}").into(),
        mode: 0o640,
    };
    spec.nodes.push(NodeSpec {
        image: Some(image.clone()),
        memory: "512MiB".parse()?,
        files: vec![file(&module, &name), file(&verbs, &verbs_name)],
        ..NodeSpec::new("n1")
    });
    on_spec(&spec, |nodes| {
        talks(nodes)?;
        is_reached_by_ssh(nodes)?;
        drives_its_nic(nodes)
    })?;
    ensure!(changes(&image)? == before, "the image was changed");
    Ok(())
}

/// It has name and address of the cluster file, and talks with a guest of ours.
fn talks(nodes: &VmNodes) -> Result<()> {
    let said = shell(
        nodes,
        1,
        "hostname; cloud-init status; stat -c %a /opt/*/qnic.ko*",
    )?;
    let expected = "n1\nstatus: done\n640\n";
    ensure!(said == expected, "the guest says {said:?}");
    let (ours, image) = ((nodes, 0, "n0"), (nodes, 1, "n1"));
    for (from, to) in [(ours, image), (image, ours)] {
        ping(from, to, "-c 5 -i 0.2 -W 60 -s 4000")?;
    }
    // To the image, and back: each has a netcat of another kind.
    stream(nodes, (0, "nc n1 5000"), (1, "nc -l 5000", "ss -ltn"))?;
    stream(
        nodes,
        (1, "nc -N n0 5000"),
        (0, "nc -l -p 5000", "netstat -ltn"),
    )
}

/// A guest sends bytes to another one over TCP, by programs that it has, and all arrive as they were.
fn stream(
    nodes: &VmNodes,
    (from, send): (usize, &str),
    (to, receive, sockets): (usize, &str, &str),
) -> Result<()> {
    // Its input stays open: it ends the connection when that ends.
    let listen = format!(
        "rm -f /tmp/received; (tail -f /dev/null | {receive} > /tmp/received) & \
         until {sockets} | grep -q ':5000 '; do :; done"
    );
    shell(nodes, to, &listen)?;
    let sender = shell(
        nodes,
        from,
        &format!(
            "head -c {STREAM} /dev/urandom > /tmp/sent; {send} < /tmp/sent; sha256sum < /tmp/sent"
        ),
    )?;
    let received = format!(
        "until [ $(stat -c %s /tmp/received) = {STREAM} ]; do pidof nc > /dev/null || break; done; \
         kill $(pidof nc tail) 2> /dev/null; sha256sum < /tmp/received"
    );
    let received = shell(nodes, to, &received)?;
    ensure!(sender == received, "{STREAM} bytes were changed on the way");
    println!("    {STREAM} bytes over TCP from node {from} to node {to}");
    Ok(())
}

/// By the key of the cluster, as root and as the user of the image; the status is that of the command.
fn is_reached_by_ssh(nodes: &VmNodes) -> Result<()> {
    let cluster = nodes.cluster();
    let key = cluster.ssh_key().context("the cluster has no key")?;
    let mode = fs::metadata(&key)?.mode();
    ensure!(mode & 0o777 == 0o600, "others may read the key: {mode:o}");
    for user in ["root", "debian"] {
        let command = [
            "ssh",
            "n1",
            "--user",
            user,
            "--cluster",
            cluster.name(),
            "--",
        ];
        let ran = qnic(&[&command[..], &["hostname; id -un; exit 7"]].concat())?;
        let said = String::from_utf8_lossy(&ran.stdout);
        ensure!(
            ran.status.code() == Some(7) && said == format!("n1\n{user}\n"),
            "qnic ssh: {ran:?}"
        );
    }
    Ok(())
}

/// The modules are where DKMS installs them, and that of the NIC is loaded when the guest boots again. Programs of both
/// guests transfer data. The other module makes a device of libibverbs (X18).
fn drives_its_nic(nodes: &VmNodes) -> Result<()> {
    let install = "into=/lib/modules/$(uname -r)/updates/dkms && mkdir -p $into && cp /opt/*/qnic*.ko* $into && \
                   depmod -a && sync && modinfo -n qnic qnic_ib";
    let installed = shell(nodes, 1, install)?;
    for module in ["qnic.ko", "qnic_ib.ko"] {
        let place = format!("/updates/dkms/{module}");
        ensure!(installed.contains(&place), "modprobe takes {installed}");
    }
    let node = nodes.node(1)?;
    let boots = node.reset()?;
    node.wait_ready(boots, BOOT)?;
    shell(nodes, 1, "until [ -e /dev/qnic0 ]; do :; done")?;
    for ends in [[0, 1], [1, 0]] {
        scenario::demo_between(nodes, ends, "1,97,4096,65537,1048576", 4 << 20)?;
    }
    let port = "modprobe qnic_ib && cat /sys/class/infiniband/qnic0/ports/1/state";
    let state = shell(nodes, 1, port)?;
    ensure!(state.contains("ACTIVE"), "the port of verbs is {state}");
    no_kernel_complains(nodes)
}

/// When the file was written to last, and how many blocks it has.
fn changes(file: &Path) -> Result<(SystemTime, u64)> {
    let metadata = fs::metadata(file)?;
    Ok((metadata.modified()?, metadata.blocks()))
}

/// Runs the program `qnic` to its end.
fn qnic(arguments: &[&str]) -> Result<Output> {
    let own = std::env::current_exe().context("find this program")?;
    let mut command = Command::new(own);
    command.args(arguments).stdin(Stdio::null());
    command.output().context("start qnic")
}
