//! What more engines give, each with a processor of its own: measured with two, computed for up to
//! sixteen.
//!
//! The program `scaling` of `qnic-links` moves writes of 8 bytes between engines without I/O: each
//! thread drives its engines and posts for their processes. Nothing is shared but the rings
//! between every two engines, so what a write takes of a thread is
//!
//! ```text
//!   t(N) = (1 - a) · within + a · across + (4 N - 2) · peer     a: share of NICs at other engines
//! ```
//! where each NIC writes to all others in turn, four of an engine. *within* and *across* are measured
//! with two engines on two threads, and one peer for each NIC. *peer* is what each further one costs,
//! with its share of a ring: from sixteen engines on one thread, less what their writes take there
//! with one peer. The model is checked against two engines on two threads, and four, whose writes
//! go to all NICs. It knows no limit of memory, and no second socket.

use std::process::Command;

use anyhow::{Context, Result};
use qnic_cluster::{program, Program};

use super::figures::at;
use super::tables::Tables;
use super::wire::packets::said;

const SCALING: Program<'static> = Program::example("qnic-links", "scaling");

/// NICs of an engine, as the program has them.
const NICS: f64 = 4.0;

/// Engines whose ways are counted, on one thread.
const MANY: f64 = 16.0;

/// Processors, with an engine each.
const COMPUTED: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];

/// What is measured: engines, threads, where writes go, and how many each process has.
const CASES: [(&str, &str); 7] = [
    ("one engine", "1 1 within 100000"),
    ("two engines, one thread, across", "2 1 across 50000"),
    ("sixteen engines, one thread, to all", "16 1 even 6000"),
    ("two engines, two threads, within", "2 2 within 100000"),
    ("two engines, two threads, across", "2 2 across 50000"),
    ("two engines, two threads, to all", "2 2 even 50000"),
    ("four engines, two threads, to all", "4 2 even 25000"),
];

/// The cases that the model is not fed with, and their engines.
const CHECKS: [(usize, f64); 2] = [(5, 2.0), (6, 4.0)];

/// What a write takes of a thread in a round, in nanoseconds, by case.
type Round = [f64; CASES.len()];

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let program =
        program(SCALING).context("build the program that moves frames between engines")?;
    tables.rounds(rounds, ", scaling", false, |round| {
        let mut times = Round::default();
        for ((_, arguments), time) in CASES.iter().zip(&mut times) {
            let line = said(Command::new(&program).args(arguments.split(' ')))?;
            let parsed = line.trim().parse();
            *time = parsed.with_context(|| format!("scaling prints {line:?}"))?;
        }
        add(&times, round);
        Ok(())
    })
}

/// Adds what was measured, what the model says of what it is not fed with, and of more processors.
fn add(times: &Round, tables: &mut Tables) {
    for (index, (name, _)) in CASES.iter().enumerate() {
        let row = tables.row("engine-writes", name, None);
        row.add("a thread, measured [ns]", [times[index]]);
        let check = CHECKS.iter().find(|(case, _)| *case == index);
        row.add(
            "the model says [ns]",
            check.map(|(_, engines)| model(*engines, times)),
        );
    }
    for engines in COMPUTED {
        let plural = if engines > 1.0 { "s" } else { "" };
        let name = format!("{engines} engine{plural}");
        let ns = model(engines, times);
        let row = tables.row("scaling", &name, at("engines", engines));
        row.add("a write [ns]", [ns]);
        row.add("all engines [1000/s]", [engines * 1e6 / ns]);
        row.add("of one engine []", [engines * model(1.0, times) / ns]);
    }
}

/// Which part of all writes goes to other engines, if they go to all NICs.
fn across(engines: f64) -> f64 {
    (engines - 1.0) * NICS / (engines * NICS - 1.0)
}

fn mixed(engines: f64, within_ns: f64, across_ns: f64) -> f64 {
    let share = across(engines);
    (1.0 - share) * within_ns + share * across_ns
}

/// What the model says a write takes of an engine, of so many, that has a processor to itself.
fn model(engines: f64, round: &Round) -> f64 {
    let [one, ring, many, within_ns, across_ns, ..] = *round;
    let further = |engines: f64| engines * NICS - 2.0;
    let peer = (many - mixed(MANY, one, ring)) / further(MANY);
    let of_one_peer = match engines < 2.0 {
        true => one,
        false => mixed(engines, within_ns, across_ns),
    };
    of_one_peer + further(engines) * peer.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring takes 100 ns, a line that goes to another core 200, each further peer 10.
    const ROUND: Round = [
        500.0,
        600.0,
        500.0 + 100.0 * 60.0 / 63.0 + 620.0,
        500.0,
        800.0,
        700.0,
        800.0,
    ];

    #[test]
    fn the_model_is_made_of_what_was_measured() {
        assert!((model(1.0, &ROUND) - 520.0).abs() < 1e-6);
        let two = 500.0 + 300.0 * 4.0 / 7.0 + 60.0;
        assert!((model(2.0, &ROUND) - two).abs() < 1e-6);
        let sixteen = 500.0 + 300.0 * 60.0 / 63.0 + 620.0;
        assert!((model(16.0, &ROUND) - sixteen).abs() < 1e-6);
    }

    #[test]
    fn what_the_model_is_fed_with_is_no_check_of_it() {
        let mut tables = Tables::default();
        add(&ROUND, &mut tables);
        let says = |case| tables.samples("engine-writes", case, None, "the model says [ns]");
        assert_eq!(says("two engines, two threads, within"), [0.0; 0]);
        assert!((says("two engines, two threads, to all")[0] - 731.4).abs() < 0.1);
        let gain = tables.samples(
            "scaling",
            "1 engine",
            at("engines", 1.0),
            "of one engine []",
        );
        assert_eq!(gain, [1.0]);
    }
}
