//! The event queue: buffers that the device fills for the driver core.

use std::sync::{Arc, Mutex, PoisonError};

use qnic_abi::attach::EVENT_QUEUE;
use qnic_abi::event::EVENT_BYTES;

use crate::arena::Arena;
use crate::error::HostError;
use crate::ring::{BadChain, Buffer, Ring};
use crate::transport::{Transport, Virtqueue};

/// Most buffers for events; more events stay pending in the NIC.
const EVENTS_MAX: u16 = 64;

/// The event queue of a node.
pub(crate) struct Events {
    ring: Mutex<Ring>,
    transport: Arc<dyn Transport>,
}

impl Events {
    /// An event queue of at most `size_max` descriptors, with all its buffers posted.
    pub(crate) fn new(
        arena: &Arc<Arena>,
        size_max: u16,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, HostError> {
        let mut ring = Ring::new(arena, EVENTS_MAX, size_max, &[Buffer::Written(EVENT_BYTES)])?;
        for buffer in 0..ring.chains() {
            ring.add(buffer);
        }
        Ok(Events {
            ring: Mutex::new(ring),
            transport,
        })
    }

    pub(crate) fn virtqueue(&self) -> Virtqueue {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.virtqueue()
    }

    /// Passes events to `handle` while `room` returns true, and posts their buffers
    /// again.
    ///
    /// # Errors
    /// [`BadChain`]: the device is broken.
    pub(crate) fn drain(
        &self,
        room: impl Fn() -> bool,
        mut handle: impl FnMut(&[u8; EVENT_BYTES]),
    ) -> Result<(), BadChain> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kick = false;
        while room() {
            let Some(buffer) = ring.pop_used()? else {
                break;
            };
            let mut event = [0; EVENT_BYTES];
            ring.buffers.read_bytes(buffer * EVENT_BYTES, &mut event);
            kick |= ring.add(buffer);
            handle(&event);
        }
        if kick {
            self.transport.notify(EVENT_QUEUE);
        }
        Ok(())
    }
}
