//! The sources of the kernel module, and a copy of them to build in.
//!
//! The copy outlives a build: only files whose content changed are written, so
//! that make and cargo build again only what depends on them.

use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::cache::{remove_file, remove_tree, update};
use crate::error::{Error, Result};
use crate::key::{files_below, Key};

/// Directories of the repository that the module is made from.
const DIRECTORIES: [&str; 3] = ["abi", "guest-driver/driver", "guest-driver/linux"];
/// Files that a complete clone has.
const NEEDED: [&str; 4] = [
    MANIFEST,
    "guest-driver/linux/Kbuild",
    "guest-driver/linux/kernel/Cargo.toml",
    "guest-driver/linux/kernel/Cargo.lock",
];
/// The workspace's manifest, from which `abi` and the core inherit.
const MANIFEST: &str = "Cargo.toml";
/// The directory with the module's Kbuild file.
pub(crate) const KBUILD: &str = "guest-driver/linux";
/// The manifest of the module's Rust part, a workspace of its own.
pub(crate) const GLUE: &str = "guest-driver/linux/kernel";
/// Crates that sources come with when they are a package for DKMS, and the lock file of the standard library that
/// these are for.
pub(crate) const VENDOR: &str = "vendor";
pub(crate) const VENDOR_LOCK: &str = "rust-library.lock";
/// In the copy: which toolchain its results are from.
pub(crate) const TOOLCHAIN: &str = ".toolchain";

/// The sources in a clone of the repository.
pub(crate) struct Sources<'a> {
    repo: &'a Path,
    files: Vec<PathBuf>,
}

impl<'a> Sources<'a> {
    /// Lists the sources in `repo`.
    ///
    /// # Errors
    /// [`Error::MissingSource`] if this is no complete clone.
    pub(crate) fn of(repo: &'a Path) -> Result<Self> {
        let no_file = NEEDED.iter().find(|file| !repo.join(file).is_file());
        let no_dir = DIRECTORIES.iter().find(|dir| !repo.join(dir).is_dir());
        if let Some(missing) = no_file.or(no_dir) {
            return Err(Error::MissingSource(repo.join(missing)));
        }
        let files = list(repo)?;
        Ok(Self { repo, files })
    }

    /// A hash of names and contents.
    pub(crate) fn hash(&self) -> Result<String> {
        self.hash_in(self.repo)
    }

    fn hash_in(&self, base: &Path) -> Result<String> {
        let mut key = Key::new("sources", 1);
        key.add_files(base, &self.files)?;
        Ok(key.finish())
    }

    /// The lock file of the module's Rust part.
    pub(crate) fn lock_file(&self) -> PathBuf {
        self.repo.join(GLUE).join("Cargo.lock")
    }

    /// The crates that these sources come with, if they are those for the standard library whose lock file is `lock`.
    pub(crate) fn vendor_for(&self, lock: &Path) -> Option<PathBuf> {
        let ours = fs::read(self.repo.join(VENDOR_LOCK)).ok()?;
        let same = fs::read(lock).is_ok_and(|theirs| theirs == ours);
        let vendor = self.repo.join(VENDOR);
        (same && vendor.is_dir()).then_some(vendor)
    }

    /// Makes `copy` hold these sources; results of an earlier build in it stay if
    /// they are from the same `toolchain`.
    ///
    /// # Errors
    /// [`Error::SourcesChanged`] if what was copied does not hash to `expected`.
    pub(crate) fn copy_to(&self, copy: &Path, toolchain: &str, expected: &str) -> Result<()> {
        let stamp = copy.join(TOOLCHAIN);
        if !fs::read(&stamp).is_ok_and(|old| old == toolchain.as_bytes()) {
            remove_tree(copy)?;
        }
        if copy.is_dir() {
            let old = list(copy)?;
            for file in old.iter().filter(|file| !self.files.contains(file)) {
                remove_file(&copy.join(file))?;
            }
        }
        for file in &self.files {
            update(&copy.join(file), &fs::read(self.repo.join(file))?)?;
        }
        fs::write(stamp, toolchain)?;
        if self.hash_in(copy)? != expected {
            return Err(Error::SourcesChanged(self.repo.to_owned()));
        }
        Ok(())
    }
}

/// The files of a clone or a copy that are sources.
fn list(base: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![PathBuf::from(MANIFEST)];
    for directory in DIRECTORIES {
        let below = files_below(&base.join(directory), is_product)?;
        files.extend(below.iter().map(|file| Path::new(directory).join(file)));
    }
    Ok(files)
}

/// Removes from `copy` what make built, for another kernel perhaps, and leaves what
/// cargo built.
pub(crate) fn remove_objects(copy: &Path) -> Result<()> {
    for entry in fs::read_dir(copy.join(KBUILD))? {
        let entry = entry?;
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && is_product(&entry.file_name().to_string_lossy()) {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

/// Whether a file or directory is something that a build made.
fn is_product(name: &str) -> bool {
    const SUFFIXES: [&str; 6] = [".o", ".ko", ".mod", ".mod.c", ".cmd", ".a"];
    name.starts_with('.')
        || ["target", "cargo-target", "Module.symvers", "modules.order"].contains(&name)
        || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn repo(dir: &Path) {
        let files = [
            "Cargo.toml",
            "abi/src/lib.rs",
            "abi/limits/src/lib.rs",
            "abi/shared/src/lib.rs",
            "guest-driver/driver/src/lib.rs",
            "guest-driver/linux/Kbuild",
            "guest-driver/linux/shim.o",
            "guest-driver/linux/kernel/Cargo.toml",
            "guest-driver/linux/kernel/Cargo.lock",
        ];
        for file in files {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
    }

    #[test]
    fn products_are_no_sources_and_what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        repo(dir.path());
        let sources = Sources::of(dir.path()).unwrap();
        assert_eq!(sources.files.len(), 8, "{:?}", sources.files);
        fs::remove_file(dir.path().join("guest-driver/linux/kernel/Cargo.lock")).unwrap();
        let error = Sources::of(dir.path()).err().unwrap();
        assert!(error.to_string().contains("kernel/Cargo.lock is missing"));
    }

    /// Copies the sources in `repo` to `copy`.
    fn copy(repo: &Path, copy: &Path, toolchain: &str) {
        let sources = Sources::of(repo).unwrap();
        let hash = sources.hash().unwrap();
        sources.copy_to(copy, toolchain, &hash).unwrap();
    }

    #[test]
    fn sources_that_change_meanwhile_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("repo"), dir.path().join("copy"));
        repo(&here);
        let sources = Sources::of(&here).unwrap();
        let hash = sources.hash().unwrap();
        fs::write(here.join("abi/src/lib.rs"), "new").unwrap();
        let result = sources.copy_to(&there, "t", &hash);
        assert!(matches!(result, Err(Error::SourcesChanged { .. })));
    }

    /// A package for DKMS has the hash of the clone that it was made from.
    #[test]
    fn crates_are_taken_from_the_sources_if_they_are_for_the_same_library() {
        let dir = tempfile::tempdir().unwrap();
        repo(dir.path());
        let lock = dir.path().join("lock");
        fs::write(&lock, "new").unwrap();
        let before = Sources::of(dir.path()).unwrap().hash().unwrap();
        assert_eq!(Sources::of(dir.path()).unwrap().vendor_for(&lock), None);
        fs::create_dir(dir.path().join(VENDOR)).unwrap();
        for (theirs, found) in [("old", false), ("new", true)] {
            fs::write(dir.path().join(VENDOR_LOCK), theirs).unwrap();
            let sources = Sources::of(dir.path()).unwrap();
            assert_eq!(sources.vendor_for(&lock).is_some(), found);
            assert_eq!(sources.hash().unwrap(), before);
        }
    }

    #[test]
    fn a_copy_keeps_results_and_times_of_what_did_not_change() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("repo"), dir.path().join("copy"));
        repo(&here);
        copy(&here, &there, "t1");
        fs::write(there.join("guest-driver/linux/qnic.o"), "result").unwrap();
        let same = there.join("Cargo.toml");
        let old = SystemTime::UNIX_EPOCH;
        fs::File::open(&same).unwrap().set_modified(old).unwrap();
        fs::remove_file(here.join("abi/src/lib.rs")).unwrap();
        fs::write(here.join("abi/other.rs"), "new").unwrap();

        copy(&here, &there, "t1");
        assert_eq!(fs::metadata(&same).unwrap().modified().unwrap(), old);
        assert!(there.join("guest-driver/linux/qnic.o").is_file());
        assert!(!there.join("abi/src/lib.rs").exists());
        assert!(there.join("abi/other.rs").is_file());

        remove_objects(&there).unwrap();
        assert!(!there.join("guest-driver/linux/qnic.o").exists());
        assert!(there.join("guest-driver/linux/Kbuild").is_file());

        let built = there.join("guest-driver/linux/cargo-target");
        fs::create_dir(&built).unwrap();
        copy(&here, &there, "t1");
        assert!(built.is_dir());
        copy(&here, &there, "t2");
        assert!(!built.exists());
    }
}
