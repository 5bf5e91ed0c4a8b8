//! `qnic bench curves`: what transfers, notifications and channels cost as they become longer, the
//! curves beside the tables of `qnic bench memory` and `qnic bench sync` (N27).

use anyhow::Result;
use qnic::Port;
use qnic_trials::nodes::host::HostNodes;

use super::figures::{Figure, Row, Table};
use super::series::Recorder;
use super::sync::{self, SIGNAL_SIZES};
use super::transfers::{Host, Pair};

/// Bytes of a transfer.
const SIZES: [usize; 8] = [4, 16, 64, 256, 1024, 4096, 16_384, 65_536];

/// Transfers of a size in a round, one of each kind after the other, and streams.
const RUNS: u32 = 100;
const STREAMS: usize = 10;

/// Latencies and rates of one kind of transfer.
#[derive(Default)]
struct Kind {
    name: &'static str,
    /// Nanoseconds until the last word is there; for each size its rounds.
    seen: [Vec<f64>; SIZES.len()],
    /// MB/s of streams; reads have none.
    rate: [Vec<f64>; SIZES.len()],
}

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let mut kinds = ["write", "writeP", "read", "readP"].map(|name| Kind {
        name,
        ..Kind::default()
    });
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        one_round(&mut kinds)?;
    }
    let mut tables = of_transfers(&kinds);
    tables.extend(of_signals(&sync::by_size(rounds)?));
    Ok(tables)
}

/// One round, between nodes of its own.
fn one_round(kinds: &mut [Kind; 4]) -> Result<()> {
    let nodes = HostNodes::start(2)?;
    let hosts = [Host::new(&nodes, 0)?, Host::new(&nodes, 1)?];
    let most = SIZES[SIZES.len() - 1];
    let pairs = [
        Pair::by_virtual_address(&hosts, Port(7), most)?,
        Pair::by_physical_address(&hosts, Port(8), most)?,
    ];
    let mut mark = 0;
    for (index, size) in SIZES.into_iter().enumerate() {
        let mut times = Recorder::new(&[]);
        for run in 0..=RUNS {
            for (kind, name) in kinds.iter().map(|kind| kind.name).enumerate() {
                let pair = &pairs[kind % 2];
                mark += 1;
                let time = match kind / 2 {
                    0 => pair.write_seen(size, mark)?,
                    _ => pair.read_seen(size, mark)?,
                };
                // The first of each kind finds caches cold.
                if run > 0 {
                    times.add(name, time);
                }
                pair.flush()?;
            }
        }
        for _ in 0..STREAMS {
            for (pair, name) in pairs.iter().zip(["write rate", "writeP rate"]) {
                times.add(name, size as f64 * 1e3 / pair.stream(size)?);
            }
        }
        times.end_round(false);
        let of = |name: &str| times.get(name).map(|series| series.ns.clone());
        for kind in &mut *kinds {
            kind.seen[index].extend(of(kind.name).unwrap_or_default());
            let rate = of(&format!("{} rate", kind.name));
            kind.rate[index].extend(rate.unwrap_or_default());
        }
    }
    Ok(())
}

/// The tables of latencies and rates: each by virtual address beside the same by physical one.
fn of_transfers(kinds: &[Kind; 4]) -> Vec<Table> {
    let (mut latencies, mut rates) = (Vec::new(), Vec::new());
    for (number, kind) in kinds.iter().enumerate() {
        let physical = &kinds[number | 1];
        for (index, size) in SIZES.into_iter().enumerate() {
            let seen = Figure::with_spread("until it is there", "ns", kind.seen[index].clone());
            let seen = seen.ratio_to("of physical", &physical.seen[index]);
            latencies.push(Row::new(kind.name, [seen]).size(size));
            if !kind.rate[index].is_empty() {
                let rate = Figure::with_spread("stream", "MB/s", kind.rate[index].clone());
                let rate = rate.ratio_to("of physical", &physical.rate[index]);
                rates.push(Row::new(kind.name, [rate]).size(size));
            }
        }
    }
    vec![
        Table::new(
            "transfers",
            "Transfers by virtual and by physical address (P), by length",
            latencies,
        ),
        Table::new(
            "streams",
            "Streams of writes by virtual and by physical address (P), by length",
            rates,
        ),
    ]
}

/// The tables of notifications and channels, each beside the write of its length.
fn of_signals(all: &[[Recorder; 2]]) -> Vec<Table> {
    let table = |id: &str, title: &str, which: usize| {
        let mut rows = Vec::new();
        let names = all.first().into_iter().flat_map(|it| &it[which].all);
        for name in names.map(|series| &series.name) {
            for (times, size) in all.iter().zip(SIGNAL_SIZES) {
                let of = |recorder: usize, name: &str| -> Vec<f64> {
                    let series = times[recorder].get(name);
                    series.map(|series| series.ns.clone()).unwrap_or_default()
                };
                let figure = Figure::with_spread("time", "ns", of(which, name));
                let figure = figure.ratio_to("of a write", &of(0, "write, seen"));
                rows.push(Row::new(name.as_str(), [figure]).size(size));
            }
        }
        Table::new(id, title, rows)
    };
    vec![
        table(
            "notifications",
            "Notifying writes until each kind of receiver knows, by length",
            0,
        ),
        table("channels", "Messages of a channel, by length", 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::text::tests::words_of_row;

    #[test]
    fn curves_stand_beside_what_they_are_compared_with() {
        let mut kinds = ["write", "writeP", "read", "readP"].map(|name| Kind {
            name,
            ..Kind::default()
        });
        for (number, kind) in kinds.iter_mut().enumerate() {
            kind.seen[0].push(10.0 + number as f64 * 10.0);
        }
        kinds[0].rate[0].push(30.0);
        kinds[1].rate[0].push(60.0);
        let tables = of_transfers(&kinds);
        let words = words_of_row(&tables[0], "read ").join(" ");
        assert_eq!(words, "read 4 30.00 (30.00 … 30.00) 0.75");
        let words = words_of_row(&tables[1], "write ").join(" ");
        assert_eq!(words, "write 4 30.00 (30.00 … 30.00) 0.50");
        assert_eq!(tables[1].rows.len(), 2);
        let mut recorders = [Recorder::new(&[]), Recorder::new(&[])];
        recorders[0].add("write, seen", 100.0);
        recorders[0].add("writeN, notfSpin", 150.0);
        recorders[1].add("spun", 300.0);
        recorders.iter_mut().for_each(|it| it.end_round(false));
        let tables = of_signals(&[recorders]);
        let words = words_of_row(&tables[0], "writeN").join(" ");
        assert_eq!(words, "writeN, notfSpin 4 150.0 (150.0 … 150.0) 1.50");
        let words = words_of_row(&tables[1], "spun").join(" ");
        assert_eq!(words, "spun 4 300.0 (300.0 … 300.0) 3.00");
    }
}
