//! A message to members of a group, or a piece of a long one, which is here as a whole (Q3, Q15). The
//! group's tree has brought it, and the inboxes of its members take it.

use std::sync::Arc;

use qnic_abi::multicast::{Multicast, PartFlags};

/// A piece of a message to members of a group. A short message is one piece.
#[derive(Debug)]
pub(crate) struct Letter {
    /// Those of the message; `offset` is where this piece begins in its row.
    pub(crate) fields: Multicast,
    /// The ranks that the message names.
    pub(crate) ranks: Arc<[u8]>,
    /// The piece: bytes, and in front of those of the first one the ranks.
    pub(crate) row: Vec<u8>,
}

impl Letter {
    /// Returns true if it is for the member of a rank.
    pub(crate) fn is_for(&self, rank: u32) -> bool {
        let mut named = self.ranks.chunks_exact(2);
        let is_named = |it: &[u8]| u32::from(u16::from_le_bytes([it[0], it[1]])) == rank;
        self.ranks.is_empty() || named.any(is_named)
    }

    /// Returns true if it is the first piece of its message.
    pub(crate) fn is_first(&self) -> bool {
        self.fields.offset.get() == 0
    }

    /// Returns true if no more of its message comes.
    pub(crate) fn is_last(&self) -> bool {
        let end = u64::from(self.fields.offset.get()) + self.row.len() as u64;
        self.is_given_up() || end == self.fields.row()
    }

    /// Returns true if its message ends here, and is not whole.
    pub(crate) fn is_given_up(&self) -> bool {
        self.fields.flags & PartFlags::GIVEN_UP.bits() != 0
    }

    /// Where its bytes begin in the message.
    pub(crate) fn begin(&self) -> u64 {
        u64::from(self.fields.offset.get()).saturating_sub(self.ranks.len() as u64)
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.is_first() {
            true => &self.row[self.ranks.len()..],
            false => &self.row,
        }
    }
}
