//! Contexts of messages ([`qnic_abi::context`]; Q4, Q5, Q7, Q8): a Send or a Receive that a process
//! describes in the SRAM.
//!
//! ```text
//!   ContextCommand ──► copy of context, region, list ──► checked ──► Send, Receive ──► doorbell
//!                      (read once)                          │ no
//!                                                           └──────────────────────► doorbell
//! ```
//! # Invariants
//! - A context is read once, with its command: what a process stores there later has no effect.
//! - Pages of an exported segment are looked up as for every other command, and may be absent.
//!   Pages of the pool are those of the host area, which stay in place while the process is
//!   registered.
//! - A context has one operation at a time; a command that names one under way is malformed.

use qnic_abi::command::CommandHeader;
use qnic_abi::context::{
    pages_of, region_bytes, ContextFlags, DoorbellState, MessageContext, PageDescriptor,
    CONTEXT_BYTES, CONTEXT_PAGES, LIST_PAGES, POOL_PAGES,
};
use qnic_abi::header::Counts;
use qnic_abi::host_area::{
    receive_doorbell_offset, send_doorbell_offset, CompletionEntry, CompletionKind,
};
use qnic_abi::message::ENDPOINTS;
use qnic_abi::window::{receive_context_offset, send_context_offset};
use qnic_abi::wire::SPAN_PAGES;
use qnic_abi::{Key, SegmentId, SharedMemory, Status, VniId, PAGE_SIZE};
use zerocopy::IntoBytes;

use super::command::{Handle, Memory, Name, Receive, Send, Source, Space};
use super::matching::{Pattern, Takes};
use super::Context;
use crate::core::{Core, LocalMemory, PageKey, INLINE_WORDS};
use crate::env::{Host, HostMemory};

const PAGE: u64 = PAGE_SIZE as u64;

/// Words of a context with its region.
const WORDS: usize = CONTEXT_BYTES / 8;

/// Most pages of a run that [`Pages::at`] finds: more than a frame takes.
const RUN_PAGES: usize = SPAN_PAGES + 1;

/// The pages of a context, in the order of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pages {
    /// Their addresses: virtual, or of the pool guest-physical.
    addresses: Box<[u64]>,
    /// Where in the first page the first byte stands.
    offset: u64,
    length: u64,
    /// The segment that they are of; none: they are of the pool.
    segment: Option<(SegmentId, Key)>,
}

impl Pages {
    /// Where a byte is, and how many follow it there in one piece; of more than [`RUN_PAGES`] it
    /// says that many.
    pub(super) fn at(&self, offset: u64) -> (u64, u64) {
        let from_first = self.offset + offset;
        let index = (from_first / PAGE) as usize;
        let Some(first) = self.addresses.get(index) else {
            return (0, 0);
        };
        let behind = self.addresses[index..].windows(2).take(RUN_PAGES - 1);
        let adjacent = behind.take_while(|pair| pair[1] == pair[0].wrapping_add(PAGE));
        let run = (1 + adjacent.count() as u64) * PAGE - from_first % PAGE;
        let left = self.length.saturating_sub(offset);
        (first + from_first % PAGE, run.min(left))
    }

    /// Returns how they are found, if the process has exported them.
    pub(super) fn authorise(&self, core: &Core, vni: VniId) -> Result<PageKey, Status> {
        let Some((segment, key)) = self.segment else {
            return Ok(PageKey::Physical);
        };
        let mut page_key = PageKey::Table(Key(0));
        let mut done = 0;
        while done < self.length {
            let (address, length) = self.at(done);
            let part = LocalMemory {
                address,
                length,
                key,
                segment,
            };
            page_key = part.authorise(core, vni)?;
            done += length;
        }
        Ok(page_key)
    }

    /// Returns true if any of the bytes is in a segment.
    pub(super) fn uses(&self, segment: SegmentId) -> bool {
        self.length > 0 && self.segment.is_some_and(|(own, _)| own == segment)
    }

    /// The pages of the pool that a context names.
    fn of_pool(context: &MessageContext, pool: &[u64]) -> Result<Self, Status> {
        let (first, offset) = (
            usize::from(context.pool_page.get()),
            u64::from(context.pool_offset.get()),
        );
        let length = context.length.get();
        let named = context.local_key.get() != 0 || context.local_segment.get() != 0;
        if named || first >= pool.len() || offset >= PAGE {
            return Err(Status::Malformed);
        }
        let behind = (pool.len() - first) as u64 * PAGE - offset;
        if length > behind {
            return Err(Status::BadLength);
        }
        let count = pages_of(offset as usize, length) as usize;
        Ok(Pages {
            addresses: pool[first..first + count].into(),
            offset,
            length,
            segment: None,
        })
    }

    /// The pages that descriptors list: all of the region of a context, or of its page of the pool.
    fn listed(context: &MessageContext, all: &[PageDescriptor]) -> Result<Self, Status> {
        let count = usize::from(context.pages.get());
        let (listed, behind) = all.split_at_checked(count).ok_or(Status::BadLength)?;
        if behind.first().is_some_and(|next| next.valid.get() != 0) {
            return Err(Status::Malformed);
        }
        let mut addresses = Vec::with_capacity(count);
        let mut length = 0;
        for (index, page) in listed.iter().enumerate() {
            let (offset, bytes) = (u64::from(page.offset.get()), u64::from(page.length.get()));
            let begins = index == 0 || offset == 0;
            let ends = index + 1 == count || offset + bytes == PAGE;
            let inside = bytes > 0 && offset + bytes <= PAGE;
            let aligned = page.address.get() % PAGE == 0;
            if page.valid.get() != 1 || !begins || !ends || !inside || !aligned {
                return Err(Status::Malformed);
            }
            addresses.push(page.address.get());
            length += bytes;
        }
        if length != context.length.get() {
            return Err(Status::BadLength);
        }
        let segment = SegmentId(context.local_segment.get());
        Ok(Pages {
            addresses: addresses.into(),
            offset: listed.first().map_or(0, |page| page.offset.get().into()),
            length,
            segment: Some((segment, Key(context.local_key.get()))),
        })
    }
}

/// A context as it was copied.
pub(super) struct Copied {
    context: MessageContext,
    /// None: they are wrong, or the command names another process.
    flags: Option<ContextFlags>,
    region: [u64; INLINE_WORDS],
    pool: [u64; POOL_PAGES],
    counts: Counts,
    /// The descriptors that it has in a page of the pool; none if it names no such page.
    list: Vec<PageDescriptor>,
}

impl Copied {
    /// Copies a context and its region out of the window of a process.
    pub(super) fn read<H: Host>(
        host: &H,
        core: &Core,
        vni: VniId,
        kind: CompletionKind,
        (index, header): (u8, &CommandHeader),
    ) -> Self {
        let offset = match kind {
            CompletionKind::Send => send_context_offset(index.into()),
            _ => receive_context_offset(index.into()),
        };
        let mut words = [0; WORDS];
        let window = core.geometry.window_offset(vni);
        host.sram().read_words(window + offset, &mut words);
        let words = words.map(u64::to_le);
        let mut context = MessageContext::default();
        let (front, region) = words.split_at(WORDS - INLINE_WORDS);
        context.as_mut_bytes().copy_from_slice(front.as_bytes());
        let mut copy = [0; INLINE_WORDS];
        copy.copy_from_slice(region);
        let process = core.process(vni);
        let pool = process.map(|process| process.host_area.pool());
        let pool = pool.unwrap_or_default();
        let counts = core.geometry.counts;
        let named = (context.remote_node, context.remote_port);
        let agrees = named == (header.remote_node, header.remote_port);
        let flags = ContextFlags::from_bits(context.flags.get()).filter(|_| agrees);
        let has_list = flags.is_some_and(|flags| flags.contains(ContextFlags::LIST));
        Copied {
            flags,
            list: match has_list {
                true => read_list(host, &context, &pool[..counts.pool_pages as usize]),
                false => Vec::new(),
            },
            context,
            region: copy,
            pool,
            counts,
        }
    }

    /// How the process is told of its end.
    pub(super) fn handle(&self, index: u8) -> Handle {
        let notify = ContextFlags::NOTIFY.bits() & self.context.flags.get() != 0;
        Handle::Context { index, notify }
    }

    /// Tells the process that nothing comes of it, at the endpoint that it names.
    pub(super) fn refuse<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        (kind, index): (CompletionKind, u8),
        status: Status,
    ) {
        let entry = CompletionEntry {
            status: status.code().into(),
            kind: kind as u8,
            endpoint: self.context.endpoint,
            ..CompletionEntry::default()
        };
        complete(cx.host, cx.core, vni, self.handle(index), entry);
    }

    /// The process that it names.
    pub(super) fn remote(&self) -> Name {
        Name {
            node: self.context.remote_node.get(),
            port: self.context.remote_port.get(),
        }
    }

    /// Flags that the direction has, and where the message meets its receive.
    fn check(&self, allowed: ContextFlags, bits: u64) -> Result<(ContextFlags, Space), Status> {
        let context = &self.context;
        let flags = self.flags.filter(|flags| allowed.contains(*flags));
        let flags = flags.ok_or(Status::Malformed)?;
        let untagged = flags.contains(ContextFlags::UNTAGGED);
        let endpoint = context.endpoint.get();
        let zero = context.reserved0.get() == 0 && context.reserved1.get() == 0;
        if !zero || endpoint >= ENDPOINTS || untagged && bits != 0 {
            return Err(Status::Malformed);
        }
        Ok((flags, Space { endpoint, untagged }))
    }

    fn pages(&self, flags: ContextFlags) -> Result<Pages, Status> {
        const EITHER: ContextFlags = ContextFlags::POOL.union(ContextFlags::LIST);
        let context = &self.context;
        let no_page = context.pool_page.get() == 0;
        let no_offset = context.pool_offset.get() == 0;
        let pool = &self.pool[..self.counts.pool_pages as usize];
        let pages = match flags.intersection(EITHER) {
            ContextFlags::POOL => Pages::of_pool(context, pool)?,
            ContextFlags::LIST
                if no_offset && usize::from(context.pool_page.get()) < pool.len() =>
            {
                Pages::listed(context, &self.list)?
            }
            none if none.is_empty() && no_page && no_offset => {
                let mut region = [PageDescriptor::default(); CONTEXT_PAGES];
                region
                    .as_mut_bytes()
                    .copy_from_slice(self.region.as_bytes());
                Pages::listed(context, &region[..self.counts.context_pages as usize])?
            }
            _ => return Err(Status::Malformed),
        };
        match pages.addresses.len() == usize::from(context.pages.get()) {
            true => Ok(pages),
            false => Err(Status::Malformed),
        }
    }

    /// The Send that it describes, its pages, and the bytes that stand in its region.
    pub(super) fn send(
        &self,
        index: u8,
    ) -> Result<(Send, Option<Pages>, [u64; INLINE_WORDS]), Status> {
        let context = &self.context;
        let (tag, length) = (context.tag.get(), context.length.get());
        let allowed = ContextFlags::all() - ContextFlags::ANY_PROC;
        let (flags, space) = self.check(allowed, tag)?;
        let inline = flags.contains(ContextFlags::REGION);
        let pages = match inline {
            false => Some(self.pages(flags)?),
            true => {
                let named = context.local_key.get() != 0
                    || context.local_segment.get() != 0
                    || context.pages.get() != 0
                    || flags.intersects(ContextFlags::POOL | ContextFlags::LIST);
                if named {
                    return Err(Status::Malformed);
                }
                if length > region_bytes(self.counts) as u64 {
                    return Err(Status::BadLength);
                }
                None
            }
        };
        let send = Send {
            handle: self.handle(index),
            tag,
            immediate: context.ignore_or_immediate.get(),
            mark: context.mark.get(),
            incarnation: context.incarnation.get(),
            space,
            length,
            inline: inline && length > 0,
            local: LocalMemory::default(),
        };
        Ok((send, pages, self.region))
    }

    /// The receive that it describes, and its pages.
    pub(super) fn receive(&self, index: u8) -> Result<(Receive, Pages), Status> {
        let context = &self.context;
        let (tag, ignore) = (context.tag.get(), context.ignore_or_immediate.get());
        let allowed = ContextFlags::all() - ContextFlags::REGION;
        let (flags, space) = self.check(allowed, tag | ignore)?;
        let any = flags.contains(ContextFlags::ANY_PROC);
        let source = Source {
            name: self.remote(),
            incarnation: context.incarnation.get(),
        };
        if any && source != Source::default() || context.mark.get() != 0 {
            return Err(Status::Malformed);
        }
        let pages = self.pages(flags)?;
        let receive = Receive {
            handle: self.handle(index),
            pattern: Pattern::new((!any).then_some(source), tag, ignore),
            takes: Takes::One,
            least: 0,
            space,
            memory: Memory::Context {
                index,
                length: pages.length,
            },
        };
        Ok((receive, pages))
    }
}

/// Copies the page descriptors that a context has in a page of the pool, and the one behind them,
/// which ends the list; none if there is no such page, or if they are more than it has room for.
fn read_list<H: Host>(host: &H, context: &MessageContext, pool: &[u64]) -> Vec<PageDescriptor> {
    let count = usize::from(context.pages.get());
    let page = pool.get(usize::from(context.pool_page.get()));
    let Some(page) = page.filter(|_| count <= LIST_PAGES) else {
        return Vec::new();
    };
    let mut list = vec![PageDescriptor::default(); (count + 1).min(LIST_PAGES)];
    match host.memory().read(*page, list.as_mut_bytes()) {
        Ok(()) => list,
        Err(_) => Vec::new(),
    }
}

/// Tells a process of the end of an operation that it has issued.
pub(super) fn complete<H: Host>(
    host: &H,
    core: &mut Core,
    vni: VniId,
    handle: Handle,
    entry: CompletionEntry,
) {
    let (index, notify) = match handle {
        Handle::Command(handle) => {
            let handle = handle.into();
            return core.complete(host, vni, CompletionEntry { handle, ..entry });
        }
        Handle::Context { index, notify } => (index, notify),
    };
    let state = match notify || entry.status.get() != Status::Ok.code() {
        true => DoorbellState::Done,
        false => DoorbellState::Free,
    };
    let offset = match entry.kind == CompletionKind::Send as u8 {
        true => send_doorbell_offset(index.into()),
        false => receive_doorbell_offset(index.into()),
    };
    let entry = CompletionEntry {
        handle: u64::from(index).into(),
        state: (state as u32).into(),
        ..entry
    };
    core.ring_context(host, vni, offset, entry);
}
