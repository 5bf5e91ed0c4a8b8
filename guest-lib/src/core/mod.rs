//! What an endpoint and everything made from it share.

pub(crate) mod completion;
pub mod queue;
pub(crate) mod tracker;
pub(crate) mod wait;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use qnic_abi::command::Descriptor;
use qnic_abi::host_area::SIGNAL_COUNTERS;
use qnic_abi::{uapi, NodeId, Port};

use crate::atomic::Records;
use crate::core::queue::{Command, WakeRequests};
use crate::core::tracker::{Claims, Issued, Ledger, Summary};
use crate::error::{Error, Operation, Result, TransferError, TransferErrors};
use crate::memory::map::{Exports, Imports};
use crate::memory::segment::{Remote, RemoteSegment};
use crate::notification::handler::Handlers;
use crate::notification::ring::Arrivals;
use crate::provider::{Process, Provider};

/// A registered process and the library's books about it.
pub(crate) struct Core {
    pub(crate) process: Box<dyn Process>,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) wakes: WakeRequests,
    pub(crate) signal_wakes: WakeRequests,
    pub(crate) claims: Claims,
    pub(crate) records: Records,
    pub(crate) acknowledged: Box<[AtomicU64]>,
    pub(crate) arrivals: Mutex<Arrivals>,
    pub(crate) handlers: Handlers,
    /// It has a [`crate::Poller`].
    pub(crate) polled: AtomicBool,
    /// Where the next look at several notifications begins.
    pub(crate) turn: AtomicUsize,
    pub(crate) exports: Mutex<Exports>,
    pub(crate) imports: Mutex<Imports<Weak<Remote>>>,
    ledger: Mutex<Ledger>,
    /// Copy of the ledger's generation, for those who wait without its lock.
    generation: AtomicU64,
}

impl Core {
    pub(crate) fn new(process: Box<dyn Process>, provider: Arc<dyn Provider>) -> Self {
        Core {
            wakes: WakeRequests::new(process.window()),
            signal_wakes: WakeRequests::for_signals(process.window()),
            arrivals: Mutex::default(),
            handlers: Handlers::default(),
            polled: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            process,
            provider,
            claims: Claims::new(),
            records: Records::new(),
            acknowledged: (0..SIGNAL_COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            exports: Mutex::default(),
            imports: Mutex::default(),
            ledger: Mutex::new(Ledger::new()),
            generation: AtomicU64::new(0),
        }
    }

    pub(crate) fn name(&self) -> (NodeId, Port) {
        let registration = self.process.registration();
        (
            NodeId(registration.node.get()),
            Port(registration.port.get()),
        )
    }

    pub(crate) fn inline_max(&self) -> usize {
        self.process.registration().inline_max.get() as usize
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Puts a command into the queue; waits while it is full (Q2).
    pub(crate) fn issue(
        &self,
        descriptor: &Descriptor,
        payload: &[u8],
        summary: Summary,
        claimed: bool,
    ) -> Result<Issued> {
        let command = Command::new(descriptor, payload);
        let mut ledger = self.ledger();
        while !ledger.has_room() {
            ledger.look(self.process.host_area(), &self.claims);
            if ledger.has_room() {
                break;
            }
            let (seen, generation) = (ledger.seen(), ledger.generation());
            drop(ledger);
            self.wait_for(None, || {
                if Ledger::present(self.process.host_area()) != seen {
                    return Ok(Some(()));
                }
                self.check_queue(generation).map(|()| None)
            })?;
            ledger = self.ledger();
        }
        let issued = ledger.enter(summary, &self.claims, claimed);
        let (window, area) = (self.process.window(), self.process.host_area());
        let ring = command.publish(window, area, issued.number, ledger.doorbell());
        drop(ledger);
        if ring {
            self.process.ring_doorbell();
        }
        Ok(issued)
    }

    /// Reports what nobody has heard of yet: earlier operations of this kind to the same
    /// process have failed because that, or its node, is gone, and the queue is full of
    /// others. Each queue of commands would be waited for anew.
    ///
    /// # Errors
    /// [`Error::Transfer`]
    pub(crate) fn check_reachable(&self, to: &RemoteSegment, operation: Operation) -> Result<()> {
        let mut ledger = self.ledger();
        if ledger.has_room() {
            return Ok(());
        }
        ledger.look(self.process.host_area(), &self.claims);
        if ledger.has_room() {
            return Ok(());
        }
        let failures = ledger.take_unreachable(to.node(), to.port(), operation);
        match failures.is_empty() {
            true => Ok(()),
            false => Err(Error::Transfer(TransferErrors { failures })),
        }
    }

    /// Waits until a command and all earlier ones of its kind are complete.
    pub(crate) fn wait_complete(
        &self,
        operation: Operation,
        ordinal: u64,
        generation: u64,
    ) -> Result<()> {
        let host_area = self.process.host_area();
        self.wait_for(None, || {
            // Acquire: partner is the release store in `reset_queue`.
            if self.generation.load(Ordering::Acquire) != generation {
                return Err(Error::QueueReset);
            }
            if completion::done(host_area, operation) >= ordinal {
                return Ok(Some(()));
            }
            self.check_queue(generation).map(|()| None)
        })
    }

    /// Says whether a command and all earlier ones of its kind are complete.
    ///
    /// # Errors
    /// [`Error::QueueReset`]: it will never be.
    pub(crate) fn has_ended(&self, issued: &Issued) -> Result<bool> {
        // Acquire: partner is the release store in `reset_queue`.
        if self.generation.load(Ordering::Acquire) != issued.generation {
            return Err(Error::QueueReset);
        }
        Ok(completion::done(self.process.host_area(), issued.operation) >= issued.ordinal)
    }

    /// The failure of a claimed command that is complete, which ends its claim.
    pub(crate) fn take_result(&self, issued: &Issued) -> Option<TransferError> {
        let mut ledger = self.ledger();
        ledger.look(self.process.host_area(), &self.claims);
        self.claims.release(issued);
        ledger.take_claimed(issued)
    }

    /// Ends the claim of a command whose failure nobody needs to know.
    pub(crate) fn silence(&self, issued: &Issued) {
        let mut ledger = self.ledger();
        if !self.claims.silence(issued) {
            ledger.take_claimed(issued);
        }
    }

    /// Looks for failures that belong to no ticket, of operations that are complete.
    pub(crate) fn collect(&self, operation: Operation) -> Result<()> {
        let mut ledger = self.ledger();
        ledger.look(self.process.host_area(), &self.claims);
        let failures = ledger.take_unclaimed(operation);
        if failures.is_empty() {
            Ok(())
        } else {
            Err(Error::Transfer(TransferErrors { failures }))
        }
    }

    /// Starts the command queue again after [`Error::QueueFailed`].
    pub(crate) fn reset_queue(&self) -> Result<()> {
        let mut ledger = self.ledger();
        ledger.look(self.process.host_area(), &self.claims);
        let mut call = uapi::ResetQueue::default();
        let what = || "reset the command queue".to_owned();
        retry(|| self.process.reset_queue(&mut call)).map_err(|error| Error::call(what, error))?;
        Error::check(call.status.get(), what)?;
        ledger.reset(&self.claims);
        // Release: partner is the acquire load in `wait_complete`.
        self.generation
            .store(ledger.generation(), Ordering::Release);
        Ok(())
    }

    fn check_queue(&self, generation: u64) -> Result<()> {
        if self.generation.load(Ordering::Acquire) != generation {
            return Err(Error::QueueReset);
        }
        match completion::queue_failure(self.process.host_area()) {
            None => Ok(()),
            Some(status) => Err(Error::QueueFailed(status)),
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// Locks, also after a panic of another thread: every critical section leaves the
/// books consistent at each of its steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(
    mut call: impl FnMut() -> std::result::Result<T, crate::provider::CallError>,
) -> std::result::Result<T, crate::provider::CallError> {
    loop {
        match call() {
            Err(crate::provider::CallError::Interrupted) => (),
            result => return result,
        }
    }
}
