//! What is written down of a cluster when it is made.
//!
//! Each version of qnic reads what others have written: fields that are here stay, and those that come have a default. So
//! a cluster outlives an upgrade. The new version knows it by its version, ends it, and does nothing else with it.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::accel::Accel;
use crate::process::ProcessId;
use crate::{Error, Result};

/// The version of this qnic.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What stands for the version of a qnic that did not write it down.
const UNWRITTEN: &str = "(an earlier version)";

fn unwritten() -> String {
    UNWRITTEN.to_owned()
}

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
    /// The version of the qnic that booted it.
    #[serde(default = "unwritten")]
    pub(crate) version: String,
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

impl Manifest {
    /// Fails if another version of qnic has booted the cluster, which is called `name`.
    pub(crate) fn check_version(&self, name: &str) -> Result<()> {
        if self.version == VERSION {
            return Ok(());
        }
        Err(Error::OtherVersion {
            name: name.to_owned(),
            theirs: self.version.clone(),
        })
    }
}

/// Seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}
