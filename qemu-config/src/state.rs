//! What a cluster leaves on disk while it exists, and the locks on it.
//!
//! ```text
//!   $XDG_RUNTIME_DIR/qnic/            or /tmp/qnic-<uid>/
//!     <cluster>/                      locked by the program that boots or owns it
//!       manifest.json                 mode, accelerator, owner, where the disks are
//!       cluster.toml                  the cluster file, every default spelt out
//!       booted                        exists once all nodes were ready
//!       device.{toml,sock,pid,log}    the device process; of several, each has files
//!                                     device-<name>.*, and .shm where the others call it
//!       machines.{json,lock}          parallel machines, and a lock: taken to change them
//!       machine-run<slot>.lock        locked while a program runs on one
//!       ssh-key, ssh-key.pub          key pair that guests of disk images let in
//!       log-keeper.log                what keeps the logs small complains of
//!       nodes/<node>/                 vhost-user sockets of NIC and Ethernet port; monitor,
//!                                     agent and command sockets; names for /etc/hosts;
//!                                     console, ready and QEMU logs; pid; for a debugger:
//!                                     socket, commands, symbols.
//!                                     Logs keep their first and their last part
//!                                     (qnic-log-keeper)
//!   /var/tmp/qnic-<uid>/<cluster>/    blank disks, and seeds of disk images
//! ```
//!
//! The top directory itself is locked while clusters are made and removed; it goes
//! with the last of them.
//!
//! A directory that is not locked, and neither detached nor booted, was left by a program that
//! died: it is removed when noticed. Taking the locks and removing a cluster writes no file, so
//! both work in a directory that is full.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::dirs::{directories_in, write, ClusterDir};
use crate::lock::LockFile;
use crate::manifest::{Manifest, Mode};
use crate::qemu::{disk_file, disks_of};
use crate::{ClusterSpec, Error, Result};

/// Where the clusters of this user are.
#[derive(Clone, Debug)]
pub struct Runtime {
    root: PathBuf,
    disks: PathBuf,
}

impl Runtime {
    /// The runtime directory that the environment names.
    ///
    /// # Errors
    /// Returns an error if it belongs to another user.
    pub fn from_env() -> Result<Self> {
        let user = rustix::process::getuid().as_raw();
        let own = format!("qnic-{user}");
        let root = match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(dir) if Path::new(&dir).is_dir() => Path::new(&dir).join("qnic"),
            _ => Path::new("/tmp").join(&own),
        };
        Self::at(root, Path::new("/var/tmp").join(own))
    }

    /// A runtime of its own: `root` for state, `disks` for disk images. Both are made
    /// when needed, and removed with the last cluster.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn at(root: PathBuf, disks: PathBuf) -> Result<Self> {
        for dir in [&root, &disks] {
            if dir.symlink_metadata().is_ok() {
                check_owner(dir)?;
            }
        }
        Ok(Self { root, disks })
    }

    /// The directory with one directory for each cluster.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Names of the clusters that exist, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names = directories_in(&self.root);
        names.sort();
        names
    }

    /// Names of the clusters that belong to no program, sorted.
    pub fn detached_names(&self) -> Vec<String> {
        let detached = |name: &String| {
            let manifest = self.dir(name).read_manifest();
            manifest.is_some_and(|manifest| manifest.mode == Mode::Detached)
        };
        self.names().into_iter().filter(detached).collect()
    }

    pub(crate) fn dir(&self, name: &str) -> ClusterDir {
        ClusterDir(self.root.join(name))
    }

    pub(crate) fn disks(&self, name: &str) -> PathBuf {
        self.disks.join(name)
    }

    /// The directory of an existing cluster.
    pub(crate) fn existing(&self, name: &str) -> Result<ClusterDir> {
        let known = self.names();
        if known.iter().any(|known| known == name) {
            return Ok(self.dir(name));
        }
        Err(Error::NoSuchCluster {
            name: name.to_owned(),
            known,
        })
    }

    /// Keeps others from making or removing clusters until it is dropped.
    pub(crate) fn lock(&self) -> Result<File> {
        loop {
            make_dir(&self.root)?;
            check_owner(&self.root)?;
            let file = File::open(&self.root).map_err(Error::io("open", &self.root))?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)
                .map_err(|error| Error::io("lock", &self.root)(error.into()))?;
            // The process that had the lock before may have removed the directory.
            let ours = file.metadata().map(|metadata| metadata.ino());
            let current = fs::metadata(&self.root).map(|metadata| metadata.ino());
            if matches!((ours, current), (Ok(ours), Ok(current)) if ours == current) {
                return Ok(file);
            }
        }
    }

    /// Removes the cluster `name`: the disks first, so that a second try finds the rest.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        for dir in [&self.disks(name), self.dir(name).path()] {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", dir)(error));
                }
                _ => {}
            }
        }
        for empty in [&self.disks, &self.root] {
            // Fails, as it should, while there are other clusters.
            let _ = fs::remove_dir(empty);
        }
        Ok(())
    }

    /// Makes the directory of a new cluster and its disks, and takes its lock. Nothing of it is left
    /// after a failure. The caller has [`Self::lock`].
    pub(crate) fn create(
        &self,
        spec: &ClusterSpec,
        manifest: &Manifest,
    ) -> Result<(ClusterDir, LockFile)> {
        let dir = self.dir(&spec.name);
        dir.check_paths(spec)?;
        make_dir(dir.path())?;
        let lock = dir.try_lock()?.ok_or_else(|| Error::InUse {
            name: spec.name.clone(),
            pid: dir.owner(),
        })?;
        if let Err(error) = self.fill(&dir, spec, manifest) {
            // What cannot be removed now is removed when it is noticed.
            let _ = self.remove(&spec.name);
            return Err(error);
        }
        Ok((dir, lock))
    }

    fn fill(&self, dir: &ClusterDir, spec: &ClusterSpec, manifest: &Manifest) -> Result<()> {
        let text = serde_json::to_vec(manifest).map_err(|error| Error::Host(error.to_string()))?;
        write(&dir.manifest(), &text)?;
        write(&dir.cluster_file(), spec.to_toml()?.as_bytes())?;
        for node in &spec.nodes {
            let files = dir.node(&node.name);
            make_dir(files.path())?;
            if let Some(hosts) = spec.hosts_of(node) {
                write(&files.hosts(), hosts.as_bytes())?;
            }
        }
        make_dir(&manifest.disks)?;
        check_owner(&self.disks)?;
        for node in &spec.nodes {
            for (disk, bytes) in disks_of(node) {
                let path = manifest.disks.join(disk_file(&node.name, disk));
                let file = File::create(&path).map_err(Error::io("create", &path))?;
                file.set_len(bytes).map_err(Error::io("size", &path))?;
            }
        }
        Ok(())
    }
}

fn check_owner(dir: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(dir).map_err(Error::io("look at", dir))?;
    if metadata.is_dir() && metadata.uid() == rustix::process::getuid().as_raw() {
        return Ok(());
    }
    Err(Error::Host(format!(
        "{} is not a directory of yours: remove it",
        dir.display()
    )))
}

fn make_dir(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(Error::io("create", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;
    use crate::ByteSize;

    #[test]
    fn a_cluster_is_made_found_locked_and_removed() {
        let test = TestDir::new();
        let runtime = &test.runtime;
        let (dir, lock) = test.create(Mode::Detached).unwrap();
        assert_eq!(runtime.names(), ["c"]);
        assert_eq!(runtime.detached_names(), ["c"]);
        let saved = ClusterSpec::load(&dir.cluster_file());
        assert_eq!(saved.unwrap(), TestDir::spec());
        assert_eq!(dir.read_manifest().unwrap().mode, Mode::Detached);
        assert!(dir.try_lock().unwrap().is_none());
        assert_eq!(dir.owner(), Some(std::process::id() as i32));
        drop(lock);
        assert!(dir.try_lock().unwrap().is_some());
        runtime.remove("c").unwrap();
        assert!(runtime.names().is_empty() && !runtime.disks("c").exists());
        assert!(!runtime.root().exists());
        let gone = runtime.existing("c");
        assert!(matches!(gone, Err(Error::NoSuchCluster { .. })));
    }

    #[test]
    fn a_node_with_an_ethernet_port_has_the_names_of_all() {
        let test = TestDir::new();
        let (dir, lock) = test.create(Mode::Detached).unwrap();
        let manifest = dir.read_manifest().unwrap();
        let hosts = fs::read_to_string(dir.node("a").hosts()).unwrap();
        assert_eq!(hosts, "10.71.0.1 a\n");
        drop(lock);
        test.runtime.remove("c").unwrap();
        let mut spec = TestDir::spec().with(crate::NodeSpec::new("b"));
        let (dir, lock) = test.runtime.create(&spec, &manifest).unwrap();
        let hosts = fs::read_to_string(dir.node("b").hosts()).unwrap();
        assert_eq!(hosts, "10.71.0.1 a\n10.71.0.2 b\n");
        drop(lock);
        test.runtime.remove("c").unwrap();
        spec.ethernet = crate::OnOff::Off;
        let (dir, _lock) = test.runtime.create(&spec, &manifest).unwrap();
        assert!(!dir.node("a").hosts().exists());
    }

    #[test]
    fn a_cluster_that_cannot_be_made_leaves_nothing() {
        let test = TestDir::new();
        let (dir, lock) = test.create(Mode::Detached).unwrap();
        let manifest = dir.read_manifest().unwrap();
        drop(lock);
        test.runtime.remove("c").unwrap();
        let mut spec = TestDir::spec();
        // No file is so long.
        spec.nodes[0].disk = Some(ByteSize(u64::MAX));
        let error = test.runtime.create(&spec, &manifest).unwrap_err();
        assert!(error.to_string().contains("cannot size"), "{error}");
        assert!(test.runtime.names().is_empty() && !manifest.disks.exists());
    }

    #[test]
    fn a_socket_path_that_is_too_long_is_refused_before_anything_is_made() {
        let mut test = TestDir::new();
        let long = test.path().join("r".repeat(100));
        test.runtime = Runtime::at(long, test.path().join("d")).unwrap();
        let error = test.create(Mode::Detached).unwrap_err().to_string();
        assert!(error.contains("shorter XDG_RUNTIME_DIR"), "{error}");
        assert!(test.runtime.names().is_empty());
    }
}
