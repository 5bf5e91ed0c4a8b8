//! Unreliable connections and datagrams at their source: a message is done when it is sent.
//!
//! ```text
//!   entry ──► node ──► a peer? ── the one of the operation ──► frame ──► done
//!                        │ └───── another one: an operation with that one, from here on
//!                        └─ none: seek it ── none has been found ──► done, and counted as dropped
//! ```

use qnic_abi::command::CommandBody;
use qnic_abi::verbs::commands::VerbsSendCommand;
use qnic_abi::verbs::frames::{MessageFlags, VerbsDatagram};
use qnic_abi::verbs::rings::SendFlags;
use qnic_abi::verbs::{Outcome, PathAddress, Transport, NUMBERS};
use qnic_abi::NodeId;
use zerocopy::FromZeros;

use super::entry::Bytes;
use super::queue_pair::{Failure, QueuePair, Tables};
use super::requester::{Current, Halt};
use super::sending::gather;
use super::{Context, Outgoing, Protocol, Turn, Verbs};
use crate::core::Counter;
use crate::env::Host;
use crate::ids::{OperationId, PeerIndex};
use crate::protocols::protocol::Ends;
use crate::transport::Window;

/// The bit of a key that stands for the key of the queue pair that sends.
const OWN_QKEY: u32 = 1 << 31;

impl Verbs {
    /// Finds the peer that the message of a queue pair goes to. `Err`: what its turn is.
    fn route<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        ends: &Ends,
        current: Box<Current>,
    ) -> Result<Box<Current>, Turn> {
        let id = ends.operation();
        let Some((qp, tables)) = self.of(id) else {
            return Err(Turn::Idle);
        };
        let Some(node) = qp.destination(&current) else {
            qp.requester.set_wrong(Outcome::LocalOperation);
            self.update_queue_pair(cx, id);
            return Err(Turn::Idle);
        };
        match cx.transport.find(node) {
            Some(peer) if peer == ends.peer => return Ok(current),
            Some(peer) => {
                qp.requester.current = Some(current);
                qp.stop_sending(cx, tables);
                qp.begin_sending(cx, tables, peer);
            }
            None => {
                qp.requester.current = Some(current);
                qp.set_halt(tables, Some(Halt::Seek));
                cx.transport.want(node);
            }
        }
        Err(Turn::Idle)
    }

    /// Nodes that were sought are peers now, if there is a route to them.
    pub(super) fn peers_found<H: Host>(&mut self, cx: &mut Context<'_, H>) {
        for number in std::mem::take(&mut self.tables.seeking) {
            let Some(qp) = self.queue_pairs.get_mut(&number) else {
                continue;
            };
            let tables = &mut self.tables;
            qp.set_halt(tables, None);
            let current = qp.requester.current.as_ref();
            let node = current.and_then(|current| qp.destination(current));
            if node.is_none_or(|node| cx.transport.find(node).is_none()) {
                cx.core.counters.verbs_drops_route += 1;
                qp.requester.skip();
            }
            self.cast(cx, number);
        }
    }

    /// What a queue pair without acknowledgements has sent is done, and it goes on.
    pub(super) fn cast<H: Host>(&mut self, cx: &mut Context<'_, H>, number: u32) {
        let Some(qp) = self.queue_pairs.get_mut(&number) else {
            return;
        };
        let tables = &mut self.tables;
        qp.requester.end_sent();
        if qp.complete_sends(cx, tables).is_err() {
            return qp.fail(cx, tables, Failure::OVERRUN);
        }
        if let Some(id) = qp.operation {
            self.update_queue_pair(cx, id);
        }
    }

    /// The peer of an operation is gone, and with it the message that was to be sent to it. Others
    /// may go elsewhere.
    pub(super) fn cast_in_vain<H: Host>(&mut self, cx: &mut Context<'_, H>, id: OperationId) {
        let Some((qp, tables)) = self.of(id) else {
            return;
        };
        let number = qp.number;
        cx.core.counters.verbs_drops_route += u64::from(qp.requester.skip());
        qp.stop_sending(cx, tables);
        // A message has its own peer, or none.
        let own = cx.transport.find(cx.core.geometry.node);
        if let Some(own) = own.filter(|_| !qp.requester.is_idle(cx.host.memory())) {
            qp.begin_sending(cx, tables, own);
        }
        self.cast(cx, number);
    }

    /// One turn of a queue pair without acknowledgements: the next piece of its message, or its datagram.
    pub(super) fn cast_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        ends: &Ends,
        current: Box<Current>,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let current = match self.route(cx, ends, current) {
            Ok(current) => current,
            Err(turn) => return turn,
        };
        let Some((qp, _)) = self.of(ends.operation()) else {
            return Turn::Idle;
        };
        // No window holds it up: what is sent may be lost.
        if !cx.transport.is_open(ends.peer) {
            qp.requester.current = Some(current);
            return Turn::Blocked(ends.peer, Window::Requests);
        }
        match qp.transport {
            Transport::Datagram => self.datagram_turn(cx, ends, current, outgoing),
            _ => {
                let most = cx.transport.max_payload(ends.peer);
                self.piece_turn(cx, ends, current, most, outgoing)
            }
        }
    }

    /// One turn: the datagram at the cursor.
    fn datagram_turn<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        ends: &Ends,
        current: Box<Current>,
        outgoing: &mut Outgoing,
    ) -> Turn {
        let id = ends.operation();
        let Some((qp, tables)) = self.of(id) else {
            return Turn::Idle;
        };
        if current.work.length > u64::from(cx.transport.max_payload(ends.peer)) {
            cx.core.counters.verbs_drops_length += 1;
            qp.requester.current = Some(current);
            qp.requester.skip();
            let number = qp.number;
            self.cast(cx, number);
            return Turn::Idle;
        }
        ends.begin(outgoing, &datagram(qp, &current));
        let work = &current.work;
        let filled = match &work.bytes {
            _ if work.length == 0 => Ok(()),
            Bytes::Inline(bytes) => {
                outgoing.set_bytes(bytes.as_ref().into());
                Ok(())
            }
            Bytes::Extents(extents) => gather(cx, qp, tables, extents, (0, work.length))
                .map(|bytes| outgoing.set_bytes(bytes.into())),
        };
        qp.requester.current = Some(current);
        self.end_turn(cx, id, filled, outgoing)
    }
}

impl QueuePair {
    /// The node that a message goes to. `None`: its address is none.
    fn destination(&self, current: &Current) -> Option<NodeId> {
        match self.transport {
            Transport::Datagram => PathAddress(current.work.to.path.get()).node(),
            _ => Some(self.attributes.node),
        }
    }

    /// Begins the operation of a queue pair with work.
    pub(super) fn begin_sending<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        tables: &mut Tables,
        peer: PeerIndex,
    ) {
        let header = VerbsSendCommand::command().header;
        let issuer = (self.vni, Verbs::ID);
        let id = cx
            .core
            .begin(issuer, (Counter::Own, false), &header, Some(peer));
        if let Some(id) = id {
            self.operation = Some(id);
            tables.operations.insert(id.0, self.number);
            self.expect_answer(cx, tables);
            let has_work = self.requester.has_work(cx.host.memory());
            cx.core.set_ready(id, has_work);
        }
    }
}

/// The body of a datagram.
fn datagram(qp: &QueuePair, current: &Current) -> VerbsDatagram {
    let work = &current.work;
    let path = PathAddress(work.to.path.get());
    let mut flags = MessageFlags::empty();
    let solicited = work.flags.contains(SendFlags::SOLICITED);
    flags.set(MessageFlags::SOLICITED, solicited);
    flags.set(MessageFlags::ROUTE_HEADER, path.has_route_header());
    let mut body = VerbsDatagram::new_zeroed();
    body.qp = (work.to.qp.get() % NUMBERS).into();
    body.peer_qp = qp.number.into();
    body.qkey = match work.to.qkey.get() & OWN_QKEY {
        0 => work.to.qkey,
        _ => qp.attributes.qkey.into(),
    };
    body.immediate = work.immediate;
    body.request = work.request as u8;
    body.flags = flags.bits();
    body.service_level = path.service_level();
    body
}
