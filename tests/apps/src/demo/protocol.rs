//! Requests of the initiator and results of the target.

use crate::demo::pattern;
use anyhow::{bail, Result};

/// Largest transfer.
pub(crate) const MAX_SIZE: usize = 16 << 20;
/// Bytes around a transfer that must not change.
pub(crate) const GUARD: usize = 256;
/// What the bytes around a transfer are.
pub(crate) const GUARD_BYTE: u8 = 0xa5;
/// Size of [`DATA`](crate::demo::options::DATA).
pub(crate) const DATA_BYTES: usize = MAX_SIZE + 64 * 1024;
/// Transfers up to this size bounce without a notification.
pub(crate) const SPIN_SIZE: usize = 4096;

/// Size of a request or a result in bytes.
pub(crate) const MESSAGE_BYTES: usize = 40;

/// What the target is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Return the checksum of a range of DATA, and whether its guards are whole.
    Verify { offset: u64, length: u64 },
    /// Write back `rounds` times what arrives at a range of DATA.
    Bounce {
        offset: u64,
        length: u64,
        rounds: u64,
    },
    /// End.
    Finish,
}

impl Request {
    pub(crate) fn to_bytes(self, sequence: u64) -> Vec<u8> {
        let words = match self {
            Request::Verify { offset, length } => [sequence, 1, offset, length, 0],
            Request::Bounce {
                offset,
                length,
                rounds,
            } => [sequence, 2, offset, length, rounds],
            Request::Finish => [sequence, 3, 0, 0, 0],
        };
        to_bytes(words)
    }

    /// Reads a request and its sequence number; ranges lie within DATA.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<(u64, Self)> {
        let [sequence, kind, offset, length, rounds] = to_words(bytes);
        let guard = GUARD as u64;
        let end = DATA_BYTES as u64 - guard;
        if offset.checked_add(length).is_none_or(|last| last > end) || (kind != 3 && offset < guard)
        {
            bail!("request {sequence} names {length} bytes at {offset}, outside of the data");
        }
        let request = match kind {
            1 => Request::Verify { offset, length },
            2 if length > 0 => Request::Bounce {
                offset,
                length,
                rounds,
            },
            3 => Request::Finish,
            _ => bail!("request {sequence} is of unknown kind {kind}"),
        };
        Ok((sequence, request))
    }
}

/// What the target found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The request it answers.
    pub(crate) sequence: u64,
    /// CRC-32 of the range.
    pub(crate) checksum: u32,
    /// Nothing around the range changed.
    pub(crate) guards_whole: bool,
    /// Notifications that the target has taken.
    pub(crate) notifications: u64,
}

impl Outcome {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        to_bytes([
            self.sequence,
            self.checksum.into(),
            self.guards_whole.into(),
            self.notifications,
            0,
        ])
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let [sequence, checksum, guards, notifications, _] = to_words(bytes);
        Outcome {
            sequence,
            checksum: checksum as u32,
            guards_whole: guards == 1,
            notifications,
        }
    }
}

/// The byte that ends ball number `round`; never the one before.
pub(crate) fn ball(round: u64) -> u8 {
    (round % 255 + 1) as u8
}

fn to_bytes(words: [u64; 5]) -> Vec<u8> {
    words.map(u64::to_le_bytes).concat()
}

fn to_words(bytes: &[u8]) -> [u64; 5] {
    let mut words = pattern::words(bytes);
    std::array::from_fn(|_| words.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_outcomes_survive_the_wire() {
        let (offset, length, rounds) = (256, 8, 1000);
        let verify = Request::Verify { offset, length: 0 };
        let bounce = Request::Bounce {
            offset,
            length,
            rounds,
        };
        let requests = [verify, bounce, Request::Finish];
        for (sequence, request) in (5..).zip(requests) {
            let bytes = request.to_bytes(sequence);
            assert_eq!(Request::from_bytes(&bytes).unwrap(), (sequence, request));
        }
        let outcome = Outcome {
            sequence: 9,
            checksum: 0xdead_beef,
            guards_whole: true,
            notifications: 4,
        };
        assert_eq!(Outcome::from_bytes(&outcome.to_bytes()), outcome);
    }

    #[test]
    fn ranges_outside_of_the_data_are_refused() {
        for (offset, length) in [(0, 8), (256, DATA_BYTES as u64), (u64::MAX, 2)] {
            let request = Request::Verify { offset, length };
            assert!(Request::from_bytes(&request.to_bytes(1)).is_err());
        }
        assert!(Request::from_bytes(&to_bytes([1, 9, 256, 8, 0])).is_err());
    }
}
