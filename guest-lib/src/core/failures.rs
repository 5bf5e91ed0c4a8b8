//! Failures of transfers that have no ticket, until a fence or flush asks for them (N11).
//!
//! The first ones are kept as they are; of later ones only how many there were, by kind, destination
//! and status. So what a program that never asks has here does not grow with what fails.

use std::collections::BTreeMap;

use qnic_abi::{NodeId, Port, Status};

use crate::error::{MoreFailures, Operation, TransferError, TransferErrors};

/// Failures that are kept as they are.
const KEPT: usize = 64;

/// Kind, node, port and code of the status.
type Key = (usize, u16, u16, u32);

/// Failures that were not asked for.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    first: Vec<TransferError>,
    more: BTreeMap<Key, MoreFailures>,
}

impl Failures {
    /// Keeps one.
    pub(crate) fn push(&mut self, failure: TransferError) {
        if self.first.len() < KEPT {
            return self.first.push(failure);
        }
        let TransferError {
            operation,
            node,
            port,
            status,
            ..
        } = failure;
        let key = (operation.kind(), node.0, port.0, status.code());
        let more = MoreFailures {
            operation,
            node,
            port,
            status,
            count: 0,
        };
        self.more.entry(key).or_insert(more).count += 1;
    }

    /// Takes those of a kind, to one process or to all.
    pub(crate) fn take(
        &mut self,
        operation: Operation,
        destination: Option<(NodeId, Port)>,
    ) -> TransferErrors {
        self.take_where(operation, |node, port, _| {
            destination.is_none_or(|destination| destination == (node, port))
        })
    }

    /// Takes those of a kind that say that a process, or its node, is gone.
    pub(crate) fn take_unreachable(
        &mut self,
        (node, port): (NodeId, Port),
        operation: Operation,
    ) -> TransferErrors {
        self.take_where(operation, |its_node, its_port, status| {
            let gone = match status {
                Status::NoSuchNode => true,
                Status::PeerGone => its_port == port,
                _ => false,
            };
            gone && its_node == node
        })
    }

    fn take_where(
        &mut self,
        operation: Operation,
        wanted: impl Fn(NodeId, Port, Status) -> bool,
    ) -> TransferErrors {
        let mut taken = TransferErrors::default();
        if self.first.is_empty() {
            return taken;
        }
        let of_kind = |other: Operation| other.kind() == operation.kind();
        self.first.retain(|it| {
            let take = of_kind(it.operation) && wanted(it.node, it.port, it.status);
            if take {
                taken.failures.push(*it);
            }
            !take
        });
        self.more.retain(|_, it| {
            let take = of_kind(it.operation) && wanted(it.node, it.port, it.status);
            if take {
                taken.more.push(*it);
            }
            !take
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use qnic_abi::SegmentName;

    use super::*;

    fn failure(operation: Operation, port: u16, status: Status) -> TransferError {
        TransferError {
            operation,
            node: NodeId(1),
            port: Port(port),
            segment: SegmentName(3),
            offset: 0,
            length: 8,
            status,
        }
    }

    #[test]
    fn what_is_not_asked_for_is_counted_and_does_not_grow() {
        let mut failures = Failures::default();
        for _ in 0..10_000 {
            failures.push(failure(Operation::Write, 7, Status::BadKey));
            failures.push(failure(Operation::Read, 7, Status::BadKey));
            failures.push(failure(Operation::Write, 8, Status::PeerGone));
        }
        assert_eq!((failures.first.len(), failures.more.len()), (KEPT, 3));
        let all = |errors: &TransferErrors| {
            let more: u64 = errors.more.iter().map(|more| more.count).sum();
            errors.failures.len() as u64 + more
        };
        let unreachable = failures.take_unreachable((NodeId(1), Port(8)), Operation::Write);
        assert_eq!(all(&unreachable), 10_000);
        let one = failures.take(Operation::Write, Some((NodeId(1), Port(7))));
        assert_eq!((all(&one), one.more.len()), (10_000, 1));
        assert_eq!(all(&failures.take(Operation::Write, None)), 0);
        assert_eq!(all(&failures.take(Operation::Atomic, None)), 10_000);
    }
}
