//! What pages cost in remote memory (H9), between two guests: beside nbd over TCP to memory of the
//! same other guest, and beside the disk that the same guest has. Within a round all take turns.
//!
//! A page that is swapped in is a read, one that is swapped out a write, past the page cache. Nbd's
//! server is one of this project, as quick as it can be: its blocks are in its memory.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use qnic_apps::report::DiskRow;
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{Nodes, Running};

use super::guest_network::{address, GuestNetwork};
use super::point_to_point::said;
use super::tables::{Tables, LEAST, TAIL};

/// Part of each device that is used.
const SIZE: &str = "8MiB";

/// What is compared, and its device in the first guest.
const DEVICES: [(&str, &str); 3] = [
    ("remote memory", "/dev/qnicmem0"),
    ("nbd", "/dev/nbd0"),
    ("virtio-blk", "/dev/vda"),
];

/// Pages that are read, or written: what one and many are called.
const WAYS: [(&str, &str); 2] = [("in", "reads"), ("out", "writes")];

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let network = GuestNetwork::new()?;
    let disk = tempfile::tempdir().context("make a directory for a disk")?;
    let mut arguments = [0, 1].map(|node| network.arguments(node));
    arguments[0].extend(virtio_disk(disk.path())?);
    let nodes = VmNodes::boot_with("disks", &["stable"; 2], &arguments)?;
    network.set_up(&nodes, "eth0")?;
    shell(&nodes, 1, "qnic-rmem serve --size 16MiB")?;
    let attach = format!("qnic-rmem attach --size {SIZE} --replicas 1 --servers 1");
    shell(&nodes, 0, &attach)?;
    for (one, many) in WAYS {
        for (name, _) in DEVICES {
            tables.row("page", &format!("{name}, {one}"), None);
            tables.row("pages", &format!("{name}, {many}"), None);
        }
    }
    let mut server = tables.attempt("nbd", || start_nbd(&nodes));
    let mut fill = " --fill";
    tables.rounds(rounds, ", pages", false, |round| {
        for (name, device) in DEVICES
            .into_iter()
            .filter(|(name, _)| *name != "nbd" || server.is_some())
        {
            let options = format!("disk-bench --device {device} --size {SIZE}{fill}");
            let rows: Result<Vec<DiskRow>> = said(nodes.start(0, &options)?, "disk-bench");
            for row in rows.with_context(|| device.to_owned())? {
                let (one, many) = WAYS[usize::from(row.writes)];
                let to = round.row("page", &format!("{name}, {one}"), None);
                to.add("page [µs]", [row.latency.median_us]);
                to.add(TAIL, [row.latency.p99_us])
                    .add(LEAST, [row.latency.min_us]);
                round.add(
                    "pages",
                    &format!("{name}, {many}"),
                    "pages [/s]",
                    row.each_second,
                );
            }
        }
        fill = "";
        Ok(())
    })?;
    server.as_mut().map_or(Ok(()), |server| server.kill())
}

/// Arguments of QEMU for a disk of the host's file system.
fn virtio_disk(directory: &Path) -> Result<Vec<String>> {
    let path = directory.join("disk");
    let file = File::create(&path).context("make a disk")?;
    file.set_len(64 << 20).context("size a disk")?;
    let file = format!("driver=file,node-name=measured,filename={}", path.display());
    let device = "virtio-blk-pci,drive=measured";
    let arguments = ["-blockdev", &file, "-device", device];
    Ok(arguments.map(str::to_owned).to_vec())
}

/// A server of nbd on the second guest; the first has its device.
fn start_nbd(nodes: &VmNodes) -> Result<Box<dyn Running>> {
    let server = nodes.start_until(1, &format!("nbd-server --size {SIZE}"), "serving")?;
    let connect = format!(
        "modprobe nbd nbds_max=1 && \
         (setsid nbd-client {} 10809 /dev/nbd0 </dev/null >/dev/null 2>&1 &) && \
         tries=200 && while [ $(cat /sys/block/nbd0/size) = 0 ]; do \
         tries=$((tries - 1)); [ $tries -gt 0 ] || exit 1; usleep 50000; done",
        address(1)
    );
    shell(nodes, 0, &connect).context("connect nbd")?;
    Ok(server)
}
