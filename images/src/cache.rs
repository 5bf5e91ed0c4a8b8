//! Where provisioned artefacts live between runs.
//!
//! ```text
//! <root>/<kind>-<key>/   a complete artefact; never changed once it is there
//!        tmp/<name>/     one being made; renamed to its place when complete
//!        locks/<name>    held (flock) by whoever makes it
//!        pins/<request>  which artefact answered a request to the mirror
//!        apt/            the private state of apt
//!        build/          working directories that make a second build fast
//! ```
//!
//! Invariants: a directory at its place is complete; a temporary one belongs to
//! the holder of the lock of that name, so what a killed process left is removed
//! by the next one. Locks vanish with their process.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::progress::Progress;

/// Directories in the cache that hold no artefact.
const SERVICE_DIRS: [&str; 5] = ["tmp", "locks", "pins", "apt", "build"];

/// A directory of artefacts, shared by all processes of a user.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// What [`Cache::prune`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Number of artefacts.
    pub artefacts: usize,
    /// Bytes of the file system that they took.
    pub bytes: u64,
}

/// A lock on one name in the cache; given back when dropped.
pub(crate) struct Lock(#[expect(dead_code, reason = "the open file is the lock")] File);

impl Cache {
    /// The user's cache: `$QNIC_CACHE`, else `$XDG_CACHE_HOME/qnic`, else `~/.cache/qnic`.
    ///
    /// # Errors
    /// [`Error::NoCacheHome`] when none of these is set.
    pub fn of_user() -> Result<Self> {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let root = set("QNIC_CACHE")
            .map(PathBuf::from)
            .or_else(|| set("XDG_CACHE_HOME").map(|dir| PathBuf::from(dir).join("qnic")))
            .or_else(|| set("HOME").map(|dir| PathBuf::from(dir).join(".cache/qnic")))
            .ok_or(Error::NoCacheHome)?;
        let root = std::path::absolute(&root).map_err(Error::io("locate", &root))?;
        Ok(Self { root })
    }

    /// The cache in `root`, an absolute path that need not exist yet.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory everything is kept in.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The artefact `name`, made by `make` in an empty directory if it is not there.
    ///
    /// Of several callers one makes it and the others wait.
    pub(crate) fn artefact(
        &self,
        name: &str,
        progress: &dyn Progress,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let place = self.root.join(name);
        if self.touch(&place) {
            return Ok(place);
        }
        let _lock = self.lock(name, progress)?;
        if self.touch(&place) {
            return Ok(place);
        }
        let tmp = self.service("tmp")?.join(name);
        remove_tree(&tmp)?;
        fs::create_dir(&tmp).map_err(Error::io("create", &tmp))?;
        if let Err(error) = make(&tmp) {
            // Why it failed matters more than whether the rest could be removed.
            remove_tree(&tmp).unwrap_or_default();
            return Err(error);
        }
        fs::rename(&tmp, &place).map_err(Error::io("put in place", &place))?;
        self.touch(&place);
        Ok(place)
    }

    /// Where the artefact `name` is, if it is complete.
    pub(crate) fn find(&self, name: &str) -> Option<PathBuf> {
        let place = self.root.join(name);
        self.touch(&place).then_some(place)
    }

    /// Takes the lock `name`, waiting for its holder and saying so.
    pub(crate) fn lock(&self, name: &str, progress: &dyn Progress) -> Result<Lock> {
        let path = self.service("locks")?.join(name);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(Error::io("open the lock", &path))?;
        let locked = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                progress.step(&format!(
                    "waiting for another qnic process that works on the same (it holds {})",
                    path.display()
                ));
                retry(|| flock(&file, FlockOperation::LockExclusive))
            }
            other => other,
        };
        locked.map_err(|errno| Error::io("lock", &path)(errno.into()))?;
        Ok(Lock(file))
    }

    /// One of the directories that hold no artefact, made if need be.
    pub(crate) fn service(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join(name);
        fs::create_dir_all(&dir).map_err(Error::io("create", &dir))?;
        Ok(dir)
    }

    /// What was remembered for `request`, if anything.
    pub(crate) fn pin(&self, request: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join("pins").join(request)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Remembers `value` for `request`.
    pub(crate) fn set_pin(&self, request: &str, value: &str) -> Result<()> {
        let dir = self.service("pins")?;
        let path = dir.join(request);
        let file = tempfile::NamedTempFile::new_in(&dir).map_err(Error::io("write", &path))?;
        fs::write(file.path(), value).map_err(Error::io("write", &path))?;
        file.persist(&path)
            .map_err(|error| Error::io("write", &path)(error.error))?;
        Ok(())
    }

    /// Forgets what was remembered for `request`; tells whether there was anything.
    pub(crate) fn unpin(&self, request: &str) -> Result<bool> {
        remove_file(&self.root.join("pins").join(request))
    }

    /// Forgets what mirrors offered: what is asked for next is looked up anew.
    /// Artefacts stay, and are taken again if they are still the newest.
    ///
    /// # Errors
    /// [`Error::Io`] when the cache cannot be written.
    pub fn forget_mirror(&self) -> Result<()> {
        remove_tree(&self.root.join("pins"))?;
        remove_tree(&self.root.join("apt"))
    }

    /// Removes every artefact that was not asked for within `unused_for`, except
    /// those being made, and everything left by processes that were killed.
    /// Zero removes all, also what a running cluster may still want to read.
    ///
    /// # Errors
    /// [`Error::Io`] when something cannot be removed.
    pub fn prune(&self, unused_for: Duration) -> Result<Pruned> {
        let pruned = self.prune_where(unused_for, |_| true)?;
        if unused_for.is_zero() {
            self.forget_mirror()?;
            remove_tree(&self.root.join("build"))?;
        }
        Ok(pruned)
    }

    /// Like [`Self::prune`], for the artefacts of one kind.
    pub(crate) fn prune_kind(&self, kind: &str, unused_for: Duration) -> Result<Pruned> {
        let of_kind = |name: &str| name.rsplit_once('-').is_some_and(|(k, _)| k == kind);
        self.prune_where(unused_for, of_kind)
    }

    fn prune_where(&self, unused_for: Duration, which: impl Fn(&str) -> bool) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        let limit = SystemTime::now().checked_sub(unused_for);
        let unfinished = list(&self.root.join("tmp"))?;
        for dir in list(&self.root)?.into_iter().chain(unfinished) {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            let old = fs::metadata(&dir)
                .and_then(|meta| meta.modified())
                .is_ok_and(|used| limit.is_some_and(|limit| used <= limit));
            if SERVICE_DIRS.contains(&name.as_ref()) || !which(&name) || !old {
                continue;
            }
            let Some(_lock) = self.try_lock(&name)? else {
                continue;
            };
            pruned.bytes += size_on_disk(&dir);
            pruned.artefacts += 1;
            remove_tree(&dir)?;
        }
        Ok(pruned)
    }

    fn try_lock(&self, name: &str) -> Result<Option<Lock>> {
        let path = self.service("locks")?.join(name);
        let file = File::create(&path).map_err(Error::io("open the lock", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(Error::io("lock", &path)(errno.into())),
        }
    }

    /// Whether `place` is there; notes that it was used now, for [`Self::prune`].
    fn touch(&self, place: &Path) -> bool {
        // A cache that cannot be written is still good to read.
        File::open(place)
            .map(|dir| dir.set_modified(SystemTime::now()))
            .is_ok()
    }
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", dir)(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(Error::io("list", dir))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// Bytes that a tree takes; what cannot be read counts as nothing.
pub(crate) fn size_on_disk(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = fs::symlink_metadata(path) else {
        return 0;
    };
    let inside: u64 = if meta.is_dir() {
        list(path)
            .unwrap_or_default()
            .iter()
            .map(|entry| size_on_disk(entry))
            .sum()
    } else {
        0
    };
    meta.blocks() * 512 + inside
}

/// Removes a file; tells whether it was there.
pub(crate) fn remove_file(path: &Path) -> Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("remove", path)(error)),
    }
}

/// Removes a directory and all that is in it; it need not exist.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::progress::Silent;

    fn cache() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("cache"));
        (dir, cache)
    }

    fn write(dir: &Path) -> Result<()> {
        fs::write(dir.join("file"), "content").map_err(Error::io("write", dir))
    }

    #[test]
    fn an_artefact_is_made_once_even_by_many() {
        let (_dir, cache) = cache();
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let path = cache.artefact("a-1", &Silent, |dir| {
                        made.fetch_add(1, Ordering::Relaxed);
                        write(dir)
                    });
                    assert!(path.unwrap().join("file").is_file());
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_failure_leaves_nothing_and_the_next_try_starts_clean() {
        let (_dir, cache) = cache();
        let failed = cache.artefact("a-1", &Silent, |dir| {
            write(dir)?;
            Err(Error::NoMirror)
        });
        assert!(matches!(failed, Err(Error::NoMirror)));
        assert!(cache.find("a-1").is_none());
        assert!(list(&cache.root().join("tmp")).unwrap().is_empty());
    }

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let (_dir, cache) = cache();
        let left = cache.service("tmp").unwrap().join("a-1");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("half"), "").unwrap();
        let path = cache.artefact("a-1", &Silent, write).unwrap();
        assert!(!path.join("half").exists());
    }

    #[test]
    fn prune_keeps_what_was_used_and_what_is_locked() {
        let (_dir, cache) = cache();
        for name in ["a-1", "b-2", "c-3"] {
            cache.artefact(name, &Silent, write).unwrap();
        }
        cache.set_pin("request", "a-1").unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        for name in ["a-1", "b-2"] {
            let dir = File::open(cache.root().join(name)).unwrap();
            dir.set_modified(long_ago).unwrap();
        }
        let _lock = cache.lock("b-2", &Silent).unwrap();
        let other = cache.prune_kind("x", Duration::ZERO).unwrap();
        assert_eq!(other, Pruned::default());
        let pruned = cache.prune(Duration::from_secs(100)).unwrap();
        assert_eq!(pruned.artefacts, 1);
        assert!(pruned.bytes > 0);
        assert!(cache.find("a-1").is_none());
        assert!(cache.find("b-2").is_some() && cache.find("c-3").is_some());
        assert_eq!(cache.pin("request").as_deref(), Some("a-1"));
        cache.prune(Duration::ZERO).unwrap();
        assert_eq!(cache.pin("request"), None);
    }
}
