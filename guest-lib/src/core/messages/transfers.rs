//! Transfers and atomic operations that end with a completion of their own (N12).
//!
//! ```text
//!   command ──┬─► tracker: room, lane, the failure's name ──► counters: fences, room
//!             └─► request: its key is the handle           ──► completion queue: this one's end
//! ```
//! Both tell of a failure. The request takes it when the program looks; one that is dropped before
//! leaves it to the next fence, as a ticket does (N11).

use std::time::Instant;

use qnic_abi::command::CommandBody;
use qnic_abi::rdma::FenceCommand;
use qnic_abi::Status;
use slotmap::Key;

use super::counted::Counted;
use super::guard::Guard;
use super::{Pending, RequestKey, Requesting};
use crate::core::lanes::Destination;
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
            let mut guard = Guard::progress(self)?;
            // The key stands before the command does: a completion needs the lock.
            let key = guard.state.insert(Counted::Nowhere);
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

    /// Waits until the NIC reads no source any more of writes that were issued before, to one
    /// destination or to all.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and those of the queue.
    pub(crate) fn fence_sources(
        &self,
        destination: Option<Destination>,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let Some(under_way) = self.polled_tracker().writes_under_way(destination) else {
            return self.wait_writes(destination, deadline);
        };
        let mut fences = Vec::with_capacity(under_way.len());
        for (lane, (node, port)) in under_way {
            let mut command = FenceCommand::command();
            command.header.lane = lane;
            command.header.remote_node = node.0.into();
            command.header.remote_port = port.0.into();
            fences.push(SourceFence(Pending::new(self, self.post_command(command)?)));
        }
        for SourceFence(pending) in &mut fences {
            let (_, status) = pending.wait(deadline)?.status("a fence of sources")?;
            if status != Status::Ok {
                // There are too many: what was delivered needs no source either.
                return self.wait_writes(destination, deadline);
            }
        }
        Ok(())
    }
}

/// A fence that is forgotten if it is not waited for to its end.
struct SourceFence<'a>(Pending<'a>);

impl Drop for SourceFence<'_> {
    fn drop(&mut self) {
        if !self.0.has_ended() {
            self.0.core.detach_request(self.0.key);
        }
    }
}
