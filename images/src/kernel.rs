//! Stock kernels: chosen from the package index, unpacked, never installed.

use std::path::PathBuf;

use crate::apt::{forget_indexes, Apt, Available};
use crate::cache::Cache;
use crate::command::{command, succeeds};
use crate::context::Context;
use crate::distribution::{CLOUD_FLAVOUR, GENERIC_FLAVOUR};
use crate::error::{Error, Result};
use crate::kernel_series::KernelSeries;
use crate::prebuilt::Prebuilt;
use crate::root::{PackageSet, Root};

/// How names of packages with a bootable kernel begin.
pub(crate) const IMAGE: &str = "linux-image-";
const HEADERS: &str = "linux-headers-";

/// A stock kernel, unpacked.
pub(crate) struct Kernel {
    /// Release as `uname -r` prints it.
    pub(crate) release: String,
    /// The bootable image.
    pub(crate) vmlinuz: PathBuf,
    /// The directory `lib/modules/<release>`.
    pub(crate) modules: PathBuf,
}

/// The release of the kernel of `series`: the remembered one; of those that the mirror has now, the newest that a
/// module was built for before; or else the newest.
///
/// # Errors
/// [`Error::NoKernel`], and what apt can run into.
pub(crate) fn release(cx: Context<'_>, series: KernelSeries) -> Result<String> {
    if series == KernelSeries::Generic {
        return Ok(generic(&release(cx, KernelSeries::Stable)?));
    }
    if let Some(release) = remembered_release(cx.cache, series) {
        return Ok(release);
    }
    let apt = Apt::open(cx)?;
    cx.progress.step(&format!("choosing the {series} kernel"));
    let wanted = |name: &str| name.ends_with(CLOUD_FLAVOUR);
    let mut available = apt.available(IMAGE, wanted)?;
    available.extend(apt.available(HEADERS, wanted)?);
    let prebuilt = cx.prebuilt.map(Prebuilt::releases).unwrap_or_default();
    let with_module = |release: &str| prebuilt.iter().any(|one| one == release);
    let chosen = match newest(&available, series.suite(), with_module)? {
        None => newest(&available, series.suite(), |_| true)?,
        chosen => chosen,
    };
    let release = chosen.ok_or(Error::NoKernel(series.as_str()))?;
    cx.cache.set_pin(&pin_name(series), &release)?;
    Ok(release)
}

/// The release that is remembered for `series`, if any.
pub(crate) fn remembered_release(cache: &Cache, series: KernelSeries) -> Option<String> {
    if series == KernelSeries::Generic {
        return remembered_release(cache, KernelSeries::Stable).map(|release| generic(&release));
    }
    cache.pin(&pin_name(series))
}

/// The release of the same kernel in the flavour with all drivers. Both have headers in common, so
/// one root can build modules for both.
fn generic(release: &str) -> String {
    let version = release.strip_suffix(CLOUD_FLAVOUR).unwrap_or(release);
    format!("{version}{GENERIC_FLAVOUR}")
}

/// Forgets which kernels were chosen; returns true if any were.
pub(crate) fn forget_releases(cache: &Cache) -> Result<bool> {
    let mut any = false;
    for series in KernelSeries::USUAL {
        any |= cache.unpin(&pin_name(series))?;
    }
    if any {
        forget_indexes(cache)?;
    }
    Ok(any)
}

/// Name of the package with the headers of `release`.
pub(crate) fn headers_package(release: &str) -> String {
    format!("{HEADERS}{release}")
}

/// The kernel of `series` and the name of its artefact, from the cache or the mirror.
pub(crate) fn provision(cx: Context<'_>, series: KernelSeries) -> Result<(Kernel, Root)> {
    let release = release(cx, series)?;
    // Newer kernels are split into several packages, all named after the release.
    let suffix = format!("-{release}");
    let set = PackageSet {
        kind: "kernel",
        label: &format!("the kernel {release}"),
        suite: series.suite(),
        names: &format!("{IMAGE}{release}"),
        keep: &|name| name.ends_with(&suffix),
        skip: &[],
    };
    let root = Root::of_packages(cx, &set, |_| Ok(()))?;
    let kernel = in_root(&root, release)?;
    Ok((kernel, root))
}

fn in_root(root: &Root, release: String) -> Result<Kernel> {
    let modules = root.dir.join("usr/lib/modules").join(&release);
    if !modules.is_dir() {
        let what = format!("the modules of the kernel {release}");
        return Err(Error::unexpected(what, modules));
    }
    // Older packages install to /boot; newer ones keep all beside the modules.
    let paths = [
        modules.join("vmlinuz"),
        root.dir.join("boot").join(format!("vmlinuz-{release}")),
    ];
    let Some(vmlinuz) = paths.iter().find(|path| path.is_file()).cloned() else {
        let what = format!("the image of the kernel {release}");
        return Err(Error::unexpected(what, &paths[0]));
    };
    Ok(Kernel {
        release,
        vmlinuz,
        modules,
    })
}

fn pin_name(series: KernelSeries) -> String {
    format!("release-{series}-{CLOUD_FLAVOUR}")
}

/// The release of the newest kernel in `suite` that is `wanted` and has an image and headers of
/// the same version: an image without headers is a leftover, headers without an
/// image come before the signed image does.
fn newest(
    available: &[Available],
    suite: &str,
    wanted: impl Fn(&str) -> bool,
) -> Result<Option<String>> {
    let here = || available.iter().filter(|package| package.suite == suite);
    let has_headers = |release: &str, version: &str| {
        here().any(|package| {
            package.name.strip_prefix(HEADERS) == Some(release) && package.version == version
        })
    };
    let mut complete = here()
        .filter_map(|package| Some((package.name.strip_prefix(IMAGE)?, &package.version)))
        // The package without a version in its name only names the current one.
        .filter(|(release, _)| release.starts_with(|c: char| c.is_ascii_digit()))
        .filter(|(release, _)| wanted(release))
        .filter(|(release, version)| has_headers(release, version));
    let newest = complete.try_fold(None, |best: Option<(&str, &String)>, found| match best {
        Some((_, version)) if !is_newer(found.1, version)? => Ok::<_, Error>(best),
        _ => Ok(Some(found)),
    })?;
    Ok(newest.map(|(release, _)| release.to_owned()))
}

/// Compares two versions by the package manager's own order.
fn is_newer(version: &str, than: &str) -> Result<bool> {
    succeeds(command("dpkg").args(["--compare-versions", version, "gt", than]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads lines of name, version and suite.
    fn available(table: &str) -> Vec<Available> {
        let package = |line: &str| {
            let mut words = line.split_whitespace().map(str::to_owned);
            Some(Available {
                name: format!("linux-{}cloud-amd64", words.next()?),
                version: words.next()?,
                suite: words.next()?,
            })
        };
        table.lines().filter_map(package).collect()
    }

    #[test]
    fn the_newest_complete_kernel_of_the_suite_is_chosen() {
        let list = available(
            "image-7.1.7-       7.1.7-1           new
             image-7.2.9-       7.2.9-1           new
             headers-7.2.9-     7.2.9-1           new
             image-7.2.12-      7.2.12-1~bpo13+1  new
             headers-7.2.12-    7.2.12-1~bpo13+1  new
             headers-7.3.4-     7.3.4-1           new
             image-             7.2.12-1          new
             headers-           7.2.12-1          new
             image-6.12.107-    6.12.107-1        old
             headers-6.12.107-  6.12.107-1        old",
        );
        let newest_in = |suite| newest(&list, suite, |_| true).unwrap();
        assert_eq!(newest_in("new").as_deref(), Some("7.2.12-cloud-amd64"));
        assert_eq!(newest_in("old").as_deref(), Some("6.12.107-cloud-amd64"));
        assert_eq!(newest_in("none"), None);
    }

    #[test]
    fn the_newest_of_those_that_are_wanted_is_chosen() {
        let list = available(
            "image-7.2-    7.2-1  s
             headers-7.2-  7.2-1  s
             image-7.1-    7.1-1  s
             headers-7.1-  7.1-1  s
             image-7.0-    7.0-1  s
             headers-7.0-  7.0-1  s",
        );
        let wanted = |release: &str| !release.starts_with("7.2");
        let chosen = newest(&list, "s", wanted).unwrap();
        assert_eq!(chosen.as_deref(), Some("7.1-cloud-amd64"));
        assert_eq!(newest(&list, "s", |_| false).unwrap(), None);
    }

    #[test]
    fn the_generic_kernel_is_the_stable_one_in_another_flavour() {
        assert_eq!(
            generic("6.12.117+deb13-cloud-amd64"),
            "6.12.117+deb13-amd64"
        );
    }

    #[test]
    fn versions_are_ordered_as_the_package_manager_orders_them() {
        let ascending = "0.9~rc1 0.9 0.9a 0.9+b1 0.10 6.9.7-1 6.12.94-1 6.12.107-1~bpo12+1 \
                         6.12.107-1 7.2.9-1~bpo13+1 7.2.12-1~bpo13+1 1:0.1";
        let ascending: Vec<_> = ascending.split_whitespace().collect();
        for pair in ascending.windows(2) {
            assert!(is_newer(pair[1], pair[0]).unwrap(), "{pair:?}");
            assert!(!is_newer(pair[0], pair[1]).unwrap(), "{pair:?}");
        }
        assert!(!is_newer("0:1.02-3", "1.2-03").unwrap());
    }

    #[test]
    fn headers_of_another_version_do_not_count() {
        let list = available("image-7.2- 7.2-2 s\nheaders-7.2- 7.2-1 s");
        assert_eq!(newest(&list, "s", |_| true).unwrap(), None);
    }
}
