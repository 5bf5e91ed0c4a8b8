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
    /// Takes a free slot whose last helper `has_ended`, a different one each time. `None` if all free
    /// ones have a helper that is still ending.
    ///
    /// # Errors
    /// [`Error::Busy`] if no slot is free; what `has_ended` returns.
    pub(crate) fn take(
        dir: &NodeDir,
        mut has_ended: impl FnMut(i64) -> Result<bool>,
    ) -> Result<Option<Self>> {
        let first = random() as usize % COMMAND_SLOTS;
        let mut free = false;
        for index in (0..COMMAND_SLOTS).map(|step| (first + step) % COMMAND_SLOTS) {
            let Some(lock) = LockFile::try_lock(&dir.command_lock(index))? else {
                continue;
            };
            free = true;
            let mut slot = Self { index, lock };
            if slot.last_helper().map_or(Ok(true), &mut has_ended)? {
                return Ok(Some(slot));
            }
        }
        match free {
            true => Ok(None),
            false => Err(Error::Busy {
                node: dir.name().to_owned(),
                limit: COMMAND_SLOTS,
            }),
        }
    }

    /// The number the agent gave the slot's last helper, which the agent remembers until
    /// it is asked about it.
    fn last_helper(&mut self) -> Option<i64> {
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
