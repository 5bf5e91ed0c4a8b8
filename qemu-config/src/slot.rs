//! Command slots: the ports of a node, each for one command at a time.

use std::fs::File;
use std::io::{self, Read, Seek, Write};

use rustix::fs::FlockOperation;

use crate::agent::random;
use crate::dirs::NodeDir;
use crate::state::COMMAND_SLOTS;
use crate::{Error, Result};

/// A command slot of a node, taken.
pub(crate) struct Slot {
    pub(crate) index: usize,
    lock: File,
}

impl Slot {
    /// Takes a free slot; not the same one first each time, so that a helper that is
    /// still ending is not waited for.
    pub(crate) fn take(node: &str, dir: &NodeDir) -> Result<Self> {
        let first = random() as usize % COMMAND_SLOTS;
        for index in (0..COMMAND_SLOTS).map(|step| (first + step) % COMMAND_SLOTS) {
            let path = dir.command_lock(index);
            let lock = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path);
            let lock = lock.map_err(Error::io("open", &path))?;
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { index, lock }),
                Err(rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(Error::io("lock", &path)(error.into())),
            }
        }
        Err(Error::Busy {
            node: node.to_owned(),
            limit: COMMAND_SLOTS,
        })
    }

    /// The number the agent gave the slot's last helper, which it remembers until it
    /// is asked about it.
    pub(crate) fn last_helper(&mut self) -> Option<i64> {
        let mut text = String::new();
        self.lock.read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    /// Writes down the number of the slot's helper.
    pub(crate) fn remember(&mut self, helper: i64) -> io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        write!(self.lock, "{helper}")
    }
}

impl Drop for Slot {
    /// A process that is being started elsewhere in this program may hold a copy of
    /// the descriptor, so closing ours is not enough.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}
