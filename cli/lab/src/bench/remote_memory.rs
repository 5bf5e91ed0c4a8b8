//! What pages cost in remote memory (H9), between two guests: beside nbd over TCP to memory of the
//! same other guest, and beside the disk that the same guest has. Within a round all take turns.
//!
//! A page that is swapped in is a read, one that is swapped out a write, past the page cache. Nbd's
//! server is one of this project, as quick as it can be: its blocks are in its memory.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use qnic_apps::report::{DiskRow, Latency};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{Nodes, Running};

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::guest_network::{address, GuestNetwork};
use super::LIMIT;

/// Latency of a page, of that by nbd.
const LATENCY_GOAL: f64 = 1.0 / 3.0;

/// Pages in a second, at least, of nbd's.
const RATE_GOAL: f64 = 5.0;

/// Part of each device that is used.
const SIZE: &str = "8MiB";

const NBD: &str = "nbd";

/// What is compared, and its device in the first guest.
const DEVICES: [(&str, &str); 3] = [
    ("remote memory", "/dev/qnicmem0"),
    (NBD, "/dev/nbd0"),
    ("virtio-blk", "/dev/vda"),
];

/// Rows of one device, all rounds.
#[derive(Default)]
struct Measured {
    name: &'static str,
    rows: Vec<DiskRow>,
}

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let network = GuestNetwork::new()?;
    let disk = tempfile::tempdir().context("make a directory for a disk")?;
    let mut arguments = [0, 1].map(|node| network.arguments(node));
    arguments[0].extend(virtio_disk(disk.path())?);
    let nodes = VmNodes::boot_with("disks", &["stable"; 2], &arguments)?;
    network.set_up(&nodes)?;
    shell(&nodes, 1, "qnic-rmem serve --size 16MiB")?;
    let attach = format!("qnic-rmem attach --size {SIZE} --replicas 1 --servers 1");
    shell(&nodes, 0, &attach)?;
    let mut missing = None;
    let server = match start_nbd(&nodes) {
        Ok(server) => Some(server),
        Err(error) => {
            missing = Some(format!("nbd is not there: {error:#}"));
            None
        }
    };
    let there = DEVICES
        .iter()
        .filter(|(name, _)| server.is_some() || *name != NBD);
    let there: Vec<_> = there.collect();
    let mut all: Vec<_> = there.iter().map(|(name, _)| Measured::new(name)).collect();
    for round in 1..=rounds {
        eprintln!("pages, round {round} of {rounds}");
        for ((_, device), measured) in there.iter().zip(&mut all) {
            let fill = if round == 1 { "--fill" } else { "" };
            let options = format!("disk-bench --device {device} --size {SIZE} {fill}");
            let rows = one_round(&nodes, &options).with_context(|| device.to_string())?;
            measured.rows.extend(rows);
        }
    }
    if let Some(mut server) = server {
        server.kill()?;
    }
    let tables = tables(&all);
    Ok(match missing {
        None => tables,
        Some(why) => tables.into_iter().map(|it| it.note(why.clone())).collect(),
    })
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

fn one_round(nodes: &VmNodes, options: &str) -> Result<Vec<DiskRow>> {
    let mut program = nodes.start(0, options)?;
    let mut rows = Vec::new();
    while let Some(line) = program.line(LIMIT)? {
        rows.push(serde_json::from_str(&line).with_context(|| format!("line {line:?}"))?);
    }
    program.succeed("disk-bench", LIMIT)?;
    Ok(rows)
}

impl Measured {
    fn new(name: &'static str) -> Self {
        Measured {
            name,
            rows: Vec::new(),
        }
    }

    fn times(&self, writes: bool, pick: fn(&Latency) -> f64) -> Vec<f64> {
        self.of(writes).map(|row| pick(&row.latency)).collect()
    }

    fn rates(&self, writes: bool) -> Vec<f64> {
        self.of(writes).map(|row| row.each_second).collect()
    }

    fn of(&self, writes: bool) -> impl Iterator<Item = &DiskRow> {
        self.rows.iter().filter(move |row| row.writes == writes)
    }
}

fn tables(all: &[Measured]) -> Vec<Table> {
    let nbd = all.iter().find(|measured| measured.name == NBD);
    let mut latencies = Vec::new();
    let mut rates = Vec::new();
    for (writes, what, many) in [(false, "in", "reads"), (true, "out", "writes")] {
        let time = nbd.map(|nbd| nbd.times(writes, |it| it.median_us));
        let rate = nbd.map(|nbd| nbd.rates(writes));
        let (time, rate) = (time.unwrap_or_default(), rate.unwrap_or_default());
        for measured in all {
            let is_own = measured.name == DEVICES[0].0;
            let goal = |goal: Goal| is_own.then(|| goal.code("H9"));
            let figures = [
                Figure::with_spread("page", "µs", measured.times(writes, |it| it.median_us))
                    .ratio_to("of nbd", &time)
                    .ratio_goal(goal(Goal::at_most(LATENCY_GOAL))),
                Figure::new("99 %", "µs", measured.times(writes, |it| it.p99_us)),
                Figure::new("least", "µs", measured.times(writes, |it| it.min_us)),
            ];
            let row = Row::new(format!("{}, {what}", measured.name), figures);
            latencies.push(row.of_peer(!is_own));
            let rate = Figure::with_spread("pages", "/s", measured.rates(writes))
                .ratio_to("of nbd", &rate)
                .ratio_goal(goal(Goal::at_least(RATE_GOAL)));
            let row = Row::new(format!("{}, {many}", measured.name), [rate]);
            rates.push(row.of_peer(!is_own));
        }
    }
    let title = "Remote memory between guests: a page in, a page out, one at a time";
    let latencies = Table::new("page", title, latencies);
    let title = "Remote memory between guests: pages anywhere, 16 threads";
    vec![latencies, Table::new("pages", title, rates)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::text::tests::words_of_row;

    fn row(writes: bool, median_us: f64, each_second: f64) -> DiskRow {
        let latency = Latency {
            median_us,
            p99_us: 2.0 * median_us,
            min_us: 1.0,
            mean_us: median_us,
            rounds: 5,
        };
        DiskRow {
            writes,
            latency,
            each_second,
        }
    }

    #[test]
    fn remote_memory_stands_beside_nbd() {
        let measured = |name, times: [f64; 2]| Measured {
            name,
            rows: vec![
                row(true, times[0], 1000.0),
                row(false, times[1], 1e6 / times[1]),
            ],
        };
        let both = [
            measured("remote memory", [20.0, 10.0]),
            measured(NBD, [100.0, 80.0]),
        ];
        let [latencies, rates] = &tables(&both)[..] else {
            panic!("two tables");
        };
        let words = words_of_row(latencies, "remote memory, in").join(" ");
        assert_eq!(
            words,
            "remote memory, in 10.00 (10.00 … 10.00) 0.12 ≤ 0.333 20.00 1.00"
        );
        let words = words_of_row(latencies, "remote memory, out").join(" ");
        assert!(words.contains("20.00) 0.20 ≤ 0.333 40.00"), "{words}");
        let words = words_of_row(rates, "remote memory, reads").join(" ");
        assert_eq!(
            words,
            "remote memory, reads 100000 (100000 … 100000) 8.00 ≥ 5"
        );
        // Without nbd there is nothing to compare with.
        let alone = tables(&both[..1]);
        let words = words_of_row(&alone[0], "remote memory, in").join(" ");
        assert_eq!(
            words,
            "remote memory, in 10.00 (10.00 … 10.00) ≤ 0.333 20.00 1.00"
        );
    }
}
