//! Packages of Debian, which `dpkg-deb` makes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::tree::{said, size};
use super::VERSION;

/// What a package says of itself.
pub(super) struct Control {
    pub(super) name: &'static str,
    /// One line.
    pub(super) summary: &'static str,
    /// Lines below it.
    pub(super) description: String,
    pub(super) depends: String,
    pub(super) recommends: &'static str,
    /// Scripts and lists that dpkg takes beside these words: name, mode, content.
    pub(super) files: Vec<(&'static str, u32, String)>,
}

impl Control {
    /// The file `control`, for a package of so many bytes.
    fn text(&self, bytes: u64) -> String {
        let lines: String = self
            .description
            .lines()
            .map(|line| match line {
                "" => " .\n".to_owned(),
                line => format!(" {line}\n"),
            })
            .collect();
        format!(
            "Package: {}\nVersion: {VERSION}\nArchitecture: amd64\nSection: net\nPriority: optional\n\
             Maintainer: The contributors of qnic <contributors@qnic.invalid>\nHomepage: {}\n\
             Installed-Size: {}\nDepends: {}\nRecommends: {}\nDescription: {}\n{lines}",
            self.name,
            env!("CARGO_PKG_REPOSITORY"),
            bytes.div_ceil(1024),
            self.depends,
            self.recommends,
            self.summary,
        )
    }
}

/// Makes the package of the files below `root` in `dir`. Returns the file. `root` has its control files afterwards.
pub(super) fn build(root: &Path, control: &Control, dir: &Path, epoch: u64) -> Result<PathBuf> {
    let text = control.text(size(root)?);
    let debian = root.join("DEBIAN");
    fs::create_dir(&debian).with_context(|| format!("make {}", debian.display()))?;
    let files = control.files.iter().cloned();
    for (name, mode, content) in files.chain([("control", 0o644, text)]) {
        let file = debian.join(name);
        fs::write(&file, content)?;
        fs::set_permissions(&file, Permissions::from_mode(mode))?;
    }
    for dir in [root, &*debian] {
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    }
    let file = dir.join(format!("{}_{VERSION}_amd64.deb", control.name));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zgzip", "--build"]);
    build.arg(root).arg(&file);
    build.env("SOURCE_DATE_EPOCH", epoch.to_string());
    said(&mut build)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_has_its_files_as_root_owns_them_and_says_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        fs::write(root.join("usr/bin/x"), "x").unwrap();
        let control = Control {
            name: "x",
            summary: "does nothing",
            description: "One line.\n\nAnother one.".to_owned(),
            depends: "apt".to_owned(),
            recommends: "tar",
            files: vec![("postinst", 0o755, "#!/bin/sh\n".to_owned())],
        };
        let file = build(&root, &control, dir.path(), 1_000_000_000).unwrap();
        let ask = |option: &str| {
            let said = said(Command::new("dpkg-deb").arg(option).arg(&file)).unwrap();
            String::from_utf8(said).unwrap()
        };
        let fields = ask("--field");
        for line in [
            "Package: x\n",
            "Installed-Size: 1\n",
            "Depends: apt\n",
            "Description: does nothing\n One line.\n .\n Another one.\n",
        ] {
            assert!(fields.contains(line), "{fields}");
        }
        let files = ask("--contents");
        assert!(
            files.contains("root/root") && files.contains("./usr/bin/x"),
            "{files}"
        );
        let told = ask("--info");
        assert!(told.contains("postinst"), "{told}");
    }
}
