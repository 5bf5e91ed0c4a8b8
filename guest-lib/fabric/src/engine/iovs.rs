//! Memory of a program, in pieces.

use std::ops::Range;

use crate::errno::{Result, INVALID};
use crate::info::offer::PIECES_MAX;
use crate::pointers::{In, Out};
use crate::sys::Iov;

/// Memory of the program, in pieces. Most has one: it is as small as that, as each operation holds it.
#[derive(Debug, Clone)]
pub(crate) struct Iovs {
    first: Iov,
    /// Those behind it.
    rest: Option<Box<[Iov]>>,
    length: usize,
}

impl Iovs {
    pub(crate) fn one(base: Out<std::ffi::c_void>, length: usize) -> Self {
        Iovs {
            first: Iov { base, length },
            rest: None,
            length,
        }
    }

    /// No memory.
    pub(super) fn none() -> Self {
        Self::one(Out::NULL, 0)
    }

    /// Those of an array of the program.
    ///
    /// # Errors
    /// [`INVALID`]: there are too many, or none where some were promised.
    pub(crate) fn of(pieces: In<Iov>, count: usize) -> Result<Self> {
        let given = pieces.items(count).ok_or(INVALID)?;
        if count > PIECES_MAX {
            return Err(INVALID);
        }
        let lengths = given
            .iter()
            .try_fold(0usize, |sum, piece| sum.checked_add(piece.length));
        let mut all = Iovs::none();
        if let Some((first, rest)) = given.split_first() {
            all.first = *first;
            all.rest = (!rest.is_empty()).then(|| rest.into());
        }
        all.length = lengths.ok_or(INVALID)?;
        Ok(all)
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns true if it is in one piece.
    pub(super) fn is_one(&self) -> bool {
        self.rest.is_none()
    }

    /// Returns false if bytes of it are at null.
    pub(super) fn is_there(&self) -> bool {
        self.parts(0..self.length).all(|(base, _)| !base.is_null())
    }

    /// Where its first byte is, as completions name it.
    pub(super) fn base(&self) -> Out<std::ffi::c_void> {
        self.first.base
    }

    /// Where a part of it lies: of each piece that has bytes of it the place of the first, and how many.
    fn parts(
        &self,
        part: Range<usize>,
    ) -> impl Iterator<Item = (Out<std::ffi::c_void>, usize)> + '_ {
        let mut begin = 0;
        let rest = self.rest.as_deref().unwrap_or_default();
        let pieces = std::iter::once(&self.first).chain(rest);
        pieces.filter_map(move |piece| {
            let end = begin + piece.length;
            let (from, to) = (part.start.max(begin), part.end.min(end));
            let found = (from < to).then(|| (piece.base.behind(from - begin), to - from));
            begin = end;
            found
        })
    }

    /// Gives the bytes of a part to `take`, piece by piece, each with its offset in the part.
    pub(super) fn gather(
        &self,
        part: Range<usize>,
        mut take: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut offset = 0;
        for (base, length) in self.parts(part) {
            take(offset, base.as_in().bytes(length).ok_or(INVALID)?)?;
            offset += length;
        }
        Ok(())
    }

    /// Lets `fill` fill a part, piece by piece, each with its offset in the part.
    pub(super) fn scatter(
        &self,
        part: Range<usize>,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut offset = 0;
        for (base, length) in self.parts(part) {
            let filled = base.with_bytes(length, |bytes| fill(offset, bytes));
            filled.ok_or(INVALID)??;
            offset += length;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointers::test::room;

    #[test]
    fn a_part_lies_in_the_pieces_that_have_bytes_of_it() {
        let mut pieces = [[1, 2, 3].to_vec(), vec![], [4, 5].to_vec()];
        let list = pieces.each_mut().map(|piece| Iov {
            length: piece.len(),
            base: room(piece),
        });
        let all = Iovs::of(crate::pointers::test::input(&list[0]), 3).unwrap();
        let bytes = |part| {
            let mut found = Vec::new();
            let gathered = all.gather(part, |offset, bytes| {
                assert_eq!(offset, found.len());
                found.extend(bytes);
                Ok(())
            });
            gathered.map(|()| found)
        };
        assert_eq!(bytes(0..5), Ok(vec![1, 2, 3, 4, 5]));
        assert_eq!(bytes(2..4), Ok(vec![3, 4]));
        assert_eq!(bytes(3..3), Ok(vec![]));
        let fill = |offset: usize, bytes: &mut [u8]| {
            bytes.fill(70 + offset as u8);
            Ok(())
        };
        all.scatter(1..4, fill).unwrap();
        assert_eq!(pieces, [vec![1, 70, 70], vec![], vec![72, 5]]);
    }
}
