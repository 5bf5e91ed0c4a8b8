//! What is written down of a cluster when it is made.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::accel::Accel;
use crate::process::ProcessId;

/// What ends the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The program that booted it; it ends with that program, whatever ends that.
    Attached,
    /// A call of [`crate::down`].
    Detached,
}

/// The programs of a cluster without guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostPrograms {
    /// The helper that runs commands.
    pub(crate) helper: PathBuf,
    /// Directory of `qnic-app`, which commands find before all others.
    pub(crate) directory: PathBuf,
}

/// Facts about a cluster that are fixed when it is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) mode: Mode,
    pub(crate) accel: Accel,
    pub(crate) owner: Option<ProcessId>,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) disks: PathBuf,
    /// Its nodes are no guests, and have these programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<HostPrograms>,
}

/// Seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}
