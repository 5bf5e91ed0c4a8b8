//! The control queue: requests of several threads at once, replies in any order.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use qnic_abi::control::{REPLY_BYTES, REQUEST_BYTES};
use qnic_driver::platform::{Patience, RequestError};
use std::sync::Arc;
use vmm_sys_util::eventfd::EventFd;

use crate::arena::Arena;
use crate::error::HostError;
use crate::ring::{BadChain, Piece, Ring};

/// Requests that can be under way at the same time; more wait for a place.
/// Imports stay as long as their exporter is awaited.
const REQUESTS: u16 = 64;

const STRIDE: usize = REQUEST_BYTES + REPLY_BYTES;

const PIECES: [Piece; 2] = [
    Piece {
        offset: 0,
        length: REQUEST_BYTES,
        writable: false,
    },
    Piece {
        offset: REQUEST_BYTES,
        length: REPLY_BYTES,
        writable: true,
    },
];

/// Who uses a place for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    /// Its thread waits; the device has it.
    Waiting,
    /// Its thread waits; the reply is there.
    Answered,
    /// Nobody waits for it, or not any more; the device has it.
    Abandoned,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    places: Vec<Place>,
    gone: bool,
}

/// The control queue of a node.
#[derive(Debug)]
pub(crate) struct Control {
    state: Mutex<State>,
    /// A reply came, a place became free, or the device is gone.
    changed: Condvar,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
}

impl Control {
    pub(crate) fn new(arena: &Arc<Arena>, kick: EventFd, call: EventFd) -> Result<Self, HostError> {
        let ring = Ring::new(arena, REQUESTS, &PIECES, STRIDE)?;
        Ok(Control {
            state: Mutex::new(State {
                places: vec![Place::Free; ring.chains()],
                ring,
                gone: false,
            }),
            changed: Condvar::new(),
            kick,
            call,
        })
    }

    /// Size of the ring, and its addresses in this process.
    pub(crate) fn ring(&self) -> (u16, [u64; 3]) {
        let state = self.lock();
        (state.ring.size(), state.ring.addresses())
    }

    /// Sends a request and waits for the reply.
    pub(crate) fn request(
        &self,
        request: &[u8; REQUEST_BYTES],
        patience: Patience,
    ) -> Result<[u8; REPLY_BYTES], RequestError> {
        let (Patience::Bounded(limit_ms) | Patience::Interruptible(limit_ms)) = patience;
        let deadline = Instant::now() + Duration::from_millis(limit_ms.into());
        let (state, place) = self.offer(request, deadline, Place::Waiting)?;
        let start = place * STRIDE;
        let (mut state, answered) = self.await_state(state, deadline, |state| {
            (state.places[place] == Place::Answered).then_some(())
        });
        if let Err(error) = answered {
            state.places[place] = Place::Abandoned;
            return Err(error);
        }
        let mut reply = [0; REPLY_BYTES];
        state
            .ring
            .buffers()
            .read_bytes(start + REQUEST_BYTES, &mut reply);
        state.places[place] = Place::Free;
        drop(state);
        self.changed.notify_all();
        Ok(reply)
    }

    /// Sends a request and drops its reply; waits for room only.
    pub(crate) fn post(
        &self,
        request: &[u8; REQUEST_BYTES],
        limit_ms: u32,
    ) -> Result<(), RequestError> {
        let deadline = Instant::now() + Duration::from_millis(limit_ms.into());
        self.offer(request, deadline, Place::Abandoned).map(drop)
    }

    /// Puts a request into a free place, which is `place_state` from then on.
    fn offer(
        &self,
        request: &[u8; REQUEST_BYTES],
        deadline: Instant,
        place_state: Place,
    ) -> Result<(MutexGuard<'_, State>, usize), RequestError> {
        let (mut state, place) = self.await_state(self.lock(), deadline, |state| {
            state.places.iter().position(|place| *place == Place::Free)
        });
        let place = place?;
        let start = place * STRIDE;
        let buffers = state.ring.buffers();
        buffers.write_bytes(start, request);
        buffers.write_bytes(start + REQUEST_BYTES, &[0; REPLY_BYTES]);
        state.places[place] = place_state;
        if state.ring.offer(place) && self.kick.write(1).is_err() {
            state.gone = true;
        }
        Ok((state, place))
    }

    /// Hands the replies that have come to those who wait: the interrupt's part.
    ///
    /// # Errors
    /// [`BadChain`]: the device is broken.
    pub(crate) fn deliver(&self) -> Result<(), BadChain> {
        let mut state = self.lock();
        while let Some(place) = state.ring.take()? {
            state.places[place] = match state.places[place] {
                Place::Abandoned => Place::Free,
                _ => Place::Answered,
            };
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// The device is gone: requests under way and to come fail.
    pub(crate) fn give_up(&self) {
        self.lock().gone = true;
        self.changed.notify_all();
    }

    /// Waits until `find` finds something, the device is gone or the time is over.
    fn await_state<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        deadline: Instant,
        find: impl Fn(&State) -> Option<T>,
    ) -> (MutexGuard<'a, State>, Result<T, RequestError>) {
        loop {
            if state.gone {
                return (state, Err(RequestError::Gone));
            }
            if let Some(found) = find(&state) {
                return (state, Ok(found));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return (state, Err(RequestError::TimedOut));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
