//! Frames that this process owns, as values: the owner of one may use its memory.

use std::sync::Arc;

use qnic_abi::pool::Pool;
use qnic_abi::NodeId;
use qnic_shared::pool::Packet;

use super::shared::{Place, Shared};
use crate::error::{Error, Result};

/// A frame that can be filled and sent, also several times. Dropping it makes it free, as soon as
/// the driver reads it no more.
#[derive(Debug)]
pub struct OutputFrame {
    shared: Arc<Shared>,
    index: usize,
}

impl OutputFrame {
    /// One that is free, if there is any.
    pub(crate) fn take(shared: &Arc<Shared>) -> Result<Option<Self>> {
        let index = shared.take_output()?;
        let shared = shared.clone();
        Ok(index.map(|index| OutputFrame { shared, index }))
    }

    /// Returns true while the driver still sends it: it can be neither written nor sent.
    pub fn is_in_use(&self) -> bool {
        let mut state = self.shared.state();
        if let Place::Here(_) = state.places[self.index] {
            return false;
        }
        // What goes wrong here goes wrong again at the next call that can say so.
        let _ = self.shared.reap(&mut state);
        !matches!(state.places[self.index], Place::Here(_))
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the frame, [`Error::WouldBlock`] while it is in use.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let frame = self.shared.shape.frame_bytes();
        Error::check_range("frame", frame as u64, offset as u64, bytes.len() as u64)?;
        if self.is_in_use() {
            return Err(Error::WouldBlock);
        }
        let start = self.shared.offset(Pool::Output, self.index);
        self.shared.range().write_bytes(start + offset, bytes);
        Ok(())
    }

    /// Has the first `length` bytes sent to a datagram port. The driver may have to be told
    /// ([`super::Pools::flush`]).
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the frame, [`Error::WouldBlock`] while it is in use.
    pub fn send(&mut self, node: NodeId, port: u16, length: usize) -> Result<()> {
        let frame = self.shared.shape.frame_bytes();
        Error::check_range("frame", frame as u64, 0, length as u64)?;
        if self.is_in_use() {
            return Err(Error::WouldBlock);
        }
        let mut state = self.shared.state();
        let place = std::mem::replace(&mut state.places[self.index], Place::Lent);
        let Place::Here(frame) = place else {
            return Err(Error::WouldBlock);
        };
        let packet = Packet {
            frame,
            length,
            node,
            port,
        };
        self.shared.send(&mut state, packet)
    }
}

impl Drop for OutputFrame {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let place = std::mem::replace(&mut state.places[self.index], Place::Away);
        if let Place::Here(frame) = place {
            state.free.push(frame);
        }
    }
}

/// A packet that has come. Dropping it gives the frame back to the driver.
#[derive(Debug)]
pub struct InputFrame {
    shared: Arc<Shared>,
    /// None only within `drop`.
    frame: Option<qnic_shared::pool::InputFrame>,
    start: usize,
    length: usize,
    node: NodeId,
    port: u16,
}

impl InputFrame {
    /// That with the packet that came first, if one has come.
    pub(crate) fn take(shared: &Arc<Shared>) -> Result<Option<Self>> {
        let packet = shared.take_packet()?;
        Ok(packet.map(|packet| InputFrame {
            start: shared.offset(Pool::Input, packet.frame.index()),
            shared: shared.clone(),
            frame: Some(packet.frame),
            length: packet.length,
            node: packet.node,
            port: packet.port,
        }))
    }

    /// Bytes that have come.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if no bytes have come: it says that neither a process nor a kernel module of
    /// [`InputFrame::node`] has bound [`InputFrame::port`], to which this process has sent something.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The node that has sent it. It cannot be faked.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The datagram port that has sent it. It cannot be faked.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond those that have come.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let (length, count) = (self.length as u64, bytes.len() as u64);
        Error::check_range("packet", length, offset as u64, count)?;
        self.shared.range().read_bytes(self.start + offset, bytes);
        Ok(())
    }

    /// All bytes that have come.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        self.shared.range().read_bytes(self.start, &mut bytes);
        bytes
    }
}

impl Drop for InputFrame {
    fn drop(&mut self) {
        let Some(frame) = self.frame.take() else {
            return;
        };
        let range = self.shared.range();
        // The driver breaks the rules if the slot is not empty; then the frame is lost.
        let _ = self.shared.state().side.give_back(&range, frame);
        // A driver that starves is told at once. If it is gone, the next call says so.
        let _ = self.shared.flush();
    }
}
