//! A run as it is written to a file and read from it (docs/benchmark.md).

use std::io::{Read, Write};
use std::path::Path;

use anyhow::{ensure, Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::figures::{Figure, Table};
use super::load::Load;
use super::machine::{Machine, Sources};

/// What the file says that it is.
pub(super) const FORMAT: &str = "qnic-bench";

/// The version of the schema: another one when a field changes its meaning or goes. Fields that
/// come in addition do not change it.
pub(super) const VERSION: u32 = 1;

/// Bytes of the largest file that is read.
const LARGEST: u64 = 64 << 20;

/// All that one call of `qnic bench` has measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Run {
    /// Always `qnic-bench`.
    pub(super) format: String,
    /// The version of this schema.
    pub(super) version: u32,
    /// When it began, in UTC, as RFC 3339 has it.
    pub(super) started: String,
    /// How long it took, until this file was written.
    pub(super) seconds: f64,
    /// What it was measured on.
    pub(super) machine: Machine,
    /// What was measured.
    pub(super) sources: Sources,
    /// The suites, in the order in which they ran.
    pub(super) suites: Vec<SuiteRun>,
}

/// One suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct SuiteRun {
    /// Its name on the command line.
    pub(super) id: String,
    /// What it measures.
    pub(super) title: String,
    /// Rounds that each figure has.
    pub(super) rounds: usize,
    /// How long it took.
    pub(super) seconds: f64,
    /// What else the machine did.
    pub(super) load: Load,
    /// Why these are figures of a busy machine; empty for a quiet one.
    pub(super) busy: Vec<String>,
    /// Why it ended before all was measured; none if all was.
    pub(super) error: Option<String>,
    /// What was measured.
    pub(super) tables: Vec<Table>,
}

impl SuiteRun {
    /// All its figures.
    pub(super) fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.tables.iter().flat_map(Table::figures)
    }
}

impl Run {
    /// A run that has measured nothing yet.
    pub(super) fn new(started: String, machine: Machine, sources: Sources) -> Self {
        Run {
            format: FORMAT.to_owned(),
            version: VERSION,
            started,
            seconds: 0.0,
            machine,
            sources,
            suites: Vec::new(),
        }
    }

    /// Some suite has not measured all.
    pub(super) fn has_failed(&self) -> bool {
        self.suites.iter().any(|suite| suite.error.is_some())
    }

    /// The suite of that name.
    pub(super) fn suite(&self, id: &str) -> Option<&SuiteRun> {
        self.suites.iter().find(|suite| suite.id == id)
    }

    /// Reads a run from a file.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let read = || -> Result<Self> {
            let mut text = String::new();
            let mut file = std::fs::File::open(path)?.take(LARGEST + 1);
            file.read_to_string(&mut text)?;
            ensure!(
                text.len() as u64 <= LARGEST,
                "it has more than {LARGEST} bytes"
            );
            Self::parse(&text)
        };
        read().with_context(|| format!("cannot read {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let head: Head = serde_json::from_str(text).context("it is no file of qnic bench")?;
        ensure!(
            head.format == FORMAT,
            "it is no file of qnic bench, but of the format {:?}",
            head.format
        );
        ensure!(
            head.version == VERSION,
            "it has version {} of the schema, and this program reads version {VERSION}",
            head.version
        );
        serde_json::from_str(text).context("it is damaged")
    }

    /// Writes it to a file.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        write_whole(path, &text)
    }
}

/// Fails if no file can be written there, which should not show after all the measuring.
pub(super) fn check_writable(path: &Path) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let opened = options.append(true).create(true).open(path);
    opened
        .map(drop)
        .with_context(|| format!("write {}", path.display()))
}

/// Puts `text` into a file, which has all of it or is as it was before.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<()> {
    let write = || -> Result<()> {
        // What is no file, such as a pipe, cannot be replaced.
        if path.exists() && !path.is_file() {
            return Ok(std::fs::write(path, text)?);
        }
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let mut file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(parent.unwrap_or(Path::new(".")))?;
        file.write_all(text.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::figures::{bytes, identify, Role, Row};
    use super::super::goal::{Goal, Of};
    use super::super::machine::tests::machine;
    use super::*;

    /// A run of one suite with a table of some curves, on a quiet machine.
    pub(in crate::bench) fn run() -> Run {
        let sources = Sources {
            commit: "0123456789abcdef".into(),
            modified: false,
        };
        let row = |size: usize, ns: f64| {
            let time = Figure::new("time", "ns", vec![ns, ns + 1.0, ns - 1.0]);
            let goal = Goal::at_most(Of::Ratio, 1.5).code(Some("P1"));
            let mut time = time.ratio_to("of memcpy", &[ns / 2.0]).goal(&goal);
            time.main = true;
            let mut netvm = Figure::new("NetVM", "µs", vec![5.5]);
            (netvm.role, netvm.better) = (Role::Published, None);
            Row::new("write", bytes(size), [time, netvm])
        };
        let mut tables = vec![Table::new(
            "transfers",
            "Transfers",
            vec![row(8, 10.0), row(64, 20.0)],
        )];
        identify("host", &mut tables);
        let mut run = Run::new("2026-11-25T08:00:00Z".into(), machine(), sources);
        run.suites.push(SuiteRun {
            id: "host".into(),
            title: "Transfers in host mode".into(),
            rounds: 3,
            seconds: 12.0,
            load: Load::default(),
            busy: Vec::new(),
            error: None,
            tables,
        });
        run
    }

    #[test]
    fn what_is_written_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.json");
        let run = run();
        run.write(&path).unwrap();
        assert_eq!(Run::read(&path).unwrap(), run);
        // It is replaced as a whole.
        run.write(&path).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_run_of_this_version_is_refused() {
        let error = |text: &str| format!("{:#}", Run::parse(text).unwrap_err());
        for foreign in ["", "{", "[1, 2]", "{\"format\": \"other\", \"version\": 1}"] {
            assert!(
                error(foreign).contains("no file of qnic bench"),
                "{foreign}"
            );
        }
        let newer = Run {
            version: VERSION + 1,
            ..run()
        };
        let newer = error(&serde_json::to_string(&newer).unwrap());
        assert!(newer.contains("has version 2"), "{newer}");
        assert!(error("{\"format\": \"qnic-bench\", \"version\": 1}").contains("damaged"));
        let missing = Run::read(Path::new("/no/such/file")).unwrap_err();
        assert!(format!("{missing:#}").contains("/no/such/file"));
    }

    #[test]
    fn the_schema_in_the_documents_is_that_of_the_program() {
        let schema = schemars::schema_for!(Run);
        let mut text = serde_json::to_string_pretty(&schema).unwrap();
        text.push('\n');
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmark.schema.json");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let documented = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            documented == text,
            "UPDATE_EXPECT=1 cargo test -p qnic-lab schema renews docs/benchmark.schema.json; \
             raise VERSION if a field has gone or means something else"
        );
    }
}
