//! What has arrived at a port, until its thread gives it to the guest.
//!
//! The engine puts frames in and never waits; the thread of the port takes them out. A guest
//! that takes nothing fills its own inbox and no more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::EthernetFrame;
use crate::notifier::Notifier;

/// Most bytes that wait: some 64 of the longest frames, or 4,096 short ones.
const CAPACITY: usize = 4 << 20;

/// What each frame takes beside its bytes, so that frames without many are bounded, too.
const OVERHEAD: usize = 1 << 10;

/// The frames that wait for one port.
#[derive(Debug)]
pub struct Inbox {
    waiting: Mutex<Waiting>,
    bell: Notifier,
    /// Frames that were dropped behind it.
    overflowed: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<EthernetFrame>,
    bytes: usize,
}

impl Inbox {
    /// An empty one.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn new() -> std::io::Result<Self> {
        Ok(Inbox {
            waiting: Mutex::default(),
            bell: Notifier::new()?,
            overflowed: AtomicU64::new(0),
        })
    }

    /// Signalled when a frame has come into an empty inbox. A taker takes until [`Inbox::take`]
    /// returns nothing.
    pub fn bell(&self) -> &Notifier {
        &self.bell
    }

    /// Puts a frame in. Returns false if there is no room.
    pub(crate) fn put(&self, frame: EthernetFrame) -> bool {
        let mut waiting = self.lock();
        let bytes = frame.bytes.len() + OVERHEAD;
        if waiting.bytes + bytes > CAPACITY {
            return false;
        }
        waiting.bytes += bytes;
        waiting.frames.push_back(frame);
        let was_empty = waiting.frames.len() == 1;
        drop(waiting);
        if was_empty {
            self.bell.signal();
        }
        true
    }

    /// The frame that has waited longest.
    pub fn take(&self) -> Option<EthernetFrame> {
        let mut waiting = self.lock();
        let frame = waiting.frames.pop_front()?;
        waiting.bytes -= frame.bytes.len() + OVERHEAD;
        Some(frame)
    }

    /// A frame was taken, and dropped because the guest has no room for it.
    pub fn count_overflow(&self) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    /// Frames that were dropped after they had been taken. Relaxed: it orders nothing.
    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Drops all that waits: the guest that it was for has gone.
    pub fn clear(&self) {
        *self.lock() = Waiting::default();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::plain;
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_leaves_in_order() {
        let inbox = Inbox::new().unwrap();
        let mut put = 0u32;
        while inbox.put(plain(1, 2, &put.to_le_bytes())) {
            put += 1;
        }
        assert!((3_000..=4_096).contains(&put), "{put} short frames");
        for number in 0..put {
            let frame = inbox.take().unwrap();
            assert_eq!(frame.bytes()[14..18], number.to_le_bytes());
        }
        assert_eq!(inbox.take(), None);
        assert!(inbox.put(plain(1, 2, &[])), "room again");
        inbox.clear();
        assert_eq!(inbox.take(), None);
    }
}
