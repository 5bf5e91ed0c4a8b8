//! What frames of other NICs do to groups, and what frames belong to in a trace ([`crate::trace`]).
//!
//! In a trace, a part belongs to its collective, and a frame that begins or ends a group to the
//! group: the home numbers both. A join is numbered by the node that joins, and so is its refusal.

use std::sync::Arc;

use qnic_abi::collective::{
    is_part_length, kind, CollectivePart, GroupEnd, GroupForm, GroupJoin, GroupRefused, GroupSeek,
    GroupState, PartFields, StateFields, HAS_BYTES, WANTS_RESULT,
};
use qnic_abi::multicast::{self, Multicast, MulticastTaken};
use qnic_abi::wire::Frame;
use qnic_abi::Status;
use zerocopy::little_endian::{U16, U64};

use super::command::{Difference, Name, Shape};
use super::group::{End, RUNNING};
use super::place::GroupId;
use super::{Collectives, Context};
use crate::core::Subject;
use crate::env::Host;
use crate::frame::Arrival;
use crate::trace::Scope;

impl Collectives {
    /// Receives a frame of this protocol.
    pub(super) fn receive_frame<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let node = cx.transport.node_of(arrival.peer).0;
        match arrival.frame.envelope.kind {
            kind::COLLECTIVE_UP => self.receive_part::<H, { kind::COLLECTIVE_UP }>(cx, arrival),
            kind::COLLECTIVE_DOWN => {
                self.receive_part::<H, { kind::COLLECTIVE_DOWN }>(cx, arrival);
            }
            kind::GROUP_JOIN => self.home.receive_join(cx, arrival, &mut self.outbox),
            kind::GROUP_REFUSED => self.receive_refusal(cx, arrival),
            kind::GROUP_FORM => self.receive_form(cx, arrival),
            kind::GROUP_FORMED => {
                let state: GroupState<{ kind::GROUP_FORMED }> = arrival.body();
                let known = is_part_length(state.0.part_bytes.get());
                let own = cx.core.geometry.node.0;
                if known && state.0.home.get() == own {
                    let id = GroupId {
                        home: own,
                        number: state.0.number.get(),
                    };
                    let nodes = self.home.receive_formed(cx, node, &state.0);
                    if let (Some(nodes), Some(group)) = (nodes, self.groups.get_mut(&id)) {
                        group.nodes = nodes;
                    }
                }
            }
            kind::GROUP_START => {
                let state: GroupState<{ kind::GROUP_START }> = arrival.body();
                let part_bytes = state.0.part_bytes.get();
                let id = GroupId {
                    home: node,
                    number: state.0.number.get(),
                };
                if is_part_length(part_bytes) {
                    self.start(cx, id, part_bytes);
                }
            }
            kind::GROUP_END => self.receive_end(cx, arrival),
            kind::GROUP_SEEK => self.receive_seek(cx, arrival),
            multicast::kind::MULTICAST => self.receive_multicast(cx, arrival),
            multicast::kind::MULTICAST_TAKEN => self.receive_taken(cx, arrival),
            _ => {
                let state: GroupState<{ kind::GROUP_GREET }> = arrival.body();
                let id = GroupId::of(state.0.home, state.0.number);
                self.tell_if_ended(cx, node, id);
            }
        }
    }

    fn receive_end<H: Host>(&mut self, cx: &mut Context<'_, H>, arrival: &Arrival<'_, H::Memory>) {
        let body: GroupEnd = arrival.body();
        let node = cx.transport.node_of(arrival.peer).0;
        let id = GroupId::of(body.home, body.number);
        let status = match Status::try_from(body.status.get()) {
            Ok(Status::Ok) | Err(_) => Status::Aborted,
            Ok(status) => status,
        };
        let who = Name {
            node: body.node.get(),
            port: body.port.get(),
        };
        let difference = Difference {
            reason: (body.reason_called.get(), body.reason_label.get()),
            others: (body.others_called.get(), body.others_label.get()),
        };
        let end = End {
            status,
            who,
            difference,
        };
        let own = cx.core.geometry.node.0;
        if id.home == own {
            self.home
                .receive_end((own, node), id.number, end, &mut self.outbox);
        }
        // It is believed of neighbours and of the home; at the home also of a node that has not
        // learned in time that the group has started.
        let group = self.groups.get(&id);
        let known = |group: &super::Group| {
            id.home == node
                || group.nodes.contains(&node)
                || group.relatives.all().any(|other| other == node)
        };
        if group.is_some_and(known) {
            self.end_group(cx, id, end, Some(node));
        }
    }

    /// Receives a part from a node above or below.
    fn receive_part<H: Host, const KIND: u8>(
        &mut self,
        cx: &mut Context<'_, H>,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        let part: CollectivePart<KIND> = arrival.body();
        let fields = &part.0;
        let node = cx.transport.node_of(arrival.peer).0;
        let id = GroupId::of(fields.home, fields.number);
        if fields.part.get() == 0 {
            self.tell_if_ended(cx, node, id);
        }
        // A node that sends a part knows that the group has started.
        let place = self.groups.get(&id).and_then(|group| match KIND {
            kind::COLLECTIVE_UP => {
                let mut children = group.relatives.children.iter();
                children.position(|child| *child == node)
            }
            _ => (group.relatives.parent == Some(node)).then_some(0),
        });
        let Some(place) = place else {
            return;
        };
        self.start(cx, id, fields.part_bytes.get());
        let mut bytes = vec![0; arrival.payload.len()];
        let has_bytes = fields.flags & HAS_BYTES != 0;
        let read = arrival.payload.read(&mut bytes).is_ok();
        let whole = read && has_bytes != bytes.is_empty();
        let bytes: Option<Arc<[u8]>> = has_bytes.then(|| bytes.into());
        let shape = Shape::of_part(&part);
        let taken = match shape {
            Ok(shape) if whole => self.take_part::<KIND>(id, place, fields, shape, bytes),
            _ => Err(Refused::Wrong),
        };
        let who = Name { node, port: 0 };
        let end = match taken {
            Ok(()) => return self.advance(cx, id),
            Err(Refused::Wrong) => End::new(Status::Malformed, who),
            Err(Refused::Other(difference)) => End::mismatch(who, difference),
        };
        self.end_group(cx, id, end, None);
    }

    fn take_part<const KIND: u8>(
        &mut self,
        id: GroupId,
        place: usize,
        fields: &qnic_abi::collective::PartFields,
        shape: Shape,
        bytes: Option<Arc<[u8]>>,
    ) -> Result<(), Refused> {
        let (sequence, part) = (fields.sequence.get(), fields.part.get());
        let Some(group) = self
            .groups
            .get_mut(&id)
            .filter(|group| group.ended.is_none())
        else {
            return Ok(());
        };
        let part_bytes = group.relatives.part_bytes;
        if group.is_past(sequence) || part_bytes != u64::from(fields.part_bytes.get()) {
            return Err(Refused::Wrong);
        }
        let relatives = group.relatives.clone();
        let running = group.running(sequence, 2 * RUNNING);
        let running = running.ok_or(Refused::Wrong)?;
        running.agrees(shape).map_err(Refused::Other)?;
        let taken = running.fits(part, &bytes, part_bytes)
            && match KIND {
                kind::COLLECTIVE_UP => {
                    running.rise(place, part, bytes, fields.flags & WANTS_RESULT != 0)
                }
                _ => running.fall(part, bytes, &relatives, &mut self.outbox),
            };
        taken.then_some(()).ok_or(Refused::Wrong)
    }
}

/// Why a part is not taken.
enum Refused {
    /// It cannot be one of this group now.
    Wrong,
    /// It is one of another collective.
    Other(Difference),
}

/// A join, by its ticket at the node of the process.
pub(super) fn join(node: u16, ticket: u64) -> Subject {
    Subject::always(Scope::Join, node, ticket)
}

/// What a frame from one node to another belongs to.
pub(super) fn subject(frame: &Frame, from: u16, to: u16) -> Subject {
    let of_group = |home: U16, number: U64| GroupId::of(home, number).subject();
    let of_state = |state: StateFields| of_group(state.home, state.number);
    let of_part =
        |part: PartFields| GroupId::of(part.home, part.number).collective(part.sequence.get());
    match frame.envelope.kind {
        kind::COLLECTIVE_UP => of_part(frame.body::<CollectivePart<{ kind::COLLECTIVE_UP }>>().0),
        kind::COLLECTIVE_DOWN => {
            of_part(frame.body::<CollectivePart<{ kind::COLLECTIVE_DOWN }>>().0)
        }
        kind::GROUP_JOIN => join(from, frame.body::<GroupJoin>().ticket.get()),
        kind::GROUP_REFUSED => {
            let ticket = frame.body::<GroupRefused>().ticket.get();
            // A member takes its own join back; a home speaks for the port of none.
            let withdrawn = frame.envelope.source_port.get() != 0;
            join(if withdrawn { from } else { to }, ticket)
        }
        kind::GROUP_FORM => of_group(from.into(), frame.body::<GroupForm>().number),
        kind::GROUP_END => {
            let end = frame.body::<GroupEnd>();
            of_group(end.home, end.number)
        }
        kind::GROUP_SEEK => {
            let seek = frame.body::<GroupSeek>();
            GroupId::of(seek.home, seek.number).collective(seek.sequence.get())
        }
        multicast::kind::MULTICAST => {
            let fields = frame.body::<Multicast>();
            of_group(fields.home, fields.number)
        }
        multicast::kind::MULTICAST_TAKEN => {
            let fields = frame.body::<MulticastTaken>();
            of_group(fields.home, fields.number)
        }
        kind::GROUP_FORMED => of_state(frame.body::<GroupState<{ kind::GROUP_FORMED }>>().0),
        kind::GROUP_START => of_state(frame.body::<GroupState<{ kind::GROUP_START }>>().0),
        _ => of_state(frame.body::<GroupState<{ kind::GROUP_GREET }>>().0),
    }
}
