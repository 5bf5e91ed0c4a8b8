//! What a protocol is: the questions that the NIC asks it, and what it may touch to
//! answer them.
//!
//! ```text
//!   command ─► submit ─► turn ─► Send ─► sent ── settled or refused ─► its end
//!                         └► Wait, Blocked ─ … ─► update ─► turn
//!   frame ──► receive ─► Done | Refuse
//!                └► Wait ─ pages come ─► receive again; never ─► unavailable
//!                └► Queue ─► respond ─► Send ─► responded
//! ```
//! A protocol neither sends nor waits: it says what is to be sent or waited for. So it
//! does not know how a page comes, what a wire is, or that there are other protocols.

use std::sync::Arc;

use qnic_abi::command::Descriptor;
use qnic_abi::control::RequestHeader;
use qnic_abi::wire::{Body, Frame};
use qnic_abi::{NodeId, Port, SegmentId, Status, VniId, PAGE_SIZE};
use zerocopy::FromZeros;

use crate::budget::Budget;
use crate::config::Limits;
use crate::control_reply::Reply;
use crate::core::{Core, Fetched, LockedSpan, PageRange, Segment, Subject, INLINE_WORDS};
use crate::env::{Host, Time};
use crate::frame::{Arrival, StoredFrame};
use crate::ids::{OperationId, PeerIndex, ProtocolId};
use crate::stages::Kind;
use crate::trace::{Event, What};
use crate::transport::{Transport, Window};

/// What a protocol may touch.
pub(crate) struct Context<'a, H> {
    pub(crate) now: Time,
    pub(crate) host: &'a H,
    pub(crate) core: &'a mut Core,
    pub(crate) transport: &'a mut Transport,
}

impl<H: Host> Context<'_, H> {
    /// Something happens to what a process has called, which is no operation of the core; `said` is what the event says.
    #[inline]
    pub(crate) fn trace(&mut self, vni: VniId, what: What, subject: Subject, said: Said) {
        if self.core.tracing.on {
            self.trace_shown(vni, what, &subject, said);
        }
    }

    #[cold]
    fn trace_shown(&mut self, vni: VniId, what: What, subject: &Subject, said: Said) {
        let time = self.host.clock();
        let Some(now) = time.filter(|_| self.core.tracing.shows_subject(subject)) else {
            return;
        };
        let port = self.core.process(vni).map_or(0, |process| process.port.0);
        let own = self.core.geometry.node.0;
        self.core.tracing.push(Event {
            port,
            peer: said.node.unwrap_or(own),
            code: said.code,
            bytes: said.bytes,
            detail: said.detail,
            ..Event::of(now.0, own, what, subject)
        });
    }

    /// What a process has called has ended.
    #[inline]
    pub(crate) fn trace_ended(&mut self, vni: VniId, subject: Subject, status: Status) {
        let code = status.code();
        let said = Said {
            code,
            ..Said::default()
        };
        self.trace(vni, What::Ended, subject, said);
    }
}

/// What an event says ([`What`]).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Said {
    /// The other node, if there is one.
    pub(crate) node: Option<u16>,
    pub(crate) code: u32,
    pub(crate) bytes: u64,
    pub(crate) detail: u64,
}

impl<H> Context<'_, H> {
    /// No answer is awaited any more to what a protocol's operations of a process have
    /// asked for: so many requests each, by slot.
    pub(crate) fn forget_requests(
        &mut self,
        vni: VniId,
        protocol: ProtocolId,
        mut requests: impl FnMut(OperationId) -> u32,
    ) {
        let operations = self.core.process(vni).into_iter();
        let operations = operations.flat_map(|process| process.operations.running());
        for operation in operations.filter(|operation| operation.protocol == protocol) {
            let count = requests(operation.id);
            if count > 0 {
                self.transport.answered(operation.peer, count);
            }
        }
    }
}

/// Where the payload of a frame comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Source {
    /// There is none.
    #[default]
    Nothing,
    /// [`Outgoing::inline`], from this offset on.
    Inline(usize),
    /// [`Outgoing::pages`], from this offset in the first on.
    Pages(usize),
    /// [`Outgoing::bytes`].
    Bytes,
}

/// A frame that is to be sent. One is used for turn after turn, and filled in where it
/// stands: it is too large to be handed on by value.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) peer: PeerIndex,
    pub(crate) frame: Frame,
    pub(crate) source: Source,
    /// Payload bytes.
    pub(crate) length: usize,
    /// The operation that learns when the fragments of the frame are delivered, if it is
    /// of class Windowed.
    pub(crate) owner: OperationId,
    /// The inline payload of a command, as it stood in the entry.
    pub(crate) inline: [u64; INLINE_WORDS],
    /// Locked pages; they are unlocked when the frame is sent.
    pub(crate) pages: LockedSpan,
    /// Bytes of the NIC itself.
    pub(crate) bytes: Option<Arc<[u8]>>,
}

impl Default for Outgoing {
    fn default() -> Self {
        Outgoing {
            peer: PeerIndex::default(),
            frame: Frame::new_zeroed(),
            source: Source::Nothing,
            length: 0,
            owner: OperationId::default(),
            inline: [0; INLINE_WORDS],
            pages: LockedSpan::default(),
            bytes: None,
        }
    }
}

impl Outgoing {
    /// Makes it a frame with this body and without a payload.
    #[inline]
    pub(crate) fn begin<B: Body>(&mut self, peer: PeerIndex, body: &B) {
        self.peer = peer;
        self.frame.begin(body);
        self.source = Source::Nothing;
        self.length = 0;
        self.owner = OperationId::default();
        self.bytes = None;
    }

    /// Gives it this payload.
    pub(crate) fn set_bytes(&mut self, bytes: Arc<[u8]>) {
        self.length = bytes.len();
        self.source = Source::Bytes;
        self.bytes = Some(bytes);
    }

    /// As how many fragments it counts in a turn. A frame of class Unreliable has none, but it may be
    /// as long as several.
    #[inline]
    pub(crate) fn fragments(&self) -> u32 {
        let own = u32::from(self.frame.envelope.fragments);
        own.max(self.length.div_ceil(PAGE_SIZE) as u32)
    }
}

/// The two processes of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) peer: PeerIndex,
    id: OperationId,
    port: Port,
    remote_port: Port,
}

impl Ends {
    /// Those of an operation that runs.
    #[inline]
    pub(crate) fn of(core: &mut Core, id: OperationId) -> Option<Self> {
        let process = core.process_mut(id.vni())?;
        let port = process.port;
        let operation = process.operations.find(id)?;
        Some(Ends {
            peer: operation.peer,
            id,
            port,
            remote_port: operation.remote_port,
        })
    }

    /// The operation.
    pub(crate) fn operation(&self) -> OperationId {
        self.id
    }

    /// Makes `outgoing` a frame of the operation, from the one to the other.
    #[inline]
    pub(crate) fn begin<B: Body>(&self, outgoing: &mut Outgoing, body: &B) {
        outgoing.begin(self.peer, body);
        let envelope = &mut outgoing.frame.envelope;
        envelope.source_port = self.port.0.into();
        envelope.destination_port = self.remote_port.0.into();
        envelope.operation = self.id.0.into();
    }
}

/// What a protocol does with a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Turn {
    /// It sends the frame that it has filled in.
    Send,
    /// It has nothing to send.
    Idle,
    /// It waits for a window of the peer.
    Blocked(PeerIndex, Window),
    /// It waits for pages of the process that has the turn.
    Wait(PageRange),
    /// The operation fails; the frame that was to be answered is refused.
    Refuse(Status),
}

/// What a protocol makes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// It is delivered, or of no use.
    Done,
    /// Its sender learns why it is not delivered.
    Refuse(Status),
    /// It waits for pages of a process, and is then received again.
    Wait(VniId, PageRange),
    /// It is answered when the process has a turn.
    Queue(VniId),
}

/// Something that a protocol may remember is gone.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ended {
    /// All operations of the queue of a process: no peer has to learn of them.
    Operations(VniId),
    /// A process.
    Process(VniId),
    /// A segment of a process: no page is touched for it any more.
    Segment(VniId, SegmentId),
    /// The session with a peer. It can be tried again at that time.
    Session(PeerIndex, NodeId, Time),
    /// The same of one that the two sides have left: nothing ran in it, and no process ended. What
    /// was to run in it can run in the next.
    Left(PeerIndex, NodeId, Time),
    /// A peer is given up that no session was begun with.
    Unreached(PeerIndex, NodeId, Time),
    /// A process of a peer: what it sent before a frame of that number is void.
    PeerProcess(PeerIndex, Port, u64),
}

/// News of a peer: a process has ended. It may come late.
#[derive(Debug, Clone, Copy)]
pub(crate) struct News {
    /// Sequence number of the frame that brings it. Frames of the next process have larger ones.
    pub(crate) number: u64,
    /// No frame of this node above this number had arrived when the process ended.
    pub(crate) last_received: u64,
}

impl News {
    /// Those of the own node, which are never late.
    pub(crate) const OWN: News = News {
        number: u64::MAX,
        last_received: u64::MAX,
    };
}

/// What the list of protocols says of each.
pub(crate) trait Listed {
    /// Its place in the list.
    const PLACE: u8;
}

/// A protocol. Those that have no commands, or answer nothing, leave questions out.
pub(crate) trait Protocol: Listed {
    /// Its number, by which the core and the transport know it.
    const ID: ProtocolId = ProtocolId(Self::PLACE);
    /// What its operations count as in [`mod@crate::stages`] and in traces.
    const OPERATIONS: Kind;
    /// Opcodes of its commands.
    const OPCODES: &'static [u8] = &[];
    /// Kinds of its frames.
    const KINDS: &'static [u8];
    /// Kinds that answer an operation of the node that receives them.
    const RESPONSES: &'static [u8] = &[];
    /// Kinds that are received only when all frames before them were. Those that come earlier, as a
    /// wire has lost others, are kept in bounce memory until then.
    const IN_ORDER: &'static [u8] = &[];
    /// Kinds that leave nothing to do when they are received: neither an answer nor a turn.
    const UNANSWERED: &'static [u8] = &[];

    /// What the operation of a command counts as, if there are several sorts. Nothing of the command
    /// is checked.
    fn kind_of_command(_command: &Descriptor) -> Kind {
        Self::OPERATIONS
    }

    /// What the frames of a kind count as, if it has several sorts of operations.
    fn kind_of_frame(_kind: u8) -> Kind {
        Self::OPERATIONS
    }

    /// The length of a command, and its tag or function, for a trace. `None`: it has neither but
    /// for its inline payload. Nothing of the command is checked.
    fn describe(_command: &Fetched) -> Option<(u64, u64)> {
        None
    }

    /// Returns true if the body of a frame of one of its kinds is as the format says.
    fn is_well_formed(frame: &Frame) -> bool;

    /// What a frame from one node to another belongs to, for a trace: it names it itself, and its body is
    /// as the format says.
    fn subject(frame: &Frame, from: u16, to: u16) -> Subject {
        let is_response = Self::RESPONSES.contains(&frame.envelope.kind);
        Subject::command(frame, if is_response { to } else { from })
    }

    /// Begins the operation of a command. One that is wrong fails in its order.
    ///
    /// # Errors
    /// Why the command is malformed: its queue stops.
    fn submit<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _vni: VniId,
        _command: &Fetched,
    ) -> Result<(), Status> {
        Err(Status::Malformed)
    }

    /// The turn of an operation: at most one frame, of at most `budget` fragments.
    fn turn<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _id: OperationId,
        _budget: u32,
        _outgoing: &mut Outgoing,
    ) -> Turn {
        Turn::Idle
    }

    /// The turn of a frame that was queued: its answer, or a part of it.
    fn respond<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _vni: VniId,
        _request: &StoredFrame,
        _budget: u32,
        _outgoing: &mut Outgoing,
    ) -> Turn {
        Turn::Idle
    }

    /// A turn of the NIC itself, which [`Core::schedule_nic`] has asked for.
    fn nic_turn<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _budget: u32,
        _outgoing: &mut Outgoing,
    ) -> Turn {
        Turn::Idle
    }

    /// There is room in the window to a peer that a turn of the NIC has waited for.
    fn unblocked<H: Host>(&mut self, _cx: &mut Context<'_, H>, _peer: PeerIndex) {}

    /// The frame of an operation was sent.
    fn sent<H: Host>(&mut self, _cx: &mut Context<'_, H>, _id: OperationId, _frame: &Outgoing) {}

    /// The answer to a queued frame was sent. Returns true if there is more, which then
    /// is what `request` asks for.
    fn responded<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _request: &mut StoredFrame,
        _frame: &Outgoing,
    ) -> bool {
        false
    }

    /// Receives a frame of one fragment, or one fragment of a frame.
    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received;

    /// Receives several fragments of a frame together, as far as nothing is special about
    /// them. Returns how many bytes that was: zero, or whole fragments.
    fn receive_span<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _arrival: &Arrival<'_, H::Memory>,
    ) -> usize {
        0
    }

    /// Where in its page the payload of a frame begins at the destination.
    fn page_offset(_frame: &Frame) -> usize {
        0
    }

    /// Goes on to what a frame says of its payload behind the first `length` bytes, which
    /// are whole fragments.
    fn advance(_frame: &mut Frame, _length: usize) {}

    /// The pages that a frame waits for will never be there.
    fn unavailable<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _arrival: &Arrival<'_, H::Memory>,
        status: Status,
    ) -> Received {
        Received::Refuse(status)
    }

    /// The pages that something waited for ([`crate::core::Waiter::Job`]) are there, or why they
    /// will never be.
    fn resume<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _vni: VniId,
        _job: u64,
        _failed: Option<Status>,
    ) {
    }

    /// Something about an operation has changed: can it send, or is it complete?
    fn update<H: Host>(&mut self, _cx: &mut Context<'_, H>, _id: OperationId) {}

    /// Fragments of an operation were delivered. So many of them were not refused.
    fn settled<H: Host>(&mut self, _cx: &mut Context<'_, H>, _id: OperationId, _fragments: u32) {}

    /// A peer has refused the frame of that number, of an operation.
    fn refused<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _id: OperationId,
        _sequence: u64,
        _status: Status,
    ) {
    }

    /// Gives an operation up. What is under way is still waited for.
    fn fail<H: Host>(&mut self, _cx: &mut Context<'_, H>, _id: OperationId, _status: Status) {}

    /// Gives an operation up whose peer is gone: no answer will come.
    fn lost<H: Host>(&mut self, _cx: &mut Context<'_, H>, _id: OperationId) {}

    /// Returns true if an operation is none of the process that has ended, but of a later one on the port
    /// that it names.
    fn outlives(&mut self, _id: OperationId, _news: News) -> bool {
        false
    }

    /// Returns true if an operation uses a segment of its own process.
    fn uses_segment(&mut self, _id: OperationId, _segment: SegmentId) -> bool {
        false
    }

    /// Something that it may remember is gone.
    fn ended<H: Host>(&mut self, _cx: &mut Context<'_, H>, _ended: Ended) {}

    /// A process exports a segment.
    fn exported<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _port: Port,
        _id: SegmentId,
        _segment: &Segment,
    ) {
    }

    /// A request of the driver, and its reply. `None` if it is another protocol's; `Some(None)` if
    /// the reply comes later, with this token.
    fn request<H: Host>(
        &mut self,
        _cx: &mut Context<'_, H>,
        _header: &RequestHeader,
        _body: &[u8],
        _token: u64,
    ) -> Option<Option<Reply>> {
        None
    }

    /// Nodes that were wanted ([`Transport::want`]) are peers now, if there is a route to
    /// them: `some` are, or none.
    fn peers_added<H: Host>(&mut self, _cx: &mut Context<'_, H>, _some: bool) {}

    /// What the last request sent has gone out: why it has failed, if it has.
    fn failed_request(&mut self) -> Option<Status> {
        None
    }

    /// Returns true if it waits for an answer of a node that the transport does not know
    /// of.
    fn awaits(&self, _node: NodeId) -> bool {
        false
    }

    /// Does what is due. Returns true if anything was.
    fn expire<H: Host>(&mut self, _cx: &mut Context<'_, H>) -> bool {
        false
    }

    /// When [`Protocol::expire`] has to be called at the latest.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// Adds what it keeps for others, and how much that may be.
    fn budgets(&self, _limits: &Limits, _budgets: &mut Vec<Budget>) {}
}
