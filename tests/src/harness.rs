//! Runs a case, and counts how cases ended.

use std::env;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use qnic_trials::Case as Report;

/// One test.
pub(crate) struct Case {
    /// Its name, `group::what_holds`.
    pub name: &'static str,
    /// How many processors it keeps busy, rounded down.
    pub processors: usize,
    /// The test.
    pub run: fn() -> Result<()>,
}

/// The cases of a group: `cases! { "group": name => expression, … }`. A case that keeps more or
/// less than one processor busy says so: `name: 2 => expression`.
macro_rules! cases {
    ($group:literal: $($name:ident $(: $processors:literal)? => $run:expr,)*) => {
        &[$($crate::harness::Case {
            name: concat!($group, "::", stringify!($name)),
            processors: $crate::harness::declared(&[$($processors)?]),
            run: || $run,
        }),*]
    };
}
pub(crate) use cases;

/// What a case declares, or what one that declares nothing needs.
pub(crate) const fn declared(processors: &[usize]) -> usize {
    match processors {
        [declared, ..] => *declared,
        [] => 1,
    }
}

/// Checks and tests have all features of the workspace: what is built for the one serves the other.
pub(crate) const FEATURES: &str = "--workspace --features qnic/tokio";

/// Cargo in a checkout as it builds tests: by the compiler that lints what it compiles, if that is installed. `cargo
/// clippy` would compile all sources again, up to the code of the machine, and learn nothing else.
pub(crate) fn testing_cargo(root: &Path) -> (Command, bool) {
    let mut cargo = qnic_cluster::cargo(root);
    let linter = linter(root);
    if let Some(linter) = &linter {
        cargo.env("RUSTC_WORKSPACE_WRAPPER", linter);
    }
    (cargo, linter.is_some())
}

fn linter(root: &Path) -> Option<PathBuf> {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--print", "sysroot"]).current_dir(root);
    let sysroot = String::from_utf8(rustc.output().ok()?.stdout).ok()?;
    let linter = Path::new(sysroot.trim()).join("bin/clippy-driver");
    linter.exists().then_some(linter)
}

/// The variable by which programs of tests know of `--all`: they do all, where they do a part otherwise.
pub(crate) const LONG: &str = "QNIC_LONG";

/// Returns true if this run has `--all`.
pub(crate) fn is_long() -> bool {
    env::var_os(LONG).is_some()
}

/// The context of an error by which a case says that it cannot run here.
#[derive(Debug)]
pub(crate) struct Skip(pub &'static str);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// How many tests ended in which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
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
pub(crate) struct Results {
    /// How many ended in which way.
    pub counts: Counts,
    /// Those that are known by name.
    pub cases: Vec<Report>,
}

impl Results {
    /// Counts a test that could not run, and says why.
    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        println!("test {name} … SKIPPED: {why}");
        self.counts.skipped += 1;
        self.cases.push(report(name, Duration::ZERO).skipped(why));
    }

    /// Runs a test, counts it, and says how it ended.
    pub(crate) fn run(&mut self, name: &str, test: impl FnOnce() -> Result<()>) {
        println!("test {name} …");
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(test))
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the test panicked")));
        self.count(name, start.elapsed(), result);
    }

    /// Counts a test that has ended, and says how.
    pub(crate) fn count(&mut self, name: &str, took: Duration, result: Result<()>) {
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
                for cause in causes.iter().flat_map(|cause| cause.lines()) {
                    println!("    {cause}");
                }
                self.counts.failed += 1;
                let case = report(name, took);
                self.cases
                    .push(case.failing(error.to_string(), causes.join("\n")));
            }
        }
    }

    /// Counts a case that another process has run with [`Self::run`], by what it printed and
    /// whether it ended well. One that did not come to say how it ended has failed.
    pub(crate) fn add_output(
        &mut self,
        name: &str,
        took: Duration,
        output: &str,
        ended_well: bool,
    ) {
        let start = format!("test {name} … ");
        let said = output.rfind(&start).map(|at| &output[at + start.len()..]);
        let said = said.unwrap_or_default();
        // Another case may have run behind it in that process.
        let said = said.split("\ntest ").next().unwrap_or_default();
        let case = report(name, took);
        if let Some(why) = said.strip_prefix("SKIPPED: ").filter(|_| ended_well) {
            self.counts.skipped += 1;
            self.cases.push(case.skipped(why.trim_end()));
        } else if ended_well && said.starts_with("ok ") {
            self.counts.passed += 1;
            self.cases.push(case);
        } else {
            let causes = said.starts_with("FAILED ").then(|| said.lines().skip(1));
            let causes = causes.into_iter().flatten();
            let causes: Vec<_> = causes.map_while(|line| line.strip_prefix("    ")).collect();
            let message = *causes.first().unwrap_or(&"its process ended before it");
            if causes.is_empty() {
                println!("test {name} … FAILED: {message}");
            }
            self.counts.failed += 1;
            self.cases.push(case.failing(message, causes.join("\n")));
        }
    }

    /// Adds what another program has counted, with the cases that it has named.
    pub(crate) fn add(&mut self, counts: Counts, cases: Vec<Report>) {
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
    use qnic_trials::Ended;

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

    #[test]
    fn a_case_says_how_many_processors_it_keeps_busy() {
        let cases: &[Case] = cases! { "a":
            one => Ok(()),
            two: 2 => Ok(()),
            waits: 0 => Ok(()),
        };
        let processors = cases.iter().map(|case| case.processors);
        assert_eq!(processors.collect::<Vec<_>>(), [1, 2, 0]);
    }

    #[test]
    fn a_case_of_another_process_is_counted_by_what_it_said() {
        let mut results = Results::default();
        let mut add = |output: &str, ended_well| {
            results.add_output("a::b", Duration::ZERO, output, ended_well);
            let case = results.cases.last().unwrap();
            (results.counts.to_string(), case.ended.clone())
        };
        let failed = |message: &str, details: &str| Ended::Failed {
            message: message.to_owned(),
            details: details.to_owned(),
        };
        let begun = "test a::b …\nbooting\n";
        let (counts, ended) = add(&format!("{begun}test a::b … ok (1.0 s)\n"), true);
        assert_eq!(
            (&*counts, ended),
            ("1 passed, 0 failed, 0 skipped", Ended::Passed)
        );
        let (_, ended) = add(&format!("{begun}test a::b … SKIPPED: no ip\n"), true);
        assert_eq!(ended, Ended::Skipped("no ip".to_owned()));
        let said = "test a::b … FAILED (1.0 s)\n    wrong byte\n    at 7\nconsole\n";
        let (_, ended) = add(&format!("{begun}{said}"), false);
        assert_eq!(ended, failed("wrong byte", "wrong byte\nat 7"));
        // It was killed, or ended otherwise than it says.
        let (_, ended) = add(begun, false);
        assert_eq!(ended, failed("its process ended before it", ""));
        let (counts, _) = add(&format!("{begun}test a::b … ok (1.0 s)\n"), false);
        assert_eq!(counts, "1 passed, 3 failed, 1 skipped");
    }
}
