//! The place of a NIC in a group: its members here, and its neighbours in the tree.

use qnic_abi::collective::{PartFields, NO_NODE};
use qnic_abi::VniId;

use super::command::Shape;
use crate::core::Subject;
use crate::trace::Scope;

/// Names a group in all NICs: its home, and a number that the home never uses again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct GroupId {
    pub(super) home: u16,
    pub(super) number: u64,
}

/// A member on this node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) vni: VniId,
    pub(super) group: GroupId,
    pub(super) rank: u32,
    /// The group's name for commands of this member.
    pub(super) local: u64,
    /// Collectives that it has called.
    pub(super) calls: u32,
}

/// The place of a NIC in the tree of a group.
#[derive(Debug, Clone)]
pub(super) struct Relatives {
    pub(super) id: GroupId,
    pub(super) parent: Option<u16>,
    pub(super) children: Vec<u16>,
    /// Bytes of a part; zero until the group has started.
    pub(super) part_bytes: u64,
}

impl GroupId {
    /// What happens to the group, for a trace.
    pub(super) fn subject(self) -> Subject {
        Subject::always(Scope::Group, self.home, self.number)
    }

    /// What happens to a collective of it.
    pub(super) fn collective(self, sequence: u32) -> Subject {
        Subject::collective(self.home, self.number, sequence)
    }
}

impl Relatives {
    /// Those that a frame of the home says.
    pub(super) fn new(id: GroupId, parent: u16, children: Vec<u16>) -> Self {
        Relatives {
            id,
            parent: (parent != NO_NODE).then_some(parent),
            children,
            part_bytes: 0,
        }
    }

    /// All nodes next to it.
    pub(super) fn all(&self) -> impl Iterator<Item = u16> + '_ {
        self.parent.into_iter().chain(self.children.iter().copied())
    }

    /// The fields of a frame about a part.
    pub(super) fn fields(&self, shape: &Shape, sequence: u32, part: u32) -> PartFields {
        PartFields {
            number: self.id.number.into(),
            home: self.id.home.into(),
            sequence: sequence.into(),
            part: part.into(),
            part_bytes: (self.part_bytes as u32).into(),
            ..shape.fields()
        }
    }
}
