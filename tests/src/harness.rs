//! Runs cases one after the other and counts how they ended.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

use anyhow::Result;

/// How a case that did not fail ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It could not run here, and why.
    Skipped(String),
}

/// One test.
pub struct Case {
    /// Its name, `group::what_holds`.
    pub name: &'static str,
    /// The test.
    pub run: fn() -> Result<Verdict>,
}

/// How many tests ended in which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed.
    pub passed: usize,
    /// Failed.
    pub failed: usize,
    /// Skipped.
    pub skipped: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counts {
            passed,
            failed,
            skipped,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Runs the cases whose names contain `filter`; says of each how it ended.
pub fn run(cases: &[Case], filter: &str) -> Counts {
    let mut counts = Counts::default();
    for case in cases.iter().filter(|case| case.name.contains(filter)) {
        println!("test {} …", case.name);
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(case.run))
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the test panicked")));
        report(case.name, &result, start.elapsed());
        match result {
            Ok(Verdict::Passed) => counts.passed += 1,
            Ok(Verdict::Skipped(_)) => counts.skipped += 1,
            Err(_) => counts.failed += 1,
        }
    }
    counts
}

fn report(name: &str, result: &Result<Verdict>, took: Duration) {
    let took = took.as_secs_f64();
    match result {
        Ok(Verdict::Passed) => println!("test {name} … ok ({took:.1} s)"),
        Ok(Verdict::Skipped(why)) => println!("test {name} … SKIPPED: {why}"),
        Err(error) => {
            println!("test {name} … FAILED ({took:.1} s)");
            for cause in error.chain() {
                println!("    {cause}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_counted_by_how_they_end() {
        let cases = [
            Case {
                name: "a::good",
                run: || Ok(Verdict::Passed),
            },
            Case {
                name: "a::bad",
                run: || Err(anyhow::anyhow!("wrong byte")),
            },
            Case {
                name: "a::worse",
                run: || panic!("a case may panic"),
            },
            Case {
                name: "b::not_here",
                run: || Ok(Verdict::Skipped("no VM".into())),
            },
        ];
        let counts = run(&cases, "");
        assert_eq!(counts.to_string(), "1 passed, 2 failed, 1 skipped");
        assert_eq!(
            run(&cases, "b::").to_string(),
            "0 passed, 0 failed, 1 skipped"
        );
    }
}
