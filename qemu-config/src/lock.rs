//! Locks on files and directories. None is written to: a lock can be taken where there is no room.

use std::fs::File;
use std::path::Path;

use rustix::fs::{flock, FlockOperation};

use crate::{Error, Result};

/// A file or directory that is locked until this is dropped.
#[derive(Debug)]
pub(crate) struct LockFile(pub(crate) File);

impl LockFile {
    /// Locks `path`, which is made if needed, as soon as no other process has the lock.
    pub(crate) fn lock(path: &Path) -> Result<Self> {
        let file = open(path)?;
        loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::io("lock", path)(error.into())),
            }
        }
    }

    /// Locks `path`, which is made if needed; `None` if another process has the lock.
    pub(crate) fn try_lock(path: &Path) -> Result<Option<Self>> {
        try_flock(open(path)?, path)
    }

    /// Locks the directory `path`; `None` if another process has the lock.
    pub(crate) fn try_lock_directory(path: &Path) -> Result<Option<Self>> {
        try_flock(File::open(path).map_err(Error::io("open", path))?, path)
    }
}

fn try_flock(file: File, path: &Path) -> Result<Option<LockFile>> {
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(LockFile(file))),
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(Error::io("lock", path)(error.into())),
    }
}

fn open(path: &Path) -> Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false);
    file.open(path).map_err(Error::io("open", path))
}

impl Drop for LockFile {
    /// A process that is being started elsewhere in this program may have a copy of the
    /// descriptor, so closing it is not enough.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
