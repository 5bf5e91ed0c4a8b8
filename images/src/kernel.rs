//! Stock kernels: chosen from the package index, unpacked, never installed.

use std::path::{Path, PathBuf};

use crate::apt::{forget_indexes, Apt, Available};
use crate::cache::Cache;
use crate::distribution::{suite_of, KERNEL_FLAVOUR};
use crate::error::{Error, Result};
use crate::kernel_series::KernelSeries;
use crate::progress::Progress;
use crate::root::{PackageSet, Root};
use crate::version;

/// How names of packages with a bootable kernel begin.
pub(crate) const IMAGE: &str = "linux-image-";
const HEADERS: &str = "linux-headers-";

/// A stock kernel, unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Release as `uname -r` prints it.
    pub release: String,
    /// The bootable image.
    pub vmlinuz: PathBuf,
    /// The directory `lib/modules/<release>`.
    pub modules: PathBuf,
}

/// The release of the newest kernel of `series`: the remembered one, or what the
/// mirror has now.
///
/// # Errors
/// [`Error::NoKernel`], and what apt can run into.
pub(crate) fn release(
    cache: &Cache,
    progress: &dyn Progress,
    series: KernelSeries,
) -> Result<String> {
    let request = pin_name(series);
    if let Some(release) = cache.pin(&request) {
        return Ok(release);
    }
    let release = {
        let apt = Apt::open(cache, progress)?;
        progress.step(&format!("choosing the {series} kernel"));
        let wanted = |name: &str| name.ends_with(KERNEL_FLAVOUR);
        let mut available = apt.available(IMAGE, wanted)?;
        available.extend(apt.available(HEADERS, wanted)?);
        newest(&available, suite_of(series)).ok_or(Error::NoKernel {
            series: series.as_str(),
        })?
    };
    cache.set_pin(&request, &release)?;
    Ok(release)
}

/// The release that is remembered for `series`, if any.
pub(crate) fn remembered_release(cache: &Cache, series: KernelSeries) -> Option<String> {
    cache.pin(&pin_name(series))
}

/// Forgets which kernels were chosen; tells whether any were.
pub(crate) fn forget_releases(cache: &Cache) -> Result<bool> {
    let mut any = false;
    for series in KernelSeries::ALL {
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
pub(crate) fn provision(
    cache: &Cache,
    progress: &dyn Progress,
    series: KernelSeries,
) -> Result<(Kernel, Root)> {
    let release = release(cache, progress, series)?;
    let packages = [format!("{IMAGE}{release}")];
    // Newer kernels are split into several packages, all named after the release.
    let suffix = format!("-{release}");
    let set = PackageSet {
        kind: "kernel",
        label: &format!("the kernel {release}"),
        suite: suite_of(series),
        packages: &packages,
        keep: &|package| package.name().ends_with(&suffix),
    };
    let root = Root::of_packages(cache, progress, &set, |_| Ok(()))?;
    let kernel = in_root(&root, release)?;
    Ok((kernel, root))
}

fn in_root(root: &Root, release: String) -> Result<Kernel> {
    let modules = root.dir().join("usr/lib/modules").join(&release);
    let missing = |what: &str, path: &Path| Error::UnexpectedPackage {
        what: format!("{what} of the kernel {release}"),
        path: path.to_owned(),
    };
    if !modules.is_dir() {
        return Err(missing("the modules", &modules));
    }
    // Older packages install to /boot; newer ones keep all beside the modules.
    let places = [
        modules.join("vmlinuz"),
        root.dir().join("boot").join(format!("vmlinuz-{release}")),
    ];
    let vmlinuz = places.iter().find(|path| path.is_file()).cloned();
    let vmlinuz = vmlinuz.ok_or_else(|| missing("the image", &places[0]))?;
    Ok(Kernel {
        release,
        vmlinuz,
        modules,
    })
}

fn pin_name(series: KernelSeries) -> String {
    format!("release-{series}-{KERNEL_FLAVOUR}")
}

/// The release of the newest kernel in `suite` that has an image and headers of
/// the same version: an image without headers is a leftover, headers without an
/// image come before the signed image does.
fn newest(available: &[Available], suite: &str) -> Option<String> {
    let here = || available.iter().filter(|package| package.suite == suite);
    let has_headers = |release: &str, version: &str| {
        here().any(|package| {
            package.name.strip_prefix(HEADERS) == Some(release) && package.version == version
        })
    };
    here()
        .filter_map(|package| Some((package.name.strip_prefix(IMAGE)?, &package.version)))
        // The package without a version in its name only names the current one.
        .filter(|(release, _)| release.starts_with(|c: char| c.is_ascii_digit()))
        .filter(|(release, version)| has_headers(release, version))
        .max_by(|(_, a), (_, b)| version::compare(a, b))
        .map(|(release, _)| release.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn available(name: &str, version: &str, suite: &str) -> Available {
        Available {
            name: name.into(),
            version: version.into(),
            suite: suite.into(),
        }
    }

    #[test]
    fn the_newest_complete_kernel_of_the_suite_is_chosen() {
        let list = [
            available("linux-image-7.1.7-cloud-amd64", "7.1.7-1", "new"),
            available("linux-image-7.2.9-cloud-amd64", "7.2.9-1", "new"),
            available("linux-headers-7.2.9-cloud-amd64", "7.2.9-1", "new"),
            available("linux-image-7.2.12-cloud-amd64", "7.2.12-1", "new"),
            available("linux-headers-7.2.12-cloud-amd64", "7.2.12-1", "new"),
            available("linux-headers-7.3.4-cloud-amd64", "7.3.4-1", "new"),
            available("linux-image-cloud-amd64", "7.2.12-1", "new"),
            available("linux-headers-cloud-amd64", "7.2.12-1", "new"),
            available("linux-image-6.12.107-cloud-amd64", "6.12.107-1", "old"),
            available("linux-headers-6.12.107-cloud-amd64", "6.12.107-1", "old"),
        ];
        let newest_in = |suite| newest(&list, suite);
        assert_eq!(newest_in("new").as_deref(), Some("7.2.12-cloud-amd64"));
        assert_eq!(newest_in("old").as_deref(), Some("6.12.107-cloud-amd64"));
        assert_eq!(newest_in("none"), None);
    }

    #[test]
    fn headers_of_another_version_do_not_count() {
        let list = [
            available("linux-image-7.2-cloud-amd64", "7.2-2", "s"),
            available("linux-headers-7.2-cloud-amd64", "7.2-1", "s"),
        ];
        assert_eq!(newest(&list, "s"), None);
    }
}
