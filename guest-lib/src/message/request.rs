//! What a call that does not wait returns.

use std::marker::PhantomData;
use std::time::Duration;

use qnic_abi::host_area::CompletionEntry;
use qnic_abi::{NodeId, Port, Status};

use crate::core::messages::{End, Pending, RequestKey};
use crate::core::Core;
use crate::error::{Error, MessageError, Result};
use crate::memory::Segment;
use crate::message::{Completion, Tag};

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    Send,
    Receive,
    /// A receive that takes many messages.
    Many,
    /// Has no memory.
    Probe,
}

/// A message that is being sent, or a receive that is posted.
///
/// A receive that is dropped is cancelled, and the drop waits until the NIC is done with its
/// memory; a Send that is dropped goes on, and its failure is dropped ([`crate::message`]).
#[derive(Debug)]
#[must_use = "a receive that is dropped is cancelled"]
pub struct Request<'a> {
    pub(super) pending: Pending<'a>,
    kind: RequestKind,
    what: MessageError,
    /// The NIC reads or writes this memory.
    memory: PhantomData<&'a Segment>,
}

impl Completion {
    pub(super) fn new(entry: &CompletionEntry, status: Status) -> Self {
        Completion {
            node: NodeId(entry.node.get()),
            port: Port(entry.port.get()),
            tag: Tag(entry.tag.get()),
            length: entry.length.get(),
            offset: entry.offset.get(),
            immediate: entry.immediate.get(),
            truncated: status == Status::Truncated,
        }
    }
}

impl<'a> Request<'a> {
    pub(super) fn new(
        core: &'a Core,
        key: RequestKey,
        kind: RequestKind,
        what: MessageError,
    ) -> Self {
        Request {
            pending: Pending::new(core, key),
            kind,
            what,
            memory: PhantomData,
        }
    }

    /// Returns what has become of it if it has ended; never blocks.
    ///
    /// # Errors
    /// [`Error::Message`]: it failed, or was cancelled. [`Error::QueueReset`]: it was dropped.
    /// [`Error::DeviceGone`], [`Error::QueueFailed`]
    pub fn test(&mut self) -> Result<Option<Completion>> {
        self.core().progress_messages();
        self.look()?.map(|end| self.result(&end)).transpose()
    }

    /// Waits until it has ended, up to `timeout`; without one, as long as it takes.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: it goes on, wait again. Those of [`Request::test`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Completion> {
        // What has ended costs no look at the clock.
        if let Some(completion) = self.test()? {
            return Ok(completion);
        }
        let end = self.pending.wait(self.core().deadline(timeout))?;
        self.result(&end)
    }

    /// Takes a receive back: unless a message has come for it, it ends with
    /// [`Status::Cancelled`]. Does not wait for that. What has ended stays as it is, and so does
    /// a Send, which cannot be taken back.
    ///
    /// # Errors
    /// [`Error::DeviceGone`]
    pub fn cancel(&mut self) -> Result<()> {
        match self.kind {
            RequestKind::Send => Ok(()),
            _ if self.pending.has_ended() => Ok(()),
            _ => self.core().cancel_receive(self.pending.key),
        }
    }

    /// Waits for a receive; cancels it when time is up, and waits for its end.
    pub(super) fn finish(mut self, timeout: Option<Duration>) -> Result<Completion> {
        match self.wait(timeout) {
            Err(Error::TimedOut) => {}
            result => return result,
        }
        self.cancel()?;
        match self.wait(None) {
            Err(error) if error.status() == Some(Status::Cancelled) => Err(Error::TimedOut),
            // It came at the last moment.
            result => result,
        }
    }

    /// What is said of it if it fails.
    pub(super) fn what(&self) -> MessageError {
        self.what
    }

    pub(crate) fn core(&self) -> &'a Core {
        self.pending.core
    }

    /// Its end, if it has ended.
    pub(crate) fn look(&mut self) -> Result<Option<End>> {
        self.pending.look()
    }

    /// What the program is told of an end.
    pub(crate) fn result(&self, end: &End) -> Result<Completion> {
        match end.status(self.what)? {
            (entry, status @ (Status::Ok | Status::Truncated)) => {
                Ok(Completion::new(&entry, status))
            }
            (_, status) => Err(Error::Message(self.what.with(status))),
        }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if self.pending.has_ended() {
            return;
        }
        let Pending { core, key, .. } = self.pending;
        // A drop cannot report. An error says that the NIC runs nothing of this process any
        // more: nothing touches the memory.
        let cancelled = self.kind != RequestKind::Send && core.cancel_receive(key).is_ok();
        if cancelled && self.kind != RequestKind::Probe {
            drop(self.wait_for_memory());
        }
        core.detach_request(key);
    }
}

impl Request<'_> {
    /// Waits until the NIC is done with the memory of a receive.
    fn wait_for_memory(&mut self) -> Result<()> {
        let (core, key) = (self.core(), self.pending.key);
        let seen = &mut self.pending.seen;
        core.wait_for(None, || match self.kind {
            RequestKind::Many => loop {
                match core.take_arrived(key, seen)? {
                    Some(Ok(_)) => {}
                    Some(Err(_)) => return Ok(Some(())),
                    None => return Ok(None),
                }
            },
            _ => Ok(core.take_end(key, seen)?.map(drop)),
        })
    }
}

/// Waits until one of several requests has ended, and returns its index; [`Request::test`] tells
/// what has become of it. Of several that have ended, the first is returned; `None` if there are
/// no requests.
///
/// # Errors
/// [`Error::TimedOut`], [`Error::ForeignRequest`]: they are not all of one endpoint;
/// [`Error::DeviceGone`], [`Error::QueueFailed`]
pub fn wait_any(requests: &mut [Request<'_>], timeout: Option<Duration>) -> Result<Option<usize>> {
    let Some(core) = core_of(requests)? else {
        return Ok(None);
    };
    core.wait_for(core.deadline(timeout), || {
        for (index, request) in requests.iter_mut().enumerate() {
            if request.look()?.is_some() {
                return Ok(Some(Some(index)));
            }
        }
        Ok(None)
    })
}

/// Waits until all of several requests have ended, and returns what has become of each, in their
/// order.
///
/// # Errors
/// [`Error::TimedOut`]: some have not ended. Otherwise the error of the first that failed;
/// [`Request::test`] tells of the others. [`Error::ForeignRequest`]: they are not all of one
/// endpoint.
pub fn wait_all(
    requests: &mut [Request<'_>],
    timeout: Option<Duration>,
) -> Result<Vec<Completion>> {
    let Some(core) = core_of(requests)? else {
        return Ok(Vec::new());
    };
    let deadline = core.deadline(timeout);
    for request in &mut *requests {
        request.pending.wait(deadline)?;
    }
    requests.iter_mut().map(|it| it.wait(None)).collect()
}

/// The process of all of these requests.
fn core_of<'a>(requests: &[Request<'a>]) -> Result<Option<&'a Core>> {
    let Some(first) = requests.first() else {
        return Ok(None);
    };
    let core = first.core();
    match requests.iter().all(|it| std::ptr::eq(it.core(), core)) {
        true => Ok(Some(core)),
        false => Err(Error::ForeignRequest),
    }
}
