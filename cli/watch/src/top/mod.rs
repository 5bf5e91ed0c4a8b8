//! `qnic top`: rates, depths, page-table hits and times of stages of a cluster's NICs, live.
//!
//! ```text
//!   device processes ── control socket: stats, table ──► snapshot ──┐
//!                                                        snapshot ──┴─► rows ──► screen, text, JSON
//! ```
//! | module | holds |
//! |---|---|
//! | `snapshot` | what the device processes say at one time |
//! | `model`, `occupants` | what has happened between two snapshots, to nodes, and to their processes and peers |
//! | `screen` | what `qnic top` shows: once, or until a key or a signal ends it (feature `screen`) |
//! | … `view` | the rows on a screen, by ratatui |
//! | … `tables` | the columns of all tables, and the rows as text |
//! | … `live` | the terminal: keys, and how it is given back |
//!
//! A snapshot costs the engine what `qnic stats` does. Nothing is kept but two snapshots.

mod model;
mod occupants;
#[cfg(feature = "screen")]
mod screen;
mod snapshot;

use std::path::PathBuf;

use qnic_cluster::Cluster;

pub use model::{rows, Row, StageRow};
pub use occupants::{PeerRow, ProcessRow};
#[cfg(feature = "screen")]
pub use screen::{run, Settings};
pub use snapshot::{Entry, NodeSnapshot, Snapshot};

/// Where snapshots come from.
pub enum Source {
    /// The device processes of a cluster.
    Cluster(Box<Cluster>),
    /// A device process, by its control socket.
    Socket(PathBuf),
}
