//! What waits for room in a window to a peer.

use std::collections::VecDeque;

use qnic_abi::VniId;

use crate::frame::StoredFrame;
use crate::ids::{OperationId, ProtocolId};

/// Fewest names that [`Waiting`] looks through for such as have ended.
const FEW: usize = 64;

/// Operations that wait, in their order. An operation that ends is not taken out, but its
/// name is forgotten before such names are as many as the others: there are at most twice
/// as many names here as operations that run on the NIC, or 64.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    names: Vec<OperationId>,
    /// Names that ran when all were looked through.
    running: usize,
}

impl Waiting {
    /// Lets an operation wait.
    pub(super) fn push(&mut self, id: OperationId, runs: impl FnMut(&OperationId) -> bool) {
        if self.names.len() >= FEW.max(2 * self.running) {
            self.names.retain(runs);
            self.running = self.names.len();
        }
        self.names.push(id);
    }

    /// Returns true if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Takes all out, behind what stands in `names`.
    pub(super) fn append_to(&mut self, names: &mut Vec<OperationId>) {
        names.append(&mut self.names);
        self.running = 0;
    }
}

/// What waits for room in a window.
#[derive(Debug, Default)]
pub(crate) struct Blocked {
    /// Operations, each in need of a place in the window.
    pub(crate) operations: Waiting,
    /// Operations that wait for others to be answered.
    pub(crate) requests: Waiting,
    /// Frames of the peer that have to be answered with a payload.
    pub(crate) responses: VecDeque<(VniId, StoredFrame)>,
    /// Protocols whose frames of the NIC itself need a place; each once.
    pub(crate) protocols: Vec<ProtocolId>,
}

impl Blocked {
    /// How many wait, or have waited and are not forgotten yet.
    pub(super) fn count(&self) -> usize {
        let operations = self.operations.names.len() + self.requests.names.len();
        operations + self.responses.len() + self.protocols.len()
    }

    /// Returns true if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
            && self.requests.is_empty()
            && self.responses.is_empty()
            && self.protocols.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_operations_that_have_ended_do_not_pile_up() {
        let mut waiting = Waiting::default();
        for number in 0..10_000 {
            let runs = |id: &OperationId| id.0 < 100 || id.0 + 10 > number;
            waiting.push(OperationId(number), runs);
            assert!(waiting.names.len() <= 2 * 110 + 1);
        }
        let mut names = Vec::new();
        waiting.append_to(&mut names);
        assert!(waiting.is_empty() && names.is_sorted_by_key(|id| id.0));
        let expected: Vec<_> = (0..100).chain([9_999]).map(OperationId).collect();
        assert!(expected.iter().all(|id| names.contains(id)));
    }
}
