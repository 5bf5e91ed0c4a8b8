//! Runs a script inside a root, in a mount namespace of its own.
//!
//! Without privileges a user namespace makes the caller root in there only.
//! Mounts vanish with the script, so nothing has to be undone, and roots can be
//! shared by several builds at once.

use std::ffi::OsString;
use std::path::Path;

use crate::command::{command, failure, run_to_end};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::root::Root;

/// Runs on the host's shell inside the new namespaces: mounts, then changes root.
/// Arguments: the root, pairs of host directory and mount point, `--`, the command.
const ENTER: &str = r#"
set -e
PATH=$PATH:/usr/sbin:/sbin
root=$1
shift
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
while [ "$1" != -- ]; do
    mount --bind "$1" "$root$2"
    shift 2
done
shift
exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/usr/sbin LC_ALL=C HOME=/tmp "$@"
"#;

/// Kinds of namespaces to try, with the options of unshare that make them.
const KINDS: [(&str, &[&str]); 2] = [
    ("as root", &[]),
    ("with a user namespace", &["--user", "--map-root-user"]),
];

/// A host directory that is seen inside the root at an existing empty directory.
pub(crate) struct Mount<'a> {
    pub(crate) host: &'a Path,
    pub(crate) inside: &'static str,
}

/// Runs `script` with the root's own shell. Lines that it prints to its standard
/// output are reported as steps.
///
/// # Errors
/// [`Error::NamespaceRefused`] when the host does not allow it, [`Error::Command`]
/// with the end of what the script printed when it fails.
pub(crate) fn run_in_root(
    what: &str,
    root: &Root,
    mounts: &[Mount<'_>],
    script: &str,
    progress: &dyn Progress,
) -> Result<()> {
    let mut last = String::new();
    for (_, options) in KINDS {
        let mut enter = command("unshare");
        enter.args(options);
        enter.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            ENTER,
            "sh",
        ]);
        enter.arg(root.dir());
        for mount in mounts {
            enter.arg(mount.host).arg(OsString::from(mount.inside));
        }
        enter.args(["--", "/bin/sh", "-c", script]);
        let outcome = run_to_end(what, &mut enter, |line| progress.step(line.trim()))?;
        if outcome.status.success() {
            return Ok(());
        }
        if !refused(&outcome.stderr) {
            return Err(failure(what, &enter, &outcome));
        }
        last = outcome.stderr;
    }
    let detail = last.trim().to_owned();
    Err(Error::NamespaceRefused { detail })
}

/// Whether this host allows the mount namespace that builds run in, and which kind.
pub(crate) fn probe() -> Result<String> {
    let mut last = String::new();
    for (kind, options) in KINDS {
        let mut enter = command("unshare");
        enter.args(options).args(["--mount", "true"]);
        let outcome = run_to_end("try a mount namespace", &mut enter, |_| {})?;
        if outcome.status.success() {
            return Ok(kind.to_owned());
        }
        last = outcome.stderr;
    }
    let detail = last.trim().to_owned();
    Err(Error::NamespaceRefused { detail })
}

/// Whether the host refused the namespaces or the mounts, rather than the script failing.
fn refused(stderr: &str) -> bool {
    let first = stderr.lines().next().unwrap_or_default();
    first.starts_with("unshare: ") || first.starts_with("mount: ") || first.starts_with("chroot: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_a_failing_script() {
        assert!(refused(
            "unshare: unshare failed: Operation not permitted\n"
        ));
        assert!(refused("mount: /x/dev: permission denied.\n"));
        assert!(!refused("error[E0308]: mismatched types\n"));
        assert!(!refused(""));
    }
}
