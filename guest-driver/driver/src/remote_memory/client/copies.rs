//! Copies: a page goes from a holder to servers that are to hold it, too.
//!
//! The page comes in a buffer of the receive queue, and the client keeps that buffer until the
//! copy ends. A write of the block ends its copies, because it goes to enough servers itself.

use super::server_set::ServerSet;
use super::slots::{Phase, SlotIndex, Work};
use super::{Client, Failure};

impl<P> Client<P> {
    /// Begins to copy a block. There is a free slot.
    pub(super) fn begin_copy(&mut self, now: u64, block: usize) {
        let Some(slot) = self.slots.take(Work::Fetch, block, now) else {
            return;
        };
        let deadline = now.saturating_add(self.config.limits.request_timeout);
        let copy = self.slots.get_mut(slot);
        copy.deadline = deadline;
        copy.phase = Phase::Active;
        self.scan_due = self.scan_due.min(deadline);
        self.ask_next(now, slot, None);
    }

    /// The page is here: sends it to as many servers as lack it.
    pub(super) fn begin_store(&mut self, now: u64, slot: SlotIndex, version: u64) {
        self.drop_legs(slot);
        let copy = self.slots.get_mut(slot);
        copy.work = Work::Store;
        copy.version = version;
        copy.tried = ServerSet::default();
        copy.full = ServerSet::default();
        let block = copy.block;
        let holders = self.volume.holders(block);
        let settled = holders.and(self.servers.staying()).count();
        for _ in settled..self.config.replicas {
            let excluded = holders.or(self.slots.get(slot).servers());
            match self.roomiest(now, excluded) {
                Some(server) => _ = self.add_leg(slot, server),
                None => break,
            }
        }
        if self.slots.get(slot).servers().is_empty() {
            self.finish(now, slot, Err(Failure::TimedOut));
        }
    }

    /// A server has the copy, or will not get it.
    pub(super) fn store_acked(&mut self, now: u64, slot: SlotIndex) {
        let copy = self.slots.get(slot);
        let (acked, all) = (copy.acked(), copy.servers());
        if self.volume.version(copy.block) == copy.version {
            let block = copy.block;
            for server in acked.iter() {
                self.volume.add_holder(block, server);
            }
        }
        if acked == all {
            self.counters.copied += acked.count() as u64;
            self.finish(now, slot, Ok(()));
        }
    }

    /// Ends all copies of a block.
    pub(super) fn end_copies(&mut self, now: u64, block: usize) {
        let mut next = self.slots.next_of(block, None);
        while let Some(slot) = next {
            next = self.slots.next_of(block, Some(slot));
            let copy = self.slots.get(slot);
            if copy.work.is_copy() && copy.phase == Phase::Active {
                _ = self.end(now, slot, Err(Failure::Detached));
            }
        }
    }
}
