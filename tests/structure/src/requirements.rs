//! Requirement codes: where docs/requirements.md defines them, and what cites them.
//!
//! A test cites a code if the code stands
//! - in a function under `#[test]`, or in the docs of one: the test is that function;
//! - anywhere else in a file of tests: the test is that file. Besides `tests/` these are
//!   `tests/simulator/`, whose seeds `cargo test` runs, and `tests/apps/`, the programs that the cases of
//!   several machines run.

use std::ops::RangeInclusive;

use crate::sources::Source;

/// Types of the crate `zerocopy` that look like codes.
const TYPES: [&str; 3] = ["U16", "U32", "U64"];

/// A place that cites a code.
#[derive(Debug)]
pub struct Citation {
    /// The code.
    pub code: String,
    /// File and line.
    pub place: String,
    /// The test that the place belongs to: `file` or `file: function`.
    pub test: Option<String>,
}

/// The rows of the document, lines of the form `| code | promise | state |`: their codes, and
/// how much of each promise holds.
pub fn rows(document: &str) -> Vec<(&str, &str)> {
    let row = |line| {
        let mut cells = str::split(line, " | ");
        let code = cells.next()?.trim_matches(['|', ' ']);
        let state = cells.nth(1)?.trim_matches(['|', ' ']);
        (codes(code) == [code]).then_some((code, state))
    };
    document.lines().filter_map(row).collect()
}

/// All citations of a file.
pub fn citations(source: &Source) -> Vec<Citation> {
    let path = &source.path;
    let lines: Vec<_> = source.text.lines().collect();
    let functions = test_functions(&lines);
    let folders = ["/tests/", "/simulator/", "/apps/"];
    let is_test = source.is("rs")
        && (path.ends_with("tests.rs") || folders.iter().any(|it| format!("/{path}").contains(it)));
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let function = functions.iter().find(|(span, _)| span.contains(&index));
        let function = function.map(|(_, name)| format!("{path}: {name}"));
        let test = function.or_else(|| is_test.then(|| path.clone()));
        found.extend(codes(line).into_iter().map(|code| Citation {
            code,
            place: format!("{path}:{}", index + 1),
            test: test.clone(),
        }));
    }
    found
}

/// The codes of a line, "N1 to N3" as three of them.
fn codes(line: &str) -> Vec<String> {
    let mut codes = Vec::new();
    let (mut last, mut range) = (None, false);
    for word in line.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let code = parse(word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        if let Some((letter, number)) = code {
            let from = match last {
                Some((before, from)) if range && before == letter => from + 1,
                _ => number,
            };
            codes.extend((from..=number).map(|number| format!("{letter}{number}")));
            last = code;
        }
        range = word == "to ";
    }
    codes
}

fn parse(name: &str) -> Option<(char, u32)> {
    let letter = name.chars().next()?;
    let right = "QHSNUXP".contains(letter) && name.len() <= 3 && !TYPES.contains(&name);
    Some((letter, name[1..].parse().ok().filter(|_| right)?))
}

/// The functions under `#[test]`: their lines, docs included, and names. Relies on the
/// layout that rustfmt gives: the last line of a function is indented as its first.
fn test_functions(lines: &[&str]) -> Vec<(RangeInclusive<usize>, String)> {
    let is_head = |line: &&&str| line.trim().starts_with("//") || line.trim().starts_with("#[");
    let function = |index: usize| {
        let first = index - lines[..index].iter().rev().take_while(is_head).count();
        let start = (index..lines.len()).find(|line| lines[*line].contains("fn "))?;
        let (indent, rest) = lines[start].split_once("fn ")?;
        let end = format!("{indent}}}");
        let last = (start..lines.len()).find(|line| lines[*line].trim_end() == end)?;
        Some((first..=last, rest.split(['(', '<']).next()?.to_owned()))
    };
    let attributes = (0..lines.len()).filter(|index| lines[*index].trim() == "#[test]");
    attributes.filter_map(function).collect()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn codes_are_words_and_ranges() {
        let line = "//! Absent (N13 to N15, U2; NetVM §8). U16, xN1, N1x, N100, N_1, to N3";
        assert_eq!(codes(line), ["N13", "N14", "N15", "U2", "N3"]);
        assert_eq!(codes("N1 has to be, N3, é"), ["N1", "N3"]);
    }

    #[test]
    fn rows_are_lines_of_tables() {
        let found =
            rows("| id | promise | state |\n|---|---|---|\n| N2 | that | yes |\n| N | x | y |");
        assert_eq!(found, [("N2", "yes")]);
    }

    #[test]
    fn a_test_is_a_function_or_a_file() {
        let text = "//! N1\n\n/// N2\n#[test]\nfn one() {\n    // N3\n}\n\n/// N4\nfn none() {}\n";
        let cited = |path: &str| {
            let (path, text) = (path.to_owned(), text.to_owned());
            citations(&Source { path, text })
                .into_iter()
                .map(|it| it.test.unwrap_or_default())
        };
        let one = "a/src/b.rs: one";
        assert!(cited("a/src/b.rs").eq(["", one, one, ""]));
        assert!(cited("a/tests/b.rs")
            .take(2)
            .eq(["a/tests/b.rs", "a/tests/b.rs: one"]));
    }
}
