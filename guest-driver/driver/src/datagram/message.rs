//! Messages, as upper modules send and receive them.

use core::fmt;

use qnic_abi::datagram::{HEADER_CAPACITY, MAX_DATA};
use qnic_abi::{NodeId, SharedMemory, Status, PAGE_SIZE};

use super::buffer::Buffer;
use crate::platform::{DeviceMemory, Platform};

/// Most bytes of data in a message: those of a block (S1), or of two pages (H6).
pub const MAX_MESSAGE: usize = MAX_DATA;

/// Most destinations of one message (H7).
pub const MAX_DESTINATIONS: usize = 16;

/// Most buffers of a message in pages.
pub(super) const PAGES: usize = 2;

/// Bytes of a message that go into one buffer, if the first buffer has this size: a page, or all of
/// them if it is a block.
pub(super) fn bytes_of_buffer(first: usize) -> usize {
    match first > PAGE_SIZE {
        true => MAX_MESSAGE,
        false => PAGE_SIZE,
    }
}

/// A datagram port of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The node.
    pub node: NodeId,
    /// The port, not zero.
    pub port: u16,
}

/// The header of a message: up to [`HEADER_CAPACITY`] bytes of the upper module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; HEADER_CAPACITY],
    length: u8,
}

impl Header {
    /// No header.
    pub const NONE: Header = Header {
        bytes: [0; HEADER_CAPACITY],
        length: 0,
    };

    /// A header of these bytes; `None` if they are too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut header = Header {
            bytes: [0; HEADER_CAPACITY],
            length: u8::try_from(bytes.len()).ok()?,
        };
        header.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(header)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length.into()).unwrap_or(&self.bytes)
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Header({} bytes)", self.length)
    }
}

/// The data of a message: nothing, up to a page, a page and up to another one, or a block of up to
/// [`MAX_MESSAGE`] bytes.
pub struct Data<P: Platform> {
    pages: [Option<Buffer<P>>; PAGES],
    length: usize,
}

impl<P: Platform> Default for Data<P> {
    fn default() -> Self {
        Self::none()
    }
}

impl<P: Platform> Data<P> {
    /// No data.
    pub fn none() -> Self {
        Data {
            pages: [None, None],
            length: 0,
        }
    }

    /// All of a buffer.
    pub fn whole(buffer: Buffer<P>) -> Self {
        let length = buffer.memory().size();
        Self::of([Some(buffer), None], length)
    }

    /// The first `length` bytes of these buffers. Gives them back if they have fewer, or if there
    /// are two and the first is no page.
    ///
    /// # Errors
    /// The buffers.
    #[allow(
        clippy::result_large_err,
        reason = "the buffers belong to the caller again"
    )]
    pub fn new(
        first: Buffer<P>,
        second: Option<Buffer<P>>,
        length: usize,
    ) -> Result<Self, (Buffer<P>, Option<Buffer<P>>)> {
        let front = first.memory().size();
        let room = front + second.as_ref().map_or(0, |second| second.memory().size());
        if length > room || (second.is_some() && front != PAGE_SIZE) {
            return Err((first, second));
        }
        Ok(Self::of([Some(first), second], length))
    }

    pub(super) fn of(pages: [Option<Buffer<P>>; PAGES], length: usize) -> Self {
        Data { pages, length }
    }

    /// Its length in bytes, up to [`MAX_MESSAGE`].
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// One of its buffers: 0 or 1.
    pub fn buffer(&self, page: usize) -> Option<&Buffer<P>> {
        self.pages.get(page)?.as_ref()
    }

    /// The most bytes in one of its buffers.
    pub(super) fn unit(&self) -> usize {
        bytes_of_buffer(self.buffer(0).map_or(0, |first| first.memory().size()))
    }

    /// Its buffers.
    pub fn into_buffers(self) -> [Option<Buffer<P>>; PAGES] {
        self.pages
    }

    /// Copies bytes out, from `offset` on; those behind the end of the data stay as they are.
    pub fn read(&self, mut offset: usize, mut bytes: &mut [u8]) {
        let unit = self.unit();
        while let Some(buffer) = self.buffer(offset / unit) {
            let start = offset % unit;
            let left = buffer
                .memory()
                .size()
                .min(self.length - offset / unit * unit);
            let count = left.saturating_sub(start).min(bytes.len());
            if count == 0 {
                return;
            }
            let (front, rest) = bytes.split_at_mut(count);
            buffer.memory().read_bytes(start, front);
            (bytes, offset) = (rest, offset + count);
        }
    }
}

impl<P: Platform> fmt::Debug for Data<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} bytes)", self.length)
    }
}

/// Names a steered buffer for as long as the NIC runs; the sender of an answer names it as the
/// target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// A message that is to be sent.
pub struct Outgoing<P: Platform> {
    /// The header, which the upper module at the other side reads.
    pub header: Header,
    /// Belongs to the driver until `Upper::sent`.
    pub data: Data<P>,
    /// The steered buffer at the other side that it is for.
    pub target: Option<Handle>,
    /// Chosen by the upper module; `Upper::sent` returns it.
    pub token: u64,
}

impl<P: Platform> fmt::Debug for Outgoing<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Outgoing({}, {:?}, {:?})",
            self.token, self.header, self.data
        )
    }
}

/// A message that was sent, or given up. Ok does not mean that it was received.
pub struct Sent<P: Platform> {
    /// The token of the [`Outgoing`].
    pub token: u64,
    /// The data belongs to the upper module again.
    pub data: Data<P>,
    /// Destinations that it could not be sent to.
    pub failed: usize,
    /// The reason for the first of them.
    pub status: Status,
}

/// A message that has arrived.
pub struct Message<P: Platform> {
    /// Its sender.
    pub from: Address,
    /// Its header.
    pub header: Header,
    /// Its data, in buffers that belong to the upper module now.
    pub data: Data<P>,
    /// The steered buffer that it came in.
    pub steered: Option<Handle>,
}
