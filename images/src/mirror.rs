//! Finds the distribution's mirror that this machine is set up to use.

use std::env;
use std::path::PathBuf;

use crate::command::{command, run};
use crate::distribution::KEYRINGS;
use crate::error::{Error, Result};

/// Asks apt for the archives it has indexes of: address, codename, origin.
const TARGETS: &str = "$(REPO_URI)|$(CODENAME)|$(ORIGIN)";

/// The base address of a mirror: what comes before `/dists`.
///
/// # Errors
/// [`Error::NoMirror`], or [`Error::MissingProgram`] without apt.
pub(crate) fn find_mirror() -> Result<String> {
    let named = env::var("QNIC_DEBIAN_MIRROR").ok();
    if let Some(mirror) = named.filter(|mirror| !mirror.is_empty()) {
        return Ok(mirror.trim_end_matches('/').to_owned());
    }
    let mut indexed = command("apt-get");
    indexed.args(["indextargets", "--format", TARGETS, "Created-By: Packages"]);
    let targets = run("ask apt for its mirrors", &mut indexed)?;
    if let Some(mirror) = from_targets(&targets) {
        return Ok(mirror);
    }
    // Before the first `apt-get update` there are sources, but no indexes.
    let empty = tempfile::tempdir()?;
    let mut configured = command("apt-get");
    configured.args(["update", "--print-uris"]);
    for option in ["Dir::State", "Dir::State::lists"] {
        let option = format!("{option}={}", empty.path().display());
        configured.arg("-o").arg(option);
    }
    let uris = run("ask apt for its sources", &mut configured)?;
    from_uris(&uris).ok_or(Error::NoMirror)
}

/// The host's file with the distribution's keys.
///
/// # Errors
/// [`Error::MissingKeyring`].
pub(crate) fn find_keyring() -> Result<PathBuf> {
    let mut candidates = KEYRINGS.iter().map(PathBuf::from);
    let found = candidates.find(|path| path.is_file());
    found.ok_or_else(|| Error::MissingKeyring(KEYRINGS.to_vec()))
}

/// The main archive among apt's index targets, which also has the security one.
fn from_targets(targets: &str) -> Option<String> {
    targets.lines().find_map(|line| {
        let mut fields = line.split('|');
        let (uri, codename, origin) = (fields.next()?, fields.next()?, fields.next()?);
        let wanted = origin == "Debian" && !codename.ends_with("-security");
        (wanted && !uri.starts_with("cdrom:")).then(|| uri.trim_end_matches('/').to_owned())
    })
}

/// The main archive among the release files that apt would fetch.
fn from_uris(uris: &str) -> Option<String> {
    uris.lines().find_map(|line| {
        let uri = line.strip_prefix('\'')?.split('\'').next()?;
        let (base, suite) = uri.split_once("/dists/")?;
        let wanted = base.ends_with("/debian") && !suite.contains("-security");
        (wanted && !base.starts_with("cdrom:")).then(|| base.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_archive_is_taken_from_the_indexes() {
        let targets = "http://other.example/repo/|stable|Other\n\
                       http://mirror.example/debian-security/|bookworm-security|Debian\n\
                       cdrom:[Debian]/|bookworm|Debian\n\
                       http://mirror.example/debian/|bookworm|Debian\n";
        let mirror = from_targets(targets);
        assert_eq!(mirror.as_deref(), Some("http://mirror.example/debian"));
        for other in [
            "http://mirror.example/ubuntu/|noble|Ubuntu",
            "garbage\n\n||",
        ] {
            assert_eq!(from_targets(other), None, "{other}");
        }
    }

    #[test]
    fn without_indexes_it_is_taken_from_the_sources() {
        let uris = "'http://mirror.example/debian-security/dists/x-security/InRelease' f 0 \n\
                    'http://mirror.example/debian/dists/bookworm/InRelease' f 0 \n";
        let mirror = from_uris(uris);
        assert_eq!(mirror.as_deref(), Some("http://mirror.example/debian"));
        for other in [
            "'http://mirror.example/ubuntu/dists/noble/InRelease' f 0",
            "no uris",
        ] {
            assert_eq!(from_uris(other), None, "{other}");
        }
    }
}
