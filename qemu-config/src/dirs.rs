//! The files of one cluster and of its nodes, and what is in those that this crate writes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use qnic_config::MAX_SOCKET_PATH;

use crate::lock::LockFile;
use crate::manifest::Manifest;
use crate::{ClusterSpec, Error, Result, COMMAND_SLOTS};

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

/// Methods that give the paths of files, made with the method `how` of the directory's path.
macro_rules! files {
    ($how:ident: $($(#[$doc:meta])* $method:ident = $name:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $method(&self) -> PathBuf {
            self.0.$how($name)
        }
    )*};
}

/// Names of the directories in `dir`, none if it cannot be read.
pub(crate) fn directories_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.path().is_dir());
    directories
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).map_err(Error::io("write", path))
}

/// Makes an empty log. All its writers append, so that it may be made shorter meanwhile.
pub(crate) fn create_log(path: &Path) -> Result<File> {
    let made = File::create(path).and_then(|_| File::options().append(true).open(path));
    made.map_err(Error::io("create", path))
}

impl ClusterDir {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    files! { join:
        manifest = "manifest.json";
        cluster_file = "cluster.toml";
        /// The directory with one directory for each node.
        nodes = "nodes";
        booted = "booted";
        log_keeper_log = "log-keeper.log";
        /// The private key by which guests of disk images let their users in; `.pub`: the public one.
        ssh_key = "ssh-key";
        machines = "machines.json";
        machines_lock = "machines.lock";
    }

    /// Locked while the run of a parallel machine that has slot `slot` lasts.
    pub(crate) fn machine_run(&self, slot: usize) -> PathBuf {
        self.0.join(format!("machine-run{slot}.lock"))
    }

    /// The files of a device process; the only one of a cluster has no name.
    pub(crate) fn device(&self, process: Option<&str>) -> DeviceFiles {
        let stem = match process {
            None => DEVICE.to_owned(),
            Some(name) => format!("{DEVICE}-{name}"),
        };
        DeviceFiles(self.0.join(stem))
    }

    /// The files with the numbers of all device processes that were started.
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

    pub(crate) fn mark_booted(&self) -> Result<()> {
        write(&self.booted(), b"")
    }

    pub(crate) fn is_booted(&self) -> bool {
        self.booted().exists()
    }

    pub(crate) fn read_manifest(&self) -> Option<Manifest> {
        serde_json::from_slice(&fs::read(self.manifest()).ok()?).ok()
    }

    /// Takes the lock of the cluster, which is one on its directory. The program that boots, owns or
    /// removes the cluster holds it. `None` if another program does.
    pub(crate) fn try_lock(&self) -> Result<Option<LockFile>> {
        LockFile::try_lock_directory(&self.0)
    }

    /// The program that made the cluster, as long as it runs.
    pub(crate) fn owner(&self) -> Option<i32> {
        let owner = self.read_manifest()?.owner?;
        owner.is_alive().then_some(owner.pid)
    }

    /// Fails if the path of a socket would be longer than the system allows.
    pub(crate) fn check_paths(&self, spec: &ClusterSpec) -> Result<()> {
        let nodes = spec.nodes.iter();
        let commands = nodes.map(|node| self.node(&node.name).command(COMMAND_SLOTS - 1));
        let processes = spec.device_processes().into_iter();
        let controls = processes.map(|process| self.device(process).control());
        let nics = spec.nics().into_iter();
        let nics = nics.map(|nic| self.node(&nic.node.name).nic(nic.name));
        for longest in commands.chain(controls).chain(nics) {
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
    // A name has no dot: there is no extension that this could replace.
    files! { with_extension:
        config = "toml";
        control = "sock";
        log = "log";
        pid = "pid";
        /// Where the other device processes call it.
        calls = "shm";
        /// Where Prometheus finds its metrics.
        http = "http";
        /// Where programs of the host join its Ethernet.
        host = "host";
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

    /// Socket behind the port of command slot `slot`.
    pub(crate) fn command(&self, slot: usize) -> PathBuf {
        self.0.join(format!("command{slot}.sock"))
    }

    /// vhost-user socket between the device process and QEMU, of the NIC with this name.
    pub(crate) fn nic(&self, name: Option<&str>) -> PathBuf {
        let name = name.map(|name| format!(".{name}"));
        self.0.join(format!("nic{}.sock", name.unwrap_or_default()))
    }

    pub(crate) fn command_lock(&self, slot: usize) -> PathBuf {
        self.0.join(format!("command{slot}.lock"))
    }

    files! { join:
        /// Monitor for commands.
        monitor = "qmp.sock";
        /// Monitor for events.
        events = "events.sock";
        agent = "agent.sock";
        /// vhost-user socket between the device process and QEMU, of the Ethernet port.
        ethernet = "eth.sock";
        /// Lines of `/etc/hosts` in the guest, if it has an Ethernet port.
        hosts = "hosts";
        /// Where QEMU listens for a debugger.
        gdb_socket = "gdb.sock";
        /// What the debugger reads: its commands, the symbols of the kernel, the module.
        gdb_script = "gdb.script";
        gdb_symbols = "gdb.symbols";
        gdb_module = "gdb.ko";
        /// Locked while a debugger is attached.
        gdb_lock = "gdb.lock";
        /// vhost-user socket between QEMU and the process that serves a directory, and its log.
        share = "share.sock";
        share_log = "share.log";
        console = "console.log";
        ready = "ready.log";
        qemu_log = "qemu.log";
        qemu_pid = "qemu.pid";
    }
}
