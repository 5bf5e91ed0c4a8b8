//! Where the trials of one cluster on several hosts meet.

use qnic_cluster::Cancel;
use serde::{Deserialize, Serialize};

/// What all hosts have done before any goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Their nodes are ready, and have the program.
    Booted,
    /// The program has ended on their nodes, which others may have used until then.
    Ran,
}

/// Brings the hosts of a cluster together.
pub trait Gate: Send + Sync {
    /// Waits until every host has done `step`. Returns false if `cancel` was pulled before.
    fn pass(&self, step: Step, cancel: &Cancel) -> bool;
}
