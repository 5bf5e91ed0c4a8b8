//! The families of the interface: one source file, one header, one man page each.

use std::path::{Path, PathBuf};

/// Source files of each header, in the order in which headers need each other.
pub(crate) const FAMILIES: &[(&str, &[&str])] = &[
    ("error", &["codes", "error"]),
    ("nic", &["nic"]),
    ("endpoint", &["endpoint"]),
    ("memory", &["memory"]),
    ("request", &["request"]),
    ("transfer", &["transfer"]),
    ("notification", &["notification"]),
    ("atomic", &["atomic"]),
    ("message", &["message", "probe"]),
    ("names", &["names"]),
    ("group", &["group"]),
    ("sync", &["sync"]),
    ("channel", &["channel"]),
    ("datagram", &["datagram"]),
    ("stream", &["stream"]),
    ("machine", &["machine"]),
];

/// A file of this package.
pub(crate) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The text of a source file.
pub(crate) fn source(name: &str) -> String {
    std::fs::read_to_string(file(&format!("src/{name}.rs"))).unwrap()
}
