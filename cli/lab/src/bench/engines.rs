//! What writes cost between two NICs of one device process that belong to one engine, or to an
//! engine each: the price of a ring between threads, where there is nothing to gain by it. Host
//! mode; the two counts of engines take turns.

use anyhow::Result;
use qnic_apps::report::{BenchRow, Latency};
use qnic_trials::nodes::host::HostNodes;

use super::figures::{Figure, Row, Table};
use super::merge;
use super::point_to_point::transfers_between;

const ENGINES: [usize; 2] = [1, 2];

/// The smallest write, a page, and what goes through a ring in several spans.
const SIZES: &str = "8,4096,65536";

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let mut all: [Vec<BenchRow>; 2] = Default::default();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}, engines");
        for (engines, rows) in ENGINES.iter().zip(&mut all) {
            let nodes = HostNodes::start_with(2, &format!("[engine]\nengines = {engines}\n"))?;
            for row in transfers_between(&nodes, &format!("--rounds 1 --sizes {SIZES}"))? {
                merge(rows, row);
            }
        }
    }
    Ok(vec![table(&all)])
}

fn table(all: &[Vec<BenchRow>; 2]) -> Table {
    let mut rows = Vec::new();
    for (index, one) in all[0].iter().enumerate() {
        for (engines, own) in ENGINES.iter().zip(all) {
            let Some(own) = own.get(index) else { continue };
            let times = |row: &BenchRow| row.latency.iter().map(median).collect::<Vec<_>>();
            let figures = [
                Figure::with_spread("half round trip", "µs", times(own))
                    .ratio_to("of one engine", &times(one)),
                Figure::with_spread("stream", "MB/s", own.mb_s.clone())
                    .ratio_to("of one engine", &one.mb_s),
            ];
            let name = format!("{} of {} bytes", own.operation, own.size);
            rows.push(Row::new(name, figures).at("engines", *engines as f64));
        }
    }
    Table::new("engines", "Two NICs of one engine, or of two", rows)
}

fn median(latency: &Latency) -> f64 {
    latency.median_us
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::text::tests::words_of_row;

    #[test]
    fn two_engines_are_compared_with_one() {
        let rows = |mb_s| {
            vec![BenchRow {
                mb_s: vec![mb_s],
                ..BenchRow::new("write", 8)
            }]
        };
        let table = table(&[rows(4.0), rows(1.0)]);
        assert_eq!(table.figures().count(), 4);
        let words = words_of_row(&table, "write of 8 bytes").join(" ");
        assert!(words.contains("4.00") && words.contains("1.00"), "{words}");
    }
}
