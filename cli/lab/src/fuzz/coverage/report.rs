//! What llvm-cov exports, summed up for each crate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use qnic_cli::ui;

/// Crates that play the attacker: what runs of them says nothing.
const ATTACKERS: [&str; 1] = ["qnic-fuzz"];

/// How many there are of something, and how many of these ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Share {
    count: u64,
    covered: u64,
}

impl Share {
    fn add(&mut self, other: Share) {
        self.count += other.count;
        self.covered += other.covered;
    }

    /// As a percentage, rounded down, so that 100 % is all.
    fn percent(self) -> String {
        match self.count {
            0 => "-".to_owned(),
            count => {
                let tenths = self.covered * 1000 / count;
                format!("{}.{} %", tenths / 10, tenths % 10)
            }
        }
    }
}

/// What is counted of a file, and of a crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Summary {
    lines: Share,
    functions: Share,
    regions: Share,
}

impl Summary {
    fn add(&mut self, other: &Summary) {
        self.lines.add(other.lines);
        self.functions.add(other.functions);
        self.regions.add(other.regions);
    }
}

/// Summaries by the names of crates.
pub(super) type Sums = BTreeMap<String, Summary>;

/// `llvm-cov export -summary-only`, as far as it is of use here.
#[derive(Deserialize)]
struct Export {
    data: Vec<ExportedUnit>,
}

#[derive(Deserialize)]
struct ExportedUnit {
    files: Vec<ExportedFile>,
}

#[derive(Deserialize)]
struct ExportedFile {
    filename: PathBuf,
    summary: Summary,
}

/// `cargo metadata`, as far as it is of use here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
}

/// The crates of the workspace, by the folders of their sources.
pub(super) struct Crates(Vec<(PathBuf, String)>);

impl Crates {
    /// The crates that cargo's `metadata` names, but for those that play the attacker.
    pub(super) fn of(metadata: &str) -> Result<Self> {
        let metadata: Metadata = serde_json::from_str(metadata).context("cargo metadata")?;
        let ours = metadata.packages.into_iter();
        let ours = ours.filter(|package| !ATTACKERS.contains(&package.name.as_str()));
        let sources = |package: Package| {
            let folder = package.manifest_path.parent().unwrap_or(Path::new(""));
            (folder.join("src"), package.name)
        };
        Ok(Self(ours.map(sources).collect()))
    }

    /// Sums the files of `export` up for each crate. Other people's crates and helpers of tests,
    /// which are in folders `testing` or not below `src`, are left out.
    pub(super) fn sum(&self, export: &str) -> Result<Sums> {
        let export: Export = serde_json::from_str(export).context("what llvm-cov exports")?;
        let mut sums = Sums::new();
        for file in export.data.iter().flat_map(|unit| &unit.files) {
            if let Some(name) = self.owner(&file.filename) {
                sums.entry(name.to_owned()).or_default().add(&file.summary);
            }
        }
        Ok(sums)
    }

    /// The crate that a file belongs to, unless it is for tests.
    fn owner(&self, file: &Path) -> Option<&str> {
        let (name, inside) = self.0.iter().find_map(|(folder, name)| {
            let inside = file.strip_prefix(folder).ok()?;
            Some((name, inside))
        })?;
        (!inside.starts_with("testing")).then_some(name)
    }
}

/// What all targets reach together, and each.
#[derive(Default, Serialize)]
pub(super) struct Report {
    all: Sums,
    targets: Vec<(&'static str, Sums)>,
}

impl Report {
    /// Adds what one target reaches.
    pub(super) fn add(&mut self, target: &'static str, sums: Sums) {
        self.targets.push((target, sums));
    }

    /// Sets what they reach together.
    pub(super) fn all(&mut self, sums: Sums) {
        self.all = sums;
    }

    /// Two tables: what is reached of each crate by all targets, and which share of its lines by
    /// each.
    pub(super) fn table(&self) -> String {
        let header = ["crate", "lines", "reached", "functions", "regions"];
        let mut all = vec![header.map(str::to_owned).to_vec()];
        let mut each = vec![vec!["lines by".to_owned()]];
        each[0].extend(self.targets.iter().map(|(target, _)| (*target).to_owned()));
        for (name, sum) in &self.all {
            all.push(vec![
                name.clone(),
                sum.lines.count.to_string(),
                sum.lines.percent(),
                sum.functions.percent(),
                sum.regions.percent(),
            ]);
            let mut row = vec![name.clone()];
            row.extend(self.targets.iter().map(|(_, sums)| {
                let sum = sums.get(name).copied().unwrap_or_default();
                sum.lines.percent()
            }));
            each.push(row);
        }
        format!("{}\n{}", ui::aligned(&all), ui::aligned(&each))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"packages": [
        {"name": "qnic-device", "manifest_path": "/q/device/Cargo.toml", "edition": "2021"},
        {"name": "qnic-nic", "manifest_path": "/q/device/nic/Cargo.toml"},
        {"name": "qnic-fuzz", "manifest_path": "/q/fuzz/Cargo.toml"}]}"#;

    /// A file as llvm-cov 19 exports it.
    fn file(name: &str, lines: [u64; 2], functions: [u64; 2]) -> String {
        let share = |[count, covered]: [u64; 2]| {
            format!(r#"{{"count":{count},"covered":{covered},"percent":0}}"#)
        };
        let (lines, functions) = (share(lines), share(functions));
        let regions = r#"{"count":4,"covered":3,"notcovered":1,"percent":75}"#;
        format!(
            r#"{{"filename":"{name}","summary":{{"branches":{regions},"functions":{functions},
            "instantiations":{functions},"lines":{lines},"mcdc":{regions},"regions":{regions}}}}}"#
        )
    }

    fn export(files: &[String]) -> String {
        let files = files.join(",");
        format!(
            r#"{{"data":[{{"files":[{files}],"totals":{{}}}}],
            "type":"llvm.coverage.json.export","version":"2.0.1"}}"#
        )
    }

    fn crates() -> Crates {
        Crates::of(METADATA).unwrap()
    }

    #[test]
    fn files_are_summed_up_for_their_crates_and_no_others() {
        let files = [
            file("/q/device/src/a.rs", [10, 5], [2, 1]),
            file("/q/device/src/b/c.rs", [20, 20], [3, 3]),
            file("/q/device/nic/src/lib.rs", [1000, 999], [7, 0]),
            file("/q/device/tests/guest/mod.rs", [1, 1], [1, 1]),
            file("/q/device/nic/src/testing/net.rs", [1, 1], [1, 1]),
            file("/q/fuzz/src/lib.rs", [1, 1], [1, 1]),
            file("/elsewhere/snow/src/lib.rs", [1, 1], [1, 1]),
        ];
        let sums = crates().sum(&export(&files)).unwrap();
        assert_eq!(sums.len(), 2);
        let share = |count, covered| Share { count, covered };
        let device = Summary {
            lines: share(30, 25),
            functions: share(5, 4),
            regions: share(8, 6),
        };
        assert_eq!(sums["qnic-device"], device);
        assert_eq!(sums["qnic-nic"].lines, share(1000, 999));
    }

    #[test]
    fn the_table_has_a_row_for_each_crate_and_a_column_for_each_target() {
        let sums = |covered| {
            let files = [
                file("/q/device/src/a.rs", [10, covered], [2, 1]),
                file("/q/device/nic/src/a.rs", [1000, 999], [0, 0]),
            ];
            crates().sum(&export(&files)).unwrap()
        };
        let mut report = Report::default();
        report.add("udp", Sums::new());
        report.add("ring", sums(3));
        report.all(sums(10));
        let expected = "\
crate        lines  reached  functions  regions
qnic-device  10     100.0 %  50.0 %     75.0 %
qnic-nic     1000   99.9 %   -          75.0 %

lines by     udp  ring
qnic-device  -    30.0 %
qnic-nic     -    99.9 %
";
        assert_eq!(report.table(), expected);
    }

    #[test]
    fn what_is_no_export_is_an_error() {
        for text in ["", "{}", r#"{"data":[{"files":[{"filename":"a"}]}]}"#] {
            assert!(crates().sum(text).is_err(), "{text}");
        }
    }
}
