//! What the host has, what would be used, and what is missing (`qnic doctor`).
//!
//! Nothing is downloaded and nothing is changed.

use std::env;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use crate::cache::{size_on_disk, Cache};
use crate::error::Error;
use crate::kernel;
use crate::kernel_series::KernelSeries;
use crate::mirror::{find_keyring, find_mirror};
use crate::provisioner::host_architecture;
use crate::qemu::{host_qemu, HostQemu, MAJOR_MIN};
use crate::sandbox;

/// Bytes that a complete cache and the making of it take.
const ROOM: u64 = 3_000_000_000;

/// Programs of the host, with their packages and what they are for.
const PROGRAMS: [(&str, &str, &str); 6] = [
    ("apt-get", "apt", "chooses and downloads packages"),
    ("apt-cache", "apt", "finds the newest kernels"),
    ("dpkg", "dpkg", "unpacks packages"),
    ("tar", "tar", "unpacks packages"),
    ("unshare", "util-linux", "builds the kernel module"),
    ("cargo", "cargo", "fetches the crates of the kernel module"),
];

/// How a finding bears on what qnic wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There, and used.
    Ready,
    /// Not there yet; made when it is first needed.
    ToCome,
    /// Missing, and somebody has to do something.
    Missing,
}

/// One thing that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked for.
    pub subject: String,
    /// Whether it is good enough.
    pub state: State,
    /// What was found, or what to do about it.
    pub detail: String,
}

/// Everything that provisioning depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// In the order of need.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Looks at the host and at `cache`.
    pub fn of(cache: &Cache) -> Self {
        let mut findings = vec![architecture()];
        findings.extend(PROGRAMS.map(|(name, package, purpose)| program(name, package, purpose)));
        findings.push(of_result(
            "package keys",
            find_keyring().map(|path| path.display().to_string()),
        ));
        findings.push(of_result("package mirror", find_mirror()));
        findings.push(of_result("mount namespace", sandbox::probe()));
        findings.push(room(cache));
        findings.push(qemu(cache));
        findings.extend(KernelSeries::ALL.map(|series| stock_kernel(cache, series)));
        Self { findings }
    }

    /// Whether nothing is missing.
    pub fn is_good(&self) -> bool {
        let missing = |finding: &Finding| finding.state == State::Missing;
        !self.findings.iter().any(missing)
    }
}

/// The program `name` in the host's `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

fn finding(subject: impl Into<String>, state: State, detail: impl Into<String>) -> Finding {
    Finding {
        subject: subject.into(),
        state,
        detail: detail.into(),
    }
}

fn of_result(subject: &str, result: Result<String, Error>) -> Finding {
    match result {
        Ok(detail) => finding(subject, State::Ready, detail),
        Err(error) => finding(subject, State::Missing, error.to_string()),
    }
}

fn architecture() -> Finding {
    of_result("processor", host_architecture().map(str::to_owned))
}

fn program(name: &str, package: &str, purpose: &str) -> Finding {
    match find_program(name) {
        Some(path) => finding(name, State::Ready, path.display().to_string()),
        None => {
            let remedy = format!("it {purpose}: install the package {package}");
            finding(name, State::Missing, remedy)
        }
    }
}

fn room(cache: &Cache) -> Finding {
    let root = cache.root();
    let used = size_on_disk(root);
    let existing = root.ancestors().find(|dir| dir.is_dir());
    let free = statvfs(existing.unwrap_or(Path::new("/")))
        .map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize))
        .unwrap_or(0);
    let detail = format!(
        "{}: {} MB in use, {} MB free",
        root.display(),
        used / 1_000_000,
        free / 1_000_000
    );
    if used + free >= ROOM {
        return finding("cache", State::Ready, detail);
    }
    let remedy = format!(
        "{detail}; {} MB are wanted: make room, or set QNIC_CACHE to a directory elsewhere",
        ROOM / 1_000_000
    );
    finding("cache", State::Missing, remedy)
}

fn qemu(cache: &Cache) -> Finding {
    let why = match host_qemu() {
        HostQemu::Good(qemu) => {
            let detail = format!(
                "{} of this machine, {}",
                qemu.version,
                qemu.program.display()
            );
            return finding("QEMU", State::Ready, detail);
        }
        HostQemu::Absent => "this machine has none".to_owned(),
        HostQemu::TooOld(version) => {
            format!("this machine's {version} is older than {MAJOR_MIN}")
        }
        HostQemu::NoDevice(version) => {
            format!("this machine's {version} lacks the generic vhost-user device")
        }
    };
    match crate::qemu::cached(cache) {
        Some(qemu) => {
            let detail = format!("{} in the cache ({why})", qemu.version);
            finding("QEMU", State::Ready, detail)
        }
        None => {
            let detail = format!("will be taken from the distribution's packages ({why})");
            finding("QEMU", State::ToCome, detail)
        }
    }
}

fn stock_kernel(cache: &Cache, series: KernelSeries) -> Finding {
    let subject = format!("{series} kernel");
    match kernel::remembered_release(cache, series) {
        Some(release) => finding(subject, State::Ready, release),
        None => finding(
            subject,
            State::ToCome,
            "the newest one will be taken from the distribution's packages",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_names_what_is_there_and_what_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let report = Report::of(&Cache::at(dir.path()));
        let of = |subject: &str| {
            let mut all = report.findings.iter();
            all.find(|f| f.subject == subject).unwrap()
        };
        assert_eq!(of("processor").state, State::Ready);
        assert_eq!(of("stable kernel").state, State::ToCome);
        assert!(of("cache").detail.contains("MB free"));
        let missing = program("no-such-program", "some-package", "does nothing");
        assert_eq!(missing.state, State::Missing);
        assert!(missing.detail.contains("install the package some-package"));
    }

    #[test]
    fn programs_are_found_in_the_path() {
        assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program("no-such-program"), None);
    }
}
