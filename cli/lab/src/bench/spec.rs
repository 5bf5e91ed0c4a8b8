//! What the suites show, as suites.toml and goals.toml declare it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::figures::{Figure, Role, Row, Table};
use super::goal::{Goal, Of};

/// What suites.toml has: the suites in the order in which they run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Suites {
    suite: Vec<Suite>,
}

/// A suite.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Suite {
    /// Its name on the command line.
    pub(super) id: String,
    /// What it measures.
    pub(super) title: String,
    /// Rounds unless the command line names a number.
    pub(super) rounds: usize,
    /// Seconds on two cores: of what does not depend on the rounds, and of a round.
    pub(super) seconds: (f64, f64),
    #[serde(rename = "table")]
    pub(super) tables: Vec<TableSpec>,
}

impl Suite {
    /// Seconds that so many rounds take on two cores.
    pub(super) fn estimate(&self, rounds: usize) -> f64 {
        self.seconds.0 + self.seconds.1 * rounds as f64
    }
}

/// A table of a suite.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableSpec {
    pub(super) id: String,
    pub(super) title: String,
    /// The table, as `suite/table`, of which it has what it does not say itself: columns, ratio, and
    /// what was published.
    like: Option<String>,
    #[serde(default)]
    pub(super) columns: Vec<String>,
    pub(super) ratio: Option<Ratio>,
    #[serde(default)]
    pub(super) peers: Vec<String>,
    #[serde(default)]
    pub(super) peer_columns: Vec<String>,
    #[serde(default)]
    pub(super) published: BTreeMap<String, Vec<f64>>,
    #[serde(default)]
    pub(super) notes: Vec<String>,
    /// Rows of one name stand together, as points of a curve.
    #[serde(default)]
    pub(super) by_name: bool,
}

impl TableSpec {
    /// How many of the last columns others have published.
    pub(super) fn published_columns(&self) -> usize {
        self.published.values().map(Vec::len).max().unwrap_or(0)
    }
}

/// To what figures of a table are divided.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ratio {
    pub(super) to: String,
    #[serde(default)]
    of: Vec<String>,
    column: Option<String>,
    row: Option<String>,
    #[serde(default)]
    rows: BTreeMap<String, String>,
    #[serde(default)]
    first: bool,
    table: Option<String>,
    #[serde(default)]
    sum: Vec<String>,
    #[serde(default)]
    pub(super) published_are_times: bool,
}

impl Ratio {
    pub(super) fn is_for(&self, figure: &Figure) -> bool {
        let named = || self.of.iter().any(|it| is_called(figure, it));
        match self.of.is_empty() {
            true => figure.main || figure.role == Role::Published,
            false => named(),
        }
    }

    /// The samples of the floor of a figure, which is in that column of a row.
    pub(super) fn floor(&self, all: &[Table], here: &Table, row: &Row, column: usize) -> Vec<f64> {
        let there = match &self.table {
            Some(id) => all.iter().find(|table| table.id == *id),
            None => Some(here),
        };
        let samples = |row: &Row| row.figures.get(column).map(|it| it.samples.clone());
        let find = |name: &str| {
            let rows = there.into_iter().flat_map(|table| &table.rows);
            rows.filter(|it| it.name == name)
                .find(|it| self.first || it.at == row.at)
                .and_then(samples)
                .unwrap_or_default()
        };
        if let Some(column) = &self.column {
            let figure = row.figures.iter().find(|it| is_called(it, column));
            return figure.map(|it| it.samples.clone()).unwrap_or_default();
        }
        if !self.sum.is_empty() {
            let parts: Vec<_> = self.sum.iter().map(|name| find(name)).collect();
            let rounds = parts.iter().map(Vec::len).min().unwrap_or(0);
            let sum = |round: usize| parts.iter().map(|part| part[round]).sum();
            return (0..rounds).map(sum).collect();
        }
        let other = self.rows.get(&row.name).or(self.row.as_ref());
        find(other.unwrap_or(&row.name))
    }
}

/// A column is that of this figure.
fn is_called(figure: &Figure, column: &str) -> bool {
    what_and_unit(column) == (&figure.what, &figure.unit)
}

/// "half round trip \[µs\]" is a half round trip, in microseconds.
pub(super) fn what_and_unit(column: &str) -> (&str, &str) {
    let parts = column.strip_suffix(']').and_then(|it| it.rsplit_once(" ["));
    parts.unwrap_or((column, ""))
}

/// What goals.toml has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Goals {
    goal: Vec<Wanted>,
    #[serde(rename = "promise")]
    pub(super) promises: Vec<Promise>,
    #[serde(rename = "bottleneck")]
    pub(super) bottlenecks: Vec<Rule>,
}

/// What some figures shall be: one of the four bounds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    code: Option<String>,
    ratio_at_most: Option<f64>,
    ratio_at_least: Option<f64>,
    median_at_most: Option<f64>,
    median_at_least: Option<f64>,
    figures: Vec<String>,
}

impl Wanted {
    fn goal(&self) -> Option<Goal> {
        let most = |of| move |value| Goal::at_most(of, value);
        let least = |of| move |value| Goal::at_least(of, value);
        let goal = (self.ratio_at_most.map(most(Of::Ratio)))
            .or(self.ratio_at_least.map(least(Of::Ratio)))
            .or(self.median_at_most.map(most(Of::Median)))
            .or(self.median_at_least.map(least(Of::Median)));
        goal.map(|goal| goal.code(self.code.as_deref()))
    }
}

/// What is promised.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Promise {
    pub(super) code: String,
    pub(super) what: String,
    /// What was known when the table was begun.
    pub(super) start: String,
    pub(super) goal: String,
    /// The figures that it is read from, by their ids.
    pub(super) figures: Vec<String>,
}

/// The bottleneck of some goals.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    /// How the ids of their figures begin.
    pub(super) goals: Vec<String>,
    /// The name of the stage; of the longest one that of its row.
    pub(super) stage: Option<String>,
    pub(super) takes: Amount,
    /// What the stage cannot do without.
    pub(super) floor: String,
    pub(super) needs: Amount,
}

/// Time, or instructions, of one operation.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Amount {
    pub(super) longest: Option<String>,
    pub(super) of: Option<String>,
    pub(super) less: Vec<String>,
    pub(super) beyond_floor: bool,
}

fn parsed<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> T {
    // A test reads both.
    toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

static SUITES: LazyLock<Suites> = LazyLock::new(|| {
    let mut suites: Suites = parsed("suites.toml", include_str!("suites.toml"));
    let originals: Suites = parsed("suites.toml", include_str!("suites.toml"));
    let tables = suites.suite.iter_mut().flat_map(|it| &mut it.tables);
    for table in tables.filter(|it| it.like.is_some()) {
        let (suite, id) = table
            .like
            .as_deref()
            .and_then(|it| it.split_once('/'))
            .unzip();
        let suite = originals.suite.iter().find(|it| Some(&*it.id) == suite);
        let original = suite.and_then(|it| it.tables.iter().find(|it| Some(&*it.id) == id));
        // A test reads it.
        let original = original.unwrap_or_else(|| panic!("{}: no such table", table.id));
        if table.columns.is_empty() {
            table.columns.clone_from(&original.columns);
        }
        if table.ratio.is_none() {
            table.ratio.clone_from(&original.ratio);
        }
        table.by_name |= original.by_name;
        table.published.clone_from(&original.published);
    }
    suites
});
static GOALS: LazyLock<Goals> = LazyLock::new(|| parsed("goals.toml", include_str!("goals.toml")));

/// All suites, in the order in which they run: the short ones first.
pub(super) fn suites() -> &'static [Suite] {
    &SUITES.suite
}

/// Goals, promises and bottlenecks.
pub(super) fn goals() -> &'static Goals {
    &GOALS
}

/// The goal of a figure, by its id.
pub(super) fn goal(id: &str) -> Option<Goal> {
    let fits = |wanted: &&Wanted| wanted.figures.iter().any(|pattern| matches(pattern, id));
    GOALS.goal.iter().find(fits)?.goal()
}

/// Whether an id is that of a pattern: a star stands for any part of a step.
fn matches(pattern: &str, id: &str) -> bool {
    let mut steps = pattern.split('/').zip(id.split('/'));
    let same = pattern.matches('/').count() == id.matches('/').count();
    same && steps.all(|(pattern, step)| match pattern.split_once('*') {
        None => pattern == step,
        Some((begin, end)) => {
            step.len() >= begin.len() + end.len() && step.starts_with(begin) && step.ends_with(end)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::document::kept_run;
    use super::super::record::SuiteRun;
    use super::*;

    #[test]
    fn each_goal_and_promise_is_of_a_figure() {
        let run = kept_run();
        let figures: Vec<_> = run.suites.iter().flat_map(SuiteRun::figures).collect();
        let is_of = |pattern: &str, suite: &str, table: &str| {
            let mut steps = pattern.split('/');
            steps.next() == Some(suite) && steps.next().is_some_and(|step| matches(step, table))
        };
        // A table that was declared after the record is not in it.
        let exists = |pattern: &str| {
            let mut recorded = run.suites.iter().flat_map(|suite| {
                let tables = suite.tables.iter();
                tables.map(|table| (suite.id.as_str(), table.id.as_str()))
            });
            let mut declared = suites().iter().flat_map(|suite| {
                let tables = suite.tables.iter();
                tables.map(|table| (suite.id.as_str(), table.id.as_str()))
            });
            let was_measured = recorded.any(|(suite, table)| is_of(pattern, suite, table));
            let is_declared = declared.any(|(suite, table)| is_of(pattern, suite, table));
            is_declared && (!was_measured || figures.iter().any(|it| matches(pattern, &it.id)))
        };
        for wanted in &goals().goal {
            assert!(wanted.goal().is_some(), "{wanted:?}");
            assert!(wanted.figures.iter().all(|it| exists(it)), "{wanted:?}");
        }
        for promise in &goals().promises {
            assert!(promise.figures.iter().all(|it| exists(it)), "{promise:?}");
        }
    }

    #[test]
    fn a_star_stands_for_a_part_of_a_step() {
        assert!(matches("a/b-*/c", "a/b-8/c") && matches("a/*-1/c", "a/loss-1/c"));
        assert!(!matches("a/*-1/c", "a/loss-0.1/c") && !matches("a/*", "a/b/c"));
    }
}
