//! Fragments of frames that are too long for a datagram of the path (U5).
//!
//! ```text
//!   0              8        10     12      13     14     16
//!   | frame number | offset | total| index | count| res. | bytes …
//! ```
//!
//! A frame that stays incomplete is dropped when [`MAX_PARTIAL`] newer ones have begun;
//! the transport of the NIC sends it again.

use std::collections::VecDeque;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::codec::MAX_FRAME;

/// Most incomplete frames of one peer.
pub(super) const MAX_PARTIAL: usize = 64;

/// Bytes before those of the frame.
pub(super) const FRAGMENT_HEADER: usize = 16;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    frame: U64,
    offset: U16,
    total: U16,
    index: u8,
    count: u8,
    reserved: U16,
}

const _: () = assert!(size_of::<Header>() == FRAGMENT_HEADER);
const _: () = assert!(MAX_FRAME <= u16::MAX as usize);

/// The bodies of the fragments of a frame, each of at most `room` bytes.
pub(super) fn fragments(
    number: u64,
    frame: &[u8],
    room: usize,
) -> impl Iterator<Item = Vec<u8>> + '_ {
    let step = room.saturating_sub(FRAGMENT_HEADER).max(1);
    let count = frame.len().div_ceil(step) as u8;
    frame.chunks(step).enumerate().map(move |(index, bytes)| {
        let header = Header {
            frame: number.into(),
            offset: ((index * step) as u16).into(),
            total: (frame.len() as u16).into(),
            index: index as u8,
            count,
            reserved: 0.into(),
        };
        [header.as_bytes(), bytes].concat()
    })
}

#[derive(Debug)]
struct Partial {
    number: u64,
    bytes: Vec<u8>,
    count: u8,
    /// Bit *i*: fragment *i* has arrived.
    arrived: u64,
    filled: usize,
}

/// Incomplete frames of one peer.
#[derive(Debug, Default)]
pub(super) struct Reassembly(VecDeque<Partial>);

/// A fragment that is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadFragment;

impl Reassembly {
    /// Takes a fragment; returns the frame that it completes.
    pub(super) fn take(&mut self, body: &[u8]) -> Result<Option<Vec<u8>>, BadFragment> {
        let (header, bytes) = Header::read_from_prefix(body).map_err(|_| BadFragment)?;
        let (offset, total) = (header.offset.get().into(), header.total.get().into());
        let end: usize = offset + bytes.len();
        let inside = end <= total && total <= MAX_FRAME && !bytes.is_empty();
        if !inside || header.index >= header.count || header.count > 64 {
            return Err(BadFragment);
        }
        let number = header.frame.get();
        let known = self.0.iter().position(|partial| partial.number == number);
        let position = known.unwrap_or_else(|| self.begin(number, header.count, total));
        let partial = &mut self.0[position];
        if partial.bytes.len() != total || partial.count != header.count {
            return Err(BadFragment);
        }
        if partial.arrived & 1 << header.index != 0 {
            return Ok(None);
        }
        partial.arrived |= 1 << header.index;
        partial.filled += bytes.len();
        partial.bytes[offset..end].copy_from_slice(bytes);
        if partial.arrived.count_ones() < u32::from(partial.count) {
            return Ok(None);
        }
        let whole = self.0.remove(position);
        let whole = whole.filter(|partial| partial.filled == total);
        whole.map(|partial| Some(partial.bytes)).ok_or(BadFragment)
    }

    fn begin(&mut self, number: u64, count: u8, total: usize) -> usize {
        if self.0.len() == MAX_PARTIAL {
            self.0.pop_front();
        }
        self.0.push_back(Partial {
            number,
            bytes: vec![0; total],
            count,
            arrived: 0,
            filled: 0,
        });
        self.0.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A frame beyond the MTU (U5).
        #[test]
        fn fragments_in_any_order_make_the_frame(
            frame in prop::collection::vec(any::<u8>(), 1..=MAX_FRAME), room in 100usize..1500, seed: u64,
        ) {
            let mut fragments: Vec<_> = super::fragments(7, &frame, room).collect();
            prop_assert!(fragments.iter().all(|one| one.len() <= room));
            fastrand::Rng::with_seed(seed).shuffle(&mut fragments);
            let mut reassembly = Reassembly::default();
            let mut whole = None;
            for fragment in &fragments {
                prop_assert_eq!(&whole, &None);
                whole = reassembly.take(fragment).unwrap();
            }
            prop_assert_eq!(whole, Some(frame));
        }

        #[test]
        fn any_bytes_are_accepted(bodies in prop::collection::vec(prop::collection::vec(0u8..8, 0..64), 0..300)) {
            let mut reassembly = Reassembly::default();
            for body in &bodies {
                let _ = reassembly.take(body);
                prop_assert!(reassembly.0.len() <= MAX_PARTIAL);
            }
        }
    }

    #[test]
    fn an_incomplete_frame_is_dropped() {
        let mut reassembly = Reassembly::default();
        let of = |number| fragments(number, &[5; 300], 200).collect::<Vec<_>>();
        for number in 0..=MAX_PARTIAL as u64 {
            assert_eq!(reassembly.take(&of(number)[0]), Ok(None));
        }
        assert_eq!(reassembly.take(&of(0)[1]), Ok(None));
        assert_eq!(reassembly.take(&of(9)[0]), Ok(None));
        assert_eq!(reassembly.take(&of(9)[1]), Ok(Some(vec![5; 300])));
    }
}
