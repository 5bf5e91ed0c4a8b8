//! The command tracker: what the process has issued and what became of it.
//!
//! # Invariants
//! - At most [`OPERATIONS`] commands that a counter counts are incomplete, as many as the
//!   error ring has records. So the ring never overruns, and no failure is lost (N11). Those
//!   that no counter counts, of [`crate::message`], make no error records.
//! - A command's slot is reused only after the NIC has read it (Q2).
//! - A failure is delivered exactly once: to the command's [`crate::Ticket`] while the
//!   ticket lives, else to the next fence or flush of its kind that covers its destination. If that
//!   is gone, the next transfer there that finds no room takes it instead. Only
//!   failures of the library's own messages are dropped ([`Summary::silent`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use qnic_abi::host_area::{ERROR_RECORDS, OPERATIONS};
use qnic_abi::SharedMemory;
use qnic_shared::timing::Countdown;

use crate::core::completion;
use crate::core::failures::Failures;
use crate::core::lanes::{Destination, Lane, Lanes};
use crate::core::queue::Doorbell;
use crate::error::{Operation, TransferError};

const _: () = assert!(OPERATIONS as usize <= ERROR_RECORDS);

/// What a failure message says about a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    /// The failure, if there is one; its status is still open.
    pub(crate) failure: TransferError,
    /// The failure is dropped.
    pub(crate) silent: bool,
}

impl Summary {
    pub(crate) fn destination(&self) -> Destination {
        (self.failure.node, self.failure.port)
    }
}

/// A point in the order of one kind of operations of a lane: all up to here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) operation: Operation,
    pub(crate) lane: u8,
    /// How many operations of the kind are complete at this point.
    pub(crate) ordinal: u64,
    /// Counts the resets of the command queue.
    pub(crate) generation: u64,
}

/// Names an issued command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Issued {
    /// Number among all commands since registration or reset, from 0.
    pub(crate) number: u64,
    /// Its place among those that may be incomplete.
    pub(crate) slot: u16,
    pub(crate) mark: Mark,
}

/// The operations whose tickets live, by slot: 0, or the name of the command,
/// with one of the flags below when it is settled which call learns of a failure.
#[derive(Debug)]
pub(crate) struct Claims(Box<[AtomicU64]>);

/// The failure has been put aside for the ticket.
const FAILED: u64 = 1 << 63;

/// The failure, if any, is to be dropped.
const SILENT: u64 = 1 << 62;

/// The name of a command, which is not 0. A ticket of an earlier generation names no later command.
fn name(issued: &Issued) -> u64 {
    ((issued.mark.generation % (1 << 14)) << 48) | ((issued.number + 1) % (1 << 48))
}

impl Claims {
    pub(crate) fn new() -> Self {
        Claims((0..OPERATIONS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Notes whether the ticket of an operation lives. Called with the tracker locked.
    fn claim(&self, issued: &Issued, claimed: bool) {
        let value = if claimed { name(issued) } else { 0 };
        // Relaxed: the tracker's lock orders it before the command's failure.
        self.at(issued).store(value, Ordering::Relaxed);
    }

    /// Returns true if the failure of a command belongs to its ticket. Called with the
    /// tracker locked.
    fn keep(&self, issued: &Issued) -> bool {
        self.replace(issued, name(issued) | FAILED)
    }

    /// Has the failure of a command dropped. Returns false if the failure may have been
    /// put aside for its ticket. Called with the tracker locked.
    pub(crate) fn silence(&self, issued: &Issued) -> bool {
        self.replace(issued, name(issued) | SILENT)
    }

    /// Ends a claim. Returns false if a failure may have been put aside for it.
    pub(crate) fn release(&self, issued: &Issued) -> bool {
        self.replace(issued, 0)
    }

    fn replace(&self, issued: &Issued, new: u64) -> bool {
        // Relaxed: only one of `keep`, `silence` and `release` can succeed, and what the
        // ticket then reads it reads under the tracker's lock.
        let order = Ordering::Relaxed;
        let claim = self.at(issued);
        claim
            .compare_exchange(name(issued), new, order, order)
            .is_ok()
    }

    fn is_silent(&self, issued: &Issued) -> bool {
        self.at(issued).load(Ordering::Relaxed) == name(issued) | SILENT
    }

    fn at(&self, issued: &Issued) -> &AtomicU64 {
        &self.0[usize::from(issued.slot)]
    }

    fn clear(&self) {
        for claim in &self.0 {
            claim.store(0, Ordering::Relaxed);
        }
    }
}

/// State of one process's command queue.
#[derive(Debug)]
pub(crate) struct Tracker {
    /// Number of resets of the queue.
    pub(crate) generation: u64,
    /// Entries of the queue.
    entries: u64,
    /// Number of the next command.
    next: u64,
    /// Commands that the NIC had read at the last poll.
    head: u64,
    errors_seen: u64,
    lanes: Lanes,
    /// Counted commands that may be incomplete, by slot; as many slots as were needed.
    slots: Vec<(Issued, Summary)>,
    /// Slots that are free.
    free: Vec<u16>,
    unclaimed: Failures,
    /// Failures put aside for tickets, by generation and number: a reset takes none from its ticket.
    claimed: BTreeMap<(u64, u64), TransferError>,
    /// State of the doorbell, for the next command.
    pub(crate) doorbell: Doorbell,
    /// Chooses the transfers that are timed.
    pub(crate) countdown: Countdown,
}

impl Tracker {
    /// At most so many counted commands are incomplete, up to [`OPERATIONS`], and so many stand in
    /// the queue.
    pub(crate) fn new(operations: usize, entries: u64) -> Self {
        Tracker {
            generation: 0,
            entries,
            next: 0,
            head: 0,
            errors_seen: 0,
            lanes: Lanes::new(operations),
            slots: Vec::new(),
            free: Vec::new(),
            unclaimed: Failures::default(),
            claimed: BTreeMap::new(),
            doorbell: Doorbell::default(),
            countdown: Countdown::new(),
        }
    }

    /// The lane of a destination.
    #[inline]
    pub(crate) fn lane(&mut self, destination: Destination) -> u8 {
        self.lanes.of(destination)
    }

    /// Returns true if another command of a lane fits, by the last poll.
    #[inline]
    pub(crate) fn has_room(&self, lane: u8) -> bool {
        self.has_slot() && self.lanes.has_room(lane)
    }

    /// Returns true if a command that no counter counts fits, by the last poll.
    #[inline]
    pub(crate) fn has_slot(&self) -> bool {
        self.next.wrapping_sub(self.head) < self.entries
    }

    /// Reads the counters, then takes over the failures that they cover.
    pub(crate) fn poll<M: SharedMemory + ?Sized>(&mut self, host_area: &M, claims: &Claims) {
        self.head = completion::head(host_area);
        self.lanes
            .look(|lane| completion::all_done(host_area, lane));
        self.take_failures(host_area, claims);
        let free = &mut self.free;
        self.lanes.retire(|slot| free.push(slot));
    }

    fn take_failures<M: SharedMemory + ?Sized>(&mut self, host_area: &M, claims: &Claims) {
        let Tracker {
            lanes,
            slots,
            unclaimed,
            claimed,
            ..
        } = self;
        let take = |number, lane, status| {
            let mut under_way = lanes.under_way(lane).iter();
            let Some((issued, summary)) = under_way.find_map(|slots_of_kind| {
                let number_of = |slot: &u16| slots[usize::from(*slot)].0.number;
                let place = slots_of_kind.binary_search_by_key(&number, number_of);
                Some(&slots[usize::from(slots_of_kind[place.ok()?])])
            }) else {
                return;
            };
            if summary.silent {
                return;
            }
            let failure = TransferError {
                status,
                ..summary.failure
            };
            if claims.keep(issued) {
                claimed.insert((issued.mark.generation, number), failure);
            } else if !claims.is_silent(issued) {
                unclaimed.push(failure);
            }
        };
        self.errors_seen = completion::drain_errors(host_area, self.errors_seen, take);
    }

    /// Enters the next command, in its lane; there must be room.
    #[inline]
    pub(crate) fn enter(
        &mut self,
        lane: u8,
        summary: Summary,
        claims: &Claims,
        claimed: bool,
    ) -> Issued {
        let operation = summary.failure.operation;
        let slot = self.free.pop().unwrap_or(self.slots.len() as u16);
        let ordinal = self.lanes.enter(lane, operation.kind(), slot);
        let mark = Mark {
            operation,
            lane,
            ordinal,
            generation: self.generation,
        };
        let issued = Issued {
            number: self.next,
            slot,
            mark,
        };
        self.next += 1;
        if operation == Operation::Write && !summary.silent {
            self.lanes.get_mut(lane).program_writes = ordinal;
        }
        match self.slots.get_mut(usize::from(slot)) {
            Some(place) => *place = (issued, summary),
            None => self.slots.push((issued, summary)),
        }
        claims.claim(&issued, claimed);
        issued
    }

    /// Enters the next command, which no counter counts, and returns its number; there must be
    /// a slot.
    pub(crate) fn enter_uncounted(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// The number of the last command that was entered.
    pub(crate) fn last_number(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }

    /// The last operations of a kind, of all lanes or of that of one destination, which may be
    /// incomplete.
    pub(crate) fn last(&self, operation: Operation, destination: Option<Destination>) -> Vec<Mark> {
        let is_wanted = |lane| destination.is_none_or(|wanted| self.lanes.may_have(lane, wanted));
        let lanes = self.lanes.iter().filter(|(lane, _)| is_wanted(*lane));
        let marks = lanes.map(|(lane, state)| (lane, state, state.issued[operation.kind()]));
        self.marks(operation, marks)
    }

    /// The lanes with writes that may be incomplete, of all destinations or of one. `None`: those of several
    /// destinations may be in one lane.
    pub(crate) fn writes_under_way(
        &self,
        destination: Option<Destination>,
    ) -> Option<Vec<(u8, Destination)>> {
        if self.lanes.is_shared() {
            return None;
        }
        let marks = self.last(Operation::Write, destination);
        let lanes = marks.iter().map(|mark| mark.lane);
        let lanes = lanes.map(|lane| (lane, self.lanes.destination(lane)));
        Some(lanes.collect())
    }

    /// The last writes of the program, of all lanes. Writes that the library makes for itself, and
    /// whose failures are dropped, do not count.
    pub(crate) fn last_program_writes(&self) -> Vec<Mark> {
        let lanes = self.lanes.iter();
        let marks = lanes.map(|(lane, state)| (lane, state, state.program_writes));
        self.marks(Operation::Write, marks)
    }

    fn marks<'a>(
        &self,
        operation: Operation,
        lanes: impl Iterator<Item = (u8, &'a Lane, u64)>,
    ) -> Vec<Mark> {
        let open = lanes.filter(|(_, state, ordinal)| *ordinal > state.done[operation.kind()]);
        let mark = |(lane, _, ordinal)| Mark {
            operation,
            lane,
            ordinal,
            generation: self.generation,
        };
        open.map(mark).collect()
    }

    /// Takes the failure that was put aside for a ticket.
    pub(crate) fn take_claimed(&mut self, issued: &Issued) -> Option<TransferError> {
        let name = (issued.mark.generation, issued.number);
        self.claimed.remove(&name)
    }

    /// Gives a failure that its ticket did not take to the next fence or flush.
    pub(crate) fn disclaim(&mut self, issued: &Issued) {
        if let Some(failure) = self.take_claimed(issued) {
            self.unclaimed.push(failure);
        }
    }

    /// The failures that belong to no ticket.
    pub(crate) fn unclaimed(&mut self) -> &mut Failures {
        &mut self.unclaimed
    }

    /// Begins a new generation of the queue. Failures of the old one stay with their tickets, and go
    /// to the next flush once these are dropped.
    pub(crate) fn reset(&mut self, claims: &Claims) {
        claims.clear();
        *self = Tracker {
            generation: self.generation + 1,
            unclaimed: std::mem::take(&mut self.unclaimed),
            claimed: std::mem::take(&mut self.claimed),
            ..Tracker::new(self.lanes.most(), self.entries)
        };
    }
}
