//! An installed qnic: the command, and beside it all that it would otherwise build from a clone.
//!
//! ```text
//! lib/qnic/qnic, qnic-device, …    the command and its programs
//!          source/                 the kernel module's sources, as a package for DKMS
//!          modules/RELEASE/KEY/    modules that were built of them before ([`crate::prebuilt`])
//! ```
//!
//! Invariant: the directory may be anywhere. A program finds what is beside it by its own path, and an installed
//! program never looks for the clone that it was built from.

use std::env;
use std::path::{Path, PathBuf};

/// The directory with the sources, in that of the programs.
const SOURCE: &str = "source";
/// The directory with the modules.
const MODULES: &str = "modules";
/// A file that each package for DKMS has.
const MARK: &str = "dkms.conf";

/// The directory of an installed qnic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    dir: PathBuf,
}

impl Installed {
    /// The directory that the running program is installed in, if it is: the sources of the module are beside it.
    pub fn of_this_program() -> Option<Self> {
        // The path is that of the file itself, whatever link it was started by.
        Self::beside(&env::current_exe().ok()?)
    }

    fn beside(program: &Path) -> Option<Self> {
        let installed = Self::at(program.parent()?);
        installed.source().join(MARK).is_file().then_some(installed)
    }

    /// An installation in `dir`, which need not be complete yet.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Where the program or library `name` is.
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Where the sources of the kernel module are.
    pub fn source(&self) -> PathBuf {
        self.dir.join(SOURCE)
    }

    /// Where the modules are.
    pub fn modules(&self) -> PathBuf {
        self.dir.join(MODULES)
    }
}

#[cfg(test)]
mod tests {
    use fs_err as fs;

    use super::*;

    #[test]
    fn a_program_is_installed_if_the_sources_of_the_module_are_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("qnic");
        assert_eq!(Installed::beside(&program), None);
        let installed = Installed::at(dir.path());
        fs::create_dir(installed.source()).unwrap();
        assert_eq!(Installed::beside(&program), None);
        fs::write(installed.source().join(MARK), "").unwrap();
        assert_eq!(Installed::beside(&program), Some(installed));
    }

    /// Tests run from a clone.
    #[test]
    fn a_program_that_cargo_has_built_is_not_installed() {
        assert_eq!(Installed::of_this_program(), None);
    }
}
