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

use super::figures::at;
use super::modules;
use super::tables::Tables;
use super::wire::packets::{self, by_valgrind, said};

const TRIP: Program<'static> = Program::example("qnic-nic", "trip");
const SPREAD: Program<'static> = Program::example("qnic-nic", "spread");
const POLLS: Program<'static> = Program::example("qnic-nic", "polls");

/// Its figures: how long the NIC of one guest lets those of others wait (P15).
const NEIGHBOURS: [&str; 2] = ["honest neighbour", "hostile neighbour"];

/// Trips of the runs that are timed, and of those that callgrind counts.
const TIMED: [u64; 2] = [10_000, 210_000];
const COUNTED: [u64; 2] = [2_000, 6_000];

/// To how many destinations 1,024 writes are under way, and writes of the two runs that callgrind
/// counts: whole rounds.
const DESTINATIONS: [u16; 3] = [1, 16, 63];
const SPREAD_COUNTED: [u64; 2] = [2_048, 6_144];

/// What a trip is of.
const TRIPS: [(&str, &str); 2] = [
    ("notifying write of 8 bytes", "notify"),
    ("message of 8 bytes", "message"),
];

pub(super) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let build = |example, what: &str| program(example).with_context(|| format!("build {what}"));
    let trip = build(TRIP, "the program that measures trips")?;
    tables.rounds(rounds, "", false, |round| {
        for (name, kind) in TRIPS {
            round.add("trip", name, "both NICs [ns]", nanoseconds(&trip, kind)?);
        }
        Ok(())
    })?;
    for (name, kind) in TRIPS {
        let counted = by_valgrind(&trip, COUNTED, |command, count| {
            command.args([kind, &count.to_string()]);
        });
        match counted {
            Ok(count) => tables.add("trip", name, "both NICs [instructions]", count),
            Err(error) => tables.note("trip", format!("{name}: not counted: {error:#}")),
        }
    }
    packets::measure(rounds, tables)?;
    modules::measure(&packets::program("lines")?, tables);
    let spread = build(SPREAD, "the program that writes to many destinations")?;
    for destinations in DESTINATIONS {
        let counted = by_valgrind(&spread, SPREAD_COUNTED, |command, count| {
            command.args([destinations.to_string(), count.to_string()]);
        });
        let place = at("destinations", destinations.into());
        match counted {
            Ok(count) => tables
                .row("spread", "8 bytes", place)
                .add("all NICs [instructions]", [count]),
            Err(error) => {
                tables.note("spread", format!("{destinations}: not counted: {error:#}"));
                continue;
            }
        };
    }
    let polls = build(POLLS, "the program that measures polls")?;
    tables.rounds(rounds, ", polls", false, |round| {
        let line = said(&mut Command::new(&polls))?;
        let mut said = line.split_whitespace().map(str::parse::<f64>);
        for name in NEIGHBOURS {
            let nanoseconds = said.next().with_context(|| format!("line {line:?}"))?;
            let nanoseconds = nanoseconds.with_context(|| format!("line {line:?}"))?;
            round.add("polls", name, "longest poll [us]", nanoseconds / 1e3);
        }
        Ok(())
    })
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
