//! What the NIC needs from the world around it: SRAM, the node's memory, a wire.
//!
//! The NIC owns none of them. Each entry point of [`crate::Nic`] borrows what it
//! may touch, so the same control program runs in the device process, in a
//! simulator and in unit tests.

use qnic_abi::wire::{Frame, HEADER_BYTES, MAX_PAYLOAD, MAX_SPAN};
use qnic_abi::{NodeId, SharedMemory, PAGE_SIZE};
pub use qnic_shared::timing::Time;

pub use crate::word::{Change, Number, Width};

/// An access to node memory outside of what the node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfRange;

/// Why an atomic access has changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModifyError {
    /// The word lies outside of what the node has, or is not aligned.
    OutOfRange,
    /// The node's processors have changed the word at each of many tries.
    Contended,
}

impl From<OutOfRange> for ModifyError {
    fn from(_: OutOfRange) -> Self {
        ModifyError::OutOfRange
    }
}

/// The memory of a node, by guest-physical address: where DMA goes.
///
/// Every access is checked against the regions that the node has; nothing is
/// written when it fails. The other side may read and write at any time, so no
/// reference into it ever leaves an implementation.
pub trait HostMemory {
    /// Returns true if all of `address .. address + length` is memory.
    fn contains(&self, address: u64, length: u64) -> bool;

    /// Copies out.
    ///
    /// # Errors
    /// [`OutOfRange`] if any byte lies outside.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), OutOfRange>;

    /// Copies in.
    ///
    /// # Errors
    /// [`OutOfRange`] if any byte lies outside.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfRange>;

    /// Loads an aligned 64-bit little-endian word with acquire ordering: what was stored before it
    /// with release is seen by what is read afterwards.
    ///
    /// # Errors
    /// [`OutOfRange`] if it lies outside or is not aligned.
    fn load_u64(&self, address: u64) -> Result<u64, OutOfRange>;

    /// Stores an aligned 64-bit little-endian word with release ordering: a load
    /// of it with acquire sees all that this NIC wrote before.
    ///
    /// # Errors
    /// [`OutOfRange`] if it lies outside or is not aligned.
    fn store_u64(&self, address: u64, value: u64) -> Result<(), OutOfRange>;

    /// Stores aligned 64-bit little-endian words side by side in one page, in no order among each
    /// other; a load with acquire of what [`HostMemory::store_u64`] stores behind them sees them.
    ///
    /// # Errors
    /// [`OutOfRange`] if any of them lies outside or is not aligned.
    fn store_words(&self, address: u64, words: &[u64]) -> Result<(), OutOfRange> {
        for (address, word) in (address..).step_by(8).zip(words) {
            self.store_u64(address, *word)?;
        }
        Ok(())
    }

    /// Changes an aligned little-endian word in one atomic step, also with respect
    /// to the node's processors, and returns what it was. It acquires and releases.
    ///
    /// # Errors
    /// [`ModifyError`]
    fn modify(&self, address: u64, width: Width, change: Change) -> Result<u64, ModifyError>;

    /// Copies from the memory of another node (or of this one) to this one, once,
    /// without staging.
    ///
    /// # Errors
    /// [`OutOfRange`] if any byte lies outside on either side.
    fn copy_from(
        &self,
        address: u64,
        source: &Self,
        source_address: u64,
        length: usize,
    ) -> Result<(), OutOfRange>;
}

/// The node that a NIC serves.
pub trait Host {
    /// Type of the SRAM.
    type Sram: SharedMemory;
    /// Type of the memory; the same for all nodes of a process, so that one can
    /// copy from another.
    type Memory: HostMemory;

    /// The NIC's SRAM.
    fn sram(&self) -> &Self::Sram;

    /// The node's memory.
    fn memory(&self) -> &Self::Memory;

    /// The present time, for samples of [`mod@crate::stages`] only, from any point in the past on;
    /// `None`: nothing is sampled. Between the entries of a NIC it goes on, unlike their `now`.
    fn clock(&self) -> Option<Time> {
        None
    }
}

/// The payload of a frame, where it lies.
#[derive(Debug)]
pub enum Payload<'a, M> {
    /// No payload.
    None,
    /// Bytes in private memory: an inline command, or what a serial wire brought.
    Bytes(&'a [u8]),
    /// Memory of the sending node, which holds the pages locked until the call
    /// that carries the payload returns, and longer for a frame that is [`Sent::Kept`].
    Memory {
        /// The sending node's memory.
        memory: &'a M,
        /// Its pages, by guest-physical address.
        pages: &'a [u64],
        /// Where it starts in the first page.
        offset: usize,
        /// Its length in bytes.
        length: usize,
    },
}

impl<M> Clone for Payload<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Payload<'_, M> {}

impl<M> Payload<'_, M> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Memory { length, .. } => *length,
        }
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<M: HostMemory> Payload<'_, M> {
    /// `length` bytes of it from `start` on, or what there is of them.
    #[must_use]
    pub fn part(&self, start: usize, length: usize) -> Self {
        let start = start.min(self.len());
        let length = length.min(self.len() - start);
        match *self {
            Payload::None => Payload::None,
            Payload::Bytes(bytes) => Payload::Bytes(&bytes[start..start + length]),
            Payload::Memory {
                memory,
                pages,
                offset,
                ..
            } => {
                let from = offset + start;
                Payload::Memory {
                    memory,
                    pages: pages.get(from / PAGE_SIZE..).unwrap_or_default(),
                    offset: from % PAGE_SIZE,
                    length,
                }
            }
        }
    }

    /// Calls `copy` for each part of it that lies in a row in the sending node's
    /// memory, with what was copied before, its address and its length.
    #[inline]
    fn by_extent(
        mut pages: &[u64],
        mut offset: usize,
        length: usize,
        mut copy: impl FnMut(usize, u64, usize) -> Result<(), OutOfRange>,
    ) -> Result<(), OutOfRange> {
        let mut done = 0;
        while done < length {
            let first = pages.first().ok_or(OutOfRange)?;
            let row = contiguous(pages);
            let count = (row * PAGE_SIZE).saturating_sub(offset).min(length - done);
            copy(done, first + offset as u64, count)?;
            done += count;
            pages = &pages[row..];
            offset = 0;
        }
        Ok(())
    }

    /// Copies it out; `bytes` are as long as it is.
    ///
    /// # Errors
    /// [`OutOfRange`] if it lies outside of the sending node's memory.
    ///
    /// # Panics
    /// If `bytes` are longer or shorter.
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        assert_eq!(bytes.len(), self.len(), "room for exactly the payload");
        match *self {
            Payload::None => Ok(()),
            Payload::Bytes(from) => {
                bytes.copy_from_slice(from);
                Ok(())
            }
            Payload::Memory {
                memory,
                pages,
                offset,
                length,
            } => Self::by_extent(pages, offset, length, |done, address, count| {
                memory.read(address, &mut bytes[done..done + count])
            }),
        }
    }

    /// Copies it out to where what stands in `bytes` was; their length becomes its own.
    ///
    /// # Errors
    /// As of [`Payload::read`].
    pub fn read_into(&self, bytes: &mut Vec<u8>) -> Result<(), OutOfRange> {
        if let Payload::Bytes(from) = self {
            bytes.clear();
            bytes.extend_from_slice(from);
            return Ok(());
        }
        bytes.resize(self.len(), 0);
        self.read(bytes)
    }

    /// Copies it, once, to an address of another node, or of the same one.
    ///
    /// # Errors
    /// [`OutOfRange`] if any byte lies outside on either side; those before it may
    /// have been copied.
    #[inline]
    pub fn copy_to(&self, memory: &M, address: u64) -> Result<(), OutOfRange> {
        match *self {
            Payload::None => Ok(()),
            Payload::Bytes(bytes) => memory.write(address, bytes),
            Payload::Memory {
                memory: source,
                pages,
                offset,
                length,
            } => Self::by_extent(pages, offset, length, |done, from, count| {
                memory.copy_from(address + done as u64, source, from, count)
            }),
        }
    }
}

/// How many of these pages, from the first on, are contiguous.
#[inline]
pub(crate) fn contiguous(pages: &[u64]) -> usize {
    let follows = |pair: &&[u64]| pair[1].wrapping_sub(pair[0]) == PAGE_SIZE as u64;
    let following = pages.windows(2).take_while(follows).count();
    pages.len().min(1 + following)
}

/// What the route to another node is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// Each frame arrives once, or comes back: neither copies for retransmission are kept nor timers
    /// run. Nothing that was sent before a frame of [`Channel::Data`] arrives behind it.
    pub lossless: bool,
    /// Most payload bytes in a frame, 1 to [`MAX_PAYLOAD`] (U5, U8), on a lossless
    /// path to [`MAX_SPAN`]. What is less than a page counts as the power of two below it.
    /// A frame that is sent again may be longer: it is what it was.
    pub max_payload: u32,
}

impl Path {
    /// A route within one process.
    pub const LOSSLESS: Path = Path {
        lossless: true,
        max_payload: MAX_SPAN as u32,
    };

    /// A route of which nothing is known yet.
    pub const UNKNOWN: Path = Path {
        lossless: false,
        max_payload: MAX_PAYLOAD as u32,
    };
}

/// How a frame travels (U4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Small frames: a wire may let them overtake the others, within their [`Order`] if it is lossless.
    Priority,
    /// Large frames, and frames that are sent again.
    Data,
}

impl Channel {
    /// Largest frame that takes the priority channel, in bytes.
    pub const PRIORITY_BYTES: usize = 768;

    /// The channel of a frame with that much payload that is sent for the first time.
    pub const fn of(payload: usize) -> Channel {
        match HEADER_BYTES + payload <= Channel::PRIORITY_BYTES {
            true => Channel::Priority,
            false => Channel::Data,
        }
    }
}

/// Which frames may overtake each other on a lossless path ([`order_of`](crate::order_of)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// It may overtake frames of [`Channel::Data`].
    Free,
    /// It is received behind all that was sent before it.
    Behind,
    /// So it is, and nothing that is sent after it is received before it.
    Between,
}

/// Names a frame that a wire has kept, among all that it has kept for one NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// The way that the frame takes, by a number of the wire.
    pub way: u32,
    /// The place of the frame among those of that way.
    pub place: u64,
}

/// How far a NIC has come with the numbered frames of a peer, and in which session: what an Ack says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) source_session: u64,
    pub(crate) destination_session: u64,
    pub(crate) received: u64,
    pub(crate) delivered: u64,
}

/// What has become of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// There is no route to its destination.
    NoRoute,
    /// The wire needs nothing of its sender any more.
    Taken,
    /// Its payload will be read where it lies, in the pages of the sending node: they stay
    /// locked until [`Wire::is_done`]. Only a frame of class Windowed with a payload in
    /// [`Payload::Memory`] is kept: what sends it is not complete before the peer has it.
    Kept(Ticket),
}

/// The routes to other NICs.
///
/// A wire takes, keeps or loses a frame before `send` returns; it keeps no borrow of the
/// payload, but may keep addresses ([`Sent::Kept`]). A lossless wire (one process) delivers each
/// frame once by calling the peer's [`crate::Nic::handle_frame`]: within `send`, or later. There small
/// frames may overtake others as their [`Order`] allows. If it finds later that there is no
/// route, it returns the frame to its sender ([`crate::Nic::handle_returned`]). Any wire hands on
/// frames intact or not at all: one that can damage them checks them.
pub trait Wire<M> {
    /// What the route to a node is like; `None`: there is none now. Asked when a session
    /// with that node begins. Whether it is lossless holds until the session ends; the length of
    /// frames may change ([`crate::Nic::update_paths`]).
    fn path(&self, node: NodeId) -> Option<Path>;

    /// Sends a frame to its destination node, never the sender itself.
    /// With [`Sent::NoRoute`], what runs between the two is given up at once.
    fn send(&mut self, frame: &Frame, payload: Payload<'_, M>, channel: Channel) -> Sent;

    /// The [receipt](crate::Nic::receipt) of a NIC that receives frames within `send`, for what this one
    /// has sent to it: no Ack follows. `None`: an Ack tells, if anything does.
    fn receipt(&mut self, _node: NodeId) -> Option<Receipt> {
        None
    }

    /// Returns true if a frame that was kept needs its pages no longer.
    fn is_done(&self, _ticket: Ticket) -> bool {
        true
    }

    /// Reads the payloads of all frames that are kept for this NIC: when it returns, each of them
    /// is done.
    fn recall(&mut self) {}
}
