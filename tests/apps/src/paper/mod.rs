//! The measurements of NetVM's evaluation (N27), between two NICs of one process: one thread issues and looks
//! at the memory of both ends, so nothing waits for another thread to be scheduled.
//!
//! ```text
//!   this process ──┬── near NIC ══ network ══ far NIC ──┐
//!                  └── issues                looks ◄────┘
//! ```
//! In host mode the NICs are two nodes in one process (`qnic bench memory`, `sync`, `curves`), in a guest its
//! two NICs (`qnic-app paper`, which `qnic bench paper-guest` runs).
//!
//! | module | measures |
//! |---|---|
//! | [`transfers`] | writes and reads, by virtual and by physical address (tables 26, figures 23, 24) |
//! | [`curves`] | the same by length, and by where they begin in a page (figures 23 to 27) |
//! | [`operations`] | atomic operations, locks, queues, semaphores (tables 30, 31) |
//! | [`signals`] | notifications and channels (tables 27 to 29) |
//! | [`rates`] | operations per second (figure 28) |

pub mod curves;
mod objects;
pub mod operations;
pub mod rates;
pub mod signals;
pub mod transfers;

use std::collections::BTreeMap;
use std::sync::Arc;

use qnic::Nic;
use serde::{Deserialize, Serialize};

/// The figure of most tables: a time in nanoseconds.
pub const HERE: &str = "here [ns]";
/// The figure of streams.
pub const STREAM: &str = "stream [MB/s]";

/// Takes pages out of the table of a NIC, by address and length.
pub type Evict = dyn Fn(u64, u64) + Send + Sync;

/// One of the two NICs.
#[derive(Clone)]
pub struct End {
    /// The NIC.
    pub nic: Nic,
    /// Takes pages out of its table, if this process can.
    pub evict: Option<Arc<Evict>>,
}

/// The NIC that issues, and the one that is looked at.
pub type Ends = [End; 2];

/// What is measured, and where it belongs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The table.
    pub table: String,
    /// The name of the row.
    pub row: String,
    /// What grows from row to row, and how much of it there is.
    pub at: Option<(String, f64)>,
    /// What it is, with its unit.
    pub figure: String,
    /// How much it is.
    pub value: f64,
}

/// Where samples go.
pub trait Samples {
    /// Adds a sample.
    fn sample(&mut self, sample: Sample);

    /// Adds one of a row in which nothing grows.
    fn one(&mut self, table: &str, row: &str, figure: &str, value: f64) {
        self.at(table, row, None, figure, value);
    }

    /// Adds one of a row with so much of what grows.
    fn at(&mut self, table: &str, row: &str, at: Option<(&str, f64)>, figure: &str, value: f64) {
        self.sample(Sample {
            table: table.to_owned(),
            row: row.to_owned(),
            at: at.map(|(what, value)| (what.to_owned(), value)),
            figure: figure.to_owned(),
            value,
        });
    }
}

/// What is measured and not kept.
pub struct Nowhere;

impl Samples for Nowhere {
    fn sample(&mut self, _: Sample) {}
}

/// The samples of a round: of each figure the median counts.
#[derive(Debug, Default)]
pub struct Round {
    /// Numbers of figures, by table, row, what grows and figure.
    places: BTreeMap<(String, String, String, String), usize>,
    figures: Vec<(Sample, Vec<f64>)>,
}

impl Samples for Round {
    fn sample(&mut self, sample: Sample) {
        let at = sample
            .at
            .as_ref()
            .map_or(String::new(), |at| format!("{at:?}"));
        let place = (
            sample.table.clone(),
            sample.row.clone(),
            at,
            sample.figure.clone(),
        );
        let next = self.figures.len();
        let number = *self.places.entry(place).or_insert(next);
        let value = sample.value;
        match self.figures.get_mut(number) {
            Some((_, values)) => values.push(value),
            None => self.figures.push((sample, vec![value])),
        }
    }
}

impl Round {
    /// The medians, in the order in which the figures came first.
    pub fn medians(self) -> impl Iterator<Item = Sample> {
        let figures = self.figures.into_iter();
        figures.map(|(sample, values)| Sample {
            value: median(values),
            ..sample
        })
    }
}

/// The sample in the middle; of two, the larger one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_the_median_of_each_figure() {
        let mut round = Round::default();
        for value in [3.0, 1.0, 2.0] {
            round.one("t", "b", HERE, value);
            round.at("t", "a", Some(("bytes", 8.0)), HERE, 10.0 * value);
            round.at("t", "a", Some(("bytes", 9.0)), HERE, value);
        }
        let medians: Vec<_> = round
            .medians()
            .map(|it| (it.row, it.at, it.value))
            .collect();
        let at = |bytes| Some(("bytes".to_owned(), bytes));
        let wanted = [("b", None, 2.0), ("a", at(8.0), 20.0), ("a", at(9.0), 2.0)];
        assert_eq!(
            medians,
            wanted.map(|(row, at, value)| (row.to_owned(), at, value))
        );
    }
}
