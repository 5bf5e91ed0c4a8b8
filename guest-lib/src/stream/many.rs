//! A thread that waits for many streams at once: it tries all of them under one lock, again
//! whenever something has come.

use std::time::Duration;

use qnic_abi::NodeId;

use super::listener::Listener;
use super::machine::{Awaited, State};
use super::stream::Stream;
use super::Streams;
use crate::error::Result;

/// The streams of a port while nothing else changes them. A [`Stream`] must not be dropped
/// meanwhile: that takes the lock, too.
#[derive(Debug)]
pub(crate) struct Locked<'a>(&'a mut State);

impl Streams {
    /// Tries something until it returns a value.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut), [`Error::DeviceGone`](crate::Error::DeviceGone),
    /// those of `attempt`
    pub(crate) fn wait_for<T>(
        &self,
        timeout: Duration,
        mut attempt: impl FnMut(&mut Locked<'_>) -> Result<Option<T>>,
    ) -> Result<T> {
        let machine = &self.0.machine;
        machine.wait(Awaited::Anything, Some(timeout), |state| {
            attempt(&mut Locked(state))
        })
    }

    /// Begins to connect; [`Locked::is_open`] says what has become of it.
    pub(crate) fn begin(&self, node: NodeId, port: u16) -> Result<Stream> {
        Stream::begin(self.0.clone(), node, port)
    }
}

impl Locked<'_> {
    /// Takes what has come; 0: the peer has ended its direction, none: nothing is there.
    pub(crate) fn read(&mut self, stream: &Stream, bytes: &mut [u8]) -> Result<Option<usize>> {
        stream.attempt_read(self.0, bytes)
    }

    /// Writes what there is room for; none: there is no room.
    pub(crate) fn write(&mut self, stream: &Stream, bytes: &[u8]) -> Result<Option<usize>> {
        stream.attempt_write(self.0, bytes)
    }

    /// Returns true if the peer's library has all that was written.
    pub(crate) fn is_delivered(&mut self, stream: &Stream) -> Result<bool> {
        Ok(stream.attempt_flush(self.0)?.is_some())
    }

    /// Returns true once the peer has accepted.
    pub(crate) fn is_open(&mut self, stream: &Stream) -> Result<bool> {
        Ok(stream.is_open(self.0)?.is_some())
    }

    /// A stream that a peer has opened.
    pub(crate) fn accept(&mut self, listener: &Listener) -> Option<Stream> {
        listener.take(self.0)
    }
}
