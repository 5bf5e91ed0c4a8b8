//! Keys of artefacts: a hash of everything an artefact is made from.

use std::io;
use std::path::{Path, PathBuf};

use fs_err::File;
use sha2::{Digest, Sha256};
use walkdir::WalkDir;

use crate::error::Result;

/// Hexadecimal digits of a hash that go into the name of an artefact.
const DIGITS: usize = 20;

/// Collects the inputs of an artefact.
///
/// Every input is hashed with its length, so that two different lists of inputs
/// never hash alike.
pub(crate) struct Key(Sha256);

impl Key {
    /// A key for one kind of artefact, made by version `recipe` of the code.
    pub(crate) fn new(kind: &str, recipe: u32) -> Self {
        let mut key = Self(Sha256::new());
        key.add(kind);
        key.add(recipe.to_le_bytes());
        key
    }

    /// Adds one input.
    pub(crate) fn add(&mut self, input: impl AsRef<[u8]>) -> &mut Self {
        let input = input.as_ref();
        self.0.update((input.len() as u64).to_le_bytes());
        self.0.update(input);
        self
    }

    /// Adds the content of a file.
    pub(crate) fn add_file(&mut self, path: &Path) -> Result<&mut Self> {
        let mut hash = Sha256::new();
        io::copy(&mut File::open(path)?, &mut hash)?;
        Ok(self.add(hash.finalize()))
    }

    /// Adds names and contents of `files` below `base`, in their order.
    pub(crate) fn add_files(&mut self, base: &Path, files: &[PathBuf]) -> Result<&mut Self> {
        for file in files {
            self.add(file.as_os_str().as_encoded_bytes());
            self.add_file(&base.join(file))?;
        }
        Ok(self)
    }

    /// The key in hexadecimal, short enough for a file name.
    pub(crate) fn finish(self) -> String {
        let mut text = format!("{:x}", self.0.finalize());
        text.truncate(DIGITS);
        text
    }
}

/// All regular files below `base`, sorted, as paths relative to `base`; entries
/// whose name `skip` accepts are left out with all that is in them.
pub(crate) fn files_below(base: &Path, skip: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = WalkDir::new(base).min_depth(1).sort_by_file_name();
    for entry in entries
        .into_iter()
        .filter_entry(|entry| !skip(&entry.file_name().to_string_lossy()))
    {
        let entry = entry.map_err(io::Error::from)?;
        if entry.file_type().is_file() {
            let path = entry.path().strip_prefix(base);
            found.push(path.unwrap_or(entry.path()).to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use fs_err as fs;

    use super::*;

    fn key_of(inputs: &[&str]) -> String {
        let mut key = Key::new("test", 1);
        for input in inputs {
            key.add(input);
        }
        key.finish()
    }

    #[test]
    fn the_same_inputs_give_the_same_key_and_others_do_not() {
        assert_eq!(key_of(&["a", "b"]), key_of(&["a", "b"]));
        assert_ne!(key_of(&["a", "b"]), key_of(&["ab"]));
        assert_ne!(key_of(&["a", "b"]), key_of(&["b", "a"]));
        assert_ne!(key_of(&["a", ""]), key_of(&["a"]));
        assert_eq!(key_of(&[]).len(), DIGITS);
        assert_ne!(Key::new("x", 1).finish(), Key::new("x", 2).finish());
    }

    #[test]
    fn files_count_by_name_and_content_and_are_sorted() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::create_dir(dir.path().join("target")).unwrap();
        for name in ["b", "sub/c", "a", "target/junk"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let files = files_below(dir.path(), |name| name == "target").unwrap();
        assert_eq!(files, ["a", "b", "sub/c"].map(PathBuf::from));
        let key = |dir: &Path| {
            let mut key = Key::new("files", 1);
            key.add_files(dir, &files).unwrap();
            key.finish()
        };
        let before = key(dir.path());
        fs::write(dir.path().join("sub/c"), "other").unwrap();
        assert_ne!(before, key(dir.path()));
    }
}
