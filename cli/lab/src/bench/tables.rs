//! What a suite has measured so far: rows of samples, by table, name and what grows.
//!
//! ```text
//!   round ──► Tables ──► medians ──► Tables of all rounds ──► finish: columns, ratios, goals ──► Vec<Table>
//! ```
//! A figure is added by its name and unit, as suites.toml has them ("half round trip \[µs\]"), in any order.
//! [`Tables::finish`] makes of it what suites.toml declares.

use std::collections::BTreeMap;

use anyhow::Result;
use qnic_apps::report::{BenchRow, Latency};

use super::figures::{bytes, identify, median, At, Figure, Role, Row, Table};
use super::spec::{self, Ratio, Suite, TableSpec};

/// Figures that many programs say of a transfer.
pub(super) const HALF: &str = "half round trip [µs]";
pub(super) const TAIL: &str = "99 % [µs]";
pub(super) const LEAST: &str = "least [µs]";
pub(super) use qnic_apps::paper::STREAM;
pub(super) const RATE: &str = "rate [1000/s]";
pub(super) const MEMCPY: &str = "memcpy [MB/s]";

/// What is beside NetVM's.
pub(super) use qnic_apps::paper::HERE;

/// Tables that grow.
#[derive(Debug, Clone, Default)]
pub(super) struct Tables {
    all: BTreeMap<String, Table>,
    /// What cannot be measured, and why.
    missing: BTreeMap<String, String>,
}

impl Tables {
    /// The row of that name with so much of what grows; a new one if there is none.
    pub(super) fn row(&mut self, table: &str, name: &str, at: Option<At>) -> &mut Row {
        let rows = &mut self.all.entry(table.to_owned()).or_default().rows;
        let same = |row: &Row| row.name == name && row.at == at;
        let place = rows.iter().position(same).unwrap_or_else(|| {
            rows.push(Row::new(name, at, []));
            rows.len() - 1
        });
        &mut rows[place]
    }

    /// Adds a sample to a row in which nothing grows.
    pub(super) fn add(&mut self, table: &str, row: &str, figure: &str, sample: f64) {
        self.row(table, row, None).add(figure, [sample]);
    }

    /// Adds what a program says of transfers.
    pub(super) fn add_bench(&mut self, table: &str, name: &str, at: Option<At>, row: &BenchRow) {
        let to = self.row(table, name, at);
        let of_rounds = |pick: fn(&Latency) -> f64| row.latency.iter().map(pick);
        to.add(HALF, of_rounds(|it| it.median_us));
        to.add(TAIL, of_rounds(|it| it.p99_us));
        to.add(LEAST, of_rounds(|it| it.min_us));
        to.add(STREAM, row.mb_s.iter().copied());
        let thousands = row.mb_s.iter().map(|mb_s| mb_s * 1e3 / row.size as f64);
        to.add(RATE, thousands);
        to.add(MEMCPY, row.memcpy_mb_s.iter().copied());
    }

    /// The same of a row of its operation's name and size, if it has latencies in one table, and if it
    /// has streams in another.
    pub(super) fn add_split(&mut self, latency: &str, stream: &str, row: &BenchRow) {
        if !row.latency.is_empty() {
            self.add_bench(latency, &row.operation, bytes(row.size), row);
        }
        if !row.mb_s.is_empty() {
            self.add_bench(stream, &row.operation, bytes(row.size), row);
        }
    }

    /// Adds a line below a table.
    pub(super) fn note(&mut self, table: &str, note: String) {
        self.all
            .entry(table.to_owned())
            .or_default()
            .notes
            .push(note);
    }

    /// The lines below a table.
    #[cfg(test)]
    pub(super) fn notes(&self, table: &str) -> &[String] {
        self.all.get(table).map_or(&[], |table| &table.notes)
    }

    /// The samples of a figure in a row.
    pub(super) fn samples(&self, table: &str, row: &str, at: Option<At>, figure: &str) -> Vec<f64> {
        let rows = self.all.get(table).map_or(&[][..], |table| &table.rows);
        let row = rows.iter().find(|it| it.name == row && it.at == at);
        row.map(|row| row.samples(figure).to_vec())
            .unwrap_or_default()
    }

    /// What `measure` returns. If it fails, or has failed before, `name` is missing: its first error is
    /// said below the tables with rows of that name, or whose names go on with a comma.
    pub(super) fn attempt<T>(
        &mut self,
        name: &str,
        measure: impl FnOnce() -> Result<T>,
    ) -> Option<T> {
        if self.missing.contains_key(name) {
            return None;
        }
        match measure() {
            Ok(result) => Some(result),
            Err(error) => {
                self.missing.insert(name.to_owned(), format!("{error:#}"));
                None
            }
        }
    }

    /// Why `name` is missing.
    #[cfg(test)]
    pub(super) fn missing(&self, name: &str) -> Option<&str> {
        self.missing.get(name).map(String::as_str)
    }

    /// Runs rounds, whose medians are samples; one that `warms_up` comes before them and does not count.
    pub(super) fn rounds(
        &mut self,
        count: usize,
        what: &str,
        warms_up: bool,
        mut round: impl FnMut(&mut Tables) -> Result<()>,
    ) -> Result<()> {
        for number in usize::from(!warms_up)..=count {
            eprintln!("round {number} of {count}{what}");
            let missing = std::mem::take(&mut self.missing);
            let mut of_round = Tables {
                missing,
                ..Tables::default()
            };
            let result = round(&mut of_round);
            self.missing = std::mem::take(&mut of_round.missing);
            result?;
            if number > 0 {
                self.add_medians(&of_round);
            }
        }
        Ok(())
    }

    /// Adds the median of each figure of a round.
    fn add_medians(&mut self, round: &Tables) {
        for (id, table) in &round.all {
            for row in &table.rows {
                let to = self.row(id, &row.name, row.at.clone());
                for figure in row.figures.iter().filter(|it| !it.samples.is_empty()) {
                    to.add(&figure.what, [median(&figure.samples)]);
                }
            }
        }
    }

    /// The tables of a suite, as it is declared.
    pub(super) fn finish(mut self, suite: &Suite) -> Vec<Table> {
        let tables = suite.tables.iter().map(|spec| self.shaped(spec));
        let mut tables: Vec<Table> = tables.collect();
        identify(&suite.id, &mut tables);
        let ratios: Vec<_> = suite
            .tables
            .iter()
            .map(|spec| spec.ratio.as_ref())
            .collect();
        let raw = tables.clone();
        for ((table, raw_table), ratio) in tables.iter_mut().zip(&raw).zip(ratios) {
            let cells = table.rows.iter_mut().zip(&raw_table.rows);
            for (row, raw_row) in cells {
                for (index, figure) in row.figures.iter_mut().enumerate() {
                    if let Some(ratio) = ratio.filter(|it| it.is_for(figure)) {
                        let floor = ratio.floor(&raw, raw_table, raw_row, index);
                        *figure = divided(figure.clone(), ratio, floor);
                    }
                    if let Some(goal) = spec::goal(&figure.id) {
                        *figure = figure.clone().goal(&goal);
                    }
                }
            }
        }
        tables
    }

    /// A table with the columns that are declared.
    fn shaped(&mut self, spec: &TableSpec) -> Table {
        let mut table = self.all.remove(&spec.id).unwrap_or_default();
        if spec.by_name {
            let names: Vec<_> = table.rows.iter().map(|row| row.name.clone()).collect();
            table
                .rows
                .sort_by_key(|row| names.iter().position(|it| *it == row.name));
        }
        for row in &mut table.rows {
            let is_peer = spec.peers.iter().any(|peer| row.name.starts_with(peer));
            let published = spec.published.get(&row.name).map_or(&[][..], Vec::as_slice);
            let first_published = spec.columns.len() - spec.published_columns();
            let columns = spec.columns.iter().enumerate().map(|(index, column)| {
                let name = column.trim_start_matches('*');
                let (what, unit) = spec::what_and_unit(name);
                let value = index
                    .checked_sub(first_published)
                    .map(|it| published.get(it));
                let samples = match value {
                    Some(value) => value.copied().into_iter().collect(),
                    None => row.samples(name).to_vec(),
                };
                let mut figure = Figure::new(what, unit, samples);
                figure.main = column.starts_with('*');
                if value.is_some() {
                    (figure.role, figure.better) = (Role::Published, None);
                } else if is_peer || spec.peer_columns.iter().any(|it| it == name) {
                    figure.role = Role::Peer;
                }
                figure
            });
            row.figures = columns.collect();
        }
        let is_missing = |name: &str, row: &Row| {
            let rest = row.name.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
        };
        let missing = self.missing.iter();
        let missing =
            missing.filter(|(name, _)| table.rows.iter().any(|row| is_missing(name, row)));
        let missing: Vec<_> = missing.map(|(name, why)| not_measured(name, why)).collect();
        table.notes.extend(missing);
        table.notes.extend(spec.notes.iter().cloned());
        (table.id, table.title) = (spec.id.clone(), spec.title.clone());
        table
    }
}

/// A figure with its ratio to a floor.
fn divided(figure: Figure, ratio: &Ratio, floor: Vec<f64>) -> Figure {
    let is_published = figure.role == Role::Published;
    let mut figure = figure.ratio_to(&ratio.to, &floor);
    if let Some(of) = figure.ratio.as_mut().filter(|_| is_published) {
        of.floor_samples.clear();
        if ratio.published_are_times {
            of.value = of.value.recip();
        }
    }
    figure
}

/// A line that says why something has no figures.
pub(super) fn not_measured(name: &str, why: &str) -> String {
    format!("{name}: not measured: {why}")
}

impl Row {
    /// Adds samples of a figure.
    pub(super) fn add(
        &mut self,
        figure: &str,
        samples: impl IntoIterator<Item = f64>,
    ) -> &mut Self {
        let place = self.figures.iter().position(|it| it.what == figure);
        let place = place.unwrap_or_else(|| {
            self.figures.push(Figure::new(figure, "", Vec::new()));
            self.figures.len() - 1
        });
        self.figures[place].samples.extend(samples);
        self
    }

    /// The samples of a figure.
    fn samples(&self, figure: &str) -> &[f64] {
        let found = self.figures.iter().find(|it| it.what == figure);
        found.map_or(&[], |found| &found.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(id: &str, tables: Tables) -> Vec<Table> {
        let suite = spec::suites().iter().find(|suite| suite.id == id);
        tables.finish(suite.unwrap())
    }

    fn table<'a>(all: &'a [Table], id: &str) -> &'a Table {
        all.iter().find(|table| table.id == id).unwrap()
    }

    #[test]
    fn what_cannot_be_measured_stays_with_its_reason() {
        let mut tables = Tables::default();
        for name in ["qnic, write", "UCX, TCP"] {
            tables.row("host-latency", name, bytes(8));
        }
        tables.row("guest-wakeups", "qnic, handler", None);
        let samples = tables.rounds(2, "", false, |round| {
            round
                .row("host-latency", "qnic, write", bytes(8))
                .add(HALF, [2.0]);
            round.attempt("UCX, TCP", || {
                anyhow::bail!("no such package") as Result<()>
            });
            round.attempt("qnic", || anyhow::bail!("no guests") as Result<()>);
            Ok(())
        });
        samples.unwrap();
        let all = finished("peers", tables);
        let latency = table(&all, "host-latency");
        let lines = latency.texts();
        assert_eq!(
            lines[1],
            ["qnic, write", "8", "2.00", "(2.00 … 2.00)", "1.00"]
        );
        assert_eq!(lines[2], ["UCX, TCP", "8", "-", "-", "-"]);
        assert_eq!(latency.notes[0], "UCX, TCP: not measured: no such package");
        assert_eq!(latency.figures().nth(1).unwrap().role, Role::Peer);
        assert_eq!(
            table(&all, "guest-wakeups").notes,
            ["qnic: not measured: no guests"]
        );
    }

    #[test]
    fn sums_and_published_figures_are_floors_round_by_round() {
        let mut tables = Tables::default();
        for ns in [30.0, 20.0, 25.0] {
            tables.add("page-table", "lockPage", "here [ns]", ns);
            tables.add("page-table", "unlockPageDirty", "here [ns]", 10.0);
        }
        tables.add(
            "pinning",
            "mlock + munlock, 1 at a time",
            "here [ns]",
            700.0,
        );
        let all = finished("memory", tables);
        let cells = |id: &str| table(&all, id).texts().last().unwrap().join(" ");
        let unlock = "unlockPageDirty 10.00 (10.00 … 10.00) 0.40 0.27 0.82";
        assert_eq!(cells("page-table"), unlock);
        let pinned = "mlock + munlock, 1 at a time 700.0 (700.0 … 700.0) 20.00 4.21 7.02";
        assert_eq!(cells("pinning"), pinned);
    }
}
