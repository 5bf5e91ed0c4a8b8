//! The pages of a ring ([`qnic_abi::verbs::rings`]).

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use qnic_abi::verbs::requests::{self, MAX_ENTRY_BYTES, MIN_ENTRY_BYTES, RING_BYTES};
use qnic_abi::verbs::rings::{QueueHeader, ReceiveEntry, SendEntry, PRODUCER, SGE_BYTES};
use qnic_abi::verbs::{MAX_INLINE, MAX_SGES};
use qnic_abi::{SharedMemory, PAGE_SIZE};
use zerocopy::IntoBytes;

use crate::error::CallError;
use crate::platform::{DeviceMemory, NoMemory, Platform, Run};

/// Number and size of the entries of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    entries: u32,
    entry_bytes: u16,
}

impl Shape {
    /// A ring that has room for so many entries of at least so many bytes. One entry is always free.
    ///
    /// # Errors
    /// `Invalid`: it would be too large.
    pub(super) fn new(requests: u32, bytes: usize) -> Result<Self, CallError> {
        let entries = requests
            .checked_add(1)
            .and_then(u32::checked_next_power_of_two);
        let entries = entries.ok_or(CallError::Invalid)?.max(2);
        let bytes = bytes.next_power_of_two().max(MIN_ENTRY_BYTES.into());
        let entry_bytes = u16::try_from(bytes).unwrap_or(u16::MAX);
        let fits = (entries as usize)
            .checked_mul(bytes)
            .is_some_and(|all| all <= RING_BYTES);
        match fits && entry_bytes <= MAX_ENTRY_BYTES {
            true => Ok(Shape {
                entries,
                entry_bytes,
            }),
            false => Err(CallError::Invalid),
        }
    }

    /// Entries that can be in use at once.
    pub(super) fn requests(self) -> u32 {
        self.entries - 1
    }

    /// Bytes behind the fixed part of a work request of a send queue.
    fn send_room(self) -> usize {
        usize::from(self.entry_bytes).saturating_sub(size_of::<SendEntry>())
    }

    /// Most pieces, and inline bytes, that a work request of a send queue has room for.
    pub(super) fn of_sends(self) -> (u32, u32) {
        let room = self.send_room();
        let sges = (room / SGE_BYTES).min(MAX_SGES);
        (sges as u32, room.min(MAX_INLINE) as u32)
    }

    /// Most pieces that a receive has room for.
    pub(super) fn receive_sges(self) -> u32 {
        let room = usize::from(self.entry_bytes).saturating_sub(size_of::<ReceiveEntry>());
        (room / SGE_BYTES).min(MAX_SGES) as u32
    }
}

/// A ring: its pages, and a page with the addresses of those behind the first, if there are any. A page
/// that a process has mapped stays its own when the ring has ended.
pub struct Ring<P: Platform> {
    shape: Shape,
    /// The last one is the list.
    pages: Vec<P::Memory>,
    first: P::Memory,
}

impl<P: Platform> Ring<P> {
    /// A ring with a header and nothing in it, charged to the caller.
    pub(super) fn new(platform: &P, shape: Shape) -> Result<Self, NoMemory> {
        let behind =
            requests::Ring::pages_behind(shape.entries as usize * usize::from(shape.entry_bytes));
        let blocks = match behind {
            0 => 1,
            behind => behind + 2,
        };
        let mut pages = platform.new_blocks(&[Run { blocks, pages: 1 }])?;
        let first = pages.pop().ok_or(NoMemory)?;
        let header = QueueHeader {
            log2_entry: shape.entry_bytes.trailing_zeros().into(),
            index_mask: (shape.entries - 1).into(),
            ..Default::default()
        };
        first.write_bytes(0, header.as_bytes());
        if let Some((list, pages)) = pages.split_last() {
            for (index, page) in pages.iter().enumerate() {
                list.write_bytes(8 * index, &page.address().to_le_bytes());
            }
        }
        Ok(Ring {
            shape,
            pages,
            first,
        })
    }

    /// Where it is, for the NIC.
    pub(super) fn place(&self) -> requests::Ring {
        requests::Ring {
            first: self.first.address().into(),
            list: self.pages.last().map_or(0, P::Memory::address).into(),
            entries: self.shape.entries.into(),
            entry_bytes: self.shape.entry_bytes.into(),
            pages: (self.pages.len().saturating_sub(1) as u16).into(),
        }
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes of its pages, without the list.
    pub fn bytes(&self) -> usize {
        PAGE_SIZE * (1 + self.pages.len().saturating_sub(1))
    }

    /// The page that a process sees at this place of its mapping; `None`: there is none.
    pub fn page(&self, index: usize) -> Option<&P::Memory> {
        match index.checked_sub(1) {
            None => Some(&self.first),
            Some(behind) => self.pages.split_last()?.1.get(behind),
        }
    }

    /// The producer's index: whatever the program has made of it.
    pub(super) fn producer(&self) -> u32 {
        // Acquire; partner: the NIC's release store of the index.
        self.first.load_u32(PRODUCER, Ordering::Acquire)
    }
}
