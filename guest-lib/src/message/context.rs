//! Messages by contexts: from and into the buffer pool, and from and into scattered pages (Q4, Q5,
//! Q7; `qnic_abi::context`).

use std::time::Duration;

use qnic_abi::context::{
    pages_of, ContextFlags, MessageContext, PageDescriptor, CONTEXT_PAGES, LIST_PAGES,
};
use qnic_abi::PAGE_SIZE;
use zerocopy::IntoBytes;

use super::pattern::Fields;
use super::{Completion, Destination, Pattern, Pool, PoolBuffer, Request};
use crate::core::contexts::{Contents, Direction};
use crate::core::Core;
use crate::error::{Error, MessageError, MessageOperation, Result};
use crate::memory::Part;
use crate::request::RequestKind;

/// A message whose bytes are in the buffer pool, or a receive that puts them there. It has the
/// buffer while the NIC has it.
///
/// A receive that is dropped is cancelled, and the drop waits until the NIC is done with the
/// buffer. A Send that is dropped goes on, and its failure is dropped: its pages go back to the
/// pool when it has ended, and are taken there by the next call that posts, waits or asks the pool.
#[derive(Debug)]
#[must_use = "a receive that is dropped is cancelled"]
pub struct Pooled<'a> {
    /// In front: dropped before the buffer.
    request: Request<'a>,
    direction: Direction,
    /// `None` only while it is dropped.
    buffer: Option<PoolBuffer<'a>>,
}

/// A Send of [`PoolBuffer::post_send`].
pub type PooledSend<'a> = Pooled<'a>;

/// A receive of [`PoolBuffer::post_receive`].
pub type PooledReceive<'a> = Pooled<'a>;

impl<'a> Pooled<'a> {
    /// Returns what has become of it if it has ended; never blocks. It keeps its buffer:
    /// [`Pooled::wait`] gives that back.
    ///
    /// # Errors
    /// Those of [`Request::test`]
    pub fn test(&mut self) -> Result<Option<Completion>> {
        self.request.test()
    }

    /// Waits until it has ended, up to `timeout`; without one, as long as it takes. It keeps its
    /// buffer.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: it goes on, wait again. Those of [`Request::test`].
    pub fn wait_end(&mut self, timeout: Option<Duration>) -> Result<Completion> {
        self.request.wait(timeout)
    }

    /// Waits as [`Pooled::wait_end`] does, and gives the buffer back. With an error it is dropped.
    ///
    /// # Errors
    /// [`Error::TimedOut`] among those of [`Pooled::wait_end`]
    pub fn wait(mut self, timeout: Option<Duration>) -> Result<(Completion, PoolBuffer<'a>)> {
        let completion = self.request.wait(timeout)?;
        match self.buffer.take() {
            Some(buffer) => Ok((completion, buffer)),
            None => unreachable!("only a drop takes it before"),
        }
    }

    /// Takes a receive back, as [`Request::cancel`] does.
    ///
    /// # Errors
    /// [`Error::DeviceGone`]
    pub fn cancel(&mut self) -> Result<()> {
        self.request.cancel()
    }
}

impl Drop for Pooled<'_> {
    fn drop(&mut self) {
        if self.direction == Direction::Send {
            if let Some(buffer) = self.buffer.take() {
                let core = self.request.core();
                core.leave_pages(self.request.pending.key, buffer.into_run());
            }
        }
    }
}

/// # Messages
/// Each needs a context: a process has 32 for Sends and 32 for receives, or as many as the NIC says
/// ([`Pool::counts`]). None of these calls waits
/// for one: [`Error::NoContext`] if all are under way. If a call fails, the buffer goes back to the
/// pool. The rules of [`crate::message`] hold.
impl<'a> PoolBuffer<'a> {
    /// Begins to send its first `length` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::NoContext`], [`Error::DeviceGone`], [`Error::QueueFailed`]
    pub fn post_send(self, to: &Destination, length: usize) -> Result<PooledSend<'a>> {
        self.check(0, length)?;
        let what = MessageOperation::Send;
        self.post(Direction::Send, &Fields::from(to), what, length)
    }

    /// Posts a receive of one message. Waits only while the command queue is full.
    ///
    /// # Errors
    /// Those of [`PoolBuffer::post_send`]
    pub fn post_receive(self, pattern: &Pattern) -> Result<PooledReceive<'a>> {
        let (what, length) = (MessageOperation::Receive, self.len());
        self.post(Direction::Receive, &Fields::from(pattern), what, length)
    }

    fn post(
        self,
        direction: Direction,
        fields: &Fields,
        operation: MessageOperation,
        length: usize,
    ) -> Result<Pooled<'a>> {
        let flags = ContextFlags::POOL | ContextFlags::NOTIFY;
        let mut context = fields.context(flags, length as u64);
        context.pool_page = (self.run().first as u16).into();
        context.pages = (pages_of(0, length as u64) as u16).into();
        let what = fields.what(operation, length as u64);
        Ok(Pooled {
            request: begin(self.core(), direction, &Contents::new(context), what)?,
            direction,
            buffer: Some(self),
        })
    }
}

/// Begins an operation that its doorbell ends.
pub(super) fn begin<'a>(
    core: &'a Core,
    direction: Direction,
    contents: &Contents,
    what: MessageError,
) -> Result<Request<'a>> {
    let kind = match direction {
        Direction::Send => RequestKind::Send,
        Direction::Receive => RequestKind::Receive,
    };
    let key = core.post_context(direction, contents)?;
    Ok(Request::new(core, key, kind, what))
}

/// Begins the operation of bytes in pages of a segment.
pub(super) fn begin_pages<'a>(
    core: &'a Core,
    direction: Direction,
    fields: &Fields,
    parts: &[Part<'_>],
) -> Result<Request<'a>> {
    let (mut context, pages) = in_pages(core, fields, parts)?;
    let operation = match direction {
        Direction::Send => MessageOperation::Send,
        Direction::Receive => MessageOperation::Receive,
    };
    let what = fields.what(operation, context.length.get());
    if pages.len() <= core.counts.context_pages as usize {
        let contents = Contents::with_pages(context, &pages);
        return begin(core, direction, &contents, what);
    }
    let list = Pool::new(core).take(1)?;
    list.write(0, pages.as_bytes())?;
    context.flags = (context.flags.get() | ContextFlags::LIST.bits()).into();
    context.pool_page = (list.run().first as u16).into();
    let request = begin(core, direction, &Contents::new(context), what)?;
    core.leave_pages(request.pending.key, list.into_run());
    Ok(request)
}

/// The context of bytes in pages of a segment, and the descriptors of those.
fn in_pages(
    core: &Core,
    fields: &Fields,
    parts: &[Part<'_>],
) -> Result<(MessageContext, Vec<PageDescriptor>)> {
    const PAGE: u64 = PAGE_SIZE as u64;
    let bad = |piece, problem| Err(Error::BadPiece { piece, problem });
    let mut pages = Vec::with_capacity(CONTEXT_PAGES);
    let (mut total, mut segment) = (0, None);
    let mut ends_page = true;
    for (piece, part) in parts.iter().enumerate() {
        let range = part.range(core)?;
        if range.length == 0 {
            continue;
        }
        if *segment.get_or_insert(range.exported) != range.exported {
            return bad(piece, "is of another segment than those before it");
        }
        if !pages.is_empty() && !ends_page {
            return bad(
                piece,
                "stands behind one that does not end where a page ends",
            );
        }
        let (mut address, mut left) = (range.address, range.length);
        if !pages.is_empty() && address % PAGE != 0 {
            return bad(
                piece,
                "does not begin where a page begins, and is not the first",
            );
        }
        while left > 0 {
            let offset = address % PAGE;
            let length = left.min(PAGE - offset);
            if pages.len() == LIST_PAGES {
                return bad(piece, "needs more than the 256 pages of a list");
            }
            pages.push(PageDescriptor {
                address: (address - offset).into(),
                offset: (offset as u16).into(),
                length: (length as u16).into(),
                valid: 1.into(),
            });
            address += length;
            left -= length;
        }
        ends_page = address % PAGE == 0;
        total += range.length;
    }
    let mut context = fields.context(ContextFlags::NOTIFY, total);
    context.pages = (pages.len() as u16).into();
    if let Some(exported) = segment {
        context.local_segment = exported.segment.into();
        context.local_key = exported.key.into();
    }
    Ok((context, pages))
}

impl Fields {
    /// The context of a message or a receive, without its memory.
    pub(super) fn context(&self, flags: ContextFlags, length: u64) -> MessageContext {
        let mut flags = flags;
        flags.set(ContextFlags::UNTAGGED, self.untagged);
        flags.set(ContextFlags::ANY_PROC, self.peer.is_none());
        let mut context = MessageContext {
            flags: flags.bits().into(),
            tag: self.tag.into(),
            ignore_or_immediate: self.ignore_or_immediate.into(),
            mark: self.mark.into(),
            incarnation: self.incarnation.into(),
            length: length.into(),
            endpoint: self.endpoint.into(),
            ..MessageContext::default()
        };
        if let Some((node, port)) = self.peer {
            context.remote_node = node.0.into();
            context.remote_port = port.0.into();
        }
        context
    }
}
