//! Owners of the memory of datagrams (H8).
//!
//! ```text
//!            post, send                  packet
//!   driver ─────────────► WithNic<T> ─────────────► driver ──► upper module: Buffer
//!     ▲                     the NIC's                              │ dropped
//!     └────────────────────────────────────────────────────────────┘
//! ```
//! The owner is exactly one of NIC, driver and upper module, and the type says which:
//!
//! | type | owner | what its holder can do |
//! |---|---|---|
//! | [`WithNic`] | NIC | tell the NIC its address; take it back when the NIC has returned it |
//! | [`Landed`] | driver | join it to a message, post it again |
//! | [`Buffer`] | upper module | read and write it, send it, keep it, drop it |
//!
//! Each is a value that moves; none can be cloned. A [`Buffer`] that came from a port returns to
//! that port when it is dropped, and is posted again.

use alloc::sync::Arc;
use core::fmt;

use qnic_abi::SharedMemory;

use crate::platform::{DeviceMemory, Platform};

/// Names a port that is or was bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PortKey {
    pub(super) index: u8,
    /// Differs for each port that has this place.
    pub(super) generation: u32,
}

/// Takes memory back from upper modules. Atomic.
pub(super) trait TakeBack<M>: Send + Sync {
    /// Gives a port its memory, or frees it.
    fn take_back(&self, port: PortKey, memory: M);
}

/// Where a buffer returns to.
pub(super) struct Home<P: Platform> {
    pub(super) engine: Arc<dyn TakeBack<P::Memory>>,
    pub(super) port: PortKey,
}

/// Memory for data that an upper module owns: a page, or a part of one.
pub struct Buffer<P: Platform> {
    memory: P::Memory,
    home: Option<Home<P>>,
}

impl<P: Platform> Buffer<P> {
    /// Memory of the upper module's own: dropping the buffer drops this handle on it.
    pub fn new(memory: P::Memory) -> Self {
        Buffer { memory, home: None }
    }

    pub(super) fn of_port(memory: P::Memory, home: Home<P>) -> Self {
        let home = Some(home);
        Buffer { memory, home }
    }

    /// The memory.
    pub fn memory(&self) -> &P::Memory {
        &self.memory
    }

    /// Keeps the memory: the port that it came from has one buffer less from now on. Atomic.
    pub fn keep(mut self) -> P::Memory {
        self.home = None;
        self.memory.part(0, self.memory.size())
    }
}

impl<P: Platform> fmt::Debug for Buffer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.memory.size())
    }
}

impl<P: Platform> Drop for Buffer<P> {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let memory = self.memory.part(0, self.memory.size());
            home.engine.take_back(home.port, memory);
        }
    }
}

/// Memory that the NIC reads or writes: the driver does not touch it before the NIC has returned it.
pub(super) struct WithNic<T>(T);

impl<T> WithNic<T> {
    /// Gives it to the NIC: a command that names it follows.
    pub(super) fn lend(value: T) -> Self {
        WithNic(value)
    }

    /// The lent value, to be named in a command.
    pub(super) fn named(&self) -> &T {
        &self.0
    }

    /// The NIC has returned it, or accesses no memory any more.
    pub(super) fn returned(self) -> T {
        self.0
    }
}

/// Which steered buffer of a port, and which page of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: u16,
    pub(super) page: u8,
}

/// Memory that holds a packet, or is free; the driver owns it.
pub(super) enum Landed<P: Platform> {
    /// One of the port's own receive buffers.
    Own(P::Memory),
    /// A page of a steered buffer.
    Steered(Buffer<P>, Place),
}

impl<P: Platform> Landed<P> {
    pub(super) fn memory(&self) -> &P::Memory {
        match self {
            Landed::Own(memory) => memory,
            Landed::Steered(buffer, _) => buffer.memory(),
        }
    }
}
