//! A directory of the host in a guest (`share` of `[[node]]`).
//!
//! ```toml
//! share = "results"                                            # at /mnt/share, read only
//! share = { path = "results", at = "/data", writable = true }
//! ```

use std::fmt;
use std::path::{Path, PathBuf};

use qnic_config::{require, ConfigError};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A directory of the host that a guest mounts when it boots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShareSpec {
    /// Where it is on the host.
    pub path: PathBuf,
    /// Where it is in the guest.
    pub at: PathBuf,
    /// The guest may change it, with the rights of the user that boots the cluster.
    pub writable: bool,
}

/// Directories of a guest that are not to be hidden.
const NEEDED: [&str; 10] = [
    "bin", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr",
];

impl ShareSpec {
    /// A directory at `/mnt/share`, for reading.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            at: mount_point(),
            writable: false,
        }
    }

    pub(super) fn check(&self, key: &str) -> Result<(), ConfigError> {
        let at = self.at.to_string_lossy();
        let odd = |c: char| c.is_whitespace() || c == '"' || c.is_control();
        let fits = self.at.is_absolute() && self.at != Path::new("/") && !at.contains(odd);
        let message =
            format!("expected an absolute path in the guest without blanks, found \"{at}\"");
        require(fits, format!("{key}.at"), message)?;
        let mut parts = self.at.components().skip(1);
        let first = parts.next().and_then(|part| part.as_os_str().to_str());
        let is_needed =
            first.is_some_and(|first| NEEDED.contains(&first)) && parts.next().is_none();
        let message = format!("\"{at}\" has what the guest itself needs: choose another one");
        require(!is_needed, format!("{key}.at"), message)
    }
}

fn mount_point() -> PathBuf {
    "/mnt/share".into()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    path: PathBuf,
    #[serde(default = "mount_point")]
    at: PathBuf,
    #[serde(default)]
    writable: bool,
}

impl<'de> Deserialize<'de> for ShareSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct PathOrTable;

        impl<'de> Visitor<'de> for PathOrTable {
            type Value = ShareSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a directory, or { path, at, writable }")
            }

            fn visit_str<E>(self, path: &str) -> Result<ShareSpec, E> {
                Ok(ShareSpec::new(path))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ShareSpec, A::Error> {
                let Table { path, at, writable } =
                    Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ShareSpec { path, at, writable })
            }
        }

        from.deserialize_any(PathOrTable)
    }
}
