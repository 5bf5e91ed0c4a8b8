//! The packages, where there is neither a clone nor a compiler.
//!
//! ```text
//!   qnic package ─► qnic_*.deb ─┐
//!   packages of Debian ─► root ─┴─ dpkg -i ─► qnic demo, as an ordinary user ─► dpkg -r ─► what is left?
//! ```
//!
//! All runs in user namespaces of this machine: what is written into the root goes to a directory that the case looks
//! through.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use qnic_images::{Cache, KernelSeries, Progress, Provisioner, Silent};
use serde_json::Value;
use walkdir::WalkDir;

use crate::harness::{cases, Case, Skip};

pub(crate) const CASES: &[Case] = cases! { "vm":
    an_installed_package_runs_a_cluster_without_toolchains: 2 => an_installed_package(),
    a_package_of_guests_builds_its_module_and_is_removed: 2 => a_package_of_guests(),
};

const ENTER: &str = include_str!("installed/enter.sh");
const USE: &str = include_str!("installed/use.sh");
const IN_GUEST: &str = include_str!("installed/guest.sh");

/// What dpkg writes besides the package's files, and what comes in when the root is entered.
const OF_OTHERS: [&str; 3] = ["var/lib/dpkg", "var/log", "etc/resolv.conf"];

/// Settings of the network, which programs inside have, too.
const PROXIES: [&str; 6] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// The package is installed in a clean root, boots two guests that exchange verified data, and leaves nothing when it is
/// removed.
fn an_installed_package() -> Result<()> {
    let scratch = tempfile::tempdir().context("make a directory")?;
    let packages = packages(scratch.path())?;
    let root = CleanRoot::new(scratch.path(), &packages)?;

    root.run_as_root("dpkg -i /media/qnic_*.deb")?;
    let text = root.run_as_user(USE)?;
    let demo = text.lines().find(|line| line.starts_with('{'));
    let demo: Value =
        serde_json::from_str(demo.with_context(|| format!("no result in {text:?}"))?)?;
    let rows = demo["rows"].as_array().map_or(0, Vec::len);
    ensure!(demo["wrong"] == 0 && rows >= 10, "the demo says {demo}");
    println!(
        "    from the package, without compilers: {rows} sizes verified, {} s from the start to the end",
        demo["total_seconds"]
    );
    root.run_as_root("dpkg --purge qnic")?;
    let left = root.left()?;
    ensure!(left.is_empty(), "the package has left {left:?}");
    Ok(())
}

/// The package of guests is installed: DKMS builds the module for the kernels that are there, a program in C is compiled
/// and finds the library, and nothing is left when it is removed.
fn a_package_of_guests() -> Result<()> {
    let scratch = tempfile::tempdir().context("make a directory")?;
    let packages = packages(scratch.path())?;
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Steps));
    Ok(provisioner.in_a_system_with_compilers(&packages, IN_GUEST)?)
}

/// The packages of this clone, in a new directory of `scratch`.
fn packages(scratch: &Path) -> Result<PathBuf> {
    let packages = scratch.join("packages");
    let own = std::env::current_exe().context("find this program")?;
    let mut package = Command::new(own);
    said(package.arg("package").arg(&packages))?;
    Ok(packages)
}

/// Shows the steps of a script.
struct Steps;

impl Progress for Steps {
    fn step(&self, message: &str) {
        println!("    {message}");
    }

    fn bytes(&self, _done: u64, _total: u64) {}
}

/// A root of the distribution's packages, into which is written.
struct CleanRoot {
    root: PathBuf,
    cache: PathBuf,
    scratch: PathBuf,
    packages: PathBuf,
    mirror: String,
}

impl CleanRoot {
    /// Takes from the mirror what clusters need, so that nothing is downloaded within the root; makes directories in
    /// `scratch`.
    fn new(scratch: &Path, packages: &Path) -> Result<Self> {
        let cache = Cache::of_user()?;
        let provisioner = Provisioner::new(cache.clone(), Arc::new(Silent));
        provisioner.qemu()?;
        provisioner.guest_parts(KernelSeries::Stable)?;
        let root = provisioner.clean_root()?;
        for name in ["upper", "work", "root", "cache-upper", "cache-work"] {
            fs::create_dir(scratch.join(name))?;
        }
        let probe = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "true"])
            .status();
        ensure!(
            probe.is_ok_and(|status| status.success()),
            Skip("this machine refuses user namespaces")
        );
        Ok(Self {
            root,
            cache: cache.root().to_owned(),
            scratch: scratch.to_owned(),
            packages: packages.to_owned(),
            mirror: provisioner.mirror()?,
        })
    }

    fn run_as_root(&self, script: &str) -> Result<String> {
        self.run("root", script)
    }

    fn run_as_user(&self, script: &str) -> Result<String> {
        self.run("user", script)
    }

    /// Runs `script` in the root, as `user` says in the script that enters it.
    fn run(&self, user: &str, script: &str) -> Result<String> {
        let mut enter = Command::new("unshare");
        enter.args(["--user", "--map-root-user", "--mount"]);
        enter.args(["--propagation", "private", "sh", "-c", ENTER, "sh"]);
        enter.args([&self.root, &self.scratch, &self.cache]);
        enter.args([&self.scratch, &self.packages]);
        enter.args([user, "env", "-i", "LC_ALL=C", "HOME=/tmp/home"]);
        enter.arg("PATH=/usr/sbin:/usr/bin");
        enter.arg("QNIC_CACHE=/tmp/cache");
        enter.arg(format!("QNIC_DEBIAN_MIRROR={}", self.mirror));
        for name in PROXIES {
            if let Ok(value) = std::env::var(name) {
                enter.arg(format!("{name}={value}"));
            }
        }
        said(enter.args(["sh", "-c", script]))
    }

    /// Paths that are in the root now, and not in the clean one; and files that were changed or removed.
    fn left(&self) -> Result<Vec<PathBuf>> {
        let upper = self.scratch.join("upper");
        let mut left = Vec::new();
        let entries = WalkDir::new(&upper).min_depth(1).into_iter();
        let entries = entries.filter_entry(|entry| {
            let path = entry.path().strip_prefix(&upper);
            path.is_ok_and(|path| OF_OTHERS.iter().all(|theirs| path != Path::new(theirs)))
        });
        for entry in entries {
            let entry = entry?;
            let path = entry.path().strip_prefix(&upper)?;
            let before = self.root.join(path).symlink_metadata().ok();
            let kind = entry.file_type();
            let as_before = match before {
                Some(before) => before.is_dir() && kind.is_dir(),
                // A file that came and went.
                None => kind.is_char_device(),
            };
            if !as_before {
                left.push(path.to_owned());
            }
        }
        Ok(left)
    }
}

impl Drop for CleanRoot {
    fn drop(&mut self) {
        // The kernel makes these directories for itself, and lets no user look into them.
        for name in ["work/work", "cache-work/work"] {
            let mode = fs::Permissions::from_mode(0o700);
            let _ = fs::set_permissions(self.scratch.join(name), mode);
        }
    }
}

/// Runs a command to its end; returns what it has printed, if all went well.
fn said(command: &mut Command) -> Result<String> {
    let output: Output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("start {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}: {text}", output.status);
    Ok(text)
}
