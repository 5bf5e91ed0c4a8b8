//! The files of one cluster and of its nodes, and what is in those that are its own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use qnic_config::MAX_SOCKET_PATH;

use crate::lock::LockFile;
use crate::state::{write, Manifest, COMMAND_SLOTS};
use crate::{ClusterSpec, Error, Result};

/// The directory of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterDir(pub(crate) PathBuf);

/// Name of a device process in messages, and of its files.
pub(crate) const DEVICE: &str = "device";

/// The files of one device process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceFiles(PathBuf);

/// The directory of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeDir(PathBuf);

impl ClusterDir {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        self.0.join("manifest.json")
    }

    pub(crate) fn cluster_file(&self) -> PathBuf {
        self.0.join("cluster.toml")
    }

    /// The files of a device process; the only one of a cluster has no name.
    pub(crate) fn device(&self, process: Option<&str>) -> DeviceFiles {
        let stem = match process {
            None => DEVICE.to_owned(),
            Some(name) => format!("{DEVICE}-{name}"),
        };
        DeviceFiles(self.0.join(stem))
    }

    /// Where the numbers of all device processes are that were started.
    pub(crate) fn device_pids(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let is_pid = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(DEVICE) && name.ends_with(".pid"))
        };
        paths.filter(is_pid).collect()
    }

    pub(crate) fn node(&self, name: &str) -> NodeDir {
        NodeDir(self.nodes().join(name))
    }

    /// The directory with one directory for each node.
    pub(crate) fn nodes(&self) -> PathBuf {
        self.0.join("nodes")
    }

    pub(crate) fn mark_booted(&self) -> Result<()> {
        write(&self.0.join("booted"), b"")
    }

    pub(crate) fn is_booted(&self) -> bool {
        self.0.join("booted").exists()
    }

    pub(crate) fn read_manifest(&self) -> Option<Manifest> {
        serde_json::from_slice(&fs::read(self.manifest()).ok()?).ok()
    }

    /// Takes the cluster's lock, which the program has that boots, owns or removes the
    /// cluster; `None` if another one has it.
    pub(crate) fn try_lock(&self) -> Result<Option<LockFile>> {
        let path = self.0.join("lock");
        let mut lock = LockFile::try_lock(&path)?;
        if let Some(LockFile(file)) = &mut lock {
            let emptied = file.set_len(0);
            let written = emptied.and_then(|()| write!(file, "{}", std::process::id()));
            written.map_err(Error::io("write", &path))?;
        }
        Ok(lock)
    }

    /// The process that last took the lock.
    pub(crate) fn holder(&self) -> Option<i32> {
        fs::read_to_string(self.0.join("lock")).ok()?.parse().ok()
    }

    /// Fails if the path of a socket would be longer than the system allows.
    pub(crate) fn check_paths(&self, spec: &ClusterSpec) -> Result<()> {
        let nodes = spec.nodes.iter();
        let commands = nodes.map(|node| self.node(&node.name).command(COMMAND_SLOTS - 1));
        let processes = spec.device_processes().into_iter();
        let controls = processes.map(|process| self.device(process).control());
        for longest in commands.chain(controls) {
            let length = longest.as_os_str().len();
            if length > MAX_SOCKET_PATH {
                let message = format!(
                    "the path of a socket, {}, has {length} bytes, {} more than the system allows: \
                     choose shorter names or a shorter XDG_RUNTIME_DIR",
                    longest.display(),
                    length - MAX_SOCKET_PATH,
                );
                return Err(Error::Host(message));
            }
        }
        Ok(())
    }
}

impl DeviceFiles {
    fn file(&self, extension: &str) -> PathBuf {
        // A name has no dot: there is no extension that this could replace.
        self.0.with_extension(extension)
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.file("toml")
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.file("sock")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.file("log")
    }

    pub(crate) fn pid(&self) -> PathBuf {
        self.file("pid")
    }

    /// Where the other device processes call it.
    pub(crate) fn calls(&self) -> PathBuf {
        self.file("shm")
    }
}

impl NodeDir {
    /// The node's name.
    pub(crate) fn name(&self) -> &str {
        let name = self.0.file_name().and_then(|name| name.to_str());
        name.unwrap_or_default()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// vhost-user socket between the device process and QEMU.
    pub(crate) fn nic(&self) -> PathBuf {
        self.file("nic.sock")
    }

    /// Monitor for commands.
    pub(crate) fn monitor(&self) -> PathBuf {
        self.file("qmp.sock")
    }

    /// Monitor for events.
    pub(crate) fn events(&self) -> PathBuf {
        self.file("events.sock")
    }

    pub(crate) fn agent(&self) -> PathBuf {
        self.file("agent.sock")
    }

    /// Socket behind the port of command slot `slot`.
    pub(crate) fn command(&self, slot: usize) -> PathBuf {
        self.file(&format!("command{slot}.sock"))
    }

    pub(crate) fn command_lock(&self, slot: usize) -> PathBuf {
        self.file(&format!("command{slot}.lock"))
    }

    pub(crate) fn console(&self) -> PathBuf {
        self.file("console.log")
    }

    pub(crate) fn ready(&self) -> PathBuf {
        self.file("ready.log")
    }

    pub(crate) fn qemu_log(&self) -> PathBuf {
        self.file("qemu.log")
    }

    pub(crate) fn qemu_pid(&self) -> PathBuf {
        self.file("qemu.pid")
    }
}
