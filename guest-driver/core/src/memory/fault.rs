//! Page faults of the NIC that wait for a worker (N13).

use alloc::collections::VecDeque;

use qnic_abi::VniId;

use crate::platform::NoMemory;

/// Faults that wait for a worker; more stay in the event queue.
pub(crate) const QUEUE_FAULTS: usize = 1024;

/// One fault event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) vni: VniId,
    pub(crate) address: u64,
    pub(crate) pages: u32,
}

/// Faults in order of arrival; allocated once.
pub(crate) struct FaultQueue(VecDeque<Fault>);

impl FaultQueue {
    pub(crate) fn new() -> Result<Self, NoMemory> {
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(QUEUE_FAULTS)?;
        Ok(FaultQueue(queue))
    }

    pub(crate) fn has_room(&self) -> bool {
        self.0.len() < QUEUE_FAULTS
    }

    /// Returns false if there was no room.
    pub(crate) fn push(&mut self, fault: Fault) -> bool {
        let room = self.has_room();
        if room {
            self.0.push_back(fault);
        }
        room
    }

    pub(crate) fn pop(&mut self) -> Option<Fault> {
        self.0.pop_front()
    }
}
