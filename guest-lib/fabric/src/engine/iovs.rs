//! Memory of a program, in pieces.

use crate::errno::{Result, INVALID};
use crate::info::offer::PIECES_MAX;
use crate::pointers::{In, Out};
use crate::sys::Iov;

/// Memory of the program, in pieces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Iovs {
    list: [Iov; PIECES_MAX],
    count: usize,
    length: usize,
}

impl Iovs {
    pub(crate) fn one(base: Out<std::ffi::c_void>, length: usize) -> Self {
        let mut list = [Iov {
            base: Out::NULL,
            length: 0,
        }; PIECES_MAX];
        list[0] = Iov { base, length };
        Iovs {
            list,
            count: 1,
            length,
        }
    }

    /// Those of an array of the program.
    ///
    /// # Errors
    /// [`INVALID`]: there are too many, or none where some were promised.
    pub(crate) fn of(pieces: In<Iov>, count: usize) -> Result<Self> {
        let given = pieces.items(count).ok_or(INVALID)?;
        let mut all = Iovs::one(Out::NULL, 0);
        all.list
            .get_mut(..count)
            .ok_or(INVALID)?
            .copy_from_slice(given);
        all.count = count;
        let lengths = given
            .iter()
            .try_fold(0usize, |sum, piece| sum.checked_add(piece.length));
        all.length = lengths.ok_or(INVALID)?;
        Ok(all)
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Where its first byte is, as completions name it.
    pub(super) fn base(&self) -> Out<std::ffi::c_void> {
        self.list[0].base
    }

    /// Gives each piece and its offset to `take`.
    pub(super) fn gather(&self, mut take: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let mut offset = 0;
        for piece in self.list.iter().take(self.count) {
            let bytes = piece.base.as_in().bytes(piece.length).ok_or(INVALID)?;
            take(offset, bytes)?;
            offset += piece.length;
        }
        Ok(())
    }

    /// Lets `fill` fill the first `length` bytes, piece by piece.
    pub(super) fn scatter(
        &self,
        length: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut offset = 0;
        for piece in self.list.iter().take(self.count) {
            let part = piece.length.min(length - offset);
            let filled = piece.base.with_bytes(part, |bytes| fill(offset, bytes));
            filled.ok_or(INVALID)??;
            offset += part;
        }
        Ok(())
    }
}
