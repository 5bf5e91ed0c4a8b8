//! Two-level round robin (Q10): one frame per turn, over owners of turns, then over what
//! an owner has to send. An owner is a process, or the NIC itself on behalf of a protocol
//! that sends frames without a command.
//!
//! ```text
//!   scheduled:  VNI 3 ─ VNI 7 ─ NIC ─ VNI 0    one turn each, then to the back
//!                 │
//!                 ├── operations: bit for each that can send; the next after the last
//!                 └── responses to peers: every second turn, first come, first served
//! ```
//! So a process with a thousand transfers delays one with a single transfer by one frame. Peers that
//! read the memory of a process share its turns, and take none of other processes. Within a device
//! process a frame can have [`qnic_abi::wire::SPAN_PAGES`] fragments; a poll counts its work in
//! fragments.

use qnic_abi::{Status, VniId};

use super::operation::Operation;
use super::Core;
use crate::frame::StoredFrame;
use crate::ids::{OperationId, ProtocolId};

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A process.
    Process(VniId),
    /// The NIC itself, for a protocol.
    Nic(ProtocolId),
}

/// What the turn of a process is for.
#[derive(Debug)]
pub(crate) enum Work {
    /// One of its operations; `true`: it is sampled.
    Operation(OperationId, ProtocolId, bool),
    /// The answer to a frame of a peer.
    Response(StoredFrame),
}

impl Core {
    /// Gives a process its turn if it has something to send.
    #[inline]
    pub(crate) fn schedule(&mut self, vni: VniId) {
        if let Some(process) = self.process_mut(vni) {
            if process.wants_turn() && !process.scheduled {
                process.scheduled = true;
                self.scheduled.push_back(Owner::Process(vni));
            }
        }
    }

    /// Gives the NIC a turn for a protocol.
    pub(crate) fn schedule_nic(&mut self, protocol: ProtocolId) {
        let owner = Owner::Nic(protocol);
        if !self.scheduled.contains(&owner) {
            self.scheduled.push_back(owner);
        }
    }

    /// Returns true if there is an owner of a turn.
    pub(crate) fn has_turns(&self) -> bool {
        !self.scheduled.is_empty()
    }

    /// The owner of the next turn. A process keeps its place until [`Core::end_turn`].
    #[inline]
    pub(crate) fn next_turn(&mut self) -> Option<Owner> {
        let owner = *self.scheduled.front()?;
        if let Owner::Nic(_) = owner {
            self.scheduled.pop_front();
        }
        Some(owner)
    }

    /// The turn of a process has ended: it goes to the back if it has more to send.
    #[inline]
    pub(crate) fn end_turn(&mut self, vni: VniId) {
        let Some(process) = self.process_mut(vni) else {
            return;
        };
        let stays = process.wants_turn();
        process.scheduled = stays;
        if stays && self.scheduled.len() == 1 {
            return;
        }
        let owner = self.scheduled.pop_front();
        debug_assert_eq!(owner, Some(Owner::Process(vni)));
        if stays {
            self.scheduled.push_back(Owner::Process(vni));
        }
    }

    /// What a process does with its turn.
    #[inline]
    pub(crate) fn take_work(&mut self, vni: VniId) -> Option<Work> {
        let process = self.process_mut(vni)?;
        let response = process.response_turn || !process.operations.any_ready();
        process.response_turn = !response;
        if response {
            if let Some(request) = process.responses.pop_front() {
                return Some(Work::Response(request));
            }
        }
        let operation = process.operations.take_turn()?;
        let Operation {
            id,
            protocol,
            sampled,
            ..
        } = *operation;
        Some(Work::Operation(id, protocol, sampled))
    }

    /// Notes whether an operation can send a frame.
    #[inline]
    pub(crate) fn set_ready(&mut self, id: OperationId, ready: bool) {
        let Some(process) = self.process_mut(id.vni()) else {
            return;
        };
        process.operations.set_ready(id, ready);
        if ready && !process.scheduled {
            process.scheduled = true;
            self.scheduled.push_back(Owner::Process(id.vni()));
        }
    }

    /// Queues a frame of a peer whose answer needs a turn.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn queue_response(
        &mut self,
        vni: VniId,
        request: StoredFrame,
    ) -> Result<(), Status> {
        let limit = self.limits.responses as usize;
        let process = self.process_mut(vni).ok_or(Status::NoSuchPort)?;
        if process.requests_held() >= limit {
            return Err(Status::Exhausted);
        }
        process.responses.push_back(request);
        self.schedule(vni);
        Ok(())
    }

    /// Lets a frame whose answer has waited have a turn again, behind the others; the
    /// rest of one that has just had one, before them.
    pub(crate) fn requeue_response(&mut self, vni: VniId, request: StoredFrame, front: bool) {
        if let Some(process) = self.process_mut(vni) {
            match front {
                true => process.responses.push_front(request),
                false => process.responses.push_back(request),
            }
            self.schedule(vni);
        }
    }
}
