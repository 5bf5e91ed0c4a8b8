//! The workspace of a suite, in which its models run on copies of the files.

use std::collections::BTreeSet;
use std::process::Output;

use anyhow::{bail, ensure, Result};

use crate::scratch::Scratch;
use crate::suite::{Source, Suite};

/// What the models said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All passed.
    Passed,
    /// These failed.
    Failed(Vec<String>),
    /// There is no such program; what the compiler says.
    DoesNotCompile(String),
}

/// The workspace.
pub(crate) struct Workbench {
    suite: &'static Suite,
    scratch: Scratch,
}

impl Workbench {
    /// Makes the workspace below cargo's target directory.
    pub(crate) fn new(suite: &'static Suite) -> Result<Self> {
        let scratch = Scratch::new(suite.name);
        (suite.prepare)(&scratch)?;
        let bench = Workbench { suite, scratch };
        for source in suite.sources {
            bench.put(source, &source.read()?)?;
        }
        Ok(bench)
    }

    /// Makes `text` what stands for a source.
    pub(crate) fn put(&self, source: &Source, text: &str) -> Result<()> {
        self.scratch.write(source.copy, text)
    }

    /// Runs all models.
    pub(crate) fn run(&self) -> Result<Outcome> {
        let built = self.cargo(&["--no-run"])?;
        if !built.status.success() {
            let message = String::from_utf8_lossy(&built.stderr).into_owned();
            return Ok(Outcome::DoesNotCompile(message));
        }
        let mut arguments = vec!["--"];
        arguments.extend(self.suite.filter);
        arguments.push("--test-threads=2");
        let output = self.cargo(&arguments)?;
        if output.status.success() {
            return Ok(Outcome::Passed);
        }
        let failed = failed_models(&output);
        ensure!(
            !failed.is_empty(),
            "the models ended without a result: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Outcome::Failed(failed.into_iter().collect()))
    }

    /// Checks that the sources as they are pass: otherwise nothing that fails says
    /// anything about a mutant.
    pub(crate) fn check_sources(&self) -> Result<()> {
        let outcome = self.run()?;
        match outcome {
            Outcome::Passed => Ok(()),
            Outcome::Failed(models) => bail!("without any mutation, models fail: {models:?}"),
            Outcome::DoesNotCompile(message) => bail!("without any mutation: {message}"),
        }
    }

    fn cargo(&self, arguments: &[&str]) -> Result<Output> {
        self.scratch.cargo(&[self.suite.test, arguments].concat())
    }
}

/// The models that have panicked, by the names of their threads in
/// `thread 'exclusion::name' (17) panicked at …`. Some mutants make loom panic while
/// it cleans up, which ends the process without a list of results.
fn failed_models(output: &Output) -> BTreeSet<String> {
    [&output.stdout, &output.stderr]
        .into_iter()
        .flat_map(|text| {
            let text = String::from_utf8_lossy(text).into_owned();
            let names = text.lines().filter_map(|line| {
                let (name, _) = line.strip_prefix("thread '")?.split_once('\'')?;
                name.contains("::").then(|| name.to_owned())
            });
            names.collect::<Vec<_>>()
        })
        .collect()
}
