//! Every combination of settings and seeds, each a trial.
//!
//! ```text
//!   --vary loss=0,1%  --vary kernel=stable,backports  --seeds 2
//!        2          ×            2                    ×    2      = 8 cells
//! ```
//! The last axis varies fastest, the seed faster still. A cell is repeated by one command:
//! [`Matrix::command`].

mod carry;
mod pool;

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use qnic_cluster::ClusterSpec;

use crate::settings::{Setting, WrongSetting};

pub use carry::{carried, Machine};
pub use pool::run;

/// Most cells of a matrix.
const MAX_CELLS: usize = 10_000;

/// A key, and the values that it takes one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    key: String,
    values: Vec<String>,
}

/// What varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    axes: Vec<Axis>,
    /// Set in every cell.
    fixed: Vec<Setting>,
    seeds: Vec<u64>,
}

/// One combination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The value of each axis.
    pub settings: Vec<Setting>,
    /// Seed of all chance.
    pub seed: u64,
}

/// Why there is no such matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// A key is on two axes.
    #[error("--vary {0}: it varies twice")]
    Twice(String),
    /// There are too many combinations.
    #[error("the matrix has {0} cells, more than {MAX_CELLS}")]
    TooMany(u128),
    /// A value does not fit the cluster.
    #[error("--vary {0}")]
    Wrong(#[from] WrongSetting),
    /// A combination makes a cluster that cannot be.
    #[error("{cell}: {error}")]
    Unfit {
        /// The combination.
        cell: String,
        /// What the check of clusters says.
        error: qnic_cluster::ConfigError,
    },
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected KEY=VALUE,VALUE,… such as loss=0,1%,5%".to_owned();
        let (key, values) = text.split_once('=').ok_or_else(wrong)?;
        let values: Vec<_> = values.split(',').map(str::to_owned).collect();
        if key.is_empty() || values.iter().any(String::is_empty) {
            return Err(wrong());
        }
        let mut sorted = values.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("the value {} is there twice", twice[0]));
        }
        let key = key.to_owned();
        Ok(Self { key, values })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for setting in &self.settings {
            write!(f, "{setting} ")?;
        }
        write!(f, "seed={}", self.seed)
    }
}

impl Matrix {
    /// The matrix of `axes`, with `count` seeds from that of `spec` on; `fixed` holds in
    /// every cell. Checks every combination on `spec`.
    ///
    /// # Errors
    /// Returns an error for the first thing that is wrong.
    pub fn new(
        spec: &ClusterSpec,
        axes: Vec<Axis>,
        fixed: Vec<Setting>,
        first_seed: u64,
        count: u32,
    ) -> Result<Self, MatrixError> {
        for (index, axis) in axes.iter().enumerate() {
            if axes[..index].iter().any(|before| before.key == axis.key) {
                return Err(MatrixError::Twice(axis.key.clone()));
            }
        }
        let lengths = axes.iter().map(|axis| axis.values.len() as u128);
        let count = count.max(1);
        let cells = lengths.fold(u128::from(count), u128::saturating_mul);
        if cells > MAX_CELLS as u128 {
            return Err(MatrixError::TooMany(cells));
        }
        let seeds = (0..u64::from(count)).map(|index| first_seed.wrapping_add(index));
        let matrix = Self {
            axes,
            fixed,
            seeds: seeds.collect(),
        };
        for cell in matrix.cells() {
            let fits = matrix.spec_of(spec, &cell)?;
            fits.validate().map_err(|error| MatrixError::Unfit {
                cell: cell.to_string(),
                error,
            })?;
        }
        Ok(matrix)
    }

    /// The keys that vary.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(|axis| axis.key.as_str())
    }

    /// All combinations.
    pub fn cells(&self) -> Vec<Cell> {
        let mut rows = vec![Vec::new()];
        for axis in &self.axes {
            let longer = |row: &Vec<Setting>, value: &String| {
                let mut row = row.clone();
                row.push(Setting::new(&*axis.key, &**value));
                row
            };
            let each = |row: &Vec<Setting>| -> Vec<_> {
                axis.values.iter().map(|value| longer(row, value)).collect()
            };
            rows = rows.iter().flat_map(each).collect();
        }
        let seeds = |settings: &Vec<Setting>| -> Vec<_> {
            let cell = |seed: &u64| Cell {
                settings: settings.clone(),
                seed: *seed,
            };
            self.seeds.iter().map(cell).collect()
        };
        rows.iter().flat_map(seeds).collect()
    }

    /// All settings of a cell, those that do not vary first.
    pub fn settings_of(&self, cell: &Cell) -> Vec<Setting> {
        self.fixed.iter().chain(&cell.settings).cloned().collect()
    }

    /// The cluster of a cell.
    ///
    /// # Errors
    /// Returns an error if a setting does not fit.
    pub fn spec_of(&self, spec: &ClusterSpec, cell: &Cell) -> Result<ClusterSpec, WrongSetting> {
        let mut spec = spec.clone();
        for setting in self.settings_of(cell) {
            setting.apply(&mut spec)?;
        }
        spec.network.get_or_insert_default().seed = cell.seed;
        Ok(spec)
    }

    /// The command that repeats a cell: `before` are the words up to its settings, `after`
    /// those behind them.
    pub fn command(&self, cell: &Cell, before: &[OsString], after: &[OsString]) -> String {
        let quoted = |words: &[OsString]| -> Vec<String> {
            let words = words.iter();
            words.map(|word| quote(&word.to_string_lossy())).collect()
        };
        let mut words = quoted(before);
        for setting in self.settings_of(cell) {
            words.extend(["--set".to_owned(), quote(&setting.to_string())]);
        }
        words.extend(["--seed".to_owned(), cell.seed.to_string()]);
        words.extend(quoted(after));
        words.join(" ")
    }
}

/// `word` as a shell takes it.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,%+@".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qnic_cluster::NodeSpec;

    fn spec() -> ClusterSpec {
        ClusterSpec::new("c").with(NodeSpec::new("a"))
    }

    fn matrix(axes: &[&str], seeds: u32) -> Result<Matrix, String> {
        let axes: Result<Vec<Axis>, _> = axes.iter().map(|axis| axis.parse()).collect();
        let matrix = Matrix::new(&spec(), axes?, Vec::new(), 7, seeds);
        matrix.map_err(|error| error.to_string())
    }

    #[test]
    fn every_combination_is_a_cell() {
        let matrix = matrix(&["loss=0,1%", "kernel=stable,backports"], 2).unwrap();
        let cells: Vec<_> = matrix.cells().iter().map(Cell::to_string).collect();
        let expected = [
            "loss=0 kernel=stable seed=7",
            "loss=0 kernel=stable seed=8",
            "loss=0 kernel=backports seed=7",
            "loss=0 kernel=backports seed=8",
            "loss=1% kernel=stable seed=7",
            "loss=1% kernel=stable seed=8",
            "loss=1% kernel=backports seed=7",
            "loss=1% kernel=backports seed=8",
        ];
        assert_eq!(cells, expected);
        let last = matrix.spec_of(&spec(), &matrix.cells()[7]).unwrap();
        let network = last.network.unwrap();
        assert_eq!(
            (network.seed, network.default.to_string()),
            (8, "loss 1%".into())
        );
        assert_eq!(last.nodes[0].kernel.as_str(), "backports");
    }

    #[test]
    fn a_cell_is_repeated_by_one_command() {
        let axes = vec!["loss=5%".parse().unwrap()];
        let fixed = vec![Setting::new("env.N", "a b")];
        let matrix = Matrix::new(&spec(), axes, fixed, 3, 1).unwrap();
        let words = |text: &[&str]| -> Vec<OsString> { text.iter().map(OsString::from).collect() };
        let command = matrix.command(
            &matrix.cells()[0],
            &words(&["cargo", "qnic", "exec", "my file.toml"]),
            &words(&["--", "sh", "-c", "echo it's $N"]),
        );
        assert_eq!(
            command,
            r"cargo qnic exec 'my file.toml' --set 'env.N=a b' --set loss=5% --seed 3 -- sh -c 'echo it'\''s $N'"
        );
    }

    #[test]
    fn mistakes_are_told_before_anything_is_booted() {
        for (axes, expected) in [
            (&["loss"][..], "expected KEY=VALUE,VALUE"),
            (&["loss="], "expected KEY=VALUE,VALUE"),
            (&["loss=1%,,2%"], "expected KEY=VALUE,VALUE"),
            (&["loss=1%,2%,1%"], "the value 1% is there twice"),
            (&["loss=1%", "loss=2%"], "--vary loss: it varies twice"),
            (&["loss=1%,2"], "--vary loss=2: expected a percentage"),
            (&["speed=1"], "--vary speed=1: there is no such setting"),
            (
                &["cpus=1,100"],
                "cpus=100 seed=7: node[0].cpus: expected 1 to 64",
            ),
        ] {
            let error = matrix(axes, 1).unwrap_err();
            assert!(error.starts_with(expected), "{axes:?}: {error}");
        }
        let many = matrix(&["loss=1%,2%,3%"], 5000).unwrap_err();
        assert_eq!(many, "the matrix has 15000 cells, more than 10000");
    }

    proptest! {
        /// A shell gives back what was quoted.
        #[test]
        fn quoted_words_are_read_back(word in "[ -~]{0,20}") {
            let script = format!("printf %s {}", quote(&word));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            prop_assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
