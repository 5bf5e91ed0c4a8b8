//! Waiting in async tasks, on tokio's reactor (feature `tokio`; N17).

use std::future::{poll_fn, Future};
use std::pin::pin;
use std::task::Poll;

use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::sync::Notify;

use crate::channel::{Message, Receiver};
use crate::core::lock;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::notification::poller::Poller;
use crate::notification::{NotificationId, Signal};

/// The waits of an endpoint for async tasks. All are cancel safe: nothing is taken
/// by a future that was dropped before it was ready; limit them with
/// `tokio::time::timeout`.
///
/// Any number of tasks share one. It is the endpoint's [`Poller`].
#[derive(Debug)]
pub struct AsyncEndpoint {
    endpoint: Endpoint,
    poller: AsyncFd<Poller>,
    /// Somebody has taken an event of the poller: all look again.
    changed: Notify,
}

impl AsyncEndpoint {
    /// Must be called within a tokio runtime whose IO is enabled.
    ///
    /// # Errors
    /// Those of [`Endpoint::poller`]; [`Error::System`] when the reactor refuses.
    #[allow(unsafe_code)]
    pub fn new(endpoint: &Endpoint) -> Result<Self> {
        let poller = endpoint.poller()?;
        // SAFETY: the descriptor is the poller's own: it stays open as long as the
        // poller lives, which the reactor then owns, and is always the same.
        let poller = unsafe { AsyncFd::register_with_interest(poller, Interest::READABLE) };
        Ok(AsyncEndpoint {
            endpoint: endpoint.share(),
            poller: poller.map_err(|error| Error::System {
                what: "enter the poller in the reactor".to_owned(),
                source: error.into(),
            })?,
            changed: Notify::new(),
        })
    }

    /// The endpoint itself.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Waits until a signal is pending, and returns how many are
    /// ([`crate::Notification::wait`]).
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::System`]
    pub async fn wait(&self, id: NotificationId) -> Result<u64> {
        let core = self.endpoint.core();
        self.until(|| Ok(Some(core.pending(id)).filter(|pending| *pending > 0)))
            .await
    }

    /// Waits for a signal and acknowledges it ([`crate::Notification::take`]).
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::System`]
    pub async fn take(&self, id: NotificationId) -> Result<()> {
        let core = self.endpoint.core();
        self.until(|| Ok(core.acknowledge(id).then_some(()))).await
    }

    /// Takes the next notification from the queue
    /// ([`crate::NotificationQueue::wait`]).
    ///
    /// # Errors
    /// [`Error::NotificationsLost`], [`Error::DeviceGone`], [`Error::System`]
    pub async fn next(&self) -> Result<Signal> {
        let core = self.endpoint.core();
        self.until(|| lock(&core.arrivals).next_queued(core)).await
    }

    /// Takes the next message of a channel of this endpoint. A sender that dies
    /// silently is not found out ([`Receiver::check_peer`]).
    ///
    /// # Errors
    /// Those of [`Receiver::try_recv`]; [`Error::DeviceGone`], [`Error::System`].
    pub async fn recv<'r>(&self, receiver: &'r mut Receiver) -> Result<Message<'r>> {
        let length = self.until(|| receiver.look()).await?;
        Ok(receiver.message(length))
    }

    /// Waits until `ready` has something that a notification brings.
    async fn until<T>(&self, mut ready: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on no change is missed, whoever takes its event.
            changed.as_mut().enable();
            if let Some(found) = ready()? {
                return Ok(found);
            }
            if self.poller.get_ref().prepare()? {
                self.changed.notify_waiters();
            }
            if let Some(found) = ready()? {
                return Ok(found);
            }
            let mut readable = pin!(self.poller.readable());
            let event = poll_fn(|context| match changed.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => readable.as_mut().poll(context).map(Some),
            });
            if let Some(readable) = event.await {
                let mut readable = readable.map_err(|source| Error::System {
                    what: "wait for the poller".to_owned(),
                    source,
                })?;
                readable.clear_ready();
                self.changed.notify_waiters();
            }
        }
    }
}
