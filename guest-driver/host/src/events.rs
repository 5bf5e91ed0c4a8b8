//! The event queue: buffers that the device fills for the driver core.

use std::sync::{Arc, Mutex, PoisonError};

use qnic_abi::event::EVENT_BYTES;
use vmm_sys_util::eventfd::EventFd;

use crate::arena::Arena;
use crate::error::HostError;
use crate::ring::{BadChain, Buffer, Ring};

/// Buffers for events; more events stay pending in the NIC.
const EVENTS: u16 = 64;

/// The event queue of a node.
#[derive(Debug)]
pub(crate) struct Events {
    ring: Mutex<Ring>,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
}

impl Events {
    /// An event queue with all its buffers posted.
    pub(crate) fn new(arena: &Arc<Arena>, kick: EventFd, call: EventFd) -> Result<Self, HostError> {
        let mut ring = Ring::new(arena, EVENTS, &[Buffer::Written(EVENT_BYTES)])?;
        for buffer in 0..ring.chains() {
            ring.add(buffer);
        }
        Ok(Events {
            ring: Mutex::new(ring),
            kick,
            call,
        })
    }

    /// Size of the ring, and its addresses in this process.
    pub(crate) fn ring(&self) -> (u16, [u64; 3]) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        (ring.size, ring.addresses())
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
            // A device that is gone needs no buffers.
            let _ = self.kick.write(1);
        }
        Ok(())
    }
}
