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

/// A row of the document.
#[derive(Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Its code.
    pub code: &'a str,
    /// How much of the promise holds.
    pub state: &'a str,
    /// The tests that show it, as [`tests`] names them.
    pub tests: Vec<&'a str>,
}

impl Row<'_> {
    /// Returns true if all of the promise holds, by the row.
    pub fn holds(&self) -> bool {
        self.state.split(|c: char| !c.is_alphabetic()).next() == Some("yes")
    }
}

/// The rows of the document, lines of the form `| code | promise | state | tests |`; rows about
/// performance have no tests.
pub fn rows(document: &str) -> Vec<Row<'_>> {
    let row = |line| {
        let mut cells = str::split(line, " | ").map(|cell| cell.trim_matches(['|', ' ']));
        let (code, state) = (cells.next()?, cells.nth(1)?);
        let tests = cells.next().unwrap_or_default().split(", ");
        let tests = tests.filter(|name| !name.is_empty());
        (codes(code) == [code]).then(|| Row {
            code,
            state,
            tests: tests.map(|name| name.trim_matches('`')).collect(),
        })
    };
    document.lines().filter_map(row).collect()
}

/// The names of the tests of a file: `part::function` for each part of its path, and
/// `group::case` for the cases of `cargo qnic test`.
pub fn tests(source: &Source) -> Vec<String> {
    let lines: Vec<_> = source.text.lines().collect();
    let functions = test_functions(&lines).into_iter();
    let parts = |(_, function)| {
        let parts = source.path.split(['/', '.']);
        parts.map(move |part| format!("{part}::{function}"))
    };
    functions.flat_map(parts).chain(cases(&lines)).collect()
}

/// The cases of lists `cases! { "group":`, lines `name => …` or `name: 2 => …`.
fn cases(lines: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut group = None;
    for line in lines {
        if let Some((_, rest)) = line.split_once("cases! { \"") {
            group = rest.split('"').next();
        }
        group = group.filter(|_| line.trim_end() != "};");
        let entry = line.strip_prefix("    ").filter(|it| it.contains(" => "));
        let name = entry.and_then(|entry| entry.split([' ', ':']).next());
        if let Some((group, name)) = group.zip(name.filter(|name| !name.is_empty())) {
            found.push(format!("{group}::{name}"));
        }
    }
    found
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
        let head = "| id | promise | state | tests |\n|---|---|---|---|\n";
        let document = format!(
            "{head}| N2 | that | yes: so | `a::b`, `vm::c` |\n| N3 | x | no | |\n\
             | P4 | y | yesterday |\n| N | x | y |"
        );
        let found = rows(&document);
        let codes: Vec<_> = found.iter().map(|row| (row.code, row.state)).collect();
        assert_eq!(
            codes,
            [("N2", "yes: so"), ("N3", "no"), ("P4", "yesterday")]
        );
        assert_eq!(found[0].tests, ["a::b", "vm::c"]);
        assert!(found[1].tests.is_empty() && found[2].tests.is_empty());
        let holds: Vec<_> = found.iter().map(Row::holds).collect();
        assert_eq!(holds, [true, false, false]);
    }

    #[test]
    fn tests_have_the_parts_of_their_path_and_cases_their_group() {
        let text = "#[test]\nfn one() {\n}\nfn two() {\n}\n\
                    const VM: &[Case] = cases! { \"vm\":\n    first => f(),\n    \
                    second: 2 => on(|| {\n        Some(3) => 4,\n    }),\n};\n    third => f(),\n";
        let (path, text) = ("a/b.rs".to_owned(), text.to_owned());
        let found = tests(&Source { path, text });
        let all = ["a::one", "b::one", "rs::one", "vm::first", "vm::second"];
        assert_eq!(found, all);
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
