//! Probes: a queue pair that hears nothing of its peer asks, and fails when nothing answers.
//!
//! A peer that is gone ends its session, which is noticed without probes. Probes find the peer that is
//! there and does not answer. So a queue pair is patient: it asks no sooner than a peer may be silent.

use qnic_abi::verbs::frames::{ReplyKind, VerbsProbe, VerbsReply};
use qnic_abi::verbs::{answer_timeout_ns, Outcome, Transport, NUMBERS};
use qnic_abi::wire::Frame;
use zerocopy::FromZeros;

use super::queue_pair::{send_reply, Failure, QueuePair, Tables};
use super::requester::Halt;
use super::{Context, Verbs};
use crate::env::Host;
use crate::frame::Arrival;

impl Verbs {
    /// Queue pairs whose time is over ask their peers. Returns true if there were any.
    pub(super) fn probe<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        let mut any = false;
        while let Some((time, number)) = self.tables.probes.first().copied() {
            if time > cx.now {
                break;
            }
            any = true;
            self.tables.probes.pop_first();
            if let Some(qp) = self.queue_pairs.get_mut(&number) {
                qp.probe(cx, &mut self.tables);
            }
        }
        any
    }

    /// Answers a probe. Nothing changes by it.
    pub(super) fn receive_probe<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: VerbsProbe = arrival.body();
        let node = cx.transport.node_of(arrival.peer);
        let to = (arrival.peer, arrival.operation().0);
        let peer = (Transport::Reliable, node, body.peer_qp.get());
        let found = self.queue_pairs.get(&body.qp.get());
        match found.filter(|qp| qp.receives() && qp.is_connected_with(peer)) {
            None => {
                let mut reply = VerbsReply::new_zeroed();
                (reply.qp, reply.peer_qp, reply.psn) = (body.peer_qp, body.qp, body.psn);
                reply.kind = ReplyKind::NoQueuePair as u8;
                send_reply(cx, to, &reply);
            }
            Some(qp) if qp.responder.waits.is_some() => qp.reply(cx, to, ReplyKind::PageAbsent),
            Some(qp) => {
                let before = (qp.responder.psn() + NUMBERS - 1) % NUMBERS;
                qp.reply_about(cx, to, ReplyKind::Done, before);
            }
        }
    }
}

impl QueuePair {
    /// Has it ask when it hears nothing for a while, unless it is to wait for ever. It looks again
    /// then: what it hears before costs nothing.
    pub(super) fn expect_answer<H: Host>(&mut self, cx: &Context<'_, H>, tables: &mut Tables) {
        let timeout = answer_timeout_ns(self.attributes.timeout);
        if let (Some(timeout), None, Transport::Reliable) =
            (timeout, self.probes_at, self.transport)
        {
            let patience = timeout.max(cx.core.limits.peer_timeout / 2);
            let time = cx.now.after(patience);
            self.probes_at = Some(time);
            tables.probes.insert((time, self.number));
        }
    }

    /// Expects no answer any more.
    pub(super) fn expect_nothing(&mut self, tables: &mut Tables) {
        if let Some(time) = self.probes_at.take() {
            tables.probes.remove(&(time, self.number));
        }
    }

    fn probe<H: Host>(&mut self, cx: &mut Context<'_, H>, tables: &mut Tables) {
        self.probes_at = None;
        let operation = self.operation.and_then(|id| cx.core.operation(id));
        let Some((id, peer)) = operation.map(|operation| (operation.id, operation.peer)) else {
            return;
        };
        let requester = &mut self.requester;
        let spoke = std::mem::replace(&mut requester.spoke, false);
        let waits = matches!(requester.halt, Some(Halt::Until(_) | Halt::Seek));
        if spoke || waits || !requester.is_under_way() {
            requester.probes = 0;
        } else if requester.probes > self.attributes.retries {
            let failure = Failure::of_oldest(Outcome::RetriesExceeded);
            return self.fail(cx, tables, failure);
        } else {
            requester.probes += 1;
            let mut body = VerbsProbe::new_zeroed();
            body.qp = self.attributes.peer_qp.into();
            body.peer_qp = self.number.into();
            body.psn = self.requester.first_psn().into();
            let mut frame = Frame::new(&body);
            frame.envelope.operation = id.0.into();
            cx.transport.send_control(peer, frame);
        }
        self.expect_answer(cx, tables);
    }
}
