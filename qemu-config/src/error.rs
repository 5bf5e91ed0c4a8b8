//! What can go wrong with a cluster, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::wait::{stop_in, Stop};

/// Result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done with a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error in a cluster file, or in a specification that a program made.
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// A cluster file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    ClusterFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The specification cannot be written as TOML.
    #[error("cannot describe the cluster as TOML: {0}")]
    Describe(#[source] toml::ser::Error),
    /// A file operation failed.
    #[error("cannot {what} {}: {source}{}", path.display(), no_room(path, source))]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// Where it failed.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// QEMU, a kernel or the guest image could not be had.
    #[error(transparent)]
    Images(#[from] qnic_images::Error),
    /// What was asked for cannot be written to where it should go.
    #[error("cannot write: {0}")]
    Output(#[source] io::Error),
    /// The user, or the program, gave up.
    #[error("interrupted")]
    Interrupted,
    /// Something did not happen in time.
    #[error("{what} did not happen within {} s{}", after.as_secs_f32(), tail(log))]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// The end of the log that may tell why; may be empty.
        log: String,
    },
    /// A process of the cluster ended, or reported that it cannot go on.
    #[error("{subject}: {what}{}", tail(log))]
    Failed {
        /// The node, or `device`.
        subject: String,
        /// What happened to it.
        what: String,
        /// The end of the log that may tell why; may be empty.
        log: String,
    },
    /// The guest's agent, or the helper in the guest, answered with an error or nonsense.
    #[error("node {node}: {message}")]
    Guest {
        /// The node.
        node: String,
        /// What it said.
        message: String,
    },
    /// The node has no guest.
    #[error("node {node} is a process of this machine (host mode): that needs a guest")]
    NoGuest {
        /// The node.
        node: String,
    },
    /// QEMU's monitor refused a command or answered nonsense.
    #[error("QEMU of node {node}: {message}")]
    Monitor {
        /// The node.
        node: String,
        /// What it said.
        message: String,
    },
    /// No memory can be added to the guest, or not so much.
    #[error("node {node}: no memory was added: {message}")]
    Memory {
        /// The node.
        node: String,
        /// Why.
        message: String,
    },
    /// As many commands run on that node as can.
    #[error("node {node} already runs {limit} commands at the same time, which is all it can: wait for one to end")]
    Busy {
        /// The node.
        node: String,
        /// How many can run.
        limit: usize,
    },
    /// There is no cluster of that name.
    #[error("there is no cluster \"{name}\"{}", choices("; running: ", known))]
    NoSuchCluster {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// No cluster runs and none was named.
    #[error("no cluster is running: start one with \"qnic up FILE\"")]
    NoCluster,
    /// Several clusters run and none was named.
    #[error("{} clusters are running ({}): name one with --cluster", known.len(), known.join(", "))]
    WhichCluster {
        /// What there is.
        known: Vec<String>,
    },
    /// Another version of qnic has booted the cluster.
    #[error(
        "cluster \"{name}\" was booted by qnic {theirs}, and this is qnic {}: end it with \"qnic down {name}\" and boot \
         it again, or use the version that has booted it",
        crate::manifest::VERSION
    )]
    OtherVersion {
        /// The cluster.
        name: String,
        /// That version.
        theirs: String,
    },
    /// There is no node of that name.
    #[error(
        "cluster {cluster} has no node \"{name}\"{}",
        choices("; it has: ", known)
    )]
    NoSuchNode {
        /// The cluster.
        cluster: String,
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A cluster of that name exists already.
    #[error("cluster \"{name}\" exists already{}: use another name, or \"qnic down {name}\"", owner(*pid))]
    InUse {
        /// The name.
        name: String,
        /// The process that has its lock, if one does.
        pid: Option<i32>,
    },
    /// A program that boots or owns the cluster still runs.
    #[error("cluster \"{name}\" belongs to a program that runs{}: end it, and its cluster goes with it", owner(*pid))]
    Owned {
        /// The name.
        name: String,
        /// The process, if it is known.
        pid: Option<i32>,
    },
    /// The machine cannot run what was asked for.
    #[error("{0}")]
    Host(String),
    /// A program that the cluster needs could not be built.
    #[error("cannot build {what}: {message}")]
    Build {
        /// The program.
        what: String,
        /// What cargo said.
        message: String,
    },
    /// What was asked of a parallel machine cannot be done.
    #[error(transparent)]
    Machine(#[from] crate::MachineError),
    /// A command could not be started in a guest.
    #[error("node {node}: cannot start {message}")]
    NotStarted {
        /// The node.
        node: String,
        /// The guest's error number, such as 2 for "no such file".
        errno: i32,
        /// The command and the guest's error.
        message: String,
    },
}

impl Error {
    /// The guest of `node` said `message`, or that is what is wrong with it.
    pub(crate) fn guest(node: &str, message: impl Into<String>) -> Self {
        Self::Guest {
            node: node.to_owned(),
            message: message.into(),
        }
    }

    /// QEMU's monitor of `node` said `message`, or that is what is wrong with it.
    pub(crate) fn monitor(node: &str, message: impl Into<String>) -> Self {
        Self::Monitor {
            node: node.to_owned(),
            message: message.into(),
        }
    }

    /// No memory is added to `node`, for the reason `message`.
    pub(crate) fn memory(node: &str, message: String) -> Self {
        Self::Memory {
            node: node.to_owned(),
            message,
        }
    }

    /// What `error` of a connection means: a wait was cancelled, or else `failure`.
    pub(crate) fn of_connection(error: &io::Error, failure: impl FnOnce() -> Self) -> Self {
        match stop_in(error) {
            Some(Stop::Cancelled) => Self::Interrupted,
            _ => failure(),
        }
    }

    /// For `map_err` of a file operation.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}

/// Names the directory in which there is no room, if that is what the system said.
fn no_room(path: &Path, source: &io::Error) -> String {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    match path.parent().filter(|_| full.contains(&source.kind())) {
        Some(directory) => format!("; make room in {}", directory.display()),
        None => String::new(),
    }
}

fn tail(log: &str) -> String {
    if log.is_empty() {
        return String::new();
    }
    format!("\n--- end of its log\n{}\n---", log.trim_end())
}

fn choices(lead: &str, known: &[String]) -> String {
    if known.is_empty() {
        return String::new();
    }
    format!("{lead}{}", known.join(", "))
}

fn owner(pid: Option<i32>) -> String {
    pid.map(|pid| format!(" (in use by process {pid})"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_directory_is_named() {
        let of = |kind: io::ErrorKind| Error::io("write", Path::new("/run/q/c/log"))(kind.into());
        let full = of(io::ErrorKind::StorageFull).to_string();
        assert!(full.starts_with("cannot write /run/q/c/log: "), "{full}");
        assert!(full.ends_with("; make room in /run/q/c"), "{full}");
        let other = of(io::ErrorKind::NotFound).to_string();
        assert!(!other.contains("room"), "{other}");
    }
}
