//! Receiving datagrams in async tasks, on tokio's reactor.

use std::os::fd::OwnedFd;

use qnic_abi::NodeId;
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

use super::{Datagram, Socket};
use crate::error::{Error, Result};

/// A [`Socket`] for async tasks.
#[derive(Debug)]
pub struct AsyncSocket {
    socket: Socket,
    event: AsyncFd<OwnedFd>,
}

impl AsyncSocket {
    /// Must be called within a tokio runtime whose IO is enabled.
    ///
    /// # Errors
    /// [`Error::System`] when the reactor refuses, [`Error::DeviceGone`]
    #[allow(unsafe_code)]
    pub fn new(socket: Socket) -> Result<Self> {
        let system = |error| Error::system("register the socket", error);
        let event = socket.pools.shared().poll_descriptor()?;
        let event = event.try_clone_to_owned().map_err(system)?;
        // SAFETY: an `OwnedFd` is always the same descriptor. It stays open while it lives, and
        // the `AsyncFd` owns it.
        let event = unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) };
        Ok(AsyncSocket {
            event: event.map_err(|error| system(error.into()))?,
            socket,
        })
    }

    /// The socket itself.
    pub fn get_ref(&self) -> &Socket {
        &self.socket
    }

    /// Waits for a message. A future that is dropped takes nothing. One task receives at a time.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::System`]
    pub async fn receive(&self) -> Result<Datagram> {
        loop {
            match self.socket.try_receive() {
                Err(Error::WouldBlock) => {}
                other => return other,
            }
            if self.socket.poll_input()?.is_none() {
                continue;
            }
            let ready = self.event.readable().await;
            let mut ready = ready.map_err(|error| Error::system("poll the socket", error))?;
            // What comes from here on makes it ready again.
            ready.clear_ready();
        }
    }

    /// Sends a message if frames are there.
    ///
    /// # Errors
    /// Those of [`Socket::try_send_to`].
    pub fn try_send_to(&self, bytes: &[u8], node: NodeId, port: u16) -> Result<()> {
        self.socket.try_send_to(bytes, node, port)
    }
}
