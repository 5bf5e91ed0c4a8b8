//! Messages begin at their source, from a command or from a context, and send their frames.

use qnic_abi::command::CommandHeader;
use qnic_abi::host_area::CompletionKind;
use qnic_abi::message::{kind, packets, Message, MessageData, MessageRequest, SendFlags};
use qnic_abi::wire::fragments;
use qnic_abi::{Key, Status, VniId, PAGE_SIZE};

use super::command::{unlabelled, Name, Send};
use super::context::{Copied, Pages};
use super::receive::incarnation;
use super::sending::Sending;
use super::sends::Sends;
use super::{Context, Messages, Outgoing, Protocol, Turn};
use crate::core::{
    Counter, Fetched, Fragment, LookupSide, PageError, PageKey, PageRange, PerProcess, INLINE_WORDS,
};
use crate::env::Host;
use crate::ids::{OperationId, PeerIndex};
use crate::protocols::protocol::{Ends, Source};
use crate::transport::Window;

impl Sends {
    /// The frame that tells of a message: with all of it if it is short.
    pub(super) fn first_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        ends: &Ends,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let Some(sending) = self.get(id) else {
            return Turn::Idle;
        };
        let (command, destination) = (sending.command, sending.destination);
        let (page_key, inline) = (sending.page_key, sending.inline);
        let first = sending.at(0);
        let (room, max_payload) = cx.transport.room(ends.peer, command.length);
        if room == 0 {
            return Turn::Blocked(ends.peer, Window::Fragments);
        }
        if self.is_held_up(cx.core, destination.node) {
            return Turn::Idle;
        }
        let Some(stream) = self.streams.get(destination) else {
            return Turn::Idle;
        };
        if stream.first() != Some(id) {
            return Turn::Idle;
        }
        let after = match cx.transport.is_acknowledged(ends.peer, stream.last) {
            true => 0,
            false => stream.last,
        };
        let asks = stream.asks() && command.length > 0;
        let from = (after, incarnation(cx, id.vni()));
        // Bytes of a context that two pages share which are not adjacent are fetched one by one.
        let in_pieces = first.is_some_and(|(_, run)| run < command.length);
        let is_long = command.length > u64::from(max_payload.min(PAGE_SIZE as u32));
        if is_long || in_pieces || asks {
            ends.begin(outgoing, &request_of(&command, from, max_payload));
            return Turn::Send;
        }
        let length = command.length as usize;
        let source = match first {
            _ if length == 0 => Source::Nothing,
            None => {
                outgoing.inline = inline;
                Source::Inline(0)
            }
            Some((address, _)) => {
                let local = (id.vni(), address, page_key);
                match lock_source(cx, local, command.length, length, outgoing) {
                    Ok(locked) if locked == length => {}
                    Ok(locked) => {
                        // A frame has all of a short message.
                        cx.core.unlock_span(cx.host, &mut outgoing.pages, 0);
                        let address = address + locked as u64;
                        let left = (length - locked) as u64;
                        return Turn::Wait(PageRange::new(address, left, LookupSide::Source));
                    }
                    Err(turn) => return turn,
                }
                Source::Pages((address % PAGE_SIZE as u64) as usize)
            }
        };
        let body: Message<{ kind::MESSAGE }> = body_of(&command, from);
        ends.begin(outgoing, &body);
        outgoing.source = source;
        outgoing.length = length;
        outgoing.owner = id;
        Turn::Send
    }

    /// A frame of a message that has permission.
    pub(super) fn data_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        ends: &Ends,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let Some(sending) = self.get(id) else {
            return Turn::Idle;
        };
        let remaining = sending.allowed - sending.sent;
        let (room, max_payload) = cx.transport.room(ends.peer, remaining);
        if room == 0 {
            return Turn::Blocked(ends.peer, Window::Fragments);
        }
        // The path may have become wider since permission was asked for.
        let max_payload = max_payload.min(sending.packet_length);
        let page = PAGE_SIZE as u32;
        let shorter = page.div_ceil(max_payload.clamp(1, page));
        sending.limit = cx.core.limits.fragments_per_write.max(1) * shorter;
        let free = sending.limit.saturating_sub(sending.in_flight);
        let pages = budget.min(room).min(free).min(max_payload / page);
        // Borders of pages are where they would be in one piece.
        let local = sending.at(0).map(|(address, _)| address);
        let part = (sending.sent, remaining);
        let remote = sending.page_offset;
        let span = Fragment::next(part, (local, remote), pages, max_payload);
        let mut length = span.length as usize;
        if free == 0 || length == 0 {
            return Turn::Idle;
        }
        let source = match sending.at(span.offset) {
            None => {
                outgoing.inline = sending.inline;
                Source::Inline(span.offset as usize)
            }
            Some((address, run)) => {
                let local = (id.vni(), address, sending.page_key);
                length = length.min(run as usize);
                match lock_source(cx, local, remaining.min(run), length, outgoing) {
                    Ok(locked) => length = locked,
                    Err(turn) => return turn,
                }
                Source::Pages((address % PAGE_SIZE as u64) as usize)
            }
        };
        let page_offset = (remote + span.offset) % PAGE_SIZE as u64;
        let body = MessageData {
            receive: sending.receive.into(),
            offset: span.offset.into(),
            page_offset: (page_offset as u16).into(),
            ..MessageData::default()
        };
        ends.begin(outgoing, &body);
        outgoing.source = source;
        outgoing.length = length;
        outgoing.frame.envelope.fragments = fragments(page_offset, length) as u8;
        outgoing.owner = id;
        Turn::Send
    }
}

/// Locks the pages of `length` bytes of a message, of which `remaining` are left. Returns how
/// many bytes are locked.
fn lock_source<H: Host>(
    cx: &mut Context<'_, H>,
    (vni, address, key): (VniId, u64, PageKey),
    remaining: u64,
    length: usize,
    outgoing: &mut Outgoing,
) -> Result<usize, Turn> {
    let side = LookupSide::Source;
    let pages = &mut outgoing.pages;
    let range = (address, length);
    match cx.core.lock_some(cx.host, vni, range, key, side, pages) {
        Ok(()) => Ok(pages.bytes_from(address).min(length as u64) as usize),
        Err(PageError::Refused(status)) => Err(Turn::Refuse(status)),
        Err(PageError::Absent) => Err(Turn::Wait(PageRange::new(address, remaining, side))),
    }
}

fn body_of<const KIND: u8>(command: &Send, (after, source): (u64, u32)) -> Message<KIND> {
    let flags = match command.space.untagged {
        true => SendFlags::UNTAGGED,
        false => SendFlags::empty(),
    };
    Message {
        tag: command.tag.into(),
        immediate: command.immediate.into(),
        length: command.length.into(),
        after: after.into(),
        endpoint: command.space.endpoint.into(),
        flags: flags.bits().into(),
        mark: command.mark.into(),
        incarnation: command.incarnation.into(),
        source: source.into(),
    }
}

/// The request for permission, which tells in which packets the message would come (Q11).
fn request_of(command: &Send, from: (u64, u32), packet_length: u32) -> MessageRequest {
    MessageRequest {
        message: body_of(command, from),
        packets: packets(command.length, packet_length).into(),
        packet_length: packet_length.into(),
    }
}

/// A message that is to be sent, described by a command or by a context.
struct Described {
    command: Send,
    /// How its pages are found, or why they are not.
    checked: Result<PageKey, Status>,
    pages: Option<Box<Pages>>,
    inline: [u64; INLINE_WORDS],
}

impl PerProcess<Sends> {
    /// Begins to send a message.
    pub(super) fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        command: Send,
        fetched: &Fetched,
    ) {
        let header = &fetched.descriptor.header;
        let (command, inline) = unlabelled(command, fetched);
        let checked = command.local.authorise(cx.core, vni);
        let message = Described {
            command,
            checked,
            pages: None,
            inline,
        };
        self.begin(cx, vni, (header, fetched.peer), message);
    }

    /// Begins to send the message of a context.
    ///
    /// # Errors
    /// Malformed: the context is under way.
    pub(super) fn submit_context<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        index: u8,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        let sends = self.get_or_insert(vni);
        if sends.has_context(index) {
            return Err(Status::Malformed);
        }
        let kind = CompletionKind::Send;
        let header = &fetched.descriptor.header;
        let copied = Copied::read(cx.host, cx.core, vni, kind, (index, header));
        let (command, pages, inline) = match copied.send(index) {
            Ok(message) => message,
            Err(status) => {
                copied.refuse(cx, vni, (kind, index), status);
                return Ok(());
            }
        };
        sends.take_context(index);
        let nothing = Ok(PageKey::Table(Key(0)));
        let checked = pages
            .as_ref()
            .map_or(nothing, |pages| pages.authorise(cx.core, vni));
        let pages = pages.filter(|_| command.length > 0).map(Box::new);
        let message = Described {
            command,
            checked,
            pages,
            inline,
        };
        self.begin(cx, vni, (header, fetched.peer), message);
        Ok(())
    }

    fn begin<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        (header, peer): (&CommandHeader, Option<PeerIndex>),
        message: Described,
    ) {
        let Described {
            command,
            checked,
            pages,
            inline,
        } = message;
        let counter = Counter::Own;
        let id = (vni, Messages::ID);
        let Some(id) = cx.core.begin(id, (counter, false), header, peer) else {
            return;
        };
        let destination = Name {
            node: header.remote_node.get(),
            port: header.remote_port.get(),
        };
        let sends = self.get_or_insert(vni);
        let page_key = checked.unwrap_or(PageKey::Table(Key(0)));
        let mut sending = Sending::new(command, destination, (page_key, pages), inline);
        sending.newest = peer.map_or(0, |peer| cx.transport.newest(peer, destination.port));
        sends.put(id, sending);
        let transport = &*cx.transport;
        let has_arrived = |peer, last| transport.is_acknowledged(peer, last);
        let failure = match (checked, peer) {
            (Err(status), _) => Some(status),
            (Ok(_), None) => Some(Status::NoSuchNode),
            (Ok(_), Some(peer)) => {
                let joined = sends.streams.join(destination, peer, id, has_arrived);
                (!joined).then_some(Status::Exhausted)
            }
        };
        match failure {
            None => sends.update(cx, id),
            Some(status) => {
                cx.core.counters.refused(status);
                sends.fail(cx, id, status);
            }
        }
    }
}
