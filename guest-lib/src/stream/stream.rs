//! A stream as programs hold it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::stream_protocol::{Address, ConnectionId, Failure};
use qnic_abi::NodeId;

use super::machine::{Awaited, State};
use super::service::Handle;
use super::translate;
use crate::error::{Error, Result};
use crate::pool::OutputFrame;

/// A stream of bytes in both directions.
///
/// Dropping it ends this side's direction: what was written is still sent, while the process lives. The
/// last of the streams, listeners and [`Streams`](super::Streams) of a port that is dropped waits for that, for
/// as long as a peer may be silent. [`Stream::close`] says whether the peer has it. If something has
/// come that was not read, the peer's stream is reset.
///
/// `Read` and `Write` are also implemented for `&Stream`, so that one thread reads and another
/// writes. `flush` waits until the peer's library has all that was written.
#[derive(Debug)]
pub struct Stream {
    pub(super) handle: Arc<Handle>,
    pub(super) id: ConnectionId,
    peer: Address,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
}

impl Stream {
    pub(super) fn new(handle: Arc<Handle>, id: ConnectionId, peer: Address) -> Self {
        Stream {
            handle,
            id,
            peer,
            read_timeout: None,
            write_timeout: None,
        }
    }

    pub(super) fn begin(handle: Arc<Handle>, node: NodeId, port: u16) -> Result<Self> {
        let machine = &handle.machine;
        let peer = Address { node, port };
        let bytes = machine.pools.route_bytes(node);
        let mut state = machine.lock();
        let opened = state.endpoint.connect(machine.now(), peer, bytes);
        let id = opened.map_err(|error| translate(error).unwrap_or(Error::WouldBlock))?;
        machine.kick_off(&mut state)?;
        drop(state);
        Ok(Stream::new(handle, id, peer))
    }

    pub(super) fn connect(
        handle: Arc<Handle>,
        node: NodeId,
        port: u16,
        timeout: Option<Duration>,
    ) -> Result<Self> {
        let stream = Self::begin(handle, node, port)?;
        let machine = stream.handle.machine.clone();
        machine.wait(Awaited::Anything, timeout, |state| stream.is_open(state))?;
        Ok(stream)
    }

    /// Says whether the peer has accepted: None while it has not.
    pub(super) fn is_open(&self, state: &mut State) -> Result<Option<()>> {
        match state.endpoint.is_open(self.id) {
            Ok(true) => {
                // Now that frames have gone there and back, the route is known.
                let bytes = self.handle.machine.pools.route_bytes(self.peer.node);
                state.endpoint.limit_frame_bytes(self.id, bytes);
                Ok(Some(()))
            }
            Ok(false) => Ok(None),
            Err(error) => Err(translate(error).unwrap_or(Error::WouldBlock)),
        }
    }

    /// The node at the other end.
    pub fn peer_node(&self) -> NodeId {
        self.peer.node
    }

    /// The datagram port at the other end.
    pub fn peer_port(&self) -> u16 {
        self.peer.port
    }

    /// Longest time that a read waits; without one there is no limit.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read_timeout = timeout;
    }

    /// Longest time that a write or a flush waits; without one there is no limit.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.write_timeout = timeout;
    }

    pub(super) fn attempt_read(
        &self,
        state: &mut State,
        bytes: &mut [u8],
    ) -> Result<Option<usize>> {
        later(state.endpoint.read(self.id, bytes))
    }

    pub(super) fn attempt_write(&self, state: &mut State, bytes: &[u8]) -> Result<Option<usize>> {
        let pools = &self.handle.machine.pools;
        let mut failure = None;
        let mut needs_frame = false;
        let allocate = || match OutputFrame::take(pools) {
            Ok(frame) => {
                needs_frame |= frame.is_none();
                frame.map(super::buffers::Sending)
            }
            Err(error) => {
                failure = Some(error);
                None
            }
        };
        let written = state.endpoint.write(self.id, bytes, allocate);
        state.needs_frame |= needs_frame;
        match failure {
            Some(error) => Err(error),
            None => later(written),
        }
    }

    pub(super) fn attempt_flush(&self, state: &mut State) -> Result<Option<()>> {
        let delivered = later(state.endpoint.is_delivered(self.id))?;
        Ok(delivered.filter(|delivered| *delivered).map(|_| ()))
    }

    /// Reads what has come, at most as much as fits; 0: the peer has ended its direction.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Stream`], [`Error::DeviceGone`]
    pub fn receive(&self, bytes: &mut [u8], timeout: Option<Duration>) -> Result<usize> {
        let machine = &self.handle.machine;
        machine.wait(Awaited::Anything, timeout, |state| {
            self.attempt_read(state, bytes)
        })
    }

    /// Writes as much as there is room for, at least one byte; waits for room.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Stream`], [`Error::StreamEnded`], [`Error::DeviceGone`]
    pub fn send(&self, bytes: &[u8], timeout: Option<Duration>) -> Result<usize> {
        let machine = &self.handle.machine;
        machine.wait(Awaited::Anything, timeout, |state| {
            self.attempt_write(state, bytes)
        })
    }

    /// Waits until the peer's library has all that was written.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Stream`], [`Error::DeviceGone`]
    pub fn wait_delivered(&self, timeout: Option<Duration>) -> Result<()> {
        let machine = &self.handle.machine;
        machine.wait(Awaited::Anything, timeout, |state| {
            self.attempt_flush(state)
        })
    }

    /// Reads without waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if nothing has come, [`Error::Stream`], [`Error::DeviceGone`]
    pub fn try_receive(&self, bytes: &mut [u8]) -> Result<usize> {
        let machine = &self.handle.machine;
        let mut state = machine.lock();
        machine.kick_off(&mut state)?;
        let read = self.attempt_read(&mut state, bytes)?;
        machine.kick_off(&mut state)?;
        read.ok_or(Error::WouldBlock)
    }

    /// Writes without waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room, [`Error::Stream`], [`Error::StreamEnded`],
    /// [`Error::DeviceGone`]
    pub fn try_send(&self, bytes: &[u8]) -> Result<usize> {
        let machine = &self.handle.machine;
        let mut state = machine.lock();
        machine.kick_off(&mut state)?;
        let written = self.attempt_write(&mut state, bytes)?;
        machine.kick_off(&mut state)?;
        written.ok_or(Error::WouldBlock)
    }

    /// Ends this side's direction: the peer reads what was written, and then the end.
    ///
    /// # Errors
    /// [`Error::Stream`], [`Error::DeviceGone`]
    pub fn finish(&self) -> Result<()> {
        let machine = &self.handle.machine;
        let mut state = machine.lock();
        let finished = state.endpoint.finish(self.id);
        finished.map_err(|error| translate(error).unwrap_or(Error::WouldBlock))?;
        machine.kick_off(&mut state)
    }

    /// Ends this side's direction, and waits until the peer's library has all that was written. After
    /// an error some of it may be lost, though the peer may have it.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Stream`], [`Error::DeviceGone`]
    pub fn close(self, timeout: Option<Duration>) -> Result<()> {
        self.finish()?;
        self.wait_delivered(timeout)
    }

    /// Gives the stream up: the peer is told, and what is under way is dropped.
    pub fn abort(self) {
        self.handle.machine.lock().endpoint.abort(self.id);
        // The Reset goes out when the stream is dropped, right now.
    }
}

/// What can be done later is no error.
fn later<T>(outcome: std::result::Result<T, crate::stream_protocol::Error>) -> Result<Option<T>> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(error) => translate(error).map_or(Ok(None), Err),
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let machine = &self.handle.machine;
        let mut state = machine.lock();
        state.endpoint.close(machine.now(), self.id);
        state.wakers.remove(&self.id);
        // If the device is gone, so is the stream.
        let _ = machine.kick_off(&mut state);
    }
}

impl io::Read for &Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.receive(bytes, self.read_timeout).map_err(to_io)
    }
}

impl io::Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes, self.write_timeout).map_err(to_io)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wait_delivered(self.write_timeout).map_err(to_io)
    }
}

impl io::Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&*self).read(bytes)
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

/// The kind of an error for `std::io`; it carries the error itself.
pub(super) fn to_io(error: Error) -> io::Error {
    let kind = match &error {
        Error::Stream(Failure::Refused | Failure::Full) => io::ErrorKind::ConnectionRefused,
        Error::Stream(_) | Error::DeviceGone => io::ErrorKind::ConnectionReset,
        Error::StreamEnded => io::ErrorKind::BrokenPipe,
        Error::TimedOut => io::ErrorKind::TimedOut,
        Error::WouldBlock => io::ErrorKind::WouldBlock,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
