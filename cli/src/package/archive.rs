//! Files that hold a tree: the tarball, and what says whether a download is whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::tree::said;

/// The file with the checksums.
const SUMS: &str = "SHA256SUMS";

/// Seconds since 1970 that all files of packages have: `SOURCE_DATE_EPOCH`, else the time of the last commit in `clone`.
pub(super) fn epoch(clone: &Path) -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        let number = text.trim().parse();
        return number
            .with_context(|| format!("SOURCE_DATE_EPOCH={text}: it is no number of seconds"));
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(clone);
    let why = "there is no time of a last commit: set SOURCE_DATE_EPOCH to the seconds since 1970 that files shall have";
    let text = said(&mut git).context(why)?;
    let text = String::from_utf8_lossy(&text);
    text.trim().parse().context(why)
}

/// Packs `tree` under its own name into a file of `dir`, which it returns.
pub(super) fn tar(tree: &Path, dir: &Path, epoch: u64) -> Result<PathBuf> {
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    let file = dir.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--sort=name", "--numeric-owner"]);
    tar.args(["--owner=0", "--group=0"]);
    tar.arg(format!("--mtime=@{epoch}"))
        .arg("--file")
        .arg(&file);
    tar.arg("--directory").arg(tree.parent().unwrap_or(tree));
    said(tar.arg(&*name))?;
    Ok(file)
}

/// Writes the checksums of `files`, which are in `dir`, as `sha256sum --check` reads them. Returns the file.
pub(super) fn sums(files: &[PathBuf], dir: &Path) -> Result<PathBuf> {
    let mut text = String::new();
    for file in files {
        let mut hash = Sha256::new();
        std::io::copy(&mut fs::File::open(file)?, &mut hash)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        text += &format!("{:x}  {name}\n", hash.finalize());
    }
    let sums = dir.join(SUMS);
    fs::write(&sums, text)?;
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &str, arguments: &[&str], dir: &Path) -> String {
        let mut command = Command::new(program);
        let output = said(command.args(arguments).current_dir(dir)).unwrap();
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn the_same_tree_gives_the_same_archive() {
        let dir = tempfile::tempdir().unwrap();
        let pack = |part: &str| {
            let into = dir.path().join(part);
            let tree = into.join("tree-1");
            fs::create_dir_all(&tree).unwrap();
            fs::write(tree.join("file"), "content").unwrap();
            let file = tar(&tree, &into, 1_000_000_000).unwrap();
            (fs::read(&file).unwrap(), file)
        };
        let ((one, file), (two, _)) = (pack("a"), pack("b"));
        assert_eq!(one, two);
        let list = run("tar", &["-tvf", file.to_str().unwrap()], dir.path());
        assert!(
            list.contains("0/0") && list.contains("2001-09-09"),
            "{list}"
        );
        assert!(list.ends_with("tree-1/file\n"), "{list}");
    }

    #[test]
    fn checksums_are_as_the_usual_program_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["x", "y"].map(|name| dir.path().join(name));
        for file in &files {
            fs::write(file, "content").unwrap();
        }
        let sums = sums(&files, dir.path()).unwrap();
        assert_eq!(sums.file_name().unwrap(), SUMS);
        let said = run("sha256sum", &["--check", SUMS], dir.path());
        assert_eq!(said, "x: OK\ny: OK\n");
    }

    #[test]
    fn the_time_is_that_of_the_last_commit() {
        let clone = Path::new(env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("SOURCE_DATE_EPOCH").is_none() {
            assert!(epoch(clone).unwrap() > 1_500_000_000);
            let error = epoch(Path::new("/")).unwrap_err();
            assert!(error.to_string().contains("SOURCE_DATE_EPOCH"), "{error}");
        }
    }
}
