//! Messages by contexts: from and into the buffer pool, from and into scattered pages, and short
//! ones by programmed I/O (Q4, Q5, Q7, Q8; `qnic_abi::context`).

use std::time::Duration;

use qnic_abi::context::{
    pages_of, ContextFlags, MessageContext, PageDescriptor, CONTEXT_PAGES, LIST_PAGES, REGION_BYTES,
};
use qnic_abi::PAGE_SIZE;
use zerocopy::IntoBytes;

use super::{Completion, Destination, Fields, Pattern, PoolBuffer, Request, RequestKind};
use crate::core::contexts::{Contents, Direction};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, MessageError, MessageOperation, Result};
use crate::memory::Part;

/// Longest message of [`Endpoint::post_send_short`], in bytes.
pub const SHORT_MAX: usize = REGION_BYTES;

/// Whether anybody is told how a message has ended (Q8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notify {
    /// Its request is.
    Yes,
    /// Nobody is; a failure is counted ([`Endpoint::failed_sends`]).
    No,
}

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

/// A Send of [`Endpoint::post_send_from`].
pub type PooledSend<'a> = Pooled<'a>;

/// A receive of [`Endpoint::post_receive_into`].
pub type PooledReceive<'a> = Pooled<'a>;

impl<'a> Pooled<'a> {
    fn new(
        core: &'a Core,
        direction: Direction,
        contents: &Contents,
        what: MessageError,
        buffer: PoolBuffer<'a>,
    ) -> Result<Self> {
        Ok(Pooled {
            request: begin(core, direction, contents, what)?,
            direction,
            buffer: Some(buffer),
        })
    }

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
                let core = self.request.core;
                core.leave_pages(self.request.key, buffer.into_run());
            }
        }
    }
}

/// # Messages by contexts
/// A context holds one message while it is under way; a process has 32 for Sends and 32 for
/// receives. None of these calls waits for one: [`Error::NoContext`] if all are under way.
/// [`Endpoint::post_send`] and [`Endpoint::post_receive`] need none. Otherwise the rules of
/// [`crate::message`] hold.
impl Endpoint {
    /// Begins to send the first `length` bytes of a pool buffer. If it fails, the buffer goes
    /// back to the pool.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ForeignSegment`], [`Error::NoContext`],
    /// [`Error::DeviceGone`], [`Error::QueueFailed`]
    pub fn post_send_from<'a>(
        &'a self,
        to: &Destination,
        buffer: PoolBuffer<'a>,
        length: usize,
    ) -> Result<PooledSend<'a>> {
        let (core, fields) = (self.core(), Fields::from(to));
        buffer.check(0, length)?;
        let contents = in_pool(core, &fields, &buffer, length)?;
        let what = fields.what(MessageOperation::Send, length as u64);
        Pooled::new(core, Direction::Send, &contents, what, buffer)
    }

    /// Posts a receive of one message into a pool buffer. Waits only while the command queue is
    /// full. If it fails, the buffer goes back to the pool.
    ///
    /// # Errors
    /// Those of [`Endpoint::post_send_from`]
    pub fn post_receive_into<'a>(
        &'a self,
        pattern: &Pattern,
        buffer: PoolBuffer<'a>,
    ) -> Result<PooledReceive<'a>> {
        let (core, fields) = (self.core(), Fields::from(pattern));
        let length = buffer.len();
        let contents = in_pool(core, &fields, &buffer, length)?;
        let what = fields.what(MessageOperation::Receive, length as u64);
        Pooled::new(core, Direction::Receive, &contents, what, buffer)
    }

    /// Begins to send bytes of several parts of one segment as one message, gathered by the NIC.
    /// Parts are cut at the borders of pages: all but the first begin where a page begins, all but
    /// the last end where one ends, and they lie in 256 pages at most. More than 8 are listed in a
    /// page of the pool, which is free again when the request has ended (Q6).
    ///
    /// The parts must not change before the request has ended.
    ///
    /// # Errors
    /// [`Error::BadPiece`]: the parts break that rule. [`Error::PoolFull`]: no page is free for
    /// the list. [`Error::OutOfRange`], [`Error::ForeignSegment`], [`Error::NoContext`],
    /// [`Error::DeviceGone`], [`Error::QueueFailed`]
    pub fn post_send_pages(&self, to: &Destination, parts: &[Part<'_>]) -> Result<Request<'_>> {
        begin_pages(self, Direction::Send, &Fields::from(to), parts)
    }

    /// Posts a receive of one message that the NIC scatters into several parts of one segment, by
    /// the rules of [`Endpoint::post_send_pages`]. Waits only while the command queue is full.
    ///
    /// # Errors
    /// Those of [`Endpoint::post_send_pages`]
    pub fn post_receive_pages<'a>(
        &'a self,
        pattern: &Pattern,
        parts: &[Part<'a>],
    ) -> Result<Request<'a>> {
        begin_pages(self, Direction::Receive, &Fields::from(pattern), parts)
    }

    /// Begins to send up to [`SHORT_MAX`] bytes, which are stored in the NIC's memory. Returns a
    /// request with [`Notify::Yes`] only.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]: they are more. [`Error::NoContext`], [`Error::DeviceGone`],
    /// [`Error::QueueFailed`]
    pub fn post_send_short(
        &self,
        to: &Destination,
        bytes: &[u8],
        notify: Notify,
    ) -> Result<Option<Request<'_>>> {
        let (core, fields) = (self.core(), Fields::from(to));
        let length = bytes.len() as u64;
        Error::check_range("region of a context", SHORT_MAX as u64, 0, length)?;
        let flags = ContextFlags::REGION;
        match notify {
            Notify::Yes => {
                let context = fields.context(flags | ContextFlags::NOTIFY, length);
                let contents = Contents::with_bytes(context, bytes);
                let what = fields.what(MessageOperation::Send, length);
                begin(core, Direction::Send, &contents, what).map(Some)
            }
            Notify::No => {
                let contents = Contents::with_bytes(fields.context(flags, length), bytes);
                core.post_unnoticed(&contents).map(|()| None)
            }
        }
    }

    /// How many Sends with [`Notify::No`] have failed since this process registered.
    pub fn failed_sends(&self) -> u64 {
        self.core().failed_sends()
    }
}

/// Begins an operation that its doorbell ends.
fn begin<'a>(
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

/// The context of bytes in the pool.
fn in_pool(
    core: &Core,
    fields: &Fields,
    buffer: &PoolBuffer<'_>,
    length: usize,
) -> Result<Contents> {
    if !buffer.is_of(core) {
        return Err(Error::ForeignSegment);
    }
    let flags = ContextFlags::POOL | ContextFlags::NOTIFY;
    let mut context = fields.context(flags, length as u64);
    context.pool_page = (buffer.run().first as u16).into();
    context.pages = (pages_of(0, length as u64) as u16).into();
    Ok(Contents::new(context))
}

/// Begins the operation of bytes in pages of a segment.
fn begin_pages<'a>(
    endpoint: &'a Endpoint,
    direction: Direction,
    fields: &Fields,
    parts: &[Part<'_>],
) -> Result<Request<'a>> {
    let core = endpoint.core();
    let (mut context, pages) = in_pages(core, fields, parts)?;
    let operation = match direction {
        Direction::Send => MessageOperation::Send,
        Direction::Receive => MessageOperation::Receive,
    };
    let what = fields.what(operation, context.length.get());
    if pages.len() <= CONTEXT_PAGES {
        let contents = Contents::with_pages(context, &pages);
        return begin(core, direction, &contents, what);
    }
    let list = endpoint.pool().take(1)?;
    list.write(0, pages.as_bytes())?;
    context.flags = (context.flags.get() | ContextFlags::LIST.bits()).into();
    context.pool_page = (list.run().first as u16).into();
    let request = begin(core, direction, &Contents::new(context), what)?;
    core.leave_pages(request.key, list.into_run());
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
    fn context(&self, flags: ContextFlags, length: u64) -> MessageContext {
        let mut flags = flags;
        flags.set(ContextFlags::UNTAGGED, self.untagged);
        flags.set(ContextFlags::ANY_PROC, self.peer.is_none());
        let mut context = MessageContext {
            flags: flags.bits().into(),
            tag: self.tag.into(),
            ignore_or_immediate: self.ignore_or_immediate.into(),
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
