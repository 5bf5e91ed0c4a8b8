//! The text files of a tree.

use std::io;
use std::path::{Path, PathBuf};

/// A text file.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its path below the root, with `/`.
    pub path: String,
    /// What is in it.
    pub text: String,
}

impl Source {
    /// Returns true if its name ends with this extension.
    pub fn is(&self, extension: &str) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|it| it == extension)
    }
}

/// The root of the checkout that this crate was built from.
pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads all files below `root` with one of these extensions ("": without one), in the order of their
/// paths, without hidden and build directories.
///
/// # Errors
/// Returns an error if a directory or a file cannot be read.
pub fn read(root: &Path, extensions: &[&str]) -> io::Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut paths = vec![root.to_owned()];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if !name.starts_with('.') && name != "target" && !name.starts_with("target-") {
                    paths.push(entry.path());
                }
            }
            continue;
        }
        let extension = path.extension().unwrap_or_default();
        if extensions.iter().any(|it| extension == *it) {
            let below = path.strip_prefix(root).unwrap_or(&path);
            sources.push(Source {
                path: below.to_string_lossy().into_owned(),
                text: std::fs::read_to_string(&path)?,
            });
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}
