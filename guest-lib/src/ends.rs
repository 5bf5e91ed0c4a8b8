//! Which requests have ended: a program with thousands of them need not test each (Q3).
//!
//! ```text
//!   post ─► Request ─ id ─► the program's table        Ends ─ take ─► RequestId ─► the table ─► Request::test
//!                                                      News ─ changes: nothing new? none need take the list
//! ```

use std::collections::VecDeque;

use crate::core::messages::{RequestKey, Seen};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::Result;

/// Names a request of an endpoint. None is given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) RequestKey);

impl RequestId {
    /// Its place: of all requests that were posted and not dropped, no other one of the endpoint has it. Places are
    /// used again, and below the most requests that there were at a time.
    #[inline]
    pub fn place(self) -> usize {
        use slotmap::Key;
        // The lower half is the index of the key.
        self.0.data().as_ffi() as u32 as usize
    }
}

/// The requests of an endpoint that have ended, in that order.
///
/// It lists requests that end after it was made, each once, and a
/// [`MultiReceive`](crate::message::MultiReceive) for each of its messages. One that was dropped since may be among
/// them.
#[derive(Debug)]
pub struct Ends<'a> {
    core: &'a Core,
    seen: Seen,
    /// Those that were listed and not taken.
    listed: VecDeque<RequestKey>,
}

impl<'a> Ends<'a> {
    /// Those of an endpoint that end from now on, of whatever kind. One list at a time: a new one takes the place of
    /// the one before.
    pub fn of(endpoint: &'a Endpoint) -> Self {
        let core = endpoint.core();
        core.list_ends();
        Ends {
            core,
            seen: Seen::default(),
            listed: VecDeque::new(),
        }
    }

    /// Takes the next one that has ended; never blocks. If none has ended since it last returned `None`, that costs
    /// a few loads, however many are under way.
    ///
    /// # Errors
    /// [`Error::DeviceGone`](crate::Error::DeviceGone), [`Error::QueueFailed`](crate::Error::QueueFailed): each
    /// request tells what becomes of it.
    pub fn take(&mut self) -> Result<Option<RequestId>> {
        if self.listed.is_empty() {
            self.core.progress_messages();
            self.core.take_ended(&mut self.seen, &mut self.listed)?;
        }
        Ok(self.listed.pop_front().map(RequestId))
    }
}

/// Whether requests of an endpoint may have ended. It takes no lock, so threads that share a list of [`Ends`] find out
/// that there is nothing to take.
#[derive(Debug)]
pub struct News<'a> {
    core: &'a Core,
}

impl<'a> News<'a> {
    /// Those of an endpoint.
    pub fn of(endpoint: &'a Endpoint) -> Self {
        News {
            core: endpoint.core(),
        }
    }

    /// A number that is another one once more requests have ended; `None` if there is something to take or to post, or
    /// the NIC runs no command of the endpoint any more. Costs a few loads.
    ///
    /// A list that returned `None` after this number was read has nothing to take while it stays the same.
    #[inline]
    pub fn changes(&self) -> Option<u64> {
        self.core.message_changes()
    }
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.core.list_no_ends();
    }
}
