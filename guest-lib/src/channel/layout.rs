//! The layout of the segments of a channel.
//!
//! ```text
//!  receiver's segment (sender: read head, write the rest)      sender's credit segment
//!  0x0000  MAGIC, slots, message bytes, refill, notification    0x00  closed
//!  0x0040  hello: MAGIC, notification, name of credit segment
//!  0x0080  closed: 1 + messages sent
//!  0x1000  slot 0: number (from 1), length, message
//!          slot 1 …
//! ```
//!
//! Every field is a little-endian word of 64 bits. Each end reads what the other side
//! writes once, and checks it.

use qnic_abi::PAGE_SIZE;
use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::notification::NotificationId;

/// First word of a head and of a hello: "qnicchan".
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"qnicchan");

pub(super) const HEAD_BYTES: usize = 40;
pub(super) const HELLO: usize = 0x40;
pub(super) const HELLO_BYTES: usize = 32;
/// Offset of the word by which the sender closes the channel.
pub(super) const SENDER_CLOSED: usize = 0x80;
const SLOTS: usize = PAGE_SIZE;
/// Bytes in front of the message in a slot.
pub(super) const SLOT_HEADER: usize = 16;
/// Slots begin at multiples of this.
const SLOT_ALIGNMENT: usize = 64;

pub(super) const CREDIT_BYTES: usize = 8;

/// Largest segment of a channel, in bytes.
const MAX_BYTES: usize = 1 << 30;

/// Numbers and lengths of the slots of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    /// At least 2.
    pub(super) slots: usize,
    /// Longest message; at least 1.
    pub(super) message_bytes: usize,
    /// Messages consumed for each replenishment: 1 to `slots` − 1, so that a sender
    /// without credit always has sent a message that will bring some.
    pub(super) refill: usize,
}

impl Geometry {
    pub(super) fn new(slots: usize, message_bytes: usize, refill: usize) -> Result<Self> {
        let geometry = Geometry {
            slots,
            message_bytes,
            refill,
        };
        if slots < 2 {
            return Err(Error::BadChannel("it needs two slots at least"));
        }
        if message_bytes == 0 {
            return Err(Error::BadChannel("a message needs one byte at least"));
        }
        if refill == 0 || refill >= slots {
            return Err(Error::BadChannel("refill must be from 1 to slots - 1"));
        }
        let limit = (MAX_BYTES - SLOTS) / slots;
        if message_bytes > limit.saturating_sub(SLOT_HEADER + SLOT_ALIGNMENT) {
            return Err(Error::BadChannel("its segment would be longer than 1 GiB"));
        }
        Ok(geometry)
    }

    /// The head of the receiver's segment.
    pub(super) fn head(&self, magic: u64, sent: NotificationId) -> [u8; HEAD_BYTES] {
        let lengths = [self.slots, self.message_bytes, self.refill];
        let [slots, message_bytes, refill] = lengths.map(|length| length as u64);
        bytes([magic, slots, message_bytes, refill, sent.number().into()])
    }

    /// Distance of two slots.
    fn stride(&self) -> usize {
        (SLOT_HEADER + self.message_bytes).next_multiple_of(SLOT_ALIGNMENT)
    }

    pub(super) fn slots_bytes(&self) -> usize {
        self.slots * self.stride()
    }

    pub(super) fn segment_bytes(&self) -> usize {
        SLOTS + self.slots_bytes()
    }

    /// Offset of the slot of a message among the slots; messages count from 0.
    pub(super) fn slot(&self, message: u64) -> usize {
        (message % self.slots as u64) as usize * self.stride()
    }

    /// The same in the receiver's segment.
    pub(super) fn slot_in_segment(&self, message: u64) -> usize {
        SLOTS + self.slot(message)
    }
}

/// The bytes of words.
pub(super) fn bytes<const N: usize, const BYTES: usize>(words: [u64; N]) -> [u8; BYTES] {
    const { assert!(N * 8 == BYTES) };
    let mut bytes = [0; BYTES];
    bytes.copy_from_slice(words.map(u64::to_le).as_bytes());
    bytes
}

/// The first words of bytes.
pub(super) fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0u64; N];
    words.as_mut_bytes().copy_from_slice(&bytes[..N * 8]);
    words.map(u64::from_le)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn geometries_that_make_no_channel_are_refused() {
        for (slots, bytes, refill) in [
            (0, 1, 1),
            (1, 1, 1),
            (2, 0, 1),
            (2, 1, 0),
            (2, 1, 2),
            (2, 1 << 29, 1),
            (usize::MAX, usize::MAX, 1),
            (1 << 30, 1, 1),
        ] {
            let made = Geometry::new(slots, bytes, refill);
            let refused = matches!(made, Err(Error::BadChannel(_)));
            assert!(refused, "{slots} {bytes}");
        }
    }

    proptest! {
        #[test]
        fn slots_are_apart_and_within_the_segment(
            slots in 2usize..100,
            bytes in 1usize..10_000,
            message: u64,
        ) {
            let geometry = Geometry::new(slots, bytes, 1).unwrap();
            let start = geometry.slot_in_segment(message);
            let end = start + SLOT_HEADER + bytes;
            prop_assert!(start >= SENDER_CLOSED + 8 && start % SLOT_ALIGNMENT == 0);
            prop_assert!(end <= geometry.segment_bytes());
            let next = geometry.slot_in_segment(message.wrapping_add(1));
            prop_assert!(next >= end || next < start);
        }

        #[test]
        fn any_geometry_is_refused_or_bounded(slots: usize, bytes: usize, refill: usize) {
            if let Ok(geometry) = Geometry::new(slots, bytes, refill) {
                prop_assert!(geometry.segment_bytes() <= MAX_BYTES);
            }
        }

        #[test]
        fn words_survive_as_bytes(given: [u64; 4]) {
            prop_assert_eq!(words::<4>(&bytes::<4, 32>(given)), given);
        }
    }
}
