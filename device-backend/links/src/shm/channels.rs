//! The two channels between two processes (U4): a ring for each, in each direction.
//!
//! ```text
//!   memfd of the reader   | data ring: head of 4096, 8 MiB | priority ring: 4096, 512 KiB |
//!
//!   push(Priority) ─► priority ring ───────────┐
//!          │ full                              ├─ [Turns] ─► pop
//!   push(Data) ─────► data ring ───────────────┘
//! ```
//! The rings know nothing of each other ([`super::ring`]); both wake the reader by its one eventfd,
//! and it sleeps only if both are empty. The reader looks at the priority ring before each record
//! of the data ring: one load of an index that seldom changes. The writer makes visible what it
//! has put into the priority ring before it goes on with bulk.
//!
//! The priority ring is small, since small frames are read at once. One that has no room there takes
//! the data ring: the order of the channels is free, and nothing more is lost than with one ring.

use qnic_abi::SharedMemory;
use qnic_nic::env::Channel;

use super::ring::{Broken, Consumer, Producer};
use crate::turns::Turns;

/// The writing ends of both rings.
#[derive(Debug)]
pub(super) struct Outbox<M> {
    priority: Producer<M>,
    data: Producer<M>,
}

impl<M: SharedMemory> Outbox<M> {
    /// The writer of fresh rings.
    pub(super) fn new(priority: M, data: M) -> Self {
        Outbox {
            priority: Producer::new(priority),
            data: Producer::new(data),
        }
    }

    /// Writes a record. Returns false if it does not fit now.
    pub(super) fn push(&mut self, channel: Channel, bytes: &[u8]) -> Result<bool, Broken> {
        if channel == Channel::Priority && self.priority.push(bytes)? {
            return Ok(true);
        }
        self.priority.publish_pending();
        self.data.push(bytes)
    }

    /// Publishes all records. Returns true if the reader sleeps, or is about to: then the
    /// caller must write its eventfd.
    #[must_use]
    pub(super) fn flush(&mut self) -> bool {
        let first = self.priority.flush();
        self.data.flush() || first
    }
}

/// The reading ends of both rings.
#[derive(Debug)]
pub(super) struct Inbox<M> {
    priority: Consumer<M>,
    data: Consumer<M>,
    turns: Turns,
}

impl<M: SharedMemory> Inbox<M> {
    /// The reader of fresh rings.
    pub(super) fn new(priority: M, data: M) -> Self {
        Inbox {
            priority: Consumer::new(priority),
            data: Consumer::new(data),
            turns: Turns::default(),
        }
    }

    /// The next record, copied to private memory.
    pub(super) fn pop(&mut self) -> Result<Option<&[u8]>, Broken> {
        let channel = match self.turns.first() {
            Channel::Priority if self.priority.is_empty()? => Channel::Data,
            Channel::Data if self.data.is_empty()? => Channel::Priority,
            first => first,
        };
        let ring = match channel {
            Channel::Priority => &mut self.priority,
            Channel::Data => &mut self.data,
        };
        let record = ring.pop()?;
        if record.is_some() {
            self.turns.taken(channel);
        }
        Ok(record)
    }

    /// Gives the space of all records that were read back to the writer.
    pub(super) fn release(&mut self) {
        self.priority.release();
        self.data.release();
    }

    /// Announces that the reader is about to sleep. Returns false if there is a record.
    /// Either way [`Inbox::wake`] must be called next.
    pub(super) fn prepare_sleep(&mut self) -> Result<bool, Broken> {
        let first = self.priority.prepare_sleep()?;
        Ok(self.data.prepare_sleep()? && first)
    }

    /// Announces that the reader does not sleep.
    pub(super) fn wake(&mut self) {
        self.priority.wake();
        self.data.wake();
    }
}
