//! Command slots: the ports of a node, each for one command at a time.

use std::io::{Read, Seek, Write};

use crate::agent::random;
use crate::dirs::NodeDir;
use crate::lock::LockFile;
use crate::{Error, Result, COMMAND_SLOTS};

/// A command slot of a node, taken.
pub(crate) struct Slot {
    pub(crate) index: usize,
    lock: LockFile,
}

impl Slot {
    /// Takes a free slot, a different one each time: the helper of the last command may still be
    /// ending.
    pub(crate) fn take(dir: &NodeDir) -> Result<Self> {
        let first = random() as usize % COMMAND_SLOTS;
        for index in (0..COMMAND_SLOTS).map(|step| (first + step) % COMMAND_SLOTS) {
            if let Some(lock) = LockFile::try_lock(&dir.command_lock(index))? {
                return Ok(Self { index, lock });
            }
        }
        Err(Error::Busy {
            node: dir.name().to_owned(),
            limit: COMMAND_SLOTS,
        })
    }

    /// The number the agent gave the slot's last helper, which the agent remembers until
    /// it is asked about it.
    pub(crate) fn last_helper(&mut self) -> Option<i64> {
        let mut text = String::new();
        self.lock.0.read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    /// Writes down the number of the slot's helper. Where there is no room, the agent keeps one
    /// number more.
    pub(crate) fn remember(&mut self, helper: i64) {
        let file = &mut self.lock.0;
        let emptied = file.set_len(0).and_then(|()| file.rewind());
        if let Err(error) = emptied.and_then(|()| write!(file, "{helper}")) {
            tracing::debug!(%error, "the number of a helper is not remembered");
        }
    }
}
