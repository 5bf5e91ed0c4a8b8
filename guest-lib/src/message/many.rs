//! Receives that take many messages.

use std::time::Duration;

use qnic_abi::host_area::CompletionEntry;
use qnic_abi::Status;

use crate::core::messages::{End, Pending};
use crate::error::Result;
use crate::message::{Completion, Request, RequestId};

/// A receive that takes many messages, one behind the other in its memory.
///
/// It ends when its memory is full: the message that does not fit is truncated, and the last; or when less memory is
/// left than [`Receive::least`](super::Receive::least) says. It ends, too, when the program leaves 4,096 messages untaken. Messages that come then wait for
/// another receive.
#[derive(Debug)]
pub struct MultiReceive<'a> {
    request: Request<'a>,
    last_taken: bool,
}

impl<'a> MultiReceive<'a> {
    pub(super) fn new(request: Request<'a>) -> Self {
        MultiReceive {
            request,
            last_taken: false,
        }
    }

    /// Takes the next message if one has come; never blocks. The first `None` of
    /// [`MultiReceive::next`] says that no more come.
    ///
    /// # Errors
    /// As [`Request::test`]
    pub fn test(&mut self) -> Result<Option<Completion>> {
        self.request.core().progress_messages();
        Ok(self.look()?.flatten())
    }

    /// Waits for the next message, up to `timeout`. `None`: the receive has ended, and all of its
    /// messages are taken.
    ///
    /// # Errors
    /// [`crate::Error::TimedOut`]: it stays posted. [`crate::Error::Message`]: it failed. Those of
    /// [`Request::test`].
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Completion>> {
        let core = self.request.core();
        core.wait_for(core.deadline(timeout), || self.look())
    }

    /// What [`Ends`](super::Ends) calls it, which lists it for each of its messages.
    pub fn id(&self) -> RequestId {
        self.request.id()
    }

    /// Returns true if its last message was taken, or none has ended it: no more come.
    pub fn has_ended(&self) -> bool {
        self.last_taken
    }

    /// Takes the receive back. Messages that have come can be taken still.
    ///
    /// # Errors
    /// [`crate::Error::DeviceGone`]
    pub fn cancel(&mut self) -> Result<()> {
        self.request.cancel()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn core(&self) -> &'a crate::core::Core {
        self.request.core()
    }

    /// `None`: nothing yet. `Some(None)`: it has ended.
    pub(crate) fn look(&mut self) -> Result<Option<Option<Completion>>> {
        let Pending {
            core, key, seen, ..
        } = &mut self.request.pending;
        let end = match core.take_arrived(*key, seen)? {
            None => return Ok(None),
            Some(Ok(entry)) => return self.arrived(entry).map(|it| Some(Some(it))),
            Some(Err(end)) => end,
        };
        if std::mem::replace(&mut self.last_taken, true) {
            return Ok(Some(None));
        }
        match self.request.result(&end) {
            Ok(last) => Ok(Some(Some(last))),
            Err(error) if error.status() == Some(Status::Cancelled) => Ok(Some(None)),
            Err(error) => Err(error),
        }
    }

    /// A message that leaves the receive posted. One that failed, of a sender that is gone for
    /// example, has its place in memory, and no bytes.
    fn arrived(&self, entry: CompletionEntry) -> Result<Completion> {
        self.request.result(&End::Completed(entry))
    }
}
