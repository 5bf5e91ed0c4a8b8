//! What waits for room in a window to a peer.

use std::collections::VecDeque;

use qnic_abi::VniId;

use super::{Transport, REQUEST_WINDOW};
use crate::frame::StoredFrame;
use crate::ids::{OperationId, PeerIndex, ProtocolId};

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

/// What had to wait for a window that has room again.
#[derive(Debug, Default)]
pub(crate) struct Unblocked {
    pub(crate) operations: Vec<OperationId>,
    pub(crate) responses: Vec<(VniId, StoredFrame)>,
    pub(crate) protocols: Vec<(ProtocolId, PeerIndex)>,
}

/// Which window an operation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// That of fragments with a payload.
    Fragments,
    /// That of requests.
    Requests,
}

impl Transport {
    /// Lets an operation wait for a window. It comes back by
    /// [`Transport::take_unblocked`]. Those that have ended meanwhile, so do not satisfy
    /// `runs`, are forgotten before they are more than the others.
    pub(crate) fn block(
        &mut self,
        index: PeerIndex,
        window: Window,
        id: OperationId,
        runs: impl FnMut(&OperationId) -> bool,
    ) {
        let blocked = &mut self.peers[index].blocked;
        let waiting = match window {
            Window::Fragments => &mut blocked.operations,
            Window::Requests => &mut blocked.requests,
        };
        waiting.push(id, runs);
    }

    /// Lets the answer to a frame of a peer wait for the window of fragments.
    pub(crate) fn block_response(&mut self, vni: VniId, request: StoredFrame) {
        let blocked = &mut self.peers[request.peer].blocked;
        blocked.responses.push_back((vni, request));
    }

    /// Lets frames of the NIC itself wait for the window of fragments.
    pub(crate) fn block_protocol(&mut self, index: PeerIndex, protocol: ProtocolId) {
        let protocols = &mut self.peers[index].blocked.protocols;
        if !protocols.contains(&protocol) {
            protocols.push(protocol);
        }
    }

    /// Answers to frames of a peer that wait for the window.
    pub(crate) fn blocked_responses(&self, index: PeerIndex) -> usize {
        self.peers[index].blocked.responses.len()
    }

    /// Drops the answers that wait and are chosen.
    pub(crate) fn drop_responses(
        &mut self,
        index: PeerIndex,
        dropped: impl Fn(VniId, &StoredFrame) -> bool,
    ) {
        let responses = &mut self.peers[index].blocked.responses;
        responses.retain(|(vni, request)| !dropped(*vni, request));
    }

    /// Notes that requests to a peer are under way.
    #[inline]
    pub(crate) fn requested(&mut self, index: PeerIndex, count: u32) {
        self.peers[index].requests += count;
    }

    /// Notes that requests to a peer were answered, or are no longer waited for.
    pub(crate) fn answered(&mut self, index: PeerIndex, count: u32) {
        let peer = &mut self.peers[index];
        peer.requests = peer.requests.saturating_sub(count);
        peer.probes = 0;
        self.unblock_requests(index);
    }

    pub(super) fn unblock_requests(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let waits = !peer.blocked.requests.is_empty();
        if waits && peer.requests <= REQUEST_WINDOW / 2 && peer.is_ready() {
            let requests = &mut peer.blocked.requests;
            requests.append_to(&mut self.unblocked.operations);
        }
    }

    /// Lets those go on that waited for room in the window to a peer.
    #[inline]
    pub(super) fn unblock(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let blocked = &peer.blocked;
        if blocked.operations.is_empty()
            && blocked.responses.is_empty()
            && blocked.protocols.is_empty()
        {
            return;
        }
        if peer.is_half_open() {
            let blocked = &mut peer.blocked;
            let operations = &mut blocked.operations;
            operations.append_to(&mut self.unblocked.operations);
            self.unblocked.responses.extend(blocked.responses.drain(..));
            let protocols = blocked.protocols.drain(..);
            let protocols = protocols.map(|protocol| (protocol, index));
            self.unblocked.protocols.extend(protocols);
        }
    }

    /// Returns true if [`Transport::take_unblocked`] would return something.
    #[inline]
    pub(crate) fn has_unblocked(&self) -> bool {
        !self.unblocked.operations.is_empty()
            || !self.unblocked.responses.is_empty()
            || !self.unblocked.protocols.is_empty()
    }

    /// Takes what has room again.
    pub(crate) fn take_unblocked(&mut self) -> Option<Unblocked> {
        self.has_unblocked()
            .then(|| std::mem::take(&mut self.unblocked))
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
