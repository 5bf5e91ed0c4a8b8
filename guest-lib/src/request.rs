//! What an operation with a completion of its own returns when it begins: a message, or a transfer
//! (N12, Q3).
//!
//! ```text
//!   send, receive, probe ─ post ──┐
//!                                 ├─► Request ─ test, wait, wait_any, wait_all ─► Completion
//!   write, read, atomic ── begin ─┘
//! ```
//! Requests of one endpoint can be waited for together, whatever they are of. Each ends when its own
//! operation has, and tells it once or as often as it is asked.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use qnic_abi::host_area::CompletionEntry;
use qnic_abi::{NodeId, Port, Status};

use crate::core::messages::{End, Pending, RequestKey};
use crate::core::tracker::Issued;
use crate::core::Core;
use crate::ends::RequestId;
use crate::error::{Error, MessageError, Result, TransferError};
use crate::memory::Segment;

/// The tag of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag(pub u64);

/// A message that was sent, or has arrived; or a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// Node of the other process: that has sent it, or that it was sent to.
    pub node: NodeId,
    /// Port of the other process.
    pub port: Port,
    /// Its tag; 0 in the untagged space.
    pub tag: Tag,
    /// Bytes of the message as it was sent, or of the transfer.
    pub length: u64,
    /// Where it begins in the part that its receive was given; 0 but for a [`MultiReceive`](crate::message::MultiReceive). Of a
    /// transfer the offset in the remote segment.
    pub offset: u64,
    /// What its sender has given with it; 0 of a Send. Of an atomic operation what the word was.
    pub immediate: u64,
    /// The mark that its sender has given it ([`Destination::mark`](crate::message::Destination::mark)); 0 of all else.
    pub mark: u32,
    /// The incarnation of its sender; 0: it has none, or this is no receive
    /// ([`set_incarnation`](crate::message::set_incarnation)).
    pub incarnation: u32,
    /// The message is longer than its receive: what fits has arrived. The sender learns of it
    /// only if the message does not fit in a frame, and was not staged.
    pub truncated: bool,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Send,
    Receive,
    /// A receive that takes many messages.
    Many,
    /// Has no memory.
    Probe,
    /// A write, a read or an atomic operation.
    Transfer,
}

/// What is said of a request if it fails.
#[derive(Debug, Clone, Copy)]
enum What {
    Message(MessageError),
    Transfer(TransferError),
}

/// A message that is being sent, a receive that is posted, or a transfer with a completion of its own
/// ([`Write::begin`](crate::rdma::Write::begin)).
///
/// A receive that is dropped is cancelled, and the drop waits until the NIC is done with its
/// memory; a Send that is dropped goes on, and its failure is dropped ([`crate::message`]). A transfer
/// that is dropped goes on, and its failure goes to the next fence or flush that covers it (N11).
#[derive(Debug)]
#[must_use = "a receive that is dropped is cancelled"]
pub struct Request<'a> {
    pub(crate) pending: Pending<'a>,
    kind: RequestKind,
    what: What,
    /// The failure of this transfer is told by this request alone.
    claim: Option<Issued>,
    /// The NIC reads or writes this memory.
    memory: PhantomData<&'a Segment>,
}

impl Completion {
    pub(crate) fn new(entry: &CompletionEntry, status: Status) -> Self {
        Completion {
            node: NodeId(entry.node.get()),
            port: Port(entry.port.get()),
            tag: Tag(entry.tag.get()),
            length: entry.length.get(),
            offset: entry.offset.get(),
            immediate: entry.immediate.get(),
            mark: entry.mark.get(),
            incarnation: entry.incarnation.get(),
            truncated: status == Status::Truncated,
        }
    }

    fn of(what: &TransferError, entry: &CompletionEntry) -> Self {
        Completion {
            node: what.node,
            port: what.port,
            tag: Tag(0),
            length: what.length,
            offset: what.offset,
            immediate: entry.tag.get(),
            mark: 0,
            incarnation: 0,
            truncated: false,
        }
    }
}

impl<'a> Request<'a> {
    pub(crate) fn new(
        core: &'a Core,
        key: RequestKey,
        kind: RequestKind,
        what: MessageError,
    ) -> Self {
        Request {
            pending: Pending::new(core, key),
            kind,
            what: What::Message(what),
            claim: None,
            memory: PhantomData,
        }
    }

    /// A transfer or atomic operation.
    pub(crate) fn transfer(
        core: &'a Core,
        (key, issued): (RequestKey, Issued),
        what: TransferError,
    ) -> Self {
        Request {
            pending: Pending::new(core, key),
            kind: RequestKind::Transfer,
            what: What::Transfer(what),
            claim: Some(issued),
            memory: PhantomData,
        }
    }

    /// What [`Ends`](crate::message::Ends) calls it.
    pub fn id(&self) -> RequestId {
        RequestId(self.pending.key)
    }

    /// Returns what has become of it if it has ended; never blocks.
    ///
    /// # Errors
    /// [`Error::Message`]: it failed, or was cancelled; [`Error::Transfer`]: the transfer failed.
    /// [`Error::QueueReset`]: it was dropped.
    /// [`Error::DeviceGone`], [`Error::QueueFailed`]
    pub fn test(&mut self) -> Result<Option<Completion>> {
        self.core().progress_messages();
        match self.look()? {
            Some(end) => self.result(&end).map(Some),
            None => Ok(None),
        }
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
        let core = self.core();
        let end = core.wait_for_entry(core.deadline(timeout), || self.look())?;
        self.result(&end)
    }

    /// Takes a receive back: unless a message has come for it, it ends with
    /// [`Status::Cancelled`]. Does not wait for that. What has ended stays as it is, and so do
    /// a Send and a transfer, which cannot be taken back.
    ///
    /// # Errors
    /// [`Error::DeviceGone`]
    pub fn cancel(&mut self) -> Result<()> {
        match self.kind {
            RequestKind::Send | RequestKind::Transfer => Ok(()),
            _ if self.pending.has_ended() => Ok(()),
            _ => self.core().cancel_receive(self.pending.key),
        }
    }

    /// Waits for a receive; cancels it when time is up, and waits for its end.
    pub(crate) fn finish(mut self, timeout: Option<Duration>) -> Result<Completion> {
        match self.wait(timeout) {
            Err(Error::TimedOut) => self.take_back(),
            result => result,
        }
    }

    /// The same, with a deadline.
    pub(crate) fn finish_until(mut self, deadline: Option<Instant>) -> Result<Completion> {
        let core = self.core();
        match core.wait_for_entry(deadline, || self.look()) {
            Err(Error::TimedOut) => self.take_back(),
            end => self.result(&end?),
        }
    }

    fn take_back(mut self) -> Result<Completion> {
        self.cancel()?;
        match self.wait(None) {
            Err(error) if error.status() == Some(Status::Cancelled) => Err(Error::TimedOut),
            // It came at the last moment.
            result => result,
        }
    }

    pub(crate) fn core(&self) -> &'a Core {
        self.pending.core
    }

    /// Its end, if it has ended.
    pub(crate) fn look(&mut self) -> Result<Option<End>> {
        let end = self.pending.look()?;
        // A message has no claim.
        if let (Some(end), Some(issued)) = (&end, self.claim) {
            self.claim = None;
            match end {
                End::Completed(_) => self.core().silence(&issued),
                // It tells of no failure.
                End::Reset => self.core().disclaim(&issued),
            }
        }
        Ok(end)
    }

    /// What the program is told of an end.
    pub(crate) fn result(&self, end: &End) -> Result<Completion> {
        // Most end so.
        if let (End::Completed(entry), What::Message(_)) = (end, &self.what) {
            if entry.status.get() == Status::Ok.code() {
                return Ok(Completion::new(entry, Status::Ok));
            }
        }
        let ended = match self.what {
            What::Message(what) => end.status(what),
            What::Transfer(what) => end.status(what),
        };
        match (ended?, self.what) {
            ((entry, status @ (Status::Ok | Status::Truncated)), What::Message(_)) => {
                Ok(Completion::new(&entry, status))
            }
            ((entry, Status::Ok), What::Transfer(what)) => Ok(Completion::of(&what, &entry)),
            ((_, status), _) => Err(self.failure(status)),
        }
    }

    /// What the program is told if it has failed for this reason.
    pub(crate) fn failure(&self, status: Status) -> Error {
        match self.what {
            What::Message(what) => Error::Message(what.with(status)),
            What::Transfer(what) => Error::Transfer(TransferError { status, ..what }.into()),
        }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let Pending { core, key, .. } = self.pending;
        if let Some(issued) = self.claim {
            core.disclaim(&issued);
        }
        if self.pending.has_ended() {
            return;
        }
        // A drop cannot report. An error says that the NIC runs nothing of this process any
        // more: nothing touches the memory.
        let endless = matches!(self.kind, RequestKind::Send | RequestKind::Transfer);
        let cancelled = !endless && core.cancel_receive(key).is_ok();
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
