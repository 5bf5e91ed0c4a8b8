//! Groups that were not joined, and operations of groups that failed.

use std::fmt;

use qnic_abi::collective::{Collective, CollectiveCommand};
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
}

impl GroupError {
    /// What would be said if it failed; its status is still open.
    pub(crate) fn new(operation: GroupOperation, name: u64) -> Self {
        GroupError {
            operation,
            name,
            status: Status::Ok,
            reason: (NodeId(0), Port(0)),
        }
    }

    pub(crate) fn with(self, status: Status, reason: (NodeId, Port)) -> Self {
        GroupError {
            status,
            reason,
            ..self
        }
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.operation {
            GroupOperation::Join => "join",
            GroupOperation::Multicast => "multicast",
            GroupOperation::Collective(Collective::Barrier) => "barrier",
            GroupOperation::Collective(Collective::Broadcast) => "broadcast",
            GroupOperation::Collective(Collective::Reduce) => "reduce",
            GroupOperation::Collective(Collective::Allreduce) => "allreduce",
        };
        let (name, status, (node, port)) = (self.name, self.status, self.reason);
        write!(f, "{what} of group {name:#x}: {status}")?;
        match port {
            Port(0) => write!(f, " ({node})")?,
            port => write!(f, " ({node}, {port})")?,
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

impl From<GroupError> for Error {
    fn from(error: GroupError) -> Self {
        Error::Group(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_collective_names_the_reason() {
        let operation = GroupOperation::Collective(Collective::Barrier);
        let error = GroupError::new(operation, 5);
        let error = Error::from(error.with(Status::PeerGone, (NodeId(2), Port(7))));
        assert_eq!(
            error.to_string(),
            "barrier of group 0x5: the peer was reset or its process ended during the transfer \
             (node 2, port 7); the group has ended: join a new one"
        );
        assert_eq!(error.status(), Some(Status::PeerGone));
    }
}
