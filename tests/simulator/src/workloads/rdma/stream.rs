//! A stream of writes, as fast as the command queue takes them: what
//! [`crate::throughput`] measures.

use qnic::queue;
use qnic_abi::client::Command;
use qnic_abi::command::DEFAULT_INLINE_MAX;

use super::{Name, Queue, RdmaWorker};
use crate::process::Result;
use crate::schedule::lock;

/// How long it waits for the other process to export its target, in milliseconds.
const IMPORT_WAIT: u32 = 40;

impl RdmaWorker<'_> {
    /// Writes to the process in the last slot, and waits until all is delivered.
    pub(super) fn stream(&mut self, size: u64) -> Result<()> {
        let receiver = self.common.settings.rdma_workers - 1;
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
            self.block(None, Queue::has_room)?;
            let entry = queue::Command::new(&command.descriptor(), &payload);
            if self.queue.put(&entry, true) {
                self.context.ring_doorbell(self.process);
            }
        }
        self.drain()?;
        let time = self.schedule.now() - start;
        lock(&self.common.stream_times).push(time);
        Ok(())
    }
}
