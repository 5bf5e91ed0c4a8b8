//! What a call that does not wait returns.

use std::marker::PhantomData;

use qnic_abi::host_area::CompletionEntry;
use qnic_abi::{NodeId, Port, Status};

use crate::core::messages::{End, RequestKey, Seen};
use crate::core::Core;
use crate::error::{Error, GroupError, Result};
use crate::memory::Segment;

/// An operation of a group that is under way. It ends within the time that it was given; one that
/// is dropped is waited for.
#[derive(Debug)]
#[must_use = "a call that is dropped is waited for"]
pub struct Call<'a> {
    core: &'a Core,
    key: RequestKey,
    what: GroupError,
    end: Option<End>,
    seen: Seen,
    /// The NIC reads or writes this memory.
    memory: PhantomData<&'a Segment>,
}

impl<'a> Call<'a> {
    pub(super) fn new(core: &'a Core, key: RequestKey, what: GroupError) -> Self {
        Call {
            core,
            key,
            what,
            end: None,
            seen: Seen::default(),
            memory: PhantomData,
        }
    }

    /// Returns true if it has ended well, false if it goes on; never blocks.
    ///
    /// # Errors
    /// [`Error::Group`]: it failed; the error says why and names the process that is the reason.
    /// [`Error::QueueReset`]: it was dropped. [`Error::DeviceGone`], [`Error::QueueFailed`]
    pub fn test(&mut self) -> Result<bool> {
        self.core.progress_messages();
        let end = self.look()?;
        end.map(|end| self.result(&end).map(drop)).transpose()?;
        Ok(end.is_some())
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// Those of [`Call::test`]
    pub fn wait(self) -> Result<()> {
        self.finish().map(drop)
    }

    /// Waits until it has ended; returns its completion.
    pub(super) fn finish(mut self) -> Result<CompletionEntry> {
        let core = self.core;
        let end = core.wait_for(None, || self.look())?;
        self.result(&end)
    }

    pub(crate) fn look(&mut self) -> Result<Option<End>> {
        if self.end.is_none() {
            self.end = self.core.take_end(self.key, &mut self.seen)?;
        }
        Ok(self.end)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn core(&self) -> &Core {
        self.core
    }

    pub(crate) fn result(&self, end: &End) -> Result<CompletionEntry> {
        let entry = match end {
            End::Completed(entry) => entry,
            End::Reset => return Err(Error::QueueReset),
        };
        match Status::try_from(entry.status.get()) {
            Ok(Status::Ok) => Ok(*entry),
            Ok(status) => {
                let who = (NodeId(entry.node.get()), Port(entry.port.get()));
                Err(self.what.with(status, who).into())
            }
            Err(unknown) => Err(Error::Incompatible(format!(
                "{}: unknown status {}",
                self.what, unknown.0
            ))),
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.end.is_some() {
            return;
        }
        // A drop cannot report. An error says that the NIC runs nothing of this process any
        // more: nothing touches the memory.
        let core = self.core;
        drop(core.wait_for(None, || self.look()));
        self.core.detach_request(self.key);
    }
}
