//! Tables for a terminal.

use std::fmt;

use super::figures::{Row, Spread, Table};
use super::numbers::{number, ratio_text};

/// A cell, and the id of the figure whose median it is.
pub(super) type Cell<'a> = (String, Option<&'a str>);

impl Table {
    /// The cells, line by line, the head first.
    pub(super) fn cells<'a>(&'a self) -> Vec<Vec<Cell<'a>>> {
        let mut lines = vec![Vec::new(); self.rows.len() + 1];
        let mut column = |head: String, cell: &dyn Fn(&'a Row) -> Option<Cell<'a>>| {
            let cells = self
                .rows
                .iter()
                .map(|row| cell(row).unwrap_or(("-".into(), None)));
            for (line, cell) in lines
                .iter_mut()
                .zip(std::iter::once((head, None)).chain(cells))
            {
                line.push(cell);
            }
        };
        column(String::new(), &|row| Some((row.name.clone(), None)));
        if let Some(at) = self.rows.iter().find_map(|row| row.at.as_ref()) {
            column(at.what.clone(), &|row| {
                Some((row.at.as_ref()?.value.to_string(), None))
            });
        }
        for index in 0.. {
            let figure = |row: &'a Row| row.figures.get(index);
            let mut figures = self.rows.iter().filter_map(figure);
            let Some(first) = figures.clone().next() else {
                break;
            };
            column(format!("{} {}", first.what, first.unit), &|row| {
                let figure = figure(row)?;
                let median = figure.spread.map(|it| number(it.median));
                Some((median.unwrap_or("-".into()), Some(&figure.id)))
            });
            if figures.clone().any(|figure| figure.main) {
                column("(spread)".into(), &|row| {
                    let Spread { low, high, .. } = figure(row)?.spread?;
                    Some((format!("({} … {})", number(low), number(high)), None))
                });
            }
            if let Some(first) = figures.clone().find_map(|figure| figure.ratio.as_ref()) {
                column(first.to.clone(), &|row| {
                    Some((ratio_text(figure(row)?.ratio.as_ref()?.value), None))
                });
            }
            if figures.any(|figure| figure.goal.is_some()) {
                column("goal".into(), &|row| {
                    let goal = figure(row)?.goal.as_ref()?;
                    let missed = if goal.is_missed() { ", missed" } else { "" };
                    Some((format!("{goal}{missed}"), None))
                });
            }
        }
        lines
    }

    /// The texts of its cells.
    pub(super) fn texts(&self) -> Vec<Vec<String>> {
        let texts = |line: Vec<Cell>| line.into_iter().map(|(text, _)| text).collect();
        self.cells().into_iter().map(texts).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        f.write_str(&aligned("", &self.texts()))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

/// Lines of cells, each column as wide as its widest cell, the first one to the left.
pub(super) fn aligned<L: AsRef<[String]>>(indent: &str, lines: &[L]) -> String {
    let mut widths = Vec::new();
    for line in lines {
        widths.resize(widths.len().max(line.as_ref().len()), 0);
        for (width, cell) in widths.iter_mut().zip(line.as_ref()) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in lines {
        let mut shown = indent.to_owned();
        for (column, (cell, width)) in line.as_ref().iter().zip(&widths).enumerate() {
            shown += &match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        text = text + shown.trim_end() + "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::{bytes, Figure};
    use crate::bench::goal::{Goal, Of};

    #[test]
    fn a_table_shows_medians_spreads_ratios_and_goals() {
        let fast = Figure::new("time", "ns", vec![3.0, 1.0, 2.0]).ratio_to("of floor", &[4.0]);
        let mut fast = fast.goal(&Goal::at_most(Of::Ratio, 0.4));
        fast.main = true;
        let slow = Figure::new("time", "ns", vec![2000.0]);
        let rows = vec![
            Row::new("fast", bytes(8), [fast]),
            Row::new("slow one", None, [slow, Figure::new("more", "µs", vec![])]),
        ];
        let mut table = Table::new("speed", "Speed", rows);
        table.notes.push("and so on".into());
        let text = table.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "Speed",
                "          bytes  time ns       (spread)  of floor           goal  more µs",
                "fast          8     2.00  (1.00 … 3.00)      0.50  ≤ 0.4, missed        -",
                "slow one      -     2000  (2000 … 2000)         -              -        -",
                "and so on",
            ]
        );
    }
}
