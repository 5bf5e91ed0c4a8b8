//! The files of a package, before they are packed.

use std::fs::{self, Permissions};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use walkdir::WalkDir;

/// Makes `link` lead to `target`, with the directories above it.
pub(super) fn link(target: &str, link: &Path) -> Result<()> {
    parents(link)?;
    symlink(target, link).with_context(|| format!("make {}", link.display()))
}

/// Copies a file, with the directories above it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    parents(to)?;
    let copied = fs::copy(from, to);
    copied
        .map(drop)
        .with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

/// Writes a file, with the directories above it.
pub(super) fn write(to: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    parents(to)?;
    fs::write(to, content).with_context(|| format!("write {}", to.display()))
}

fn parents(file: &Path) -> Result<()> {
    let dir = file.parent().unwrap_or(file);
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))
}

/// Copies a directory with all that is in it.
pub(super) fn copy_all(from: &Path, to: &Path) -> Result<()> {
    parents(to)?;
    let mut copy = Command::new("cp");
    said(copy.arg("-R").arg(from).arg(to)).map(drop)
}

/// Copies a program or library without its symbols, of which nothing is asked when it runs.
pub(super) fn copy_stripped(from: &Path, to: &Path) -> Result<()> {
    parents(to)?;
    let mut strip = Command::new("strip");
    strip.args(["--strip-unneeded", "--enable-deterministic-archives", "-o"]);
    said(strip.arg(to).arg(from)).map(drop)
}

/// Gives all below `root` the modes of installed files, whatever the clone and the user's mask say.
pub(super) fn normalize(root: &Path) -> Result<()> {
    for entry in WalkDir::new(root) {
        let entry = entry?;
        if entry.file_type().is_symlink() {
            continue;
        }
        let runs =
            entry.file_type().is_dir() || entry.metadata()?.permissions().mode() & 0o100 != 0;
        let mode = if runs { 0o755 } else { 0o644 };
        fs::set_permissions(entry.path(), Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Bytes of all files below `root`.
pub(super) fn size(root: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in WalkDir::new(root) {
        let entry = entry?;
        if entry.file_type().is_file() {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

/// Runs a program to its end; returns what it has printed.
pub(super) fn said(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {program}: is it installed?"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} ended with {}: {}",
        output.status,
        errors.trim()
    );
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_installed_files() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        for (name, mode) in [("private", 0o600), ("wide", 0o666), ("program", 0o700)] {
            write(&root.join("d").join(name), "").unwrap();
            let permissions = Permissions::from_mode(mode);
            fs::set_permissions(root.join("d").join(name), permissions).unwrap();
        }
        link("nowhere", &root.join("link")).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(0o700)).unwrap();
        normalize(&root).unwrap();
        let mode = |name: &str| {
            let metadata = fs::metadata(root.join(name)).unwrap();
            metadata.permissions().mode() & 0o777
        };
        let modes = ["", "d", "d/private", "d/wide", "d/program"].map(mode);
        assert_eq!(modes, [0o755, 0o755, 0o644, 0o644, 0o755]);
    }

    #[test]
    fn a_program_that_fails_or_is_missing_is_named() {
        let fails = said(Command::new("sh").args(["-c", "echo why >&2; exit 3"]));
        let text = fails.unwrap_err().to_string();
        assert!(
            text.contains("sh ended with") && text.ends_with(": why"),
            "{text}"
        );
        let missing = said(&mut Command::new("no-such-program")).unwrap_err();
        assert!(missing.to_string().contains("no-such-program"), "{missing}");
    }
}
