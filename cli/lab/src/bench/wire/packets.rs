//! What a packet costs the two NICs on the reliable path, beside the lossless one: the
//! example `packet` of `qnic-nic`, which moves frames by calls in one thread.
//!
//! Instructions are those of the processor's counter. Where there is none, as in most
//! virtual machines, valgrind counts them if it is installed: the difference of two runs
//! of different length, by the packets in between.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::Program;

use super::super::figures::bytes;
use super::super::tables::Tables;

const PACKET: Program<'static> = Program::example("qnic-nic", "packet");

/// Packets in a run that is timed, and in the two that valgrind counts.
const TIMED: u64 = 320_000;
const COUNTED: [u64; 2] = [3_200, 9_600];

const PATHS: [&str; 2] = ["lossless", "reliable"];

/// Measures both paths, with a write of 8 bytes inline, and of a page: both NICs together, from the command to
/// its completion.
pub(in crate::bench) fn measure(rounds: usize, tables: &mut Tables) -> Result<()> {
    let program = program("release")?;
    let mut note = None;
    for size in [8, 4096] {
        for path in PATHS {
            let (instructions, counted_by) = cost(&program, path, size, rounds, tables)
                .with_context(|| format!("{path}, {size} bytes"))?;
            let row = tables.row("packet", path, bytes(size));
            row.add("both NICs [instructions]", instructions);
            note = note.or(Some(match instructions {
                Some(_) => format!("instructions: counted by {counted_by}"),
                None => format!("instructions: not available: {counted_by}"),
            }));
        }
    }
    tables.note("packet", note.unwrap_or_default());
    Ok(())
}

/// The program that measures packets, in one of cargo's profiles.
pub(in crate::bench) fn program(profile: &str) -> Result<PathBuf> {
    let program = qnic_cluster::program(PACKET.in_profile(profile));
    program.context("build the program that measures packets")
}

/// Instructions of a packet, and what counted them, or why nothing did; adds nanoseconds.
fn cost(
    program: &Path,
    path: &str,
    size: usize,
    rounds: usize,
    tables: &mut Tables,
) -> Result<(Option<f64>, String)> {
    let mut counted = Err("it was not asked".to_owned());
    for _ in 0..rounds {
        let said = said(arguments(&mut Command::new(program), path, size, TIMED))?;
        let (time, instructions) = parse(&said)?;
        tables
            .row("packet", path, bytes(size))
            .add("both NICs [ns]", [time]);
        counted = instructions;
    }
    let why = match counted {
        Ok(instructions) => return Ok((Some(instructions), "the processor's counter".to_owned())),
        Err(why) => why,
    };
    let by_valgrind = by_valgrind(program, COUNTED, |command, count| {
        arguments(command, path, size, count);
    });
    Ok(match by_valgrind {
        Ok(instructions) => (Some(instructions), "callgrind".to_owned()),
        Err(error) => (None, format!("no counter: {why}; {error:#}")),
    })
}

fn arguments<'a>(command: &'a mut Command, path: &str, size: usize, count: u64) -> &'a mut Command {
    command.args([path, &size.to_string(), &count.to_string()])
}

/// Standard output of a program that ends well.
pub(in crate::bench) fn said(command: &mut Command) -> Result<String> {
    let output = command.output().context("start the program")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {errors}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Nanoseconds and instructions of a packet, or why those were not counted.
fn parse(line: &str) -> Result<(f64, Result<f64, String>)> {
    let line = line.trim();
    let read = || {
        let (time, rest) = line.split_once(' ')?;
        let instructions = match rest.strip_prefix("- ") {
            Some(why) => Err(why.to_owned()),
            None => Ok(rest.parse().ok()?),
        };
        Some((time.parse().ok()?, instructions))
    };
    read().with_context(|| format!("the program says {line:?}"))
}

/// Instructions of each of `counts[1]` less `counts[0]` operations; `arguments` are those of a run
/// with so many.
pub(in crate::bench) fn by_valgrind(
    program: &Path,
    counts: [u64; 2],
    arguments: impl Fn(&mut Command, u64),
) -> Result<f64> {
    let [few, many] = counts.map(|count| {
        let mut valgrind = Command::new("valgrind");
        valgrind
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program);
        arguments(&mut valgrind, count);
        let output = valgrind.output();
        let output = output.context("valgrind cannot be started; apt-get install valgrind")?;
        collected(&String::from_utf8_lossy(&output.stderr))
    });
    Ok((many? - few?) / (counts[1] - counts[0]) as f64)
}

/// The instructions that callgrind says it has seen.
fn collected(said: &str) -> Result<f64> {
    let line = said.lines().find_map(|line| line.split_once("Collected :"));
    let Some((_, number)) = line else {
        bail!("callgrind says: {}", said.trim());
    };
    Ok(number.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_say_is_understood() {
        assert_eq!(parse("12.5 300.0\n").unwrap(), (12.5, Ok(300.0)));
        let (time, why) = parse("12.5 - No such file or directory (os error 2)\n").unwrap();
        assert_eq!(time, 12.5);
        assert!(why.unwrap_err().starts_with("No such"));
        assert!(parse("").is_err() && parse("x 1").is_err() && parse("1 x").is_err());
        let said = "==1== Events    : Ir\n==1== Collected : 1234567\n";
        assert_eq!(collected(said).unwrap(), 1_234_567.0);
        assert!(collected("==1== no such program").is_err());
    }
}
