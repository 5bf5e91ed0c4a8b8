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

    /// Takes the list of the requests that have ended, in that order, for an empty one. Takes no lock if nothing has
    /// changed since it was empty.
    ///
    /// # Errors
    /// [`Error::DeviceGone`](crate::Error::DeviceGone), [`Error::QueueFailed`](crate::Error::QueueFailed)
    pub(crate) fn take_ended(
        &self,
        seen: &mut Seen,
        listed: &mut VecDeque<RequestKey>,
    ) -> Result<()> {
        let taken = self.look(seen, |state| {
            let ended = state.ended.as_mut().filter(|ended| !ended.is_empty())?;
            std::mem::swap(ended, listed);
            Some(())
        });
        taken.map(drop)
    }
}
