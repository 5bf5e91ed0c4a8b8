//! Probes: a process looks for messages that have arrived, and claims or discards them instead of
//! receiving them.
//!
//! ```text
//!   Probe ──► an unexpected message matches? ── yes ──► stays, or Claimed, or discarded
//!                    │ no
//!                    ▼
//!            WAIT: offered each message that no posted receive takes
//!
//!   Claimed ── Receive that names it ──► Landing
//! ```

use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::{Status, VniId};

use super::command::{Found, Handle, Memory, Name, Probe, ReceiveClaimed};
use super::data::permit;
use super::inbox::Inbox;
use super::matching::MessageId;
use super::receive::{expect, newest};
use super::staging::{Bytes, Header, Landing, Place};
use super::{Context, Messages};
use crate::env::Host;

/// The completion of a probe that finds no message.
pub(super) fn failed_probe(probe: &Probe, status: Status) -> CompletionEntry {
    let source = probe.pattern.process().unwrap_or_default();
    CompletionEntry {
        tag: probe.pattern.tag().into(),
        endpoint: probe.space.endpoint.into(),
        ..entry(CompletionKind::Probe, probe.handle, source, status)
    }
}

fn entry(kind: CompletionKind, handle: u64, source: Name, status: Status) -> CompletionEntry {
    CompletionEntry {
        handle: handle.into(),
        status: status.code().into(),
        node: source.node.into(),
        port: source.port.into(),
        kind: kind as u8,
        ..CompletionEntry::default()
    }
}

/// The completion of a command that has found a message.
fn found(kind: CompletionKind, handle: u64, header: &Header) -> CompletionEntry {
    CompletionEntry {
        tag: header.tag.into(),
        immediate: header.immediate.into(),
        mark: header.mark.into(),
        incarnation: header.incarnation.into(),
        length: header.length.into(),
        endpoint: header.space.endpoint.into(),
        ..entry(kind, handle, header.source, Status::Ok)
    }
}

impl Inbox {
    /// The first probe that waits for a message, of those behind the one of a number.
    fn waiting_for(&self, header: &Header, behind: u64) -> Option<(u64, Probe)> {
        let waits = |probe: &Probe| {
            probe.space == header.space && probe.pattern.matches(header.sender(), header.tag)
        };
        let mut probes = self.probes_behind(behind);
        let first = probes.find(|(_, probe)| waits(probe));
        first.map(|(number, probe)| (number, *probe))
    }
}

impl Messages {
    /// Looks for a message; lets the probe wait if there is none.
    pub(super) fn probe<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId, probe: Probe) {
        let inbox = self.inboxes.get_or_insert(vni);
        let space = inbox.space(probe.space, &cx.core.limits);
        if let Some(message) = space.probe(probe.pattern) {
            let number = message.handle;
            if let Some(header) = self.staging.get(number).map(|arrived| arrived.header) {
                return self.answer(cx, &probe, &header, (number, message.id));
            }
        }
        let status = match probe.waits {
            false => Status::NoMessage,
            true if !expect(cx, probe.pattern.process()) => Status::PeerGone,
            true => {
                self.last_receive += 1;
                let newest = newest(cx, probe.pattern.process());
                let probe = Probe { newest, ..probe };
                let inbox = self.inboxes.get_or_insert(vni);
                if inbox.wait(&cx.core.limits, self.last_receive, probe) {
                    return self.seek(cx, vni, probe.pattern.source());
                }
                Status::Exhausted
            }
        };
        cx.core.complete(cx.host, vni, failed_probe(&probe, status));
    }

    /// Shows probes that wait a message that no posted receive takes, until one takes it. A receive that the NIC has not
    /// read may take it, too.
    pub(super) fn offer<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        header: &Header,
        message: (u64, MessageId),
    ) {
        cx.core.message_waits(header.vni, cx.now);
        let mut last = 0;
        while let Some(inbox) = self.inboxes.get(header.vni) {
            let Some((number, probe)) = inbox.waiting_for(header, last) else {
                return;
            };
            inbox.take_probe(number);
            last = number;
            self.answer(cx, &probe, header, message);
            if probe.found != Found::Stays {
                return;
            }
        }
    }

    /// Ends a probe with the unexpected message that it has found.
    fn answer<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        probe: &Probe,
        header: &Header,
        (number, id): (u64, MessageId),
    ) {
        let mut entry = found(CompletionKind::Probe, probe.handle, header);
        if probe.found != Found::Stays {
            let inbox = self.inboxes.get_or_insert(header.vni);
            let space = inbox.space(header.space, &cx.core.limits);
            space.discard(id);
            self.staging.set_place(number, Place::Claimed);
        }
        match probe.found {
            Found::Stays => {}
            Found::Claimed => entry.offset = number.into(),
            Found::Discarded => self.discard(cx, number),
        }
        cx.core.complete(cx.host, header.vni, entry);
        // It is likely to receive the message.
        cx.core.activate(header.vni, Some(cx.now));
    }

    /// Receives a message that the process has claimed, or discards it.
    pub(super) fn receive_claimed<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        command: ReceiveClaimed,
    ) {
        let ReceiveClaimed {
            handle,
            message,
            local,
        } = command;
        let kind = CompletionKind::Receive;
        let fails = |status| entry(kind, handle, Name::default(), status);
        let checked = local.map_or(Ok(()), |local| local.authorise(cx.core, vni).map(drop));
        if let Err(status) = checked {
            cx.core.counters.refused(status);
            return cx.core.complete(cx.host, vni, fails(status));
        }
        let arrived = self
            .staging
            .get(message)
            .filter(|arrived| arrived.header.vni == vni && matches!(arrived.place, Place::Claimed));
        let Some(header) = arrived.map(|arrived| arrived.header) else {
            return cx.core.complete(cx.host, vni, fails(Status::NoMessage));
        };
        let Some(local) = local else {
            self.discard(cx, message);
            return cx.core.complete(cx.host, vni, found(kind, handle, &header));
        };
        let landing = Landing {
            handle: Handle::Command(handle),
            memory: Memory::Range(local),
            offset: 0,
            allowed: header.length.min(local.length),
            arrived: 0,
            more: false,
        };
        self.land(cx, message, landing);
    }

    /// Drops a message that is out of the matching. Its source learns that nothing of it is taken,
    /// if it waits for permission. Bytes that are coming are dropped when all of them are here.
    pub(super) fn discard<H: Host>(&mut self, cx: &mut Context<'_, H>, number: u64) {
        let Some(message) = self.staging.get(number) else {
            return;
        };
        let header = message.header;
        match message.bytes {
            // Its source has permission for all of it.
            Bytes::Coming(..) => return self.staging.set_place(number, Place::Discarded),
            Bytes::AtGroup => {
                self.staging.openings.open(header.vni);
                return self.staging.set_place(number, Place::Discarded);
            }
            Bytes::AtSource => permit(cx, &header, number, 0, 0),
            Bytes::Staged(_) => {}
        }
        self.staging.remove(number);
    }
}
