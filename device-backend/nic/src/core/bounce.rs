//! Bounce memory: frames that were received and wait for their pages (N14, N15). Of a
//! page span, each fragment that has to wait is a frame of its own here.
//!
//! ```text
//!   frame ──► pages there? ── yes ──► received by its protocol
//!                 │ no
//!                 ▼
//!             store: payload copied here, page fault ──► driver
//!                 ▲                                        │ FaultDone
//!                 └── gone again ── pages there? ◄─────────┘
//!                                       │ yes             │ they never will be
//!                                       ▼                 ▼
//!                                   delivered          refused
//! ```
//! A frame that was stored is received by the same code as one that was not: all that
//! its protocol checks is checked again, and only then does its notification count. No
//! protocol knows how a page comes.
//!
//! # Bounds
//! A held frame keeps its place in its sender's window, and the transport takes no frame
//! beyond the window that was granted. So a peer that behaves never finds bounce memory
//! full, one that does not is refused, and all of it together is at most the windows
//! granted times a page. It is allocated by the frame, in the size of its payload.
//!
//! # Progress
//! A frame tries again within the call that answers the fault. It waits once more only
//! if the page was taken away between the driver entering it and saying so; each round
//! costs the driver another reclaim of a page it has just brought in.

use std::collections::btree_map::{BTreeMap, Entry};

use super::Core;
use crate::env::{HostMemory, OutOfRange};
use crate::frame::{Arrival, HeldFrame, StoredFrame};
use crate::ids::{OperationId, PeerIndex};

/// The frames of one operation of a peer.
#[derive(Debug, Default)]
struct HeldOperation {
    frames: u32,
    /// It does not notify: another frame of it was refused.
    silenced: bool,
}

/// What is held, and was.
#[derive(Debug, Default)]
pub(crate) struct BounceMemory {
    /// Operations of which frames are held, by peer and name.
    operations: BTreeMap<(PeerIndex, u64), HeldOperation>,
    pub(crate) frames: u32,
    /// Payload bytes of these frames.
    pub(crate) bytes: u64,
    /// Most of them at a time.
    pub(crate) peak: u64,
    /// Frames that were held since the NIC was started.
    pub(crate) total: u64,
    /// Their payload bytes.
    pub(crate) total_bytes: u64,
}

impl BounceMemory {
    fn take(&mut self, length: usize) {
        let length = length as u64;
        self.frames += 1;
        self.bytes += length;
        self.peak = self.peak.max(self.bytes);
        self.total += 1;
        self.total_bytes += length;
    }

    fn give(&mut self, length: usize) {
        self.frames -= 1;
        self.bytes -= length as u64;
    }
}

impl Core {
    /// Copies a frame that waits, and its payload, into bounce memory.
    ///
    /// # Errors
    /// [`OutOfRange`] if the sender's memory has ended under its own frame.
    #[cold]
    pub(crate) fn store<M: HostMemory>(
        &mut self,
        arrival: &Arrival<'_, M>,
        held: Option<HeldFrame>,
    ) -> Result<Box<StoredFrame>, OutOfRange> {
        let mut payload = vec![0; arrival.payload.len()].into_boxed_slice();
        arrival.payload.read(&mut payload)?;
        if held.is_some() {
            let name = (arrival.peer, arrival.frame.envelope.operation.get());
            self.bounce.operations.entry(name).or_default().frames += 1;
            self.bounce.take(payload.len());
        }
        Ok(Box::new(StoredFrame {
            peer: arrival.peer,
            frame: *arrival.frame,
            payload,
            held,
            silenced: arrival.silenced,
            received: arrival.received,
        }))
    }

    /// Gives the memory of a stored frame back that was held.
    pub(crate) fn release(&mut self, stored: &StoredFrame) {
        if stored.held.is_none() {
            return;
        }
        self.bounce.give(stored.payload.len());
        let name = (stored.peer, stored.frame.envelope.operation.get());
        if let Entry::Occupied(mut operation) = self.bounce.operations.entry(name) {
            operation.get_mut().frames -= 1;
            if operation.get().frames == 0 {
                operation.remove();
            }
        }
    }

    /// Takes the notification away from all stored frames of an operation of a peer:
    /// another frame of it was refused. Its cost does not grow with what is held.
    pub(crate) fn silence(&mut self, peer: PeerIndex, operation: OperationId) {
        let name = (peer, operation.0);
        if let Some(operation) = self.bounce.operations.get_mut(&name) {
            operation.silenced = true;
        }
    }

    /// Returns true if the notification was taken away from a stored frame.
    pub(crate) fn is_silenced(&self, stored: &StoredFrame) -> bool {
        let name = (stored.peer, stored.frame.envelope.operation.get());
        let operation = self.bounce.operations.get(&name);
        operation.is_some_and(|operation| operation.silenced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_and_its_peak_is_kept() {
        let mut memory = BounceMemory::default();
        memory.take(4096);
        memory.take(8);
        memory.give(4096);
        memory.take(0);
        assert_eq!((memory.frames, memory.bytes, memory.peak), (2, 8, 4104));
        assert_eq!((memory.total, memory.total_bytes), (3, 4104));
        memory.give(8);
        memory.give(0);
        assert_eq!((memory.frames, memory.bytes), (0, 0));
    }
}
