//! Streams in async tasks (feature `tokio`): the service thread wakes them. They need no reactor.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use qnic_abi::NodeId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::listener::Listener;
use super::machine::State;
use super::stream::{to_io, Stream};
use super::Streams;
use crate::error::Result;

/// A [`Stream`] for async tasks. One task may read and another write
/// (`tokio::io::split`); dropping a future that is not ready loses nothing.
#[derive(Debug)]
pub struct AsyncStream(Stream);

impl From<Stream> for AsyncStream {
    fn from(stream: Stream) -> Self {
        AsyncStream(stream)
    }
}

impl AsyncStream {
    /// Connects ([`Streams::connect`]).
    ///
    /// # Errors
    /// Those of [`Streams::connect`].
    pub async fn connect(streams: &Streams, node: NodeId, port: u16) -> Result<Self> {
        let stream = AsyncStream(Stream::begin(streams.0.clone(), node, port)?);
        poll_fn(|context| stream.poll(context, |state| stream.0.is_open(state))).await?;
        Ok(stream)
    }

    /// The stream itself.
    pub fn get_ref(&self) -> &Stream {
        &self.0
    }

    fn poll<T>(
        &self,
        context: &mut Context<'_>,
        mut attempt: impl FnMut(&mut State) -> Result<Option<T>>,
    ) -> Poll<Result<T>> {
        let machine = &self.0.handle.machine;
        let mut state = machine.lock();
        if let Some(done) = attempt(&mut state)? {
            machine.kick_off(&mut state)?;
            return Poll::Ready(Ok(done));
        }
        // What has come since may be what it waits for.
        machine.kick_off(&mut state)?;
        if let Some(done) = attempt(&mut state)? {
            machine.kick_off(&mut state)?;
            return Poll::Ready(Ok(done));
        }
        let wakers = state.wakers.entry(self.0.id).or_default();
        if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = &*self;
        let bytes = buffer.initialize_unfilled();
        let read = stream.poll(context, |state| stream.0.attempt_read(state, bytes));
        read.map(|count| {
            buffer.advance(count.map_err(to_io)?);
            Ok(())
        })
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll(context, |state| self.0.attempt_write(state, bytes));
        written.map(|count| count.map_err(to_io))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.poll(context, |state| self.0.attempt_flush(state));
        flushed.map(|done| done.map_err(to_io))
    }

    /// Ends this side's direction, and waits until the peer has all.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.finish().map_err(to_io)?;
        self.poll_flush(context)
    }
}

/// A [`Listener`] for async tasks.
#[derive(Debug)]
pub struct AsyncListener(Listener);

impl From<Listener> for AsyncListener {
    fn from(listener: Listener) -> Self {
        AsyncListener(listener)
    }
}

impl AsyncListener {
    /// Waits for a stream.
    ///
    /// # Errors
    /// [`crate::Error::DeviceGone`]
    pub async fn accept(&self) -> Result<AsyncStream> {
        let machine = &self.0.handle.machine;
        poll_fn(|context| {
            let mut state = machine.lock();
            machine.kick_off(&mut state)?;
            if let Some(stream) = self.0.take(&mut state) {
                return Poll::Ready(Ok(AsyncStream(stream)));
            }
            let wakers = &mut state.incoming;
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
