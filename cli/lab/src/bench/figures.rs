//! What a suite measures, as data.
//!
//! A suite yields tables, a table has rows, a row has figures: all samples of one thing, its
//! ratio to a floor, and its goal. [`text`](super::text) prints them for people,
//! [`record`](super::record) writes them for machines.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::goal::{Better, Goal, Of};
use super::numbers::{number, ratio_text};

/// Median, smallest and largest of some samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Spread {
    /// The sample in the middle; of two, the larger one.
    pub(super) median: f64,
    /// The smallest sample.
    pub(super) low: f64,
    /// The largest sample.
    pub(super) high: f64,
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

/// Whose figure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    /// This project's, measured in this run.
    #[default]
    Own,
    /// What it is compared with, measured in this run.
    Peer,
    /// What others have published.
    Published,
}

/// A figure, divided by its floor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Ratio {
    /// What the floor is, as the head of a column: "of memcpy".
    pub(super) to: String,
    /// The median of the figure, divided by the floor.
    pub(super) value: f64,
    /// The floor, in the unit of the figure.
    pub(super) floor: f64,
    /// What the floor is the median of; none if it was published.
    pub(super) floor_samples: Vec<f64>,
}

/// One thing that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Figure {
    /// Where it is: `suite/table/row/figure`. Unique in a file, and the same in each run.
    #[serde(default)]
    pub(super) id: String,
    /// What it is, as the head of a column.
    pub(super) what: String,
    /// Its unit.
    pub(super) unit: String,
    /// Whose figure it is.
    pub(super) role: Role,
    /// Which figures are good ones; none if it is neither.
    pub(super) better: Option<Better>,
    /// Median, smallest and largest; none without samples.
    pub(super) spread: Option<Spread>,
    /// One for each round, as a rule.
    pub(super) samples: Vec<f64>,
    /// To the floor.
    pub(super) ratio: Option<Ratio>,
    /// What ratio or median shall be.
    pub(super) goal: Option<Goal>,
    /// It is a main figure of its table: its spread is shown, and its curve.
    pub(super) main: bool,
}

impl Figure {
    /// A figure that a table shows by its median.
    pub(super) fn new(what: &str, unit: &str, mut samples: Vec<f64>) -> Self {
        // What was divided by nothing is not known.
        samples.retain(|sample| sample.is_finite());
        Figure {
            id: String::new(),
            what: what.to_owned(),
            unit: unit.to_owned(),
            role: Role::Own,
            better: Better::of_unit(unit),
            spread: Spread::of(&samples),
            samples,
            ratio: None,
            goal: None,
            main: false,
        }
    }

    /// Adds its ratio to the median of `floor`, as the column `to`; none if either is unknown.
    pub(super) fn ratio_to(mut self, to: &str, floor: &[f64]) -> Self {
        let (floor_samples, floor) = (floor.to_vec(), median(floor));
        let value = self.median() / floor;
        let known = value.is_finite() && floor.is_finite();
        self.ratio = known.then(|| Ratio {
            to: to.to_owned(),
            value,
            floor,
            floor_samples,
        });
        self
    }

    /// Adds what its ratio or median shall be.
    pub(super) fn goal(mut self, goal: &Goal) -> Self {
        let measured = match goal.of {
            Of::Ratio => self.ratio.as_ref().map(|ratio| ratio.value),
            Of::Median => self.spread.map(|spread| spread.median),
        };
        self.better = self.better.or(Some(goal.better()));
        self.goal = Some(goal.checked(measured));
        self
    }

    /// Its goal was measured, and is not met.
    pub(super) fn is_missed(&self) -> bool {
        self.goal.as_ref().is_some_and(Goal::is_missed)
    }

    /// What its goal is for, as a text, and of what that is: of its floor, or the unit.
    pub(super) fn measured(&self) -> (String, &str) {
        let of = self.goal.as_ref().map(|goal| goal.of);
        match (&self.ratio, of) {
            (Some(ratio), Some(Of::Ratio) | None) => (ratio_text(ratio.value), &ratio.to),
            _ => (number(self.median()), &self.unit),
        }
    }

    pub(super) fn median(&self) -> f64 {
        self.spread.map_or(f64::NAN, |spread| spread.median)
    }
}

/// What grows from row to row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct At {
    /// What it is: "bytes".
    pub(super) what: String,
    /// How much of it.
    pub(super) value: f64,
}

/// So much of `what`.
pub(super) fn at(what: &str, value: f64) -> Option<At> {
    let what = what.to_owned();
    Some(At { what, value })
}

/// So many bytes.
pub(super) fn bytes(count: usize) -> Option<At> {
    at("bytes", count as f64)
}

/// A line of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Row {
    /// What was measured.
    pub(super) name: String,
    /// At what; rows of one name make a curve over it.
    pub(super) at: Option<At>,
    /// One for each column.
    pub(super) figures: Vec<Figure>,
}

impl Row {
    pub(super) fn new(name: &str, at: Option<At>, figures: impl Into<Vec<Figure>>) -> Self {
        Row {
            name: name.to_owned(),
            at,
            figures: figures.into(),
        }
    }
}

/// Rows with the same figures each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Table {
    /// Its part of the ids of its figures.
    pub(super) id: String,
    /// What it shows.
    pub(super) title: String,
    /// Its rows.
    pub(super) rows: Vec<Row>,
    /// What else is to be known.
    pub(super) notes: Vec<String>,
}

impl Table {
    #[cfg(test)]
    pub(super) fn new(id: &str, title: impl Into<String>, rows: Vec<Row>) -> Self {
        Table {
            id: id.to_owned(),
            title: title.into(),
            rows,
            notes: Vec::new(),
        }
    }

    /// All its figures.
    pub(super) fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.rows.iter().flat_map(|row| &row.figures)
    }
}

/// Names all figures of a suite's tables.
pub(super) fn identify(suite: &str, tables: &mut [Table]) {
    let mut seen = BTreeMap::<String, usize>::new();
    for table in tables {
        for row in &mut table.rows {
            let at = row.at.as_ref().map(|at| format!("-{}", at.value));
            let name = slug(&format!("{}{}", row.name, at.unwrap_or_default()));
            for figure in &mut row.figures {
                let what = slug(&format!("{} {}", figure.what, figure.unit));
                let id = format!("{suite}/{}/{name}/{what}", table.id);
                let count = seen.entry(id.clone()).or_default();
                *count += 1;
                figure.id = match count {
                    1 => id,
                    count => format!("{id}-{count}"),
                };
            }
        }
    }
}

/// A name in letters that a link can have.
fn slug(name: &str) -> String {
    let mut text = String::new();
    for c in name.replace('%', " percent").replace('µ', "u").chars() {
        match c {
            _ if c.is_ascii_alphanumeric() || c == '.' => text.push(c.to_ascii_lowercase()),
            _ if text.ends_with('-') || text.is_empty() => {}
            _ => text.push('-'),
        }
    }
    text.truncate(text.trim_end_matches('-').len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_a_path_of_its_own() {
        let row = |name: &str, at| {
            let half = Figure::new("8 B half RTT", "µs", vec![1.0]);
            Row::new(name, at, [half, Figure::new("99 %", "µs", vec![2.0])])
        };
        let rows = vec![
            row("write, seen", bytes(8)),
            row("write, seen", bytes(64)),
            row("write; seen", bytes(64)),
            row("loss", at("% loss", 0.1)),
        ];
        let mut tables = [Table::new("links", "Links", rows)];
        identify("wire", &mut tables);
        let ids: Vec<_> = tables[0].figures().map(|it| it.id.as_str()).collect();
        assert_eq!(ids[0], "wire/links/write-seen-8/8-b-half-rtt-us");
        assert_eq!(ids[1], "wire/links/write-seen-8/99-percent-us");
        assert_eq!(ids[3], "wire/links/write-seen-64/99-percent-us");
        assert_eq!(ids[5], "wire/links/write-seen-64/99-percent-us-2");
        assert_eq!(ids[6], "wire/links/loss-0.1/8-b-half-rtt-us");
        let unique: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len());
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let figure = Figure::new("time", "ns", vec![f64::NAN, 3.0, f64::INFINITY]);
        assert_eq!(figure.samples, [3.0]);
        assert_eq!(figure.clone().ratio_to("of floor", &[]).ratio, None);
        assert_eq!(figure.clone().ratio_to("of floor", &[0.0]).ratio, None);
        let ratio = figure.ratio_to("of floor", &[6.0, 5.0, 7.0]).ratio.unwrap();
        assert_eq!((ratio.value, ratio.floor), (0.5, 6.0));
        assert_eq!(ratio.floor_samples, [6.0, 5.0, 7.0]);
    }

    #[test]
    fn a_goal_for_a_ratio_that_is_not_known_is_not_met_by_the_median() {
        let figure = Figure::new("time", "ns", vec![1.0]);
        let met = |floor: &[f64]| {
            let figure = figure.clone().ratio_to("of floor", floor);
            let goal = figure.goal(&Goal::at_most(Of::Ratio, 2.0)).goal.unwrap();
            (goal.of, goal.met)
        };
        assert_eq!(met(&[]), (Of::Ratio, None));
        assert_eq!(met(&[0.1]), (Of::Ratio, Some(false)));
        assert_eq!(met(&[1.0]), (Of::Ratio, Some(true)));
    }

    #[test]
    fn a_goal_says_which_figures_are_good_where_the_unit_does_not() {
        let figure = |unit| Figure::new("x", unit, vec![1.0]);
        assert_eq!(figure("ns").better, Some(Better::Lower));
        assert_eq!(figure("MB/s").better, Some(Better::Higher));
        assert_eq!(figure("frames").better, None);
        let with_goal = figure("frames").goal(&Goal::at_least(Of::Median, 2.0));
        assert_eq!(with_goal.better, Some(Better::Higher));
    }
}
