//! What a suite measures, as data, and the one printer of it.
//!
//! A suite yields tables, a table has rows, a row has figures: all samples of one thing,
//! and its ratio to a floor. `Display` is for people, `Serialize` for machines.

use std::fmt;

use serde::Serialize;

/// Median, smallest and largest of some samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    /// `None` without samples.
    pub(super) fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Spread {
            median: *sorted.get(sorted.len() / 2)?,
            low: *sorted.first()?,
            high: *sorted.last()?,
        })
    }
}

/// The median of some samples; NaN without samples.
pub(super) fn median(samples: &[f64]) -> f64 {
    Spread::of(samples).map_or(f64::NAN, |spread| spread.median)
}

/// One thing that was measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figure {
    what: &'static str,
    unit: &'static str,
    spread: Option<Spread>,
    /// One for each round, as a rule.
    samples: Vec<f64>,
    /// To the floor: what that is, and how much.
    ratio: Option<(&'static str, f64)>,
    /// The spread stands in the table, too.
    #[serde(skip)]
    with_spread: bool,
}

impl Figure {
    /// A figure that a table shows by its median.
    pub(super) fn new(what: &'static str, unit: &'static str, samples: Vec<f64>) -> Self {
        Figure {
            what,
            unit,
            spread: Spread::of(&samples),
            samples,
            ratio: None,
            with_spread: false,
        }
    }

    /// A figure that a table shows by its median and its spread.
    pub(super) fn with_spread(what: &'static str, unit: &'static str, samples: Vec<f64>) -> Self {
        Figure {
            with_spread: true,
            ..Figure::new(what, unit, samples)
        }
    }

    /// Adds its ratio to `floor`, named `what`; none if either is unknown.
    pub(super) fn ratio_to(self, what: &'static str, floor: f64) -> Self {
        let ratio = self.median() / floor;
        self.ratio(what, ratio)
    }

    /// Adds a ratio; none if it is unknown.
    pub(super) fn ratio(mut self, what: &'static str, ratio: f64) -> Self {
        self.ratio = (!ratio.is_nan()).then_some((what, ratio));
        self
    }

    pub(super) fn median(&self) -> f64 {
        self.spread.map_or(f64::NAN, |spread| spread.median)
    }
}

/// A line of a table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    name: String,
    /// Bytes.
    size: Option<usize>,
    figures: Vec<Figure>,
    /// What the ratio shall be at most.
    goal: Option<f64>,
}

impl Row {
    pub(super) fn new(name: impl Into<String>, figures: impl Into<Vec<Figure>>) -> Self {
        Row {
            name: name.into(),
            size: None,
            figures: figures.into(),
            goal: None,
        }
    }

    pub(super) fn size(mut self, bytes: usize) -> Self {
        self.size = Some(bytes);
        self
    }

    pub(super) fn goal(mut self, goal: Option<f64>) -> Self {
        self.goal = goal;
        self
    }
}

/// Rows with the same figures each.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Table {
    title: String,
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Table {
    pub(super) fn new(title: impl Into<String>, rows: Vec<Row>) -> Self {
        Table {
            title: title.into(),
            rows,
            notes: Vec::new(),
        }
    }

    /// Adds a line below.
    pub(super) fn note(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }

    /// The cells, line by line, the head first.
    fn cells(&self) -> Vec<Vec<String>> {
        let mut lines = vec![Vec::new(); self.rows.len() + 1];
        let mut column = |head: String, cell: &dyn Fn(&Row) -> Option<String>| {
            let cells = self.rows.iter().map(|row| cell(row).unwrap_or("-".into()));
            for (line, cell) in lines.iter_mut().zip(std::iter::once(head).chain(cells)) {
                line.push(cell);
            }
        };
        column(String::new(), &|row| Some(row.name.clone()));
        if self.rows.iter().any(|row| row.size.is_some()) {
            column("bytes".into(), &|row| row.size.map(|size| size.to_string()));
        }
        for index in 0.. {
            let figure = |row: &Row| row.figures.get(index).cloned();
            let figures: Vec<_> = self.rows.iter().filter_map(figure).collect();
            let Some(first) = figures.first() else { break };
            let spread = |row: &Row| figure(row)?.spread;
            column(format!("{} {}", first.what, first.unit), &|row| {
                Some(number(spread(row)?.median))
            });
            if figures.iter().any(|figure| figure.with_spread) {
                column("(spread)".into(), &|row| {
                    let Spread { low, high, .. } = spread(row)?;
                    Some(format!("({} … {})", number(low), number(high)))
                });
            }
            if let Some((what, _)) = figures.iter().find_map(|figure| figure.ratio) {
                column(what.into(), &|row| {
                    Some(format!("{:.2}", figure(row)?.ratio?.1))
                });
            }
        }
        if self.rows.iter().any(|row| row.goal.is_some()) {
            column("goal".into(), &|row| row.goal.map(|goal| goal.to_string()));
        }
        lines
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.cells();
        let length = |cell: &String| cell.chars().count();
        let width = |column: usize| lines.iter().map(|line| length(&line[column])).max();
        let widths: Vec<_> = (0..lines[0].len()).filter_map(width).collect();
        writeln!(f, "{}", self.title)?;
        for line in &lines {
            write!(f, "{:<width$}", line[0], width = widths[0])?;
            for (cell, width) in line.iter().zip(&widths).skip(1) {
                write!(f, "  {cell:>width$}")?;
            }
            writeln!(f)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

/// A number with three digits or more.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        value if value < 100.0 => 2,
        value if value < 1000.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The words of the line that begins with `name`.
    pub(in crate::bench) fn words_of_row(table: &Table, name: &str) -> Vec<String> {
        let text = table.to_string();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_table_shows_medians_spreads_ratios_and_goals() {
        let fast = Figure::with_spread("time", "ns", vec![3.0, 1.0, 2.0]).ratio_to("of floor", 4.0);
        let slow = Figure::new("time", "ns", vec![2000.0]);
        let rows = vec![
            Row::new("fast", [fast]).size(8).goal(Some(1.05)),
            Row::new(
                "slow one",
                [slow, Figure::new("more", "µs", vec![f64::NAN])],
            ),
        ];
        let table = Table::new("Speed", rows).note("and so on".into());
        let text = table.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "Speed",
                "          bytes  time ns       (spread)  of floor  more µs  goal",
                "fast          8     2.00  (1.00 … 3.00)      0.50        -  1.05",
                "slow one      -     2000  (2000 … 2000)         -      NaN     -",
                "and so on",
            ]
        );
        let json = serde_json::to_value(&table).unwrap();
        let figure = &json["rows"][0]["figures"][0];
        assert_eq!(figure["spread"]["median"], 2.0);
        assert_eq!(figure["samples"][0], 3.0);
        assert_eq!(figure["ratio"][1], 0.5);
    }
}
