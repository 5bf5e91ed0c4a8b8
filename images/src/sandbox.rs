//! Runs a script inside a root, in a mount namespace of its own.
//!
//! Without privileges a user namespace makes the caller root in there only.
//! Mounts vanish with the script, so nothing has to be undone, and roots can be
//! shared by several builds at once.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use fs_err as fs;

use crate::command::{command, run_with};
use crate::error::{Error, Result};
use crate::progress::Progress;

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

/// Runs in front of [`ENTER`]: makes the root of layers. Its arguments are these layers and the directory that
/// what is written goes to.
const LAYER: &str = r#"
set -e
PATH=$PATH:/usr/sbin:/sbin
layers=$1
scratch=$2
shift 2
mount -t overlay overlay -o "userxattr,lowerdir=$layers,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
mkdir -p "$scratch/root/dev" "$scratch/root/proc" "$scratch/root/tmp"
exec sh -c "$ENTER" sh "$scratch/root" "$@"
"#;

/// Directories that are seen as one, which is written to.
pub(crate) struct Layers<'a> {
    /// They stay as they are; of several files with one path the first is seen.
    pub(crate) lower: &'a [&'a Path],
    /// A directory to make, for what is written and for the root that is seen. No path here has commas.
    pub(crate) scratch: &'a Path,
}

/// Kinds of namespaces to try, with the options of unshare that make them.
const KINDS: [(&str, &[&str]); 2] = [
    ("as root", &[]),
    ("with a user namespace", &["--user", "--map-root-user"]),
];

/// Runs `script` with the shell of the root in `root`. `mounts` are pairs of a host
/// directory and an existing empty directory of the root, where it is seen. Lines that
/// the script prints to its standard output are reported as steps.
///
/// # Errors
/// [`Error::NamespaceRefused`] when the host does not allow it, [`Error::Command`]
/// with the end of what the script printed when it fails.
pub(crate) fn run_in_root(
    what: &str,
    root: &Path,
    mounts: &[(&Path, &str)],
    script: &str,
    progress: &dyn Progress,
) -> Result<()> {
    let arrange = |enter: &mut Command| {
        enter.args(["--propagation", "private", "sh", "-c", ENTER, "sh"]);
        enter.arg(root);
        add_rest(enter, mounts, script);
    };
    unshare(what, arrange, |line| progress.step(line.trim())).map(drop)
}

/// Runs `script` as [`run_in_root`] does, in a root of several layers.
///
/// # Errors
/// As [`run_in_root`].
pub(crate) fn run_in_layers(
    what: &str,
    layers: &Layers<'_>,
    mounts: &[(&Path, &str)],
    script: &str,
    progress: &dyn Progress,
) -> Result<()> {
    for name in ["upper", "work", "root"] {
        fs::create_dir_all(layers.scratch.join(name))?;
    }
    let lower: Vec<_> = layers.lower.iter().map(|dir| dir.as_os_str()).collect();
    let lower = lower.join(OsStr::new(":"));
    let arrange = |enter: &mut Command| {
        enter.args(["--propagation", "private", "sh", "-c", LAYER, "sh"]);
        enter.arg(&lower).arg(layers.scratch).env("ENTER", ENTER);
        add_rest(enter, mounts, script);
    };
    unshare(what, arrange, |line| progress.step(line.trim())).map(drop)
}

/// Adds what the script in front of it takes behind the root.
fn add_rest(enter: &mut Command, mounts: &[(&Path, &str)], script: &str) {
    for (host, inside) in mounts {
        enter.arg(host).arg(inside);
    }
    enter.args(["--", "/bin/sh", "-c", script]);
}

/// Which kind of mount namespace this host allows for builds.
pub(crate) fn probe() -> Result<String> {
    let arrange = |enter: &mut Command| {
        enter.arg("true");
    };
    unshare("try a mount namespace", arrange, |_| {}).map(str::to_owned)
}

/// Runs what `arrange` adds to unshare in the first kind of namespace that the host
/// allows; returns the kind.
fn unshare(
    what: &str,
    arrange: impl Fn(&mut Command),
    on_line: impl Fn(&str),
) -> Result<&'static str> {
    let mut refusal = String::new();
    for (kind, options) in KINDS {
        let mut enter = command("unshare");
        enter.args(options).arg("--mount");
        arrange(&mut enter);
        let explain = |stderr: &str| {
            refused(stderr).then(|| Error::NamespaceRefused(stderr.trim().to_owned()))
        };
        match run_with(what, &mut enter, &on_line, explain) {
            Ok(_) => return Ok(kind),
            Err(Error::NamespaceRefused(detail)) => refusal = detail,
            Err(error) => return Err(error),
        }
    }
    Err(Error::NamespaceRefused(refusal))
}

/// Whether the host refused the namespaces or the mounts, rather than the script failing.
fn refused(stderr: &str) -> bool {
    let programs = ["unshare: ", "mount: ", "chroot: "];
    programs.iter().any(|name| stderr.starts_with(name))
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
