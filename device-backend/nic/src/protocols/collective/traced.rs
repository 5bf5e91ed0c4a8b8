//! What frames of this protocol belong to, for a trace ([`crate::trace`]).
//!
//! A part belongs to its collective, and what begins or ends a group to the group: both are numbered by
//! the home. A join is numbered by the node that joins, and so is its refusal.

use qnic_abi::collective::{kind, CollectivePart, GroupEnd, GroupForm, GroupJoin, GroupRefused};
use qnic_abi::collective::{GroupState, PartFields, StateFields};
use qnic_abi::wire::Frame;

use super::place::GroupId;
use crate::core::Subject;
use crate::trace::Scope;

/// A join, by its ticket at the node of the process.
pub(super) fn join(node: u16, ticket: u64) -> Subject {
    Subject::always(Scope::Join, node, ticket)
}

/// What a frame from one node to another belongs to.
pub(super) fn subject(frame: &Frame, from: u16, to: u16) -> Subject {
    let of_group = |home: u16, number: u64| GroupId { home, number }.subject();
    let of_state = |state: StateFields| of_group(state.home.get(), state.number.get());
    let of_part = |part: PartFields| {
        let (home, number) = (part.home.get(), part.number.get());
        GroupId { home, number }.collective(part.sequence.get())
    };
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
        kind::GROUP_FORM => of_group(from, frame.body::<GroupForm>().number.get()),
        kind::GROUP_END => {
            let end = frame.body::<GroupEnd>();
            of_group(end.home.get(), end.number.get())
        }
        kind::GROUP_FORMED => of_state(frame.body::<GroupState<{ kind::GROUP_FORMED }>>().0),
        kind::GROUP_START => of_state(frame.body::<GroupState<{ kind::GROUP_START }>>().0),
        _ => of_state(frame.body::<GroupState<{ kind::GROUP_GREET }>>().0),
    }
}
