//! Which requests have ended: a program with thousands of them need not test each (Q3).
//!
//! ```text
//!   post ─► Request ─ id ─► the program's table        Ends ─ take ─► RequestId ─► the table ─► Request::test
//! ```

use crate::core::messages::{RequestKey, Seen};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::Result;

/// Names a request of an endpoint. None is given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) RequestKey);

/// The requests of an endpoint that have ended, in that order.
///
/// It lists requests that end after it was made, each once, and a
/// [`MultiReceive`](crate::message::MultiReceive) for each of its messages. One that was dropped since may be among
/// them.
#[derive(Debug)]
pub struct Ends<'a> {
    core: &'a Core,
    seen: Seen,
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
        }
    }

    /// Takes the next one that has ended; never blocks. If none has ended since it last returned `None`, that costs
    /// a few loads, however many are under way.
    ///
    /// # Errors
    /// [`Error::DeviceGone`](crate::Error::DeviceGone), [`Error::QueueFailed`](crate::Error::QueueFailed): each
    /// request tells what becomes of it.
    pub fn take(&mut self) -> Result<Option<RequestId>> {
        self.core.progress_messages();
        let ended = self.core.next_ended(&mut self.seen)?;
        Ok(ended.map(RequestId))
    }
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.core.list_no_ends();
    }
}
