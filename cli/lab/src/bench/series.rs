//! Series of times beside NetVM's, as `qnic bench memory` and `qnic bench sync` record
//! them.

use super::figures::{median, Figure, Row, Table};
use super::goal::Goal;
use super::netvm;

/// What the ratios of a table are to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unit {
    /// Nanoseconds here.
    pub(super) here: Vec<f64>,
    /// Microseconds at NetVM; NaN if it has none.
    pub(super) netvm_us: f64,
}

/// One operation, timed in each round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    /// Nanoseconds: the median of each round.
    pub(super) ns: Vec<f64>,
    /// NetVM's time, in microseconds.
    pub(super) netvm_us: Option<f64>,
    /// Nanoseconds: the samples of the round that runs.
    round: Vec<f64>,
}

impl Series {
    fn row(&self, unit: &Unit, goal: Option<Goal>) -> Row {
        let here = Figure::with_spread("here", "ns", self.ns.clone());
        let netvm = Figure::published("NetVM", "µs", self.netvm_us);
        let ratio = netvm.median() / unit.netvm_us;
        let figures = [
            here.ratio_to("ratio", &unit.here).ratio_goal(goal),
            netvm.published_ratio("ratio", unit.netvm_us, ratio),
        ];
        Row::new(&*self.name, figures)
    }
}

/// The series of a suite, in the order in which their first samples came.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorder {
    pub(super) all: Vec<Series>,
    /// Where NetVM's times are.
    netvm: &'static netvm::Times,
}

impl Recorder {
    pub(super) fn new(netvm: &'static netvm::Times) -> Self {
        Recorder {
            all: Vec::new(),
            netvm,
        }
    }

    /// Adds a sample of the round that runs.
    pub(super) fn add(&mut self, name: &str, ns: f64) {
        match self.all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.round.push(ns),
            None => self.all.push(Series {
                name: name.to_owned(),
                ns: Vec::new(),
                netvm_us: netvm::time(self.netvm, name),
                round: vec![ns],
            }),
        }
    }

    /// Ends a round; one that `warms_up` is not counted.
    pub(super) fn end_round(&mut self, warms_up: bool) {
        for series in &mut self.all {
            if !warms_up && !series.round.is_empty() {
                series.ns.push(median(&series.round));
            }
            series.round.clear();
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Series> {
        self.all.iter().find(|series| series.name == name)
    }

    /// What the ratios of others are to: the series of that name here, and its time at NetVM.
    pub(super) fn unit(&self, name: &str) -> Unit {
        let here = self.get(name).map(|series| series.ns.clone());
        Unit {
            here: here.unwrap_or_default(),
            netvm_us: netvm::time(self.netvm, name).unwrap_or(f64::NAN),
        }
    }

    pub(super) fn table(&self, id: &str, title: &str, unit: &Unit) -> Table {
        self.part((id, title), unit, |_| true, |_| None)
    }

    /// A table of some series, with the goal of each.
    pub(super) fn part(
        &self,
        (id, title): (&str, &str),
        unit: &Unit,
        of: impl Fn(&str) -> bool,
        goal: impl Fn(&str) -> Option<Goal>,
    ) -> Table {
        let series = self.all.iter().filter(|series| of(&series.name));
        let rows = series.map(|series| series.row(unit, goal(&series.name)));
        Table::new(id, title, rows.collect())
    }
}
