//! Tables for a terminal.

use std::fmt;

use super::figures::{Figure, Row, Spread, Table};

impl Table {
    /// The cells, line by line, the head first.
    pub(super) fn cells(&self) -> Vec<Vec<String>> {
        let mut lines = vec![Vec::new(); self.rows.len() + 1];
        let mut column = |head: String, cell: &dyn Fn(&Row) -> Option<String>| {
            let cells = self.rows.iter().map(|row| cell(row).unwrap_or("-".into()));
            for (line, cell) in lines.iter_mut().zip(std::iter::once(head).chain(cells)) {
                line.push(cell);
            }
        };
        column(String::new(), &|row| Some(row.name.clone()));
        if let Some(at) = self.rows.iter().find_map(|row| row.at.as_ref()) {
            column(at.what.clone(), &|row| {
                row.at.as_ref().map(|at| at.value.to_string())
            });
        }
        for index in 0.. {
            let figure = |row: &Row| row.figures.get(index).cloned();
            let figures: Vec<_> = self.rows.iter().filter_map(figure).collect();
            let Some(first) = figures.first() else { break };
            let spread = |row: &Row| figure(row)?.spread;
            column(format!("{} {}", first.what, first.unit), &|row| {
                Some(number(spread(row)?.median))
            });
            if figures.iter().any(|figure| figure.main) {
                column("(spread)".into(), &|row| {
                    let Spread { low, high, .. } = spread(row)?;
                    Some(format!("({} … {})", number(low), number(high)))
                });
            }
            let ratio = |figure: &Figure| figure.ratio.clone();
            if let Some(first) = figures.iter().find_map(ratio) {
                column(first.to, &|row| {
                    Some(ratio_text(ratio(&figure(row)?)?.value))
                });
            }
            if figures.iter().any(|figure| figure.goal.is_some()) {
                column("goal".into(), &|row| {
                    let goal = figure(row)?.goal?;
                    let missed = if goal.is_missed() { ", missed" } else { "" };
                    Some(format!("{goal}{missed}"))
                });
            }
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
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        value if value < 100.0 => 2,
        value if value < 1000.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// A ratio with two digits at least, however small it is.
pub(super) fn ratio_text(value: f64) -> String {
    let digits = match value.abs() {
        small if small > 0.0 && small < 0.1 => 1 - small.log10().floor() as i32,
        _ => 2,
    };
    format!("{value:.*}", digits.clamp(2, 9) as usize)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::goal::Goal;

    #[test]
    fn small_ratios_have_digits() {
        let shown = [0.0, 0.000_071, 0.0123, 0.1, 1.5, 1234.5].map(ratio_text);
        assert_eq!(
            shown,
            ["0.00", "0.000071", "0.012", "0.10", "1.50", "1234.50"]
        );
        assert_eq!(ratio_text(f64::NAN), "NaN");
    }

    /// The words of the line that begins with `name`.
    pub(in crate::bench) fn words_of_row(table: &Table, name: &str) -> Vec<String> {
        let text = table.to_string();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_table_shows_medians_spreads_ratios_and_goals() {
        let fast = Figure::with_spread("time", "ns", vec![3.0, 1.0, 2.0]);
        let fast = fast
            .ratio_to("of floor", &[4.0])
            .ratio_goal(Goal::at_most(0.4));
        let slow = Figure::new("time", "ns", vec![2000.0]);
        let rows = vec![
            Row::new("fast", [fast]).size(8),
            Row::new("slow one", [slow, Figure::new("more", "µs", vec![])]),
        ];
        let table = Table::new("speed", "Speed", rows).note("and so on".into());
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
