//! Memory of a program, in pieces, parts of which are copied.

use std::ffi::c_void;
use std::ops::Range;

use crate::errno::{Result, INVALID};
use crate::info::offer::PIECES_MAX;
use crate::pointers::{In, Out};
use crate::sys::{Ioc, Iov};

/// Pieces of memory, one behind the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    pieces: Vec<Iov>,
    length: usize,
}

impl Memory {
    /// One piece.
    ///
    /// # Errors
    /// [`INVALID`]: bytes at null.
    pub(crate) fn one(base: Out<c_void>, length: usize) -> Result<Self> {
        Self::backed(vec![Iov { base, length }])
    }

    /// The pieces of an array of the program.
    ///
    /// # Errors
    /// [`INVALID`]: there are too many, or bytes at null.
    pub(crate) fn of(pieces: In<Iov>, count: usize) -> Result<Self> {
        let pieces = pieces.items(count).filter(|_| count <= PIECES_MAX);
        Self::backed(pieces.ok_or(INVALID)?.to_vec())
    }

    /// Pieces of addresses, which need not be backed by memory.
    ///
    /// # Errors
    /// [`INVALID`]: there are too many, or they reach beyond the last address.
    pub(crate) fn registered(pieces: &[Iov]) -> Result<Self> {
        match pieces.len() {
            0..=PIECES_MAX => Self::new(pieces.to_vec()),
            _ => Err(INVALID),
        }
    }

    /// The same, of elements with so many bytes.
    ///
    /// # Errors
    /// Those of [`Memory::of`]
    pub(crate) fn of_elements(pieces: In<Ioc>, count: usize, size: usize) -> Result<Self> {
        let pieces = pieces.items(count).filter(|_| count <= PIECES_MAX);
        let pieces = pieces.ok_or(INVALID)?.iter().map(|piece| {
            let length = piece.count.checked_mul(size)?;
            let base = piece.base;
            Some(Iov { base, length })
        });
        Self::backed(pieces.collect::<Option<_>>().ok_or(INVALID)?)
    }

    fn backed(pieces: Vec<Iov>) -> Result<Self> {
        let is_null = |piece: &Iov| piece.base.is_null() && piece.length > 0;
        match pieces.iter().any(is_null) {
            true => Err(INVALID),
            false => Self::new(pieces),
        }
    }

    fn new(pieces: Vec<Iov>) -> Result<Self> {
        let mut length = 0usize;
        for piece in &pieces {
            let end = piece.base.address().checked_add(piece.length);
            end.ok_or(INVALID)?;
            length = length.checked_add(piece.length).ok_or(INVALID)?;
        }
        Ok(Memory { pieces, length })
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Where its first byte is.
    pub(crate) fn base(&self) -> Out<c_void> {
        self.pieces.first().map_or(Out::NULL, |piece| piece.base)
    }

    /// How many pieces it has.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`INVALID`]: they are not all there.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        self.walk(at, bytes.len(), |base, offset, part| {
            let all = offset.checked_add(part.len());
            let all = all.and_then(|all| base.as_in().bytes(all));
            all.map(|all| bytes[part].copy_from_slice(&all[offset..]))
                .is_some()
        })
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// Those of [`Memory::read`]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        self.walk(at, bytes.len(), |base, offset, part| {
            base.copy_in(offset, &bytes[part])
        })
    }

    /// Copies bytes out of registered memory.
    ///
    /// # Errors
    /// [`INVALID`]: some are not there.
    pub(crate) fn read_registered(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        self.walk(at, bytes.len(), |base, offset, part| {
            base.read_registered(offset, &mut bytes[part])
        })
    }

    /// Copies bytes into registered memory.
    ///
    /// # Errors
    /// Those of [`Memory::read_registered`]; some may have been written.
    pub(crate) fn write_registered(&self, at: usize, bytes: &[u8]) -> Result<()> {
        self.walk(at, bytes.len(), |base, offset, part| {
            base.write_registered(offset, &bytes[part])
        })
    }

    /// Stores elements of so many bytes in registered memory; each that stands in one piece at its natural place is
    /// seen whole or not at all.
    ///
    /// # Errors
    /// Those of [`Memory::write_registered`]
    pub(crate) fn set_registered(&self, at: usize, bytes: &[u8], size: usize) -> Result<()> {
        let populate =
            |base: Out<c_void>, offset, part: Range<usize>| base.populate(offset, part.len());
        if self.walk(at, bytes.len(), populate).is_err() {
            // The kernel says there what cannot be written.
            return self.write_registered(at, bytes);
        }
        for (index, element) in bytes.chunks(size).enumerate() {
            self.walk(at + index * size, element.len(), |base, offset, part| {
                base.set_registered(offset, &element[part])
            })?;
        }
        Ok(())
    }

    /// Gives each part of a range to `take`: its piece, where it begins there, and its place in the range.
    fn walk(
        &self,
        at: usize,
        length: usize,
        mut take: impl FnMut(Out<c_void>, usize, Range<usize>) -> bool,
    ) -> Result<()> {
        let (mut skip, mut done) = (at, 0);
        for piece in &self.pieces {
            if done == length {
                break;
            }
            let offset = skip.min(piece.length);
            skip -= offset;
            let part = (piece.length - offset).min(length - done);
            if part > 0 && !take(piece.base, offset, done..done + part) {
                return Err(INVALID);
            }
            done += part;
        }
        match done == length {
            true => Ok(()),
            false => Err(INVALID),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointers::test::{input, room};

    #[test]
    fn a_range_crosses_pieces() {
        let (mut first, mut second) = ([1u8, 2, 3], [4u8, 5, 6, 7]);
        let pieces = [
            (room(&mut first), 3),
            (Out::NULL, 0),
            (room(&mut second), 4),
        ];
        let pieces = pieces.map(|(base, length)| Iov { base, length });
        let memory = Memory::of(input(&pieces[0]), 3).unwrap();
        assert_eq!((memory.len(), memory.pieces()), (7, 3));
        let mut out = [0; 4];
        memory.read(2, &mut out).unwrap();
        assert_eq!(out, [3, 4, 5, 6]);
        memory.write(1, &[9, 9, 9]).unwrap();
        assert_eq!(first, [1, 9, 9]);
        memory.set_registered(5, &[8], 1).unwrap();
        memory.read_registered(4, &mut out[..3]).unwrap();
        assert_eq!(out[..3], [5, 8, 7]);
        memory.write_registered(2, &[9, 4]).unwrap();
        memory.write(7, &[]).unwrap();
        assert_eq!(memory.read(4, &mut out), Err(INVALID));
        assert_eq!(memory.write(usize::MAX, &[1]), Err(INVALID));
        assert_eq!((first, second), ([1, 9, 9], [4, 5, 8, 7]));
    }

    /// As programs may that register all their addresses.
    #[test]
    fn what_is_not_there_is_told() {
        let all = [Iov {
            base: Out::NULL,
            length: usize::MAX,
        }];
        let all = Memory::registered(&all).unwrap();
        assert_eq!(all.read_registered(8, &mut [0; 8]), Err(INVALID));
        assert_eq!(all.write_registered(8, &[0; 8]), Err(INVALID));
        let mut byte = [7];
        let at = room(&mut byte).address();
        all.write_registered(at, &[9]).unwrap();
        assert_eq!(byte, [9]);
    }

    #[test]
    fn what_no_object_is_is_refused() {
        let mut byte = [0];
        assert!(Memory::one(Out::NULL, 1).is_err());
        assert!(Memory::one(room(&mut byte), usize::MAX).is_err());
        assert_eq!(Memory::one(Out::NULL, 0).unwrap().len(), 0);
        assert!(Memory::of(In::NULL, 1).is_err());
        let many = [Iov {
            base: Out::NULL,
            length: 0,
        }; PIECES_MAX + 1];
        assert!(Memory::of(input(&many[0]), many.len()).is_err());
        let huge = Ioc {
            base: room(&mut byte),
            count: usize::MAX,
        };
        assert!(Memory::of_elements(input(&huge), 1, 8).is_err());
    }
}
