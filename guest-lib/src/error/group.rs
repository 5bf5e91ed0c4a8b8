//! Groups that were not joined, and operations of groups that failed.

use std::fmt;

use qnic_abi::collective::{Called, Collective, CollectiveCommand};
use qnic_abi::host_area::CompletionEntry;
use qnic_abi::{NodeId, Port, Status};

use super::{hint, Error};

/// What a process does with a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupOperation {
    /// Joins it.
    Join,
    /// Takes part in this.
    Collective(Collective),
    /// Sends a message to members.
    Multicast,
}

impl GroupOperation {
    /// That of a command.
    pub(crate) fn of(command: &CollectiveCommand) -> Self {
        let collective = Collective::try_from(command.collective);
        GroupOperation::Collective(collective.unwrap_or(Collective::Barrier))
    }
}

/// A join that failed, or a part in an operation of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupError {
    /// Which it was.
    pub operation: GroupOperation,
    /// Name of the group.
    pub name: u64,
    /// Why it failed.
    pub status: Status,
    /// The process that is the reason; port 0 if it is a node as a whole. The own process if the
    /// call itself is wrong; if its time is over, a member that it waits for.
    pub reason: (NodeId, Port),
    /// What members have called, if that is not the same: status Mismatch.
    pub difference: Option<Difference>,
}

/// Two members have called different collectives as the same one of their group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// What the process that is the reason has called.
    pub reason: Called,
    /// What others have.
    pub others: Called,
}

impl Difference {
    fn of(entry: &CompletionEntry) -> Option<Self> {
        let labels = entry.mark.get();
        Some(Difference {
            reason: Called::of_word(entry.tag.get(), labels as u16)?,
            others: Called::of_word(entry.immediate.get(), (labels >> 16) as u16)?,
        })
    }
}

impl GroupError {
    /// What would be said if it failed; its status is still open.
    pub(crate) fn new(operation: GroupOperation, name: u64) -> Self {
        GroupError {
            operation,
            name,
            status: Status::Ok,
            reason: (NodeId(0), Port(0)),
            difference: None,
        }
    }

    /// What a completion says of it.
    pub(crate) fn with(self, status: Status, entry: &CompletionEntry) -> Self {
        let difference = match status {
            Status::Mismatch => Difference::of(entry),
            _ => None,
        };
        GroupError {
            status,
            reason: (NodeId(entry.node.get()), Port(entry.port.get())),
            difference,
            ..self
        }
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.operation {
            GroupOperation::Join => "join",
            GroupOperation::Multicast => "multicast",
            GroupOperation::Collective(collective) => name_of(collective),
        };
        let (name, status, (node, port)) = (self.name, self.status, self.reason);
        write!(f, "{what} of group {name:#x}: {status}")?;
        match port {
            Port(0) => write!(f, " ({node})")?,
            port => write!(f, " ({node}, {port})")?,
        }
        if let Some(Difference { reason, others }) = self.difference {
            f.write_str(": that called ")?;
            say(f, &reason)?;
            f.write_str(", others called ")?;
            say(f, &others)?;
        }
        let is_alone = matches!(
            self.operation,
            GroupOperation::Join | GroupOperation::Multicast
        );
        f.write_str(match status {
            Status::GroupRefused => "; compare key, size and rank with those of the home process",
            Status::Aborted | Status::PeerGone | Status::TimedOut | Status::Mismatch => {
                "; the group has ended: join a new one"
            }
            status if is_alone => hint(&status),
            _ => "; the group has ended: join a new one",
        })
    }
}

const fn name_of(collective: Collective) -> &'static str {
    match collective {
        Collective::Barrier => "barrier",
        Collective::Broadcast => "broadcast",
        Collective::Reduce => "reduce",
        Collective::Allreduce => "allreduce",
    }
}

/// Says what was called.
fn say(f: &mut fmt::Formatter<'_>, called: &Called) -> fmt::Result {
    f.write_str(name_of(called.collective))?;
    if called.collective != Collective::Barrier {
        write!(f, " of {} bytes", called.length)?;
    }
    if let Some((operator, element)) = called.reduction {
        write!(f, " by {operator:?} of {element:?}")?;
    }
    if matches!(
        called.collective,
        Collective::Broadcast | Collective::Reduce
    ) {
        write!(f, " with root {}", called.root)?;
    }
    match called.label {
        0 => Ok(()),
        label => write!(f, " with label {label:#x}"),
    }
}

impl From<GroupError> for Error {
    fn from(error: GroupError) -> Self {
        Error::Group(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::collective::{Element, Operator};

    #[test]
    fn a_failed_collective_names_the_reason() {
        let operation = GroupOperation::Collective(Collective::Barrier);
        let error = GroupError::new(operation, 5);
        let mut entry = CompletionEntry {
            node: 2.into(),
            port: 7.into(),
            ..CompletionEntry::default()
        };
        let gone = Error::from(error.with(Status::PeerGone, &entry));
        assert_eq!(
            gone.to_string(),
            "barrier of group 0x5: the peer was reset or its process ended during the transfer \
             (node 2, port 7); the group has ended: join a new one"
        );
        assert_eq!(gone.status(), Some(Status::PeerGone));
        let sum = Called {
            collective: Collective::Reduce,
            reduction: Some((Operator::Sum, Element::F64)),
            length: 800,
            root: 3,
            label: 0,
        };
        let barrier = Called {
            collective: Collective::Barrier,
            reduction: None,
            length: 0,
            root: 0,
            label: 9,
        };
        (entry.tag, entry.immediate) = (sum.word().into(), barrier.word().into());
        entry.mark = (9 << 16).into();
        let differs = Error::from(error.with(Status::Mismatch, &entry)).to_string();
        let said = "(node 2, port 7): that called reduce of 800 bytes by Sum of F64 with root 3, \
                    others called barrier with label 0x9; the group has ended: join a new one";
        assert!(differs.ends_with(said), "{differs}");
    }
}
