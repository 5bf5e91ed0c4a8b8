//! How a transfer is cut: at the page borders of both sides, and by the length of frames.

use qnic_abi::PAGE_SIZE;

/// A part of a transfer: a fragment, or several in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fragment {
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl Fragment {
    /// The fragments from `offset` on of which `remaining` bytes are left: on either side they
    /// touch at most so many pages, and they are no longer than a frame on their route may be
    /// (`max_payload`, U5). `ends` are the addresses of the transfer; a side without one has no
    /// pages.
    #[inline]
    pub(crate) fn next(
        (offset, remaining): (u64, u64),
        (local, remote): (Option<u64>, u64),
        pages: u32,
        max_payload: u32,
    ) -> Self {
        let most = remaining.min(u64::from(max_payload));
        let mut length = most.min(to_border(remote, offset, pages));
        if let Some(local) = local {
            length = length.min(to_border(local, offset, pages));
        }
        Fragment {
            offset,
            length: length as u32,
        }
    }

    /// Returns true if all of another one lies in this one.
    pub(crate) fn covers(&self, other: &Fragment) -> bool {
        let end = |fragment: &Fragment| fragment.offset.saturating_add(u64::from(fragment.length));
        other.offset >= self.offset && end(other) <= end(self)
    }
}

/// Bytes from `address + offset` to the end of the last of so many pages.
#[inline]
pub(crate) fn to_border(address: u64, offset: u64, pages: u32) -> u64 {
    let page = PAGE_SIZE as u64;
    page * u64::from(pages.max(1)) - (address.wrapping_add(offset) & (page - 1))
}
