//! `qnic bench engine`: what the NIC's engine costs without I/O, in instructions and nanoseconds:
//! programs of `qnic-nic` that move frames by calls in one thread; and its longest poll (P15).
//!
//! Instructions are counted by callgrind. They do not depend on what else the machine does, and
//! two runs of one program differ by what is between their lengths: start and end drop out.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use qnic_cluster::{program, Program};

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::modules;
use super::wire::packets::{self, by_valgrind, said};

const TRIP: Program<'static> = Program::example("qnic-nic", "trip");
const POLLS: Program<'static> = Program::example("qnic-nic", "polls");

/// What the longest poll may be beside a hostile neighbour, of what it is beside an honest one.
const POLL_GOAL: f64 = 2.0;

/// Trips of the runs that are timed, and of those that callgrind counts.
const TIMED: [u64; 2] = [10_000, 210_000];
const COUNTED: [u64; 2] = [2_000, 6_000];

/// What a trip is of.
const TRIPS: [(&str, &str); 2] = [
    ("notifying write of 8 bytes", "notify"),
    ("message of 8 bytes", "message"),
];

pub(super) fn measure(rounds: usize) -> Result<Vec<Table>> {
    let program = program(TRIP).context("build the program that measures trips")?;
    let mut times = TRIPS.map(|_| Vec::new());
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for ((_, kind), times) in TRIPS.iter().zip(&mut times) {
            times.push(nanoseconds(&program, kind)?);
        }
    }
    let counted = TRIPS.map(|(_, kind)| {
        let run = |command: &mut Command, count: u64| {
            command.args([kind, &count.to_string()]);
        };
        by_valgrind(&program, COUNTED, run)
    });
    Ok(vec![
        table(times, counted),
        packets::measure(rounds)?,
        modules::measure(&packets::program("lines")?),
        polls(&longest_polls(rounds)?),
    ])
}

/// The longest polls of all rounds in microseconds: beside an honest neighbour, and a hostile one.
fn longest_polls(rounds: usize) -> Result<[Vec<f64>; 2]> {
    let program = program(POLLS).context("build the program that measures polls")?;
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let line = said(&mut Command::new(&program))?;
        let mut said = line.split_whitespace().map(str::parse::<f64>);
        for samples in &mut all {
            let nanoseconds = said.next().with_context(|| format!("line {line:?}"))?;
            let nanoseconds = nanoseconds.with_context(|| format!("line {line:?}"))?;
            samples.push(nanoseconds / 1e3);
        }
    }
    Ok(all)
}

/// How long the NIC of one guest lets those of others wait (P15).
fn polls([honest, hostile]: &[Vec<f64>; 2]) -> Table {
    let row = |name: &str, samples: &Vec<f64>, goal: Option<Goal>| {
        let figure = Figure::with_spread("longest poll", "us", samples.clone());
        let figure = figure.ratio_to("of beside an honest one", honest);
        Row::new(name, [figure.ratio_goal(goal)])
    };
    let goal = Goal::at_most(POLL_GOAL).code("P15");
    let rows = vec![
        row("honest neighbour", honest, None),
        row("hostile neighbour", hostile, Some(goal)),
    ];
    Table::new(
        "polls",
        "The longest poll, beside what another guest does",
        rows,
    )
}

/// Of a trip: the difference of two runs, so that start and end drop out.
fn nanoseconds(program: &Path, kind: &str) -> Result<f64> {
    let mut times = [0.0; 2];
    for (time, count) in times.iter_mut().zip(TIMED) {
        let start = Instant::now();
        said(Command::new(program).args([kind, &count.to_string()]))?;
        *time = start.elapsed().as_nanos() as f64;
    }
    Ok((times[1] - times[0]) / (TIMED[1] - TIMED[0]) as f64)
}

fn table(times: [Vec<f64>; 2], counted: [Result<f64>; 2]) -> Table {
    let mut notes = Vec::new();
    let lines = TRIPS.iter().zip(times).zip(counted);
    let lines = lines.map(|(((name, _), times), counted)| {
        let counted =
            counted.map_err(|error| notes.push(format!("{name}: not counted: {error:#}")));
        let instructions = counted.into_iter().collect();
        let figures = [
            Figure::with_spread("both NICs", "ns", times),
            Figure::new("both NICs", "instructions", instructions),
        ];
        Row::new(*name, figures)
    });
    let rows = lines.collect();
    let mut table = Table::new(
        "trip",
        "A trip between two NICs with its share of the program around it, counted by callgrind",
        rows,
    );
    table.notes = notes;
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::text::tests::words_of_row;

    #[test]
    fn a_hostile_neighbour_stands_beside_an_honest_one() {
        let table = polls(&[vec![80.0, 90.0, 95.0], vec![40.0, 180.0, 300.0]]);
        let words = words_of_row(&table, "hostile").join(" ");
        assert!(words.ends_with("180.0 (40.00 … 300.0) 2.00 ≤ 2"), "{words}");
    }

    #[test]
    fn instructions_have_a_reason_if_nothing_counts_them() {
        let missing = || Err(anyhow::anyhow!("valgrind cannot be started"));
        let both = table([vec![400.0], vec![900.0]], [Ok(3000.0), missing()]);
        let words = words_of_row(&both, "notifying").join(" ");
        assert!(words.ends_with("(400.0 … 400.0) 3000"), "{words}");
        assert_eq!(words_of_row(&both, "message").last().unwrap(), "-");
        assert_eq!(
            both.notes,
            ["message of 8 bytes: not counted: valgrind cannot be started"]
        );
    }
}
