//! RMA and atomic operations: a service in each process reads and writes the process's memory for its peers.
//!
//! ```text
//!   initiator                                                    target
//!   fi_write ─► pieces of 64 KiB ─► bounce memory ─ request ─► bounce memory ─► order ─► the program's memory
//!   completion ◄─ last reply ◄────────────────────── reply ◄──────────────────────────── copied
//! ```
//! The service is a process of the NIC on a port of its own, which addresses of endpoints name, and a thread. It needs
//! nothing of the memory that programs register: in host mode the NIC does not reach that, and in guests nothing is
//! exported. Requests come as messages of the untagged space; the reply of each goes to a receive
//! that was posted before the request was sent. So neither is ever refused, and a long one is moved by the NIC when the
//! other side has room.
//!
//! # Invariants
//! - An operation has ended when its bytes are in the target's memory, or those of the target in the program's: each
//!   completion level is met.
//! - Requests of one process to another are executed in the order of the calls, pieces of an operation in the
//!   order of their addresses.
//! - An operation that the target refuses ends with an error, and those behind it go on. Its pieces behind the one
//!   that was refused are not done, and it is told nowhere at the target.
//! - No copy is longer than a piece while the lock of the service is held; nothing waits with it.
//!
//! # What of peers that…
//! | peer | here |
//! |---|---|
//! | refuse: key, bounds, access | the reply says so: -FI_EKEYREJECTED, -FI_EACCES; memory that is registered and absent, or that this process may not write: -FI_EFAULT |
//! | have ended, or whose NIC is silent | operations on them end with -FI_ECONNABORTED or -FI_EHOSTUNREACH, within twice the peer timeout: each waits in a receive that names the peer |
//! | have ended, and another process has the port | as above: requests and replies are for one incarnation of a service, and requests for one of an endpoint |
//! | are slow, or stopped by a debugger | operations on them wait; at most [`WINDOW`] pieces to each are under way, so others find room |
//! | flood | each look serves the requests that have come by then, and sees to the operations of this process behind them; threads take turns. Requests beyond the window are dropped; what has no room at the NIC stays at its sender |
//! | come and go | 4,096 peers are known, and 64 MiB of requests kept whose turn it is not. For more, the peer goes that has been silent for the longest; what it asks in its stream ends with -FI_ENOMEM |
//! | do not take their replies | each holds 16 of them, of up to 64 KiB, until it takes them or ends; one, while all hold 64 MiB, and none more, while all hold 128 MiB: then all peers wait |
//! | fork | the child's calls fail as all of a NIC do; its parent goes on |
//! | are killed in the middle | some bytes of a write may be there. A piece that had begun to arrive keeps a receive until the NIC gives its sender up; there are 32, and a peer takes 8 at most |
//!
//! # Which thread works
//! The thread sleeps on the NIC's event, and serves whatever comes. Calls of the program that read completions or
//! counters look at its own operations, and serve. While they do, the thread asks for no event, so that
//! nothing wakes it: it looks each millisecond, and sleeps on the event again when no call has looked since. Calls
//! that go to sleep serve, too, as they may have taken the thread's event.
//!
//! # What it costs
//! A wake-up of the target's thread for each operation that finds it asleep and the program busy, and two copies for each byte more than
//! the NIC would need. In guests, the NIC could write to exports of registered memory itself; that is not built.
//!
//! | module | holds |
//! |---|---|
//! | `wire` | requests and replies as bytes |
//! | `initiator`, `target` | both sides, by streams of requests |
//! | `streams` | the order of the requests of each peer |
//! | `execute`, `atomics` | what a request does to registered memory |
//! | `outgoing` | messages on their way |

mod atomics;
mod execute;
mod initiator;
mod outgoing;
mod streams;
mod target;
mod wire;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qnic::message::set_incarnation;
use qnic::{Endpoint, Nic, Port};
use rustix::event::Timespec;
use self_cell::self_cell;

use crate::address;
use crate::arena::Arena;
use crate::errno::{Errno, Result};
use crate::progress::{Helper, Rest, Signal, Tended};
use crate::regions::Regions;
use crate::waiting;

pub(crate) use atomics::{Datatype, Form, Operation as AtomicOperation, BYTES_MAX as ATOMIC_MAX};
pub(crate) use execute::Reached;
pub(crate) use initiator::{Brought, Operation};
pub(crate) use wire::Action;
#[cfg(test)]
pub(crate) use {target::Seen, wire::PIECE_MAX};

/// Pieces to one peer that may be under way.
const WINDOW: usize = 8;

/// What requests borrow.
#[derive(Debug)]
struct Process {
    endpoint: Endpoint,
    arena: Arena,
}

/// Both sides.
#[derive(Default)]
struct State<'a> {
    initiator: initiator::Initiator<'a>,
    target: target::Target<'a>,
    leaving: outgoing::Leaving<'a>,
}

type Board<'a> = Mutex<State<'a>>;

self_cell!(
    struct Cell {
        owner: Process,
        #[not_covariant]
        dependent: Board,
    }
);

impl<'a> State<'a> {
    /// Serves once, and tells what has ended. Returns true if there may be more to serve.
    fn tend(&mut self, own: &'a Process, served: &execute::Served<'_>) -> bool {
        let has_come = self.target.tend(own, &mut self.leaving, served);
        self.look(own);
        has_come
    }

    /// Tells what has ended.
    fn look(&mut self, own: &'a Process) {
        self.initiator.tend(own, &mut self.leaving);
    }
}

/// The service of a domain.
pub(crate) struct Service {
    cell: Cell,
    /// Held by the thread that has the state next.
    turn: Mutex<()>,
    poller: qnic::Poller,
    port: Port,
    incarnation: u32,
    regions: Arc<Regions>,
    endpoints: Mutex<HashMap<Port, Arc<Reached>>>,
    /// Operations of the program that have not ended.
    under_way: AtomicUsize,
    looks: Looks,
}

/// How often the program has looked for requests.
#[derive(Default)]
struct Looks {
    all: AtomicU64,
    /// When the thread slept last.
    seen: AtomicU64,
}

/// How long the thread sleeps while the program looks.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// A service and its thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) service: Arc<Service>,
    _helper: Helper,
}

/// The membership of an endpoint. Dropped, its operations are forgotten, and peers do not reach it any more.
#[derive(Debug)]
pub(crate) struct Member {
    service: Arc<Service>,
    port: Port,
    incarnation: u32,
}

impl Running {
    /// Starts the service of a domain with these regions.
    ///
    /// # Errors
    /// Those of [`Nic::register`]; no bounce memory; no thread.
    pub(crate) fn start(nic: &Nic, regions: Arc<Regions>) -> Result<Self> {
        let endpoint = nic.register(Port(0))?;
        let poller = endpoint.poller()?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Errno(error.raw_os_error()))?;
        let incarnation = address::incarnation()?;
        set_incarnation(&endpoint, incarnation);
        let (port, arena) = (endpoint.port(), Arena::new(&endpoint)?);
        let cell = Cell::new(Process { endpoint, arena }, |_| {
            Mutex::new(State {
                initiator: initiator::Initiator::new(u64::from_le_bytes(random)),
                ..State::default()
            })
        });
        let service = Arc::new(Service {
            cell,
            turn: Mutex::default(),
            poller,
            port,
            incarnation,
            regions,
            endpoints: Mutex::default(),
            under_way: AtomicUsize::new(0),
            looks: Looks::default(),
        });
        let signal = Arc::new(Signal::new()?);
        // The thread never has enough.
        signal.want();
        let _helper = Helper::start(service.clone(), signal)?;
        Ok(Running { service, _helper })
    }
}

impl Service {
    /// The port of the process that serves, and its incarnation.
    pub(crate) fn name(&self) -> (Port, u32) {
        (self.port, self.incarnation)
    }

    /// Lets peers reach an endpoint.
    pub(crate) fn join(self: &Arc<Self>, port: Port, reached: Reached) -> Member {
        let incarnation = reached.incarnation;
        lock(&self.endpoints).insert(port, Arc::new(reached));
        Member {
            service: self.clone(),
            port,
            incarnation,
        }
    }

    /// Begins an operation. What it brings is copied, or must not change until it has ended.
    ///
    /// # Errors
    /// [`crate::errno::AGAIN`]: too many are under way. -FI_EOPNOTSUPP: the peer serves no memory.
    pub(crate) fn post(&self, operation: Operation) -> Result<()> {
        if operation.to.memory.0 == 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        self.with(|own, state| {
            state.initiator.begin(operation)?;
            state.initiator.tend(own, &mut state.leaving);
            Ok(())
        })
    }

    /// Works with the state. Threads take turns: one that serves without end does not keep it from others.
    fn with<R>(&self, work: impl for<'a> FnOnce(&'a Process, &mut State<'a>) -> R) -> R {
        self.cell.with_dependent(|own, board| {
            let turn = lock(&self.turn);
            let mut state = lock(board);
            drop(turn);
            let result = work(own, &mut state);
            self.note(&state);
            result
        })
    }

    /// Bounds the bytes of replies that peers have not taken.
    #[cfg(test)]
    pub(crate) fn hold_at_most(&self, bytes: usize) {
        self.with(|_, state| state.target.bound = target::Bound(bytes));
    }

    /// What peers have not taken, and what the service has done for a process.
    #[cfg(test)]
    pub(crate) fn held(&self, process: (qnic::NodeId, Port)) -> Seen {
        self.with(|_, state| state.target.seen(&state.leaving, process))
    }

    fn note(&self, state: &State<'_>) {
        // Release: partner is the load of `progress`; another thread has posted before this one looks.
        self.under_way
            .store(state.initiator.under_way(), Ordering::Release);
    }

    /// Serves once, and tells what has ended. Returns true if there may be more to serve.
    fn serve(&self) -> bool {
        let served = self.served();
        let has_more = self.with(|own, state| state.tend(own, &served));
        self.run_fences();
        has_more
    }

    /// Begins what has waited for operations that have ended.
    fn run_fences(&self) {
        let endpoints = lock(&self.endpoints);
        let held: Vec<_> = endpoints
            .values()
            .map(|reached| &reached.fences)
            .filter(|fences| fences.has_held())
            .cloned()
            .collect();
        drop(endpoints);
        held.iter().for_each(|fences| fences.run());
    }

    fn served(&self) -> execute::Served<'_> {
        execute::Served {
            regions: &self.regions,
            endpoints: &self.endpoints,
        }
    }
}

impl waiting::Engine for Service {
    fn progress(&self) {
        let has_own = self.under_way.load(Ordering::Acquire) > 0;
        if !has_own && self.regions.is_empty() {
            return;
        }
        self.looks.all.fetch_add(1, Ordering::Relaxed);
        let served = self.served();
        self.cell.with_dependent(|own, board| {
            // A thread that has the state looks; the program looks again.
            let Ok(mut state) = board.try_lock() else {
                return;
            };
            if state.target.has_come() {
                state.tend(own, &served);
            } else if has_own {
                state.look(own);
            }
            self.note(&state);
        });
        self.run_fences();
    }

    fn prepare_to_wait(&self) -> Result<()> {
        self.poller.prepare_for_any()?;
        // The thread does not see this event any more. What comes behind the look is another one.
        self.serve();
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Tended for Service {
    fn tend(&self) -> Rest {
        match self.serve() {
            true => Rest::Again,
            false => Rest::Watching,
        }
    }

    fn prepare(&self) -> Result<Option<Timespec>> {
        // Relaxed: what is seen late costs a nap.
        let looks = self.looks.all.load(Ordering::Relaxed);
        if self.looks.seen.swap(looks, Ordering::Relaxed) != looks {
            return Ok(Some(NAP));
        }
        self.poller.prepare_for_any()?;
        Ok(None)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut endpoints = lock(&self.service.endpoints);
        let reached = endpoints.get(&self.port);
        if reached.is_some_and(|it| it.incarnation == self.incarnation) {
            endpoints.remove(&self.port);
        }
        drop(endpoints);
        self.service
            .with(|_, state| state.initiator.forget(self.port));
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
