//! Messages at their destination: from a frame to the memory of a receive.
//!
//! ```text
//!   frame ──► early? ── no ──► backlog? ── no ──► matched? ── yes ──► landing ──► completion
//!               │ yes             │ yes              │ no               │ pages absent, or the
//!               ▼                 ▼                  ▼                  ▼ bytes at the source
//!             Early             Held            Unexpected           Landing
//! ```
//! A message is held, in the backlog, while its process has completions that wait for room, or while
//! its messages have walked over enough receives with rare masks for this poll.
//!
//! An unexpected message whose bytes are at its source gets a permit into staging memory if there is
//! room for it. It lands when all of them are there. Those that come after its receive go straight to
//! the pages of that ([`straight`](super::straight)).
//!
//! A message is early if the one that its frame names has not arrived or is early itself. So
//! the order of its early messages is all that is kept of a stream. When the source of a stream
//! ends, the next process on its port names no earlier frame. When the destination ends, the order
//! stays: messages on their way go to the next process on that port.

use std::sync::atomic::Ordering;

use qnic_abi::host_area::{CompletionEntry, CompletionKind, COMPLETION_MORE};
use qnic_abi::message::{Message, MessageRequest, SendFlags};
use qnic_abi::window::INCARNATION;
use qnic_abi::{NodeId, SharedMemory, Status, VniId};

use super::command::{Handle, Name, Receive, Space};
use super::context::{complete, Copied};
use super::data::{copy_gaps, copy_in, pages_from, permit};
use super::inbox::Posted;
use super::matching;
use super::staging::{Arrived, Bytes, Header, Landing, Place};
use super::{Context, Messages, Protocol, Received};
use crate::core::{Fetched, PageError, Waiter};
use crate::env::{Host, Payload};
use crate::frame::Arrival;
use crate::ids::PeerIndex;

/// Messages that are looked at for room in one poll, at most.
const ROOM_TURNS: usize = 64;

/// The completion of a receive that has no message.
pub(super) fn failed_receive(posted: &Posted, status: Status) -> CompletionEntry {
    let command = &posted.command;
    let source = command.pattern.process().unwrap_or_default();
    CompletionEntry {
        tag: command.pattern.tag().into(),
        offset: posted.filled().into(),
        status: status.code().into(),
        node: source.node.into(),
        port: source.port.into(),
        kind: CompletionKind::Receive as u8,
        endpoint: command.space.endpoint.into(),
        ..CompletionEntry::default()
    }
}

/// A process waits for a message of this source: the silence of its node is noticed from now on
/// (U10). Returns false if the node is known to be gone.
pub(super) fn expect<H: Host>(cx: &mut Context<'_, H>, source: Option<Name>) -> bool {
    source.is_none_or(|source| cx.transport.expect(cx.now, NodeId(source.node)))
}

/// The process that a frame is for.
///
/// # Errors
/// None is on its port; PeerGone: it has another incarnation than the frame names.
pub(super) fn process_of<H: Host>(
    cx: &Context<'_, H>,
    arrival: &Arrival<'_, H::Memory>,
    named: u32,
) -> Result<VniId, Status> {
    let port = arrival.frame.envelope.destination_port.get();
    let (vni, _) = cx.core.process_on(port)?;
    match named == 0 || named == incarnation(cx, vni) {
        true => Ok(vni),
        false => Err(Status::PeerGone),
    }
}

/// The incarnation that a process has stored; zero: none.
pub(super) fn incarnation<H: Host>(cx: &Context<'_, H>, vni: VniId) -> u32 {
    let word = cx.core.geometry.window_offset(vni) + INCARNATION;
    // Relaxed: a peer knows the number only from the process, which has stored it before.
    cx.host.sram().load_u64(word, Ordering::Relaxed) as u32
}

/// The number of the last frame of a process that has arrived here before an earlier one of its node
/// ([`Transport::newest`](crate::transport::Transport::newest)).
pub(super) fn newest<H: Host>(cx: &Context<'_, H>, source: Option<Name>) -> u64 {
    let peer = source.and_then(|source| Some((cx.transport.find(NodeId(source.node))?, source)));
    peer.map_or(0, |(peer, source)| cx.transport.newest(peer, source.port))
}

impl Messages {
    /// Ends a receive, or its part in a message.
    pub(super) fn finish<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        header: &Header,
        landing: &Landing,
        status: Status,
    ) {
        let truncated = landing.allowed < header.length && status == Status::Ok;
        let status = if truncated { Status::Truncated } else { status };
        let entry = CompletionEntry {
            tag: header.tag.into(),
            immediate: header.immediate.into(),
            mark: header.mark.into(),
            incarnation: header.incarnation.into(),
            length: header.length.into(),
            offset: landing.offset.into(),
            status: status.code().into(),
            node: header.source.node.into(),
            port: header.source.port.into(),
            kind: CompletionKind::Receive as u8,
            flags: if landing.more { COMPLETION_MORE } else { 0 },
            endpoint: header.space.endpoint.into(),
            ..CompletionEntry::default()
        };
        self.complete_receive(cx, header.vni, landing.handle, entry);
        // It is likely to answer.
        cx.core.activate(header.vni, Some(cx.now));
    }

    /// Tells a process of the end of its receive, or of its part in a message.
    pub(super) fn complete_receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        handle: Handle,
        entry: CompletionEntry,
    ) {
        if let (Handle::Context { index, .. }, Some(inbox)) = (handle, self.inboxes.get(vni)) {
            inbox.free_context(index);
        }
        complete(cx.host, cx.core, vni, handle, entry);
    }

    /// Posts the receive of a context.
    ///
    /// # Errors
    /// Malformed: the context is under way.
    pub(super) fn post_context<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        index: u8,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        let kind = CompletionKind::Receive;
        let header = &fetched.descriptor.header;
        let copied = Copied::read(cx.host, cx.core, vni, kind, (index, header));
        let inbox = self.inboxes.get_or_insert(vni);
        match copied.receive(index) {
            Ok((command, pages)) => {
                if !inbox.take_context(index, pages) {
                    return Err(Status::Malformed);
                }
                self.post(cx, vni, command);
            }
            Err(_) if inbox.has_context(index) => return Err(Status::Malformed),
            Err(status) => {
                copied.refuse(cx, vni, (kind, index), status);
            }
        }
        Ok(())
    }

    /// Posts a receive; gives it the messages that have come for it.
    pub(super) fn post<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId, command: Receive) {
        let mut posted = Posted::new(command);
        let inbox = self.inboxes.get_or_insert(vni);
        if let Err(status) = inbox.authorise(cx.core, vni, &command.memory) {
            cx.core.counters.refused(status);
            return self.fail_receive(cx, vni, &posted, status);
        }
        loop {
            let inbox = self.inboxes.get_or_insert(vni);
            let space = inbox.space(command.space, &cx.core.limits);
            let Some(message) = space.claim(command.pattern) else {
                break;
            };
            let Some(arrived) = self.staging.get(message.handle) else {
                continue;
            };
            let landing = posted.take(arrived.header.length);
            self.land(cx, message.handle, landing);
            if !landing.more {
                return self.note_messages(cx, vni);
            }
        }
        self.note_messages(cx, vni);
        if !expect(cx, command.pattern.process()) {
            return self.fail_receive(cx, vni, &posted, Status::PeerGone);
        }
        posted.newest = newest(cx, command.pattern.process());
        self.last_receive += 1;
        let inbox = self.inboxes.get_or_insert(vni);
        match inbox.post(&cx.core.limits, self.last_receive, posted) {
            true => {
                self.staging.openings.open(vni);
                self.seek(cx, vni, command.pattern.source());
            }
            false => self.fail_receive(cx, vni, &posted, Status::Exhausted),
        }
    }

    /// A receive was read: the next one needs a doorbell only if messages are left.
    fn note_messages<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        if self
            .inboxes
            .get(vni)
            .is_some_and(|inbox| !inbox.has_messages())
        {
            cx.core.no_message_waits(vni);
        }
    }

    /// A message that is kept has found its receive.
    pub(super) fn land<H: Host>(&mut self, cx: &mut Context<'_, H>, number: u64, landing: Landing) {
        self.staging.set_place(number, Place::Landing(landing));
        let Some(message) = self.staging.get(number) else {
            return;
        };
        let header = message.header;
        match message.bytes {
            Bytes::Staged(_) => return self.proceed(cx, number),
            // It goes on when all bytes are there: those that have come are copied then, and those
            // that come from now on go straight to its pages.
            Bytes::Coming(..) => return,
            Bytes::AtGroup => return self.staging.openings.open(header.vni),
            Bytes::AtSource => {}
        }
        self.staging.wants_no_room(number);
        let inbox = self.inboxes.get_or_insert(header.vni);
        let (address, _) = inbox.at(&landing.memory, landing.offset);
        permit(cx, &header, number, landing.allowed, address);
        if landing.allowed == 0 {
            self.staging.remove(number);
            self.finish(cx, &header, &landing, Status::Ok);
        }
    }

    /// Copies a staged message into the memory of its receive, as far as that is there.
    pub(super) fn proceed<H: Host>(&mut self, cx: &mut Context<'_, H>, number: u64) {
        let Some(message) = self.staging.get(number) else {
            return;
        };
        let (Place::Landing(landing), Bytes::Staged(bytes)) = (&mut message.place, &message.bytes)
        else {
            return;
        };
        let (header, straight) = (message.header, &message.straight);
        let bytes = &bytes[..];
        let payload = match bytes.is_empty() {
            true => Payload::None,
            false => Payload::Bytes(bytes),
        };
        let inbox = self.inboxes.get_or_insert(header.vni);
        let status = match copy_gaps(cx, inbox, header.vni, landing, straight, &payload) {
            Ok(()) => Status::Ok,
            Err(PageError::Refused(status)) => status,
            Err(PageError::Absent) => {
                let range = pages_from(inbox, landing, landing.arrived);
                let job = Waiter::Job(Self::ID, number);
                return cx.core.wait_for_pages(header.vni, range, job);
            }
        };
        self.end_landing(cx, number, status);
    }

    /// Ends a message that has found its receive.
    pub(super) fn end_landing<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        number: u64,
        status: Status,
    ) {
        if let Some(message) = self.staging.remove(number) {
            if let Place::Landing(landing) = message.place {
                self.finish(cx, &message.header, &landing, status);
            }
        }
    }

    /// Receives the frame that tells of a message; `eager`: with all of it.
    pub(super) fn receive_message<H: Host, const KIND: u8>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        eager: bool,
    ) -> Received {
        let body: Message<KIND> = arrival.body();
        let envelope = &arrival.frame.envelope;
        let (sequence, after) = (envelope.sequence.get(), body.after.get());
        if after >= sequence {
            return Received::Refuse(Status::Malformed);
        }
        let early = after != 0
            && (!cx.transport.has_arrived(arrival.peer, after)
                || self.staging.is_early(arrival.peer, after));
        let vni = match process_of(cx, arrival, body.incarnation.get()) {
            Ok(vni) => vni,
            Err(status) => {
                cx.core.counters.refused(status);
                match early {
                    true => self.skip(cx, arrival.peer, sequence, after),
                    false => self.match_followers(cx, arrival.peer, sequence),
                }
                return Received::Refuse(status);
            }
        };
        let header = Header {
            vni,
            peer: arrival.peer,
            source: Name {
                node: envelope.source_node.get(),
                port: envelope.source_port.get(),
            },
            sequence,
            operation: envelope.operation.get(),
            space: Space {
                endpoint: body.endpoint.get(),
                untagged: body.flags.get() & SendFlags::UNTAGGED.bits() != 0,
            },
            tag: body.tag.get(),
            immediate: body.immediate.get(),
            mark: body.mark.get(),
            incarnation: body.source.get(),
            length: body.length.get(),
            packet_length: match eager {
                true => body.length.get(),
                false => arrival.body::<MessageRequest>().packet_length.get().into(),
            },
            of_group: false,
        };
        if early {
            let number = self.staging.next_number();
            let received = self.keep(cx, arrival, (number, header), Place::Early(after), eager);
            if received == Received::Refuse(Status::Exhausted) {
                self.skip(cx, arrival.peer, sequence, after);
            }
            return received;
        }
        let received = match self.is_held_back(cx, vni) {
            true => {
                let number = self.staging.next_number();
                let received = self.keep(cx, arrival, (number, header), Place::Held, eager);
                self.hold(vni, number);
                received
            }
            false => self.match_message(cx, arrival, header, eager),
        };
        self.match_followers(cx, arrival.peer, sequence);
        received
    }

    /// An early message is not kept: those behind it still wait for the one before it.
    pub(super) fn skip<H: Host>(
        &mut self,
        cx: &Context<'_, H>,
        peer: PeerIndex,
        sequence: u64,
        after: u64,
    ) {
        let received = cx.transport.received(peer);
        self.staging.skip(peer, sequence, after, received);
    }

    /// Returns true if nothing is given to the receives of a process now.
    pub(super) fn is_held_back<H: Host>(&mut self, cx: &Context<'_, H>, vni: VniId) -> bool {
        let inbox = self.inboxes.get(vni);
        inbox.is_some_and(|inbox| !inbox.held.is_empty() || inbox.is_tired())
            || cx.core.has_completion_backlog(vni)
    }

    fn hold(&mut self, vni: VniId, number: u64) {
        if self.staging.get(number).is_some() {
            self.inboxes.get_or_insert(vni).held.push_back(number);
            self.await_release(vni);
        }
    }

    /// Looks for the time when messages can be given to a process again.
    pub(super) fn await_release(&mut self, vni: VniId) {
        if !self.holding.contains(&vni) {
            self.holding.push(vni);
        }
    }

    /// Gives a message that comes in order to its receive, or keeps it for one.
    fn match_message<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        header: Header,
        eager: bool,
    ) -> Received {
        let number = self.staging.next_number();
        let inbox = self.inboxes.get_or_insert(header.vni);
        let receive = match inbox.arrive(&cx.core.limits, &header, number) {
            Ok(matching::Arrived::Matched(receive)) => receive.handle,
            Ok(matching::Arrived::Queued(id)) => {
                let place = Place::Unexpected(id);
                let received = self.keep(cx, arrival, (number, header), place, eager);
                if self.staging.get(number).is_none() {
                    let inbox = self.inboxes.get_or_insert(header.vni);
                    let space = inbox.space(header.space, &cx.core.limits);
                    space.discard(id);
                } else {
                    self.offer(cx, &header, (number, id));
                    self.stage(cx, number);
                }
                return received;
            }
            Err(matching::Full) => return Received::Refuse(Status::Exhausted),
        };
        let Some(mut landing) = inbox.land(receive, header.length) else {
            return Received::Refuse(Status::Aborted);
        };
        if eager {
            let payload = &arrival.payload;
            let status = match copy_in(cx, inbox, header.vni, &mut landing, payload) {
                Ok(()) => Some(Status::Ok),
                Err(PageError::Refused(status)) => Some(status),
                Err(PageError::Absent) => None,
            };
            if let Some(status) = status {
                self.finish(cx, &header, &landing, status);
                return Received::Done;
            }
        }
        let place = Place::Landing(landing);
        let received = self.keep(cx, arrival, (number, header), place, eager);
        match self.staging.get(number).map(|message| message.is_staged()) {
            None => {
                let Received::Refuse(status) = received else {
                    return received;
                };
                self.finish(cx, &header, &landing, status);
            }
            Some(true) => self.proceed(cx, number),
            Some(false) => {
                landing.arrived = 0;
                self.land(cx, number, landing);
            }
        }
        received
    }

    /// Keeps a message, with its bytes if there is room for them.
    fn keep<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        (number, header): (u64, Header),
        place: Place,
        eager: bool,
    ) -> Received {
        let limits = &cx.core.limits;
        let length = arrival.payload.len();
        let mut bytes = Bytes::AtSource;
        if eager && self.staging.has_room(limits, &header, length) {
            let mut copy = vec![0; length].into_boxed_slice();
            if arrival.payload.read(&mut copy).is_ok() {
                bytes = Bytes::Staged(copy);
            }
        }
        let message = Arrived::new(header, place, bytes);
        let staged = message.is_staged();
        match self.staging.insert(limits, number, message) {
            Err(status) => Received::Refuse(status),
            Ok(()) if eager && !staged => Received::Refuse(Status::NotStaged),
            Ok(()) => Received::Done,
        }
    }

    /// Goes on with messages that have waited for that of a frame.
    pub(super) fn match_followers<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        peer: PeerIndex,
        mut sequence: u64,
    ) {
        loop {
            if let Some(skipped) = self.staging.pass(peer, sequence) {
                sequence = skipped;
                continue;
            }
            let Some(number) = self.staging.follower(peer, sequence) else {
                return;
            };
            let Some(message) = self.staging.get(number) else {
                return;
            };
            let header = message.header;
            sequence = header.sequence;
            match self.is_held_back(cx, header.vni) {
                true => {
                    self.staging.set_place(number, Place::Held);
                    self.hold(header.vni, number);
                }
                false => self.match_kept(cx, number, header),
            }
        }
    }

    /// Gives a message that is kept to its receive, or lets it wait for one.
    fn match_kept<H: Host>(&mut self, cx: &mut Context<'_, H>, number: u64, header: Header) {
        let inbox = self.inboxes.get_or_insert(header.vni);
        match inbox.arrive(&cx.core.limits, &header, number) {
            Ok(matching::Arrived::Matched(receive)) => {
                match inbox.land(receive.handle, header.length) {
                    Some(landing) => self.land(cx, number, landing),
                    None => drop(self.staging.remove(number)),
                }
            }
            Ok(matching::Arrived::Queued(id)) => {
                self.staging.set_place(number, Place::Unexpected(id));
                self.offer(cx, &header, (number, id));
                self.stage(cx, number);
            }
            // Cannot be: the staging bounds what the matching holds.
            Err(matching::Full) => drop(self.staging.remove(number)),
        }
    }

    /// Lets the bytes of a message that no receive takes come into staging memory, if there is room
    /// (Q12); otherwise they stay at their source until there is, or until a receive takes it.
    pub(super) fn stage<H: Host>(&mut self, cx: &mut Context<'_, H>, number: u64) {
        if let Some(header) = self.staging.begin(&cx.core.limits, number) {
            permit(cx, &header, number, header.length, 0);
        }
    }

    /// Gives room that has become free to messages that wait for some. Returns true if it has
    /// done anything.
    #[cold]
    pub(super) fn give_room<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        for looked in 0..ROOM_TURNS {
            let Some(number) = self.staging.room.turn() else {
                return looked > 0;
            };
            self.stage(cx, number);
            self.staging.pass_if_it_waits(number);
        }
        true
    }

    /// Gives messages to processes that have read completions, or may walk over receives again.
    /// Returns true if there were any.
    pub(super) fn release<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        let mut busy = false;
        for vni in std::mem::take(&mut self.holding) {
            if let Some(inbox) = self.inboxes.get(vni) {
                inbox.rest();
            }
            loop {
                let backlog = cx.core.has_completion_backlog(vni);
                let Some(inbox) = self.inboxes.get(vni).filter(|_| !backlog) else {
                    match backlog {
                        true => self.holding.push(vni),
                        false => self.staging.openings.open(vni),
                    }
                    break;
                };
                if inbox.is_tired() && !inbox.held.is_empty() {
                    self.holding.push(vni);
                    break;
                }
                let Some(number) = inbox.held.pop_front() else {
                    self.staging.openings.open(vni);
                    break;
                };
                busy = true;
                if let Some(header) = self.staging.get(number).map(|message| message.header) {
                    self.match_kept(cx, number, header);
                }
            }
        }
        busy
    }
}
