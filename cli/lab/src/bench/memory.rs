//! `qnic bench memory`: what RDMA without pinning costs (N4 to N8, N13, N14), as ratios
//! beside those of NetVM.

use anyhow::Result;

use super::figures::{median, Figure, Row, Table};
use super::goal::Goal;
use super::series::{Recorder, Unit};
use super::{netvm, table_ops, transfers};

/// Transfers by virtual and by physical address, and the goal for their ratio.
const COMPARED: [(&str, &str, Option<f64>); 6] = [
    ("write 4 B", "writeP 4 B", Some(1.05)),
    ("write 4096 B", "writeP 4096 B", None),
    ("read 4 B", "readP 4 B", None),
    ("read 4096 B", "readP 4096 B", None),
    ("write 4 B, stream", "writeP 4 B, stream", None),
    ("write 4096 B, stream", "writeP 4096 B, stream", None),
];

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let (operations, pinning) = table_ops::measure(rounds)?;
    let (transfers, faults) = transfers::measure(rounds)?;
    Ok(tables(&operations, &pinning, &transfers, faults))
}

fn tables(
    operations: &Recorder,
    pinning: &Recorder,
    transfers: &Recorder,
    faults: transfers::Faults,
) -> Vec<Table> {
    let lock = operations.unit("lockPage");
    let locking = both(&lock.here, &operations.unit("unlockPageDirty").here);
    let write = transfers.unit("write 4 B");
    let compared = COMPARED.iter().filter_map(|(virtual_, physical, goal)| {
        let goal = goal.map(|most| Goal::at_most(most).code("P8"));
        let row = compare(transfers, virtual_, physical, goal)?;
        Some(row)
    });
    let compared = Table::new(
        "by-virtual-address",
        "Transfers by virtual address, ratio to those by physical address",
        compared.collect(),
    );
    let share = median(&locking) / median(&write.here);
    let transfer_title = "Transfers in host mode, until the bytes are there, ratio to a write of \
                          4 bytes (NetVM table 26)";
    vec![
        operations.table(
            "page-table",
            "Page table, ratio to lockPage (NetVM table 24)",
            &lock,
        ),
        pinning.table(
            "pinning",
            "Pinning, for each page, ratio to lockPage + unlockPageDirty (NetVM table 25)",
            &Unit {
                here: locking,
                netvm_us: netvm::LOCKING,
            },
        ),
        transfers.table("transfers", transfer_title, &write),
        compared
            .note(format!(
                "lockPage + unlockPageDirty / write 4 B: {share:.3}"
            ))
            .note(format!(
                "page faults served: {}, for {} absent pages",
                faults.served, faults.absent
            )),
    ]
}

/// The sum of two series, round by round.
fn both(one: &[f64], other: &[f64]) -> Vec<f64> {
    let pairs = one.iter().zip(other);
    pairs.map(|(one, other)| one + other).collect()
}

/// A transfer beside one by physical address: the ratio of each round, and NetVM's.
fn compare(transfers: &Recorder, name: &str, other: &str, goal: Option<Goal>) -> Option<Row> {
    let (series, other) = (transfers.get(name)?, transfers.get(other)?);
    let pairs = series.ns.iter().zip(&other.ns);
    let ratios = pairs.map(|(virtual_, physical)| virtual_ / physical);
    let netvm = series.netvm_us? / other.netvm_us?;
    let figures = [
        Figure::with_spread("here", "ratio", ratios.collect()).goal(goal),
        Figure::published("NetVM", "ratio", netvm),
    ];
    Some(Row::new(format!("{name} / {}", other.name), figures))
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::words_of_row;
    use super::*;

    fn recorded(times: &'static netvm::Times, all: &[(&str, &[f64])]) -> Recorder {
        let mut recorder = Recorder::new(times);
        for (name, samples) in all {
            recorder.add(name, 0.0);
            recorder.end_round(true);
            for ns in *samples {
                recorder.add(name, *ns);
                recorder.end_round(false);
            }
        }
        recorder
    }

    #[test]
    fn ratios_stand_beside_those_of_netvm() {
        let (locks, unlocks) = ([30.0, 20.0, 25.0], [10.0; 3]);
        let operations = [("lockPage", &locks[..]), ("unlockPageDirty", &unlocks[..])];
        let (writes, physical) = ([1000.0, 900.0], [500.0, 900.0]);
        let transfers = [("write 4 B", &writes[..]), ("writeP 4 B", &physical[..])];
        let faults = transfers::Faults {
            absent: 5,
            served: 6,
        };
        let tables = tables(
            &recorded(netvm::PAGE_TABLE, &operations),
            &recorded(
                netvm::PINNING,
                &[("mlock + munlock, 1 at a time", &[700.0])],
            ),
            &recorded(netvm::TRANSFERS, &transfers),
            faults,
        );
        for (table, name, end) in [
            (0, "lockPage ", "1.00 0.33 1.00"),
            (0, "unlockPageDirty", "0.40 0.27 0.82"),
            (1, "mlock", "20.00 4.21 7.02"),
            (
                3,
                "write 4 B / writeP 4 B",
                "2.00 (1.00 … 2.00) ≤ 1.05, missed 1.05",
            ),
        ] {
            let words = words_of_row(&tables[table], name).join(" ");
            assert!(words.ends_with(end), "{words}");
        }
        let text = tables[3].to_string();
        assert!(
            text.contains("unlockPageDirty / write 4 B: 0.035"),
            "{text}"
        );
        assert!(text.contains("served: 6, for 5 absent"), "{text}");
    }
}
