//! Planted bugs that the simulator must find: each is one edit of the source of NIC or
//! library.
//!
//! The checkout is copied, the edit applied to the copy, and seeds of the simulator
//! are run there with all faults on until one fails.

use anyhow::{ensure, Context, Result};

use crate::report::Report;
use crate::scratch::Scratch;

/// Seeds that are tried for each bug.
const SEEDS: &str = "2000";

/// Longest message of a checker in the table, in characters.
const MESSAGE: usize = 150;

/// One bug.
struct Planted {
    /// What it does wrong.
    name: &'static str,
    /// The file, below the checkout.
    file: &'static str,
    /// Text that occurs once in it, and what replaces it.
    edit: (String, String),
}

/// All bugs: the blocks of `planted.txt`.
fn planted() -> impl Iterator<Item = Planted> {
    let blocks = include_str!("planted.txt").split("\n\n").skip(1);
    blocks.map(|block| {
        let mut lines = block.lines();
        let lines_with = |sign| {
            let lines: Vec<_> = block
                .lines()
                .filter_map(|line| line.strip_prefix(sign))
                .collect();
            lines.join("\n")
        };
        Planted {
            name: lines.next().unwrap_or_default(),
            file: lines.next().unwrap_or_default(),
            edit: (lines_with('-'), lines_with('+')),
        }
    })
}

impl Planted {
    /// The source, with the bug in it.
    fn plant(&self, source: &str) -> Result<String> {
        let (text, replacement) = &self.edit;
        let count = source.matches(text).count();
        ensure!(
            count == 1,
            "{}: {text:?} occurs {count} times in {}",
            self.name,
            self.file
        );
        Ok(source.replacen(text, replacement, 1))
    }
}

/// Plants each bug whose name contains `filter`, and reports which seed finds it. Returns true
/// if all were found; an error if a bug does not fit the source any more, or the sources as
/// they are fail.
pub(crate) fn campaign(filter: &str) -> Result<bool> {
    let scratch = Scratch::new("simulator");
    scratch.copy_checkout()?;
    let sound = simulate(&scratch).context("without any planted bug")?;
    ensure!(sound.is_none(), "without any planted bug: {sound:?}");
    let columns = ["planted bug", "seed", "what the simulator says"];
    let mut report = Report::new("simulator", "Planted bugs", &columns);
    let (mut found, mut missed) = (0, 0);
    for bug in planted().filter(|bug| bug.name.contains(filter)) {
        let source = scratch.read(bug.file)?;
        scratch.write(bug.file, &bug.plant(&source)?)?;
        let failure = simulate(&scratch).context(bug.name)?;
        scratch.write(bug.file, &source)?;
        let (seed, message) = match failure {
            Some((seed, message)) => {
                found += 1;
                (seed.to_string(), message)
            }
            None => {
                missed += 1;
                ("-".into(), format!("**NOT FOUND** in {SEEDS} seeds"))
            }
        };
        report.row(&[bug.name, &seed, &message]);
    }
    let summary = format!("{found} bugs are found, {missed} are not.");
    report.finish(&summary, filter.is_empty())?;
    Ok(missed == 0)
}

/// The first seed that fails, and why.
fn simulate(scratch: &Scratch) -> Result<Option<(u64, String)>> {
    const RUNNER: [&str; 4] = ["-p", "qnic-sim", "--example", "first_failure"];
    let build = scratch.cargo(&[&["build"][..], &RUNNER].concat())?;
    ensure!(
        build.status.success(),
        "it does not compile: {}",
        String::from_utf8_lossy(&build.stderr)
    );
    let run = scratch.cargo(&[&["run"][..], &RUNNER, &["--", SEEDS]].concat())?;
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    if run.status.success() {
        return Ok(None);
    }
    let found = verdict(&said).with_context(|| {
        let error = String::from_utf8_lossy(&run.stderr).into_owned();
        format!("the simulator ended without a result: {said}{error}")
    })?;
    Ok(Some(found))
}

/// Seed and message in `seed N: message (file:line)`, fit for a table: without the
/// place, what assertions add, and the details of a transfer.
fn verdict(said: &str) -> Option<(u64, String)> {
    let (seed, message) = said.strip_prefix("seed ")?.split_once(": ")?;
    let message = message.trim_end();
    let message = message.rsplit_once(" (").map_or(message, |(text, _)| text);
    let message = match message.strip_prefix("assertion ") {
        Some(assertion) => assertion.split_once(" failed: ")?.1,
        None => message,
    };
    let message = [": Op {", "\n"].iter().fold(message, |text, end| {
        text.split_once(end).map_or(text, |(first, _)| first)
    });
    let mut short: String = message.replace('|', "\\|").chars().take(MESSAGE).collect();
    if message.chars().count() > MESSAGE {
        short.push('…');
    }
    Some((seed.parse().ok()?, short))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::checkout;

    #[test]
    fn every_planted_bug_fits_the_source_and_changes_it() {
        let misfit = |bug: Planted| {
            let source = std::fs::read_to_string(checkout().join(bug.file)).unwrap();
            match bug.plant(&source) {
                Ok(planted) => {
                    assert_ne!(planted, source, "{}", bug.name);
                    None
                }
                Err(misfit) => Some(misfit.to_string()),
            }
        };
        let misfits: Vec<String> = planted().filter_map(misfit).collect();
        assert!(misfits.is_empty(), "{}", misfits.join("\n"));
        assert!(planted().count() >= 80);
    }

    #[test]
    fn what_runs_the_seeds_is_there() {
        let runner = checkout().join("simulator/examples/first_failure.rs");
        assert!(runner.is_file(), "{}", runner.display());
    }

    #[test]
    fn a_verdict_is_cut_to_what_fits_a_table() {
        let said =
            "seed 17: assertion `left == right` failed: process 3: a | b: Op { failed: 3 }\n\
                     left: 1 (oracle.rs:7)\n";
        let (seed, message) = verdict(said).unwrap();
        assert_eq!(seed, 17);
        assert_eq!(message, "process 3: a \\| b");
        let long = format!("seed 1: {} (x.rs:1)", "e".repeat(500));
        let (_, message) = verdict(&long).unwrap();
        assert_eq!(message.chars().count(), MESSAGE + 1);
        assert!(verdict("1000 seeds pass").is_none());
    }
}
