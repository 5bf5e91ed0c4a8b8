//! Inputs that are kept in the tree.

use std::io;
use std::path::{Path, PathBuf};

use crate::Target;

/// Ending of the text that says why a regression still fails.
const WHY: &str = "why";

/// An input in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept {
    /// Where it lies.
    pub path: PathBuf,
    /// The input.
    pub data: Vec<u8>,
    /// Why it still breaks a promise, if it does.
    pub why: Option<String>,
}

/// The folder of this crate.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Target {
    /// Folder of its corpus.
    pub fn corpus(&self) -> PathBuf {
        folder().join("corpus").join(self.name)
    }

    /// Folder of its regressions.
    pub fn regressions(&self) -> PathBuf {
        folder().join("regressions").join(self.name)
    }

    /// Its corpus and its regressions, in the order of their names.
    ///
    /// # Errors
    /// Returns the error of the operating system; a folder that is missing is empty.
    pub fn kept(&self) -> io::Result<Vec<Kept>> {
        let mut kept = read(&self.corpus())?;
        kept.extend(read(&self.regressions())?);
        Ok(kept)
    }
}

/// The inputs of a folder, in the order of their names.
///
/// # Errors
/// Returns the error of the operating system; a folder that is missing is empty.
pub fn read(folder: &Path) -> io::Result<Vec<Kept>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_none_or(|ending| ending != WHY));
    paths.sort();
    let input = |path: PathBuf| {
        let why = std::fs::read_to_string(path.with_extension(WHY)).ok();
        let data = std::fs::read(&path)?;
        Ok(Kept { path, data, why })
    };
    paths.into_iter().map(input).collect()
}
