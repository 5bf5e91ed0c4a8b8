//! The protocols of the NIC: one folder each, and the list of them.
//!
//! A protocol implements [`Protocol`] and imports the core, the transport and the ABI;
//! protocols do not import each other (`letters` has the way between two of them). [`Protocols`]
//! holds the state of all, and hands each question of the NIC to the protocol that a command, a frame or
//! an operation belongs to; dispatch is static. Adding one takes its `mod` and a line below: CONTRIBUTING.md.
//!
//! | folder | frames and commands | promises |
//! |---|---|---|
//! | `rdma` | [`qnic_abi::rdma`] | N9 to N11, N13, N18 |
//! | `atomic` | [`qnic_abi::atomic`] | N20, N22, N24 |
//! | `directory` | [`qnic_abi::directory`] | N3 |
//! | `message` | [`qnic_abi::message`] | Q3, Q4, Q11 to Q13 |
//! | `collective` | [`qnic_abi::collective`] | Q14, Q15, N26 |
//! | `names` | [`qnic_abi::process_names`] | Q14 |
//! | `datagram` | [`qnic_abi::datagram`] | H1 to H3, H5, H6, H8 |
//! | `verbs` | [`qnic_abi::verbs`] | X18 |

mod atomic;
mod collective;
mod datagram;
mod directory;
#[cfg(test)]
mod echo;
mod letters;
pub(crate) mod message;
mod names;
mod order;
mod protocol;
mod rdma;
mod reports;
mod verbs;

use qnic_abi::command::Descriptor;
use qnic_abi::control::RequestHeader;
use qnic_abi::wire::{self, fragments, Class, Frame};
use qnic_abi::{NodeId, Port, SegmentId, Status, VniId};

use crate::budget::Budget;
use crate::config::Limits;
use crate::control_reply::Reply;
use crate::core::{Described, Fetched, Segment, Subject};
use crate::env::{Host, Time};
use crate::frame::{Arrival, StoredFrame};
use crate::ids::{OperationId, PeerIndex, ProtocolId};
use crate::stages::Kind;

pub use order::order_of;
use protocol::Listed;
pub(crate) use protocol::{Context, Ended, News, Outgoing, Protocol, Received, Source, Turn};

/// The list: hands every protocol, as `field: Type`, to the macro `$then`, behind its arguments.
/// The place in the list is the number of the protocol ([`ProtocolId`]).
macro_rules! with_protocols {
    ($then:ident $arguments:tt) => {
        $then! { $arguments
            rdma: rdma::Rdma,
            atomic: atomic::AtomicProtocol,
            directory: directory::Directory,
            messages: message::Messages,
            collectives: collective::Collectives,
            names: names::ProcessNames,
            datagrams: datagram::Datagrams,
            verbs: verbs::Verbs,
            #[cfg(test)]
            echo: echo::Echo,
        }
    };
}

/// Makes [`Protocols`], and numbers the protocols.
macro_rules! define_protocols {
    (() $($(#[$attribute:meta])* $field:ident: $type:ty,)+) => {
        /// The state of every protocol.
        #[derive(Debug, Default)]
        pub(crate) struct Protocols {
            $($(#[$attribute])* $field: $type,)+
        }

        /// The places of the list.
        #[allow(non_camel_case_types)]
        enum Place {
            $($(#[$attribute])* $field,)+
        }

        $($(#[$attribute])*
        impl Listed for $type {
            const PLACE: u8 = Place::$field as u8;
        })+
    };
}

with_protocols!(define_protocols());

/// Evaluates an expression for every protocol: with a reference to it, or with its type.
macro_rules! for_each {
    (&mut $self:ident, $protocol:ident => $call:expr) => {
        with_protocols!(for_each (&mut $self, $protocol, $call))
    };
    (&$self:ident, $protocol:ident => $call:expr) => {
        with_protocols!(for_each (&$self, $protocol, $call))
    };
    ($protocol:ident => $call:expr) => {
        with_protocols!(for_each ($protocol, $call))
    };
    ((&mut $self:ident, $protocol:ident, $call:expr)
        $($(#[$attribute:meta])* $field:ident: $type:ty,)+) => {{
        $($(#[$attribute])* {
            let $protocol = &mut $self.$field;
            $call
        })+
    }};
    ((&$self:ident, $protocol:ident, $call:expr)
        $($(#[$attribute:meta])* $field:ident: $type:ty,)+) => {{
        $($(#[$attribute])* {
            let $protocol = &$self.$field;
            $call
        })+
    }};
    (($protocol:ident, $call:expr) $($(#[$attribute:meta])* $field:ident: $type:ty,)+) => {{
        $($(#[$attribute])* {
            type $protocol = $type;
            $call
        })+
    }};
}

/// Evaluates an expression for the protocol of a number, with a reference to it or with its type;
/// `$otherwise` if no protocol has that number.
macro_rules! dispatch {
    ($self:ident, $id:expr, $protocol:ident => $call:expr, $otherwise:expr) => {
        with_protocols!(dispatch ($self, $id, $protocol, $call, $otherwise))
    };
    ($id:expr, $protocol:ident => $call:expr, $otherwise:expr) => {
        with_protocols!(dispatch ($id, $protocol, $call, $otherwise))
    };
    (($self:ident, $id:expr, $protocol:ident, $call:expr, $otherwise:expr)
        $($(#[$attribute:meta])* $field:ident: $type:ty,)+) => {
        match $id {
            $($(#[$attribute])* <$type as Protocol>::ID => {
                let $protocol = &mut $self.$field;
                $call
            })+
            _ => $otherwise,
        }
    };
    (($id:expr, $protocol:ident, $call:expr, $otherwise:expr)
        $($(#[$attribute:meta])* $field:ident: $type:ty,)+) => {
        'found: {
            let id = $id;
            $($(#[$attribute])* if id == <$type as Protocol>::ID {
                type $protocol = $type;
                break 'found ($call);
            })+
            $otherwise
        }
    };
}

/// In a table: no protocol.
const NONE: u8 = u8::MAX;

/// What the list says of opcodes and kinds.
struct Tables {
    /// Protocol by opcode.
    opcodes: [u8; 256],
    /// Protocol by kind of frame.
    kinds: [u8; 256],
    /// Kinds that are received in order.
    in_order: [bool; 256],
    /// Kinds that answer an operation of their receiver.
    responses: [bool; 256],
    /// Kinds that leave their receiver nothing to do.
    unanswered: [bool; 256],
}

static TABLES: Tables = tables();

const fn tables() -> Tables {
    let mut tables = Tables {
        opcodes: [NONE; 256],
        kinds: [NONE; 256],
        in_order: [false; 256],
        responses: [false; 256],
        unanswered: [false; 256],
    };
    for_each!(P => {
        fill(&mut tables.opcodes, P::OPCODES, P::ID);
        fill(&mut tables.kinds, P::KINDS, P::ID);
        mark(&mut tables.in_order, P::IN_ORDER);
        mark(&mut tables.responses, P::RESPONSES);
        mark(&mut tables.unanswered, P::UNANSWERED);
    });
    tables
}

const fn fill(table: &mut [u8; 256], numbers: &[u8], protocol: ProtocolId) {
    let mut index = 0;
    while index < numbers.len() {
        let entry = &mut table[numbers[index] as usize];
        assert!(*entry == NONE, "two protocols with one number");
        *entry = protocol.0;
        index += 1;
    }
}

const fn mark(table: &mut [bool; 256], numbers: &[u8]) {
    let mut index = 0;
    while index < numbers.len() {
        table[numbers[index] as usize] = true;
        index += 1;
    }
}

/// The protocol of an opcode.
#[inline]
fn of_opcode(opcode: u8) -> ProtocolId {
    ProtocolId(TABLES.opcodes[usize::from(opcode)])
}

/// The protocol of the frames of a kind.
#[inline]
pub(crate) fn of_kind(kind: u8) -> ProtocolId {
    ProtocolId(TABLES.kinds[usize::from(kind)])
}

/// Returns true if frames of a kind are received only when all before them were.
#[inline]
pub(crate) fn is_in_order(kind: u8) -> bool {
    TABLES.in_order[usize::from(kind)]
}

/// Returns true if frames of a kind leave nothing to do when they are received.
#[inline]
pub(crate) fn is_unanswered(kind: u8) -> bool {
    TABLES.unanswered[usize::from(kind)]
}

/// Returns true if a frame answers an operation of the node that receives it.
pub(crate) fn is_response(frame: &Frame) -> bool {
    TABLES.responses[usize::from(frame.envelope.kind)]
}

/// What a command counts as in [`mod@crate::stages`].
pub(crate) fn kind_of_command(command: &Descriptor) -> Kind {
    dispatch!(of_opcode(command.header.opcode), P => P::kind_of_command(command), Kind::Names)
}

/// What the frames of a kind count as.
pub(crate) fn kind_of_frame(kind: u8) -> Kind {
    dispatch!(of_kind(kind), P => P::kind_of_frame(kind), Kind::Names)
}

/// What a trace says of a command. Nothing of it is checked.
#[cold]
pub(crate) fn describe(command: &Fetched) -> Described {
    let header = &command.descriptor.header;
    let inline = u64::from(header.inline_length);
    let protocol = of_opcode(header.opcode);
    let (bytes, detail) =
        dispatch!(protocol, P => P::describe(command), None).unwrap_or((inline, 0));
    Described {
        opcode: header.opcode,
        node: header.remote_node.get(),
        bytes,
        detail,
    }
}

impl Protocols {
    /// Returns true if a frame is of a protocol, its body is as the format says, and it
    /// has as many fragments as its payload touches pages.
    #[inline]
    pub(crate) fn is_well_formed(frame: &Frame) -> bool {
        let protocol = of_kind(frame.envelope.kind);
        dispatch!(protocol, P => {
            let length = usize::from(frame.envelope.payload_length.get());
            let spans = length > 0 && Class::of(frame.envelope.kind).is_numbered();
            let count = fragments(P::page_offset(frame) as u64, length);
            P::is_well_formed(frame) && (!spans || u64::from(frame.envelope.fragments) == count)
        }, false)
    }

    /// [`Protocol::submit`], by the opcode of the command.
    #[inline]
    pub(crate) fn submit<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        command: &Fetched,
    ) -> Result<(), Status> {
        let protocol = of_opcode(command.descriptor.header.opcode);
        dispatch!(self, protocol, p => p.submit(cx, vni, command), Err(Status::Malformed))
    }

    /// [`Protocol::turn`]
    #[inline]
    pub(crate) fn turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        protocol: ProtocolId,
        id: OperationId,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        dispatch!(self, protocol, p => p.turn(cx, id, budget, outgoing), Turn::Idle)
    }

    /// [`Protocol::respond`]
    #[inline]
    pub(crate) fn respond<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        request: &StoredFrame,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let protocol = of_kind(request.frame.envelope.kind);
        dispatch!(self, protocol, p => p.respond(cx, vni, request, budget, outgoing), Turn::Idle)
    }

    /// [`Protocol::nic_turn`]
    pub(crate) fn nic_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        protocol: ProtocolId,
        budget: u32,
        outgoing: &mut Outgoing,
    ) -> Turn {
        dispatch!(self, protocol, p => p.nic_turn(cx, budget, outgoing), Turn::Idle)
    }

    /// [`Protocol::unblocked`]
    pub(crate) fn unblocked<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        protocol: ProtocolId,
        peer: PeerIndex,
    ) {
        dispatch!(self, protocol, p => p.unblocked(cx, peer), {})
    }

    /// [`Protocol::sent`]
    #[inline]
    pub(crate) fn sent<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        protocol: ProtocolId,
        id: OperationId,
        frame: &Outgoing,
    ) {
        dispatch!(self, protocol, p => p.sent(cx, id, frame), {})
    }

    /// [`Protocol::responded`]
    pub(crate) fn responded<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        request: &mut StoredFrame,
        frame: &Outgoing,
    ) -> bool {
        let protocol = of_kind(request.frame.envelope.kind);
        dispatch!(self, protocol, p => p.responded(cx, request, frame), false)
    }

    /// [`Protocol::receive`]
    #[inline]
    pub(crate) fn receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Received {
        let protocol = of_kind(arrival.frame.envelope.kind);
        dispatch!(self, protocol, p => p.receive(cx, arrival), Received::Done)
    }

    /// [`Protocol::receive_span`]
    pub(crate) fn receive_span<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) -> usize {
        let protocol = of_kind(arrival.frame.envelope.kind);
        dispatch!(self, protocol, p => p.receive_span(cx, arrival), 0)
    }

    /// [`Protocol::advance`]
    pub(crate) fn advance(frame: &mut Frame, length: usize) {
        let protocol = of_kind(frame.envelope.kind);
        dispatch!(protocol, P => P::advance(frame, length), {});
    }

    /// [`Protocol::subject`]; a refusal, which is no protocol's, belongs to the command
    /// that it refuses.
    pub(crate) fn subject(frame: &Frame, from: u16, to: u16) -> Subject {
        dispatch!(of_kind(frame.envelope.kind), P => P::subject(frame, from, to), {
            let is_refusal = frame.envelope.kind == wire::kind::NAK;
            Subject::command(frame, if is_refusal { to } else { from })
        })
    }

    /// [`Protocol::page_offset`]
    #[inline]
    pub(crate) fn page_offset(frame: &Frame) -> usize {
        dispatch!(of_kind(frame.envelope.kind), P => P::page_offset(frame), 0)
    }

    /// [`Protocol::unavailable`]
    pub(crate) fn unavailable<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
        status: Status,
    ) -> Received {
        let protocol = of_kind(arrival.frame.envelope.kind);
        dispatch!(self, protocol, p => p.unavailable(cx, arrival, status), Received::Done)
    }

    /// [`Protocol::resume`]
    pub(crate) fn resume<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        protocol: ProtocolId,
        vni: VniId,
        job: u64,
        failed: Option<Status>,
    ) {
        dispatch!(self, protocol, p => p.resume(cx, vni, job, failed), {});
    }

    /// [`Protocol::update`], if the operation still runs.
    pub(crate) fn update<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        if let Some(operation) = cx.core.operation(id) {
            dispatch!(self, operation.protocol, p => p.update(cx, id), {})
        }
    }

    /// [`Protocol::settled`], if the operation still runs.
    #[inline]
    pub(crate) fn settled<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        count: u32,
    ) {
        if let Some(operation) = cx.core.operation(id) {
            dispatch!(self, operation.protocol, p => p.settled(cx, id, count), {})
        }
    }

    /// [`Protocol::refused`]
    pub(crate) fn refused<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        protocol: ProtocolId,
        id: OperationId,
        sequence: u64,
        status: Status,
    ) {
        dispatch!(self, protocol, p => p.refused(cx, id, sequence, status), {})
    }

    /// [`Protocol::fail`], if the operation still runs.
    pub(crate) fn fail<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        status: Status,
    ) {
        if let Some(operation) = cx.core.operation(id) {
            dispatch!(self, operation.protocol, p => p.fail(cx, id, status), {})
        }
    }

    /// [`Protocol::lost`], if the operation still runs.
    pub(crate) fn lost<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        if let Some(operation) = cx.core.operation(id) {
            dispatch!(self, operation.protocol, p => p.lost(cx, id), {})
        }
    }

    /// [`Protocol::outlives`]
    pub(crate) fn outlives<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        id: OperationId,
        news: News,
    ) -> bool {
        let protocol = cx.core.operation(id).map(|operation| operation.protocol);
        protocol.is_some_and(|it| dispatch!(self, it, p => p.outlives(id, news), false))
    }

    /// [`Protocol::uses_segment`]
    pub(crate) fn uses_segment(
        &mut self,
        protocol: ProtocolId,
        id: OperationId,
        segment: SegmentId,
    ) -> bool {
        dispatch!(self, protocol, p => p.uses_segment(id, segment), false)
    }

    /// [`Protocol::ended`] of all.
    pub(crate) fn ended<H: Host>(&mut self, cx: &mut Context<'_, H>, ended: Ended) {
        for_each!(&mut self, p => p.ended(cx, ended));
    }

    /// [`Protocol::exported`] of all.
    pub(crate) fn exported<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        port: Port,
        id: SegmentId,
        segment: &Segment,
    ) {
        for_each!(&mut self, p => p.exported(cx, port, id, segment));
    }

    /// [`Protocol::request`] of the first that knows it.
    pub(crate) fn request<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        header: &RequestHeader,
        body: &[u8],
        token: u64,
    ) -> Option<Option<Reply>> {
        for_each!(&mut self, p => if let Some(reply) = p.request(cx, header, body, token) {
            return Some(reply);
        });
        None
    }

    /// [`Protocol::peers_added`] of all.
    pub(crate) fn peers_added<H: Host>(&mut self, cx: &mut Context<'_, H>, some: bool) {
        for_each!(&mut self, p => p.peers_added(cx, some));
    }

    /// [`Protocol::failed_request`] of all.
    pub(crate) fn failed_request(&mut self) -> Option<Status> {
        for_each!(&mut self, p => if let Some(status) = p.failed_request() {
            return Some(status);
        });
        None
    }

    /// [`Protocol::awaits`] of any.
    pub(crate) fn awaits(&self, node: NodeId) -> bool {
        for_each!(&self, p => if p.awaits(node) {
            return true;
        });
        false
    }

    /// [`Protocol::expire`] of all.
    #[inline]
    pub(crate) fn expire<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        let mut busy = false;
        for_each!(&mut self, p => busy |= p.expire(cx));
        busy |= self.deliver_letters(cx);
        busy
    }

    /// [`Protocol::deadline`], the first of all.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let mut first: Option<Time> = None;
        for_each!(&self, p => first = first.into_iter().chain(p.deadline()).min());
        first
    }

    /// [`Protocol::budgets`] of all.
    pub(crate) fn budgets(&self, limits: &Limits) -> Vec<Budget> {
        let mut budgets = Vec::new();
        for_each!(&self, p => p.budgets(limits, &mut budgets));
        budgets
    }
}
