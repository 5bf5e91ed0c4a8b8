//! `qnic bench tables RUN`: the tables of docs/performance.md, from a run.
//!
//! ```text
//!   <!-- bench host/transfers -->     what stands from here
//!   <!-- /bench -->                   to here is a table of the run beside the document
//! ```
//! The run is kept beside the document, with fewer digits, so that its tables can be made again; a test
//! does so.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use qnic_cli::lab::bench::Tables;
use qnic_cluster::repository;
use serde_json::{Number, Value};

use super::figures::Table;
use super::goals;
use super::machine::{Machine, Sources};
use super::page;
use super::record::{check_writable, write_whole, Run, SuiteRun};
use super::spec;

/// Digits of a figure that are kept.
const DIGITS: i32 = 5;

const BEGIN: &str = "<!-- bench ";
const CLOSE: &str = " -->";
const END: &str = "<!-- /bench -->";

pub(super) fn run(options: &Tables) -> Result<()> {
    let document = match &options.document {
        Some(path) => path.clone(),
        None => default_document()?,
    };
    let run = Run::read(&options.run)?;
    match &options.html {
        Some(path) => write_whole(path, &page::of_run(&run)),
        None => renew(&run, &document),
    }
}

/// Fails if the tables of `document` cannot be renewed, which should not show after all the measuring.
pub(super) fn renew_is_possible(document: &Path) -> Result<()> {
    let text = read(document)?;
    let nothing = Run::new(
        String::new(),
        Machine::of_this_run(),
        Sources::of_this_run(),
    );
    fill(&text, &nothing).with_context(|| document.display().to_string())?;
    check_writable(&record_of(document))
}

/// Writes the tables of a run into `document`, and keeps the run beside it.
pub(super) fn renew(run: &Run, document: &Path) -> Result<()> {
    let run = rounded(run)?;
    let text = read(document)?;
    let filled = fill(&text, &run).with_context(|| document.display().to_string())?;
    write_whole(&record_of(document), &compact(&run)?)?;
    write_whole(document, &filled)
}

/// The document with this project's figures.
pub(super) fn default_document() -> Result<PathBuf> {
    let root = repository();
    let root = root.context("there is no checkout with a document: --document names one")?;
    Ok(root.join("docs/performance.md"))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// The run beside a document.
fn record_of(document: &Path) -> PathBuf {
    document.with_extension("json")
}

/// The same run, its figures in few digits.
fn rounded(run: &Run) -> Result<Run> {
    let mut value = serde_json::to_value(run)?;
    round(&mut value);
    Ok(serde_json::from_value(value)?)
}

fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let exact = number.as_f64().unwrap_or_default();
            let short = format!("{exact:.*e}", DIGITS as usize - 1).parse().ok();
            if let Some(short) = short.and_then(Number::from_f64) {
                *number = short;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(round),
        // What grows from row to row was not measured, but chosen.
        Value::Object(fields) => fields
            .iter_mut()
            .filter(|(name, _)| *name != "at")
            .for_each(|(_, value)| round(value)),
        _ => {}
    }
}

/// The file of a run, a line for each figure.
fn compact(run: &Run) -> Result<String> {
    // Within a string the quotes of this would be escaped.
    let text = serde_json::to_string(run)?.replace("{\"id\":", "\n{\"id\":");
    Ok(text + "\n")
}

/// The document with the tables of a run between its marks.
fn fill(document: &str, run: &Run) -> Result<String> {
    let (mut filled, mut rest) = (String::new(), document);
    while let Some((before, mark)) = rest.split_once(BEGIN) {
        let (name, after) = mark
            .split_once(CLOSE)
            .filter(|(name, _)| !name.contains('\n'))
            .with_context(|| format!("a mark has no {CLOSE:?}"))?;
        let (old, after) = after
            .split_once(END)
            .with_context(|| format!("{BEGIN}{name}{CLOSE} has no {END}"))?;
        ensure!(
            !old.contains(BEGIN),
            "{BEGIN}{name}{CLOSE} has no {END} of its own"
        );
        filled.push_str(before);
        filled.push_str(&format!("{BEGIN}{name}{CLOSE}\n"));
        filled.push_str(&part(name, run)?);
        filled.push_str(END);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// What a mark asks for.
fn part(name: &str, run: &Run) -> Result<String> {
    match name {
        "run" => return Ok(of_run(run)),
        "promises" => return Ok(goals::promises(run)),
        "missed" => return Ok(goals::missed(run)),
        _ => {}
    }
    let Some((suite_id, table_id)) = name.split_once('/') else {
        bail!("the mark {name:?} is neither \"run\", \"promises\", \"missed\" nor SUITE/TABLE");
    };
    ensure!(
        spec::suites().iter().any(|suite| suite.id == suite_id),
        "the mark {name:?} names no suite"
    );
    let Some(suite) = run.suite(suite_id) else {
        return Ok(format!("The run has no suite `{suite_id}`.\n"));
    };
    let table = suite.tables.iter().find(|table| table.id == table_id);
    match (table, &suite.error) {
        (Some(table), _) => Ok(of_table(suite, table)),
        (None, Some(error)) => Ok(format!("The suite ended with an error: {error}.\n")),
        (None, None) => {
            let known: Vec<_> = suite.tables.iter().map(|it| it.id.as_str()).collect();
            bail!(
                "the suite of the mark {name:?} has no such table, but {}",
                known.join(", ")
            )
        }
    }
}

/// On what it was measured, and how far the goals are.
fn of_run(run: &Run) -> String {
    let machine = &run.machine;
    let commit: String = run.sources.commit.chars().take(12).collect();
    let modified = if run.sources.modified {
        ", modified"
    } else {
        ""
    };
    let goals = goals::lines(run);
    let count = |met| goals.iter().filter(|it| it.goal.met == Some(met)).count();
    let mut text = format!(
        "Begun {}, {:.0} minutes; commit {commit}{modified}; {} cores, {}, guests under {}. {} goals are met, {} missed.\n",
        run.started,
        run.seconds / 60.0,
        machine.cores,
        escaped(&machine.model),
        machine.accelerator,
        count(true),
        count(false),
    );
    let busy = run.suites.iter().filter(|suite| !suite.busy.is_empty());
    let busy: Vec<_> = busy.map(|suite| format!("`{}`", suite.id)).collect();
    if !busy.is_empty() {
        text.push_str(&format!(
            "**A busy machine** measured {}: their absolute figures say little, and their ratios less than usual.\n",
            busy.join(", ")
        ));
    }
    text
}

fn of_table(suite: &SuiteRun, table: &Table) -> String {
    let busy = if suite.busy.is_empty() {
        ""
    } else {
        "; a busy machine"
    };
    let title = escaped(&table.title);
    let mut text = format!("{title}, {} rounds{busy}:\n\n", suite.rounds);
    for (number, line) in table.texts().iter().enumerate() {
        let cells: Vec<_> = line.iter().map(|cell| escaped(cell)).collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
        if number == 0 {
            text.push_str(&format!("|{}\n", "---|".repeat(line.len())));
        }
    }
    for note in &table.notes {
        text.push_str(&format!("\n{}\n", escaped(note)));
    }
    text
}

/// A text that is no markup.
fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for c in text.chars() {
        match c {
            '\n' | '\r' => safe.push(' '),
            '|' | '<' | '*' | '_' | '`' | '[' | '\\' => safe.extend(['\\', c]),
            c => safe.push(c),
        }
    }
    safe
}

/// The run beside the document of this checkout.
#[cfg(test)]
pub(super) fn kept_run() -> Run {
    Run::read(&record_of(&default_document().unwrap())).unwrap()
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::run;
    use super::*;

    /// Figures of the README: how their line begins, the id, what it is divided by, decimals, and the text.
    const IN_README: &str = "\
8-byte write;guest-latency/qnic-write-8/half-round-trip-us;1;1;| {} µs |
8-byte write;guest-latency/soft-roce-ib-write-lat-8/half-round-trip-us;1;0;Soft-RoCE {} µs
8-byte write;guest-latency/tcp-qperf-8/half-round-trip-us;1;0;TCP {} µs
8-byte write;guest-latency/ivshmem-8/half-round-trip-us;1;1;ivshmem {} µs
stream of 64 KiB;guest-streams/qnic-write-65536/stream-mb-s;1000;0;| {} GB/s |
stream of 64 KiB;guest-streams/soft-roce-ib-write-bw-65536/stream-mb-s;1000;3;Soft-RoCE {} GB/s
stream of 64 KiB;guest-streams/tcp-qperf-65536/stream-mb-s;1000;2;TCP {} GB/s
stream of 64 KiB;guest-streams/ivshmem-65536/stream-mb-s;1000;1;ivshmem {} GB/s
page in;page/remote-memory-in/page-us;1;0;| {} µs |
page in;page/nbd-in/page-us;1;0;TCP {} µs
page in;page/virtio-blk-in/page-us;1;0;disk {} µs";

    #[test]
    fn the_figures_of_the_readme_are_those_of_that_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
        let run = kept_run();
        let figures: Vec<_> = run.suites.iter().flat_map(SuiteRun::figures).collect();
        for said in IN_README.lines() {
            let [begins, id, divisor, decimals, text] = said.split(';').collect::<Vec<_>>()[..]
            else {
                panic!("{said}");
            };
            let line = readme
                .lines()
                .find(|line| line.starts_with(&format!("| {begins}")));
            let figure = figures.iter().find(|figure| figure.id.ends_with(id));
            let value = figure.unwrap().median() / divisor.parse::<f64>().unwrap();
            let value = format!("{value:.*}", decimals.parse().unwrap());
            let text = text.replace("{}", &value);
            assert!(
                line.is_some_and(|line| line.contains(&text)),
                "{text:?}: {line:?}"
            );
        }
    }

    #[test]
    fn the_tables_of_the_document_are_those_of_the_run_beside_it() {
        let text = read(&default_document().unwrap()).unwrap();
        let run = kept_run();
        assert!(
            fill(&text, &run).unwrap() == text,
            "cargo qnic bench tables docs/performance.json renews the tables of docs/performance.md"
        );
        assert_eq!(rounded(&run).unwrap(), run);
        for mark in ["run", "promises", "missed"] {
            assert!(text.contains(&format!("{BEGIN}{mark}{CLOSE}")), "{mark}");
        }
        assert!(text.lines().count() <= 400);
    }

    /// The tables that the document leaves out are on the page.
    #[test]
    fn the_page_of_the_record_has_all_of_it() {
        let run = kept_run();
        let page = page::of_run(&run);
        for suite in &run.suites {
            let tables = suite
                .tables
                .iter()
                .map(|it| format!("{}/{}", suite.id, it.id));
            let ids = suite.figures().map(|figure| figure.id.clone());
            for id in ids.chain(tables) {
                assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
            }
        }
    }

    #[test]
    fn a_table_stands_between_its_marks_and_the_prose_stays() {
        let text = "Before.\n<!-- bench host/transfers -->\nold\n<!-- /bench -->\nAfter.\n";
        let filled = fill(text, &run()).unwrap();
        assert_eq!(
            filled,
            "Before.\n<!-- bench host/transfers -->\n\
             Transfers, 3 rounds:\n\n\
             |  | bytes | time ns | (spread) | of memcpy | goal | NetVM µs |\n\
             |---|---|---|---|---|---|---|\n\
             | write | 8 | 10.00 | (9.00 … 11.00) | 2.00 | ≤ 1.5, missed | 5.50 |\n\
             | write | 64 | 20.00 | (19.00 … 21.00) | 2.00 | ≤ 1.5, missed | 5.50 |\n\
             <!-- /bench -->\nAfter.\n"
        );
        assert_eq!(fill(&filled, &run()).unwrap(), filled);
    }

    #[test]
    fn what_is_missing_or_busy_is_said() {
        let of = |mark: &str, run: &Run| fill(&format!("{BEGIN}{mark}{CLOSE}{END}"), run);
        assert!(of("vm/transfers", &run())
            .unwrap()
            .contains("no suite `vm`"));
        let mut busy = run();
        busy.suites[0].busy.push("others".into());
        assert!(of("host/transfers", &busy)
            .unwrap()
            .contains("a busy machine"));
        assert!(of("run", &busy).unwrap().contains("measured `host`"));
        busy.suites[0].error = Some("no room".into());
        busy.suites[0].tables.clear();
        assert!(of("host/transfers", &busy).unwrap().contains("no room"));
    }

    #[test]
    fn wrong_marks_are_errors() {
        let error = |text: &str| format!("{:#}", fill(text, &run()).unwrap_err());
        for (text, part) in [
            ("<!-- bench host/transfers -->\n", "has no <!-- /bench -->"),
            ("<!-- bench host/transfers\n -->", "a mark has no"),
            ("<!-- bench host/x --><!-- /bench -->", "but transfers"),
            ("<!-- bench x/y --><!-- /bench -->", "names no suite"),
            ("<!-- bench x --><!-- /bench -->", "neither"),
            (
                "<!-- bench run --><!-- bench run --><!-- /bench -->",
                "of its own",
            ),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
    }

    #[test]
    fn a_run_with_fewer_digits_is_read_again_and_says_the_same() {
        let mut exact = run();
        let figure = &mut exact.suites[0].tables[0].rows[0].figures[0];
        figure.samples = vec![1.23456789, 1234567.89, 0.0];
        figure.what = "a\n{\"id\": |".into();
        exact.suites[0].tables[0].rows[0].at.as_mut().unwrap().value = 1_048_576.0;
        let run = rounded(&exact).unwrap();
        let row = &run.suites[0].tables[0].rows[0];
        assert_eq!(row.figures[0].samples, [1.2346, 1234600.0, 0.0]);
        assert_eq!(row.at.as_ref().unwrap().value, 1_048_576.0);
        let text = compact(&run).unwrap();
        assert_eq!(serde_json::from_str::<Run>(&text).unwrap(), run);
        assert!(text.lines().count() > 4);
    }

    #[test]
    fn what_was_measured_is_no_markup() {
        assert_eq!(escaped("a|b\n<!-- *x*"), "a\\|b \\<!-- \\*x\\*");
    }

    #[test]
    fn the_command_renews_document_and_record() {
        let directory = tempfile::tempdir().unwrap();
        let [document, file] = ["d.md", "run.json"].map(|it| directory.path().join(it));
        std::fs::write(&document, "<!-- bench run -->\n<!-- /bench -->\n").unwrap();
        run().write(&file).unwrap();
        let options = Tables {
            run: file,
            document: Some(document.clone()),
            html: None,
        };
        super::run(&options).unwrap();
        assert!(read(&document).unwrap().contains("2 cores, A Processor"));
        // Again, from what is beside the document: nothing changes.
        let before = [&document, &record_of(&document)].map(|path| read(path).unwrap());
        let again = Tables {
            run: record_of(&document),
            ..options
        };
        super::run(&again).unwrap();
        let after = [&document, &record_of(&document)].map(|path| read(path).unwrap());
        assert_eq!(before, after);
    }
}
