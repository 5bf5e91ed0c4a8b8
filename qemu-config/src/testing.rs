//! A runtime directory that goes away with its test.

use std::path::Path;

use crate::dirs::{ClusterDir, NodeDir};
use crate::state::Runtime;

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
