//! The event queue: buffers that the device fills, handed to the driver core.

use std::sync::{Arc, Mutex, PoisonError};

use qnic_abi::event::EVENT_BYTES;
use vmm_sys_util::eventfd::EventFd;

use crate::arena::Arena;
use crate::error::HostError;
use crate::ring::{BadChain, Piece, Ring};

/// Buffers for events; what does not fit stays pending in the NIC.
const EVENTS: u16 = 64;

const PIECES: [Piece; 1] = [Piece {
    offset: 0,
    length: EVENT_BYTES,
    writable: true,
}];

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
        let mut ring = Ring::new(arena, EVENTS, &PIECES, EVENT_BYTES)?;
        for buffer in 0..ring.chains() {
            ring.offer(buffer);
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
        (ring.size(), ring.addresses())
    }

    /// Hands events to `take` while `room` says that there is room, and gives
    /// their buffers back to the device.
    ///
    /// # Errors
    /// [`BadChain`]: the device is broken.
    pub(crate) fn pump(
        &self,
        room: impl Fn() -> bool,
        mut take: impl FnMut(&[u8; EVENT_BYTES]),
    ) -> Result<(), BadChain> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kick = false;
        while room() {
            let Some(buffer) = ring.take()? else { break };
            let mut event = [0; EVENT_BYTES];
            ring.buffers().read_bytes(buffer * EVENT_BYTES, &mut event);
            kick |= ring.offer(buffer);
            take(&event);
        }
        if kick {
            // A device that is gone needs no buffers.
            let _ = self.kick.write(1);
        }
        Ok(())
    }
}
