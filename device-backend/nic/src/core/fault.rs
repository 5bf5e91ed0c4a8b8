//! Page faults of one process that its driver was told of, what waits for them, and the bounce
//! memory of frames that do (N13 to N15).
//!
//! # Faults
//! A fault covers a range of pages, to be read or to be written to. A transfer that misses one of
//! them for the same use waits for the fault that is under way. If a process may only read a page,
//! the fault fails the transfers that would write to it, and no other.
//!
//! The driver promises only the first page of the range. A transfer that waits for a later page
//! tries again, and makes a fault of its own if need be. When the table is full, a transfer waits for
//! any fault and then tries again: it is delayed, not refused.
//!
//! After [`crate::Limits::fault_timeout`] without an answer, a fault is given up, and so is what
//! waits for pages of its range. What waits for another page tries again. A late answer is ignored:
//! it names its fault by a number that no other fault has.
//!
//! # Bounce memory
//! ```text
//!   frame ──► pages there? ── yes ──► received by its protocol
//!                 │ no
//!                 ▼
//!             store: payload copied here, page fault ──► driver
//!                 ▲                                        │ FaultDone
//!                 └── gone again ── pages there? ◄─────────┘
//!                                       │ yes             │ they never will be
//!                                       ▼                 ▼
//!                                   delivered          refused
//! ```
//! Each fragment of a page span that has to wait is a frame of its own here. The protocol receives a
//! stored frame by the same code as another: it checks everything again, and signals only then. No
//! protocol knows how a page comes.
//!
//! A held frame keeps its place in its sender's window, and the transport takes no frame beyond the
//! window that it has granted. So bounce memory holds at most a page for each fragment of all
//! granted windows, and a peer that keeps to its window never finds it full. It is allocated by the
//! frame, in the size of its payload.
//!
//! A frame tries again within the call that answers the fault. It waits once more only if the page
//! was taken away since the driver entered it: each such round costs the driver another reclaim of
//! a page that it has just brought in.

use std::collections::btree_map::{BTreeMap, Entry};

use qnic_abi::event::MAX_FAULT_PAGES;
use qnic_abi::{PAGE_SHIFT, PAGE_SIZE};

use super::lookup_side::LookupSide;
use super::Core;
use crate::env::{HostMemory, OutOfRange, Time};
use crate::frame::{Arrival, HeldFrame, StoredFrame};
use crate::ids::{FaultNumber, OperationId, PeerIndex, ProtocolId};

/// What waits for a page.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// An operation of the process itself.
    Operation(OperationId),
    /// A frame of a peer that has to be received again.
    Frame(Box<StoredFrame>),
    /// A frame of a peer whose answer needs a turn.
    Response(Box<StoredFrame>),
    /// Something of a protocol, by a number of its own.
    Job(ProtocolId, u64),
}

impl Waiter {
    fn peer(&self) -> Option<PeerIndex> {
        match self {
            Waiter::Operation(_) | Waiter::Job(..) => None,
            Waiter::Frame(stored) | Waiter::Response(stored) => Some(stored.peer),
        }
    }
}

/// Pages that a transfer needs: the first, and those behind it that it needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageRange {
    /// Address of the first page.
    pub(crate) page: u64,
    pub(crate) pages: u32,
    /// What it needs them for.
    pub(crate) side: LookupSide,
}

impl PageRange {
    /// The pages of `length` bytes from `address`, as many as one fault asks for.
    pub(crate) fn new(address: u64, length: u64, side: LookupSide) -> Self {
        let page = address & !(PAGE_SIZE as u64 - 1);
        let last = address.saturating_add(length.saturating_sub(1));
        let pages = ((last - page) >> PAGE_SHIFT).saturating_add(1);
        PageRange {
            page,
            pages: pages.min(u64::from(MAX_FAULT_PAGES)) as u32,
            side,
        }
    }

    /// Returns true if the first page of `other` is one of these, and needed for the same.
    pub(crate) fn covers(&self, other: &PageRange) -> bool {
        let within = other.page.wrapping_sub(self.page) < u64::from(self.pages) << PAGE_SHIFT;
        within && other.side == self.side
    }

    /// Returns true if `other` begins with the same page, and needs it for the same.
    pub(crate) fn begins_as(&self, other: &PageRange) -> bool {
        other.page == self.page && other.side == self.side
    }
}

/// A fault that the driver has not answered.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) number: FaultNumber,
    pub(crate) range: PageRange,
    /// What waits, and for which pages.
    pub(crate) waiters: Vec<(PageRange, Waiter)>,
    /// When it is given up; `None` until the next poll.
    deadline: Option<Time>,
}

impl Fault {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        let length = u64::from(self.range.pages) << PAGE_SHIFT;
        self.range.page < end && self.range.page.saturating_add(length) > start
    }
}

/// The faults of one process.
#[derive(Debug, Default)]
pub(crate) struct FaultTable {
    faults: Vec<Fault>,
    /// How many waiters are requests of peers.
    requests: usize,
}

impl FaultTable {
    /// Number of faults.
    pub(crate) fn count(&self) -> u32 {
        self.faults.len() as u32
    }

    /// Number of requests of peers that wait.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// Puts `waiter` behind the fault that covers `range`, or else behind a new one with that
    /// number, if fewer than `limit` are there. Returns true if the driver has to be told.
    pub(crate) fn wait(
        &mut self,
        number: FaultNumber,
        range: PageRange,
        waiter: Waiter,
        limit: u32,
    ) -> bool {
        let covering = self
            .faults
            .iter()
            .position(|fault| fault.range.covers(&range));
        let full = self.faults.len() >= limit.max(1) as usize;
        let index = covering.or(full.then(|| self.faults.len() - 1));
        let new = index.is_none();
        let index = index.unwrap_or_else(|| {
            self.faults.push(Fault {
                number,
                range,
                waiters: Vec::new(),
                deadline: None,
            });
            self.faults.len() - 1
        });
        self.requests += usize::from(is_request(&waiter));
        self.faults[index].waiters.push((range, waiter));
        new
    }

    /// Gives faults that have none a deadline, `timeout` nanoseconds from now; takes out one
    /// whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Time, timeout: u64) -> Option<Fault> {
        for fault in &mut self.faults {
            fault.deadline.get_or_insert(now.after(timeout));
        }
        let index = self
            .faults
            .iter()
            .position(|fault| fault.deadline <= Some(now))?;
        Some(self.remove(index))
    }

    /// The next deadline.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.faults.iter().filter_map(|fault| fault.deadline).min()
    }

    /// Takes out what waits and is chosen; their faults stay.
    pub(crate) fn take_waiters(&mut self, chosen: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let mut taken = Vec::new();
        for fault in &mut self.faults {
            let waiters = std::mem::take(&mut fault.waiters);
            for (range, waiter) in waiters {
                match chosen(&waiter) {
                    true => taken.push(waiter),
                    false => fault.waiters.push((range, waiter)),
                }
            }
        }
        self.requests -= count_requests(taken.iter());
        taken
    }

    /// [`FaultTable::take_waiters`] of those that came from a peer.
    pub(crate) fn take_waiters_of(&mut self, index: PeerIndex) -> Vec<Waiter> {
        self.take_waiters(|waiter| waiter.peer() == Some(index))
    }

    fn remove(&mut self, index: usize) -> Fault {
        let fault = self.faults.remove(index);
        self.requests -= count_requests(fault.waiters.iter().map(|waiter| &waiter.1));
        fault
    }

    /// Takes out the fault that the driver answers.
    pub(crate) fn answer(&mut self, number: FaultNumber) -> Option<Fault> {
        let index = self.faults.iter().position(|f| f.number == number)?;
        Some(self.remove(index))
    }

    /// Takes out a fault that touches this range, if there is one.
    pub(crate) fn forget(&mut self, start: u64, end: u64) -> Option<Fault> {
        let index = self.faults.iter().position(|f| f.overlaps(start, end))?;
        Some(self.remove(index))
    }
}

fn count_requests<'a>(waiters: impl Iterator<Item = &'a Waiter>) -> usize {
    waiters.filter(|waiter| is_request(waiter)).count()
}

/// Returns true if a peer waits for an answer.
fn is_request(waiter: &Waiter) -> bool {
    match waiter {
        Waiter::Operation(_) | Waiter::Job(..) => false,
        Waiter::Frame(stored) => stored.held.is_none(),
        Waiter::Response(_) => true,
    }
}

/// The frames of one operation of a peer.
#[derive(Debug, Default)]
struct HeldOperation {
    frames: u32,
    /// It does not notify: another frame of it was refused.
    silenced: bool,
}

/// What is held, and was.
#[derive(Debug, Default)]
pub(crate) struct BounceMemory {
    /// Operations of which frames are held, by peer and name.
    operations: BTreeMap<(PeerIndex, u64), HeldOperation>,
    pub(crate) frames: u32,
    /// Payload bytes of these frames.
    pub(crate) bytes: u64,
    /// Most of them at a time.
    pub(crate) peak: u64,
    /// Frames that were held since the NIC was started.
    pub(crate) total: u64,
    /// Their payload bytes.
    pub(crate) total_bytes: u64,
}

impl BounceMemory {
    fn take(&mut self, length: usize) {
        let length = length as u64;
        self.frames += 1;
        self.bytes += length;
        self.peak = self.peak.max(self.bytes);
        self.total += 1;
        self.total_bytes += length;
    }

    fn give(&mut self, length: usize) {
        self.frames -= 1;
        self.bytes -= length as u64;
    }
}

impl Core {
    /// Copies a frame that waits, and its payload, into bounce memory.
    ///
    /// # Errors
    /// [`OutOfRange`] if the sender's memory has ended under its own frame.
    #[cold]
    pub(crate) fn store<M: HostMemory>(
        &mut self,
        arrival: &Arrival<'_, M>,
        held: Option<HeldFrame>,
    ) -> Result<Box<StoredFrame>, OutOfRange> {
        let mut payload = vec![0; arrival.payload.len()].into_boxed_slice();
        arrival.payload.read(&mut payload)?;
        if held.is_some() {
            let name = (arrival.peer, arrival.frame.envelope.operation.get());
            self.bounce.operations.entry(name).or_default().frames += 1;
            self.bounce.take(payload.len());
        }
        Ok(Box::new(StoredFrame {
            peer: arrival.peer,
            frame: *arrival.frame,
            payload,
            held,
            silenced: arrival.silenced,
            received: arrival.received,
        }))
    }

    /// Gives the memory of a stored frame back that was held.
    pub(crate) fn release(&mut self, stored: &StoredFrame) {
        if stored.held.is_none() {
            return;
        }
        self.bounce.give(stored.payload.len());
        let name = (stored.peer, stored.frame.envelope.operation.get());
        if let Entry::Occupied(mut operation) = self.bounce.operations.entry(name) {
            operation.get_mut().frames -= 1;
            if operation.get().frames == 0 {
                operation.remove();
            }
        }
    }

    /// Takes the notification away from all stored frames of an operation of a peer:
    /// another frame of it was refused. Its cost does not grow with what is held.
    pub(crate) fn silence(&mut self, peer: PeerIndex, operation: OperationId) {
        let name = (peer, operation.0);
        if let Some(operation) = self.bounce.operations.get_mut(&name) {
            operation.silenced = true;
        }
    }

    /// Returns true if the notification was taken away from a stored frame.
    pub(crate) fn is_silenced(&self, stored: &StoredFrame) -> bool {
        let name = (stored.peer, stored.frame.envelope.operation.get());
        let operation = self.bounce.operations.get(&name);
        operation.is_some_and(|operation| operation.silenced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(id: u64) -> Waiter {
        Waiter::Operation(OperationId(id))
    }

    fn source(address: u64, length: u64) -> PageRange {
        PageRange::new(address, length, LookupSide::Source)
    }

    fn number(number: u64) -> FaultNumber {
        FaultNumber(number)
    }

    fn name(waiter: &Waiter) -> u64 {
        match waiter {
            Waiter::Operation(id) => id.0,
            _ => panic!("only operations wait here"),
        }
    }

    #[test]
    fn ranges_are_whole_pages() {
        let range = source(0x1fff, 2);
        assert_eq!((range.page, range.pages), (0x1000, 2));
        assert_eq!(source(0x1000, 0).pages, 1);
        assert_eq!(source(0x1000, u64::MAX).pages, MAX_FAULT_PAGES);
        assert_eq!(source(0x1000, 4097).pages, 2);
    }

    #[test]
    fn transfers_share_a_fault_that_covers_their_page() {
        let mut table = FaultTable::default();
        let span = source(0x1000, 0x3000);
        assert!(table.wait(number(1), span, operation(1), 8));
        let inside = source(0x3000, 1);
        assert!(!table.wait(number(2), inside, operation(2), 8));
        let behind = source(0x4000, 1);
        assert!(table.wait(number(3), behind, operation(3), 8));
        let before = source(0x0000, 0x3000);
        assert!(table.wait(number(4), before, operation(4), 8));
        let fault = table.answer(number(1)).unwrap();
        let waiters: Vec<_> = fault.waiters.iter().map(|w| name(&w.1)).collect();
        assert_eq!(waiters, [1, 2]);
        assert!(table.answer(number(1)).is_none());
        assert!(table.answer(number(2)).is_none(), "2 waits behind 1");
        assert_eq!(table.count(), 2);
    }

    #[test]
    fn faults_for_reading_and_for_writing_are_apart() {
        let mut table = FaultTable::default();
        let written = PageRange::new(0x1000, 1, LookupSide::Destination);
        assert!(table.wait(number(1), source(0x1000, 1), operation(1), 2));
        assert!(table.wait(number(2), written, operation(2), 2));
        assert!(!table.wait(number(3), written, operation(3), 2));
        let fault = table.answer(number(2)).unwrap();
        assert!(fault.waiters.iter().all(|w| fault.range.begins_as(&w.0)));
        let waiters: Vec<_> = fault.waiters.iter().map(|w| name(&w.1)).collect();
        assert_eq!(waiters, [2, 3]);
        // In a full table one waits behind the other, and is not failed with it.
        assert!(!table.wait(number(4), written, operation(4), 1));
        let fault = table.answer(number(1)).unwrap();
        let same =
            |w: &(PageRange, Waiter)| fault.range.begins_as(&w.0) && fault.range.covers(&w.0);
        assert_eq!(
            fault.waiters.iter().map(same).collect::<Vec<_>>(),
            [true, false]
        );
    }

    #[test]
    fn a_full_table_delays_and_revoked_ranges_are_forgotten() {
        let mut table = FaultTable::default();
        let range = |page| source(page, 1);
        assert!(table.wait(number(1), range(0x1000), operation(1), 1));
        assert!(!table.wait(number(2), range(0x9000), operation(2), 1));
        assert!(table.forget(0x2000, 0x9000).is_none());
        assert!(table.forget(0x0, 0x1000).is_none());
        assert_eq!(table.forget(0x1fff, 0x2000).unwrap().waiters.len(), 2);
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn waiters_can_be_taken_out_and_their_fault_stays() {
        let mut table = FaultTable::default();
        for id in 1..=4 {
            table.wait(number(id), source(id << 12, 1), operation(id), 8);
        }
        let taken = table.take_waiters(|waiter| name(waiter) % 2 == 0);
        let taken: Vec<_> = taken.iter().map(name).collect();
        assert_eq!(taken, [2, 4]);
        assert_eq!(table.count(), 4);
        assert_eq!(table.answer(number(2)).unwrap().waiters.len(), 0);
        assert_eq!(table.answer(number(3)).unwrap().waiters.len(), 1);
        assert!(table.take_waiters_of(PeerIndex::default()).is_empty());
    }
}

#[cfg(test)]
mod bounce_tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_and_its_peak_is_kept() {
        let mut memory = BounceMemory::default();
        memory.take(4096);
        memory.take(8);
        memory.give(4096);
        memory.take(0);
        assert_eq!((memory.frames, memory.bytes, memory.peak), (2, 8, 4104));
        assert_eq!((memory.total, memory.total_bytes), (3, 4104));
        memory.give(8);
        memory.give(0);
        assert_eq!((memory.frames, memory.bytes), (0, 0));
    }
}
