//! A message to members of a group, which is here as a whole (Q3, Q15). The group's tree has brought
//! it, and the inboxes of its members take it.

use qnic_abi::multicast::Multicast;

/// A message to members of a group.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) fields: Multicast,
    /// Its ranks and its bytes.
    pub(crate) row: Vec<u8>,
}

impl Letter {
    /// Returns true if it is for the member of a rank.
    pub(crate) fn is_for(&self, rank: u32) -> bool {
        let ranks = usize::from(self.fields.ranks.get());
        let mut named = self.row[..2 * ranks].chunks_exact(2);
        ranks == 0 || named.any(|it| u32::from(u16::from_le_bytes([it[0], it[1]])) == rank)
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.row[2 * usize::from(self.fields.ranks.get())..]
    }
}
