//! What a write of 8 bytes costs as there is more beside it (P9): endpoints of one process that
//! take turns, NICs of one device process that do nothing, peers that take turns, exported pages;
//! and what a message of 8 bytes costs as more receives are posted. And what writes cost between two NICs
//! of one engine, or of an engine each: the price of a ring between threads, where there is nothing to
//! gain by it. Host mode. Groups that grow are in the suite `collective`.

use anyhow::{bail, Context, Result};
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::{BenchRow, ServerLine};
use qnic_cluster::ByteSize;
use qnic_trials::nodes::host::{DevicePlan, HostNodes};
use qnic_trials::nodes::Nodes;

use super::figures::at;
use super::floor::cold_word_ns;
use super::limits::LIMIT;
use super::point_to_point::{list, rows_of, said, transfers_between};
use super::tables::{Tables, HALF, STREAM};

/// Memory of a node besides the pages that it exports; what is not touched takes none.
const OTHER_MEMORY: ByteSize = ByteSize::mib(128);

/// A table of something that grows: its id, what there is more of, the counts, and what measures with one:
/// microseconds of fenced operations, and of streamed ones.
type Sweep = (
    &'static str,
    &'static str,
    &'static [usize],
    fn(usize) -> Result<Times>,
);
type Times = [Vec<f64>; 2];

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
    ("endpoints", "endpoints", &[1, 16, 120], |endpoints| {
        writes(&Writes { endpoints, ..ONE })
    }),
    ("idle-nics", "NICs", &[2, 16, 64], |nics| {
        writes(&Writes { nics, ..ONE })
    }),
    ("peers", "peers", &[1, 16, 63], |peers| {
        let nics = peers + 1;
        writes(&Writes { nics, peers, ..ONE })
    }),
    ("pages", "pages", &[1, 1000, 25_000, 1_000_000], |pages| {
        writes(&Writes { pages, ..ONE })
    }),
    ("receives", "receives", &[0, 100, 4000], messages),
];

/// Sizes between engines: the smallest write, a page, and what goes through a ring in several spans.
const BETWEEN_ENGINES: &str = "8,4096,65536";

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    tables.rounds(rounds, "", false, |round| {
        round.add(
            "cold",
            "a word that no cache holds",
            "time [ns]",
            cold_word_ns(),
        );
        for (table, grows, counts, measure) in &SWEEPS {
            for count in *counts {
                let [fenced, streamed] = measure(*count)?;
                let row = round.row(table, "8 bytes", at(grows, *count as f64));
                row.add("fenced [µs]", fenced)
                    .add("streamed [µs]", streamed);
            }
        }
        Ok(())
    })?;
    tables.rounds(rounds, ", engines", false, |round| {
        let of = |engines: usize| {
            let nodes = HostNodes::start_with(2, &format!("[engine]\nengines = {engines}\n"))?;
            transfers_between(&nodes, &format!("--rounds 1 --sizes {BETWEEN_ENGINES}"))
        };
        for (one, two) in of(1)?.iter().zip(&of(2)?) {
            for (engines, row) in [(1.0, one), (2.0, two)] {
                let name = format!("{} of {} bytes", row.operation, row.size);
                let to = round.row("engines", &name, at("engines", engines));
                to.add(HALF, row.latency.iter().map(|it| it.median_us));
                to.add(STREAM, row.mb_s.iter().copied());
            }
        }
        Ok(())
    })
}

/// One round of writes, between nodes of its own.
fn writes(writes: &Writes) -> Result<Times> {
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
    let peers = list(&(1..=*peers).collect::<Vec<_>>());
    let words = format!("growth-bench --endpoints {endpoints} --peers {peers} --pages {pages}");
    let rows: Vec<BenchRow> = said(nodes.start(0, &words)?, "the writer")?;
    for mut server in servers {
        server.succeed("a memory server", LIMIT)?;
    }
    let of = |name: &str| {
        let row = rows.iter().find(|row| row.operation == name);
        let all = row.into_iter().flat_map(|row| &row.latency);
        all.map(|latency| latency.median_us).collect()
    };
    Ok([of("fenced"), of("streamed")])
}

/// One round of messages while so many receives are posted: half round trips, and means of a stream.
fn messages(posted: usize) -> Result<Times> {
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
    let half = row.latency.iter().map(|it| it.median_us);
    let mean = row.mb_s.iter().map(|mb_s| row.size as f64 / mb_s);
    Ok([half.collect(), mean.collect()])
}
