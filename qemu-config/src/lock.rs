//! Lock files.

use std::fs::File;
use std::path::Path;

use rustix::fs::{flock, FlockOperation};

use crate::{Error, Result};

/// A file that is locked until this is dropped.
#[derive(Debug)]
pub(crate) struct LockFile(pub(crate) File);

impl LockFile {
    /// Locks `path`, which is made if needed; `None` if another process has the lock.
    pub(crate) fn try_lock(path: &Path) -> Result<Option<Self>> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(path).map_err(Error::io("open", path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(Error::io("lock", path)(error.into())),
        }
    }
}

impl Drop for LockFile {
    /// A process that is being started elsewhere in this program may have a copy of the
    /// descriptor, so closing it is not enough.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
