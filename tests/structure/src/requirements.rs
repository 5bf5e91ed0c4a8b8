//! Requirement codes: where docs/requirements.md defines them, and who cites them.
//!
//! A test cites a code if the code stands
//! - in a function under `#[test]`, or in the docs of one: the test is that function;
//! - anywhere else in a file of tests: the test is that file. Besides `tests/` these are
//!   `simulator/`, whose seeds `cargo test` runs, and `apps/`, the programs that the cases of
//!   several machines run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::sources::Source;

/// Types of the crate `zerocopy` that look like codes.
const TYPES: [&str; 3] = ["U16", "U32", "U64"];

/// A row of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The code.
    pub id: String,
    /// What it promises.
    pub promise: String,
    /// How much of it holds.
    pub state: String,
}

/// A place that cites a code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Citation {
    /// The code.
    pub code: String,
    /// File and line.
    pub place: String,
    /// The test that the place belongs to: `file` or `file: function`.
    pub test: Option<String>,
}

/// The rows of the document: lines of the form `| code | promise | state |`.
pub fn rows(document: &str) -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<_> = line
            .trim()
            .trim_matches('|')
            .split(" | ")
            .map(str::trim)
            .collect();
        match cells[..] {
            [id, promise, state] if codes(id) == [id] => Some(Row {
                id: id.to_owned(),
                promise: promise.to_owned(),
                state: state.to_owned(),
            }),
            _ => None,
        }
    };
    document.lines().filter_map(row).collect()
}

/// All citations of a file.
pub fn citations(source: &Source) -> Vec<Citation> {
    let lines: Vec<_> = source.text.lines().collect();
    let functions = match source.is("rs") {
        true => test_functions(&lines),
        false => Vec::new(),
    };
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let function = functions.iter().find(|(span, _)| span.contains(&index));
        let test = match function {
            Some((_, name)) => Some(format!("{}: {name}", source.path)),
            None if is_test(source) => Some(source.path.clone()),
            None => None,
        };
        found.extend(codes(line).into_iter().map(|code| Citation {
            code,
            place: format!("{}:{}", source.path, index + 1),
            test: test.clone(),
        }));
    }
    found
}

/// The tests that cite each code.
pub fn tests(citations: &[Citation]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut tests: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for citation in citations {
        if let Some(test) = &citation.test {
            tests
                .entry(citation.code.as_str())
                .or_default()
                .insert(test.as_str());
        }
    }
    tests
}

fn is_test(source: &Source) -> bool {
    let path = format!("/{}", source.path);
    let folders = ["/tests/", "/simulator/", "/apps/"];
    source.is("rs")
        && (path.ends_with("tests.rs") || folders.iter().any(|folder| path.contains(folder)))
}

/// The codes of a line, "N1 to N3" as three of them.
fn codes(line: &str) -> Vec<String> {
    let mut codes: Vec<String> = Vec::new();
    let mut range = false;
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for word in line.split_inclusive(|c| !is_part(c)) {
        let name = word.trim_end_matches(|c| !is_part(c));
        match (parse(name), codes.last().and_then(|last| parse(last))) {
            (Some((letter, last)), Some((from, first))) if range && from == letter => {
                codes.extend((first + 1..=last).map(|number| format!("{letter}{number}")));
            }
            (Some(_), _) => codes.push(name.to_owned()),
            (None, _) => {}
        }
        range = word == "to " || range && name.is_empty();
    }
    codes
}

fn parse(name: &str) -> Option<(char, u32)> {
    let letter = name
        .chars()
        .next()
        .filter(|letter| "QHSNUXP".contains(*letter))?;
    let digits = &name[1..];
    let right = (1..=2).contains(&digits.len()) && !TYPES.contains(&name);
    Some((letter, digits.parse().ok().filter(|_| right)?))
}

/// The functions under `#[test]`: their lines, docs included, and names. Relies on the
/// layout that rustfmt gives: the last line of a function is indented as its first.
fn test_functions(lines: &[&str]) -> Vec<(RangeInclusive<usize>, String)> {
    let is_head = |line: &str| {
        let line = line.trim_start();
        line.starts_with("//") || line.starts_with("#[")
    };
    let function = |index: usize| {
        let before = lines[..index]
            .iter()
            .rev()
            .take_while(|line| is_head(line))
            .count();
        let fn_line = index
            + lines[index..]
                .iter()
                .position(|line| line.contains("fn "))?;
        let (indent, rest) = lines[fn_line].split_once("fn ")?;
        let indent = indent.len() - indent.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let length = lines[fn_line..]
            .iter()
            .position(|line| line.trim_end() == end)?;
        let name = rest.split(['(', '<']).next()?;
        Some((index - before..=fn_line + length, name.to_owned()))
    };
    let is_attribute = |line: &&str| line.trim() == "#[test]";
    let attributes = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| is_attribute(line));
    attributes
        .filter_map(|(index, _)| function(index))
        .collect()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn codes_are_words_and_ranges() {
        assert_eq!(
            codes("//! Absent (N13 to N15, U2; NetVM §8)."),
            ["N13", "N14", "N15", "U2"]
        );
        assert_eq!(codes("U16, U64, xN1, N1x, N100, N_1, to N3"), ["N3"]);
        assert_eq!(codes("N1 has to be, N3"), ["N1", "N3"]);
    }

    #[test]
    fn rows_are_lines_of_tables() {
        let found = rows("| id | promise | state |\n|---|---|---|\n| N1 | a | b | no |\n| N2 | that | yes |\n| N | x | y |\n");
        assert_eq!(found.len(), 1);
        assert_eq!(
            (&*found[0].id, &*found[0].promise, &*found[0].state),
            ("N2", "that", "yes")
        );
    }

    #[test]
    fn a_test_is_a_function_or_a_file() {
        let text = "//! N1\n\n/// N2\n#[test]\nfn one() {\n    // N3\n}\n\n/// N4\nfn none() {}\n";
        let cited = |path: &str| {
            let source = Source {
                path: path.into(),
                text: text.into(),
            };
            let found = citations(&source);
            found
                .into_iter()
                .map(|citation| citation.test.unwrap_or_default())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            cited("a/src/b.rs"),
            ["", "a/src/b.rs: one", "a/src/b.rs: one", ""]
        );
        assert_eq!(cited("a/tests/b.rs")[0], "a/tests/b.rs");
        assert_eq!(cited("a/tests/b.rs")[1], "a/tests/b.rs: one");
    }
}
