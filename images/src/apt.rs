//! The host's apt with a state of its own: it resolves and downloads packages of
//! another release of the distribution, needs no privileges, and sees nothing
//! of what is installed on the host.
//!
//! ```text
//! <cache>/apt/apt.conf      network settings of the host, none of its hooks
//!             sources.list  the stable release and its backports
//!             status        empty: nothing is installed
//!             lists/        indexes, fetched anew when older than [`INDEX_AGE_MAX`]
//! ```

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::apt_text;
use crate::cache::{remove_file, Cache, Lock};
use crate::command::{command, failure, run, run_to_end, Outcome};
use crate::distribution::{BACKPORTS, STABLE};
use crate::error::{Error, Result};
use crate::mirror::{find_keyring, find_mirror};
use crate::progress::Progress;

pub(crate) use crate::apt_text::{Available, Package};

/// Indexes younger than this are used as they are.
const INDEX_AGE_MAX: Duration = Duration::from_secs(3600);

/// A file whose time is that of the indexes.
const STAMP: &str = "updated";

/// Private apt, locked for this process.
pub(crate) struct Apt<'a> {
    dir: PathBuf,
    mirror: String,
    keyring: PathBuf,
    progress: &'a dyn Progress,
    _lock: Lock,
}

impl<'a> Apt<'a> {
    /// Sets up the private state and fetches the indexes.
    pub(crate) fn open(cache: &Cache, progress: &'a dyn Progress) -> Result<Self> {
        check_path(cache)?;
        let lock = cache.lock("apt", progress)?;
        let dir = cache.service("apt")?;
        let apt = Self {
            mirror: find_mirror()?,
            keyring: find_keyring()?,
            dir,
            progress,
            _lock: lock,
        };
        apt.configure()?;
        apt.update()?;
        Ok(apt)
    }

    /// Every version the mirror has of packages whose name starts with `prefix`
    /// and is accepted by `wanted`.
    pub(crate) fn available(
        &self,
        prefix: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<Available>> {
        let names = run(
            "list the mirror's packages",
            self.apt("apt-cache").args(["pkgnames", prefix]),
        )?;
        let mut names: Vec<&str> = names.lines().filter(|name| wanted(name)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        names.sort_unstable();
        let table = run(
            "list the mirror's versions",
            self.apt("apt-cache").arg("madison").args(names),
        )?;
        Ok(apt_text::madison(&table))
    }

    /// The packages that installing `names` would fetch, dependencies included,
    /// taking what it can from `suite`.
    pub(crate) fn resolve(&self, suite: &str, names: &[String]) -> Result<Vec<Package>> {
        let mut install = self.apt("apt-get");
        install.args(["install", "--print-uris", "-qq", "-t", suite]);
        install.args(names);
        let what = "resolve packages";
        let outcome = run_to_end(what, &mut install, |_| {})?;
        self.check(what, &install, &outcome, &names.join(" "))?;
        Ok(apt_text::print_uris(&outcome.stdout))
    }

    /// Downloads `packages`, checked against the signed indexes, and returns the
    /// files in the same order. The caller removes them when they are used up;
    /// until then a download that was cut short goes on where it ended.
    pub(crate) fn download(&self, packages: &[Package], label: &str) -> Result<Vec<PathBuf>> {
        let into = self.dir.join("archives");
        let total: u64 = packages.iter().map(|package| package.size).sum();
        self.progress.step(&format!("downloading {label}"));
        let mut download = self.apt("apt-get");
        download.args(["download", "-q", "-o", "APT::Status-Fd=1"]);
        download.args(packages.iter().map(Package::exact));
        download.current_dir(&into);
        let what = format!("download {label}");
        let outcome = run_to_end(&what, &mut download, |line| {
            if let Some(percent) = apt_text::status_percent(line) {
                self.progress
                    .bytes((total as f64 * percent / 100.0) as u64, total);
            }
        })?;
        self.check(&what, &download, &outcome, label)?;
        let files: Vec<_> = packages.iter().map(|p| into.join(&p.file)).collect();
        for file in &files {
            if !file.is_file() {
                let what = "a downloaded package".to_owned();
                let path = file.clone();
                return Err(Error::UnexpectedPackage { what, path });
            }
        }
        Ok(files)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = command(program);
        command.env("APT_CONFIG", self.dir.join("apt.conf"));
        command
    }

    fn configure(&self) -> Result<()> {
        for name in ["lists/partial", "archives/partial"] {
            let dir = self.dir.join(name);
            fs::create_dir_all(&dir).map_err(Error::io("create", &dir))?;
        }
        let host = run("read apt's settings", command("apt-config").arg("dump"))?;
        let config = apt_text::config(&self.dir, &host);
        let sources = apt_text::sources(&self.mirror, &self.keyring, &[STABLE, BACKPORTS]);
        // Other sources make the indexes at hand worthless.
        if self.write("sources.list", &sources)? {
            remove_file(&self.stamp())?;
        }
        self.write("apt.conf", &config)?;
        self.write("status", "")?;
        Ok(())
    }

    fn update(&self) -> Result<()> {
        let stamp = self.stamp();
        let age = fs::metadata(&stamp)
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_some_and(|age| age < INDEX_AGE_MAX) {
            return Ok(());
        }
        self.progress.step("asking the mirror for its packages");
        let mut update = self.apt("apt-get");
        update.args(["update", "-q", "--error-on=any"]);
        let what = "fetch the mirror's indexes";
        let outcome = run_to_end(what, &mut update, |_| {})?;
        self.check(
            what,
            &update,
            &outcome,
            &format!("{STABLE} and {BACKPORTS}"),
        )?;
        File::create(&stamp).map_err(Error::io("write", &stamp))?;
        Ok(())
    }

    fn stamp(&self) -> PathBuf {
        self.dir.join(STAMP)
    }

    /// Writes a file of the private state; tells whether it changed.
    fn write(&self, name: &str, text: &str) -> Result<bool> {
        let path = self.dir.join(name);
        if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
            return Ok(false);
        }
        fs::write(&path, text).map_err(Error::io("write", &path))?;
        Ok(true)
    }

    fn check(&self, what: &str, command: &Command, outcome: &Outcome, wanted: &str) -> Result<()> {
        if outcome.status.success() {
            return Ok(());
        }
        let mirror = self.mirror.clone();
        let detail = crate::command::tail(&outcome.stderr);
        Err(match apt_text::trouble(&outcome.stderr) {
            Some(apt_text::Trouble::Unsigned) => Error::UntrustedMirror {
                mirror,
                keyring: self.keyring.clone(),
                detail,
            },
            Some(apt_text::Trouble::Missing) => Error::IncompleteMirror {
                mirror,
                wanted: wanted.to_owned(),
                detail,
            },
            Some(apt_text::Trouble::Unreachable) => Error::MirrorUnreachable { mirror, detail },
            None => failure(what, command, outcome),
        })
    }
}

/// Makes the next [`Apt::open`] fetch the indexes anew.
pub(crate) fn forget_indexes(cache: &Cache) -> Result<()> {
    remove_file(&cache.root().join("apt").join(STAMP)).map(drop)
}

/// Refuses a cache whose path cannot be written in a list of library directories
/// or in apt's configuration.
fn check_path(cache: &Cache) -> Result<()> {
    let path = cache.root().as_os_str().as_encoded_bytes();
    if path.iter().any(|byte| b":;\"\n".contains(byte)) {
        let path = cache.root().to_owned();
        return Err(Error::BadCachePath { path });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_path_that_cannot_be_written_down_is_refused() {
        assert!(check_path(&Cache::at("/home/some body/.cache/qnic")).is_ok());
        for path in ["/a:b", "/a;b", "/a\"b"] {
            assert!(check_path(&Cache::at(path)).is_err(), "{path}");
        }
    }
}
