//! What the process has issued and what became of it: numbers, room, failures.
//!
//! # Invariants
//! - At most [`COMMAND_ENTRIES`] commands are incomplete, as many as the error
//!   ring has records: so the ring never overruns, and no failure is lost (N11).
//! - A command's slot is reused only after the NIC has read it (Q2).
//! - A failure is delivered exactly once: to the command's [`crate::Ticket`] while
//!   that is alive, else to the next fence or flush of its kind, or, if its destination
//!   is gone, to the next transfer there that finds the queue full. Only those of the
//!   library's own messages are delivered to nobody ([`Summary::silent`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use qnic_abi::host_area::ERROR_RECORDS;
use qnic_abi::window::COMMAND_ENTRIES;
use qnic_abi::{NodeId, Port, SegmentName, SharedMemory, Status};

use crate::core::completion;
use crate::core::queue::Doorbell;
use crate::error::{Operation, TransferError};

const _: () = assert!(COMMAND_ENTRIES <= ERROR_RECORDS);

/// What a failure message says about a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    pub(crate) operation: Operation,
    pub(crate) node: NodeId,
    pub(crate) port: Port,
    pub(crate) segment: SegmentName,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Nobody is to hear of its failure.
    pub(crate) silent: bool,
}

impl Summary {
    fn failed(self, status: Status) -> TransferError {
        TransferError {
            operation: self.operation,
            node: self.node,
            port: self.port,
            segment: self.segment,
            offset: self.offset,
            length: self.length,
            status,
        }
    }
}

/// Names an issued command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Issued {
    pub(crate) operation: Operation,
    /// Number among all commands since registration or reset, from 0.
    pub(crate) number: u64,
    /// How many operations of its kind must be complete for it to be.
    pub(crate) ordinal: u64,
    /// Which life of the command queue it belongs to.
    pub(crate) generation: u64,
}

/// Place of an operation among those of its kind. Operations of one kind complete
/// in their order, so no two that are incomplete share a place; commands as such
/// may overtake each other, a write an earlier read.
fn place(ordinal: u64) -> usize {
    (ordinal % COMMAND_ENTRIES as u64) as usize
}

/// The operations whose tickets are alive, by kind and place: command number + 1,
/// or 0, or [`FAILED`] with the former.
#[derive(Debug)]
pub(crate) struct Claims([[AtomicU64; COMMAND_ENTRIES]; 2]);

/// Marks a claim whose failure has been put aside for the ticket.
const FAILED: u64 = 1 << 63;

/// Marks a claim whose failure nobody wants to know.
const SILENT: u64 = 1 << 62;

impl Claims {
    pub(crate) fn new() -> Self {
        Claims([(); 2].map(|()| std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Says whether the ticket of an operation lives. Called with the ledger locked.
    fn claim(&self, issued: &Issued, claimed: bool) {
        let value = if claimed { issued.number + 1 } else { 0 };
        // Relaxed: the ledger's lock orders it before the command's failure.
        self.at(issued.operation, place(issued.ordinal))
            .store(value, Ordering::Relaxed);
    }

    /// Says whether the failure of a command belongs to its ticket. Called with
    /// the ledger locked.
    fn keep(&self, operation: Operation, place: usize, number: u64) -> bool {
        let claim = self.at(operation, place);
        claim
            .compare_exchange(
                number + 1,
                (number + 1) | FAILED,
                // Relaxed: only one of this and `release` can succeed, and what
                // the ticket then reads it reads under the ledger's lock.
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Lets nobody learn of the failure of a command; `false` if it may have been put
    /// aside for its ticket. Called with the ledger locked.
    pub(crate) fn silence(&self, issued: &Issued) -> bool {
        let claim = self.at(issued.operation, place(issued.ordinal));
        let number = issued.number + 1;
        claim
            // Relaxed: as in `keep`.
            .compare_exchange(
                number,
                number | SILENT,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    fn is_silent(&self, operation: Operation, place: usize, number: u64) -> bool {
        self.at(operation, place).load(Ordering::Relaxed) == (number + 1) | SILENT
    }

    /// Ends a claim; `false` if a failure may have been put aside for it.
    pub(crate) fn release(&self, issued: &Issued) -> bool {
        let claim = self.at(issued.operation, place(issued.ordinal));
        claim
            .compare_exchange(issued.number + 1, 0, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    fn at(&self, operation: Operation, place: usize) -> &AtomicU64 {
        &self.0[operation.kind()][place]
    }

    fn clear(&self) {
        for claim in self.0.iter().flatten() {
            claim.store(0, Ordering::Relaxed);
        }
    }
}

/// The book of one process's command queue.
#[derive(Debug)]
pub(crate) struct Ledger {
    generation: u64,
    /// Number of the next command.
    next: u64,
    /// Commands that the NIC had read when last looked.
    head: u64,
    issued: [u64; 2],
    /// Ordinal of the last write that is not the library's own.
    published: u64,
    /// Complete operations of each kind when last looked.
    done: [u64; 2],
    errors_seen: u64,
    /// Number and summary of the last commands, by kind and place.
    recent: [[Option<(u64, Summary)>; COMMAND_ENTRIES]; 2],
    unclaimed: Vec<TransferError>,
    claimed: BTreeMap<u64, TransferError>,
    doorbell: Doorbell,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Ledger {
            generation: 0,
            next: 0,
            head: 0,
            issued: [0; 2],
            published: 0,
            done: [0; 2],
            errors_seen: 0,
            recent: [[None; COMMAND_ENTRIES]; 2],
            unclaimed: Vec::new(),
            claimed: BTreeMap::new(),
            doorbell: Doorbell::default(),
        }
    }

    /// What is known of the doorbell, for the next command.
    pub(crate) fn doorbell(&mut self) -> &mut Doorbell {
        &mut self.doorbell
    }

    /// Says whether another command fits, by what was seen last.
    pub(crate) fn has_room(&self) -> bool {
        let limit = COMMAND_ENTRIES as u64;
        self.next.wrapping_sub(self.head) < limit && self.next.wrapping_sub(self.complete()) < limit
    }

    fn complete(&self) -> u64 {
        self.done[0].wrapping_add(self.done[1])
    }

    /// Progress as last seen: changes when there may be new room.
    pub(crate) fn seen(&self) -> (u64, u64) {
        (self.head, self.complete())
    }

    /// The same as [`Ledger::seen`], as it stands now.
    pub(crate) fn present<M: SharedMemory + ?Sized>(host_area: &M) -> (u64, u64) {
        let complete = completion::done(host_area, Operation::Write)
            .wrapping_add(completion::done(host_area, Operation::Read));
        (completion::head(host_area), complete)
    }

    /// Looks at the counters, then takes over the failures behind them.
    pub(crate) fn look<M: SharedMemory + ?Sized>(&mut self, host_area: &M, claims: &Claims) {
        self.head = completion::head(host_area);
        let done =
            [Operation::Write, Operation::Read].map(|kind| completion::done(host_area, kind));
        let Ledger {
            recent,
            unclaimed,
            claimed,
            ..
        } = self;
        let take = |number, status| {
            let Some((place, summary)) = find(recent, number) else {
                return;
            };
            if summary.silent {
                return;
            }
            let failure = summary.failed(status);
            if claims.keep(summary.operation, place, number) {
                claimed.insert(number, failure);
            } else if !claims.is_silent(summary.operation, place, number) {
                unclaimed.push(failure);
            }
        };
        self.errors_seen = completion::drain_errors(host_area, self.errors_seen, take);
        self.done = done;
    }

    /// Enters the next command; there must be room.
    pub(crate) fn enter(&mut self, summary: Summary, claims: &Claims, claimed: bool) -> Issued {
        let ordinals = &mut self.issued[summary.operation.kind()];
        *ordinals += 1;
        let issued = Issued {
            operation: summary.operation,
            number: self.next,
            ordinal: *ordinals,
            generation: self.generation,
        };
        self.next += 1;
        if issued.operation == Operation::Write && !summary.silent {
            self.published = issued.ordinal;
        }
        self.recent[issued.operation.kind()][place(issued.ordinal)] =
            Some((issued.number, summary));
        claims.claim(&issued, claimed);
        issued
    }

    /// How many operations of a kind were issued in this life of the queue.
    pub(crate) fn issued(&self, operation: Operation) -> u64 {
        self.issued[operation.kind()]
    }

    /// Ordinal of the last write of the program: writes that the library does on its
    /// own account, and lets nobody know of, are silent.
    pub(crate) fn published(&self) -> u64 {
        self.published
    }

    /// Which life of the queue this is.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Takes the failure that was put aside for a ticket.
    pub(crate) fn take_claimed(&mut self, issued: &Issued) -> Option<TransferError> {
        if issued.generation != self.generation {
            return None;
        }
        self.claimed.remove(&issued.number)
    }

    /// Gives a failure that its ticket did not want to the next fence or flush.
    pub(crate) fn disclaim(&mut self, issued: &Issued) {
        let failure = self.take_claimed(issued);
        self.unclaimed.extend(failure);
    }

    /// Takes the failures of a kind that belong to no ticket.
    pub(crate) fn take_unclaimed(&mut self, operation: Operation) -> Vec<TransferError> {
        self.take_where(|failure| failure.operation.kind() == operation.kind())
    }

    fn take_where(&mut self, wanted: impl Fn(&TransferError) -> bool) -> Vec<TransferError> {
        let (taken, kept) = std::mem::take(&mut self.unclaimed)
            .into_iter()
            .partition(wanted);
        self.unclaimed = kept;
        taken
    }

    /// Takes the failures of a kind that belong to no ticket and say that a process, or
    /// its node, is gone.
    pub(crate) fn take_unreachable(
        &mut self,
        node: NodeId,
        port: Port,
        operation: Operation,
    ) -> Vec<TransferError> {
        self.take_where(|failure| {
            let gone = match failure.status {
                Status::NoSuchNode => true,
                Status::PeerGone => failure.port == port,
                _ => false,
            };
            gone && failure.node == node && failure.operation.kind() == operation.kind()
        })
    }

    /// Starts a new life of the queue. Failures of the old one go to the next flush.
    pub(crate) fn reset(&mut self, claims: &Claims) {
        claims.clear();
        let mut unclaimed = std::mem::take(&mut self.unclaimed);
        unclaimed.extend(std::mem::take(&mut self.claimed).into_values());
        *self = Ledger {
            generation: self.generation + 1,
            unclaimed,
            ..Ledger::new()
        };
    }
}

/// The place and summary of a command that is incomplete.
fn find(
    recent: &[[Option<(u64, Summary)>; COMMAND_ENTRIES]; 2],
    number: u64,
) -> Option<(usize, Summary)> {
    recent.iter().find_map(|kind| {
        let mut places = kind.iter().enumerate();
        places.find_map(|(place, entry)| {
            let (_, summary) = (*entry).filter(|(other, _)| *other == number)?;
            Some((place, summary))
        })
    })
}
