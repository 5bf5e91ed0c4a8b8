//! Inputs that are kept in the tree.

use std::io;
use std::path::{Path, PathBuf};

use crate::Target;

/// An input in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept {
    /// Where it lies.
    pub path: PathBuf,
    /// The input.
    pub data: Vec<u8>,
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
    paths.sort();
    let input = |path: PathBuf| {
        let data = std::fs::read(&path)?;
        Ok(Kept { path, data })
    };
    paths.into_iter().map(input).collect()
}
