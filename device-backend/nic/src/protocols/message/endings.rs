//! At the destination: what ends with a message, a process, a session or a segment, and what is
//! cancelled.

use qnic_abi::message::MessageEnd;
use qnic_abi::{Port, SegmentId, Status, VniId};

use super::command::{HandleName, Name, Probe, Source};
use super::inbox::{names_source, Inbox, Posted};
use super::probe::failed_probe;
use super::receive::failed_receive;
use super::staging::{Arrived, Place};
use super::{Context, Messages};
use crate::env::Host;
use crate::frame::Arrival;
use crate::ids::PeerIndex;

impl Messages {
    /// A source gives a message up.
    pub(super) fn receive_end<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let body: MessageEnd = arrival.body();
        let status = match Status::try_from(body.status.get()) {
            Ok(Status::Ok) | Err(_) => Status::Aborted,
            Ok(status) => status,
        };
        let operation = arrival.operation().0;
        if let Some(number) = self.staging.of_operation(arrival.peer, operation) {
            self.drop_message(cx, number, status);
        }
    }

    /// Forgets a message of which no more comes.
    pub(super) fn drop_message<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        number: u64,
        status: Status,
    ) {
        let Some(message) = self.staging.remove(number) else {
            return;
        };
        let header = message.header;
        match message.place {
            // Those behind it still wait for the one before it.
            Place::Early(after) => self.skip(cx, header.peer, header.sequence, after),
            Place::Held => {
                if let Some(inbox) = self.inboxes.get(header.vni) {
                    inbox.held.retain(|other| *other != number);
                }
            }
            Place::Unexpected(id) => {
                if let Some(inbox) = self.inboxes.get(header.vni) {
                    let space = inbox.space(header.space, &cx.core.limits);
                    space.discard(id);
                }
            }
            // The receive that names it learns that it is gone.
            Place::Claimed | Place::Discarded => {}
            Place::Landing(landing) => self.finish(cx, &header, &landing, status),
        }
    }

    /// A process of a peer has ended; what it sent before the frame of that number, and what is
    /// not here as a whole, will not come.
    pub(super) fn source_ended<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        peer: PeerIndex,
        port: Port,
        before: u64,
    ) {
        let lost = |message: &Arrived| {
            let header = &message.header;
            message.is_awaited()
                && header.peer == peer
                && header.source.port == port.0
                && header.sequence < before
        };
        for number in self.staging.select(lost) {
            self.drop_message(cx, number, Status::PeerGone);
        }
        let node = cx.transport.node_of(peer).0;
        let ended = Name { node, port: port.0 };
        self.fail_receives(cx, |source| source.name == ended, before);
        self.seek_again(cx, ended);
        cx.core.read_receives();
    }

    /// A session has ended: what is not here as a whole, and in order, will not come.
    pub(super) fn session_ended<H: Host>(&mut self, cx: &mut Context<'_, H>, peer: PeerIndex) {
        let early = |message: &Arrived| {
            message.header.peer == peer && matches!(message.place, Place::Early(_))
        };
        for number in self.staging.select(early) {
            self.staging.remove(number);
        }
        self.staging.forget_skipped(peer, u64::MAX);
        let lost = |message: &Arrived| message.header.peer == peer && message.is_awaited();
        for number in self.staging.select(lost) {
            self.drop_message(cx, number, Status::PeerGone);
        }
    }

    /// Ends the receives and probes that name a process which has ended, as the frame of a number
    /// says. Those that were posted when its successor had been heard of are for that one, and stay.
    pub(super) fn fail_receives<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        ended: impl Fn(Source) -> bool + Copy,
        before: u64,
    ) {
        let mut failed = Vec::new();
        for (vni, inbox) in self.inboxes.iter_mut() {
            let posted = inbox.remove_all(names_source(ended, before));
            failed.extend(posted.into_iter().map(|posted| (vni, posted)));
            let names =
                |probe: &Probe| probe.newest < before && probe.pattern.source().is_some_and(ended);
            for probe in inbox.take_probes(names) {
                let entry = failed_probe(&probe, Status::PeerGone);
                cx.core.complete(cx.host, vni, entry);
            }
        }
        for (vni, posted) in failed {
            self.fail_receive(cx, vni, &posted, Status::PeerGone);
        }
    }

    /// Ends a receive that has left the inbox and has no message.
    pub(super) fn fail_receive<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        posted: &Posted,
        status: Status,
    ) {
        let entry = failed_receive(posted, status);
        self.complete_receive(cx, vni, posted.command.handle, entry);
    }

    /// Takes back what was posted first with a name: a receive, or a probe that waits.
    pub(super) fn cancel<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        name: HandleName,
    ) {
        let Some(inbox) = self.inboxes.get(vni) else {
            return;
        };
        let (receive, probe) = (inbox.with_name(name), inbox.probe_with_name(name));
        match (receive, probe) {
            (Some((number, receive)), probe) if probe.is_none_or(|probe| number < probe) => {
                if let Some(posted) = inbox.remove(receive) {
                    self.fail_receive(cx, vni, &posted, Status::Cancelled);
                }
            }
            (_, Some(probe)) => {
                if let Some(probe) = inbox.take_probe(probe) {
                    let entry = failed_probe(&probe, Status::Cancelled);
                    cx.core.complete(cx.host, vni, entry);
                }
            }
            _ => {}
        }
    }

    /// A segment is gone: no message goes there.
    pub(super) fn segment_ended<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        segment: SegmentId,
    ) {
        let posted = self.inboxes.get(vni);
        let posted = posted.map(|inbox| inbox.remove_users(segment));
        for posted in posted.into_iter().flatten() {
            self.fail_receive(cx, vni, &posted, Status::Aborted);
        }
        let inbox = self.inboxes.look(vni);
        let lost = |message: &Arrived| {
            let landing = match message.place {
                Place::Landing(landing) => landing,
                _ => return false,
            };
            let uses = |inbox: &Inbox| inbox.uses(&landing.memory, segment);
            message.header.vni == vni && inbox.is_some_and(uses)
        };
        for number in self.staging.select(lost) {
            self.end_landing(cx, number, Status::Aborted);
        }
    }

    /// The receives and probes of a process are forgotten, and what was on its way into them.
    /// What it has claimed is discarded.
    pub(super) fn forget_receives<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        if let Some(inbox) = self.inboxes.get(vni) {
            inbox.remove_all(|_, _| true);
            inbox.take_probes(|_| true);
            inbox.forget_contexts();
        }
        let claimed = |message: &Arrived| {
            message.header.vni == vni && matches!(message.place, Place::Claimed)
        };
        for number in self.staging.select(claimed) {
            self.discard(cx, number);
        }
        let landing = |message: &Arrived| {
            message.header.vni == vni && matches!(message.place, Place::Landing(_))
        };
        for number in self.staging.select(landing) {
            self.staging.remove(number);
        }
    }

    /// A process has ended: nothing is kept for it but the order of what is on its way to its
    /// port, as the next process there receives that.
    pub(super) fn destination_ended<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        let _inbox: Option<Inbox> = self.inboxes.take(vni);
        self.holding.retain(|other| *other != vni);
        for number in self.staging.select(|message| message.header.vni == vni) {
            let removed = self.staging.remove(number);
            if let Some((header, Place::Early(after))) = removed.map(|it| (it.header, it.place)) {
                self.skip(cx, header.peer, header.sequence, after);
            }
        }
    }
}
