//! FI_FENCE: an operation, and what is called behind it, begins when all earlier ones to its peer have ended.
//!
//! ```text
//!   call ─► begins at once: has a ticket until its end
//!      └──► is held: the fence at the front waits until its peer has no tickets
//! ```
//! Messages and accesses to memory count alike, also those whose end is not told.
//!
//! # Invariants
//! - Of each peer no more is held than an endpoint says that it queues: calls beyond that are to be tried again.
//! - What is held for a peer begins in the order of the calls; while something is held, nothing else begins.
//! - Tickets are given back under locks of endpoint and service, so nothing begins there: [`Fences::run`] is called
//!   without them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::address::Address;
use crate::errno::{Errno, Result, AGAIN};
use crate::info::offer::OPERATIONS;

/// An operation that may have to wait.
pub(crate) trait Deferred: Send + Sync {
    /// Begins it. It keeps the ticket until its end.
    ///
    /// # Errors
    /// [`AGAIN`]: there is no room now. With any other it has not begun, and never will.
    fn begin(&self, ticket: Option<Arc<Ticket>>) -> Result<()>;

    /// Tells that it was not begun.
    fn fail(&self, error: Errno);

    /// Its memory is the program's again when the call returns.
    fn is_inject(&self) -> bool;
}

/// What is under way to the peers of an endpoint, and what is held.
#[derive(Default)]
pub(crate) struct Fences {
    peers: Mutex<HashMap<Address, Peer>>,
    /// Held by the thread that begins what was held.
    turn: Mutex<()>,
    held: AtomicUsize,
}

#[derive(Default)]
struct Peer {
    under_way: usize,
    held: VecDeque<(bool, Arc<dyn Deferred>)>,
}

/// An operation under way. Dropped, it has ended.
pub(crate) struct Ticket {
    fences: Arc<Fences>,
    peer: Address,
}

impl Fences {
    /// Begins an operation, or holds it. Returns true if it is held.
    ///
    /// # Errors
    /// [`AGAIN`]: it cannot be held. Those of [`Deferred::begin`]
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: Address,
        is_fenced: bool,
        operation: Arc<dyn Deferred>,
    ) -> Result<bool> {
        let mut peers = self.lock();
        let state = peers.entry(peer).or_default();
        if !state.held.is_empty() || is_fenced && state.under_way > 0 {
            if operation.is_inject() || state.held.len() >= OPERATIONS {
                return Err(AGAIN);
            }
            state.held.push_back((is_fenced, operation));
            // Release: partner is the load in `has_held`.
            self.held.fetch_add(1, Ordering::Release);
            return Ok(true);
        }
        state.under_way += 1;
        drop(peers);
        let ticket = self.ticket(peer);
        operation.begin(Some(ticket)).map(|()| false)
    }

    /// Something is held.
    pub(crate) fn has_held(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    /// Begins what waits no longer.
    pub(crate) fn run(self: &Arc<Self>) {
        if !self.has_held() {
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((peer, operation)) = self.next() {
            // It stays at the front until it has begun: what is called meanwhile goes behind it.
            match operation.begin(Some(self.ticket(peer))) {
                Ok(()) => {}
                Err(AGAIN) => return,
                Err(error) => operation.fail(error),
            }
            let mut peers = self.lock();
            let popped = peers.get_mut(&peer).and_then(|it| it.held.pop_front());
            if popped.is_some() {
                self.held.fetch_sub(1, Ordering::Release);
            }
            forget_idle(&mut peers, peer);
        }
    }

    /// Drops what is held.
    pub(crate) fn clear(&self) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dropped = Vec::new();
        for peer in self.lock().values_mut() {
            dropped.extend(peer.held.drain(..));
        }
        self.held.fetch_sub(dropped.len(), Ordering::Release);
    }

    /// The next one that waits no longer; it is counted as under way.
    fn next(&self) -> Option<(Address, Arc<dyn Deferred>)> {
        let mut peers = self.lock();
        peers.iter_mut().find_map(|(address, peer)| {
            let (is_fenced, operation) = peer.held.front()?;
            if *is_fenced && peer.under_way > 0 {
                return None;
            }
            peer.under_way += 1;
            Some((*address, operation.clone()))
        })
    }

    fn ticket(self: &Arc<Self>, peer: Address) -> Arc<Ticket> {
        let fences = self.clone();
        Arc::new(Ticket { fences, peer })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Address, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn forget_idle(peers: &mut HashMap<Address, Peer>, peer: Address) {
    if let Entry::Occupied(entry) = peers.entry(peer) {
        if entry.get().under_way == 0 && entry.get().held.is_empty() {
            entry.remove();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut peers = self.fences.lock();
        if let Some(state) = peers.get_mut(&self.peer) {
            state.under_way -= 1;
        }
        forget_idle(&mut peers, self.peer);
    }
}

impl std::fmt::Debug for Fences {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fences").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic::{NodeId, Port};

    /// Keeps its ticket when it begins.
    #[derive(Default)]
    struct Fake(Mutex<Option<Arc<Ticket>>>);

    impl Deferred for Fake {
        fn begin(&self, ticket: Option<Arc<Ticket>>) -> Result<()> {
            *self.0.lock().unwrap() = ticket;
            Ok(())
        }

        fn fail(&self, error: Errno) {
            panic!("not begun: {error:?}");
        }

        fn is_inject(&self) -> bool {
            false
        }
    }

    #[test]
    fn what_is_held_is_bounded_and_begins_when_the_rest_has_ended() {
        let peer = Address {
            node: NodeId(1),
            port: Port(2),
            memory: Port(0),
            endpoint: 0,
            incarnation: 3,
            service: 0,
        };
        let fences = Arc::new(Fences::default());
        let first = Arc::new(Fake::default());
        assert_eq!(fences.admit(peer, false, first.clone()), Ok(false));
        let held: Vec<_> = (0..OPERATIONS).map(|_| Arc::new(Fake::default())).collect();
        for (index, operation) in held.iter().enumerate() {
            assert_eq!(fences.admit(peer, index == 0, operation.clone()), Ok(true));
        }
        let more = Arc::new(Fake::default());
        assert_eq!(fences.admit(peer, false, more.clone()), Err(AGAIN));
        fences.run();
        assert!(held[0].0.lock().unwrap().is_none(), "before its time");
        drop(first.0.lock().unwrap().take());
        fences.run();
        assert!(held.iter().all(|it| it.0.lock().unwrap().is_some()));
        assert_eq!(fences.admit(peer, false, more), Ok(false));
    }
}
