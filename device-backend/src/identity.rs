//! Identifies a file, by whatever descriptor or name it is reached.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Device and inode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl From<Metadata> for FileIdentity {
    fn from(metadata: Metadata) -> Self {
        FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}
