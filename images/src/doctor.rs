//! What the host has, what would be used, and what is missing (`qnic doctor`).
//!
//! Nothing is downloaded and nothing is changed.

use crate::cache::Cache;
use crate::command::{find_program, PROGRAMS};
use crate::error::Error;
use crate::installed::Installed;
use crate::kernel;
use crate::kernel_series::KernelSeries;
use crate::mirror::{find_keyring, find_mirror};
use crate::prebuilt::Prebuilt;
use crate::provisioner::host_architecture;
use crate::sandbox;
use crate::tools::{cached_qemu, host_qemu};

/// How a finding bears on what qnic wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There, and used.
    Ready,
    /// Not there yet; made when it is first needed.
    ToCome,
    /// Missing, and the user has to do something.
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
        let keyring = find_keyring().map(|path| path.display().to_string());
        let architecture = host_architecture().map(str::to_owned);
        let mut findings = vec![of_result("processor", architecture)];
        let installed = Installed::of_this_program();
        let needed = PROGRAMS.iter();
        // It has the crates.
        let needed = needed.filter(|(name, ..)| installed.is_none() || *name != "cargo");
        findings.extend(needed.map(|(name, package, purpose)| program(name, package, purpose)));
        findings.extend([
            of_result("package keys", keyring),
            of_result("package mirror", find_mirror()),
            of_result("mount namespace", sandbox::probe()),
            room(cache),
            qemu(cache),
        ]);
        findings.extend(installed.map(|installed| modules(&installed)));
        findings.extend(KernelSeries::USUAL.map(|series| stock_kernel(cache, series)));
        Self { findings }
    }
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
    let room = cache.room();
    let state = match room.is_enough() {
        true => State::Ready,
        false => State::Missing,
    };
    finding("cache", state, room.to_string())
}

fn qemu(cache: &Cache) -> Finding {
    let (state, detail) = match (host_qemu(), cached_qemu(cache)) {
        (Ok(detail), _) => (State::Ready, detail),
        (Err(why), Some(version)) => (State::Ready, format!("{version} in the cache ({why})")),
        (Err(why), None) => {
            let detail = format!("will be taken from the distribution's packages ({why})");
            (State::ToCome, detail)
        }
    };
    finding("QEMU", state, detail)
}

fn modules(installed: &Installed) -> Finding {
    let releases = Prebuilt::at(installed.modules()).releases();
    let detail = format!(
        "there for {}; for others they are built, with compilers of the distribution's packages",
        releases.join(", ")
    );
    finding("kernel modules", State::Ready, detail)
}

fn stock_kernel(cache: &Cache, series: KernelSeries) -> Finding {
    let later = "the newest one will be taken from the distribution's packages";
    let (state, detail) = match kernel::remembered_release(cache, series) {
        Some(release) => (State::Ready, release),
        None => (State::ToCome, later.to_owned()),
    };
    finding(format!("{series} kernel"), state, detail)
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
}
