//! What can go wrong while provisioning, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an artefact could not be provisioned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed; the message names the operation and the file.
    #[error("{0}")]
    Io(io::Error),
    /// The file system that holds the cache has no room left for this step.
    #[error(
        "no space is left to {0}: make room, or set QNIC_CACHE to a directory \
         on another file system (3 GB are enough)"
    )]
    DiskFull(String),
    /// Neither `QNIC_CACHE`, `XDG_CACHE_HOME` nor `HOME` names a directory for the cache.
    #[error("there is no directory for the cache: set QNIC_CACHE to one with 3 GB of room")]
    NoCacheHome,
    /// The path of the cache has characters in it that other programs cannot take.
    #[error(
        "the cache cannot be at {}: set QNIC_CACHE to a path without colon, semicolon, \
         quote and line break", .0.display()
    )]
    BadCachePath(PathBuf),
    /// The packages are for x86-64 and run on this machine's own processor, which is another.
    #[error("this machine is {0}, but qnic's packages and guests are x86_64: use such a host")]
    WrongArchitecture(&'static str),
    /// A program of the host is needed and missing.
    #[error("the program {program} is missing: install the package {package} and try again")]
    MissingProgram {
        /// Name of the program.
        program: String,
        /// The distribution's package that has it.
        package: &'static str,
    },
    /// The keys that sign the distribution's packages are in none of these files.
    #[error(
        "Debian's archive keys are missing (looked for {}): \
         install the package debian-archive-keyring and try again",
        .0.join(", ")
    )]
    MissingKeyring(Vec<&'static str>),
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
    /// The mirror offers no kernel of this series with everything that is needed.
    #[error(
        "the mirror offers no {0} kernel that has both an image and headers: \
         try again later, or name another mirror in QNIC_DEBIAN_MIRROR"
    )]
    NoKernel(&'static str),
    /// A package does not contain what it always contained.
    #[error("{what} is not where the distribution's packages have it: {}", path.display())]
    UnexpectedPackage {
        /// What is missing.
        what: String,
        /// Where it was expected.
        path: PathBuf,
    },
    /// The host refuses to create the namespaces that the module is built in.
    /// Holds what unshare printed.
    #[error(
        "this machine refuses the mount namespace that the kernel module is built in: {0}\n\
         run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
         kernel.apparmor_restrict_unprivileged_userns=0); a container must be privileged"
    )]
    NamespaceRefused(String),
    /// Something is where a directory was to be made.
    #[error("{} is there already: name a directory that is not, or an empty one", .0.display())]
    Exists(PathBuf),
    /// This source of the kernel module is missing.
    #[error("{} is missing: name the root of a clone of qnic", .0.display())]
    MissingSource(PathBuf),
    /// The sources of the kernel module in this clone changed while they were copied.
    #[error("the sources in {} changed meanwhile: try again", .0.display())]
    SourcesChanged(PathBuf),
    /// A file given for the guest image cannot be put there.
    #[error("{} cannot go into the guest image: {reason}", path.display())]
    BadGuestFile {
        /// The guest path asked for.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// The registry of crates did not answer.
    #[error(
        "the registry of crates cannot be reached to {what}: check the network and cargo's \
         settings for proxies and sources ($CARGO_HOME/config.toml), and try again{}",
        quoted(detail)
    )]
    RegistryUnreachable {
        /// The step, as a verb with its object.
        what: String,
        /// What cargo said.
        detail: String,
    },
    /// It was ended before its end ([`crate::cancelled_by`]).
    #[error("interrupted")]
    Cancelled,
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
    /// An error of the system, with the operation and the file.
    pub(crate) fn io(what: &str, path: &Path, source: io::Error) -> Self {
        let text = format!("cannot {what} {}: {source}", path.display());
        io::Error::new(source.kind(), text).into()
    }

    /// The error for a package without `what`, which was expected at `path`.
    pub(crate) fn unexpected(what: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self::UnexpectedPackage {
            what: what.into(),
            path: path.into(),
        }
    }
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull(format!("go on ({source})"))
            }
            _ => Self::Io(source),
        }
    }
}

fn quoted(detail: &str) -> String {
    let line = |line| format!("\n  | {line}");
    detail.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_apart_from_other_failures() {
        let of_kind = |kind| Error::io("write", Path::new("/cache/x"), io::Error::from(kind));
        let full = of_kind(io::ErrorKind::StorageFull);
        assert!(matches!(full, Error::DiskFull(_)), "{full}");
        let denied = of_kind(io::ErrorKind::PermissionDenied);
        assert!(denied.to_string().starts_with("cannot write /cache/x: "));
    }
}
