//! `qnic bench compare OLD NEW`: what has become slower or faster between two runs, and whether that
//! is more than chance.
//!
//! ```text
//!   OLD ──► figures ─┐ by id     ┌ medians, their ratio
//!                    ├─────────► ┤ rank test of the samples ──► verdict
//!   NEW ──► figures ─┘           └ worse by more than the threshold?
//! ```
//! Two runs on one machine are compared by their figures. Between machines only ratios mean
//! something, so each sample is divided by the floor of its own run.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{ensure, Result};
use qnic_cli::lab::bench::{By, Compare};

use super::comparison::text::{Comparison, Side, FORMAT, VERSION};
use super::comparison::verdict::{Compared, Verdict, ALPHA};
use super::figures::{Figure, Role};
use super::page;
use super::record::{check_writable, write_whole, Run, SuiteRun};

/// Exit status if a figure has regressed.
const REGRESSED: u8 = 3;

/// Exit status if the files cannot be compared.
const NOT_COMPARABLE: u8 = 4;

pub(super) fn run(options: &Compare) -> Result<ExitCode> {
    status(options).map(ExitCode::from)
}

/// Compares, shows, and says how it ended.
fn status(options: &Compare) -> Result<u8> {
    for path in options.json.iter().chain(&options.html) {
        check_writable(path)?;
    }
    let read = || Ok((Run::read(&options.old)?, Run::read(&options.new)?));
    let compared = read().and_then(|(old, new)| compare(&old, &new, options));
    let comparison = match compared {
        Ok(comparison) => comparison,
        Err(error) => {
            eprintln!("qnic: {error:#}");
            return Ok(NOT_COMPARABLE);
        }
    };
    print!("{comparison}");
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&comparison)?;
        write_whole(path, &(text + "\n"))?;
    }
    if let Some(path) = &options.html {
        write_whole(path, &page::of_comparison(&comparison))?;
    }
    let has_regressed = comparison.with(Verdict::Regressed).next().is_some();
    Ok(if has_regressed { REGRESSED } else { 0 })
}

/// Returns an error if the runs cannot be compared.
pub(super) fn compare(old: &Run, new: &Run, options: &Compare) -> Result<Comparison> {
    ensure!(
        options.any_order || old.started <= new.started,
        "OLD began at {}, after NEW at {}: they are swapped, or --any-order says that they are not",
        old.started,
        new.started
    );
    let suites = suites(old, new, options)?;
    let machines = old.machine.differs_from(&new.machine);
    let by = options.by.unwrap_or(match machines.is_empty() {
        true => By::Figures,
        false => By::Ratios,
    });
    let (of_old, of_new) = (figures(old, &suites)?, figures(new, &suites)?);
    let names = |map: &BTreeMap<_, _>| map.keys().copied().collect::<BTreeSet<&str>>();
    let (names_old, names_new) = (names(&of_old), names(&of_new));
    let only = |one: &BTreeSet<&str>, other: &BTreeSet<&str>| -> Vec<String> {
        one.difference(other).map(|it| (*it).to_owned()).collect()
    };
    let in_order = suites.iter().filter_map(|id| new.suite(id));
    let in_order = in_order.flat_map(|suite| suite.figures().map(move |it| (suite, it)));
    let both = in_order.filter_map(|(suite, figure)| {
        let (old_suite, before) = of_old.get(figure.id.as_str())?;
        let busy = !suite.busy.is_empty() || !old_suite.busy.is_empty();
        Some((before, figure, busy))
    });
    Ok(Comparison {
        format: FORMAT,
        version: VERSION,
        old: side(old, &suites, options.old.display().to_string()),
        new: side(new, &suites, options.new.display().to_string()),
        machines,
        by: match by {
            By::Figures => "figures",
            By::Ratios => "ratios",
        },
        threshold: options.threshold,
        alpha: ALPHA,
        added_suites: added_suites(old, new),
        figures: both
            .filter(|(_, figure, _)| figure.role != Role::Published)
            .map(|(before, after, busy)| Compared::new(before, after, by, options.threshold, busy))
            .collect(),
        gone: only(&names_old, &names_new),
        added: only(&names_new, &names_old),
        suites,
    })
}

/// The suites that are compared: those that are named, or all of `old`.
fn suites(old: &Run, new: &Run, options: &Compare) -> Result<Vec<String>> {
    let of_old = || old.suites.iter().map(|suite| suite.id.clone());
    let mut wanted: Vec<_> = match options.suites.is_empty() {
        true => of_old().collect(),
        false => options.suites.clone(),
    };
    let mut seen = BTreeSet::new();
    wanted.retain(|id| seen.insert(id.clone()));
    ensure!(!wanted.is_empty(), "OLD has no suite");
    for (name, run) in [("OLD", old), ("NEW", new)] {
        let missing = |id: &&String| run.suite(id).is_none();
        let missing: Vec<_> = wanted.iter().filter(missing).cloned().collect();
        ensure!(
            missing.is_empty(),
            "{name} has no suite {}; --suite names those to compare",
            missing.join(", ")
        );
        for suite in wanted.iter().filter_map(|id| run.suite(id)) {
            if let Some(error) = &suite.error {
                anyhow::bail!(
                    "suite {} of {name} ended with an error ({error}); --suite names others to compare",
                    suite.id
                );
            }
        }
    }
    Ok(wanted)
}

fn added_suites(old: &Run, new: &Run) -> Vec<String> {
    let added = new.suites.iter().filter(|it| old.suite(&it.id).is_none());
    added.map(|suite| suite.id.clone()).collect()
}

/// The figures of some suites, by their ids.
fn figures<'a>(
    run: &'a Run,
    suites: &[String],
) -> Result<BTreeMap<&'a str, (&'a SuiteRun, &'a Figure)>> {
    let mut all = BTreeMap::new();
    for suite in suites.iter().filter_map(|id| run.suite(id)) {
        for figure in suite.figures() {
            let known = all.insert(figure.id.as_str(), (suite, figure));
            ensure!(
                known.is_none(),
                "two figures have the id {:?}: a file is damaged",
                figure.id
            );
        }
    }
    Ok(all)
}

fn side(run: &Run, suites: &[String], file: String) -> Side {
    let compared = suites.iter().filter_map(|id| run.suite(id));
    let busy = compared.filter(|suite| !suite.busy.is_empty());
    Side {
        file,
        started: run.started.clone(),
        machine: run.machine.clone(),
        sources: run.sources.clone(),
        busy: busy.map(|suite| suite.id.clone()).collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::figures::Spread;
    use super::super::record::tests::run;
    use super::*;

    pub(in crate::bench) fn options() -> Compare {
        Compare {
            old: "old.json".into(),
            new: "new.json".into(),
            threshold: 0.05,
            suites: Vec::new(),
            by: None,
            any_order: false,
            json: None,
            html: None,
        }
    }

    /// A run whose first figure has five samples around `ns`.
    pub(in crate::bench) fn of(ns: f64) -> Run {
        let mut run = run();
        let figure = &mut run.suites[0].tables[0].rows[0].figures[0];
        figure.samples = (0..5).map(|it| ns + f64::from(it) / 100.0).collect();
        figure.spread = Spread::of(&figure.samples);
        run
    }

    #[test]
    fn what_is_worse_by_more_than_chance_and_threshold_regresses() {
        let verdict = |old: f64, new: f64, threshold: f64| {
            let options = Compare {
                threshold,
                ..options()
            };
            let comparison = compare(&of(old), &of(new), &options).unwrap();
            comparison.figures[0].verdict
        };
        assert_eq!(verdict(10.0, 11.0, 0.05), Verdict::Regressed);
        assert_eq!(verdict(10.0, 11.0, 0.2), Verdict::Differs);
        assert_eq!(verdict(11.0, 10.0, 0.05), Verdict::Improved);
        assert_eq!(verdict(10.0, 10.0, 0.0), Verdict::Same);
    }

    #[test]
    fn three_rounds_are_too_few_whatever_they_say() {
        let mut new = run();
        let figure = &mut new.suites[0].tables[0].rows[0].figures[0];
        figure.samples.iter_mut().for_each(|ns| *ns *= 10.0);
        let comparison = compare(&run(), &new, &options()).unwrap();
        assert_eq!(comparison.figures[0].verdict, Verdict::TooFew);
        // What others have published does not change.
        assert_eq!(comparison.figures.len(), 2);
    }

    #[test]
    fn runs_that_cannot_be_compared_say_why() {
        let error = |old: &Run, new: &Run, options: &Compare| {
            format!("{:#}", compare(old, new, options).unwrap_err())
        };
        let (old, mut new) = (run(), run());
        new.started = "2026-11-24T08:00:00Z".into();
        assert!(error(&old, &new, &options()).contains("swapped"));
        let any_order = Compare {
            any_order: true,
            ..options()
        };
        assert!(compare(&old, &new, &any_order).is_ok());
        let mut other = run();
        other.suites[0].id = "vm".into();
        assert!(error(&old, &other, &options()).contains("NEW has no suite host"));
        let named = Compare {
            suites: vec!["vm".into()],
            ..options()
        };
        assert!(error(&old, &other, &named).contains("OLD has no suite vm"));
        let mut failed = run();
        failed.suites[0].error = Some("no QEMU".into());
        let text = error(&old, &failed, &options());
        assert!(text.contains("suite host of NEW") && text.contains("no QEMU"));
        let mut twice = run();
        let row = twice.suites[0].tables[0].rows[0].clone();
        twice.suites[0].tables[0].rows.push(row);
        assert!(error(&old, &twice, &options()).contains("two figures"));
        let mut empty = run();
        empty.suites.clear();
        assert!(error(&empty, &new, &any_order).contains("no suite"));
    }

    #[test]
    fn another_machine_is_compared_by_ratios_and_said_first() {
        let old = of(10.0);
        let mut new = of(20.0);
        new.machine.model = "Another".into();
        let figure = &mut new.suites[0].tables[0].rows[0].figures[0];
        // Twice the time with twice the floor.
        figure.ratio.as_mut().unwrap().floor_samples = vec![10.0];
        let comparison = compare(&old, &new, &options()).unwrap();
        assert_eq!(comparison.by, "ratios");
        assert_eq!(comparison.figures[0].verdict, Verdict::Same);
        let text = comparison.to_string();
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("TWO MACHINES"), "{first}");
        // `--by figures` compares the figures all the same.
        let by = Compare {
            by: Some(By::Figures),
            ..options()
        };
        let comparison = compare(&old, &new, &by).unwrap();
        assert_eq!(comparison.figures[0].verdict, Verdict::Regressed);
    }

    #[test]
    fn the_status_tells_a_regression_from_files_that_cannot_be_compared() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        of(10.0).write(&path("old.json")).unwrap();
        of(12.0).write(&path("new.json")).unwrap();
        std::fs::write(path("damaged.json"), "{\"format\": \"qnic-bench\"").unwrap();
        let status = |old: &str, new: &str| {
            status(&Compare {
                old: path(old),
                new: path(new),
                json: Some(path("comparison.json")),
                html: Some(path("comparison.html")),
                ..options()
            })
            .unwrap()
        };
        assert_eq!(status("old.json", "new.json"), REGRESSED);
        let text = std::fs::read_to_string(path("comparison.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["figures"][0]["verdict"], "regressed");
        assert!(std::fs::read_to_string(path("comparison.html"))
            .unwrap()
            .contains("Regressed"));
        assert_eq!(status("new.json", "old.json"), 0);
        assert_eq!(status("old.json", "damaged.json"), NOT_COMPARABLE);
        assert_eq!(status("missing.json", "old.json"), NOT_COMPARABLE);
        let unwritable = Compare {
            json: Some("/no/such/directory/x.json".into()),
            ..options()
        };
        assert!(super::status(&unwritable).is_err());
    }

    #[test]
    fn what_only_one_has_is_named() {
        let (old, mut new) = (run(), run());
        new.suites[0].tables[0].rows.remove(0);
        let mut more = new.suites[0].clone();
        more.id = "vm".into();
        new.suites.push(more);
        let comparison = compare(&old, &new, &options()).unwrap();
        assert_eq!(comparison.gone.len(), 2);
        assert_eq!(comparison.added_suites, ["vm"]);
        let text = comparison.to_string();
        assert!(text.contains("host/transfers/write-8/time-ns"), "{text}");
    }

    #[test]
    fn each_figure_has_medians_ratio_and_probability() {
        let mut new = of(12.0);
        new.suites[0].busy.push("others".into());
        let text = compare(&of(10.0), &new, &options()).unwrap().to_string();
        assert!(text.starts_with("A BUSY MACHINE measured in NEW: host\nOLD old.json: "));
        let line = text
            .lines()
            .find(|line| line.contains("write-8/time"))
            .unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            words.join(" "),
            "host/transfers/write-8/time-ns ns 10.02 (10.00 … 10.04) 12.02 (12.00 … 12.04) 1.200 p 0.0079 busy"
        );
        assert!(text.contains("\nRegressed: 1\n"), "{text}");
        assert!(text.contains("\nToo few rounds to tell: 1\n"), "{text}");
        assert!(
            text.ends_with("by chance alone 0.0 would differ\n"),
            "{text}"
        );
    }
}
