//! What tells one file from another, whatever descriptor it comes by.

use std::os::fd::AsFd;
use std::path::Path;

/// Device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// The identity of the file behind a descriptor.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn of(file: impl AsFd) -> std::io::Result<Self> {
        Ok(rustix::fs::fstat(file)?.into())
    }

    /// The identity of the file of that name; of a link, its own.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn of_path(path: &Path) -> std::io::Result<Self> {
        Ok(rustix::fs::lstat(path)?.into())
    }
}

impl From<rustix::fs::Stat> for FileIdentity {
    fn from(stat: rustix::fs::Stat) -> Self {
        FileIdentity {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}
