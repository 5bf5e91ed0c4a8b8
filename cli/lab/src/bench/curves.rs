//! `qnic bench curves`: what transfers, notifications and channels cost as they become longer, the
//! curves beside the tables of `qnic bench memory` and `qnic bench sync` (N27).

use anyhow::Result;
use qnic::Port;
use qnic_abi::PAGE_SIZE;
use qnic_trials::nodes::host::HostNodes;

use super::figures::{at, bytes};
use super::sync;
use super::tables::{Tables, STREAM};
use super::transfers::{Host, Pair};

/// Bytes of a transfer; that of 4,100 is the first that needs two pages.
const SIZES: [usize; 10] = [4, 16, 64, 256, 1024, 4096, 4100, 8192, 16_384, 65_536];

/// Where a write of a page begins in a page.
const OFFSETS: [usize; 9] = [0, 4, 512, 1024, 2048, 3072, 3584, 4000, 4092];

/// Transfers of a size in a round, one of each kind after the other, and streams.
const RUNS: u32 = 100;
const STREAMS: usize = 10;

/// Kinds of transfers: whether by physical address, and whether it reads.
const KINDS: [(&str, usize, bool); 4] = [
    ("write", 0, false),
    ("writeP", 1, false),
    ("read", 0, true),
    ("readP", 1, true),
];

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    tables.rounds(rounds, "", false, one_round)?;
    sync::by_size(rounds, tables)
}

/// One round, between nodes of its own.
fn one_round(times: &mut Tables) -> Result<()> {
    let nodes = HostNodes::start(2)?;
    let hosts = [Host::new(&nodes, 0)?, Host::new(&nodes, 1)?];
    let most = SIZES[SIZES.len() - 1];
    let pairs = [
        Pair::by_virtual_address(&hosts, Port(7), most)?,
        Pair::by_physical_address(&hosts, Port(8), most)?,
    ];
    let mut mark = 0;
    for size in SIZES {
        for run in 0..=RUNS {
            for (kind, pair, reads) in KINDS {
                let pair = &pairs[pair];
                mark += 1;
                let time = pair.seen(reads, size, mark)?;
                // The first of each kind finds caches cold.
                if run > 0 {
                    let row = times.row("transfers", kind, bytes(size));
                    row.add("until it is there [ns]", [time]);
                }
                pair.flush()?;
            }
        }
        for _ in 0..STREAMS {
            for (kind, pair, reads) in KINDS {
                let mb_s = size as f64 * 1e3 / pairs[pair].stream(reads, size)?;
                times.row("streams", kind, bytes(size)).add(STREAM, [mb_s]);
            }
        }
    }
    by_offset(&pairs[0], times)
}

/// Writes of a page that lie across the border of two, by where they begin (NetVM figures 25 to 27).
fn by_offset(pair: &Pair, times: &mut Tables) -> Result<()> {
    let mut mark = 0;
    for offset in OFFSETS {
        for run in 0..=STREAMS {
            mark += 1;
            let [one, each] = pair.write_page_at(offset, mark)?;
            if run > 0 {
                let row = times.row(
                    "offsets",
                    "write 4096 B",
                    at("offset [bytes]", offset as f64),
                );
                row.add("until it is there [ns]", [one]);
                row.add(STREAM, [PAGE_SIZE as f64 * 1e3 / each]);
            }
        }
    }
    Ok(())
}
