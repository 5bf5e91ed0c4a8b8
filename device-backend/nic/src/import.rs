//! Imports (N3): asking another node for a segment by name, and answering.
//!
//! ```text
//!   importer: pending ──ImportRequest──► owner: exported? ── yes ──► ImportReply
//!                ▲                              │ no
//!                │                              ▼
//!                └───────ImportReply────── parked until the name is exported,
//!                                          the deadline, or the importer's end
//! ```
//! A node that cannot be reached, or that is reset meanwhile, is asked again
//! until the time is up: the nodes of a cluster come up in any order. Every
//! import gets its reply: if nothing else comes, at its deadline.

use qnic_abi::control::{Import, Imported, ReplyHeader, MAX_IMPORT_WAIT_MS, REPLY_BYTES};
use qnic_abi::wire::{FrameHeader, FrameKind};
use qnic_abi::{NodeId, Port, SegmentId, SegmentName, Status, VniId};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

use crate::control::reply;
use crate::env::{Host, Time, Wire};
use crate::nic::{Io, Nic};
use crate::segment::Segment;
use crate::transport::{header, PeerIndex};

/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// A node that could not be reached is asked again after so long, in nanoseconds.
pub(crate) const RETRY_AFTER: u64 = 10 * MILLISECOND;

/// The importer waits so much longer than the owner, in nanoseconds.
const GRACE: u64 = 200 * MILLISECOND;

/// An import of a local process that was not answered.
#[derive(Debug)]
struct Pending {
    token: u64,
    vni: VniId,
    node: NodeId,
    port: Port,
    name: SegmentName,
    /// Names it in frames.
    number: u64,
    /// The time the caller gave is over.
    deadline: Time,
    waits: bool,
    /// The request is on its way; else when to send it.
    send_at: Option<Time>,
}

impl Pending {
    /// When something has to be done about it.
    fn due(&self) -> Time {
        let end = match self.send_at {
            None => self.deadline.after(GRACE),
            Some(_) => self.deadline,
        };
        self.send_at.map_or(end, |send_at| send_at.min(end))
    }
}

/// Imports of local processes.
#[derive(Debug, Default)]
pub(crate) struct PendingImports {
    pending: Vec<Pending>,
    next_number: u64,
}

impl PendingImports {
    /// Says whether any import waits.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// When something has to be done.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.pending.iter().map(Pending::due).min()
    }

    /// Ends the imports of a process.
    pub(crate) fn abort(&mut self, vni: VniId, replies: &mut VecDeque<(u64, [u8; REPLY_BYTES])>) {
        self.pending.retain(|pending| {
            if pending.vni == vni {
                replies.push_back((pending.token, reply(Status::Aborted, &[])));
            }
            pending.vni != vni
        });
    }

    /// Says whether an answer of a node is missing.
    pub(crate) fn waits_for(&self, node: NodeId) -> bool {
        let mut pending = self.pending.iter();
        pending.any(|pending| pending.node == node && pending.send_at.is_none())
    }

    /// Asks a node again, at that time, that has forgotten everything or was not there.
    pub(crate) fn resend(&mut self, node: NodeId, again: Time) {
        for pending in &mut self.pending {
            if pending.node == node {
                pending.send_at = Some(again);
            }
        }
    }
}

/// An import of a peer that waits for a name.
#[derive(Debug)]
struct Parked {
    peer: PeerIndex,
    /// Number of the request.
    sequence: u64,
    importer: Port,
    number: u64,
    port: Port,
    name: SegmentName,
    deadline: Time,
}

/// Imports of peers.
#[derive(Debug, Default)]
pub(crate) struct ParkedImports {
    parked: Vec<Parked>,
}

impl ParkedImports {
    /// Says whether any import waits.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Number of imports that wait.
    pub(crate) fn count(&self) -> u32 {
        self.parked.len() as u32
    }

    /// When the first of them has waited long enough.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.parked.iter().map(|parked| parked.deadline).min()
    }

    /// Drops the imports of a peer.
    pub(crate) fn forget(&mut self, peer: PeerIndex) {
        self.parked.retain(|parked| parked.peer != peer);
    }

    /// Drops those that a process of a peer has sent before this number.
    pub(crate) fn forget_process(&mut self, peer: PeerIndex, importer: Port, sequence: u64) {
        self.parked.retain(|parked| {
            parked.peer != peer || parked.importer != importer || parked.sequence > sequence
        });
    }
}

impl Nic {
    /// Starts an import; `None` says that the reply comes later.
    pub(crate) fn import<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        body: &Import,
        token: u64,
    ) -> Option<Status> {
        let wait_ms = body.wait_ms.get();
        if wait_ms > MAX_IMPORT_WAIT_MS {
            return Some(Status::Malformed);
        }
        if self.process(vni).is_none() {
            return Some(Status::NoSuchVni);
        }
        if self.imports.pending.len() >= self.config.limits.imports as usize {
            return Some(Status::Exhausted);
        }
        self.imports.next_number += 1;
        let pending = Pending {
            token,
            vni,
            node: NodeId(body.node.get()),
            port: Port(body.port.get()),
            name: SegmentName(body.name.get()),
            number: self.imports.next_number,
            deadline: io.now.after(u64::from(wait_ms) * MILLISECOND),
            waits: wait_ms > 0,
            send_at: Some(io.now),
        };
        self.imports.pending.push(pending);
        let place = self.imports.pending.len() - 1;
        self.send_import(io.now, place);
        self.flush(io, false);
        // The own node has answered by now.
        let number = self.imports.next_number;
        let pending = &mut self.imports.pending;
        let unsent = pending.iter().position(|pending| {
            pending.number == number && pending.send_at.is_some() && !pending.waits
        });
        unsent.map(|place| {
            pending.remove(place);
            Status::NoSuchNode
        })
    }

    /// Queues the request of a pending import, or notes when to try again.
    fn send_import(&mut self, now: Time, place: usize) {
        let pending = &self.imports.pending[place];
        let mut request = header(FrameKind::ImportRequest);
        request.destination_port = pending.port.0.into();
        request.operation = pending.number.into();
        request.argument = pending.name.0.into();
        let left = pending.deadline.0.saturating_sub(now.0);
        request.length = left.div_ceil(MILLISECOND).into();
        let (node, vni) = (pending.node, pending.vni);
        if let Some(process) = self.process(vni) {
            request.source_port = process.port.0.into();
        }
        let index = self.peers.find_or_add(node, &self.config.limits);
        if let Some(index) = index {
            self.peers.answer(index, request);
        }
        let later = now.after(RETRY_AFTER);
        self.imports.pending[place].send_at = index.is_none().then_some(later);
    }

    /// Asks again where that is due; ends what has waited long enough.
    pub(crate) fn expire_imports(&mut self, now: Time) -> bool {
        let mut busy = false;
        let mut place = 0;
        while place < self.imports.pending.len() {
            let pending = &self.imports.pending[place];
            if pending.due() > now {
                place += 1;
                continue;
            }
            busy = true;
            match pending.send_at {
                Some(_) if now < pending.deadline => {
                    self.send_import(now, place);
                    place += 1;
                }
                send_at => {
                    let status = match send_at {
                        Some(_) => Status::NoSuchNode,
                        None => Status::NameNotFound,
                    };
                    let pending = self.imports.pending.remove(place);
                    self.replies.push_back((pending.token, reply(status, &[])));
                }
            }
        }
        busy | self.expire_parked(now)
    }

    fn expire_parked(&mut self, now: Time) -> bool {
        let mut busy = false;
        let mut place = 0;
        while place < self.parked.parked.len() {
            if self.parked.parked[place].deadline > now {
                place += 1;
                continue;
            }
            busy = true;
            let parked = self.parked.parked.remove(place);
            self.answer_import(
                parked.peer,
                parked.importer,
                parked.number,
                Err(Status::NameNotFound),
            );
        }
        busy
    }

    /// A peer asks for a segment of this node.
    pub(crate) fn take_import_request(&mut self, now: Time, index: PeerIndex, frame: &FrameHeader) {
        let port = Port(frame.destination_port.get());
        let name = SegmentName(frame.argument.get());
        let importer = Port(frame.source_port.get());
        let number = frame.operation.get();
        let wait_ms = frame.length.get().min(u64::from(MAX_IMPORT_WAIT_MS));
        let process = self.vni_of(port).and_then(|vni| self.process(vni));
        let found = process.and_then(|process| {
            let (id, segment) = process.segments.find(name)?;
            Some((id, segment.clone()))
        });
        let answer = match found {
            Some(found) => Ok(found),
            None if wait_ms == 0 => Err(Status::NameNotFound),
            None if self.parked.count() >= self.config.limits.parked_imports => {
                Err(Status::Exhausted)
            }
            None => {
                return self.parked.parked.push(Parked {
                    peer: index,
                    sequence: frame.sequence.get(),
                    importer,
                    number,
                    port,
                    name,
                    deadline: now.after(wait_ms * MILLISECOND),
                });
            }
        };
        self.answer_import(index, importer, number, answer);
    }

    fn answer_import(
        &mut self,
        index: PeerIndex,
        importer: Port,
        number: u64,
        answer: Result<(SegmentId, Segment), Status>,
    ) {
        let mut frame = header(FrameKind::ImportReply);
        frame.destination_port = importer.0.into();
        frame.operation = number.into();
        match answer {
            Ok((id, segment)) => {
                frame.segment = id.0.into();
                frame.key = segment.key.0.into();
                frame.address = segment.address.into();
                frame.offset = segment.length.into();
                frame.notification = segment.access.bits().into();
            }
            Err(status) => frame.status = status.code().into(),
        }
        self.peers.answer(index, frame);
    }

    /// Answers the imports that have waited for this segment.
    pub(crate) fn exported(&mut self, port: Port, id: SegmentId, segment: &Segment) {
        let mut place = 0;
        while place < self.parked.parked.len() {
            let parked = &self.parked.parked[place];
            if parked.port != port || parked.name != segment.name {
                place += 1;
                continue;
            }
            let parked = self.parked.parked.remove(place);
            let answer = Ok((id, segment.clone()));
            self.answer_import(parked.peer, parked.importer, parked.number, answer);
        }
    }

    /// The owner has answered.
    pub(crate) fn take_import_reply(&mut self, index: PeerIndex, frame: &FrameHeader) {
        let node = self.peers[index].node;
        let number = frame.operation.get();
        let pending = &mut self.imports.pending;
        let place = pending
            .iter()
            .position(|pending| pending.number == number && pending.node == node);
        let Some(place) = place else {
            return;
        };
        let pending = pending.remove(place);
        let status = Status::try_from(frame.status.get()).unwrap_or(Status::Malformed);
        let imported = Imported {
            segment: frame.segment,
            reserved: 0.into(),
            access: frame.notification,
            address: frame.address,
            length: frame.offset,
            key: frame.key,
        };
        let body: &[u8] = match status {
            Status::Ok => imported.as_bytes(),
            _ => &[],
        };
        self.replies.push_back((pending.token, reply(status, body)));
    }
}

const _: () = assert!(size_of::<ReplyHeader>() + size_of::<Imported>() <= REPLY_BYTES);
