//! Streams that peers open.

use std::sync::Arc;
use std::time::Duration;

use super::machine::{Awaited, State};
use super::service::Handle;
use super::stream::Stream;
use crate::error::{Error, Result};

/// Accepts streams that peers open. Dropping it refuses those that wait, and later ones.
#[derive(Debug)]
pub struct Listener {
    pub(super) handle: Arc<Handle>,
}

impl Listener {
    pub(super) fn new(handle: Arc<Handle>) -> Result<Self> {
        let mut state = handle.machine.lock();
        if state.has_listener {
            let source = std::io::ErrorKind::AlreadyExists;
            return Err(Error::system("listen for streams", source));
        }
        state.has_listener = true;
        state.endpoint.listen(true);
        drop(state);
        Ok(Listener { handle })
    }

    /// Waits for a stream.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::DeviceGone`]
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Stream> {
        let handle = &self.handle;
        let machine = &handle.machine;
        machine.wait(Awaited::Incoming, timeout, |state| Ok(self.take(state)))
    }

    /// A stream that waits to be accepted.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is none, [`Error::DeviceGone`]
    pub fn try_accept(&self) -> Result<Stream> {
        let machine = &self.handle.machine;
        let mut state = machine.lock();
        machine.kick_off(&mut state)?;
        self.take(&mut state).ok_or(Error::WouldBlock)
    }

    pub(super) fn take(&self, state: &mut State) -> Option<Stream> {
        let (id, peer) = state.endpoint.accept()?;
        let bytes = self.handle.machine.pools.route_bytes(peer.node);
        state.endpoint.limit_frame_bytes(id, bytes);
        Some(Stream::new(self.handle.clone(), id, peer))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let machine = &self.handle.machine;
        let mut state = machine.lock();
        state.has_listener = false;
        state.endpoint.listen(false);
        // If the device is gone, so are the peers.
        let _ = machine.kick_off(&mut state);
    }
}
