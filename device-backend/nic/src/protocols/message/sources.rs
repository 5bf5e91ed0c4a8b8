//! Whether the processes live that receives and probes name by their incarnation.
//!
//! ```text
//!   a receive names one ── MessageSeek ──► its NIC: is it on its port? Yes: nothing is said. Its end is told
//!   PeerGone ◄──────────── MessageGone ─── No
//! ```
//! A process that ends is told of to all NICs that have a session then. Those that come later ask.
//!
//! # Invariants
//! - A process that lives when it is asked for tells of its end in the same session. So it is asked for once in a
//!   session, and again when a process on its port has ended.
//! - That one is gone is true for ever: no other process has its incarnation. So an answer may be late.
//! - An answer comes behind all messages of that process.

use std::collections::BTreeSet;

use qnic_abi::message::{MessageGone, MessageSeek};
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, VniId};

use super::command::{Name, Source};
use super::receive::process_of;
use super::sought::Sought;
use super::{Context, Messages};
use crate::env::Host;
use crate::frame::Arrival;

/// When a question is tried again for which the peer had no room, in nanoseconds.
const LATER: u64 = 1_000_000;

impl Messages {
    /// A receive or a probe of a process waits for a message of this source.
    pub(super) fn seek<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        source: Option<Source>,
    ) {
        let Some(source) = source.filter(|source| source.incarnation != 0) else {
            return;
        };
        let known = &mut self.inboxes.get_or_insert(vni).sought;
        if known.has(source) {
            return;
        }
        // Of a node that is no peer yet, it is asked for when that is one.
        let Some(peer) = cx.transport.find(NodeId(source.name.node)) else {
            return;
        };
        if !cx.transport.has_control_room(peer) {
            self.seek_at.get_or_insert(cx.now.after(LATER));
            return;
        }
        known.note(source);
        let mut frame = Frame::new(&MessageSeek {
            incarnation: source.incarnation.into(),
            ..MessageSeek::default()
        });
        frame.envelope.destination_port = source.name.port.into();
        cx.transport.send_control(peer, frame);
    }

    /// A NIC asks for a process of this node.
    pub(super) fn receive_seek<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let incarnation = arrival.body::<MessageSeek>().incarnation;
        if process_of(cx, arrival, incarnation.get()).is_err() {
            let mut frame = Frame::new(&MessageGone {
                incarnation,
                ..MessageGone::default()
            });
            frame.envelope.source_port = arrival.frame.envelope.destination_port;
            cx.transport.send_control(arrival.peer, frame);
        }
    }

    /// A process of a peer has ended, as its NIC answers.
    pub(super) fn receive_gone<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let name = Name {
            node: cx.transport.node_of(arrival.peer).0,
            port: arrival.frame.envelope.source_port.get(),
        };
        let incarnation = arrival.body::<MessageGone>().incarnation.get();
        let gone = Source { name, incarnation };
        for (_, inbox) in self.inboxes.iter_mut() {
            inbox.sought.forget(gone);
        }
        self.fail_receives(cx, |source| source == gone, u64::MAX);
    }

    /// A process on a port of a peer has ended, perhaps one that still is waited for.
    pub(super) fn seek_again<H: Host>(&mut self, cx: &mut Context<'_, H>, ended: Name) {
        for (_, inbox) in self.inboxes.iter_mut() {
            inbox.sought.forget_port(ended);
        }
        self.seek_some(cx, |source| source.name == ended);
    }

    /// A session has ended: what was asked for in it tells of its end no more.
    pub(super) fn forget_sought(&mut self, node: NodeId) {
        for (_, inbox) in self.inboxes.iter_mut() {
            inbox.sought.forget_node(node.0);
        }
    }

    /// It is time to ask again for those for which a peer had no room.
    pub(super) fn seek_in_time<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        let is_due = self.seek_at.is_some_and(|time| time <= cx.now);
        if is_due {
            self.seek_at = None;
            self.seek_all(cx);
        }
        is_due
    }

    /// Asks for all that receives and probes wait for, and that were not asked for.
    #[cold]
    pub(super) fn seek_all<H: Host>(&mut self, cx: &mut Context<'_, H>) {
        self.seek_some(cx, |_| true);
    }

    /// Asks for those of them that are wanted.
    fn seek_some<H: Host>(&mut self, cx: &mut Context<'_, H>, wanted: impl Fn(&Source) -> bool) {
        let mut sources = BTreeSet::new();
        for (vni, inbox) in self.inboxes.iter_mut() {
            let named = inbox
                .sources()
                .filter(|it| it.incarnation != 0 && wanted(it));
            let unknown = named.filter(|it| !inbox.sought.has(*it));
            sources.extend(unknown.map(|it| (vni, Sought::key(it))));
        }
        for (vni, (node, port, incarnation)) in sources {
            let name = Name { node, port };
            self.seek(cx, vni, Some(Source { name, incarnation }));
        }
    }
}
