//! A wait for transfers that were issued before.

use std::time::Duration;

use qnic_abi::{NodeId, Port};

use crate::core::Core;
use crate::error::{Operation, Result};

/// A wait for all reads and writes that were issued before, which has not begun
/// ([`Endpoint::flush`](crate::Endpoint::flush)).
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is waited for before `wait`"]
pub struct Flush<'e> {
    core: &'e Core,
    kinds: &'static [Operation],
    destination: Option<(NodeId, Port)>,
    sources: bool,
    timeout: Option<Duration>,
}

impl<'e> Flush<'e> {
    pub(super) fn new(core: &'e Core) -> Self {
        Flush {
            core,
            kinds: &[Operation::Read, Operation::Write],
            destination: None,
            sources: false,
            timeout: None,
        }
    }

    /// Reads and atomic operations only (flushR).
    pub fn reads(self) -> Self {
        let kinds = &[Operation::Read];
        Flush { kinds, ..self }
    }

    /// Writes only (flushW).
    pub fn writes(self) -> Self {
        let kinds = &[Operation::Write];
        Flush { kinds, ..self }
    }

    /// Those to one process only: nothing that others do or leave undone delays it.
    pub fn to(self, process: (NodeId, Port)) -> Self {
        let destination = Some(process);
        Flush {
            destination,
            ..self
        }
    }

    /// Waits for the sources of writes alone: they may be changed or freed afterwards, whether the
    /// writes were delivered or not, and however long a destination keeps them waiting. Reports no
    /// failure: each stays with its ticket, its request or the next fence.
    pub fn sources(self) -> Self {
        Flush {
            sources: true,
            ..self
        }
    }

    /// Waits at most so long in all; `None`, as at first: as long as it takes.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        let timeout = timeout.into();
        Flush { timeout, ..self }
    }

    /// Waits until they are complete, or with [`Flush::sources`] until no source is needed.
    ///
    /// # Errors
    /// [`TimedOut`](crate::Error::TimedOut): they go on, and no failure was reported.
    /// [`Transfer`](crate::Error::Transfer) with all that failed and that no ticket waits for;
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed),
    /// [`QueueReset`](crate::Error::QueueReset).
    pub fn wait(self) -> Result<()> {
        let deadline = self.core.deadline(self.timeout);
        if self.sources {
            return self.core.fence_sources(self.destination, deadline);
        }
        self.core.flush(self.kinds, self.destination, deadline)
    }
}
