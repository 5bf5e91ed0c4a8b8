//! A directory below cargo's target directory in which mutants are built: a
//! workspace of its own, with a target directory of its own.
//!
//! A file is written only if its text changes, so that cargo builds again what a
//! mutant has changed and nothing else, whatever an earlier campaign has left.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result};

/// The checkout that this tool was built from.
pub(crate) fn checkout() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Such a directory.
pub(crate) struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    /// The directory of that name. It is made when something is written to it.
    pub(crate) fn new(name: &str) -> Self {
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| checkout().join("target"), PathBuf::from);
        Scratch {
            dir: target.join("mutants").join(name),
        }
    }

    /// Writes a file, by its path below the workspace.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<()> {
        update(&self.root().join(path), text.as_bytes())
    }

    /// The text of a file, by its path below the workspace.
    pub(crate) fn read(&self, path: &str) -> Result<String> {
        let path = self.root().join(path);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    /// Makes the workspace a copy of the checkout.
    pub(crate) fn copy_checkout(&self) -> Result<()> {
        mirror(checkout(), &self.root())
    }

    /// What cargo says in the workspace. It does not ask registries.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Result<Output> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let (command, rest) = arguments.split_first().context("no command for cargo")?;
        Command::new(cargo)
            .args([command, "--offline", "--quiet"])
            .args(rest)
            .current_dir(self.root())
            .env("CARGO_TARGET_DIR", self.dir.join("target"))
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .output()
            .context("start cargo")
    }

    fn root(&self) -> PathBuf {
        self.dir.join("workspace")
    }
}

/// Writes a file if that changes it.
fn update(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let dir = path.parent().context("a file without a directory")?;
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(path, bytes))
        .with_context(|| format!("write {}", path.display()))
}

/// Makes a directory the same as another, without what is hidden and without what
/// cargo has built.
fn mirror(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    let mut names = BTreeSet::new();
    for name in entries(from)? {
        if name == "target" || name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let (source, copy) = (from.join(&name), to.join(&name));
        if source.is_dir() {
            mirror(&source, &copy)?;
        } else {
            let bytes = fs::read(&source).with_context(|| format!("read {}", source.display()))?;
            update(&copy, &bytes)?;
        }
        names.insert(name);
    }
    for name in entries(to)? {
        if !names.contains(&name) {
            let old = to.join(&name);
            let removed = match old.is_dir() {
                true => fs::remove_dir_all(&old),
                false => fs::remove_file(&old),
            };
            removed.with_context(|| format!("remove {}", old.display()))?;
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> Result<Vec<OsString>> {
    let list = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let names = list.map(|entry| Ok(entry?.file_name()));
    let names: std::io::Result<Vec<_>> = names.collect();
    names.with_context(|| format!("list {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_has_what_the_source_has_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let write = |path: &str, text: &str| update(&from.join(path), text.as_bytes()).unwrap();
        write("a/b.rs", "one");
        write("a/old.rs", "two");
        write("target/x", "built");
        write(".git/x", "hidden");
        mirror(&from, &to).unwrap();
        fs::remove_file(from.join("a/old.rs")).unwrap();
        let before = fs::metadata(to.join("a/b.rs")).unwrap().modified().unwrap();
        write("c.rs", "three");
        mirror(&from, &to).unwrap();
        assert_eq!(entries(&to.join("a")).unwrap(), ["b.rs"]);
        let mut names = entries(&to).unwrap();
        names.sort();
        assert_eq!(names, ["a", "c.rs"]);
        let after = fs::metadata(to.join("a/b.rs")).unwrap().modified().unwrap();
        assert_eq!(before, after, "what is the same is not written again");
    }
}
