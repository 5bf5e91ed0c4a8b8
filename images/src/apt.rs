//! The host's apt with a state of its own: it resolves and downloads packages of
//! another release of the distribution, needs no privileges, and sees nothing
//! of what is installed on the host.
//!
//! ```text
//! <cache>/apt/apt.conf      network settings of the host, none of its hooks
//!             sources.list  the stable release and its backports
//!             status        empty: nothing is installed
//!             archives/     downloads, until they are used up
//!             none/         empty: nothing is downloaded
//!             lists/        indexes, fetched anew when older than [`INDEX_AGE_MAX`]
//! ```

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use fs_err::{self as fs, File};

use crate::apt_text::{self, Trouble};
use crate::cache::{remove_file, update, Cache, Lock};
use crate::command::{command, run, run_with, tail};
use crate::context::Context;
use crate::distribution::{BACKPORTS, STABLE};
use crate::error::{Error, Result};
use crate::mirror::{find_keyring, find_mirror};
use crate::progress::Progress;

pub(crate) use crate::apt_text::{Available, Package};

/// Indexes younger than this are used as they are.
const INDEX_AGE_MAX: Duration = Duration::from_secs(3600);

/// An empty directory. While apt resolves, it looks there for finished downloads, and leaves those
/// out of what it prints: without this, downloads of an interrupted run would be missing from the
/// next.
const NONE: &str = "none";

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
    pub(crate) fn open(cx: Context<'a>) -> Result<Self> {
        check_path(cx.cache)?;
        let room = cx.cache.room();
        if !room.is_enough() {
            // What is wanted may be little: this only says what comes.
            cx.progress
                .step(&format!("the cache may be too small: {room}"));
        }
        let apt = Self {
            _lock: cx.cache.lock("apt", cx.progress)?,
            dir: cx.cache.service("apt")?,
            mirror: find_mirror()?,
            keyring: find_keyring()?,
            progress: cx.progress,
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
    pub(crate) fn resolve(&self, suite: &str, names: &str) -> Result<Vec<Package>> {
        let mut install = self.apt("apt-get");
        install.args(["install", "--print-uris", "-qq", "-t", suite]);
        let none = self.dir.join(NONE);
        install.arg("-o");
        install.arg(format!("Dir::Cache::archives={}", none.display()));
        install.args(names.split_whitespace());
        let uris = self.run("resolve packages", &mut install, names, |_| {})?;
        Ok(apt_text::print_uris(&uris))
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
        self.run(&what, &mut download, label, |line| {
            if let Some(percent) = apt_text::status_percent(line) {
                let done = (total as f64 * percent / 100.0) as u64;
                self.progress.bytes(done, total);
            }
        })?;
        let files: Vec<_> = packages.iter().map(|p| into.join(&p.file)).collect();
        match files.iter().find(|file| !file.is_file()) {
            Some(missing) => Err(Error::unexpected("a downloaded package", missing)),
            None => Ok(files),
        }
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = command(program);
        command.env("APT_CONFIG", self.dir.join("apt.conf"));
        command
    }

    fn configure(&self) -> Result<()> {
        for name in ["lists", "archives", NONE] {
            fs::create_dir_all(self.dir.join(name).join("partial"))?;
        }
        let host = run("read apt's settings", command("apt-config").arg("dump"))?;
        let config = apt_text::config(&self.dir, &host);
        let sources = apt_text::sources(&self.mirror, &self.keyring, &[STABLE, BACKPORTS]);
        // Other sources make the indexes at hand worthless.
        if update(&self.dir.join("sources.list"), sources.as_bytes())? {
            remove_file(&self.stamp())?;
        }
        update(&self.dir.join("apt.conf"), config.as_bytes())?;
        update(&self.dir.join("status"), b"").map(drop)
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
        let suites = format!("{STABLE} and {BACKPORTS}");
        self.run("fetch the mirror's indexes", &mut update, &suites, |_| {})?;
        File::create(stamp)?;
        Ok(())
    }

    fn stamp(&self) -> PathBuf {
        self.dir.join(STAMP)
    }

    /// Runs apt for what is `wanted` of the mirror.
    fn run(
        &self,
        what: &str,
        command: &mut Command,
        wanted: &str,
        on_line: impl FnMut(&str),
    ) -> Result<String> {
        run_with(what, command, on_line, |stderr| {
            let (mirror, detail) = (self.mirror.clone(), tail(stderr));
            Some(match apt_text::trouble(stderr)? {
                Trouble::Unsigned => Error::UntrustedMirror {
                    mirror,
                    keyring: self.keyring.clone(),
                    detail,
                },
                Trouble::Missing => Error::IncompleteMirror {
                    mirror,
                    wanted: wanted.to_owned(),
                    detail,
                },
                Trouble::Unreachable => Error::MirrorUnreachable { mirror, detail },
            })
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
        return Err(Error::BadCachePath(cache.root().to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    #[test]
    fn a_cache_path_that_cannot_be_written_down_is_refused() {
        assert!(check_path(&Cache::at("/home/some body/.cache/qnic")).is_ok());
        for path in ["/a:b", "/a;b", "/a\"b"] {
            assert!(check_path(&Cache::at(path)).is_err(), "{path}");
        }
    }

    /// A run was interrupted when it had downloaded one of two packages.
    #[test]
    fn what_is_downloaded_already_is_resolved_like_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let apt = Apt {
            _lock: cache.lock("apt", &Silent).unwrap(),
            dir: cache.service("apt").unwrap(),
            mirror: "http://mirror.test/debian".to_owned(),
            keyring: PathBuf::from("/none.gpg"),
            progress: &Silent,
        };
        apt.configure().unwrap();
        let hash = "0".repeat(64);
        let index = ["a", "b"].map(|name| {
            format!(
                "Package: {name}\nVersion: 1\nArchitecture: amd64\nMaintainer: m\n\
                 Description: d\nFilename: pool/{name}_1_amd64.deb\nSize: 4\nSHA256: {hash}\n"
            )
        });
        let suite = format!("mirror.test_debian_dists_{STABLE}");
        let list = |name: &str, text: &str| {
            fs::write(apt.dir.join("lists").join(format!("{suite}_{name}")), text).unwrap();
        };
        list("Release", &format!("Suite: stable\nCodename: {STABLE}\n"));
        list("main_binary-amd64_Packages", &index.join("\n"));
        let files = || {
            let packages = apt.resolve(STABLE, "a b").unwrap();
            let mut files: Vec<_> = packages.into_iter().map(|package| package.file).collect();
            files.sort();
            files
        };
        let both = ["a_1_amd64.deb", "b_1_amd64.deb"];
        assert_eq!(files(), both);
        fs::write(apt.dir.join("archives/a_1_amd64.deb"), "abcd").unwrap();
        assert_eq!(files(), both);
    }
}
