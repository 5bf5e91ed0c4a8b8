//! Messages between processes, matched in the NIC that receives them (Q3, Q4, Q11 to Q13).
//! docs/messages.md has the protocol as a whole.
//!
//! ```text
//!   source                                       destination
//!   its turn: lockPage ────── Message ─────────► in order? matched? copied, or staged
//!                         (short: all of it)
//!
//!   its turn ──────────────── MessageRequest ──► in order? matched? or kept
//!   Permitted ◄────────────── MessagePermit ──── a receive has taken it
//!   lockPage ──────────────── MessageData ─────► lockPage, copy, unlockPageDirty
//!   completion                                   completion
//! ```
//! | module | holds |
//! |---|---|
//! | `command` | from a descriptor to a checked command |
//! | `context` | what a process describes in its window instead |
//! | `turns`, `sends`, `sending`, `streams` | messages at their source: how they begin and their frames, where each stands, and their order |
//! | `inbox` | posted receives and waiting probes of a process |
//! | [`matching`] | which receive takes which message |
//! | `probe` | probes, and what they claim |
//! | `receive`, `data`, `endings` | messages at their destination |
//! | `sources`, `sought` | whether processes live that receives name, and which were asked for |
//! | `letters` | messages to members of a group, piece by piece |
//! | `staging`, `room` | messages that have arrived and are not done; their memory, and its shares |
//!
//! # Invariants
//! - A message is given to matching once, behind all that its source has sent to the same
//!   process before.
//! - The bytes of a message go from their source into staging memory or into the memory of its
//!   receive. Bytes for which there is no staging memory stay at their source; none is lost.
//! - Each command has one last completion: an operation at its end, a receive when it leaves.
//! - Memory is touched only through a segment that its process exports, which is looked up each
//!   time.

mod command;
mod context;
mod data;
mod endings;
mod inbox;
mod letters;

#[cfg_attr(
    not(any(test, feature = "testing")),
    expect(
        dead_code,
        unreachable_pub,
        reason = "the bench of the matching is outside of the crate"
    )
)]
pub mod matching;
mod probe;
mod receive;
mod room;
mod sending;
mod sends;
mod sought;
mod sources;
mod staging;
mod straight;
mod streams;
mod table;
mod turns;

use qnic_abi::command::{CommandBody, Descriptor};
use qnic_abi::context::Opcode as ContextOpcode;
use qnic_abi::message::{
    kind, Message, MessageData, MessageEnd, MessageGone, MessagePermit, MessageRequest,
    MessageSeek, Opcode, SendCommand,
};
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, SegmentId, Status, VniId, PAGE_SIZE};

use super::protocol::{Context, Ended, News, Outgoing, Protocol, Received, Turn};
use crate::budget::Budget;
use crate::config::Limits;
use crate::core::{Fetched, PerProcess, Subject};
use crate::env::{Host, Time};
use crate::frame::Arrival;
use crate::ids::OperationId;
use crate::stages::Kind;
use command::{labelled, Command};
use inbox::Inbox;
use letters::Begun;
use sends::Sends;
use staging::{Bytes, Staging};

/// State of the protocol.
#[derive(Debug, Default)]
pub(super) struct Messages {
    sends: PerProcess<Sends>,
    inboxes: PerProcess<Inbox>,
    staging: Staging,
    /// Messages of groups of which pieces are to come, by number.
    begun: Begun,
    /// Number of the receive or probe that was posted last.
    last_receive: u64,
    /// Processes with messages that are held back.
    holding: Vec<VniId>,
    /// When processes are asked for again whose NIC had no room for the question.
    seek_at: Option<Time>,
}

impl Messages {
    /// Receives that a process has posted, messages that wait for it, and their bytes.
    pub(super) fn inbox_counts(&self, vni: VniId) -> [u64; 3] {
        let posted = self.inboxes.look(vni).map_or(0, Inbox::posted_count);
        let (messages, staged) = self.staging.of_process(vni);
        [posted as u64, messages.into(), staged]
    }
}

impl Protocol for Messages {
    const OPERATIONS: Kind = Kind::Message;
    const OPCODES: &'static [u8] = &[
        Opcode::Send as u8,
        Opcode::Receive as u8,
        Opcode::Cancel as u8,
        Opcode::Probe as u8,
        ContextOpcode::SendContext as u8,
        ContextOpcode::ReceiveContext as u8,
    ];
    const KINDS: &'static [u8] = &[
        kind::MESSAGE,
        kind::MESSAGE_DATA,
        kind::MESSAGE_REQUEST,
        kind::MESSAGE_PERMIT,
        kind::MESSAGE_END,
        kind::MESSAGE_SEEK,
        kind::MESSAGE_GONE,
    ];
    const IN_ORDER: &'static [u8] = &[kind::MESSAGE_END, kind::MESSAGE_GONE];

    fn kind_of_command(command: &Descriptor) -> Kind {
        match Opcode::try_from(command.header.opcode) {
            Ok(Opcode::Send) => Kind::Send,
            Ok(Opcode::Receive) => Kind::Receive,
            Ok(Opcode::Cancel) => Kind::Cancel,
            Ok(Opcode::Probe) => Kind::Probe,
            Err(_) => match ContextOpcode::try_from(command.header.opcode) {
                Ok(ContextOpcode::SendContext) => Kind::SendContext,
                _ => Kind::ReceiveContext,
            },
        }
    }

    fn describe(command: &Fetched) -> Option<(u64, u64)> {
        let descriptor = &command.descriptor;
        let send: SendCommand = descriptor.read();
        let is_send = descriptor.header.opcode == SendCommand::OPCODE;
        is_send.then(|| (send.length.get(), send.tag.get()))
    }

    fn is_well_formed(frame: &Frame) -> bool {
        match frame.envelope.kind {
            kind::MESSAGE => {
                let length = frame.envelope.payload_length.get();
                frame.is::<Message<{ kind::MESSAGE }>>()
                    && frame.body::<Message<{ kind::MESSAGE }>>().length.get() == length.into()
            }
            kind::MESSAGE_DATA => frame.is::<MessageData>(),
            kind::MESSAGE_REQUEST => frame.is::<MessageRequest>(),
            kind::MESSAGE_PERMIT => frame.is::<MessagePermit>(),
            kind::MESSAGE_SEEK => frame.is::<MessageSeek>(),
            kind::MESSAGE_GONE => frame.is::<MessageGone>(),
            _ => frame.is::<MessageEnd>(),
        }
    }

    fn subject(frame: &Frame, from: u16, to: u16) -> Subject {
        let kind = frame.envelope.kind;
        let is_answer = matches!(kind, kind::MESSAGE_PERMIT | kind::MESSAGE_END);
        Subject::command(frame, if is_answer { to } else { from })
    }

    #[inline(never)] // It would cost transfers registers.
    fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        fetched: &Fetched,
    ) -> Result<(), Status> {
        match Command::try_from(&fetched.descriptor)? {
            Command::Send(command) => self.sends.submit(cx, vni, command, fetched),
            Command::Receive(command) => self.post(cx, vni, labelled(command, fetched)?),
            Command::SendContext(index) | Command::ReceiveContext(index)
                if u32::from(index) >= cx.core.geometry.counts.contexts =>
            {
                return Err(Status::Malformed)
            }
            Command::SendContext(index) => {
                return self.sends.submit_context(cx, vni, index, fetched)
            }
            Command::ReceiveContext(index) => return self.post_context(cx, vni, index, fetched),
            Command::ReceiveClaimed(command) => self.receive_claimed(cx, vni, command),
            Command::Probe(command) => self.probe(cx, vni, command),
            Command::Cancel(name) => self.cancel(cx, vni, name),
        }
        Ok(())
    }

    #[inline(never)] // It would cost transfers registers.
    fn turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        self.sends.turn(cx, id, budget, outgoing)
    }

    #[inline(never)] // It would cost transfers registers.
    fn sent<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, outgoing: &Outgoing) {
        self.sends.sent(cx, id, outgoing);
    }

    #[inline(never)] // It would cost transfers registers.
    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        match arrival.frame.envelope.kind {
            kind::MESSAGE => self.receive_message::<H, { kind::MESSAGE }>(cx, arrival, true),
            kind::MESSAGE_REQUEST => {
                self.receive_message::<H, { kind::MESSAGE_REQUEST }>(cx, arrival, false)
            }
            kind::MESSAGE_DATA => self.receive_data(cx, arrival),
            kind::MESSAGE_PERMIT => {
                self.sends.permit(cx, arrival);
                Received::Done
            }
            kind::MESSAGE_SEEK => {
                self.receive_seek(cx, arrival);
                Received::Done
            }
            kind::MESSAGE_GONE => {
                self.receive_gone(cx, arrival);
                Received::Done
            }
            _ => {
                self.receive_end(cx, arrival);
                Received::Done
            }
        }
    }

    fn receive_span<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> usize {
        match arrival.frame.envelope.kind {
            kind::MESSAGE_DATA => self.receive_data_span(cx, arrival),
            _ => 0,
        }
    }

    fn page_offset(frame: &Frame) -> usize {
        match frame.envelope.kind {
            kind::MESSAGE_DATA => frame.body::<MessageData>().page_offset.get().into(),
            _ => 0,
        }
    }

    fn advance(frame: &mut Frame, length: usize) {
        let mut body: MessageData = frame.body();
        let bytes = length as u64;
        let page_offset = (u64::from(body.page_offset.get()) + bytes) % PAGE_SIZE as u64;
        body.offset = body.offset.get().wrapping_add(bytes).into();
        body.page_offset = (page_offset as u16).into();
        frame.set_body(&body);
    }

    fn unavailable<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        status: Status,
    ) -> Received {
        if arrival.frame.envelope.kind == kind::MESSAGE_DATA {
            self.data_unavailable(cx, arrival, status);
        }
        Received::Refuse(status)
    }

    fn resume<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        job: u64,
        failed: Option<Status>,
    ) {
        let Some(message) = self.staging.get(job) else {
            return;
        };
        match (&message.bytes, failed) {
            // It only knows that pages were asked for: it asks again when all bytes are here.
            (Bytes::Coming(..) | Bytes::AtSource, _) => {}
            (Bytes::AtGroup, None) => {
                message.asked = false;
                self.staging.openings.open(vni);
            }
            (Bytes::Staged(_), None) => self.proceed(cx, job),
            (_, Some(status)) => self.end_landing(cx, job, status.for_owner()),
        }
    }

    fn update<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        self.sends.update(cx, id);
    }

    #[inline(never)] // It would cost transfers registers.
    fn settled<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, fragments: u32) {
        self.sends.settled(cx, id, fragments);
    }

    fn refused<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        sequence: u64,
        status: Status,
    ) {
        self.sends.refused(cx, id, sequence, status);
    }

    fn fail<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId, status: Status) {
        self.sends.fail(cx, id, status);
    }

    fn lost<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        self.sends.lost(cx, id);
    }

    fn outlives(&mut self, id: OperationId, news: News) -> bool {
        self.sends.outlives(id, news)
    }

    fn uses_segment(&mut self, id: OperationId, segment: SegmentId) -> bool {
        self.sends.uses_segment(id, segment)
    }

    fn ended<H: Host>(&mut self, cx: &mut Context<'_, H>, ended: Ended) {
        match ended {
            Ended::Operations(vni) => {
                self.sends.forget(cx, vni, true);
                self.forget_receives(cx, vni);
            }
            Ended::Process(vni) => {
                self.sends.forget(cx, vni, false);
                self.destination_ended(cx, vni);
                // Peers are told by the core; the own node is not.
                let mut own = cx.transport.peers().into_iter();
                let own = own.find(|index| cx.transport.is_own(*index));
                let port = cx.core.process(vni).map(|process| process.port);
                if let (Some(own), Some(port)) = (own, port) {
                    self.source_ended(cx, own, port, u64::MAX);
                }
            }
            Ended::Segment(vni, segment) => self.segment_ended(cx, vni, segment),
            Ended::Session(peer, node, _) => {
                self.sends.session_ended(peer);
                self.session_ended(cx, peer);
                self.fail_receives(cx, |source| source.name.node == node.0, u64::MAX);
                self.forget_sought(node);
                cx.core.read_receives();
            }
            // Its processes live: receives from them stay.
            Ended::Left(peer, node, _) | Ended::Unreached(peer, node, _) => {
                self.sends.session_ended(peer);
                self.session_ended(cx, peer);
                self.forget_sought(node);
                if matches!(ended, Ended::Left(..)) && self.awaits(node) {
                    self.seek_all(cx);
                }
            }
            Ended::PeerProcess(peer, port, before) => self.source_ended(cx, peer, port, before),
        }
    }

    fn peers_added<H: Host>(&mut self, cx: &mut Context<'_, H>, some: bool) {
        if some {
            self.seek_all(cx);
        }
    }

    fn awaits(&self, node: NodeId) -> bool {
        let mut inboxes = self.inboxes.values();
        self.staging.awaits(node.0)
            || inboxes.any(|inbox| inbox.names(node.0))
            || self.sends.values().any(|sends| sends.await_permit(node.0))
    }

    fn expire<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        let mut busy = self.seek_in_time(cx);
        busy |= !self.holding.is_empty() && self.release(cx);
        if self.staging.room.has_turns() {
            busy |= self.give_room(cx);
        }
        busy
    }

    fn deadline(&self) -> Option<Time> {
        self.seek_at
    }

    fn budgets(&self, limits: &Limits, budgets: &mut Vec<Budget>) {
        let staging = &self.staging;
        let receives = self.inboxes.values().map(Inbox::posted_count);
        let probes = self.inboxes.values().map(Inbox::probe_count);
        let messages = staging.messages_of_processes();
        let bytes = staging.room.of_processes();
        let of_peers = staging.room.of_nodes();
        let envelopes = staging.envelopes_of_nodes();
        budgets.extend([
            Budget::most("receives_of_process", receives, limits.receives),
            Budget::most("probes_of_process", probes, limits.probes),
            Budget::most("messages_of_process", messages, limits.unexpected()),
            Budget::most(
                "staged_bytes_of_process",
                bytes,
                limits.staged_bytes + room::LETTER,
            ),
            Budget::most(
                "staged_bytes_of_peer",
                of_peers,
                limits.staged_bytes_per_peer + room::LETTER,
            ),
            Budget::most("envelopes_of_peer", envelopes, limits.envelopes_per_peer),
        ]);
    }
}
