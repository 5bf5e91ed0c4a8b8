//! Planted bugs that a campaign of seeds must find: each is one edit of the source.
//!
//! The checkout is copied, the edit applied to the copy, and seeds are run there with all faults
//! on until one fails.
//!
//! | campaign | bugs in | seeds of |
//! |---|---|---|
//! | simulator | NIC, driver core, library | the simulator |
//! | remote-memory | client and server of remote memory (H9) | their virtual cluster |
//! | streams | the protocol of streams, the queues of shared pools (S2, S6) | their tests |
//! | library | what the library keeps of segments, names and messages (N3, Q12, Q14) | its tests with the device process |

use anyhow::{ensure, Context, Result};

use crate::report::Report;
use crate::scratch::Scratch;

/// Longest message of a checker in the table, in characters.
const MESSAGE: usize = 150;

/// Planted bugs, and the seeds that must find them.
pub(crate) struct Campaign {
    /// Name on the command line, and of its workspace and report.
    pub(crate) name: &'static str,
    /// Heading of the table, and of its last column.
    title: &'static str,
    says: &'static str,
    bugs: &'static str,
    /// Seeds that are tried for each bug.
    seeds: u32,
    /// Commands of cargo that build and run the seeds.
    build: &'static [&'static str],
    run: &'static [&'static str],
}

/// All campaigns.
pub(crate) const CAMPAIGNS: [Campaign; 4] = [
    Campaign {
        name: "simulator",
        title: "Planted bugs",
        says: "what the simulator says",
        bugs: include_str!("planted.txt"),
        seeds: 2000,
        build: &[
            "build",
            "-p",
            "qnic-simulator",
            "--example",
            "first_failure",
        ],
        run: &[
            "run",
            "-p",
            "qnic-simulator",
            "--example",
            "first_failure",
            "--",
            "2000",
        ],
    },
    Campaign {
        name: "remote-memory",
        title: "Planted bugs: remote memory",
        says: "what the virtual cluster says",
        bugs: include_str!("planted_remote_memory.txt"),
        seeds: 300,
        build: &[
            "test",
            "-p",
            "qnic-driver",
            "--test",
            "remote_memory",
            "--no-run",
        ],
        run: &[
            "test",
            "-p",
            "qnic-driver",
            "--test",
            "remote_memory",
            "--",
            "--nocapture",
        ],
    },
    Campaign {
        name: "streams",
        title: "Planted bugs: streams and shared pools",
        says: "which test fails",
        bugs: include_str!("planted_streams.txt"),
        seeds: 1,
        build: &[
            "test",
            "-p",
            "qnic-shared",
            "-p",
            "qnic",
            "--lib",
            "--test",
            "stream",
            "--no-run",
        ],
        run: &[
            "test",
            "--no-fail-fast",
            "-p",
            "qnic-shared",
            "-p",
            "qnic",
            "--lib",
            "--test",
            "stream",
            "--",
            "pool::",
            "stream_protocol::",
            "stories::",
            "losses::",
            "hostile::",
            "random_wires::",
        ],
    },
    Campaign {
        name: "library",
        title: "Planted bugs: the library",
        says: "which test fails",
        bugs: include_str!("planted_library.txt"),
        seeds: 1,
        build: &[
            "test",
            "-p",
            "qnic",
            "--lib",
            "--test",
            "host_mode",
            "--no-run",
        ],
        run: &[
            "test",
            "--no-fail-fast",
            "-p",
            "qnic",
            "--lib",
            "--test",
            "host_mode",
            "--",
            "core::",
            "tests::messages",
            "exports::",
            "messages::",
            "names::",
            "model::lanes",
            "probes::",
        ],
    },
];

/// One bug.
struct Planted {
    /// What it does wrong.
    name: &'static str,
    /// The file, below the checkout.
    file: &'static str,
    /// Text that occurs once in it, and what replaces it.
    edit: (String, String),
}

/// All bugs of a campaign: the blocks of its file.
fn planted(campaign: &Campaign) -> impl Iterator<Item = Planted> {
    let blocks = campaign.bugs.split("\n\n").skip(1);
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

/// Plants each bug whose name contains `filter`, and reports which seed finds it; a bug that does not
/// compile any more is reported, and the others follow. Returns true if all were found; an error if a bug
/// does not fit the source any more, or the sources as they are fail.
pub(crate) fn run(campaign: &Campaign, filter: &str) -> Result<bool> {
    let scratch = Scratch::new(campaign.name);
    scratch.copy_checkout()?;
    let sound = first_failure(campaign, &scratch).context("without any planted bug")?;
    ensure!(sound.is_none(), "without any planted bug: {sound:?}");
    let columns = ["planted bug", "seed", campaign.says];
    let mut report = Report::new(campaign.name, campaign.title, &columns);
    let (mut found, mut missed) = (0, 0);
    for bug in planted(campaign).filter(|bug| bug.name.contains(filter)) {
        let source = scratch.read(bug.file)?;
        scratch.write(bug.file, &bug.plant(&source)?)?;
        let failure = first_failure(campaign, &scratch);
        scratch.write(bug.file, &source)?;
        let (seed, message) = match failure {
            Ok(Some((seed, message))) => {
                found += 1;
                (seed, message)
            }
            Ok(None) => {
                missed += 1;
                let message = format!("**NOT FOUND** in {} seeds", campaign.seeds);
                ("-".into(), message)
            }
            // The others need not wait until it is mended.
            Err(error) => {
                eprintln!("error: {}: {error:#}", bug.name);
                missed += 1;
                ("-".into(), "**NO RESULT**".into())
            }
        };
        report.row(&[bug.name, &seed, &message]);
    }
    let summary = format!("{found} bugs are found, {missed} are not.");
    report.finish(&summary, filter.is_empty())?;
    Ok(missed == 0)
}

/// The first seed that fails, and why.
fn first_failure(campaign: &Campaign, scratch: &Scratch) -> Result<Option<(String, String)>> {
    let build = scratch.cargo(campaign.build)?;
    ensure!(
        build.status.success(),
        "it does not compile: {}",
        String::from_utf8_lossy(&build.stderr)
    );
    let run = scratch.cargo(campaign.run)?;
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    if run.status.success() {
        return Ok(None);
    }
    let found = verdict(&said).with_context(|| {
        let error = String::from_utf8_lossy(&run.stderr).into_owned();
        format!("the seeds ended without a result: {said}{error}")
    })?;
    Ok(Some(found))
}

/// Seed and message in the line `seed N: message (file:line)`, fit for a table: without the
/// place, what assertions add, and the details of a transfer. Without such a line, the test that
/// has failed.
fn verdict(said: &str) -> Option<(String, String)> {
    let story = || {
        let (_, failed) = said.rsplit_once("failures:\n    ")?;
        Some(("-".into(), format!("`{}` fails", failed.lines().next()?)))
    };
    seed_and_message(said).or_else(story)
}

fn seed_and_message(said: &str) -> Option<(String, String)> {
    let line = said
        .strip_prefix("seed ")
        .or_else(|| Some(said.split_once("\nseed ")?.1))?;
    let (seed, message) = line.split_once(": ")?;
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
    Some((seed.parse::<u64>().ok()?.to_string(), short))
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
        let all = || CAMPAIGNS.iter().flat_map(planted);
        let misfits: Vec<String> = all().filter_map(misfit).collect();
        assert!(misfits.is_empty(), "{}", misfits.join("\n"));
        for (campaign, least) in CAMPAIGNS.iter().zip([80, 20, 10, 10]) {
            assert!(planted(campaign).count() >= least, "{}", campaign.name);
        }
    }

    #[test]
    fn what_runs_the_seeds_is_there() {
        for file in [
            "tests/simulator/examples/first_failure.rs",
            "guest-driver/driver/tests/remote_memory/main.rs",
        ] {
            let runner = checkout().join(file);
            assert!(runner.is_file(), "{}", runner.display());
        }
    }

    #[test]
    fn a_verdict_is_cut_to_what_fits_a_table() {
        let said =
            "seed 17: assertion `left == right` failed: process 3: a | b: Op { failed: 3 }\n\
                     left: 1 (oracle.rs:7)\n";
        let (seed, message) = verdict(said).unwrap();
        assert_eq!(seed, "17");
        assert_eq!(message, "process 3: a \\| b");
        let long = format!("seed 1: {} (x.rs:1)", "e".repeat(500));
        let (_, message) = verdict(&long).unwrap();
        assert_eq!(message.chars().count(), MESSAGE + 1);
        let (seed, message) = verdict("running 1 test\nseed 3: no (x.rs:1)\ntest").unwrap();
        assert_eq!((&*seed, &*message), ("3", "no"));
        let (seed, message) = verdict("failures:\n\nfailures:\n    a::c\n\ntest").unwrap();
        assert_eq!((&*seed, &*message), ("-", "`a::c` fails"));
        assert!(verdict("1000 seeds pass").is_none());
    }
}
