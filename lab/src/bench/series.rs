//! Series of times beside NetVM's, as `qnic bench memory` and `qnic bench sync` record
//! them.

use super::figures::{median, Figure, Row, Table};
use super::netvm;

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
    fn row(&self, (here_ns, netvm_us): (f64, f64)) -> Row {
        let here = Figure::with_spread("here", "ns", self.ns.clone());
        let netvm = Figure::new("NetVM", "µs", self.netvm_us.into_iter().collect());
        let figures = [
            here.ratio_to("ratio", here_ns),
            netvm.ratio_to("ratio", netvm_us),
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

    /// What the ratios of others are to: the median of the series of that name here, and
    /// its time at NetVM.
    pub(super) fn unit(&self, name: &str) -> (f64, f64) {
        let here = self.get(name).map_or(f64::NAN, |series| median(&series.ns));
        (here, netvm::time(self.netvm, name).unwrap_or(f64::NAN))
    }

    pub(super) fn table(&self, title: &str, unit: (f64, f64)) -> Table {
        self.part(title, unit, |_| true, |_| None)
    }

    /// A table of some series, with the goal of each.
    pub(super) fn part(
        &self,
        title: &str,
        unit: (f64, f64),
        of: impl Fn(&str) -> bool,
        goal: impl Fn(&str) -> Option<f64>,
    ) -> Table {
        let series = self.all.iter().filter(|series| of(&series.name));
        let rows = series.map(|series| series.row(unit).goal(goal(&series.name)));
        Table::new(title, rows.collect())
    }
}
