//! What can go wrong while provisioning, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an artefact could not be provisioned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// Where it failed.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file system that holds the cache has no room left.
    #[error(
        "no space is left while trying to {what}: make room, or set QNIC_CACHE to a directory \
         on another file system (3 GB are enough)"
    )]
    DiskFull {
        /// The step that ran out of space.
        what: String,
    },
    /// Neither `QNIC_CACHE`, `XDG_CACHE_HOME` nor `HOME` names a place for the cache.
    #[error("there is no place for the cache: set QNIC_CACHE to a directory with 3 GB of room")]
    NoCacheHome,
    /// The path of the cache has characters in it that other programs cannot take.
    #[error(
        "the cache cannot be at {}: set QNIC_CACHE to a path without colon, semicolon, \
         quote and line break", path.display()
    )]
    BadCachePath {
        /// The path.
        path: PathBuf,
    },
    /// The packages are for x86-64 and run on this machine's own processor.
    #[error("this machine is {host}, but qnic's packages and guests are x86_64: use such a host")]
    WrongArchitecture {
        /// The architecture found.
        host: &'static str,
    },
    /// A program of the host is needed and missing.
    #[error("the program {program} is missing: install the package {package} and try again")]
    MissingProgram {
        /// Name of the program.
        program: String,
        /// The distribution's package that has it.
        package: &'static str,
    },
    /// The keys that sign the distribution's packages are missing.
    #[error(
        "Debian's archive keys are missing (looked for {}): \
         install the package debian-archive-keyring and try again",
        list(looked)
    )]
    MissingKeyring {
        /// Where they were looked for.
        looked: Vec<PathBuf>,
    },
    /// The host's apt configuration names no Debian mirror.
    #[error(
        "no Debian mirror is configured for apt on this machine: \
         set QNIC_DEBIAN_MIRROR to one, such as the URL before \"/dists\" in a sources file"
    )]
    NoMirror,
    /// The mirror did not answer.
    #[error(
        "the Debian mirror {mirror} cannot be reached: {detail}\n\
         check the network and apt's proxy settings, or name another mirror in QNIC_DEBIAN_MIRROR"
    )]
    MirrorUnreachable {
        /// Its address.
        mirror: String,
        /// What apt said.
        detail: String,
    },
    /// The mirror has not got one of the suites.
    #[error(
        "the Debian mirror {mirror} lacks what is needed ({wanted}): {detail}\n\
         name a complete mirror in QNIC_DEBIAN_MIRROR"
    )]
    IncompleteMirror {
        /// Its address.
        mirror: String,
        /// The suites or packages wanted of it.
        wanted: String,
        /// What apt said.
        detail: String,
    },
    /// The mirror's signature could not be checked with the keys at hand.
    #[error(
        "what the Debian mirror {mirror} offers is not signed by a key of {}: {detail}\n\
         upgrade the package debian-archive-keyring and try again", keyring.display()
    )]
    UntrustedMirror {
        /// Its address.
        mirror: String,
        /// The keys used.
        keyring: PathBuf,
        /// What apt said.
        detail: String,
    },
    /// The mirror offers no kernel of the series with everything that is needed.
    #[error(
        "the mirror offers no {series} kernel that has both an image and headers: \
         try again later, or name another mirror in QNIC_DEBIAN_MIRROR"
    )]
    NoKernel {
        /// Name of the series.
        series: &'static str,
    },
    /// A package does not contain what it always contained.
    #[error("{what} is not where the distribution's packages have it: {}", path.display())]
    UnexpectedPackage {
        /// The thing that is missing.
        what: String,
        /// Where it was expected.
        path: PathBuf,
    },
    /// The host refuses to create the namespaces that the module is built in.
    #[error(
        "this machine refuses the mount namespace that the kernel module is built in: {detail}\n\
         run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
         kernel.apparmor_restrict_unprivileged_userns=0); a container must be privileged"
    )]
    NamespaceRefused {
        /// What unshare said.
        detail: String,
    },
    /// The sources of the kernel module are not where they should be.
    #[error("{} is missing: name the root of a clone of qnic", path.display())]
    MissingSource {
        /// The file or directory looked for.
        path: PathBuf,
    },
    /// The sources of the kernel module changed between being looked at and being copied.
    #[error("the sources in {} changed meanwhile: try again", repo.display())]
    SourcesChanged {
        /// The clone.
        repo: PathBuf,
    },
    /// A file given for the guest image cannot be put there.
    #[error("{} cannot go into the guest image: {reason}", path.display())]
    BadGuestFile {
        /// The guest path asked for.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// A program that was run failed.
    #[error("cannot {what}: {program} ended with {status}{}", quoted(detail))]
    Command {
        /// The step, as a verb with its object.
        what: String,
        /// The program that ran.
        program: String,
        /// Its exit status in words.
        status: String,
        /// The last lines it printed.
        detail: String,
    },
}

impl Error {
    /// Turns a system error into ours, naming the step and the place.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull {
                what: format!("{what} {}", path.display()),
            },
            _ => Self::Io { what, path, source },
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    names.join(", ")
}

fn quoted(detail: &str) -> String {
    let mut text = String::new();
    for line in detail.lines() {
        text.push_str("\n  | ");
        text.push_str(line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_apart_from_other_failures() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = Error::io("write", Path::new("/cache/x"))(full);
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = Error::io("write", Path::new("/cache/x"))(denied);
        assert!(error.to_string().starts_with("cannot write /cache/x: "));
    }
}
