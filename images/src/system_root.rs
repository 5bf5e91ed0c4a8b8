//! Roots in which the distribution's packages are installed, as its own installer would: configured, and known to dpkg.
//!
//! ```text
//! packages ─▶ root, unpacked ─▶ configured, in a chroot
//! ```
//!
//! Nothing of this runs as root.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;
use fs_err::os::unix::fs::symlink;

use crate::context::Context;
use crate::distribution::STABLE;
use crate::error::Result;
use crate::key::{files_below, Key};
use crate::root::{artefact_of, unpack_one, PackageSet, MERGED};
use crate::sandbox::run_in_root;

/// Version of the code that makes clean roots; part of their keys.
const RECIPE: u32 = 1;

/// Packages that every system of the distribution has, and no other package depends on.
pub(crate) const ESSENTIAL: &str = "apt base-files base-passwd bash bsdutils coreutils dash debianutils diffutils \
                         dpkg e2fsprogs findutils grep gzip hostname init-system-helpers libc-bin login \
                         ncurses-base ncurses-bin perl-base sed sysvinit-utils tar util-linux";

/// What a clean root has beside them: apt's keys, and what lets it be made without privileges.
const CLEAN: &str = "debian-archive-keyring fakeroot";

/// Directories of a root that others are mounted on.
const MOUNT_POINTS: [&str; 5] = ["dev", "media", "mnt", "proc", "tmp"];

/// Roots that were not asked for this long are removed when another one is made.
const UNUSED_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Installs the packages in `/mnt`, in their root.
pub(crate) const INSTALL: &str = include_str!("../disk/install");

/// A root of the distribution with its package manager, and neither compilers nor Rust.
pub(crate) fn clean(cx: Context<'_>) -> Result<PathBuf> {
    let packages = packages(cx, "a clean root", &format!("{ESSENTIAL} {CLEAN}"))?;
    let mut key = Key::new("clean", RECIPE);
    key.add(name_of(&packages)).add(INSTALL);
    let name = format!("clean-{}", key.finish());
    let dir = cx.cache.artefact(&name, cx.progress, |dir| {
        cx.cache.prune("clean", UNUSED_MAX)?;
        let root = dir.join("root");
        cx.progress.step("unpacking the packages of a clean root");
        unpack(&packages, &root)?;
        fs::write(dir.join("install"), INSTALL)?;
        let mounts = [(&*packages, "/mnt"), (dir, "/media")];
        let script = "exec fakeroot-sysv sh /media/install";
        run_in_root("make a clean root", &root, &mounts, script, cx.progress)?;
        Ok(fs::remove_file(dir.join("install"))?)
    })?;
    Ok(dir.join("root"))
}

/// The name of an artefact, which stands for its content.
pub(crate) fn name_of(artefact: &Path) -> &[u8] {
    let name = artefact.file_name().unwrap_or_default();
    name.as_encoded_bytes()
}

/// The directory with the files of the packages `names` and all that they depend on, for what `label` says.
pub(crate) fn packages(cx: Context<'_>, label: &str, names: &str) -> Result<PathBuf> {
    let set = PackageSet {
        kind: "packages",
        label,
        suite: STABLE,
        names,
        keep: &|_| true,
        skip: &[],
    };
    artefact_of(cx, &set, |dir, files, _| {
        for file in files {
            let name = file.file_name().unwrap_or_default();
            fs::copy(file, dir.join(name))?;
        }
        Ok(())
    })
}

/// Unpacks `packages` into `root`, which is made.
pub(crate) fn unpack(packages: &Path, root: &Path) -> Result<()> {
    for name in MERGED {
        fs::create_dir_all(root.join("usr").join(name))?;
        symlink(Path::new("usr").join(name), root.join(name))?;
    }
    for name in MOUNT_POINTS {
        fs::create_dir_all(root.join(name))?;
    }
    for file in files_below(packages, |_| false)? {
        let what = format!("unpack {}", file.display());
        unpack_one(&what, &packages.join(file), &[], root)?;
    }
    Ok(())
}
