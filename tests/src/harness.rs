//! Runs cases one after the other and counts how they ended.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

use anyhow::Result;
use qnic_trials::Case as Report;

/// One test.
pub struct Case {
    /// Its name, `group::what_holds`.
    pub name: &'static str,
    /// The test.
    pub run: fn() -> Result<()>,
}

/// The cases of a group: `cases! { "group": name => expression, … }`.
macro_rules! cases {
    ($group:literal: $($name:ident => $run:expr,)*) => {
        &[$($crate::harness::Case {
            name: concat!($group, "::", stringify!($name)),
            run: || $run,
        }),*]
    };
}
pub(crate) use cases;

/// The context of an error by which a case says that it cannot run here.
#[derive(Debug)]
pub struct Skip(pub &'static str);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
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
        let (passed, failed) = (self.passed, self.failed);
        write!(
            f,
            "{passed} passed, {failed} failed, {} skipped",
            self.skipped
        )
    }
}

/// How a run of tests went so far: the counts, and a case for each.
#[derive(Debug, Default)]
pub struct Results {
    /// How many ended in which way.
    pub counts: Counts,
    /// Those that are known by name.
    pub cases: Vec<Report>,
}

impl Results {
    /// Counts a test that could not run, and says why.
    pub fn skip(&mut self, name: &str, why: &str) {
        println!("test {name} … SKIPPED: {why}");
        self.counts.skipped += 1;
        self.cases.push(report(name, Duration::ZERO).skipped(why));
    }

    /// Runs a test, counts it, and says how it ended.
    pub fn run(&mut self, name: &str, test: impl FnOnce() -> Result<()>) {
        println!("test {name} …");
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(test))
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the test panicked")));
        let took = start.elapsed();
        let seconds = took.as_secs_f64();
        match result {
            Ok(()) => {
                println!("test {name} … ok ({seconds:.1} s)");
                self.counts.passed += 1;
                self.cases.push(report(name, took));
            }
            Err(error) if error.is::<Skip>() => self.skip(name, &format!("{error:#}")),
            Err(error) => {
                println!("test {name} … FAILED ({seconds:.1} s)");
                let causes: Vec<_> = error.chain().map(ToString::to_string).collect();
                for cause in &causes {
                    println!("    {cause}");
                }
                self.counts.failed += 1;
                let case = report(name, took);
                self.cases
                    .push(case.failing(error.to_string(), causes.join("\n")));
            }
        }
    }

    /// Adds what another program has counted, with the cases that it has named.
    pub fn add(&mut self, counts: Counts, cases: Vec<Report>) {
        self.counts += counts;
        self.cases.extend(cases);
    }
}

/// The report of the test `group::name`.
fn report(name: &str, took: Duration) -> Report {
    let (group, name) = name.split_once("::").unwrap_or(("", name));
    Report::passed(group, name, took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_counted_by_how_they_end() {
        let cases: &[Case] = cases! { "a":
            good => Ok(()),
            bad => Err(anyhow::anyhow!("wrong byte")),
            worse => panic!("a case may panic"),
            not_here => Err(anyhow::anyhow!("no file").context(Skip("no VM")).context("boot")),
        };
        let mut results = Results::default();
        for case in cases {
            results.run(case.name, case.run);
        }
        assert_eq!(results.counts.to_string(), "1 passed, 2 failed, 1 skipped");
        let failed = results.cases.iter().map(Report::has_failed);
        assert_eq!(failed.collect::<Vec<_>>(), [false, true, true, false]);
        assert_eq!(results.cases[1].class, "a");
        assert_eq!(cases[3].name, "a::not_here");
    }
}
