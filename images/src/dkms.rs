//! The kernel module as a source package for DKMS, by which a distribution builds it for its own kernels.
//!
//! ```text
//! dkms.conf, Makefile       how it is built
//! abi/, guest-driver/, …    the sources, as in the repository
//! vendor/                   the crates that they and Rust's standard library need
//! rust-library.lock         the standard library that these crates are for
//! cargo-home/config.toml    has cargo take them from there
//! ```
//!
//! A package builds without network where rustc is the distribution's stable one; with another rustc, cargo
//! fetches what that one's standard library needs.

use std::path::{Path, PathBuf};

use fs_err as fs;
use walkdir::WalkDir;

use crate::build_root::{self, RUST_LIBRARY};
use crate::cache::{remove_file, remove_tree};
use crate::command::{command, run};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::module;
use crate::sources::{Sources, TOOLCHAIN, VENDOR, VENDOR_LOCK};

/// Its version: that of this workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

const CONF: &str = include_str!("../dkms/dkms.conf");
const MAKEFILE: &str = include_str!("../dkms/Makefile");

/// Cargo takes the path as one beside the directory of this file.
const CARGO_CONFIG: &str = "\
[source.crates-io]
replace-with = \"vendored\"

[source.vendored]
directory = \"vendor\"
";

/// Licences of the parts that are not under that of the module, whose COPYING is beside its sources.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Crates that link Windows; cargo asks for their manifests, and no build for their libraries, which are half of
/// all bytes.
const WINDOWS: &str = "windows_";

/// Writes the package with the sources of the clone in `repo` to `dir`, which is made.
///
/// # Errors
/// [`Error::Exists`] if there is such a directory already, and it is not empty; [`Error::MissingSource`].
pub(crate) fn write(cx: Context<'_>, repo: &Path, dir: &Path) -> Result<()> {
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) || dir.is_file() {
        return Err(Error::Exists(dir.to_owned()));
    }
    let sources = Sources::of(repo)?;
    let hash = sources.hash()?;
    let build_root = build_root::provision(cx)?;
    let vendor = module::vendor(cx, &build_root, &sources, &hash)?;
    cx.progress.step("writing the DKMS package");
    let fill = || {
        sources.copy_to(dir, "", &hash)?;
        remove_file(&dir.join(TOOLCHAIN))?;
        for licence in LICENCES {
            fs::copy(repo.join(licence), dir.join(licence))?;
        }
        let library = build_root.dir.join(RUST_LIBRARY).join("Cargo.lock");
        finish(dir, &vendor, &library)
    };
    // A part of it would not build.
    fill().inspect_err(|_| drop(remove_tree(dir)))
}

/// Adds crates and recipes to the sources in `dir`.
fn finish(dir: &Path, vendor: &Path, library: &Path) -> Result<()> {
    let mut copy = command("cp");
    copy.arg("-R").arg(vendor).arg(dir.join(VENDOR));
    run("copy the crates of the kernel module", &mut copy)?;
    for needless in windows_libraries(&dir.join(VENDOR))? {
        remove_tree(&needless)?;
    }
    fs::copy(library, dir.join(VENDOR_LOCK))?;
    fs::create_dir(dir.join("cargo-home"))?;
    fs::write(dir.join("cargo-home/config.toml"), CARGO_CONFIG)?;
    fs::write(dir.join("dkms.conf"), CONF.replace("@version@", VERSION))?;
    fs::write(dir.join("Makefile"), MAKEFILE)?;
    Ok(())
}

fn windows_libraries(vendor: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in WalkDir::new(vendor).min_depth(1).max_depth(1) {
        let entry = entry.map_err(std::io::Error::from)?;
        if entry.file_name().to_string_lossy().starts_with(WINDOWS) {
            found.push(entry.path().join("lib"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_and_recipes_are_added_without_what_no_build_needs() {
        let dir = tempfile::tempdir().unwrap();
        let (vendor, package) = (dir.path().join("v"), dir.path().join("p"));
        for file in [
            "syn/src/lib.rs",
            "windows_x86_64_gnu/lib/w.a",
            "windows_x86_64_gnu/Cargo.toml",
        ] {
            let path = vendor.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let library = dir.path().join("Cargo.lock");
        fs::write(&library, "version = 4\n").unwrap();
        fs::create_dir(&package).unwrap();
        finish(&package, &vendor, &library).unwrap();
        let has = |file: &str| package.join(file).exists();
        assert!(has("vendor/syn/src/lib.rs") && has("vendor/windows_x86_64_gnu/Cargo.toml"));
        assert!(!has("vendor/windows_x86_64_gnu/lib"));
        assert_eq!(
            fs::read_to_string(package.join("rust-library.lock")).unwrap(),
            "version = 4\n"
        );
        let conf = fs::read_to_string(package.join("dkms.conf")).unwrap();
        assert!(
            conf.contains(&format!("PACKAGE_VERSION=\"{VERSION}\"")),
            "{conf}"
        );
    }
}
