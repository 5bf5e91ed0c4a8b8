//! A runtime directory that goes away with its test, and a process that does not end.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::accel::Accel;
use crate::dirs::{ClusterDir, NodeDir};
use crate::lock::LockFile;
use crate::manifest::{Manifest, Mode};
use crate::process::{ProcessId, MARKER};
use crate::state::Runtime;
use crate::{ClusterSpec, NodeSpec, Result};

/// A runtime of a test, and the directory of its cluster `c`.
pub(crate) struct TestDir {
    temp: tempfile::TempDir,
    pub(crate) runtime: Runtime,
    pub(crate) dir: ClusterDir,
}

impl TestDir {
    /// The directories are not there yet.
    pub(crate) fn new() -> Self {
        // A comma has a meaning on QEMU's command line.
        let temp = tempfile::Builder::new().prefix("a,b").tempdir().unwrap();
        let runtime = Runtime::at(temp.path().join("r"), temp.path().join("d")).unwrap();
        let dir = runtime.dir("c");
        Self { temp, runtime, dir }
    }

    /// Makes the cluster, which has one node, as a program does that boots it.
    pub(crate) fn create(&self, mode: Mode) -> Result<(ClusterDir, LockFile)> {
        let manifest = Manifest {
            mode,
            accel: Accel::Tcg,
            owner: ProcessId::own(),
            created: 1,
            disks: self.runtime.disks("c"),
            host: None,
        };
        self.runtime.create(&Self::spec(), &manifest)
    }

    /// What [`Self::create`] makes a cluster of.
    pub(crate) fn spec() -> ClusterSpec {
        ClusterSpec::new("c").with(NodeSpec::new("a"))
    }

    /// The directory of the cluster's node `a`, which is made.
    pub(crate) fn node(&self) -> NodeDir {
        let node = self.dir.node("a");
        std::fs::create_dir_all(node.path()).unwrap();
        node
    }

    pub(crate) fn path(&self) -> &Path {
        self.temp.path()
    }
}

/// A process of the cluster in `dir` that ignores SIGTERM, as a stuck QEMU would.
pub(crate) fn stubborn(dir: &Path) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' TERM; echo; read forever"]);
    command.env(MARKER, dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}
