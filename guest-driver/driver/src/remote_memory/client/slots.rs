//! Requests under way: a fixed table, and their order on each block.
//!
//! A request *leg* is one server that the request has gone to. Requests of one block stand in a
//! chain in the order in which they came: a write waits for all before it, a read for the
//! writes before it. So at most one write of a block is on the wire, and the versions that a
//! read may find are known. Copies stand in the chain but delay no request; a write ends them.

use alloc::vec::Vec;

use super::server_set::{ServerIndex, ServerSet};
use super::Failure;
use crate::platform::{table, NoMemory};

/// Room for the legs of a request: the highest replication degree, and as many again for legs that no
/// longer count but whose page the NIC still reads.
pub(super) const MAX_LEGS: usize = 8;

/// Most requests under way; their index takes the low bits of a request number.
pub(super) const MAX_SLOTS: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 12;
/// Bits of a number that say which transmission of its request it is: what is answered is known
/// among 16 in a row.
const TRANSMISSION_BITS: u32 = 4;
const NONE: u16 = u16::MAX;

/// Index of a request in the table.
pub(super) type SlotIndex = u16;

/// A leg of a request.
pub(super) type LegOf = (SlotIndex, u8);

/// One server that a request goes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leg {
    pub(super) server: ServerIndex,
    /// The server has carried the request out.
    pub(super) acked: bool,
    /// It brings a page of a block that the server did not hold when it began.
    pub(super) is_new: bool,
    /// It is in a queue of its server.
    pub(super) queued: bool,
    pub(super) transmissions: u32,
    /// When it was first sent.
    pub(super) first_sent: u64,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Page in; into the steered buffer of this handle, if it is still there.
    Read { target: u64 },
    /// Page out.
    Write,
    /// Copy, first half: from a holder.
    Fetch,
    /// Copy, second half: to new holders.
    Store,
}

impl Work {
    /// Returns true for both halves of a copy.
    pub(super) fn is_copy(self) -> bool {
        matches!(self, Work::Fetch | Work::Store)
    }

    /// Returns true if it brings a page to servers.
    pub(super) fn brings(self) -> bool {
        matches!(self, Work::Write | Work::Store)
    }
}

/// The progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    /// It waits for earlier requests of its block.
    Waiting,
    Active,
    /// It has ended with this result, but the NIC still reads its page.
    Draining(Result<(), Failure>),
}

/// One request.
#[derive(Debug)]
pub(super) struct Slot<P> {
    pub(super) work: Work,
    pub(super) phase: Phase,
    pub(super) token: u64,
    pub(super) block: usize,
    /// The version of the page that it brings.
    pub(super) version: u64,
    pub(super) page: Option<P>,
    pub(super) legs: [Option<Leg>; MAX_LEGS],
    /// Legs, by bits, whose page the NIC reads.
    pub(super) busy: u8,
    /// Read: servers that were asked. Write: servers that are not to be asked again.
    pub(super) tried: ServerSet,
    /// Those of `tried` that have said that they are full.
    pub(super) full: ServerSet,
    /// Number of transmissions, to any server.
    pub(super) attempts: u32,
    pub(super) submitted: u64,
    /// The time at which it fails.
    pub(super) deadline: u64,
    generation: u32,
    next: u16,
}

impl<P> Slot<P> {
    /// The legs in use, with their numbers.
    pub(super) fn legs(&self) -> impl Iterator<Item = (usize, &Leg)> {
        let legs = self.legs.iter().enumerate();
        legs.filter_map(|(index, leg)| Some((index, leg.as_ref()?)))
    }

    /// The number of the leg to a server.
    pub(super) fn leg_of(&self, server: ServerIndex) -> Option<usize> {
        let leg = self.legs().find(|(_, leg)| leg.server == server);
        leg.map(|(index, _)| index)
    }

    /// The latest transmission of a leg: which of those to its server if it brings a page, else which of those to
    /// any server.
    pub(super) fn transmission(&self, leg: usize) -> u32 {
        match self.legs[leg].filter(|_| self.work.brings()) {
            Some(leg) => leg.transmissions,
            None => self.attempts,
        }
    }

    /// The servers that it goes to.
    pub(super) fn servers(&self) -> ServerSet {
        self.legs().map(|(_, leg)| leg.server).collect()
    }

    /// The servers that have carried it out.
    pub(super) fn acked(&self) -> ServerSet {
        let acked = self.legs().filter(|(_, leg)| leg.acked);
        acked.map(|(_, leg)| leg.server).collect()
    }
}

/// All requests.
#[derive(Debug)]
pub(super) struct Slots<P> {
    slots: Vec<Slot<P>>,
    free: Vec<SlotIndex>,
    free_copies: Vec<SlotIndex>,
    users: usize,
    /// First of each chain, by block.
    chains: Vec<u16>,
}

impl<P> Slots<P> {
    /// A table for so many requests of users, and so many copies besides.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new(users: usize, copies: usize) -> Result<Self, NoMemory> {
        let all = users + copies;
        let (mut slots, mut free, mut free_copies) = (Vec::new(), Vec::new(), Vec::new());
        let mut chains = Vec::new();
        slots.try_reserve_exact(all)?;
        slots.extend(table::<P>(all)?.into_iter().map(|page| Slot {
            work: Work::Write,
            phase: Phase::Free,
            token: 0,
            block: 0,
            version: 0,
            page,
            legs: [None; MAX_LEGS],
            busy: 0,
            tried: ServerSet::default(),
            full: ServerSet::default(),
            attempts: 0,
            submitted: 0,
            deadline: 0,
            generation: 0,
            next: NONE,
        }));
        free.try_reserve_exact(users)?;
        free.extend((0..users as u16).rev());
        free_copies.try_reserve_exact(copies)?;
        free_copies.extend(users as u16..all as u16);
        let buckets = all.next_power_of_two();
        chains.try_reserve_exact(buckets)?;
        chains.resize(buckets, NONE);
        Ok(Slots {
            slots,
            free,
            free_copies,
            users,
            chains,
        })
    }

    /// How many slots there are, free ones included.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// A request.
    pub(super) fn get(&self, index: SlotIndex) -> &Slot<P> {
        &self.slots[usize::from(index)]
    }

    /// A request.
    pub(super) fn get_mut(&mut self, index: SlotIndex) -> &mut Slot<P> {
        &mut self.slots[usize::from(index)]
    }

    /// Takes a free slot for a request of a block, and puts it at the end of the block's chain.
    pub(super) fn take(&mut self, work: Work, block: usize, now: u64) -> Option<SlotIndex> {
        let free = match work.is_copy() {
            true => &mut self.free_copies,
            false => &mut self.free,
        };
        let index = free.pop()?;
        let slot = self.get_mut(index);
        slot.work = work;
        slot.phase = Phase::Waiting;
        slot.block = block;
        slot.version = 0;
        slot.tried = ServerSet::default();
        slot.full = ServerSet::default();
        slot.attempts = 0;
        slot.submitted = now;
        slot.next = NONE;
        self.append(index, block);
        Some(index)
    }

    /// Returns true if a copy can begin.
    pub(super) fn has_free_copy(&self) -> bool {
        !self.free_copies.is_empty()
    }

    /// How many requests of users can begin.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a request that has ended out of its chain, and frees its slot.
    pub(super) fn release(&mut self, index: SlotIndex) {
        self.unlink(index);
        let users = self.users;
        let slot = self.get_mut(index);
        slot.phase = Phase::Free;
        slot.generation = slot.generation.wrapping_add(1);
        match usize::from(index) < users {
            true => self.free.push(index),
            false => self.free_copies.push(index),
        }
    }

    /// The number by which servers know a transmission of a request. Answers carry it.
    ///
    /// ```text
    ///    31            16 15           12 11             0
    ///   │ generation     │ transmission  │ slot            │
    /// ```
    pub(super) fn number(&self, index: SlotIndex, transmission: u32) -> u32 {
        let generation = self.get(index).generation;
        generation.wrapping_add(1) << (INDEX_BITS + TRANSMISSION_BITS)
            | (transmission % (1 << TRANSMISSION_BITS)) << INDEX_BITS
            | u32::from(index)
    }

    /// The active request of a number, whichever its transmission.
    pub(super) fn find(&self, number: u32) -> Option<SlotIndex> {
        let index = (number % MAX_SLOTS as u32) as SlotIndex;
        let slot = self.slots.get(usize::from(index))?;
        let same = self.number(index, number >> INDEX_BITS) == number;
        (slot.phase == Phase::Active && same).then_some(index)
    }

    /// The requests of a block, in their order, from the one behind `after`.
    pub(super) fn next_of(&self, block: usize, after: Option<SlotIndex>) -> Option<SlotIndex> {
        let mut next = match after {
            Some(index) => self.get(index).next,
            None => self.chains[self.bucket(block)],
        };
        while next != NONE && self.get(next).block != block {
            next = self.get(next).next;
        }
        (next != NONE).then_some(next)
    }

    /// All requests of a block, in their order.
    fn requests_of(&self, block: usize) -> impl Iterator<Item = SlotIndex> + '_ {
        let first = self.next_of(block, None);
        core::iter::successors(first, move |index| self.next_of(block, Some(*index)))
    }

    /// Returns true if a request of the block has a property.
    pub(super) fn any_of(&self, block: usize, property: impl Fn(&Slot<P>) -> bool) -> bool {
        let mut requests = self.requests_of(block);
        requests.any(|index| property(self.get(index)))
    }

    /// The first request of the block that is in state Waiting and need not wait any more.
    pub(super) fn first_ready(&self, block: usize) -> Option<SlotIndex> {
        let (mut reads, mut writes) = (false, false);
        self.requests_of(block).find(|index| {
            let slot = self.get(*index);
            let is_write = slot.work == Work::Write;
            let is_ready = slot.phase == Phase::Waiting && !writes && !(is_write && reads);
            writes |= is_write;
            reads |= matches!(slot.work, Work::Read { .. });
            is_ready
        })
    }

    fn bucket(&self, block: usize) -> usize {
        let mixed = (block as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        mixed as usize & (self.chains.len() - 1)
    }

    fn append(&mut self, index: SlotIndex, block: usize) {
        let bucket = self.bucket(block);
        let mut last = self.chains[bucket];
        if last == NONE {
            self.chains[bucket] = index;
            return;
        }
        while self.get(last).next != NONE {
            last = self.get(last).next;
        }
        self.get_mut(last).next = index;
    }

    fn unlink(&mut self, index: SlotIndex) {
        let (block, next) = (self.get(index).block, self.get(index).next);
        let bucket = self.bucket(block);
        if self.chains[bucket] == index {
            self.chains[bucket] = next;
            return;
        }
        let mut before = self.chains[bucket];
        while before != NONE && self.get(before).next != index {
            before = self.get(before).next;
        }
        if before != NONE {
            self.get_mut(before).next = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(slots: &mut Slots<()>, work: Work, block: usize) -> SlotIndex {
        slots.take(work, block, 0).unwrap()
    }

    fn start(slots: &mut Slots<()>, index: SlotIndex) {
        slots.get_mut(index).phase = Phase::Active;
    }

    #[test]
    fn requests_of_a_block_wait_for_each_other_and_for_no_other_block() {
        const READ: Work = Work::Read { target: 0 };
        let mut slots = Slots::new(8, 1).unwrap();
        let first = take(&mut slots, READ, 5);
        let second = take(&mut slots, READ, 5);
        let write = take(&mut slots, Work::Write, 5);
        let third = take(&mut slots, READ, 5);
        let other = take(&mut slots, Work::Write, 6);
        assert_eq!(slots.first_ready(5), Some(first));
        start(&mut slots, first);
        assert_eq!(
            slots.first_ready(5),
            Some(second),
            "reads do not exclude reads"
        );
        start(&mut slots, second);
        assert_eq!(slots.first_ready(5), None);
        assert_eq!(slots.first_ready(6), Some(other));
        slots.release(first);
        assert_eq!(slots.first_ready(5), None);
        slots.release(second);
        assert_eq!(slots.first_ready(5), Some(write));
        start(&mut slots, write);
        assert_eq!(slots.first_ready(5), None, "a read behind a write");
        slots.release(write);
        assert_eq!(slots.first_ready(5), Some(third));
    }

    #[test]
    fn a_number_names_one_request_and_not_the_next_in_its_slot() {
        let mut slots = Slots::new(1, 0).unwrap();
        let index = take(&mut slots, Work::Write, 0);
        let number = slots.number(index, 3);
        assert_eq!(slots.find(number), None, "it waits");
        start(&mut slots, index);
        assert_eq!(slots.find(number), Some(index));
        assert!(slots.take(Work::Write, 0, 0).is_none(), "no room");
        slots.release(index);
        let index = take(&mut slots, Work::Write, 0);
        start(&mut slots, index);
        assert_eq!(slots.find(number), None);
        assert_ne!(slots.number(index, 0), 0, "0 is no number");
    }

    #[test]
    fn copies_have_slots_of_their_own() {
        let mut slots = Slots::<()>::new(1, 1).unwrap();
        take(&mut slots, Work::Write, 0);
        assert!(slots.has_free_copy());
        let copy = take(&mut slots, Work::Fetch, 1);
        assert!(!slots.has_free_copy());
        assert!(slots.any_of(1, |slot| slot.work.is_copy()));
        slots.release(copy);
        assert!(slots.has_free_copy());
    }
}
