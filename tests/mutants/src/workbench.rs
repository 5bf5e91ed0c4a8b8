//! A small workspace in which the models run on a copy of the two files.
//!
//! ```text
//!   mutants/driver/src/shadow.rs       copy, mutated or not
//!   mutants/nic/src/page_table.rs      copy, mutated or not
//!   mutants/driver: tests/page_lock    the checkout's own
//! ```
//! The crates have the names of the real ones and nothing else of them, so that a
//! mutant builds in seconds. Versions are those of the checkout's lock file.

use std::collections::BTreeSet;
use std::fs;
use std::process::Output;

use anyhow::{ensure, Context, Result};

use crate::scratch::{checkout, Scratch};

/// One of the two files that the models run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The driver's side.
    Shadow,
    /// The NIC's side.
    PageTable,
}

impl Source {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Shadow, Self::PageTable];

    /// Name of the file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shadow => "shadow.rs",
            Self::PageTable => "page_table.rs",
        }
    }

    /// Its text in the checkout.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(self) -> Result<String> {
        let path = checkout().join(match self {
            Self::Shadow => "guest-driver/core/src/shadow.rs",
            Self::PageTable => "device-backend/nic/src/page_table.rs",
        });
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    fn crate_dir(self) -> &'static str {
        match self {
            Self::Shadow => "driver",
            Self::PageTable => "nic",
        }
    }
}

/// What the models said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All passed.
    Passed,
    /// These failed.
    Failed(Vec<String>),
    /// There is no such program.
    DoesNotCompile,
}

/// The workspace.
pub(crate) struct Workbench(Scratch);

impl Workbench {
    /// Makes the workspace below cargo's target directory.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(crate) fn new() -> Result<Self> {
        let scratch = Scratch::new("models");
        let root = checkout().canonicalize().context("find the checkout")?;
        let root = root.to_str().context("the checkout's path is not UTF-8")?;
        scratch.write(
            "Cargo.toml",
            "[workspace]\nresolver = \"2\"\nmembers = [\"driver\", \"nic\"]\n\
             [profile.dev]\nopt-level = 1\n",
        )?;
        scratch.write("nic/Cargo.toml", &manifest("qnic-nic", root, ""))?;
        let tests = format!(
            "[dev-dependencies]\nloom = \"0.7\"\nqnic-nic = {{ path = \"../nic\" }}\n\
             [[test]]\nname = \"page_lock\"\n\
             path = \"{root}/guest-driver/core/tests/page_lock/main.rs\"\n"
        );
        scratch.write("driver/Cargo.toml", &manifest("qnic-driver", root, &tests))?;
        scratch.write("nic/src/lib.rs", "pub mod page_table;\n")?;
        scratch.write("driver/src/lib.rs", "pub mod shadow;\n")?;
        let lock = fs::read_to_string(checkout().join("Cargo.lock")).context("read Cargo.lock")?;
        scratch.write("Cargo.lock", &lock)?;
        let bench = Workbench(scratch);
        for source in Source::ALL {
            bench.put(source, &source.read()?)?;
        }
        Ok(bench)
    }

    /// Makes `text` what stands for a source.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn put(&self, source: Source, text: &str) -> Result<()> {
        let path = format!("{}/src/{}", source.crate_dir(), source.name());
        self.0.write(&path, text)
    }

    /// Runs all models.
    ///
    /// # Errors
    /// Cargo cannot be started, or says something that is not understood.
    pub(crate) fn run(&self) -> Result<Outcome> {
        if !self.cargo(&["--no-run"])?.status.success() {
            return Ok(Outcome::DoesNotCompile);
        }
        let output = self.cargo(&["--", "--test-threads=2"])?;
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

    fn cargo(&self, arguments: &[&str]) -> Result<Output> {
        let models = ["test", "-p", "qnic-driver", "--test", "page_lock"];
        self.0.cargo(&[&models[..], arguments].concat())
    }
}

fn manifest(name: &str, root: &str, rest: &str) -> String {
    format!(
        "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
         [dependencies]\nqnic-abi = {{ path = \"{root}/abi\" }}\n{rest}"
    )
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

/// Checks that the sources as they are pass: otherwise nothing that fails says
/// anything about a mutant.
///
/// # Errors
/// They do not.
pub(crate) fn check_sources(bench: &Workbench) -> Result<()> {
    let outcome = bench.run()?;
    ensure!(
        outcome == Outcome::Passed,
        "without any mutation: {outcome:?}"
    );
    Ok(())
}
