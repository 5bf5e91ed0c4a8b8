//! Runs cases one after the other and counts how they ended.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Instant;

use anyhow::Result;

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

impl Counts {
    /// Counts a test that could not run, and says why.
    pub fn skip(&mut self, name: &str, why: &str) {
        println!("test {name} … SKIPPED: {why}");
        self.skipped += 1;
    }

    /// Runs a test, counts it, and says how it ended.
    pub fn run(&mut self, name: &str, test: impl FnOnce() -> Result<()>) {
        println!("test {name} …");
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(test))
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the test panicked")));
        let took = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                println!("test {name} … ok ({took:.1} s)");
                self.passed += 1;
            }
            Err(error) if error.is::<Skip>() => self.skip(name, &format!("{error:#}")),
            Err(error) => {
                println!("test {name} … FAILED ({took:.1} s)");
                for cause in error.chain() {
                    println!("    {cause}");
                }
                self.failed += 1;
            }
        }
    }
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
        let mut counts = Counts::default();
        for case in cases {
            counts.run(case.name, case.run);
        }
        assert_eq!(counts.to_string(), "1 passed, 2 failed, 1 skipped");
        assert_eq!(cases[3].name, "a::not_here");
    }
}
