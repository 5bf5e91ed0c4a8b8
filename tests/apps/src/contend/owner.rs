//! The owner: it serves memory, waits for all workers, and checks what they left.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic::sync::{Participant, Semaphore};
use qnic::{Access, Endpoint, Nic};
use qnic_abi::atomic::WaitQueue;

use super::layout::{
    item, Layout, ARRIVED, BUFFER, DONE, FIFO_SEMAPHORE, INSIDE, LOCK, LOCK_TURNS, OWNER,
    OWNER_PORT, SEMAPHORE, SLOTS, TURNS, UNREADY, WAITED,
};
use super::Options;
use qnic_apps::demo::node::{say, say_line, Exported};
use qnic_apps::demo::options::START_LIMIT;

/// Longest time for one more worker to be done.
const LIMIT: Duration = Duration::from_secs(600);

/// The memory that all workers use.
pub(super) struct Owner {
    endpoint: Endpoint,
    memory: Exported,
}

impl Owner {
    /// Makes it ready, and says so.
    pub(super) fn new(nic: &Nic, options: &Options) -> Result<Self> {
        let endpoint = nic.register(OWNER_PORT).context("register the owner")?;
        let length = Layout::new(options).length();
        let unready = Exported::new(&endpoint, UNREADY, length)?;
        let own = endpoint.import(endpoint.node(), OWNER_PORT, UNREADY, START_LIMIT)?;
        let participant = Participant::new(&endpoint)?;
        Semaphore::new(&participant, &own, SEMAPHORE)?.initialize(options.units)?;
        let buffer = unready.buffer;
        let segment = endpoint.export(OWNER, &buffer, Access::all())?;
        drop(unready.segment);
        say("serving", std::process::id())?;
        let memory = Exported { buffer, segment };
        Ok(Owner { endpoint, memory })
    }

    /// Waits for all workers, and checks the sums and the logs.
    pub(super) fn finish(&self, options: &Options) -> Result<()> {
        let layout = Layout::new(options);
        for done in 0..layout.total {
            self.endpoint
                .notification(DONE)
                .take(Some(LIMIT))
                .with_context(|| format!("{done} of {} workers are done", layout.total))?;
        }
        let total = layout.total * options.rounds;
        for (what, offset, expected) in [
            ("workers", ARRIVED, layout.total),
            ("turns of the lock", TURNS, total),
            ("the holder of the lock", TURNS + 16, 0),
            ("workers inside", INSIDE, 0),
            ("items put", BUFFER, total),
            ("items taken", BUFFER + 8, total),
        ] {
            let is = self.word(offset)?;
            ensure!(is == expected, "{what}: {is} instead of {expected}");
        }
        // The lower half of the word counts turns since the lock was free.
        let turns = self.word(LOCK + LOCK_TURNS)? as u32;
        ensure!(turns == 0, "the lock is not free: {turns} turns");
        for slot in 0..SLOTS as u64 {
            ensure!(self.word(BUFFER + 16 + slot * 8)? == 0, "an item is left");
        }
        // The last of the queue has given back the unit that all of it passed on.
        for (what, offset, expected) in [
            ("units", SEMAPHORE, options.units),
            ("units of the FIFO queue", FIFO_SEMAPHORE, 1),
        ] {
            let at = offset as usize + std::mem::offset_of!(WaitQueue, value);
            let is = self.memory.buffer.load_u32(at)?;
            ensure!(is == expected, "{what}: {is} instead of {expected}");
        }
        self.check_items(layout, options.rounds)?;
        self.check_fifos(layout)?;
        let waited = self.word(WAITED)?;
        say_line(&serde_json::json!({"contended": total, "waited": waited}))
    }

    /// Each item came out once, and those of a producer in their order.
    fn check_items(&self, layout: Layout, rounds: u64) -> Result<()> {
        let mut next = vec![0; layout.total as usize];
        for number in 0..layout.total * rounds {
            let taken = self.word(layout.taken(number))?;
            let worker = (taken >> 32).wrapping_sub(1);
            let round = next
                .get_mut(worker as usize)
                .with_context(|| format!("{taken:#x} is no item"))?;
            let expected = item(worker, *round);
            ensure!(
                taken == expected,
                "{taken:#x} came out instead of {expected:#x}"
            );
            *round += 1;
        }
        Ok(())
    }

    /// Workers have left each FIFO queue in the order in which they joined it.
    fn check_fifos(&self, layout: Layout) -> Result<()> {
        for fifo in 0..2 {
            let at = layout.fifo(fifo);
            let left = self.word(at)?;
            ensure!(left == layout.total, "{left} have left FIFO queue {fifo}");
            for index in 0..layout.total {
                let worker = self.word(at + 8 + index * 8)?;
                ensure!(
                    worker == index,
                    "worker {worker} left FIFO queue {fifo} as number {index}"
                );
            }
        }
        Ok(())
    }

    fn word(&self, offset: u64) -> Result<u64> {
        Ok(self.memory.buffer.load_u64(offset as usize)?)
    }
}
