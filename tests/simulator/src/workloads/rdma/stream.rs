//! A stream of writes, as fast as the command queue takes them: what
//! [`crate::throughput`] measures.

use std::sync::{Arc, Mutex};

use qnic_abi::client::Command;
use qnic_abi::command::DEFAULT_INLINE_MAX;

use super::{Name, RdmaWorker};
use crate::process::Result;
use crate::schedule::lock;

/// What streams are like: the processes in all slots but the last write to that in the last one.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    /// Bytes of each write.
    pub(crate) size: u64,
    /// How long each stream took, in nanoseconds.
    pub(crate) times: Arc<Mutex<Vec<u64>>>,
}

/// How long it waits for the other process to export its target, in milliseconds.
const IMPORT_WAIT: u32 = 40;

impl RdmaWorker<'_> {
    /// Writes to the process in the last slot, and waits until all is delivered.
    pub(super) fn write_stream(&mut self, stream: &Stream) -> Result<()> {
        let (size, receiver) = (stream.size, self.common.settings.rdma_workers - 1);
        if self.slot == receiver {
            return Ok(());
        }
        let target = loop {
            if let Some(imported) = self.import_from(receiver, Name::Target, IMPORT_WAIT)? {
                break imported;
            }
        };
        let remote = self.remote(&target, 0);
        let (command, payload) = match size <= DEFAULT_INLINE_MAX as u64 {
            true => {
                let command = Command::inline_write(remote, size as u8);
                (command, vec![0; size as usize])
            }
            false => (Command::write(self.local(0), remote, size), Vec::new()),
        };
        let start = self.schedule.now();
        for _ in 0..self.common.settings.options.operations {
            self.block_until(None, Self::has_room)?;
            self.put_transfer(0, &command, &payload, true);
        }
        self.drain()?;
        let time = self.schedule.now() - start;
        lock(&stream.times).push(time);
        Ok(())
    }
}
