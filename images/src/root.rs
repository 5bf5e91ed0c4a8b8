//! Roots: directories with unpacked packages, and how to run programs from them.
//!
//! A root is used without chroot wherever possible: its own dynamic loader is
//! started with its own library path, so a program of the distribution runs as an
//! ordinary child process beside the host's libraries.

use std::ffi::OsString;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use fs_err as fs;
use fs_err::os::unix::fs::symlink;

use crate::apt::{Apt, Package};
use crate::cache::{remove_file, Cache};
use crate::command::{command, run, Ties};
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;

/// Version of the code that makes roots; part of their keys.
const RECIPE: u32 = 1;
/// Where the dynamic loader is in a merged-usr root.
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
/// Where the libraries are.
pub(crate) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Directories that are links into `usr` since the distribution merged them.
pub(crate) const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];
/// What no program needs.
const DOCUMENTATION: [&str; 8] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bash-completion",
    "usr/share/bug",
    "usr/share/zoneinfo",
];

/// Unpacks the package `$1` into the root `$2`; the other arguments are options of tar, of which `dpkg -x`
/// takes none. A pipe's status is that of its last program, so a package that cannot be read ends the shell.
const UNPACK: &str = r#"
trap 'exit 1' TERM
package=$1 root=$2
shift 2
{ dpkg-deb --fsys-tarfile "$package" || kill $$; } |
    tar --extract --preserve-permissions --warning=no-timestamp --directory="$root" \
        --anchored --no-wildcards-match-slash "$@"
"#;

/// Packages to unpack together into one root.
pub(crate) struct PackageSet<'a> {
    /// Kind of the artefact, first part of its name.
    pub(crate) kind: &'static str,
    /// What it is, for progress messages.
    pub(crate) label: &'a str,
    /// The suite that wins where several have a package.
    pub(crate) suite: &'static str,
    /// The packages asked for, with spaces between them; dependencies are added.
    pub(crate) names: &'a str,
    /// Which of the resolved packages, by name, are unpacked.
    pub(crate) keep: &'a dyn Fn(&str) -> bool,
    /// Paths of theirs that are not, besides documentation; `*` stands for a name.
    pub(crate) skip: &'static [&'static str],
}

/// A directory with unpacked packages.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) dir: PathBuf,
}

impl Root {
    /// The root with the packages of `set`, from the cache or the mirror. `finish`
    /// completes a new one: what the packages' own scripts would have done.
    pub(crate) fn of_packages(
        cx: Context<'_>,
        set: &PackageSet<'_>,
        finish: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        let dir = artefact_of(cx, set, |dir, files, packages| {
            cx.progress.step(&format!("unpacking {}", set.label));
            unpack(cx, files, packages, set.skip, dir)?;
            finish(dir)
        })?;
        Ok(Self { dir })
    }

    /// The root with the packages of `set` if it is in the cache.
    pub(crate) fn remembered(cache: &Cache, set: &PackageSet<'_>) -> Option<Self> {
        remembered(cache, set).map(|dir| Self { dir })
    }

    /// Name of the artefact, which stands for its content.
    pub(crate) fn key(&self) -> &str {
        let name = self.dir.file_name().and_then(|name| name.to_str());
        name.unwrap_or_default()
    }

    /// The loader of this root.
    pub(crate) fn loader(&self) -> PathBuf {
        self.dir.join(LOADER)
    }

    /// Arguments that make [`Self::loader`] run `program`, a path in this root,
    /// under the name `argv0`.
    pub(crate) fn loader_args(&self, program: &str, argv0: &str) -> Vec<OsString> {
        vec![
            "--library-path".into(),
            self.dir.join(LIBRARIES).into(),
            "--argv0".into(),
            argv0.into(),
            self.dir.join(program).into(),
        ]
    }

    /// A command that runs `program`, a path in this root, under the name `argv0`.
    pub(crate) fn command(&self, program: &str, argv0: &str) -> Command {
        let mut command = command(self.loader());
        command.args(self.loader_args(program, argv0));
        command
    }
}

/// What `make` makes in an empty directory of the files of the packages of `set`, from the cache or the mirror.
/// The files are removed when it is made.
pub(crate) fn artefact_of(
    cx: Context<'_>,
    set: &PackageSet<'_>,
    make: impl FnOnce(&Path, &[PathBuf], &[Package]) -> Result<()>,
) -> Result<PathBuf> {
    if let Some(dir) = remembered(cx.cache, set) {
        return Ok(dir);
    }
    let apt = Apt::open(cx)?;
    // Another process may have made it while it held apt.
    if let Some(dir) = remembered(cx.cache, set) {
        return Ok(dir);
    }
    let choosing = format!("choosing the packages of {}", set.label);
    cx.progress.step(&choosing);
    let mut packages = apt.resolve(set.suite, set.names)?;
    packages.retain(|package| (set.keep)(package.name()));
    let name = format!("{}-{}", set.kind, content_key(set.kind, &packages));
    let dir = cx.cache.artefact(&name, cx.progress, |dir| {
        let files = apt.download(&packages, set.label)?;
        make(dir, &files, &packages)?;
        for file in files {
            remove_file(&file)?;
        }
        Ok(())
    })?;
    cx.cache.set_pin(&request(set), &name)?;
    Ok(dir)
}

fn remembered(cache: &Cache, set: &PackageSet<'_>) -> Option<PathBuf> {
    cache.find(&cache.pin(&request(set))?)
}

/// The name of the request in the list of remembered answers.
fn request(set: &PackageSet<'_>) -> String {
    let mut key = Key::new(set.kind, RECIPE);
    key.add(set.suite);
    for name in set.names.split_whitespace() {
        key.add(name);
    }
    format!("{}-{}", set.kind, key.finish())
}

fn content_key(kind: &str, packages: &[Package]) -> String {
    let mut inputs: Vec<_> = packages.iter().map(|p| (&p.file, &p.hash)).collect();
    inputs.sort();
    let mut key = Key::new(kind, RECIPE);
    for (file, hash) in inputs {
        key.add(file).add(hash);
    }
    key.finish()
}

/// Unpacks `files`, downloads of `packages`, into `root`, all but `skip` and what no program needs, on
/// as many threads as there are cores.
pub(crate) fn unpack(
    cx: Context<'_>,
    files: &[PathBuf],
    packages: &[Package],
    skip: &[&str],
    root: &Path,
) -> Result<()> {
    for name in MERGED {
        fs::create_dir_all(root.join("usr").join(name))?;
        symlink(Path::new("usr").join(name), root.join(name))?;
    }
    let total: u64 = packages.iter().map(|package| package.size).sum();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let ties = Ties::of_this_thread()?;
    let worker = || -> Result<()> {
        ties.of_that_thread_too()?;
        // Each index is handed out once; nothing else is published through it.
        let take = || next.fetch_add(1, Ordering::Relaxed);
        let jobs = std::iter::repeat_with(take).map_while(|i| files.get(i).zip(packages.get(i)));
        for (file, package) in jobs {
            let what = format!("unpack {}", file.display());
            let unpacked = unpack_one(&what, file, skip, root);
            // One failure ends the work of all.
            unpacked.inspect_err(|_| next.store(files.len(), Ordering::Relaxed))?;
            let before = done.fetch_add(package.size, Ordering::Relaxed);
            cx.progress.bytes(before + package.size, total);
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let mut results = workers.into_iter().map(ScopedJoinHandle::join);
        results.try_for_each(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Unpacks `file`, a package, into `root`, all but `skip` and documentation.
pub(crate) fn unpack_one(what: &str, file: &Path, skip: &[&str], root: &Path) -> Result<()> {
    let mut shell = command("sh");
    shell.args(["-c", UNPACK, "sh"]).arg(file).arg(root);
    let skip = DOCUMENTATION.iter().chain(skip);
    shell.args(skip.map(|path| format!("--exclude=./{path}")));
    run(what, &mut shell).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(file: &str, hash: &str) -> Package {
        Package {
            file: file.into(),
            size: 1,
            hash: hash.into(),
        }
    }

    #[test]
    fn the_key_depends_on_content_and_not_on_order() {
        let (a, b) = (package("a_1_amd64.deb", "1"), package("b_1_amd64.deb", "2"));
        let key = content_key("x", &[a.clone(), b.clone()]);
        assert_eq!(key, content_key("x", &[b.clone(), a.clone()]));
        assert_ne!(key, content_key("x", std::slice::from_ref(&a)));
        assert_ne!(key, content_key("x", &[a, package("b_1_amd64.deb", "3")]));
    }

    /// A package with a file at each of `paths`.
    fn package_with(dir: &Path, paths: &[&str]) -> PathBuf {
        let tree = dir.join("tree");
        let control = "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n";
        for (path, content) in paths
            .iter()
            .map(|path| (*path, ""))
            .chain([("DEBIAN/control", control)])
        {
            let path = tree.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let file = dir.join("x.deb");
        let mut build = command("dpkg-deb");
        run("build a package", build.arg("--build").arg(tree).arg(&file)).unwrap();
        file
    }

    #[test]
    fn what_is_skipped_is_not_unpacked_and_all_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [
            "usr/bin/x",
            "usr/share/doc/x/copyright",
            "usr/src/x-1/src/a",
            "usr/src/x-1/library/src/b",
        ];
        let file = package_with(dir.path(), &paths);
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        unpack_one("unpack x", &file, &["usr/src/x-*/src"], &root).unwrap();
        let found = paths.map(|path| root.join(path).is_file());
        assert_eq!(found, [true, false, false, true]);
    }

    #[test]
    fn a_package_that_is_cut_short_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = package_with(dir.path(), &["usr/bin/x"]);
        let length = fs::metadata(&file).unwrap().len();
        fs::OpenOptions::new()
            .write(true)
            .open(&file)
            .unwrap()
            .set_len(length - 20)
            .unwrap();
        let error = unpack_one("unpack x", &file, &[], dir.path())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("cannot unpack x") && error.contains("dpkg-deb: error"),
            "{error}"
        );
    }

    #[test]
    fn a_request_depends_on_suite_and_names() {
        let request_of = |suite, names| {
            request(&PackageSet {
                kind: "x",
                label: "x",
                suite,
                names,
                keep: &|_| true,
                skip: &[],
            })
        };
        assert_eq!(request_of("s", "a b"), request_of("s", "a b"));
        assert_ne!(request_of("s", "a b"), request_of("t", "a b"));
        assert_ne!(request_of("s", "a b"), request_of("s", "a"));
    }
}
