//! `qnic bench memory`: what RDMA without pinning costs (N4 to N8, N13, N14), as
//! ratios beside those of the source.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use super::{netvm, spread, table_ops, transfers};

/// One thing that was measured, once in each round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Series {
    /// What.
    pub(super) name: String,
    /// Nanoseconds, one value for each round.
    pub(super) ns: Vec<f64>,
    /// What the source has for it, in microseconds.
    pub(super) netvm_us: Option<f64>,
}

impl Series {
    pub(super) fn new(name: &str, netvm_us: Option<f64>) -> Self {
        Series {
            name: name.into(),
            ns: Vec::new(),
            netvm_us,
        }
    }

    pub(super) fn push(&mut self, ns: f64) {
        self.ns.push(ns);
    }

    pub(super) fn median(&self) -> f64 {
        spread(&self.ns).map_or(f64::NAN, |(median, ..)| median)
    }
}

/// All results.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Operations on the page table (NetVM table 24).
    table_operations: Vec<Series>,
    /// Pinning a page instead of locking it (table 25).
    pinning: Vec<Series>,
    /// Transfers with all pages present (table 26), then with one absent.
    transfers: Vec<Series>,
    faults: transfers::Faults,
}

/// Measures everything.
pub(super) fn measure(rounds: usize) -> Result<Report> {
    let (table_operations, pinning) = table_ops::measure(rounds)?;
    let (transfers, faults) = transfers::measure(rounds)?;
    Ok(Report {
        table_operations,
        pinning,
        transfers,
        faults,
    })
}

impl Report {
    /// The report for people.
    pub(super) fn table(&self) -> String {
        let lock = self.operation("lockPage");
        let locking = lock + self.operation("unlockPageDirty");
        let write = self.transfers.first().map_or(f64::NAN, Series::median);
        let mut text = String::new();
        let mut part = |title: &str, series: &[Series], unit: (f64, f64)| {
            section(&mut text, title, series, unit);
        };
        part(
            "Page table, ratio to lockPage (NetVM table 24)",
            &self.table_operations,
            (lock, netvm::LOCK_PAGE),
        );
        part(
            "Pinning, for each page, ratio to lockPage + unlockPageDirty (NetVM table 25)",
            &self.pinning,
            (locking, netvm::LOCKING),
        );
        part(
            "Transfers in host mode, until the bytes are there, ratio to a write of 4 bytes (NetVM table 26)",
            &self.transfers,
            (write, netvm::WRITE[0]),
        );
        for (virtual_, physical, goal) in [
            ("write 4 B", "writeP 4 B", " (goal 1.05)"),
            ("write 4096 B", "writeP 4096 B", ""),
            ("read 4 B", "readP 4 B", ""),
            ("read 4096 B", "readP 4096 B", ""),
            ("write 4 B, stream", "writeP 4 B, stream", ""),
            ("write 4096 B, stream", "writeP 4096 B, stream", ""),
        ] {
            if let Some((here, source)) = self.compare(virtual_, physical) {
                let _ = writeln!(
                    text,
                    "{virtual_} / {physical}: {here}{goal}; NetVM {source:.2}"
                );
            }
        }
        let _ = writeln!(
            text,
            "lockPage + unlockPageDirty / write 4 B: {:.3}\n\
             page faults served: {}, for {} absent pages",
            locking / write,
            self.faults.served,
            self.faults.absent
        );
        text
    }

    /// A transfer beside one by physical address: the ratio of each round (median and
    /// spread), and that of the source.
    fn compare(&self, name: &str, other: &str) -> Option<(String, f64)> {
        let find = |name: &str| self.transfers.iter().find(|series| series.name == name);
        let (series, other) = (find(name)?, find(other)?);
        let pairs = series.ns.iter().zip(&other.ns);
        let ratios: Vec<_> = pairs.map(|(a, b)| a / b).collect();
        let (median, low, high) = spread(&ratios)?;
        let source = series.netvm_us? / other.netvm_us?;
        Some((format!("{median:.2} ({low:.2} … {high:.2})"), source))
    }

    fn operation(&self, name: &str) -> f64 {
        let mut found = self.table_operations.iter().filter(|s| s.name == name);
        found.next().map_or(f64::NAN, Series::median)
    }
}

/// A title, the head of a table, and its lines.
pub(super) fn section(text: &mut String, title: &str, series: &[Series], unit: (f64, f64)) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{title}\n{:<34} {:>9} {:>23} {:>7} | {:>9} {:>7}",
        "", "ns", "(spread)", "ratio", "NetVM µs", "ratio"
    );
    for series in series {
        let _ = writeln!(text, "{}", line(series, unit));
    }
    text.push('\n');
}

/// One line; `unit` is what ratios are to, here and in the source.
fn line(series: &Series, unit: (f64, f64)) -> String {
    let (median, low, high) = spread(&series.ns).unwrap_or((f64::NAN, f64::NAN, f64::NAN));
    let (source, source_ratio) = match series.netvm_us {
        Some(us) => (format!("{us:.2}"), format!("{:.2}", us / unit.1)),
        None => ("-".into(), "-".into()),
    };
    format!(
        "{:<34} {median:>9.1} {:>23} {:>7.2} | {source:>9} {source_ratio:>7}",
        series.name,
        format!("({low:.1} … {high:.1})"),
        median / unit.0
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The words of the line that begins with `name`.
    pub(in crate::bench) fn words_of_row(text: &str, name: &str) -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn series(name: &str, ns: &[f64], netvm_us: Option<f64>) -> Series {
        Series {
            name: name.into(),
            ns: ns.to_vec(),
            netvm_us,
        }
    }

    #[test]
    fn ratios_stand_beside_those_of_the_source() {
        let report = Report {
            table_operations: vec![
                series("lockPage", &[30.0, 20.0, 25.0], Some(netvm::LOCK_PAGE)),
                series("unlockPageDirty", &[10.0], Some(netvm::UNLOCK_PAGE_DIRTY)),
            ],
            pinning: vec![series("mlock", &[700.0], Some(4.21))],
            transfers: vec![
                series("write 4 B", &[1000.0, 900.0], Some(netvm::WRITE[0])),
                series("writeP 4 B", &[500.0, 900.0], Some(netvm::WRITE_P[0])),
            ],
            faults: transfers::Faults {
                absent: 5,
                served: 6,
            },
        };
        let text = report.table();
        let row = |name| words_of_row(&text, name);
        assert!(row("lockPage ").ends_with(&["1.00", "|", "0.33", "1.00"].map(String::from)));
        assert!(row("unlockPageDirty").ends_with(&["0.40", "|", "0.27", "0.82"].map(String::from)));
        assert!(row("mlock").ends_with(&["20.00", "|", "4.21", "7.02"].map(String::from)));
        assert!(
            text.contains("writeP 4 B: 2.00 (1.00 … 2.00) (goal 1.05); NetVM 1.05"),
            "{text}"
        );
        assert!(
            text.contains("unlockPageDirty / write 4 B: 0.035"),
            "{text}"
        );
        assert!(text.contains("served: 6, for 5 absent"), "{text}");
    }
}
