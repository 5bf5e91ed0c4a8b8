//! Kernel modules that were built before, and came with an installed qnic.
//!
//! ```text
//! modules/RELEASE/KEY/qnic.ko, …     KEY is made of release and sources
//! ```
//!
//! With one of them a guest boots without compilers, headers and crates. A module whose sources have been changed has
//! another key: it is built like any other.

use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::error::Result;
use crate::key::Key;

/// Version of the code that builds modules; part of their keys.
const RECIPE: u32 = 1;

/// Modules by release and sources.
#[derive(Clone, Debug)]
pub(crate) struct Prebuilt {
    dir: PathBuf,
}

impl Prebuilt {
    /// The modules in `dir`, which need not exist.
    pub(crate) fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The kernels that there are modules for.
    pub(crate) fn releases(&self) -> Vec<String> {
        // Without the directory there are none.
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut releases: Vec<_> = names.collect();
        releases.sort();
        releases
    }

    /// Where the modules for the kernel `release` of the sources with the hash `sources` are, if they are here.
    pub(crate) fn find(&self, release: &str, sources: &str) -> Option<PathBuf> {
        let dir = self.path(release, sources);
        dir.is_dir().then_some(dir)
    }

    /// Adds modules, which are in the directory `built`.
    pub(crate) fn add(&self, release: &str, sources: &str, built: &Path) -> Result<()> {
        let dir = self.path(release, sources);
        fs::create_dir_all(&dir)?;
        for entry in fs::read_dir(built)? {
            let entry = entry?;
            fs::copy(entry.path(), dir.join(entry.file_name()))?;
        }
        Ok(())
    }

    fn path(&self, release: &str, sources: &str) -> PathBuf {
        let mut key = Key::new("prebuilt", RECIPE);
        key.add(release).add(sources);
        self.dir.join(release).join(key.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_found_by_its_kernel_and_the_sources_it_was_built_of() {
        let dir = tempfile::tempdir().unwrap();
        let (built, prebuilt) = (
            dir.path().join("b"),
            Prebuilt::at(dir.path().join("modules")),
        );
        assert!(prebuilt.releases().is_empty());
        fs::create_dir(&built).unwrap();
        fs::write(built.join("qnic.ko"), "module").unwrap();
        for release in ["7.2-x", "6.12-x"] {
            prebuilt.add(release, "s1", &built).unwrap();
        }
        assert_eq!(prebuilt.releases(), ["6.12-x", "7.2-x"]);
        let found = prebuilt.find("6.12-x", "s1").unwrap();
        assert_eq!(fs::read_to_string(found.join("qnic.ko")).unwrap(), "module");
        assert_ne!(prebuilt.find("7.2-x", "s1").unwrap(), found);
        assert_eq!(prebuilt.find("6.12-x", "s2"), None);
        assert_eq!(prebuilt.find("6.12-y", "s1"), None);
    }
}
