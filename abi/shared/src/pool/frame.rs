//! Frames and packets: the holder of the value owns the frame.

use core::marker::PhantomData;

use qnic_abi::NodeId;

/// Marks frames that the NIC fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {}

/// Marks frames that the process fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {}

/// A frame that this side owns. A dropped one stays owned, and unused, until the pools are
/// closed.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is dropped is lost to the pool"]
pub struct Frame<K> {
    pub(crate) index: u16,
    kind: PhantomData<K>,
}

/// A frame of the input pool.
pub type InputFrame = Frame<Input>;

/// A frame of the output pool.
pub type OutputFrame = Frame<Output>;

impl<K> Frame<K> {
    pub(crate) fn new(index: u16) -> Self {
        Frame {
            index,
            kind: PhantomData,
        }
    }

    /// The number of the frame in its pool, for [`qnic_abi::pool::Shape::frame`].
    pub fn index(&self) -> usize {
        self.index.into()
    }
}

/// A frame with contents that the other side has handed over.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet<K> {
    /// The frame.
    pub frame: Frame<K>,
    /// Bytes of it in use, up to its size.
    pub length: usize,
    /// The node that it goes to or comes from.
    pub node: NodeId,
    /// The datagram port there.
    pub port: u16,
}

/// The other side filled a slot with nonsense: no frame, a frame that it does not own, or more bytes
/// than a frame has. The slot is empty again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The next slot is not empty: the other side has filled it, or does not zero the slots that it
/// takes. This side keeps the packet.
#[derive(Debug, PartialEq, Eq)]
pub struct Occupied<T>(pub T);

/// The contents of the next slot, if it is not empty.
pub type Taken<T> = Option<Result<T, Malformed>>;
