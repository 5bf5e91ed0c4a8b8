//! A split virtqueue with buffers, seen from the device.
//!
//! Everything in the rings is written by a guest that may be hostile. A chain of
//! an unexpected shape is returned with length 0 and counted. Malformed rings put the
//! queue into a failed state: the queue's error eventfd notifies the front end, and the
//! next start of the queue ends the state.
//!
//! Neither indirect descriptors nor event indices are offered: a request is two
//! descriptors, and the plain flags suppress what needs suppressing.

use std::sync::atomic::{fence, Ordering};

use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use crate::memory::GuestMemory;
use crate::notifier::Notifier;

/// A virtqueue that is complete. Addresses are guest-physical.
#[derive(Debug)]
pub(crate) struct QueueSetup {
    /// Number of entries.
    pub(crate) size: u16,
    /// Descriptor table, available ring and used ring.
    pub(crate) rings: [u64; 3],
    /// Available index at which it starts.
    pub(crate) next_available: u16,
    pub(crate) kick: Notifier,
    /// Interrupt of the queue.
    pub(crate) call: Option<Notifier>,
    /// Signalled when the queue fails.
    pub(crate) error: Option<Notifier>,
}

/// Largest queue that is accepted.
pub(crate) const MAX_QUEUE_SIZE: u16 = 1024;

/// `VRING_AVAIL_F_NO_INTERRUPT` of the virtio specification.
const NO_INTERRUPT: u16 = 1;

/// Why a queue does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingError {
    #[error("the size is no power of two up to {MAX_QUEUE_SIZE}, or a ring is not aligned")]
    Setup,
    #[error("a ring is outside of the guest's memory")]
    Outside,
    #[error("the available ring holds more entries than the queue has")]
    AvailableIndex,
}

/// A buffer of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// Guest-physical address.
    pub(crate) address: u64,
    pub(crate) length: u32,
    /// Whether the device may write it (and not read it).
    pub(crate) writable: bool,
}

/// A descriptor chain: its head and its first buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chain {
    /// Names the chain when it is returned.
    pub(crate) head: u16,
    buffers: [Option<Buffer>; 3],
}

impl Chain {
    /// The two buffers of a chain of exactly a readable one and a writable one.
    pub(crate) fn request(&self) -> Option<(Buffer, Buffer)> {
        match self.buffers {
            [Some(request), Some(response), None] if !request.writable && response.writable => {
                Some((request, response))
            }
            _ => None,
        }
    }

    /// The buffer of a chain of exactly a writable one.
    pub(crate) fn writable(&self) -> Option<Buffer> {
        match self.buffers {
            [Some(buffer), None, None] if buffer.writable => Some(buffer),
            _ => None,
        }
    }
}

/// A queue that was started.
#[derive(Debug)]
pub(crate) struct Ring {
    queue: Queue,
    pub(super) setup: QueueSetup,
    failed: Option<RingError>,
    used_since_signal: bool,
}

impl Ring {
    pub(crate) fn new(setup: QueueSetup, memory: &GuestMemory) -> Result<Self, RingError> {
        let mut queue = Queue::new(MAX_QUEUE_SIZE).map_err(|_| RingError::Setup)?;
        let [descriptors, available, used] = setup.rings.map(GuestAddress);
        queue
            .try_set_size(setup.size)
            .and_then(|()| queue.try_set_desc_table_address(descriptors))
            .and_then(|()| queue.try_set_avail_ring_address(available))
            .and_then(|()| queue.try_set_used_ring_address(used))
            .map_err(|_| RingError::Setup)?;
        queue.set_next_avail(setup.next_available);
        queue.set_ready(true);
        if !queue.is_valid(memory.ram()) {
            return Err(RingError::Outside);
        }
        let used = queue
            .used_idx(memory.ram(), Ordering::Acquire)
            .map_err(|_| RingError::Outside)?;
        queue.set_next_used(used.0);
        Ok(Ring {
            queue,
            setup,
            failed: None,
            used_since_signal: false,
        })
    }

    /// Number of entries.
    pub(crate) fn size(&self) -> usize {
        usize::from(self.queue.size())
    }

    pub(crate) fn next_available(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Checks again that the rings are in the guest's memory, which has changed.
    pub(crate) fn check(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        if self.failed.is_none() && !self.queue.is_valid(memory.ram()) {
            return Err(self.fail(RingError::Outside));
        }
        Ok(())
    }

    /// Takes the next chain. A queue that fails or has failed has none; the error
    /// is returned once.
    pub(crate) fn pop(&mut self, memory: &GuestMemory) -> Result<Option<Chain>, RingError> {
        if self.failed.is_some() {
            return Ok(None);
        }
        let ram = memory.ram();
        let popped = match self.queue.iter(ram) {
            Ok(mut chains) => chains.next(),
            Err(virtio_queue::Error::InvalidAvailRingIndex) => {
                return Err(self.fail(RingError::AvailableIndex));
            }
            Err(_) => return Err(self.fail(RingError::Outside)),
        };
        let Some(mut descriptors) = popped else {
            return Ok(None);
        };
        let head = descriptors.head_index();
        let mut next = || {
            let descriptor = descriptors.next()?;
            Some(Buffer {
                address: descriptor.addr().0,
                length: descriptor.len(),
                writable: descriptor.is_write_only(),
            })
        };
        let buffers = [next(), next(), next()];
        Ok(Some(Chain { head, buffers }))
    }

    /// Returns a chain to the driver, with `length` bytes written into it.
    pub(crate) fn return_chain(
        &mut self,
        memory: &GuestMemory,
        head: u16,
        length: usize,
    ) -> Result<(), RingError> {
        if self.failed.is_some() {
            return Ok(());
        }
        self.used_since_signal = true;
        match self.queue.add_used(memory.ram(), head, length as u32) {
            Ok(()) => Ok(()),
            Err(virtio_queue::Error::InvalidDescriptorIndex) => {
                Err(self.fail(RingError::AvailableIndex))
            }
            Err(_) => Err(self.fail(RingError::Outside)),
        }
    }

    /// Asks the driver to kick, or not to, when it adds buffers. If it is to, returns true
    /// if buffers were added in the meantime.
    pub(crate) fn want_kicks(
        &mut self,
        memory: &GuestMemory,
        wanted: bool,
    ) -> Result<bool, RingError> {
        if self.failed.is_some() {
            return Ok(false);
        }
        let result = if wanted {
            self.queue.enable_notification(memory.ram())
        } else {
            self.queue
                .disable_notification(memory.ram())
                .map(|()| false)
        };
        result.map_err(|_| self.fail(RingError::Outside))
    }

    /// Interrupts the driver if chains were returned since the last time and it has not
    /// suppressed interrupts. Returns true if it was interrupted.
    ///
    /// Partner of the fence: the driver stores its flag, executes a full fence
    /// and loads the used index.
    pub(crate) fn signal(&mut self, memory: &GuestMemory) -> bool {
        if !std::mem::take(&mut self.used_since_signal) {
            return false;
        }
        fence(Ordering::SeqCst);
        let flags = memory
            .ram()
            .load::<u16>(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed);
        let wanted = flags.is_ok_and(|flags| u16::from_le(flags) & NO_INTERRUPT == 0);
        match &self.setup.call {
            Some(call) if wanted => {
                call.signal();
                true
            }
            _ => false,
        }
    }

    fn fail(&mut self, error: RingError) -> RingError {
        self.failed = Some(error);
        if let Some(notifier) = &self.setup.error {
            notifier.signal();
        }
        error
    }
}
