//! What a write of 8 bytes costs as there is more beside it (P9): endpoints of one process that
//! take turns, NICs of one device process that do nothing, peers that take turns, exported pages;
//! and what a message of 8 bytes costs as more receives are posted. Host mode. Groups that grow are
//! in the suite `collective`.

use anyhow::{bail, Context, Result};
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::{BenchRow, Latency, ServerLine};
use qnic_cluster::ByteSize;
use qnic_trials::nodes::host::{DevicePlan, HostNodes};
use qnic_trials::nodes::Nodes;

use super::figures::{Figure, Row, Table};
use super::floor::cold_word_ns;
use super::goal::Goal;
use super::point_to_point::rows_of;
use super::{merge, LIMIT};

/// Memory of a node besides the pages that it exports; what nobody touches takes none.
const OTHER_MEMORY: ByteSize = ByteSize::mib(128);

/// Something that grows, and what one write may cost at most of what it costs with the first
/// count.
struct Sweep {
    id: &'static str,
    /// What there is more of.
    grows: &'static str,
    title: &'static str,
    counts: &'static [usize],
    goal: f64,
    /// What is measured with a count.
    round: fn(usize) -> Result<Vec<BenchRow>>,
}

/// What writes go between, and whereto.
struct Writes {
    nics: usize,
    endpoints: usize,
    peers: usize,
    /// Pages that each peer exports.
    pages: usize,
}

/// One endpoint, one peer, one page.
const ONE: Writes = Writes {
    nics: 2,
    endpoints: 1,
    peers: 1,
    pages: 1,
};

const SWEEPS: [Sweep; 5] = [
    Sweep {
        id: "endpoints",
        grows: "endpoints",
        title: "Endpoints of one process that take turns",
        counts: &[1, 16, 120],
        goal: 1.2,
        round: |endpoints| writes(&Writes { endpoints, ..ONE }),
    },
    Sweep {
        id: "idle-nics",
        grows: "NICs",
        title: "NICs of one device process, all but two idle",
        counts: &[2, 16, 64],
        goal: 1.1,
        round: |nics| writes(&Writes { nics, ..ONE }),
    },
    Sweep {
        id: "peers",
        grows: "peers",
        title: "Peers that take turns",
        counts: &[1, 16, 63],
        goal: 1.2,
        round: |peers| {
            let nics = peers + 1;
            writes(&Writes { nics, peers, ..ONE })
        },
    },
    Sweep {
        id: "pages",
        grows: "pages",
        title: "Pages that the peer exports, few of them written to",
        counts: &[1, 1000, 25_000, 1_000_000],
        goal: 1.2,
        round: |pages| writes(&Writes { pages, ..ONE }),
    },
    Sweep {
        id: "receives",
        grows: "receives",
        title: "Receives that are posted on both sides, for other messages",
        counts: &[0, 100, 4000],
        goal: 1.2,
        round: messages,
    },
];

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let mut all: Vec<Vec<Vec<BenchRow>>> = Vec::new();
    let mut cold = Vec::new();
    for sweep in &SWEEPS {
        all.push(vec![Vec::new(); sweep.counts.len()]);
    }
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        cold.push(cold_word_ns());
        for (sweep, rows) in SWEEPS.iter().zip(&mut all) {
            for (count, rows) in sweep.counts.iter().zip(rows) {
                for row in (sweep.round)(*count)? {
                    merge(rows, row);
                }
            }
        }
    }
    let mut tables: Vec<_> = SWEEPS.iter().zip(&all).map(table).collect();
    let time = Figure::with_spread("time", "ns", cold);
    tables.push(Table::new(
        "cold",
        "What a word takes that has left the caches, on this machine",
        vec![Row::new("a word that no cache holds", [time])],
    ));
    Ok(tables)
}

/// One round of writes, between nodes of its own.
fn writes(writes: &Writes) -> Result<Vec<BenchRow>> {
    let Writes {
        nics,
        endpoints,
        peers,
        pages,
    } = writes;
    let bytes = pages * PAGE_SIZE;
    let memory = ByteSize(OTHER_MEMORY.0 + bytes as u64);
    let nodes = HostNodes::start_several(&[DevicePlan {
        memory: Some(memory),
        ..DevicePlan::alone(*nics, "")
    }])?;
    let start = |node| -> Result<_> {
        let mut server = nodes.start(node, &format!("memory-server --size {bytes}"))?;
        let Some(line) = server.line(LIMIT)? else {
            server.succeed("a memory server", LIMIT)?;
            bail!("a memory server says nothing");
        };
        serde_json::from_str::<ServerLine>(&line).with_context(|| format!("line {line:?}"))?;
        Ok(server)
    };
    let servers: Vec<_> = (1..=*peers).map(start).collect::<Result<_>>()?;
    let peers: Vec<_> = (1..=*peers).map(|node| node.to_string()).collect();
    let peers = peers.join(",");
    let words = format!("growth-bench --endpoints {endpoints} --peers {peers} --pages {pages}");
    let mut writer = nodes.start(0, &words)?;
    let mut rows = Vec::new();
    while let Some(line) = writer.line(LIMIT).context("the writer")? {
        rows.push(serde_json::from_str(&line).with_context(|| format!("line {line:?}"))?);
    }
    writer.succeed("the writer", LIMIT)?;
    for mut server in servers {
        server.succeed("a memory server", LIMIT)?;
    }
    Ok(rows)
}

/// One round of messages while so many receives are posted: as the rows of writes.
fn messages(posted: usize) -> Result<Vec<BenchRow>> {
    let nodes = HostNodes::start(2)?;
    let side = |peer| {
        format!(
            "message-bench --peer {peer} --rounds 1 --sizes 8 --balls 1000 --stream-bytes 8000 \
             --posted {posted}"
        )
    };
    let target = nodes.start(1, &side(0))?;
    let initiator = nodes.start(0, &format!("{} --initiator", side(1)))?;
    let all = rows_of(initiator, target)?;
    let row = all.iter().find(|row| row.operation == "message");
    let row = row.context("no message was measured")?;
    let mut rows = ["fenced", "streamed"].map(|name| BenchRow::new(name, row.size));
    rows[0].latency.clone_from(&row.latency);
    rows[1].latency.extend(row.mb_s.iter().map(|mb_s| {
        let mean = row.size as f64 / mb_s;
        Latency {
            median_us: mean,
            p99_us: mean,
            min_us: mean,
            mean_us: mean,
            rounds: 1,
        }
    }));
    Ok(rows.into())
}

fn table((sweep, rows): (&Sweep, &Vec<Vec<BenchRow>>)) -> Table {
    let times = |rows: &[BenchRow], name: &str| -> Vec<f64> {
        let row = rows.iter().find(|row| row.operation == name);
        let all = row.into_iter().flat_map(|row| &row.latency);
        all.map(|latency: &Latency| latency.median_us).collect()
    };
    let lines = sweep.counts.iter().zip(rows).map(|(count, own)| {
        let goal = (*count > sweep.counts[0]).then(|| Goal::at_most(sweep.goal).code("P9"));
        let figure = |name: &str| {
            Figure::with_spread(name, "µs", times(own, name))
                .ratio_to("of the first", &times(&rows[0], name))
                .ratio_goal(goal.clone())
        };
        let figures = [figure("fenced"), figure("streamed")];
        Row::new("8 bytes", figures).at(sweep.grows, *count as f64)
    });
    Table::new(sweep.id, sweep.title, lines.collect())
}
