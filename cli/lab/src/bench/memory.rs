//! `qnic bench memory`: what RDMA without pinning costs (N4 to N8, N13, N14), as ratios
//! beside those of NetVM.

use anyhow::Result;
use qnic_apps::paper::transfers::{self, Faults, TRANSFERS};

use super::figures::{at, median};
use super::paper::HostEnds;
use super::table_ops::{self, PAGE_TABLE, PINNED, PINNED_BY_INTERRUPT, PINNING};
use super::tables::{Tables, HERE};

const COMPARED: &str = "by-virtual-address";
const BY_HIT_RATE: &str = "hit-rate";

/// How many of a hundred accesses find their page pinned.
const HIT_RATES: [f64; 8] = [0.0, 25.0, 50.0, 75.0, 87.5, 95.0, 99.0, 100.0];

/// Transfers by virtual and by physical address.
const PAIRS: [(&str, &str); 8] = [
    ("write 4 B", "writeP 4 B"),
    ("write 4096 B", "writeP 4096 B"),
    ("read 4 B", "readP 4 B"),
    ("read 4096 B", "readP 4096 B"),
    ("write 4 B, stream", "writeP 4 B, stream"),
    ("write 4096 B, stream", "writeP 4096 B, stream"),
    ("read 4 B, stream", "readP 4 B, stream"),
    ("read 4096 B, stream", "readP 4096 B, stream"),
];

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    table_ops::measure(rounds, tables)?;
    let mut faults = Faults::default();
    tables.rounds(rounds, ", transfers", false, |round| {
        let nodes = HostEnds::start()?;
        let of_round = transfers::Bench::new(&nodes.ends)?.round(round)?;
        faults.absent += of_round.absent;
        faults.served += of_round.served;
        Ok(())
    })?;
    compare(tables);
    by_hit_rate(tables);
    let (served, absent) = (faults.served, faults.absent);
    let note = format!("page faults served: {served}, for {absent} absent pages");
    tables.note(COMPARED, note);
    Ok(())
}

/// Adds the ratios of each round, and what locking takes of a write.
fn compare(tables: &mut Tables) {
    for (virtual_, physical) in PAIRS {
        let of = |name| tables.samples(TRANSFERS, name, None, HERE);
        let ratios: Vec<_> = of(virtual_)
            .iter()
            .zip(of(physical))
            .map(|(v, p)| v / p)
            .collect();
        let row = tables.row(COMPARED, &format!("{virtual_} / {physical}"), None);
        row.add("here [ratio]", ratios);
    }
    let of = |table, name| tables.samples(table, name, None, HERE);
    let unlocks = of(PAGE_TABLE, "unlockPageDirty");
    let both = of(PAGE_TABLE, "lockPage").into_iter().zip(unlocks);
    let both: Vec<_> = both.map(|(lock, unlock)| lock + unlock).collect();
    let share = median(&both) / median(&of(TRANSFERS, "write 4 B"));
    tables.note(
        COMPARED,
        format!("lockPage + unlockPageDirty / write 4 B: {share:.3}"),
    );
}

/// What a page costs if so many of a hundred accesses find it pinned, for clusters of one and of eight
/// pages, beside the locks of the page table, which each access takes (NetVM figure 22).
fn by_hit_rate(tables: &mut Tables) {
    let of = |table, name: &str| median(&tables.samples(table, name, None, HERE));
    let locks = of(PAGE_TABLE, "lockPage") + of(PAGE_TABLE, "unlockPageDirty");
    let mut costs = Vec::new();
    for (way, pinning) in [("system call", PINNED), ("interrupt", PINNED_BY_INTERRUPT)] {
        for pages in [1.0, 8.0] {
            let each = of(PINNING, &format!("{pinning}, {pages} at a time"));
            costs.push((format!("{way}, {pages} at a time"), each * pages));
        }
    }
    for (name, cost) in costs {
        for rate in HIT_RATES {
            let row = tables.row(BY_HIT_RATE, &name, at("hit rate [%]", rate));
            row.add("a page [ns]", [cost * (1.0 - rate / 100.0)]);
        }
        let even = 100.0 * (1.0 - locks / cost);
        tables.note(
            BY_HIT_RATE,
            format!("{name}: as dear as locks at {even:.1} %"),
        );
    }
    for rate in HIT_RATES {
        let row = tables.row(
            BY_HIT_RATE,
            "lockPage + unlockPageDirty",
            at("hit rate [%]", rate),
        );
        row.add("a page [ns]", [locks]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_each_round() {
        let mut tables = Tables::default();
        for (virtual_, physical) in [(1000.0, 500.0), (900.0, 900.0)] {
            tables.add(TRANSFERS, "write 4 B", HERE, virtual_);
            tables.add(TRANSFERS, "writeP 4 B", HERE, physical);
            tables.add(PAGE_TABLE, "lockPage", HERE, 25.0);
            tables.add(PAGE_TABLE, "unlockPageDirty", HERE, 10.0);
        }
        compare(&mut tables);
        let ratios = tables.samples(COMPARED, "write 4 B / writeP 4 B", None, "here [ratio]");
        assert_eq!(ratios, [2.0, 1.0]);
        assert_eq!(
            tables.notes(COMPARED),
            ["lockPage + unlockPageDirty / write 4 B: 0.035"]
        );
    }
}
