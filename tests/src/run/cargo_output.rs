//! What `cargo test` prints, read line by line.
//!
//! The name and the end of each test come first; what a test that failed has printed comes when
//! all tests of its program are over:
//!
//! ```text
//! test a::b ... FAILED
//! failures:
//! ---- a::b stdout ----
//! thread 'a::b' panicked at …
//! failures:
//!     a::b
//! test result: FAILED. 12 passed; 1 failed; …
//! ```

use std::time::Duration;

use crate::harness::Counts;
use qnic_trials::{Case, Ended};

/// How many lines are kept of what a failed test printed.
const DETAILS: usize = 60;

/// How the tests of cargo ended, as far as they are read.
#[derive(Default)]
pub(super) struct CargoTests {
    /// How many ended in which way.
    pub(super) counts: Counts,
    /// Each by its name.
    pub(super) cases: Vec<Case>,
    /// The failed test whose output is being read.
    printing: Option<usize>,
}

impl CargoTests {
    /// Reads a line.
    pub(super) fn read(&mut self, line: &str) {
        if let Some(result) = parse_result(line) {
            self.counts += result;
        }
        if let Some(case) = parse_case(line) {
            self.cases.push(case);
        } else if let Some(name) = parse_heading(line) {
            // Programs have tests of the same name; the last one that failed is of this program.
            self.printing = self.cases.iter().rposition(|case| failed(case, name));
        } else if line == "failures:" {
            self.printing = None;
        } else if let Some(at) = self.printing {
            add_detail(&mut self.cases[at], line);
        }
    }
}

fn failed(case: &Case, name: &str) -> bool {
    case.has_failed() && case.name == name
}

/// Adds a line to the details, of which the last are kept.
fn add_detail(case: &mut Case, line: &str) {
    let Ended::Failed { details, .. } = &mut case.ended else {
        return;
    };
    if details.lines().count() >= DETAILS {
        let first = details.find('\n').map_or(details.len(), |end| end + 1);
        details.drain(..first);
    }
    details.push_str(line);
    details.push('\n');
}

/// Reads `---- module::name stdout ----`.
fn parse_heading(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Reads `test module::name ... ok`. How long it took is not said.
fn parse_case(line: &str) -> Option<Case> {
    let (name, ended) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let case = Case::passed("cargo", name, Duration::ZERO);
    match ended {
        "ok" => Some(case),
        "FAILED" => Some(case.failing("failed", "")),
        _ => ended.starts_with("ignored").then(|| case.skipped(ended)),
    }
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn parse_result(line: &str) -> Option<Counts> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, numbers) = rest.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split(';') {
        let mut words = part.split_whitespace();
        let (Some(number), Some(kind)) = (words.next(), words.next()) else {
            continue;
        };
        match (number.parse(), kind) {
            (Ok(number), "passed") => counts.passed = number,
            (Ok(number), "failed") => counts.failed = number,
            (Ok(number), "ignored") => counts.skipped = number,
            _ => (),
        }
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_cargo_are_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.05s";
        let counts = Counts {
            passed: 12,
            failed: 3,
            skipped: 1,
        };
        assert_eq!(parse_result(line), Some(counts));
        assert_eq!(parse_result("test a::b ... ok"), None);
    }

    #[test]
    fn cases_of_cargo_are_read() {
        let failed = parse_case("test a::b ... FAILED").unwrap();
        assert_eq!((failed.name.as_str(), failed.has_failed()), ("a::b", true));
        assert!(!parse_case("test a::b ... ok").unwrap().has_failed());
        let ignored = parse_case("test a ... ignored, needs time").unwrap();
        assert!(matches!(ignored.ended, Ended::Skipped(_)));
        assert_eq!(parse_case("test a::b … ok (1.0 s)"), None);
    }

    fn details<'a>(tests: &'a CargoTests, name: &str) -> &'a str {
        let case = tests.cases.iter().rfind(|case| case.name == name);
        match &case.unwrap().ended {
            Ended::Failed { details, .. } => details,
            _ => "",
        }
    }

    #[test]
    fn a_failed_test_has_what_it_printed() {
        let printed = "\
running 3 tests
test one ... FAILED
test two ... FAILED
test three ... ok

failures:

---- one stdout ----
line of one
---- two stdout ----
line of two

failures:
    one
    two

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        let mut tests = CargoTests::default();
        printed.lines().for_each(|line| tests.read(line));
        assert_eq!(details(&tests, "one"), "line of one\n");
        assert_eq!(details(&tests, "two"), "line of two\n\n");
        assert_eq!(details(&tests, "three"), "");
        assert_eq!(tests.counts.failed, 2);
    }

    #[test]
    fn the_last_lines_are_kept() {
        let mut tests = CargoTests::default();
        tests.read("test a ... FAILED");
        tests.read("---- a stdout ----");
        for line in 0..DETAILS + 5 {
            tests.read(&line.to_string());
        }
        let kept: Vec<&str> = details(&tests, "a").lines().collect();
        assert_eq!((kept.len(), kept[0]), (DETAILS, "5"));
    }
}
