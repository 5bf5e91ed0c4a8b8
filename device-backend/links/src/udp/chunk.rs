//! Frames in pieces, where the path takes no datagram of a whole one (U5).
//!
//! ```text
//!   0              8      10     12    13    14     16
//!   | frame number | from | total| piece| of | res. | bytes from..
//! ```
//!
//! A frame whose pieces do not all come is forgotten when [`PARTS`] newer ones have
//! begun; the transport sends it again.

use std::collections::VecDeque;

use qnic_abi::wire::{HEADER_BYTES, MAX_PAYLOAD};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Frames of one peer that may be incomplete at a time.
pub(super) const PARTS: usize = 64;

/// Bytes before those of the frame.
pub(super) const CHUNK_HEAD: usize = 16;

/// Longest frame.
pub(super) const MAX_FRAME: usize = HEADER_BYTES + MAX_PAYLOAD;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Head {
    frame: U64,
    from: U16,
    total: U16,
    piece: u8,
    pieces: u8,
    reserved: U16,
}

const _: () = assert!(size_of::<Head>() == CHUNK_HEAD);
const _: () = assert!(MAX_FRAME <= u16::MAX as usize);

/// The bodies of the pieces of a frame, each of at most `room` bytes.
pub(super) fn split(number: u64, frame: &[u8], room: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
    let step = room.saturating_sub(CHUNK_HEAD).max(1);
    let pieces = frame.len().div_ceil(step) as u8;
    frame.chunks(step).enumerate().map(move |(piece, bytes)| {
        let head = Head {
            frame: number.into(),
            from: ((piece * step) as u16).into(),
            total: (frame.len() as u16).into(),
            piece: piece as u8,
            pieces,
            reserved: 0.into(),
        };
        [head.as_bytes(), bytes].concat()
    })
}

#[derive(Debug)]
struct Part {
    number: u64,
    bytes: Vec<u8>,
    pieces: u8,
    /// Bit *p*: piece *p* has come.
    come: u64,
    filled: usize,
}

/// Frames of one peer that are incomplete.
#[derive(Debug, Default)]
pub(super) struct Reassembly(VecDeque<Part>);

/// A piece that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadChunk;

impl Reassembly {
    /// Takes a piece; returns the frame that it completes.
    pub(super) fn take(&mut self, body: &[u8]) -> Result<Option<Vec<u8>>, BadChunk> {
        let (head, bytes) = Head::read_from_prefix(body).map_err(|_| BadChunk)?;
        let (from, total) = (usize::from(head.from.get()), usize::from(head.total.get()));
        let inside = from + bytes.len() <= total && total <= MAX_FRAME && !bytes.is_empty();
        if !inside || head.piece >= head.pieces || head.pieces > 64 {
            return Err(BadChunk);
        }
        let place = self
            .0
            .iter()
            .position(|part| part.number == head.frame.get());
        let place = place.unwrap_or_else(|| self.begin(&head, total));
        let part = &mut self.0[place];
        if part.bytes.len() != total || part.pieces != head.pieces {
            return Err(BadChunk);
        }
        if part.come & 1 << head.piece != 0 {
            return Ok(None);
        }
        part.come |= 1 << head.piece;
        part.filled += bytes.len();
        part.bytes[from..from + bytes.len()].copy_from_slice(bytes);
        if part.come.count_ones() < u32::from(part.pieces) {
            return Ok(None);
        }
        let whole = self.0.remove(place).filter(|part| part.filled == total);
        whole.map(|part| Some(part.bytes)).ok_or(BadChunk)
    }

    fn begin(&mut self, head: &Head, total: usize) -> usize {
        if self.0.len() == PARTS {
            self.0.pop_front();
        }
        self.0.push_back(Part {
            number: head.frame.get(),
            bytes: vec![0; total],
            pieces: head.pieces,
            come: 0,
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
        #[test]
        fn pieces_in_any_order_make_the_frame(
            frame in prop::collection::vec(any::<u8>(), 1..=MAX_FRAME), room in 100usize..1500, seed: u64,
        ) {
            let mut pieces: Vec<_> = split(7, &frame, room).collect();
            prop_assert!(pieces.iter().all(|piece| piece.len() <= room));
            fastrand::Rng::with_seed(seed).shuffle(&mut pieces);
            let mut reassembly = Reassembly::default();
            let mut whole = None;
            for piece in &pieces {
                prop_assert_eq!(&whole, &None);
                whole = reassembly.take(piece).unwrap();
            }
            prop_assert_eq!(whole, Some(frame));
        }

        #[test]
        fn any_bytes_are_taken(bodies in prop::collection::vec(prop::collection::vec(0u8..8, 0..64), 0..300)) {
            let mut reassembly = Reassembly::default();
            for body in &bodies {
                let _ = reassembly.take(body);
                prop_assert!(reassembly.0.len() <= PARTS);
            }
        }
    }

    #[test]
    fn what_stays_incomplete_is_forgotten() {
        let mut reassembly = Reassembly::default();
        let pieces = |number| split(number, &[5; 300], 200).collect::<Vec<_>>();
        for number in 0..=PARTS as u64 {
            assert_eq!(reassembly.take(&pieces(number)[0]), Ok(None));
        }
        assert_eq!(reassembly.take(&pieces(0)[1]), Ok(None));
        assert_eq!(reassembly.take(&pieces(9)[0]), Ok(None));
        assert_eq!(reassembly.take(&pieces(9)[1]), Ok(Some(vec![5; 300])));
    }
}
