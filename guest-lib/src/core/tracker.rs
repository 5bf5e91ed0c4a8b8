//! The command tracker: what the process has issued and what became of it.
//!
//! # Invariants
//! - At most [`COMMAND_ENTRIES`] commands that a counter counts are incomplete, as many as the
//!   error ring has records. So the ring never overruns, and no failure is lost (N11). Those
//!   that no counter counts, of [`crate::message`], make no error records.
//! - A command's slot is reused only after the NIC has read it (Q2).
//! - A failure is delivered exactly once: to the command's [`crate::Ticket`] while the
//!   ticket lives, else to the next fence or flush of its kind. If its destination is
//!   gone, the next transfer there that finds the queue full takes it instead. Only
//!   failures of the library's own messages are dropped ([`Summary::silent`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use qnic_abi::host_area::ERROR_RECORDS;
use qnic_abi::window::COMMAND_ENTRIES;
use qnic_abi::{NodeId, Port, SharedMemory, Status};
use qnic_shared::timing::Countdown;

use crate::core::completion;
use crate::core::queue::Doorbell;
use crate::error::{Operation, TransferError};

const _: () = assert!(COMMAND_ENTRIES <= ERROR_RECORDS);

/// What a failure message says about a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    /// The failure, if there is one; its status is still open.
    pub(crate) failure: TransferError,
    /// The failure is dropped.
    pub(crate) silent: bool,
}

/// A point in the order of one kind of operations: all up to here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) operation: Operation,
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
    pub(crate) mark: Mark,
}

impl Issued {
    /// Index of the operation among those of its kind that may be incomplete.
    /// Operations of one kind complete in order, so no two of them share an index.
    /// Commands as such may overtake each other: a write an earlier read.
    fn index(&self) -> usize {
        (self.mark.ordinal % COMMAND_ENTRIES as u64) as usize
    }
}

/// The operations whose tickets live, by kind and index: 0, or the command number + 1,
/// with one of the flags below when it is settled which call learns of a failure.
#[derive(Debug)]
pub(crate) struct Claims([[AtomicU64; COMMAND_ENTRIES]; 2]);

/// The failure has been put aside for the ticket.
const FAILED: u64 = 1 << 63;

/// The failure, if any, is to be dropped.
const SILENT: u64 = 1 << 62;

impl Claims {
    pub(crate) fn new() -> Self {
        Claims([(); 2].map(|()| std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Notes whether the ticket of an operation lives. Called with the tracker locked.
    fn claim(&self, issued: &Issued, claimed: bool) {
        let value = if claimed { issued.number + 1 } else { 0 };
        // Relaxed: the tracker's lock orders it before the command's failure.
        self.at(issued).store(value, Ordering::Relaxed);
    }

    /// Returns true if the failure of a command belongs to its ticket. Called with the
    /// tracker locked.
    fn keep(&self, issued: &Issued) -> bool {
        self.replace(issued, (issued.number + 1) | FAILED)
    }

    /// Has the failure of a command dropped. Returns false if the failure may have been
    /// put aside for its ticket. Called with the tracker locked.
    pub(crate) fn silence(&self, issued: &Issued) -> bool {
        self.replace(issued, (issued.number + 1) | SILENT)
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
            .compare_exchange(issued.number + 1, new, order, order)
            .is_ok()
    }

    fn is_silent(&self, issued: &Issued) -> bool {
        self.at(issued).load(Ordering::Relaxed) == (issued.number + 1) | SILENT
    }

    fn at(&self, issued: &Issued) -> &AtomicU64 {
        &self.0[issued.mark.operation.kind()][issued.index()]
    }

    fn clear(&self) {
        for claim in self.0.iter().flatten() {
            claim.store(0, Ordering::Relaxed);
        }
    }
}

/// The last commands, by kind and index.
type Recent = [[Option<(Issued, Summary)>; COMMAND_ENTRIES]; 2];

/// State of one process's command queue.
#[derive(Debug)]
pub(crate) struct Tracker {
    /// Number of resets of the queue.
    pub(crate) generation: u64,
    /// Number of the next command.
    next: u64,
    /// Commands that the NIC had read at the last poll.
    head: u64,
    issued: [u64; 2],
    /// Ordinal of the last write that is not the library's own.
    program_writes: u64,
    /// Complete operations of each kind at the last poll.
    done: [u64; 2],
    errors_seen: u64,
    recent: Recent,
    unclaimed: Vec<TransferError>,
    claimed: BTreeMap<u64, TransferError>,
    /// State of the doorbell, for the next command.
    pub(crate) doorbell: Doorbell,
    /// Chooses the transfers that are timed.
    pub(crate) countdown: Countdown,
}

impl Tracker {
    pub(crate) fn new() -> Self {
        Tracker {
            generation: 0,
            next: 0,
            head: 0,
            issued: [0; 2],
            program_writes: 0,
            done: [0; 2],
            errors_seen: 0,
            recent: [[None; COMMAND_ENTRIES]; 2],
            unclaimed: Vec::new(),
            claimed: BTreeMap::new(),
            doorbell: Doorbell::default(),
            countdown: Countdown::new(),
        }
    }

    /// Returns true if another command fits, by the last poll.
    pub(crate) fn has_room(&self) -> bool {
        let issued = self.issued[0].wrapping_add(self.issued[1]);
        let (_, complete) = self.progress();
        self.has_slot() && issued.wrapping_sub(complete) < COMMAND_ENTRIES as u64
    }

    /// Returns true if a command that no counter counts fits, by the last poll.
    pub(crate) fn has_slot(&self) -> bool {
        self.next.wrapping_sub(self.head) < COMMAND_ENTRIES as u64
    }

    /// Commands read and complete at the last poll: changes when there may be room.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.head, self.done[0].wrapping_add(self.done[1]))
    }

    /// The same as [`Tracker::progress`], now.
    pub(crate) fn current_progress<M: SharedMemory + ?Sized>(host_area: &M) -> (u64, u64) {
        let [writes, reads] = completion::all_done(host_area);
        (completion::head(host_area), writes.wrapping_add(reads))
    }

    /// Reads the counters, then takes over the failures that they cover.
    pub(crate) fn poll<M: SharedMemory + ?Sized>(&mut self, host_area: &M, claims: &Claims) {
        self.head = completion::head(host_area);
        let done = completion::all_done(host_area);
        let Tracker {
            recent,
            unclaimed,
            claimed,
            ..
        } = self;
        let take = |number, status| {
            let mut commands = recent.iter().flatten().flatten();
            let Some((issued, summary)) = commands.find(|(issued, _)| issued.number == number)
            else {
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
                claimed.insert(number, failure);
            } else if !claims.is_silent(issued) {
                unclaimed.push(failure);
            }
        };
        self.errors_seen = completion::drain_errors(host_area, self.errors_seen, take);
        self.done = done;
    }

    /// Enters the next command; there must be room.
    pub(crate) fn enter(&mut self, summary: Summary, claims: &Claims, claimed: bool) -> Issued {
        let operation = summary.failure.operation;
        self.issued[operation.kind()] += 1;
        let mark = self.last(operation);
        let issued = Issued {
            number: self.next,
            mark,
        };
        self.next += 1;
        if operation == Operation::Write && !summary.silent {
            self.program_writes = mark.ordinal;
        }
        self.recent[operation.kind()][issued.index()] = Some((issued, summary));
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

    /// The last operation of a kind.
    pub(crate) fn last(&self, operation: Operation) -> Mark {
        Mark {
            operation,
            ordinal: self.issued[operation.kind()],
            generation: self.generation,
        }
    }

    /// The last write of the program. Writes that the library makes for itself, and
    /// whose failures are dropped, do not count.
    pub(crate) fn last_program_write(&self) -> Mark {
        Mark {
            ordinal: self.program_writes,
            ..self.last(Operation::Write)
        }
    }

    /// Takes the failure that was put aside for a ticket.
    pub(crate) fn take_claimed(&mut self, issued: &Issued) -> Option<TransferError> {
        if issued.mark.generation != self.generation {
            return None;
        }
        self.claimed.remove(&issued.number)
    }

    /// Gives a failure that its ticket did not take to the next fence or flush.
    pub(crate) fn disclaim(&mut self, issued: &Issued) {
        let failure = self.take_claimed(issued);
        self.unclaimed.extend(failure);
    }

    /// Takes the failures of a kind that belong to no ticket.
    pub(crate) fn take_unclaimed(&mut self, operation: Operation) -> Vec<TransferError> {
        self.take_where(operation, |_| true)
    }

    /// Takes the failures of a kind that belong to no ticket and say that a process, or
    /// its node, is gone.
    pub(crate) fn take_unreachable(
        &mut self,
        node: NodeId,
        port: Port,
        operation: Operation,
    ) -> Vec<TransferError> {
        self.take_where(operation, |failure| {
            let gone = match failure.status {
                Status::NoSuchNode => true,
                Status::PeerGone => failure.port == port,
                _ => false,
            };
            gone && failure.node == node
        })
    }

    fn take_where(
        &mut self,
        operation: Operation,
        wanted: impl Fn(&TransferError) -> bool,
    ) -> Vec<TransferError> {
        let of_kind = |failure: &TransferError| {
            failure.operation.kind() == operation.kind() && wanted(failure)
        };
        let (taken, kept) = self.unclaimed.drain(..).partition(of_kind);
        self.unclaimed = kept;
        taken
    }

    /// Begins a new generation of the queue. Failures of the old one go to the next
    /// flush.
    pub(crate) fn reset(&mut self, claims: &Claims) {
        claims.clear();
        let mut unclaimed = std::mem::take(&mut self.unclaimed);
        unclaimed.extend(std::mem::take(&mut self.claimed).into_values());
        *self = Tracker {
            generation: self.generation + 1,
            unclaimed,
            ..Tracker::new()
        };
    }
}
