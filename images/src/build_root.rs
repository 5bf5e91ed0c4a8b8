//! The root in which the kernel module is built: compilers of the distribution
//! and the headers of every series' kernel.

use std::path::{Path, PathBuf};

use fs_err as fs;
use fs_err::os::unix::fs::symlink;

use crate::context::Context;
use crate::distribution::STABLE;
use crate::error::{Error, Result};
use crate::kernel;
use crate::kernel_series::KernelSeries;
use crate::root::{PackageSet, Root};

/// What the module's Kbuild file and the kernel's own build run.
const PACKAGES: &str = "bash binutils cargo coreutils dash findutils gcc grep make mawk \
                        perl-base rust-src rustc sed";

/// Dependencies that no build uses: they concern an installed system, or
/// programs that are instrumented.
const UNUSED: [&str; 11] = [
    "base-files",
    "libasan8",
    "libgprofng0",
    "libhwasan0",
    "liblsan0",
    "libperl5.40",
    "libtsan2",
    "libubsan1",
    "perl-modules-5.40",
    "systemd",
    "udev",
];

/// Sources of the compiler: by far the largest part of what comes with those of the standard library.
const COMPILER_SOURCES: [&str; 3] = [
    "usr/src/rustc-*/compiler",
    "usr/src/rustc-*/debian",
    "usr/src/rustc-*/src",
];

/// Links that the packages' own scripts would make.
const LINKS: [(&str, &str); 2] = [("usr/bin/awk", "mawk"), ("usr/bin/cc", "gcc")];

/// Directories that others are mounted on during a build.
pub(crate) const MOUNT_POINTS: [&str; 5] = ["dev", "proc", "src", "tmp", "vendor"];

/// Where the sources of the standard library are.
pub(crate) const RUST_LIBRARY: &str = "usr/lib/rustlib/src/rust/library";

/// The build root, from the cache or the mirror.
pub(crate) fn provision(cx: Context<'_>) -> Result<Root> {
    let mut names = PACKAGES.to_owned();
    for series in KernelSeries::USUAL {
        let release = kernel::release(cx, series)?;
        names = format!("{names} {}", kernel::headers_package(&release));
    }
    let set = PackageSet {
        kind: "build",
        label: "compilers and kernel headers",
        suite: STABLE,
        names: &names,
        keep: &|name| !UNUSED.contains(&name) && !name.starts_with(kernel::IMAGE),
        skip: &COMPILER_SOURCES,
    };
    Root::of_packages(cx, &set, finish)
}

/// The directory with the headers of `release`, in a root of their own: all but those that the
/// flavours of a kernel have in common.
pub(crate) fn headers(cx: Context<'_>, release: &str) -> Result<PathBuf> {
    let package = kernel::headers_package(release);
    let set = PackageSet {
        kind: "headers",
        label: &format!("the headers of the kernel {release}"),
        suite: STABLE,
        names: &package,
        keep: &|name| name == package,
        skip: &[],
    };
    let root = Root::of_packages(cx, &set, |_| Ok(()))?;
    Ok(root.dir.join("usr/src").join(&package))
}

fn finish(dir: &Path) -> Result<()> {
    for (name, target) in LINKS {
        let link = dir.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(target, link)?;
        }
    }
    for name in MOUNT_POINTS {
        fs::create_dir_all(dir.join(name))?;
    }
    let library = dir.join(RUST_LIBRARY);
    if !library.join("Cargo.lock").is_file() {
        let what = "the source of Rust's standard library";
        return Err(Error::unexpected(what, library));
    }
    Ok(())
}
