//! Transfers and atomic operations that end with a completion of their own (N12).
//!
//! ```text
//!   command ──┬─► tracker: room, lane, the failure's name ──► counters: fences, room
//!             └─► request: its key is the handle           ──► completion queue: this one's end
//! ```
//! Both tell of a failure. The request takes it when the program looks; one that is dropped before
//! leaves it to the next fence, as a ticket does (N11).

use std::time::Instant;

use slotmap::Key;

use super::{RequestKey, Requesting};
use crate::core::tracker::{Issued, Summary};
use crate::core::Core;
use crate::error::{Error, Result};

impl Core {
    /// Issues a command with a completion of its own; waits while there is no room for it.
    ///
    /// # Errors
    /// As [`Core::issue`]
    pub(crate) fn issue_request(
        &self,
        command: impl Requesting,
        payload: &[u8],
        summary: Summary,
        deadline: Option<Instant>,
    ) -> Result<(RequestKey, Issued)> {
        let issued = self.wait_for(deadline, || {
            let mut guard = self.messages.progress(self)?;
            // The key stands before the command does: a completion needs the lock.
            let key = guard.state.insert(None);
            let descriptor = command.descriptor_of(key.data().as_ffi());
            let issued = self.try_issue((&descriptor, payload), summary);
            if !matches!(issued, Ok(Some(_))) {
                guard.state.requests.remove(key);
            }
            match issued? {
                Some(issued) => Ok(Some((key, issued))),
                None => self.check_running().map(|()| None),
            }
        });
        issued.map_err(|error| match error {
            Error::TimedOut => Error::QueueFull,
            other => other,
        })
    }
}
