//! A cluster that ends with its owner.

use std::process::Child;

use crate::dirs::ClusterDir;
use crate::lock::LockFile;
use crate::state::Runtime;
use crate::{teardown, Result};

/// A cluster that this process must end.
pub(crate) struct Owned {
    pub(crate) runtime: Runtime,
    pub(crate) name: String,
    pub(crate) dir: ClusterDir,
    /// Taken when the cluster is ended or detached.
    pub(crate) lock: Option<LockFile>,
    pub(crate) children: Vec<Child>,
}

impl Owned {
    /// Leaves the cluster running when this process ends.
    pub(crate) fn detach(mut self) {
        self.lock = None;
        self.children.clear();
    }

    /// Ends the cluster.
    pub(crate) fn end(&mut self) -> Result<()> {
        let Some(lock) = self.lock.take() else {
            return Ok(());
        };
        let ended = teardown::end(&self.runtime, &self.name, &self.dir, lock);
        for child in &mut self.children {
            // They have ended; this takes their exit status, so that no zombie stays.
            let _ = child.try_wait();
        }
        ended
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(cluster = self.name, %error, "cannot end the cluster");
        }
    }
}
