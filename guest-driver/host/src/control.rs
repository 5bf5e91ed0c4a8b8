//! The control queue: requests of several threads at once, responses in any order.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use qnic_abi::attach::CONTROL_QUEUE;
use qnic_abi::control::{REPLY_BYTES, REQUEST_BYTES};
use qnic_driver::platform::{RequestError, Timeout};
use qnic_shared::region::{Forked, Own};

use crate::arena::Arena;
use crate::error::HostError;
use crate::ring::{BadChain, Buffer, Ring};
use crate::transport::{Transport, Virtqueue};

/// Most requests that can be in flight at the same time; others wait for a free slot.
/// An import stays in flight while it waits for its exporter.
const REQUESTS_MAX: u16 = 64;

const STRIDE: usize = REQUEST_BYTES + REPLY_BYTES;

const BUFFERS: [Buffer; 2] = [Buffer::Read(REQUEST_BYTES), Buffer::Written(REPLY_BYTES)];

/// The state of a request slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    /// A thread waits; the device holds the request.
    Waiting,
    /// A thread waits; the response is there.
    Answered,
    /// No thread waits, or it has stopped waiting; the device holds the request.
    Abandoned,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    slots: Vec<Slot>,
    gone: bool,
}

/// The control queue of a node.
pub(crate) struct Control {
    state: Mutex<State>,
    /// A response came, a slot became free, or the device is gone.
    changed: Condvar,
    /// A forked child has no device, and no requests.
    own: Own<()>,
    /// The way to the device, which ends with the queue.
    transport: Arc<dyn Transport>,
}

impl Control {
    /// A control queue of at most `size_max` descriptors.
    pub(crate) fn new(
        arena: &Arc<Arena>,
        size_max: u16,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, HostError> {
        let ring = Ring::new(arena, REQUESTS_MAX, size_max, &BUFFERS)?;
        Ok(Control {
            state: Mutex::new(State {
                slots: vec![Slot::Free; ring.chains()],
                ring,
                gone: false,
            }),
            changed: Condvar::new(),
            own: Own::new(()),
            transport,
        })
    }

    pub(crate) fn virtqueue(&self) -> Virtqueue {
        self.lock().ring.virtqueue()
    }

    /// Sends a request and waits for the response.
    pub(crate) fn request(
        &self,
        request: &[u8; REQUEST_BYTES],
        timeout: Timeout,
    ) -> Result<[u8; REPLY_BYTES], RequestError> {
        let (Timeout::Uninterruptible(timeout_ms) | Timeout::Interruptible(timeout_ms)) = timeout;
        let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
        let (state, slot) = self.submit(request, deadline, Slot::Waiting)?;
        let (mut state, answered) = self.wait_until(state, deadline, |state| {
            (state.slots[slot] == Slot::Answered).then_some(())
        });
        if let Err(error) = answered {
            state.slots[slot] = Slot::Abandoned;
            return Err(error);
        }
        let mut response = [0; REPLY_BYTES];
        let offset = slot * STRIDE + REQUEST_BYTES;
        state.ring.buffers.read_bytes(offset, &mut response);
        state.slots[slot] = Slot::Free;
        drop(state);
        self.changed.notify_all();
        Ok(response)
    }

    /// Sends a request and drops its response; waits for room only.
    pub(crate) fn post(
        &self,
        request: &[u8; REQUEST_BYTES],
        timeout_ms: u32,
    ) -> Result<(), RequestError> {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
        self.submit(request, deadline, Slot::Abandoned).map(drop)
    }

    /// Puts a request into a free slot, which gets the state `submitted`.
    fn submit(
        &self,
        request: &[u8; REQUEST_BYTES],
        deadline: Instant,
        submitted: Slot,
    ) -> Result<(MutexGuard<'_, State>, usize), RequestError> {
        self.own.get().map_err(|Forked| RequestError::Gone)?;
        let (mut state, slot) = self.wait_until(self.lock(), deadline, |state| {
            state.slots.iter().position(|slot| *slot == Slot::Free)
        });
        let slot = slot?;
        let start = slot * STRIDE;
        let buffers = &state.ring.buffers;
        buffers.write_bytes(start, request);
        buffers.write_bytes(start + REQUEST_BYTES, &[0; REPLY_BYTES]);
        state.slots[slot] = submitted;
        if state.ring.add(slot) {
            self.transport.notify(CONTROL_QUEUE);
        }
        Ok((state, slot))
    }

    /// Passes the responses that have come to the waiting threads: the interrupt's
    /// part.
    ///
    /// # Errors
    /// [`BadChain`]: the device is broken.
    pub(crate) fn complete(&self) -> Result<(), BadChain> {
        let mut state = self.lock();
        while let Some(slot) = state.ring.pop_used()? {
            state.slots[slot] = match state.slots[slot] {
                Slot::Abandoned => Slot::Free,
                _ => Slot::Answered,
            };
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Stops the device: requests in flight and later ones fail, and both threads of the node end.
    pub(crate) fn disconnect(&self) {
        self.lock().gone = true;
        self.changed.notify_all();
        self.transport.stop();
    }

    /// Waits until `find` returns a value, the device is gone or the time is over.
    fn wait_until<'a, T>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Instant,
        find: impl Fn(&State) -> Option<T>,
    ) -> (MutexGuard<'a, State>, Result<T, RequestError>) {
        let mut found = None;
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(state, left, |state| {
            found = find(state);
            !state.gone && found.is_none()
        });
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let result = match found {
            _ if state.gone => Err(RequestError::Gone),
            Some(found) => Ok(found),
            None => Err(RequestError::TimedOut),
        };
        (state, result)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
