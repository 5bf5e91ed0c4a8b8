//! A list of the requests that have ended, for programs with more of them than they would test one by one.

use std::collections::VecDeque;

use super::{RequestKey, Seen};
use crate::core::{lock, Core};
use crate::error::Result;

impl Core {
    /// Begins to list the requests that end.
    pub(crate) fn list_ends(&self) {
        lock(&self.messages.state).ended = Some(VecDeque::new());
    }

    /// Lists them no more.
    pub(crate) fn list_no_ends(&self) {
        lock(&self.messages.state).ended = None;
    }

    /// Takes the request off the list that has ended first. Takes no lock if nothing has changed since it was
    /// empty.
    ///
    /// # Errors
    /// [`Error::DeviceGone`](crate::Error::DeviceGone), [`Error::QueueFailed`](crate::Error::QueueFailed)
    pub(crate) fn next_ended(&self, seen: &mut Seen) -> Result<Option<RequestKey>> {
        self.look(seen, |state| state.ended.as_mut()?.pop_front())
    }
}
