//! Where provisioned artefacts live between runs.
//!
//! ```text
//! <root>/<kind>-<key>/   a complete artefact; never changed once it is there
//!        tmp/<name>      one being made, or a pin; renamed when it is complete
//!        locks/<name>    held (flock) by the process that makes it
//!        pins/<request>  which artefact answered a request to the mirror
//!        apt/            the private state of apt
//!        build/          working directories that make a second build fast
//! ```
//!
//! Invariants: an artefact's directory is complete; a temporary one belongs to the
//! holder of the lock of that name, so what a killed process left is removed by the
//! next one. Locks vanish with their process and the programs that it has started.

use std::env;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fs_err::{self as fs, File, OpenOptions};
use rustix::fs::{flock, statvfs, FlockOperation};
use rustix::io::{retry_on_intr, Errno};
use walkdir::WalkDir;

use crate::command::{share_with_programs, Shared};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// A directory of artefacts, shared by all processes of a user.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// Bytes that a complete cache and the making of it take.
const ROOM: u64 = 3_000_000_000;

/// What room there is for a cache.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    root: PathBuf,
    used: u64,
    free: u64,
}

impl Room {
    /// Returns true if a complete cache can be made.
    pub(crate) fn is_enough(&self) -> bool {
        self.used.saturating_add(self.free) >= ROOM
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [used, free, all] = [self.used, self.free, ROOM].map(|bytes| bytes / 1_000_000);
        let root = self.root.display();
        write!(f, "{root}: {used} MB in use, {free} MB free")?;
        if self.is_enough() {
            return Ok(());
        }
        write!(
            f,
            "; {all} MB are wanted: make room, or set QNIC_CACHE to a directory elsewhere"
        )
    }
}

/// A lock on one name in the cache; released when dropped. The programs that this thread runs hold
/// it, too: if this process is killed, the next one waits until they have ended.
pub(crate) struct Lock {
    file: File,
    _shared: Shared,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it would not release it while a program is left that has it open.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Cache {
    /// What room there is: what it takes already, and what its file system has.
    pub(crate) fn room(&self) -> Room {
        let existing = self.root.ancestors().find(|dir| dir.is_dir());
        let free = statvfs(existing.unwrap_or(Path::new("/")))
            .map(|system| system.f_bavail.saturating_mul(system.f_frsize));
        Room {
            root: self.root.clone(),
            used: size_on_disk(&self.root),
            free: free.unwrap_or(0),
        }
    }

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
        let root = std::path::absolute(&root).map_err(|e| Error::io("locate", &root, e))?;
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
        if let Some(path) = self.find(name) {
            return Ok(path);
        }
        let _lock = self.lock(name, progress)?;
        if let Some(path) = self.find(name) {
            return Ok(path);
        }
        let tmp = self.service("tmp")?.join(name);
        remove_tree(&tmp)?;
        fs::create_dir(&tmp)?;
        if let Err(error) = make(&tmp) {
            // The error of the work counts, not one of the removal.
            let _ = remove_tree(&tmp);
            return Err(error);
        }
        let path = self.root.join(name);
        fs::rename(&tmp, &path)?;
        touch(&path);
        Ok(path)
    }

    /// Where the artefact `name` is, if it is complete; notes that it was used now.
    pub(crate) fn find(&self, name: &str) -> Option<PathBuf> {
        let path = self.root.join(name);
        touch(&path).then_some(path)
    }

    /// Takes the lock `name`; reports it when this has to wait.
    pub(crate) fn lock(&self, name: &str, progress: &dyn Progress) -> Result<Lock> {
        if let Some(lock) = self.lock_with(name, FlockOperation::NonBlockingLockExclusive)? {
            return Ok(lock);
        }
        let path = self.root.join("locks").join(name);
        progress.step(&format!(
            "waiting for another qnic process that works on the same, or for what a killed one has \
             left running (it holds {})",
            path.display()
        ));
        let lock = self.lock_with(name, FlockOperation::LockExclusive)?;
        lock.ok_or_else(|| Error::io("lock", &path, io::ErrorKind::WouldBlock.into()))
    }

    fn lock_with(&self, name: &str, operation: FlockOperation) -> Result<Option<Lock>> {
        let path = self.service("locks")?.join(name);
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)?;
        match retry_on_intr(|| flock(&file, operation)) {
            Ok(()) => Ok(Some(Lock {
                _shared: share_with_programs(file.file())?,
                file,
            })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(Error::io("lock", &path, errno.into())),
        }
    }

    /// One of the directories that hold no artefact, made if need be.
    pub(crate) fn service(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join(name);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// What was remembered for `request`, if anything.
    pub(crate) fn pin(&self, request: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join("pins").join(request)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Remembers `value` for `request`.
    pub(crate) fn set_pin(&self, request: &str, value: &str) -> Result<()> {
        let name = format!("pin-{request}");
        let _lock = self.lock_with(&name, FlockOperation::LockExclusive)?;
        let tmp = self.service("tmp")?.join(name);
        let set = || -> Result<()> {
            fs::write(&tmp, value)?;
            Ok(fs::rename(&tmp, self.service("pins")?.join(request))?)
        };
        // The error of the work counts, not one of the removal.
        set().inspect_err(|_| drop(remove_file(&tmp)))
    }

    /// Forgets what was remembered for `request`; returns true if there was anything.
    pub(crate) fn unpin(&self, request: &str) -> Result<bool> {
        remove_file(&self.root.join("pins").join(request))
    }

    /// Removes every artefact of `kind` that was not asked for within `unused_for`, except
    /// those being made, and what killed processes have left of that kind.
    pub(crate) fn prune(&self, kind: &str, unused_for: Duration) -> Result<()> {
        let limit = SystemTime::now().checked_sub(unused_for);
        let unfinished = list(&self.root.join("tmp"))?;
        for dir in list(&self.root)?.into_iter().chain(unfinished) {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            let of_kind = name.rsplit_once('-').is_some_and(|(k, _)| k == kind);
            let old = fs::metadata(&dir)
                .and_then(|meta| meta.modified())
                .is_ok_and(|used| limit.is_some_and(|limit| used <= limit));
            if !of_kind || !old {
                continue;
            }
            let lock = self.lock_with(&name, FlockOperation::NonBlockingLockExclusive)?;
            if lock.is_some() {
                remove_tree(&dir)?;
            }
        }
        Ok(())
    }
}

/// Sets the time of `path` to now, for [`Cache::prune`]; returns true if it is there.
fn touch(path: &Path) -> bool {
    // A cache that cannot be written is still good to read.
    let set = |dir: std::fs::File| dir.set_modified(SystemTime::now());
    std::fs::File::open(path).map(set).is_ok()
}

fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
    Ok(paths?)
}

/// Bytes that a tree takes; what cannot be read counts as nothing.
pub(crate) fn size_on_disk(path: &Path) -> u64 {
    let entries = WalkDir::new(path).into_iter().flatten();
    let blocks = entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks()));
    blocks.sum::<u64>() * 512
}

/// Writes `content` to a file unless it has it already, so that its time stays; returns true
/// if it is written.
pub(crate) fn update(path: &Path, content: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, content)?;
    Ok(true)
}

/// Removes a file; returns true if it was there.
pub(crate) fn remove_file(path: &Path) -> Result<bool> {
    if_there(fs::remove_file(path))
}

/// Removes a directory and all that is in it; it need not exist.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    if_there(fs::remove_dir_all(path)).map(drop)
}

fn if_there(removed: io::Result<()>) -> Result<bool> {
    match removed {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::progress::Silent;

    fn cache() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("cache"));
        (dir, cache)
    }

    fn write(dir: &Path) -> Result<()> {
        Ok(fs::write(dir.join("file"), "content")?)
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
    fn a_request_that_cannot_be_remembered_leaves_nothing() {
        let (_dir, cache) = cache();
        // What is there is no file, so none can take its place.
        fs::create_dir_all(cache.root().join("pins/request/x")).unwrap();
        cache.set_pin("request", "a-0").unwrap_err();
        assert!(list(&cache.root().join("tmp")).unwrap().is_empty());
    }

    const LEAVES: &str = "QNIC_TEST_CACHE_OF_A_PROGRAM";
    /// Makes a file once the test opens the pipe beside it.
    const PROGRAM: &str = "echo begun; read line < ../go; touch a-1/late";

    /// The process that is killed while a program of it works on an artefact.
    fn run_a_program(root: impl Into<PathBuf>) {
        let cache = Cache::at(root);
        let made = cache.artefact("a-1", &Silent, |dir| {
            let mut program = crate::command::command("sh");
            program.args(["-c", PROGRAM]);
            program.current_dir(dir.parent().unwrap());
            let on_line = |line: &str| println!("{line}");
            crate::command::run_with("work", &mut program, on_line, |_| None).map(drop)
        });
        made.unwrap();
    }

    #[test]
    fn what_a_killed_process_left_running_is_waited_for() {
        if let Some(root) = env::var_os(LEAVES) {
            return run_a_program(root);
        }
        let (_dir, cache) = cache();
        let go = cache.service("").unwrap().join("go");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &go,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        let this = "cache::tests::what_a_killed_process_left_running_is_waited_for";
        let mut killed = start_this_again(this, LEAVES, cache.root());
        let mut lines = lines_of(&mut killed);
        assert!(lines.any(|line| line.trim_end().ends_with("begun")));
        killed.kill().unwrap();
        killed.wait().unwrap();
        let at_once = FlockOperation::NonBlockingLockExclusive;
        let lock = cache.lock_with("a-1", at_once).unwrap();
        assert!(lock.is_none(), "its program is at work");
        // It is waited for, and what it has made is removed.
        fs::write(go, "go\n").unwrap();
        let path = cache.artefact("a-1", &Silent, write).unwrap();
        assert!(path.join("file").exists() && !path.join("late").exists());
        assert!(list(&cache.root().join("tmp")).unwrap().is_empty());
    }

    const KILLED: &str = "QNIC_TEST_KILLED_CACHE";
    const FILES: usize = 8;
    const ARTEFACTS: usize = 60;

    fn content(file: usize) -> Vec<u8> {
        vec![file as u8; 20_000]
    }

    /// The process that is killed: fills the cache, and says so after each step. Then it waits for
    /// its end, which comes at the latest with its parent's.
    fn fill(root: impl Into<PathBuf>) {
        let cache = Cache::at(root);
        for number in 0..ARTEFACTS {
            let name = format!("a-{number}");
            let path = cache.artefact(&name, &Silent, |dir| {
                for file in 0..FILES {
                    fs::write(dir.join(file.to_string()), content(file))?;
                    println!("step");
                }
                Ok(())
            });
            path.unwrap();
            println!("step");
            cache.set_pin("request", &name).unwrap();
            println!("step");
        }
        io::stdin().read_line(&mut String::new()).unwrap();
    }

    /// Runs the test `this` in a process of its own, with `role` set to the cache.
    fn start_this_again(this: &str, role: &str, root: &Path) -> Child {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", this, "--nocapture"])
            .env(role, root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn lines_of(child: &mut Child) -> impl Iterator<Item = String> {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.map_while(io::Result::ok)
    }

    /// Runs [`fill`] in a process of its own, which is killed behind so many steps.
    fn fill_and_kill(root: &Path, steps: usize) {
        let this = "cache::tests::killed_fifty_times_while_it_fills_the_cache_has_nothing_half";
        let mut child = start_this_again(this, KILLED, root);
        let mut done = lines_of(&mut child).filter(|line| line == "step");
        // The process goes on while it is being killed: it dies somewhere in its next steps.
        assert!(done.nth(steps - 1).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn killed_fifty_times_while_it_fills_the_cache_has_nothing_half() {
        if let Some(root) = env::var_os(KILLED) {
            return fill(root);
        }
        let (_dir, cache) = cache();
        for round in 1..=50 {
            fill_and_kill(cache.root(), round);
            for number in 0..ARTEFACTS {
                let Some(path) = cache.find(&format!("a-{number}")) else {
                    continue;
                };
                for file in 0..FILES {
                    let found = fs::read(path.join(file.to_string())).unwrap();
                    assert!(found == content(file), "{} is half", path.display());
                }
            }
            if let Some(name) = cache.pin("request") {
                assert!(cache.find(&name).is_some(), "{name} is not there");
            }
        }
        assert!(list(&cache.root().join("pins")).unwrap().len() <= 1);
        // Then everything works, and what was left is replaced.
        cache.set_pin("request", "a-0").unwrap();
        for number in 0..ARTEFACTS {
            let name = format!("a-{number}");
            cache.artefact(&name, &Silent, write).unwrap();
        }
        assert!(list(&cache.root().join("tmp")).unwrap().is_empty());
    }

    #[test]
    fn prune_keeps_what_was_used_what_is_locked_and_other_kinds() {
        let (_dir, cache) = cache();
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        for (name, used) in [
            ("a-old", long_ago),
            ("a-locked", long_ago),
            ("a-used", SystemTime::now()),
            ("b-other", long_ago),
        ] {
            let path = cache.artefact(name, &Silent, write).unwrap();
            File::open(path).unwrap().set_modified(used).unwrap();
        }
        cache.set_pin("request", "a-old").unwrap();
        let _lock = cache.lock("a-locked", &Silent).unwrap();
        // A process that another test starts has this one's open locks until it runs its program.
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while cache.root().join("a-old").exists() {
            assert!(std::time::Instant::now() < end, "it is not pruned");
            cache.prune("a", Duration::from_secs(100)).unwrap();
        }
        for kept in ["a-locked", "a-used", "b-other"] {
            assert!(cache.find(kept).is_some(), "{kept}");
        }
        assert_eq!(cache.pin("request").as_deref(), Some("a-old"));
    }
}
