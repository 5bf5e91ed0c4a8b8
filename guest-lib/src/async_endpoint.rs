//! Waiting in async tasks, on tokio's reactor (feature `tokio`; N17).

use std::future::{poll_fn, Future};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use qnic_abi::message::ProbeFlags;
use qnic_abi::window::Changes;
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::sync::Notify;

use crate::channel::{Message, Receiver};
use crate::core::messages::RoomWait;
use crate::core::wait::Wakes;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::group::Call;
use crate::message::{Claim, Claimed, Completion, Envelope, MultiReceive, Pattern, Request};
use crate::notification::{NotificationId, Poller, Signal};

/// The waits of an endpoint for async tasks. All are cancel safe: a future that is dropped
/// before it is ready takes nothing. `tokio::time::timeout` limits them.
///
/// Any number of tasks share one `AsyncEndpoint`. It is the endpoint's [`Poller`].
#[derive(Debug)]
pub struct AsyncEndpoint {
    endpoint: Endpoint,
    poller: AsyncFd<Poller>,
    /// A task has taken an event of the poller: all look again.
    changed: Notify,
}

impl AsyncEndpoint {
    /// Registers the endpoint's poller. Must be called within a tokio runtime whose IO is
    /// enabled.
    ///
    /// # Errors
    /// Those of [`Endpoint::poller`]; [`Error::System`] when the reactor refuses.
    #[allow(unsafe_code)]
    pub fn new(endpoint: &Endpoint) -> Result<Self> {
        let poller = endpoint.poller()?;
        // SAFETY: the descriptor belongs to the poller and is always the same. It stays
        // open while the poller lives, which the `AsyncFd` then owns.
        let poller = unsafe { AsyncFd::register_with_interest(poller, Interest::READABLE) };
        Ok(AsyncEndpoint {
            endpoint: endpoint.share(),
            poller: poller.map_err(|error| Error::system("register the poller", error))?,
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
        self.until(|| core.ring().next_queued(core)).await
    }

    /// Takes the next message of a channel of this endpoint. It does not notice a sender
    /// that dies silently ([`Receiver::check_peer`] does).
    ///
    /// # Errors
    /// Those of [`Receiver::try_recv`]; [`Error::DeviceGone`], [`Error::System`].
    pub async fn recv<'r>(&self, receiver: &'r mut Receiver) -> Result<Message<'r>> {
        let length = self.until(|| receiver.look()).await?;
        Ok(receiver.message(length))
    }

    /// Waits until a request has ended ([`Request::wait`]).
    ///
    /// # Errors
    /// Those of [`Request::test`]; [`Error::ForeignRequest`], [`Error::System`].
    pub async fn completion(&self, request: &mut Request<'_>) -> Result<Completion> {
        self.check_own(request.core())?;
        let end = self.until_any(|| request.look()).await?;
        request.result(&end)
    }

    /// Waits for the next message of a receive that takes many ([`MultiReceive::next`]).
    ///
    /// # Errors
    /// As [`AsyncEndpoint::completion`]
    pub async fn next_message(&self, many: &mut MultiReceive<'_>) -> Result<Option<Completion>> {
        self.check_own(many.core())?;
        self.until_any(|| many.look()).await
    }

    /// Waits until an operation of a group has ended ([`Call::wait`]).
    ///
    /// # Errors
    /// Those of [`Call::test`]; [`Error::ForeignRequest`], [`Error::System`].
    pub async fn call(&self, call: &mut Call<'_>) -> Result<()> {
        self.check_own(call.core())?;
        let end = self.until_any(|| call.look()).await?;
        call.result(&end).map(drop)
    }

    /// Waits until a message has arrived that the pattern takes, and says what it is
    /// ([`crate::message::Probe::wait`]). Waits in the call itself only while the command queue is full.
    ///
    /// # Errors
    /// Those of [`crate::message::Probe::wait`] but TimedOut; [`Error::System`].
    pub async fn probe(&self, pattern: &Pattern) -> Result<Envelope> {
        let post = || match self
            .endpoint
            .probe(pattern)
            .post(ProbeFlags::WAIT, RoomWait::None)
        {
            Err(Error::WouldBlock) => Ok(None),
            request => request.map(Some),
        };
        let mut request = self.until_any(post).await?;
        let end = self.until_any(|| request.look()).await?;
        request.result(&end).map(Envelope::from)
    }

    /// Waits for the message of a claim ([`Claim::wait`]).
    ///
    /// # Errors
    /// As [`AsyncEndpoint::completion`]
    pub async fn claimed<'a>(&self, claim: &mut Claim<'a>) -> Result<Claimed<'a>> {
        self.check_own(claim.core())?;
        self.until_any(|| claim.look()).await
    }

    fn check_own(&self, core: &Core) -> Result<()> {
        match std::ptr::eq(core, Arc::as_ptr(self.endpoint.core())) {
            true => Ok(()),
            false => Err(Error::ForeignRequest),
        }
    }

    /// Waits until `ready` returns something that a notification brings.
    async fn until<T>(&self, ready: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        self.until_woken(ready, || ()).await
    }

    /// Waits until `ready` returns something that any update by the NIC brings.
    async fn until_any<T>(&self, mut ready: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let core = self.endpoint.core();
        let ready = || {
            core.progress_messages();
            ready()
        };
        let request = || {
            core.request_wake(Wakes::For(Changes::ANYTHING));
        };
        self.until_woken(ready, request).await
    }

    /// `request` asks for the wake events that `ready` needs beside those of notifications.
    async fn until_woken<T>(
        &self,
        mut ready: impl FnMut() -> Result<Option<T>>,
        request: impl Fn(),
    ) -> Result<T> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on no change is missed, whichever task takes its event.
            changed.as_mut().enable();
            if let Some(found) = ready()? {
                return Ok(found);
            }
            if self.poller.get_ref().prepare()? {
                self.changed.notify_waiters();
            }
            request();
            if let Some(found) = ready()? {
                return Ok(found);
            }
            let mut readable = pin!(self.poller.readable());
            let event = poll_fn(|context| match changed.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => readable.as_mut().poll(context).map(Some),
            });
            if let Some(readable) = event.await {
                let readable = readable.map_err(|error| Error::system("poll", error));
                let mut readable = readable?;
                readable.clear_ready();
                self.changed.notify_waiters();
            }
        }
    }
}
