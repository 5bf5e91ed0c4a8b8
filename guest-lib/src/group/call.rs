//! What a call that does not wait returns.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use qnic_abi::host_area::CompletionEntry;

use crate::core::messages::{End, Pending, RequestKey};
use crate::core::Core;
use crate::ends::RequestId;
use crate::error::{GroupError, Result};
use crate::memory::Segment;

/// An operation of a group that is under way. It ends within the time that it was given; one that
/// is dropped is waited for.
#[derive(Debug)]
#[must_use = "a call that is dropped is waited for"]
pub struct Call<'a> {
    pending: Pending<'a>,
    what: GroupError,
    /// The NIC reads or writes this memory.
    memory: PhantomData<&'a Segment>,
}

impl<'a> Call<'a> {
    pub(super) fn new(core: &'a Core, key: RequestKey, what: GroupError) -> Self {
        Call {
            pending: Pending::new(core, key),
            what,
            memory: PhantomData,
        }
    }

    /// What [`Ends`](crate::message::Ends) calls it.
    pub fn id(&self) -> RequestId {
        RequestId(self.pending.key)
    }

    /// Returns true if it has ended well, false if it goes on; never blocks.
    ///
    /// # Errors
    /// [`Group`](crate::Error::Group): it failed; the error says why and names the process that is
    /// the reason. [`QueueReset`](crate::Error::QueueReset): it was dropped.
    /// [`DeviceGone`](crate::Error::DeviceGone), [`QueueFailed`](crate::Error::QueueFailed)
    pub fn test(&mut self) -> Result<bool> {
        self.pending.core.progress_messages();
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
        let end = self.pending.wait(None)?;
        self.result(&end)
    }

    pub(crate) fn look(&mut self) -> Result<Option<End>> {
        self.pending.look()
    }

    /// Lets it go on, whatever becomes of it. Only for a call without memory.
    pub(super) fn detach(self) {
        let call = ManuallyDrop::new(self);
        call.pending.core.detach_request(call.pending.key);
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn core(&self) -> &Core {
        self.pending.core
    }

    pub(crate) fn result(&self, end: &End) -> Result<CompletionEntry> {
        self.what.result(end)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.pending.has_ended() {
            return;
        }
        // A drop cannot report. An error says that the NIC runs nothing of this process any
        // more: nothing touches the memory.
        drop(self.pending.wait(None));
        self.pending.core.detach_request(self.pending.key);
    }
}
